/* compare.c - threads that decode the leaves of what came and compare them with their digests,
 * while the caller writes the next bytes.
 *
 * Leaves are taken in the order in which they came, two at a time, since two digests at once cost
 * little more than one; the file's own digest goes beside them for the same reason. Where more than
 * FMS_INTAKE_AHEAD_BYTES wait, the caller helps, so that as many cores as there are have work. */
#include "store/exchange/intake.h"

#include <string.h>

#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/base/os/pool.h"

#define WAKE_BYTES ((uint64_t)64 << 10)      /* less is not worth waking a thread */
#define HASH_ALONE_BYTES ((uint64_t)1 << 20) /* of the file: less waits for leaves to go beside */

typedef struct job {
    unsigned count;
    struct item {
        fms_arrival *of;
        uint32_t leaf;
        fm_span bytes; /* decoded; data NULL: they could not be */
    } item[2];
} job;

/* Where the coded bytes of the leaves before this one end, from the record's begin. */
static uint64_t end_of(const fms_arrival *a, uint32_t leaf)
{
    return a->r.head_bytes + a->chain.more[0].offset[leaf];
}

/* ==== the file's digest ==================================================================== */

/* Lock held. How far the file may be hashed: up to the last record that counts, then on through
 * what is here of the next, unless that head will be changed. */
static uint64_t hash_end(fm_intake *in)
{
    const uint64_t counted = in->file.packer.offset;
    const fms_arrival *a = fms_intake_nth(in, 0);
    if (in->file.hashed < counted || !a->has_chain || a->late != FM_OK || a->depth != a->r.depth)
        return counted;
    return a->at + end_of(a, a->whole);
}

/* Takes the right to hash up to `most` bytes from file.hashed on; *to == file.hashed: none. */
static void take_hash(fm_intake *in, uint64_t most, uint64_t *to)
{
    fms_incoming *f = &in->file;
    *to = f->hashed;
    const uint64_t end = in->hashing || in->halted || in->broken != FM_OK ? 0 : hash_end(in);
    if (end <= f->hashed)
        return;
    if (f->hashed == f->packer.offset)
        in->broken = fm_hasher_copy(f->counted, f->packer.whole);
    *to = FM_MIN(end, f->hashed + most);
    in->hashing = true;
}

/* Hashes a piece of the file, as much as `beside` has, and takes its digest. */
static fm_status hash_beside(fm_intake *in, uint64_t *at, uint64_t to, fm_digest *got,
                             fm_span beside)
{
    const size_t n = (size_t)FM_MIN(to - *at, (uint64_t)beside.len);
    const fm_span piece = fm_span_of(in->file.map.data + *at, n);
    *at += n;
    return n ? fm_hasher_along(in->file.packer.whole, piece, got, beside)
             : fm_sha256(got, beside.data, beside.len);
}

static void give_hash(fm_intake *in, uint64_t to, fm_status rc)
{
    (void)pthread_mutex_lock(&in->lock);
    in->file.hashed = to;
    in->hashing = false;
    if (rc != FM_OK)
        in->broken = rc;
    (void)pthread_mutex_unlock(&in->lock);
}

/* ==== leaves =============================================================================== */

static fm_status wrong_leaf(const fms_arrival *a, uint32_t leaf)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&a->r.id, hex);
    return fm_fail(FM_ECORRUPT, "object %s, leaf %u: the bytes do not match their digest", hex,
                   leaf);
}

/* Lock held. False: there is nothing to do. */
static bool take(fm_intake *in, job *j)
{
    memset(j, 0, sizeof *j);
    for (uint32_t n = 0; !in->halted && j->count < 2 && n <= in->waiting; n++) {
        fms_arrival *a = fms_intake_nth(in, n);
        while (j->count < 2 && a->has_chain && a->late == FM_OK && a->taken < a->whole)
            j->item[j->count++] = (struct item){.of = a, .leaf = a->taken++};
    }
    return j->count > 0 ||
           (!in->halted && !in->hashing && hash_end(in) >= in->file.hashed + HASH_ALONE_BYTES);
}

static void decode(fm_intake *in, struct fms_comparer *c, job *j)
{
    for (unsigned k = 0; k < j->count; k++) {
        struct item *i = &j->item[k];
        uint8_t *to = c->leaf + (size_t)k * FM_LEAF_BYTES;
        const fm_status rc = fms_chain_leaf(&i->of->chain, c->coder, i->leaf, to);
        if (rc == FM_OK)
            i->bytes = fm_span_of(to, fms_leaf_bytes(i->of->r.bytes, i->leaf));
        else
            fms_check_late(in, i->of, i->leaf, rc);
    }
}

static void compare(fm_intake *in, job *j)
{
    struct item *const a = &j->item[0], *const b = &j->item[1];
    const uint64_t most = a->bytes.len + b->bytes.len;
    fm_digest got[2], want;
    uint64_t at, to;
    fm_status rc = FM_OK;
    (void)pthread_mutex_lock(&in->lock);
    at = in->file.hashed;
    take_hash(in, j->count ? most : HASH_ALONE_BYTES, &to);
    (void)pthread_mutex_unlock(&in->lock);
    const bool hashes = to > at;
    if (!hashes && a->bytes.data && b->bytes.data) {
        rc = fm_sha256_two(got, a->bytes, b->bytes);
    } else {
        for (unsigned k = 0; k < j->count; k++)
            if (j->item[k].bytes.data)
                FM_THEN(rc, hash_beside(in, &at, to, &got[k], j->item[k].bytes));
        if (hashes && at < to)
            FM_THEN(rc, fm_hasher_update(in->file.packer.whole, in->file.map.data + at,
                                         (size_t)(to - at)));
    }
    if (hashes)
        give_hash(in, to, rc);
    for (unsigned k = 0; k < j->count; k++) {
        const struct item *i = &j->item[k];
        fms_leaf_digest(&i->of->r, i->leaf, &want);
        if (rc != FM_OK)
            fms_check_late(in, i->of, i->leaf, rc);
        else if (i->bytes.data && !fm_digest_eq(&got[k], &want))
            fms_check_late(in, i->of, i->leaf, wrong_leaf(i->of, i->leaf));
    }
}

/* Lock held on call and on return. */
static void work(fm_intake *in, struct fms_comparer *c, job *j)
{
    in->busy++;
    (void)pthread_mutex_unlock(&in->lock);
    decode(in, c, j);
    compare(in, j);
    (void)pthread_mutex_lock(&in->lock);
    for (unsigned k = 0; k < j->count; k++) {
        fms_arrival *a = j->item[k].of;
        a->compared++;
        in->behind -= end_of(a, j->item[k].leaf + 1) - end_of(a, j->item[k].leaf);
    }
    in->busy--;
    (void)pthread_cond_broadcast(&in->done);
}

static void *comparer_main(void *arg)
{
    struct fms_comparer *c = arg;
    fm_intake *in = c->in;
    job j;
    (void)pthread_mutex_lock(&in->lock);
    while (!in->ends) {
        if (take(in, &j)) {
            work(in, c, &j);
        } else {
            in->asleep++;
            (void)pthread_cond_wait(&in->more, &in->lock);
            in->asleep--;
        }
    }
    (void)pthread_mutex_unlock(&in->lock);
    return NULL;
}

/* ==== the caller =========================================================================== */

/* *idle: nothing is being done and nothing is left to do. */
static fm_status step(fm_intake *in, bool *idle)
{
    job j;
    FM_TRY(fm_go_on());
    (void)pthread_mutex_lock(&in->lock);
    *idle = false;
    if (take(in, &j))
        work(in, &in->comparer[0], &j);
    else if (in->busy)
        (void)pthread_cond_wait(&in->done, &in->lock);
    else
        *idle = true;
    const fm_status rc = in->broken;
    (void)pthread_mutex_unlock(&in->lock);
    return rc;
}

static bool far_behind(fm_intake *in)
{
    (void)pthread_mutex_lock(&in->lock);
    const uint64_t end = FM_MAX(hash_end(in), in->file.hashed);
    const bool yes = in->behind + end - in->file.hashed > FMS_INTAKE_AHEAD_BYTES;
    (void)pthread_mutex_unlock(&in->lock);
    return yes;
}

fm_status fms_compare(fm_intake *in)
{
    fms_arrival *a = in->now;
    uint32_t whole = a->whole;
    if (!a->has_chain)
        return FM_OK;
    while (whole < a->r.leaf_count && end_of(a, whole + 1) <= a->came)
        whole++;
    if (whole == a->whole)
        return FM_OK;
    FM_TRY(fm_writer_flush(in->file.packer.writer));
    fm_writer_urge(in->file.packer.writer);
    (void)pthread_mutex_lock(&in->lock);
    in->behind += end_of(a, whole) - end_of(a, a->whole);
    a->whole = whole;
    if (in->asleep && in->behind >= WAKE_BYTES)
        (void)pthread_cond_broadcast(&in->more);
    (void)pthread_mutex_unlock(&in->lock);
    for (bool idle = false; !idle && far_behind(in);)
        FM_TRY(step(in, &idle));
    return FM_OK;
}

fm_status fms_compare_some(fm_intake *in)
{
    bool idle;
    return step(in, &idle);
}

fm_status fms_compare_all(fm_intake *in)
{
    bool idle = false;
    while (!idle)
        FM_TRY(step(in, &idle));
    return FM_OK;
}

void fms_compare_halt(fm_intake *in, bool halt)
{
    (void)pthread_mutex_lock(&in->lock);
    in->halted = halt;
    while (halt && in->busy)
        (void)pthread_cond_wait(&in->done, &in->lock);
    (void)pthread_mutex_unlock(&in->lock);
}

/* ==== begin and end ======================================================================== */

static fm_status make_locks(fm_intake *in)
{
    in->has_lock = pthread_mutex_init(&in->lock, NULL) == 0 &&
                   pthread_cond_init(&in->more, NULL) == 0 &&
                   pthread_cond_init(&in->done, NULL) == 0;
    return in->has_lock ? FM_OK : fm_fail(FM_ENOMEM, "an intake: cannot make a lock");
}

/* Where no thread can be had the caller does all. */
fm_status fms_compare_start(fm_intake *in)
{
    in->halted = true;
    FM_TRY(make_locks(in));
    in->threads = FM_MIN(fm_cpus(), (unsigned)FMS_INTAKE_THREADS_MAX);
    for (unsigned i = 0; i < in->threads; i++) {
        struct fms_comparer *c = &in->comparer[i];
        c->in = in;
        c->leaf = fm_malloc((size_t)2 * FM_LEAF_BYTES);
        FM_TRY(c->leaf ? fms_store_coder(in->store, &c->coder) : FM_ENOMEM);
    }
    for (in->started = 1; in->started < in->threads; in->started++) {
        struct fms_comparer *c = &in->comparer[in->started];
        if (pthread_create(&c->thread, NULL, comparer_main, c) != 0)
            break;
    }
    return FM_OK;
}

void fms_compare_stop(fm_intake *in)
{
    if (!in->has_lock)
        return;
    (void)pthread_mutex_lock(&in->lock);
    in->ends = in->halted = true;
    (void)pthread_cond_broadcast(&in->more);
    (void)pthread_mutex_unlock(&in->lock);
    for (unsigned i = 1; i < in->started; i++)
        (void)pthread_join(in->comparer[i].thread, NULL);
    for (unsigned i = 0; i < in->threads; i++) {
        fms_store_coder_return(in->store, in->comparer[i].coder);
        fm_free(in->comparer[i].leaf);
    }
    (void)pthread_cond_destroy(&in->done);
    (void)pthread_cond_destroy(&in->more);
    (void)pthread_mutex_destroy(&in->lock);
}
