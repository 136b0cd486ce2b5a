/* closure.h - the git objects that versions reach, each once: the versions that they come from,
 * trees, files, annotated tags, and where it is asked for what recipes and suites name
 * (named.h). */
#ifndef FM_LINEAGE_CLOSURE_H
#define FM_LINEAGE_CLOSURE_H

#include "lineage/internal.h"

typedef struct fml_closure {
    fm_repo *r;
    /* What is added while it is true is marked as known: no function is called, and what is missing
     * here is passed over. What is marked is left out of what is added later. */
    bool known;
    bool names; /* what recipes and suites name is reached too */
    /* Each object; path: of a tree or file in its version, else "". NULL: not called. */
    fm_status (*object)(void *ctx, const git_oid *id, const char *path);
    /* Each file that could be a pointer, by its size. NULL: no file is read. */
    fm_status (*file)(void *ctx, const char *path, fm_span bytes);
    fm_status (*name)(void *ctx, const git_oid *id); /* each that is met by its name; may be NULL */
    bool (*pass)(void *ctx, const git_oid *id);      /* true: it is left out; may be NULL */
    void *ctx;                                       /* of all four */
    fm_map *seen;                                    /* id -> KNOWN or WANTED; closure.c's */
    fm_map *named; /* recipes, suites and their folders that were read */
    git_oid *todo;
    size_t todo_count, todo_cap;
    char version[41];
    char path[FM_MAX_PATH_BYTES + 1];
    unsigned depth;
} fml_closure;

FM_CHECKED fm_status fml_closure_init(fml_closure *c, fm_repo *r);
void fml_closure_release(fml_closure *c);
/* Walks from an object of any kind. FM_ENOTFOUND: an object that it reaches is not here; the text
 * has its version, id and path. */
FM_CHECKED fm_status fml_closure_add(fml_closure *c, const git_oid *id);

#endif
