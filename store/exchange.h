/* exchange.h - objects travel between stores as the records in which they lie.
 *
 * A delta travels as the delta, a recipe as the recipe, and nothing is coded again (FORMAT.md,
 * "Packs"). The sender gives bytes of records out of its packs; the receiver gathers them in a pack
 * of its own, decodes every leaf, compares it with its digest, and publishes the pack. A record is
 * named by the checksum that ends its head, which covers how every leaf is coded, so a transfer
 * that broke off goes on at the very byte, or begins that one record anew where the sender has
 * coded the object otherwise in between. */
#ifndef FM_STORE_EXCHANGE_H
#define FM_STORE_EXCHANGE_H

#include "store/store.h"

FM_BEGIN_DECLS

/* ---- the sender ---- */
typedef struct fm_record_info {
    fm_digest id;
    fm_digest head;        /* the checksum of its head: these very bytes */
    uint64_t bytes;        /* decoded */
    uint64_t stored_bytes; /* of the record: head, payload and padding */
    uint32_t depth;        /* greater than those of its parents */
    uint32_t parent_count;
    fm_digest parent[FM_PARENTS_MAX]; /* what it is coded against */
} fm_record_info;
/* Of the record that reads prefer. FM_ENOTFOUND: neither stored nor known to be sound. */
FM_CHECKED fm_status fm_record_info_of(fm_store *s, fm_record_info *out, const fm_digest *id);

/* Gives bytes [offset, stored_bytes) of the record with this head, in pieces of at most 1 MiB that
 * lie in the mapped pack. FM_ENOTFOUND: the object has no such record any more: ask anew.
 * FM_ECORRUPT: the pack was cut. Nothing is decoded: the receiver does that. */
typedef fm_status (*fm_bytes_fn)(void *ctx, const void *data, size_t len);
FM_CHECKED fm_status fm_record_send(fm_store *s, const fm_record_info *info, uint64_t offset,
                                    fm_bytes_fn fn, void *ctx);

/* ---- the receiver ----
 * Records arrive parents first. Until it is published nothing that came is visible (what fills a
 * pack, 2 GiB, is published when the next record begins; no ref reaches it yet), and a process
 * that is killed at any point leaves a file in REPO/incoming/, whose whole records the next intake
 * of the repository takes over, and whose last, cut record can be gone on with. gc removes such a
 * file when no process holds it and it is older than what gc prunes. */
typedef struct fm_intake fm_intake;
/* Takes a writer's lease on s, and publishes the whole records that a killed intake left. */
FM_CHECKED fm_status fm_intake_open(fm_intake **out, fm_store *s);
void fm_intake_close(fm_intake *in); /* what is not published stays in incoming/; NULL is fine */
/* The record that a killed intake left cut: its object, its head, and the bytes of it that are
 * here. False: there is none. It is kept until fm_intake_begin or the close. */
bool fm_intake_cut(const fm_intake *in, fm_digest *id, fm_digest *head, uint64_t *bytes);
/* Stored, or received whole by this intake. */
bool fm_intake_has(fm_intake *in, const fm_digest *id);

/* A record whose bytes from `offset` on follow; offset is 0, or what fm_intake_cut said of this
 * head. FM_ELIMIT: info claims what no record may. */
FM_CHECKED fm_status fm_intake_begin(fm_intake *in, const fm_record_info *info, uint64_t offset);
/* FM_ECORRUPT, FM_ELIMIT: the head is wrong, is another's, or more bytes come than info has;
 * FM_EVERSION: it needs a newer fmstore. The record is dropped; the ones before it stay. */
FM_CHECKED fm_status fm_intake_bytes(fm_intake *in, const void *data, size_t len);
/* The record is whole. Threads decode and compare its leaves while the next bytes come, so its
 * fault is told by this call or a later one, by fm_intake_settle at the latest: FM_ECORRUPT names
 * the object and the leaf, FM_EBASE a parent that is neither stored nor received. That record is
 * dropped and all that came after it; the ones before stay, and the next call may begin a
 * record. */
FM_CHECKED fm_status fm_intake_end(fm_intake *in);
FM_CHECKED fm_status fm_intake_settle(fm_intake *in); /* all that ended was compared on return */
/* Settles; what was received is durable and stored on return, and the intake may go on. */
typedef struct fm_intake_stats {
    uint64_t objects, bytes; /* received and published, as stored */
} fm_intake_stats;
FM_CHECKED fm_status fm_intake_publish(fm_intake *in, fm_intake_stats *stats);

FM_END_DECLS
#endif
