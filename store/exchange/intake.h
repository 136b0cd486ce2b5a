/* intake.h - the inside of an intake, which the files of this folder share.
 *
 * What arrives lies in one file of incoming/ at a time: a pack without a footer, whose flock the
 * intake holds. Bytes are written once, where they stay; leaves are decoded out of a mapping of
 * that file. A record counts when all of it was compared; one that does not is cut off again. */
#ifndef FM_STORE_EXCHANGE_INTAKE_H
#define FM_STORE_EXCHANGE_INTAKE_H

#include "store/exchange.h"
#include "store/exchange/sweep.h"
#include "store/pack/pack_writer.h"

FM_BEGIN_DECLS

#define FMS_INCOMING_ROLL_BYTES ((uint64_t)2 << 30) /* a file that is so long is published */
#define FMS_INCOMING_RECORDS_MAX 262144u            /* or has so many records */
/* A coder writes a leaf raw where nothing is smaller; more than this no record has to store. */
#define FMS_INCOMING_STORED_MAX(bytes) (2 * (bytes) + 65536u)
enum { FMS_INTAKE_THREADS_MAX = 12, FMS_INTAKE_LEAVES_PER_THREAD = 8 };

/* The file that is being filled; all zeros: there is none. */
typedef struct fms_incoming {
    fms_packer packer;  /* its offset is where the last counted record ends */
    fm_file_map map;    /* of the file as it will be; only what was flushed may be read */
    fm_hasher *counted; /* packer.whole as it was at packer.offset */
    uint64_t hashed;    /* bytes that packer.whole has taken */
    fm_map *record;     /* id of each counted record -> its offset */
    uint64_t fresh;     /* records that are not stored elsewhere */
} fms_incoming;

typedef enum fms_intake_state {
    FMS_INTAKE_IDLE,
    FMS_INTAKE_PASSING, /* an object that is here already: its bytes are counted and dropped */
    FMS_INTAKE_FILLING,
    FMS_INTAKE_DOOMED /* a fault was found: its bytes are dropped, and fm_intake_end tells it */
} fms_intake_state;

struct fm_intake {
    fm_store *store;
    char *dir;
    fm_pool *pool;
    unsigned threads;
    fms_coder **coder; /* one per thread */
    uint8_t **leaf;    /* likewise, FM_LEAF_BYTES */
    fms_incoming file;
    uint64_t roll_bytes; /* FMS_INCOMING_ROLL_BYTES; tests set less */
    /* the record that arrives */
    fms_intake_state state;
    fm_record_info info;
    uint64_t came; /* bytes of it that are here */
    bool has_head; /* r is set */
    fms_record r;
    bool has_chain;
    fms_chain chain;
    uint32_t depth;          /* what the parents that are here ask for at least */
    uint32_t whole, checked; /* leaves whose bytes are here; that were compared */
    fm_status late;          /* the first fault, which fm_intake_end tells */
    fm_error_state late_text;
    /* what a killed intake left cut: it lies at file.packer.offset; 0: nothing */
    uint64_t cut_bytes;
    fm_record_info cut;
    fm_intake_stats stats;
};

/* ---- incoming.c ---- */
FM_CHECKED fm_status fms_incoming_make(fms_incoming *f, fm_store *s, const char *dir);
/* FM_ECONFLICT, FM_ENOTFOUND: as fm_writer_resume. *bytes: how long it is. */
FM_CHECKED fm_status fms_incoming_resume(fms_incoming *f, fm_store *s, const char *path,
                                         uint64_t *bytes);
bool fms_incoming_is_open(const fms_incoming *f);
/* Makes the first `end` bytes readable in f->map, whether they are there yet or not. */
FM_CHECKED fm_status fms_incoming_map(fms_incoming *f, uint64_t end);
FM_CHECKED fm_status fms_incoming_hash(fms_incoming *f, uint64_t end); /* which were flushed */
/* Counts the record at the end, which r was parsed from. After a failure close the file. */
FM_CHECKED fm_status fms_incoming_count(fms_incoming *f, const fms_record *r, bool fresh);
FM_CHECKED fm_status fms_incoming_drop_rest(fms_incoming *f); /* what follows the last record */
/* Durable and stored on return; closed, whatever comes. Nothing may follow the last record. */
FM_CHECKED fm_status fms_incoming_publish(fms_incoming *f);
void fms_incoming_close(fms_incoming *f, bool keep);

/* ---- check.c ---- */
/* Opens what the record is coded against; a fault is noted as late. */
FM_CHECKED fm_status fms_check_open(fm_intake *in);
/* Compares leaves that are here; all: also less than a batch of them. A fault is noted as late. */
FM_CHECKED fm_status fms_check_leaves(fm_intake *in, bool all);
FM_CHECKED fm_status
fms_check_rest(fm_intake *in); /* hashes and looks at what follows the leaves */
void fms_check_close(fm_intake *in);

/* ---- intake.c ---- */
/* Reads the head once it is here. FM_ECORRUPT, FM_ELIMIT: it is wrong, or not what info says. */
FM_CHECKED fm_status fms_intake_head(fm_intake *in);
/* The whole record is here: compares it and counts it. */
FM_CHECKED fm_status fms_intake_whole(fm_intake *in);
void fms_intake_forget(fm_intake *in); /* the record; its bytes stay in the file */
/* FM_ELIMIT as fm_intake_begin. */
FM_CHECKED fm_status fms_info_of(fm_record_info *out, const fms_record *r);

/* ---- takeover.c ---- */
FM_CHECKED fm_status fms_take_over(fm_intake *in);

FM_END_DECLS
#endif
