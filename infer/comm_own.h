/* comm_own.h - what a comm is made of, for comm.c and comm_record.c alone. */
#ifndef FM_INFER_COMM_OWN_H
#define FM_INFER_COMM_OWN_H

#include "infer/comm_wire.h"

FM_BEGIN_DECLS

#define FM_COMM_TEXT_BYTES 512u

/* What a rank tells the others where it breaks off. */
typedef struct fm_comm_word {
    int32_t status; /* FM_OK: it heard of it */
    uint32_t device_fails;
    uint64_t unmet;
    char text[FM_COMM_TEXT_BYTES];
} fm_comm_word;
_Static_assert(sizeof(fm_comm_word) <= FM_WORD_BYTES, "a word to all");

struct fm_comm {
    fm_comm *of; /* a group: the comm whose wires carry what it moves, and which fails with it */
    uint32_t rank, size, nodes;
    fm_wire *wire, *device; /* device NULL: the wire carries buffers too */
    bool direct;
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
    fm_move *move;      /* [2 * size] */
    fm_comm_word *said; /* [size] */
    fm_status failed;   /* for good, or, where broken says so, until the ranks have met */
    bool broken;
    bool anew; /* the device's wire was given up, and is to be made again */
    fm_error_state why;
    fm_comm_stats stats;
};

/* The device's wire fails here, with mine, or was given up since a peer had broken off. what: the
 * operation. */
fm_status fmi_comm_device_fails(fm_comm *c, fm_status mine, const char *what);

FM_END_DECLS
#endif
