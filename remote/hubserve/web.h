/* web.h - what the parts of the Hub's server share: models by their names, open views, answers. */
#ifndef FM_REMOTE_HUBSERVE_WEB_H
#define FM_REMOTE_HUBSERVE_WEB_H

#include <pthread.h>

#include "remote/hub_serve.h"
#include "store/base/text/json.h"
#include "store/export_view.h"

FM_BEGIN_DECLS

#define FMR_SERVE_NAME_MAX 512u                 /* bytes of an owner, of a model's name */
#define FMR_SERVE_REVISION_MAX 512u             /* bytes of a revision */
#define FMR_SERVE_VIEWS 8u                      /* that stay open while nobody reads them */
#define FMR_SERVE_BODY_MAX ((size_t)1 << 20)    /* of a request */
#define FMR_SERVE_PLAIN_MAX ((uint64_t)1 << 20) /* larger files are told as LFS files */

/* ---- names.c ---- */

typedef enum fmr_form { FMR_FORM_OWN, FMR_FORM_MERGED, FMR_FORM_GGUF } fmr_form;

typedef struct fmr_model {             /* "{name}", "{name}-merged", "{name}-GGUF" */
    char ref[FMR_SERVE_NAME_MAX + 16]; /* "refs/heads/x"; "": it is a commit's id */
    fm_oid oid;                        /* what it holds now */
    fmr_form form;
} fmr_model;
/* FM_ENOTFOUND: no branch, tag or commit is called so. */
FM_CHECKED fm_status fmr_model_find(fm_repo *r, fmr_model *out, const char *name);
/* text begins with a revision of the model; *rest (within text): what follows it and a '/', "" at
 * the end. FM_ENOTFOUND: there is no such revision. */
FM_CHECKED fm_status fmr_model_revision(fm_repo *r, fm_oid *out, const fmr_model *m,
                                        const char *text, const char **rest);
/* Appends a branch's or tag's name as a model's: '/' as "__". */
void fmr_model_name(fm_buf *out, const char *branch);

/* The ancestor that the version's topmost adapter stands on. *found false: there is none, since the
 * version has no adapter, or changed something else along with it. whole: the ancestor has adapters
 * of its own, so that PEFT needs it merged. tree: of the version. */
FM_CHECKED fm_status fmr_model_base(fm_repo *r, const fm_oid *oid, const fm_tree *tree,
                                    fm_oid *base, bool *found, bool *whole);

/* ---- views.c ---- */

typedef struct fmr_sum { /* of a file */
    enum { FMR_SUM_NONE, FMR_SUM_BUSY, FMR_SUM_KNOWN } state;
    char blob[41];   /* git's id of it; of an LFS file, of its pointer */
    char sha256[65]; /* "": no LFS file */
} fmr_sum;

typedef struct fmr_open {
    char commit[41], owner[FMR_SERVE_NAME_MAX + 1];
    fmr_form form;
    char tree_id[41];
    char *title; /* of the commit */
    int64_t time;
    fm_repo *repo;
    fm_tree *tree;
    fm_provider provider;
    fm_view *view;
    bool peft;
    char base[FMR_SERVE_NAME_MAX + 64]; /* peft: the model that it is for */
    /* guarded by the lock of the views */
    fmr_sum *sum;
    unsigned users;
    uint64_t used;
} fmr_open;

typedef struct fmr_views {
    const char *dir; /* of the repository */
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint64_t ticks;
    fmr_open **open;
    size_t count, cap;
} fmr_views;
FM_CHECKED fm_status fmr_views_init(fmr_views *v, const char *dir);
void fmr_views_release(fmr_views *v);
/* The version's files in this form; give it back. FM_EUNSUPPORTED, FM_EBASE: it has no such
 * form. */
FM_CHECKED fm_status fmr_views_take(fmr_views *v, fmr_open **out, const fm_oid *oid, fmr_form form,
                                    const char *owner);
void fmr_views_give(fmr_views *v, fmr_open *o);
bool fmr_ends_with(const char *s, const char *suffix);   /* in any case */
bool fmr_view_has(const fm_view *v, const char *suffix); /* a file whose name ends so */

/* ---- sums.c ---- */

bool fmr_view_is_lfs(const fm_view_file *f);
/* Digests of file i, recorded, kept in REPO/cache/hub, or computed once whoever asks. The request
 * is asked between pieces whether the server goes on. */
FM_CHECKED fm_status fmr_view_sum(fmr_views *v, fmr_open *o, size_t i, fmr_sum *out,
                                  const fm_hub_exchange *x);
/* Appends the text that git holds in an LFS file's place. */
void fmr_lfs_pointer(fm_buf *out, const char *sha256, uint64_t bytes);
/* Git's id of a blob of these bytes. */
FM_CHECKED fm_status fmr_blob_id(char out[41], fm_span bytes);

/* ---- web.c ---- */

struct fm_hub_web {
    char *dir;
    pthread_mutex_t lock; /* of repo, which looks names up */
    fm_repo *repo;
    fmr_views views;
};

typedef enum fmr_missing { FMR_NO_MODEL, FMR_NO_REVISION, FMR_NO_ENTRY } fmr_missing;

typedef struct fmr_ask {
    fm_hub_web *web;
    const fm_hub_exchange *x;
    char owner[FMR_SERVE_NAME_MAX + 1], name[FMR_SERVE_NAME_MAX + 1];
    fm_buf body; /* of the request */
    /* after fmr_ask_model, fmr_ask_view */
    fmr_model model;
    fm_oid oid;
    char commit[41];
    fmr_open *open;
} fmr_ask;

/* Each of these *answered the request itself where there is none. text: as fmr_model_revision. */
FM_CHECKED fm_status fmr_ask_model(fmr_ask *a, bool *answered);
FM_CHECKED fm_status fmr_ask_view(fmr_ask *a, const char *text, const char **rest, bool *answered);
FM_CHECKED fm_status fmr_say_missing(fmr_ask *a, fmr_missing what, const char *text);
FM_CHECKED fm_status fmr_say_error(fmr_ask *a, unsigned status, const char *text);
FM_CHECKED fm_status fmr_say_json(fmr_ask *a, const fm_json *v);
FM_CHECKED fm_status fmr_say_bytes(fmr_ask *a, unsigned status, const char *type, fm_span bytes);
bool fmr_ask_is(const fmr_ask *a, const char *method);

/* ---- file.c ---- */
/* what: "main/config.json". raw: as git has it, an LFS file's pointer. */
FM_CHECKED fm_status fmr_answer_file(fmr_ask *a, const char *what, bool raw);

/* ---- tree.c ---- */
const char *fmr_argument(const fmr_ask *a, const char *name);
bool fmr_argument_true(const fmr_ask *a, const char *name);
/* none: where there is no number. */
uint64_t fmr_argument_number(const fmr_ask *a, const char *name, uint64_t none, uint64_t most);
/* The answer goes on at {this server}/api/models/{owner}/{name}/{verb}?{query}. */
FM_CHECKED fm_status fmr_set_next(const fmr_ask *a, const char *verb, const char *query);
/* A file as a model's list has it. blobs: with size and digests. */
fm_json *fmr_sibling(fm_status *rc, fmr_ask *a, size_t i, bool blobs);
FM_CHECKED fm_status fmr_answer_tree(fmr_ask *a, const char *folder);
FM_CHECKED fm_status fmr_answer_paths(fmr_ask *a); /* that the request's body names */

/* ---- api.c ---- */
FM_CHECKED fm_status fmr_answer_models(fmr_ask *a);
FM_CHECKED fm_status fmr_answer_whoami(fmr_ask *a);
/* verb: what follows the model's name: "", "tree/main/x". */
FM_CHECKED fm_status fmr_answer_model(fmr_ask *a, const char *verb);
/* tag: of a quantization, as llama.cpp names it. */
FM_CHECKED fm_status fmr_answer_manifest(fmr_ask *a, const char *tag);

FM_END_DECLS
#endif
