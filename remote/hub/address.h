/* address.h - what is asked for, of which Hub, and what the environment says about it. */
#ifndef FM_REMOTE_HUB_ADDRESS_H
#define FM_REMOTE_HUB_ADDRESS_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

#define FMR_HUB_NAME_MAX 200u /* of a repository, with its owner */
#define FMR_HUB_PATH_MAX 1024u

typedef struct fmr_address {
    char *repo;     /* "org/name", or "name" of an old model; NULL: `url` is a file's own URL */
    char *revision; /* "main" where none is named */
    char *file;     /* "a/b.gguf"; NULL: the model */
    char *url;      /* NULL unless repo is */
} fmr_address;
/* endpoint: fmr_hub_env.endpoint. FM_EINVAL says what is wrong and shows the forms. */
FM_CHECKED fm_status fmr_address_parse(fmr_address *out, const char *src, const char *endpoint);
void fmr_address_release(fmr_address *a);

/* A relative path whose parts are no "..", not empty and without control bytes. */
bool fmr_hub_path_is_safe(const char *path);

typedef struct fmr_hub_env {
    char *endpoint; /* "https://huggingface.co", without a '/' at its end */
    char *token;    /* NULL: none */
    char *cache;    /* the folder with models--org--name; NULL: not known */
    bool offline;
} fmr_hub_env;
FM_CHECKED fm_status fmr_hub_env_read(fmr_hub_env *out);
void fmr_hub_env_release(fmr_hub_env *e);

FM_END_DECLS
#endif
