/* comm_core.h - inside of a comm: what comm.c, sums.c, record.c and wire_device.c share. */
#ifndef FM_INFER_COMM_CORE_H
#define FM_INFER_COMM_CORE_H

#include "infer/comm/wire.h"

FM_BEGIN_DECLS

#define FMI_WORD_TEXT 960u

/* The status message that a rank sends to all others when it breaks off. */
typedef struct fmi_word {
    int32_t status; /* FM_OK: it breaks off because another rank did */
    uint32_t device_fails;
    uint64_t unmet;
    char text[FMI_WORD_TEXT];
} fmi_word;

struct fm_comm {
    fm_comm *of; /* a group: the comm whose wires it uses, and which fails with it; else NULL */
    uint32_t rank, size, nodes;
    fm_wire *wire, *device; /* device NULL: the wire carries buffers too */
    /* held by the user of the host's wire: this comm or its watch */
    pthread_mutex_t host;
    fm_watch *watch;
    uint64_t queued, arrived; /* exchanges of the device's wire */
    fm_ledger ledger;         /* the messages of these exchanges */
    bool hangs;               /* an exchange did not end within the time limit */
    fm_script *script;        /* not NULL: exchanges are recorded, and listed here */
    uint64_t age;             /* number of device wires so far */
    fm_backend *be;
    uint32_t node[FM_COMM_MAX_RANKS], member[FM_COMM_MAX_RANKS]; /* member: number in `of` */
    float *room;                                                 /* device: parts of other ranks */
    uint64_t room_floats;
    uint8_t *stage; /* host memory, for staged exchanges */
    size_t stage_bytes;
    fm_move *move;    /* [2 * size] */
    fmi_word *said;   /* [size] */
    fm_status failed; /* permanent, or, where broken is true, until the ranks have met */
    bool broken;
    bool anew; /* the device's wire was given up, and fm_comm_meet makes a new one */
    /* Makes the new device wire; NULL: the host's wire carries buffers from then on. */
    fm_status (*attach_anew)(fm_comm *c, fm_backend *be);
    fm_error_state why;
    fm_comm_stats stats;
};

/* Appends a move to c->move; a move without bytes, or to this rank itself, is left out. */
void fmi_comm_put(fm_comm *c, uint32_t *count, uint32_t peer, bool send, const void *x,
                  uint64_t bytes);
/* Carries out the moves c->move[0 .. n - 1], of device memory. */
FM_CHECKED fm_status fmi_comm_moves(fm_comm *c, const char *what, uint32_t n);
/* This rank cannot do its part: all ranks break off. The error text of `mine` is set. */
FM_CHECKED fm_status fmi_comm_leave(fm_comm *c, fm_status mine, const char *what);
/* The device's wire failed here with `mine`, or was given up because a peer had broken off. */
FM_CHECKED fm_status fmi_comm_device_fails(fm_comm *c, fm_status mine, const char *what);

FM_END_DECLS
#endif
