/* hub.h - models of a Hugging Face Hub, and single files behind a URL, brought here for import.
 *
 *   hf:org/name              the files of a model that a version can hold, as of branch main
 *   hf:org/name@rev          as of a branch, a tag, a commit ('/' in a name as %2F) or refs/pr/3
 *   hf:org/name@rev/file     one file: a .gguf (of a split one the first, and the others come too),
 *                            a .safetensors, a PyTorch file
 *   https://host/x.gguf      one file; an address of the Hub's own pages is read as hf:
 *
 * The environment is read as Hugging Face's own client reads it: HF_ENDPOINT; HF_TOKEN, else the
 * file HF_TOKEN_PATH names; HF_HUB_CACHE and HF_HOME for the cache; HF_HUB_OFFLINE=1. The token is
 * sent to the endpoint's host alone, not to where it redirects.
 *
 * What the cache has of a commit is read in place. Of the rest, a file whose digest an imported
 * version of the repository names is made from that version; what is left is downloaded, several
 * files at once, into REPO/incoming-hub/, where a later call goes on with what a killed one left.
 * Every downloaded file has the digest that the Hub's API gives for it (SHA-256 of LFS files, git's
 * blob id of others), else it is refused by name. */
#ifndef FM_REMOTE_HUB_H
#define FM_REMOTE_HUB_H

#include "lineage/lineage.h"

FM_BEGIN_DECLS

#define FMR_HUB_MAX_FILES 10000u

/* Whether import takes this for an address and not for a path: it begins with "hf:", "http://" or
 * "https://". */
bool fmr_hub_is_address(const char *src);

typedef struct fmr_hub_opts {
    fm_repo *repo; /* leased for writing by the caller */
    /* Both may be NULL. progress is called on the caller's thread; true stops. The text of a note
     * may hold what the Hub sent. */
    bool (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void (*note)(void *ctx, const char *text);
    void *ctx;
} fmr_hub_opts;

/* One model that was brought here, and where it came from. */
typedef struct fmr_hub_model fmr_hub_model;
/* FM_EINVAL: no address, or a token that is missing, wrong or without access (gated); the text says
 * which and what to do. FM_ENOTFOUND: no such model, revision or file. FM_ECORRUPT: a file's bytes
 * are not those of its digest, or the answer contradicts itself. FM_EIO: the network. Where the
 * Hub cannot be reached and the cache has the revision, that is used, with a note. */
FM_CHECKED fm_status fmr_hub_get(fmr_hub_model **out, const fmr_hub_opts *opts, const char *src);
/* done: the files that were made or downloaded for it are removed; else the next call finds
 * them. */
void fmr_hub_close(fmr_hub_model *m, bool done);

const char *fmr_hub_path(const fmr_hub_model *m); /* the file or folder to import */
const char *fmr_hub_name(const fmr_hub_model *m); /* "org/name", "org/name/x.gguf", "x.gguf" */
/* What the version's recipe says: {"source","revision","commit","url","left_out":[...]}; absent
 * fields where they are not known. The caller frees it; NULL: out of memory. */
fm_json *fmr_hub_origin(const fmr_hub_model *m);
/* Compares source/source.json of what was imported with the digests that the Hub gave: so the files
 * of a cache are checked too, without being hashed twice. FM_ECORRUPT names the file. */
FM_CHECKED fm_status fmr_hub_check(const fmr_hub_model *m, const fm_json *source_json);

FM_END_DECLS
#endif
