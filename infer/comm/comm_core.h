/* comm_core.h - inside of a comm: what comm.c, sums.c and record.c share. */
#ifndef FM_INFER_COMM_CORE_H
#define FM_INFER_COMM_CORE_H

#include "infer/comm/wire.h"

FM_BEGIN_DECLS

#define FMI_WORD_TEXT 960u

/* What a rank tells the others where it breaks off. */
typedef struct fmi_word {
    int32_t status; /* FM_OK: it heard of it */
    uint32_t device_fails;
    uint64_t unmet;
    char text[FMI_WORD_TEXT];
} fmi_word;

struct fm_comm {
    fm_comm *of; /* a group: the comm whose wires carry what it moves, and which fails with it */
    uint32_t rank, size, nodes;
    fm_wire *wire, *device; /* device NULL: the wire carries buffers too */
    pthread_mutex_t host; /* who uses the host's wire: this comm or its watch */
    fm_watch *watch;
    uint64_t queued, arrived; /* exchanges of the device's wire */
    fm_ledger ledger;         /* their messages */
    bool hangs;               /* one of them does not end */
    fm_script *script;        /* not NULL: exchanges are recorded, and noted here */
    uint64_t age;             /* device wires that it has had */
    fm_backend *be;
    uint32_t node[FM_COMM_MAX_RANKS], member[FM_COMM_MAX_RANKS]; /* member: of `of` */
    float *room;                                                 /* device: parts of other ranks */
    uint64_t room_floats;
    uint8_t *stage; /* host */
    size_t stage_bytes;
    fm_move *move;    /* [2 * size] */
    fmi_word *said;   /* [size] */
    fm_status failed; /* for good, or, where broken says so, until the ranks have met */
    bool broken;
    bool anew; /* the device's wire was given up, and is to be made again */
    /* How; NULL: the host's wire carries buffers then. */
    fm_status (*attach_anew)(fm_comm *c, fm_backend *be);
    fm_error_state why;
    fm_comm_stats stats;
};

/* One more move of c->move; what has no bytes, or is this rank's own, is none. */
void fmi_comm_put(fm_comm *c, uint32_t *count, uint32_t peer, bool send, const void *x,
                  uint64_t bytes);
/* Moves c->move[n], device memory. */
FM_CHECKED fm_status fmi_comm_moves(fm_comm *c, const char *what, uint32_t n);
/* This rank cannot take its part: mine has the text. */
FM_CHECKED fm_status fmi_comm_leave(fm_comm *c, fm_status mine, const char *what);
/* The device's wire fails here, with mine, or was given up since a peer had broken off. */
FM_CHECKED fm_status fmi_comm_device_fails(fm_comm *c, fm_status mine, const char *what);

FM_END_DECLS
#endif
