/* nearest.c - which of any number of offered trees are near to the one that will be put.
 *
 * Full fine-tunes of one model share names and shapes and no tensor, so nothing but values tells
 * the sibling that this one comes from. A few tensors that are new are compared with what an offer
 * has at their paths, by one window each, as float32: so a cast or quantized relative counts too.
 * Small tensors are taken, because a leaf of a mebibyte is decoded for a window; each stored
 * tensor is read once, however many offers hold it. */
#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/search/search_impl.h"

#define SAMPLES 3u
#define WINDOW_ELEMS 4096u
#define ADAPTERS_MAX 4u /* of an offer that are looked at */
#define STRANGER 2.0 /* two independent tensors of one size: |a - b|^2 = 2 |a|^2 */

typedef struct sample {
    const fm_entry *e;
    uint64_t first, elems; /* of the window */
    float *x;
    double norm; /* its square */
} sample;

/* How near an offer is; the less of it the nearer, then the more of the others. */
typedef struct nearness {
    double far;      /* mean over the samples of |a - b|^2 / |a|^2, at most STRANGER */
    uint64_t shared; /* bytes of tensors that both hold */
    uint64_t alike;  /* tensors of one shape at one path */
} nearness;

typedef struct known_distance {
    fm_digest id;
    uint32_t sample; /* zero bytes behind it */
    uint32_t none;
} known_distance;

struct src_nearest {
    sample sample[SAMPLES];
    uint32_t samples;
    fm_map *offered;  /* digests of the tensors of trees: one that differs in texts is the same */
    fm_map *distance; /* known_distance -> 1 + number in value[] */
    double *value;
    size_t values, value_cap;
    float *other; /* a window */
    uint8_t *bytes;
    nearness of[FMS_OFFERS_MAX]; /* of s->tree */
    uint32_t pinned;             /* offered before: they stay, and stay first */
};

void src_nearest_free(struct src_nearest *n)
{
    if (!n)
        return;
    for (uint32_t k = 0; k < n->samples; k++)
        fm_free(n->sample[k].x);
    fm_map_free(n->offered);
    fm_map_free(n->distance);
    fm_free(n->value);
    fm_free(n->other);
    fm_free(n->bytes);
    fm_free(n);
}

/* ==== samples ============================================================================== */

static uint64_t elems_of(const fm_entry *e)
{
    uint64_t n = 0;
    if (fm_shape_elems(&n, &e->shape) < 0) {
        fm_error_clear();
        n = 0;
    }
    return n;
}

/* Windows begin at a multiple of their size, so that they are whole blocks in every type. */
static fm_status window(const struct src_nearest *n, const sample *k, const fm_provider *from,
                        const fm_entry *e, float *to)
{
    return fm_entry_read_f32(to, from, e, k->first, k->elems, n->bytes);
}

static fm_status take_sample(struct src_nearest *n, const fm_entry *e, const fm_provider *from)
{
    sample *k = &n->sample[n->samples];
    const uint64_t elems = elems_of(e);
    k->e = e;
    k->first = elems / 2 / WINDOW_ELEMS * WINDOW_ELEMS;
    k->elems = FM_MIN(elems - k->first, (uint64_t)WINDOW_ELEMS);
    k->norm = 0;
    k->x = fm_malloc(WINDOW_ELEMS * sizeof *k->x);
    if (!k->x)
        return FM_ENOMEM;
    n->samples++;
    FM_TRY(window(n, k, from, e, k->x));
    for (uint64_t i = 0; i < k->elems; i++)
        k->norm += (double)k->x[i] * (double)k->x[i];
    return FM_OK;
}

static int by_size(const void *a, const void *b)
{
    const fm_entry *x = *(const fm_entry *const *)a, *y = *(const fm_entry *const *)b;
    return x->bytes != y->bytes ? (x->bytes > y->bytes) - (x->bytes < y->bytes)
                                : strcmp(x->path, y->path);
}

/* Of the smallest that hold a window: those in the first, the middle and the last layer. */
static fm_status take_samples(fms_search *s, const fm_tree *tree, const fm_provider *from)
{
    struct src_nearest *n = s->nearest;
    const fm_entry **e = fm_calloc(fm_tree_count(tree) + 1, sizeof *e);
    size_t count = 0, same = 0;
    fm_status rc = e ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++) {
        const fm_entry *one = fm_tree_at(tree, i);
        bool known = false;
        if (one->kind != FM_ENTRY_TENSOR || !fm_dtype_get(one->dtype)->is_float ||
            elems_of(one) < WINDOW_ELEMS)
            continue;
        rc = s->env.known(s->env.ctx, &one->id, &known);
        if (rc == FM_OK && !known)
            e[count++] = one;
    }
    qsort(e, rc == FM_OK ? count : 0, sizeof *e, by_size);
    while (same < count && e[same]->bytes == e[0]->bytes)
        same++;
    for (size_t k = 0; rc == FM_OK && k < FM_MIN(count, (size_t)SAMPLES); k++)
        rc = take_sample(n, e[same < SAMPLES ? k : (2 * k + 1) * same / (2 * SAMPLES)], from);
    fm_free(e);
    return rc;
}

/* ==== how near ============================================================================= */

static double apart(const sample *k, const float *y)
{
    double sum = 0;
    for (uint64_t i = 0; i < k->elems; i++) {
        const double d = (double)k->x[i] - (double)y[i];
        sum += d * d;
    }
    if (sum == 0)
        return 0;
    sum /= k->norm;
    return sum < STRANGER ? sum : STRANGER; /* a NaN is a stranger */
}

static fm_status read_distance(fms_search *s, const sample *k, const fm_entry *e, double *out)
{
    const fm_provider from = fm_store_provider(s->env.store);
    bool known = false;
    *out = STRANGER;
    FM_TRY(s->env.known(s->env.ctx, &e->id, &known));
    if (!known)
        return FM_OK;
    const fm_status rc = window(s->nearest, k, &from, e, s->nearest->other);
    if (rc == FM_OK)
        *out = apart(k, s->nearest->other);
    else if (src_passes_over(rc))
        fm_error_clear();
    return src_passes_over(rc) ? FM_OK : rc;
}

static fm_status distance_to(fms_search *s, uint32_t number, const fm_tree *tree, double *out)
{
    struct src_nearest *n = s->nearest;
    const sample *k = &n->sample[number];
    const fm_entry *e = fm_tree_find(tree, k->e->path);
    *out = STRANGER;
    if (!e || e->kind != FM_ENTRY_TENSOR || !fm_shape_eq(&e->shape, &k->e->shape) ||
        !fm_dtype_get(e->dtype)->is_float)
        return FM_OK;
    const known_distance key = {e->id, number, 0};
    const uintptr_t at = (uintptr_t)fm_map_get(n->distance, &key, sizeof key);
    if (at) {
        *out = n->value[at - 1];
        return FM_OK;
    }
    FM_TRY(fm_grow(&n->value, &n->value_cap, n->values + 1, sizeof *n->value));
    FM_TRY(read_distance(s, k, e, out));
    n->value[n->values++] = *out;
    return fm_map_put(n->distance, &key, sizeof key, (void *)(uintptr_t)n->values, NULL);
}

/* A model may be an offer with its adapter merged: then the offer's own weights say little, and
 * those of a hundred adapters of one base are the same. */
static fm_status merged_distance(fms_search *s, const sample *k, const fm_tree *tree, double *out)
{
    struct src_nearest *n = s->nearest;
    const fm_dtype_info *type = fm_dtype_get(k->e->dtype);
    bool there = *out > 0 && !type->is_block, made;
    for (size_t i = 0; there && i < ADAPTERS_MAX; i++) {
        FM_TRY(src_lora_window(s, tree, i, k->e, k->first * type->block_bytes,
                               (size_t)k->elems * type->block_bytes, n->bytes, &there, &made));
        if (!made)
            continue;
        FM_TRY(fm_to_f32(n->other, k->e->dtype, n->bytes, k->elems));
        *out = FM_MIN(*out, apart(k, n->other));
    }
    return FM_OK;
}

/* Both are sorted by path. */
static void count_common(const fm_tree *a, const fm_tree *b, nearness *out)
{
    size_t i = 0, j = 0;
    while (i < fm_tree_count(a) && j < fm_tree_count(b)) {
        const fm_entry *x = fm_tree_at(a, i), *y = fm_tree_at(b, j);
        const int order = strcmp(x->path, y->path);
        i += order <= 0;
        j += order >= 0;
        if (order != 0 || x->kind != FM_ENTRY_TENSOR || y->kind != FM_ENTRY_TENSOR)
            continue;
        out->alike += fm_shape_eq(&x->shape, &y->shape);
        out->shared += fm_digest_eq(&x->id, &y->id) ? x->bytes : 0;
    }
}

/* Ends once it is farther than `limit`. */
static fm_status judge(fms_search *s, const fm_tree *tree, double limit, nearness *out)
{
    *out = (nearness){0, 0, 0};
    count_common(s->expected, tree, out);
    for (uint32_t k = 0; k < s->nearest->samples && out->far <= limit; k++) {
        double d;
        FM_TRY(distance_to(s, k, tree, &d));
        FM_TRY(merged_distance(s, &s->nearest->sample[k], tree, &d));
        out->far += d / s->nearest->samples;
    }
    return FM_OK;
}

static bool nearer(const nearness *a, const nearness *b)
{
    if (a->far < b->far || a->far > b->far)
        return a->far < b->far;
    return a->shared != b->shared ? a->shared > b->shared : a->alike > b->alike;
}

/* ==== offers =============================================================================== */

/* *again: an offer with the very same tensors was there. */
static fm_status note(struct src_nearest *n, const fm_tree *tree, bool *again)
{
    fm_hasher *h = NULL;
    fm_digest sum;
    fm_status rc = fm_hasher_new(&h);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind != FM_ENTRY_TENSOR)
            continue;
        rc = fm_hasher_update(h, e->path, strlen(e->path) + 1);
        FM_THEN(rc, fm_hasher_update(h, e->id.b, FM_DIGEST_BYTES));
    }
    FM_THEN(rc, fm_hasher_final(h, &sum));
    fm_hasher_free(h);
    *again = rc == FM_OK && fm_map_has(n->offered, sum.b, FM_DIGEST_BYTES);
    return rc == FM_OK && !*again ? fm_map_put(n->offered, sum.b, FM_DIGEST_BYTES, n, NULL) : rc;
}

fm_status src_nearest_new(fms_search *s, const fm_tree *tree, const fm_provider *from)
{
    struct src_nearest *n = fm_calloc(1, sizeof *n);
    bool again;
    src_nearest_free(s->nearest);
    s->nearest = n;
    s->expected = tree;
    if (!n)
        return FM_ENOMEM;
    n->other = fm_malloc(WINDOW_ELEMS * sizeof *n->other);
    n->bytes = fm_malloc(WINDOW_ELEMS * sizeof(double)); /* no type has larger elements */
    n->pinned = s->trees;
    FM_TRY(n->other && n->bytes ? fm_map_new(&n->offered) : FM_ENOMEM);
    FM_TRY(fm_map_new(&n->distance));
    for (uint32_t t = 0; t < s->trees; t++)
        FM_TRY(note(n, s->tree[t], &again));
    return take_samples(s, tree, from);
}

fm_status src_nearest_offer(fms_search *s, const fm_tree *tree)
{
    struct src_nearest *n = s->nearest;
    nearness now;
    bool again;
    uint32_t at = s->trees;
    FM_TRY(note(n, tree, &again));
    if (again)
        return FM_OK;
    const bool full = s->trees == FMS_OFFERS_MAX && n->pinned < FMS_OFFERS_MAX;
    FM_TRY(judge(s, tree, full ? n->of[FMS_OFFERS_MAX - 1].far : STRANGER, &now));
    while (at > n->pinned && nearer(&now, &n->of[at - 1]))
        at--;
    s->passed_over += s->trees == FMS_OFFERS_MAX;
    if (at == FMS_OFFERS_MAX)
        return FM_OK;
    fm_tree *copy = NULL;
    FM_TRY(fm_tree_copy(&copy, tree));
    if (s->trees == FMS_OFFERS_MAX)
        fm_tree_free(s->tree[--s->trees]);
    memmove(&s->tree[at + 1], &s->tree[at], (s->trees - at) * sizeof(fm_tree *));
    memmove(&n->of[at + 1], &n->of[at], (s->trees - at) * sizeof *n->of);
    s->tree[at] = copy;
    n->of[at] = now;
    s->trees++;
    return FM_OK;
}
