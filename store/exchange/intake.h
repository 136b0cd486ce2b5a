/* intake.h - the inside of an intake, which the files of this folder share.
 *
 * What arrives lies in one file of incoming/ at a time: a pack without a footer, whose flock the
 * intake holds. Bytes are written once, where they stay; threads decode leaves out of a mapping of
 * that file and compare them while the next bytes are written. A record counts when all of it was
 * compared and all before it count; a wrong one is cut off again, with those that came after it. */
#ifndef FM_STORE_EXCHANGE_INTAKE_H
#define FM_STORE_EXCHANGE_INTAKE_H

#include <pthread.h>

#include "store/exchange.h"
#include "store/exchange/sweep.h"
#include "store/pack/pack_writer.h"

FM_BEGIN_DECLS

#define FMS_INCOMING_ROLL_BYTES ((uint64_t)2 << 30) /* a file that is so long is published */
#define FMS_INCOMING_RECORDS_MAX 262144u            /* or has so many records */
/* A coder writes a leaf raw where nothing is smaller; more than this no record has to store. */
#define FMS_INCOMING_STORED_MAX(bytes) (2 * (bytes) + 65536u)
#define FMS_INTAKE_AHEAD_BYTES ((uint64_t)32 << 20) /* here, and not yet compared and hashed */
enum { FMS_INTAKE_THREADS_MAX = 12, FMS_INTAKE_RECORDS = 64 };

/* The file that is being filled; all zeros: there is none. */
typedef struct fms_incoming {
    fms_packer packer;  /* its offset is where the last counted record ends */
    fm_file_map map;    /* of the file as it will be; only what was flushed may be read */
    fm_hasher *counted; /* packer.whole as it was at packer.offset, where it has gone on since */
    uint64_t hashed;    /* bytes that packer.whole has taken */
    fm_map *record;     /* id of each counted record -> its offset */
    uint64_t fresh;     /* records that are not stored elsewhere */
} fms_incoming;

/* A record that arrives, or one that is whole and does not count yet. */
typedef struct fms_arrival {
    fm_record_info info;
    uint64_t at;   /* where it lies in the file */
    uint64_t came; /* bytes of it that are here */
    bool has_head; /* r is set */
    fms_record r;
    fms_chain chain;
    /* read and written under the intake's lock */
    bool has_chain;
    uint32_t depth;                  /* what the parents that are here ask for at least */
    uint32_t whole, taken, compared; /* leaves whose bytes are here; of these, that a thread took */
    uint32_t bad;                    /* the first of these that is wrong */
    fm_status late;                  /* its fault, or another of the record */
    fm_error_state late_text;
} fms_arrival;

typedef enum fms_intake_state {
    FMS_INTAKE_IDLE,
    FMS_INTAKE_PASSING, /* an object that is here already: its bytes are counted and dropped */
    FMS_INTAKE_FILLING,
    FMS_INTAKE_DOOMED /* a fault was found: its bytes are dropped, and fm_intake_end tells it */
} fms_intake_state;

struct fm_intake {
    fm_store *store;
    char *dir;
    fms_incoming file;
    uint64_t roll_bytes; /* FMS_INCOMING_ROLL_BYTES; tests set less */
    fms_intake_state state;
    /* ring[first] and the ones after it wait for their leaves; what arrives now comes after them */
    fms_arrival ring[FMS_INTAKE_RECORDS];
    uint32_t first, waiting;
    fms_arrival *now;
    /* what a killed intake left cut: it lies at file.packer.offset; 0: nothing */
    uint64_t cut_bytes;
    fm_record_info cut;
    fm_intake_stats stats;
    /* compare.c; number 0 is the caller */
    unsigned threads, started;
    struct fms_comparer {
        fm_intake *in;
        pthread_t thread;
        fms_coder *coder;
        uint8_t *leaf; /* room for two */
    } comparer[FMS_INTAKE_THREADS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t more, done;
    bool has_lock;
    /* under the lock, as first, waiting and file.hashed are */
    bool ends, halted, hashing;
    unsigned busy, asleep; /* threads */
    uint64_t behind;       /* coded bytes of leaves that are here and were not compared */
    fm_status broken;      /* of the file's digest */
};

/* ---- incoming.c ---- */
FM_CHECKED fm_status fms_incoming_make(fms_incoming *f, fm_store *s, const char *dir);
/* FM_ECONFLICT, FM_ENOTFOUND: as fm_writer_resume. *bytes: how long it is. */
FM_CHECKED fm_status fms_incoming_resume(fms_incoming *f, fm_store *s, const char *path,
                                         uint64_t *bytes);
bool fms_incoming_is_open(const fms_incoming *f);
/* Makes the first `end` bytes readable in f->map, whether they are there yet or not; this may move
 * it. */
bool fms_incoming_is_mapped(const fms_incoming *f, uint64_t end);
FM_CHECKED fm_status fms_incoming_map(fms_incoming *f, uint64_t end);
FM_CHECKED fm_status fms_incoming_hash(fms_incoming *f, uint64_t end); /* which were flushed */
/* Counts the record at packer.offset, which r was parsed from. After a failure close the file. */
FM_CHECKED fm_status fms_incoming_count(fms_incoming *f, const fms_record *r, bool fresh);
FM_CHECKED fm_status fms_incoming_drop_rest(fms_incoming *f); /* what follows the last record */
/* Durable and stored on return; closed, whatever comes. Nothing may follow the last record. */
FM_CHECKED fm_status fms_incoming_publish(fms_incoming *f);
void fms_incoming_close(fms_incoming *f, bool keep);

/* ---- check.c ---- */
/* Opens what in->now is coded against; a fault is noted as late. */
FM_CHECKED fm_status fms_check_open(fm_intake *in);
/* Looks at what follows the leaves of in->now, all of which is here and was flushed. */
void fms_check_rest(fm_intake *in);
void fms_check_late(fm_intake *in, fms_arrival *a, uint32_t leaf, fm_status rc);

/* ---- compare.c ---- */
FM_CHECKED fm_status fms_compare_start(fm_intake *in);
void fms_compare_stop(fm_intake *in); /* what was not compared stays so */
/* Gives the leaves of in->now that are here to the threads, and helps them where they are
 * behind. */
FM_CHECKED fm_status fms_compare(fm_intake *in);
/* All leaves that are here were compared, but those of records with a fault. FM_ECANCELLED. */
FM_CHECKED fm_status fms_compare_all(fm_intake *in);
FM_CHECKED fm_status fms_compare_some(fm_intake *in); /* does a part of it, or waits for one */
void fms_compare_halt(fm_intake *in, bool halt);      /* true: no thread reads a leaf on return */

/* ---- intake.c ---- */
FM_CHECKED fm_status fms_intake_has(fm_intake *in, const fm_digest *id, bool *out);
fms_arrival *fms_intake_nth(fm_intake *in, uint32_t n); /* of those that wait, in their order */
/* A record is to arrive at the file's end. */
void fms_intake_arrive(fm_intake *in, const fm_record_info *info, uint64_t came);
/* Reads the head once it is here. FM_ECORRUPT, FM_ELIMIT: it is wrong, or not what info says. */
FM_CHECKED fm_status fms_intake_head(fm_intake *in);
/* All of in->now is here: it waits for its leaves. */
FM_CHECKED fm_status fms_intake_whole(fm_intake *in);
void fms_intake_rest(fm_intake *in); /* forgets what does not count; no thread looks at the file */
/* FM_ELIMIT as fm_intake_begin. */
FM_CHECKED fm_status fms_info_of(fm_record_info *out, const fms_record *r);

/* ---- takeover.c ---- */
FM_CHECKED fm_status fms_take_over(fm_intake *in);

FM_END_DECLS
#endif
