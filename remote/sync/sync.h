/* sync.h - shared by fetch and push: which records travel, and in which order. */
#ifndef FM_REMOTE_SYNC_SYNC_H
#define FM_REMOTE_SYNC_SYNC_H

#include "remote/link/url.h"
#include "remote/remote.h"
#include "remote/wire/far.h"
#include "store/base/map.h"

FM_BEGIN_DECLS

struct fm_remote {
    fmr_url url;
    char *packs; /* as it may be shown; NULL: url has all */
    fmr_far *far;
};

/* Ids, each once, in the order in which they came; info[i] once it is known. */
typedef struct fmr_list {
    fm_map *seen;
    fm_digest *id;
    fm_record_info *info;
    bool *there; /* the sender has it */
    size_t count, id_cap, info_cap, there_cap;
    size_t known; /* the first so many have their info */
} fmr_list;
FM_CHECKED fm_status fmr_list_init(fmr_list *l);
void fmr_list_release(fmr_list *l);
FM_CHECKED fm_status fmr_list_add(fmr_list *l, const fm_digest *id); /* one that it has: nothing */
FM_CHECKED fm_status fmr_list_grow_info(fmr_list *l);                /* room for all ids */
/* Indices of the records that are there, parents before children; the caller frees *out. */
FM_CHECKED fm_status fmr_list_order(const fmr_list *l, size_t **out, size_t *count);

FM_END_DECLS
#endif
