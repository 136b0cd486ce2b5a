/* order.c - the examples of every step, walked epoch by epoch.
 *
 * In the plain case (no packing, buckets or weights) the place of a step is computed. Else it
 * depends on all steps before, and a walk finds it, which costs a few nanoseconds an example and
 * needs no state in a checkpoint. */
#include "train/data/order.h"

#include "store/base/mem.h"
#include "store/base/math/rng.h"
#include "train/net/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* consecutive epochs without an example, when weights are below 1: never by chance */
#define MAX_EMPTY_EPOCHS 1000000u

typedef struct place {
    uint64_t epoch;
    size_t at; /* index in the epoch's list */
} place;

struct fmt_order {
    const fm_train_config *c;
    const fm_dataset *d;
    uint32_t n;
    bool weighted, bucketed, plain;
    uint64_t stream, weight_stream, bucket_stream;
    uint64_t room;  /* most tokens of a packed micro-batch */
    uint64_t total; /* plain case: examples of the whole run; 0 = `steps` decides */
    uint32_t steps;
    uint64_t last_epoch; /* if epochs decide */
    double last_share;   /* share of the last epoch that is used */
    bool has_epoch;      /* of the current epoch, as the fields below */
    uint64_t epoch;
    size_t listed, list_cap;
    uint32_t *list;
    bool *starts; /* bucketed: list[i] begins a micro-batch */
    uint32_t *permutation, *other;
    uint32_t *chunk, *chunk_order; /* bucketed: beginnings of micro-batches, and their order */
    uint32_t *bucket;              /* bucketed: [n] bucket of each example */
    uint32_t buckets, *bucket_at;  /* [buckets] */
    /* the walk */
    uint32_t next_step;
    place at;
    uint32_t *example, *ends; /* of the current step, as the two below */
    size_t count, cap;
};

static uint32_t tokens_of(const fmt_order *o, uint32_t example)
{
    return fm_dataset_at(o->d, example)->len;
}

/* ---- an epoch's list ---- */
static void list_examples(fmt_order *o, uint64_t epoch)
{
    uint32_t *to = o->weighted ? o->other : o->list;

    if (!o->weighted) {
        o->listed = o->n;
        fm_rng_permutation(to, o->n, o->c->seed, o->stream + epoch);
        return;
    }
    o->listed = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        double weight = fm_dataset_weight(o->d, i);
        double whole = floor(weight);
        uint32_t times = (uint32_t)whole;
        times += fm_rng_uniform(o->c->seed, o->weight_stream + epoch, i) < weight - whole;
        for (; times > 0; times--)
            to[o->listed++] = i;
    }
    fm_rng_permutation(o->permutation, (uint32_t)o->listed, o->c->seed, o->stream + epoch);
    for (size_t i = 0; i < o->listed; i++)
        o->list[i] = to[o->permutation[i]];
}

/* A stable sort by bucket, so that the order within a bucket is the epoch's permutation. */
static void gather_buckets(fmt_order *o, uint32_t *to)
{
    uint32_t at = 0;

    memset(o->bucket_at, 0, o->buckets * sizeof(*o->bucket_at));
    for (size_t i = 0; i < o->listed; i++)
        o->bucket_at[o->bucket[o->list[i]]]++;
    for (uint32_t b = 0; b < o->buckets; b++) {
        uint32_t count = o->bucket_at[b];
        o->bucket_at[b] = at;
        at += count;
    }
    for (size_t i = 0; i < o->listed; i++)
        to[o->bucket_at[o->bucket[o->list[i]]]++] = o->list[i];
}

static size_t cut_chunks(fmt_order *o, const uint32_t *list)
{
    size_t chunks = 0;
    size_t count = 0;
    uint64_t tokens = 0;

    for (size_t i = 0; i < o->listed; i++) {
        uint32_t len = tokens_of(o, list[i]);
        bool full = o->c->packing ? tokens + len > o->room : count == o->c->batch;
        if (i == 0 || full) {
            o->chunk[chunks++] = (uint32_t)i;
            count = 0;
            tokens = 0;
        }
        count++;
        tokens += len;
    }
    return chunks;
}

static void order_chunks(fmt_order *o, uint64_t epoch)
{
    size_t at = 0;

    gather_buckets(o, o->other);
    size_t chunks = cut_chunks(o, o->other);
    fm_rng_permutation(o->chunk_order, (uint32_t)chunks, o->c->seed, o->bucket_stream + epoch);
    for (size_t k = 0; k < chunks; k++) {
        size_t chunk = o->chunk_order[k];
        size_t end = chunk + 1 < chunks ? o->chunk[chunk + 1] : o->listed;
        for (size_t i = o->chunk[chunk]; i < end; i++) {
            o->starts[at] = i == o->chunk[chunk];
            o->list[at++] = o->other[i];
        }
    }
}

static void load_epoch(fmt_order *o, uint64_t epoch)
{
    if (o->has_epoch && o->epoch == epoch)
        return;
    list_examples(o, epoch);
    if (o->bucketed)
        order_chunks(o, epoch);
    o->has_epoch = true;
    o->epoch = epoch;
}

/* How many examples of the current epoch the run uses. */
static size_t epoch_end(const fmt_order *o)
{
    if (o->c->steps > 0 || o->epoch < o->last_epoch)
        return o->listed;
    return FM_MIN(o->listed, (size_t)ceil(o->last_share * (double)o->listed));
}

/* ---- the walk ---- */
/* Moves to the next example, in an epoch that has one; false: the run is over. */
static bool settle(fmt_order *o)
{
    for (uint32_t empty = 0; empty < MAX_EMPTY_EPOCHS; empty++) {
        if (o->c->steps == 0 && !o->plain && o->at.epoch > o->last_epoch)
            return false;
        load_epoch(o, o->at.epoch);
        if (o->at.at < (o->plain ? o->listed : epoch_end(o)))
            return true;
        o->at.epoch++;
        o->at.at = 0;
    }
    return false;
}

static bool fits(const fmt_order *o, size_t taken, uint64_t tokens, uint32_t next)
{
    if (taken == 0)
        return true;
    if (o->bucketed && o->starts[o->at.at])
        return false;
    if (o->c->packing)
        return tokens + tokens_of(o, next) <= o->room;
    return taken < o->c->batch;
}

static void take_micro(fmt_order *o)
{
    size_t begin = o->count;
    uint64_t tokens = 0;

    while (o->count < o->cap && settle(o)) {
        uint32_t next = o->list[o->at.at];
        if (!fits(o, o->count - begin, tokens, next))
            return;
        tokens += tokens_of(o, next);
        o->example[o->count++] = next;
        o->at.at++;
    }
}

static size_t take_step(fmt_order *o)
{
    size_t micros = 0;

    o->count = 0;
    while (micros < o->c->accumulate) {
        size_t before = o->count;
        take_micro(o);
        if (o->count == before)
            break;
        o->ends[micros++] = (uint32_t)o->count;
    }
    o->next_step++;
    return micros;
}

/* Takes a step in the plain case; the last step of the run may be short. */
static size_t take_plain_step(fmt_order *o, uint32_t step)
{
    uint64_t per_step = (uint64_t)o->c->batch * o->c->accumulate;
    uint64_t begin = step * per_step;
    uint64_t end = o->total > 0 ? FM_MIN(begin + per_step, o->total) : begin + per_step;

    o->at = (place){begin / o->n, (size_t)(begin % o->n)};
    o->cap = begin < end ? (size_t)(end - begin) : 0;
    return take_step(o);
}

fm_status fmt_order_step(fmt_order *o, uint32_t step, const uint32_t **example, size_t *count,
                         const uint32_t **ends, size_t *micros)
{
    if (step >= o->steps)
        return fm_fail(FM_EINVAL, "there is no step %" PRIu32 " among %" PRIu32, step, o->steps);
    if (o->plain) {
        *micros = take_plain_step(o, step);
    } else {
        if (step < o->next_step) {
            o->next_step = 0;
            o->at = (place){0, 0};
        }
        do
            *micros = take_step(o);
        while (o->next_step <= step);
    }
    if (*micros == 0)
        return fm_fail(FM_EINVAL, "step %" PRIu32 ": the weights of the data leave no example",
                       step);
    *example = o->example;
    *count = o->count;
    *ends = o->ends;
    return FM_OK;
}

uint32_t fmt_order_steps(const fmt_order *o)
{
    return o->steps;
}

/* ---- making it ---- */
typedef struct ranked {
    uint32_t len, index;
} ranked;

static int by_length(const void *a, const void *b)
{
    const ranked *x = a;
    const ranked *y = b;

    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static fm_status make_buckets(fmt_order *o)
{
    ranked *r = fm_calloc(o->n, sizeof(*r));

    o->buckets = FM_MIN(o->c->buckets, o->n);
    o->bucket = fm_calloc(o->n, sizeof(*o->bucket));
    o->bucket_at = fm_calloc(o->buckets, sizeof(*o->bucket_at));
    if (!r || !o->bucket || !o->bucket_at) {
        fm_free(r);
        return FM_ENOMEM;
    }
    for (uint32_t i = 0; i < o->n; i++)
        r[i] = (ranked){tokens_of(o, i), i};
    qsort(r, o->n, sizeof(*r), by_length);
    for (uint32_t i = 0; i < o->n; i++)
        o->bucket[r[i].index] = (uint32_t)((uint64_t)i * o->buckets / o->n);
    fm_free(r);
    return FM_OK;
}

/* Finds the largest numbers of examples that an epoch lists and that a step takes. */
static fm_status measure(fmt_order *o)
{
    double most = 0.0;
    uint32_t shortest = UINT32_MAX;
    uint32_t longest = 0;

    for (uint32_t i = 0; i < o->n; i++) {
        double weight = fm_dataset_weight(o->d, i);
        o->weighted = o->weighted || weight != 1.0;
        most += ceil(weight);
        shortest = FM_MIN(shortest, tokens_of(o, i));
        longest = FM_MAX(longest, tokens_of(o, i));
    }
    if (most > 2147483647.0)
        return fm_fail(FM_ELIMIT, "the weights make epochs of %.0f examples, the limit is %d", most,
                       2147483647);
    o->list_cap = (size_t)most;
    o->room = FM_MAX((uint64_t)o->c->batch * o->c->max_tokens, longest);
    uint64_t micro = o->c->packing ? o->room / FM_MAX(shortest, 1u) : o->c->batch;
    uint64_t step = micro * o->c->accumulate;
    if (o->c->steps == 0 && (double)step > ceil(o->c->epochs) * most)
        step = (uint64_t)(ceil(o->c->epochs) * most);
    o->cap = (size_t)step;
    return step > UINT32_MAX
               ? fm_fail(FM_ELIMIT, "a step of %" PRIu64 " examples is too large", step)
               : FM_OK;
}

static fm_status allocate(fmt_order *o)
{
    size_t n = o->list_cap;

    o->list = fm_calloc(n, sizeof(*o->list));
    o->example = fm_calloc(o->cap, sizeof(*o->example));
    o->ends = fm_calloc(o->c->accumulate, sizeof(*o->ends));
    bool all = o->list && o->example && o->ends;
    if (all && (o->weighted || o->bucketed)) {
        o->other = fm_calloc(n, sizeof(*o->other));
        o->permutation = fm_calloc(n, sizeof(*o->permutation));
        all = o->other && o->permutation;
    }
    if (all && o->bucketed) {
        o->starts = fm_calloc(n, sizeof(*o->starts));
        o->chunk = fm_calloc(n, sizeof(*o->chunk));
        o->chunk_order = fm_calloc(n, sizeof(*o->chunk_order));
        all = o->starts && o->chunk && o->chunk_order;
    }
    if (!all)
        return FM_ENOMEM;
    return o->bucketed ? make_buckets(o) : FM_OK;
}

static fm_status count_steps(fmt_order *o)
{
    uint64_t steps = 0;

    o->last_epoch = (uint64_t)ceil(o->c->epochs) - 1;
    o->last_share = o->c->epochs - (double)o->last_epoch;
    if (o->plain) {
        o->steps = fmt_schedule_steps(o->c, o->n);
        o->total = o->c->steps > 0 ? 0 : (uint64_t)ceil(o->c->epochs * (double)o->n);
    } else if (o->c->steps > 0) {
        o->steps = o->c->steps;
    } else {
        while (take_step(o) > 0)
            steps++;
        o->next_step = 0;
        o->at = (place){0, 0};
        if (steps >= UINT32_MAX)
            return fm_fail(FM_ELIMIT, "training option epochs: %" PRIu64 " steps are too many",
                           steps);
        o->steps = (uint32_t)steps;
    }
    if (o->steps == 0)
        return fm_fail(FM_EINVAL,
                       "there is no step to train: training options steps and epochs, or "
                       "the weights of the data, leave no example");
    return FM_OK;
}

fm_status fmt_order_new(fmt_order **out, const fm_train_config *c, const fm_dataset *d)
{
    fmt_order *o = fm_calloc(1, sizeof(*o));

    *out = NULL;
    if (!o)
        return FM_ENOMEM;
    o->c = c;
    o->d = d;
    o->n = (uint32_t)FM_MIN(fm_dataset_count(d), (size_t)UINT32_MAX);
    o->bucketed = c->buckets > 0;
    fm_status rc = o->n > 0 ? FM_OK : fm_fail(FM_EINVAL, "there is no example to train on");
    FM_THEN(rc, fmt_stream(&o->stream, "order", ""));
    FM_THEN(rc, fmt_stream(&o->weight_stream, "order", "weights"));
    FM_THEN(rc, fmt_stream(&o->bucket_stream, "order", "buckets"));
    FM_THEN(rc, measure(o));
    o->plain = !o->weighted && !o->bucketed && !c->packing;
    FM_THEN(rc, allocate(o));
    FM_THEN(rc, count_steps(o));
    if (rc < 0) {
        fmt_order_free(o);
        return rc;
    }
    *out = o;
    return FM_OK;
}

void fmt_order_free(fmt_order *o)
{
    if (!o)
        return;
    uint32_t *const part[] = {o->list,   o->permutation, o->other,   o->chunk, o->chunk_order,
                              o->bucket, o->bucket_at,   o->example, o->ends};
    for (size_t i = 0; i < FM_ARRAY_LEN(part); i++)
        fm_free(part[i]);
    fm_free(o->starts);
    fm_free(o);
}
