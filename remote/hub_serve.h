/* hub_serve.h - this repository as a Hugging Face Hub: unchanged clients (huggingface_hub,
 * transformers, peft, llama.cpp -hf) that have HF_ENDPOINT set to the server load any revision.
 *
 *   {any owner}/{name}         name: a branch, a tag or a commit id, as one part (a '/' in a
 * branch's
 *                              name is written as "__"; clients refuse "--" in names)
 *   {any owner}/{name}-merged  adapters merged into the weights: a folder of the full model
 *   {any owner}/{name}-GGUF    the GGUF that was imported, byte for byte, else one that is made as
 *                              it is read ("model.gguf")
 *
 * A suffix counts only where no branch or tag has the whole name. Without one, a version whose last
 * step is one adapter over an ancestor is a PEFT folder, whose base is {owner}/{commit id of that
 * ancestor}: an id and not a branch's name, so that a branch that moves never changes a base.
 * What was imported as a Hugging Face folder with safetensors, and not changed since, is that
 * folder byte for byte; everything else is one as export writes it. revision: main (what the name
 * holds now), a commit's id or its beginning, a tag, refs/heads/x, refs/tags/x; another is 404. A
 * name that is a commit's id has this version alone, whatever revision is asked for: clients ask
 * for an adapter's revision of its base too.
 *
 * Files are made from tensors as they are read, ranges too (store/export_view.h). As on the Hub, an
 * ETag is the SHA-256 digest of files of weights and of what is larger than 1 MiB, and git's blob
 * id of others. Digests that no version records are computed once and kept in REPO/cache/hub/,
 * keyed by the model's tree, the form and the file. The answers have the Hub's own fields,
 * statuses and headers (X-Repo-Commit, X-Linked-Etag, X-Linked-Size, X-Error-Code). */
#ifndef FM_REMOTE_HUB_SERVE_H
#define FM_REMOTE_HUB_SERVE_H

#include "lineage/lineage.h"

FM_BEGIN_DECLS

typedef struct fm_hub_web fm_hub_web;
/* dir: of a repository. */
FM_CHECKED fm_status fm_hub_web_new(fm_hub_web **out, const char *dir);
void fm_hub_web_free(fm_hub_web *w); /* no request is under way; NULL is fine */

/* One request, as a web server has it. path: decoded, behind its first '/'. */
typedef struct fm_hub_exchange {
    const char *method, *path;
    void *ctx;
    const char *(*header)(void *ctx, const char *name);   /* NULL: there is none */
    const char *(*argument)(void *ctx, const char *name); /* of the query, decoded */
    fm_status (*read)(void *ctx, void *dst, size_t cap,
                      size_t *got); /* of the body; got 0: its end */
    fm_status (*set)(void *ctx, const char *name, const char *value); /* a header of the answer */
    fm_status (*begin)(void *ctx, unsigned status, uint64_t bytes);
    fm_status (*write)(void *ctx, const void *data, size_t len);
} fm_hub_exchange;
/* Whether the Hub's API has this path; else the server's own 404 is right. */
bool fm_hub_web_takes(const char *path);
/* Answers it, on any thread. What the API can say (404 with X-Error-Code) is said there; a failure
 * before `begin` is for the web server to tell. */
FM_CHECKED fm_status fm_hub_web_answer(fm_hub_web *w, const fm_hub_exchange *x);

FM_END_DECLS
#endif
