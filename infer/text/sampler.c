/* sampler.c - see sampler.h for the order of operations.
 *
 * Candidates live in a max-heap keyed by (logit, lowest id) and are popped only as far as the cuts
 * and the draw need them: a row of 256k logits costs one pass and a few hundred pops, not a sort.
 */
#include "infer/sampler.h"

#include <math.h>
#include <string.h>

#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "store/base/math/rng.h"

#define SAMPLER_STREAM 0x73616d706c657231u /* "sampler1": this use of the seed */

typedef struct cand {
    float logit;
    int32_t id;
} cand;

struct fm_sampler {
    uint32_t vocab;
    cand *heap;     /* [vocab] */
    cand *kept;     /* [vocab] popped, best first */
    double *weight; /* [vocab] of kept, exp((l - best) / T) */
    uint64_t *seen; /* [vocab / 64 + 1] bits, all 0 between calls */
};

void fm_sample_defaults(fm_sample_params *p)
{
    memset(p, 0, sizeof *p);
    p->top_p = 1.0f;
    p->repetition_penalty = 1.0f;
}

fm_status fm_sample_check(const fm_sample_params *p)
{
    if (!(p->temperature >= 0.0f && p->temperature <= 1000.0f))
        return fm_fail(FM_EINVAL, "temperature must be between 0 and 1000");
    if (!(p->top_p > 0.0f && p->top_p <= 1.0f))
        return fm_fail(FM_EINVAL, "top_p must be above 0 and at most 1");
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f))
        return fm_fail(FM_EINVAL, "min_p must be between 0 and 1");
    if (!(p->repetition_penalty > 0.0f && p->repetition_penalty <= 1000.0f))
        return fm_fail(FM_EINVAL, "repetition_penalty must be above 0 and at most 1000");
    return FM_OK;
}

fm_status fm_sampler_new(fm_sampler **out, uint32_t vocab)
{
    fm_sampler *s = fm_calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return FM_ENOMEM;
    s->vocab = vocab;
    s->heap = fm_calloc(vocab, sizeof *s->heap);
    s->kept = fm_calloc(vocab, sizeof *s->kept);
    s->weight = fm_calloc(vocab, sizeof *s->weight);
    s->seen = fm_calloc(vocab / 64 + 1, sizeof *s->seen);
    if (!s->heap || !s->kept || !s->weight || !s->seen) {
        fm_sampler_free(s);
        return FM_ENOMEM;
    }
    *out = s;
    return FM_OK;
}

void fm_sampler_free(fm_sampler *s)
{
    if (!s)
        return;
    fm_free(s->heap);
    fm_free(s->kept);
    fm_free(s->weight);
    fm_free(s->seen);
    fm_free(s);
}

static bool before(cand a, cand b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(cand *h, size_t n, size_t i)
{
    cand item = h[i];

    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n)
            break;
        if (c + 1 < n && before(h[c + 1], h[c]))
            c++;
        if (!before(h[c], item))
            break;
        h[i] = h[c];
        i = c;
    }
    h[i] = item;
}

static cand pop(cand *h, size_t *n)
{
    cand top = h[0];

    h[0] = h[--*n];
    if (*n > 0)
        sift_down(h, *n, 0);
    return top;
}

/* Copies, penalises and checks the row. -inf (masked) is legal; NaN and +inf are a broken model. */
static fm_status load(fm_sampler *s, const float *logits, uint32_t vocab, float penalty,
                      const int32_t *history, size_t history_count)
{
    bool any = false;

    for (uint32_t i = 0; i < vocab; i++) {
        if (!(logits[i] < INFINITY))
            return fm_fail(FM_ECORRUPT, "logit %u is %s: the model's weights are broken", i,
                           isnan(logits[i]) ? "NaN" : "infinite");
        any = any || logits[i] > -INFINITY;
        s->heap[i].logit = logits[i];
        s->heap[i].id = (int32_t)i;
    }
    if (!any)
        return fm_fail(FM_ECORRUPT, "no logit is finite");
    for (size_t i = 0; penalty != 1.0f && i < history_count; i++) {
        int32_t id = history[i];
        if (id < 0 || (uint32_t)id >= vocab || (s->seen[id / 64] >> (id % 64) & 1))
            continue;
        s->seen[id / 64] |= (uint64_t)1 << (id % 64);
        float l = s->heap[id].logit;
        s->heap[id].logit = l < 0.0f ? l * penalty : l / penalty;
    }
    for (size_t i = 0; penalty != 1.0f && i < history_count; i++)
        if (history[i] >= 0 && (uint32_t)history[i] < vocab)
            s->seen[history[i] / 64] = 0;
    return FM_OK;
}

static double weight_of(float logit, float best, double temperature)
{
    return logit > -INFINITY ? fm_exp(((double)logit - (double)best) / temperature) : 0.0;
}

/* Pops the candidates that survive top-k, top-p and min-p; returns how many, and their mass. */
static size_t keep(fm_sampler *s, size_t n, const fm_sample_params *p, double total, double *mass)
{
    double t = (double)p->temperature;
    size_t k = p->top_k > 0 && p->top_k < n ? p->top_k : n, kept = 0;
    float best = s->heap[0].logit;

    *mass = 0.0;
    if (k < n) { /* top-p's mass is of the k best */
        total = 0.0;
        for (; kept < k; kept++) {
            s->kept[kept] = pop(s->heap, &n);
            s->weight[kept] = weight_of(s->kept[kept].logit, best, t);
            total += s->weight[kept];
        }
    }
    for (size_t i = 0; i < k; i++) {
        if (i >= kept) {
            s->kept[i] = pop(s->heap, &n);
            s->weight[i] = weight_of(s->kept[i].logit, best, t);
            kept = i + 1;
        }
        /* The best candidate has weight 1 and always stays. */
        if (i > 0 && ((p->top_p < 1.0f && !(*mass < (double)p->top_p * total)) ||
                      s->weight[i] < (double)p->min_p))
            return i;
        *mass += s->weight[i];
    }
    return k;
}

/* Without cuts the mass is a sum in id order, and only as many candidates are popped as the draw
 * walks over. */
static int32_t draw_uncut(fm_sampler *s, size_t n, double t, double u, double total)
{
    float best = s->heap[0].logit;
    double sum = 0.0;
    cand c = s->heap[0];

    while (n > 0) {
        cand next = pop(s->heap, &n);
        double w = weight_of(next.logit, best, t);
        if (!(w > 0.0))
            break;
        c = next;
        sum += w;
        if (sum > u * total)
            break;
    }
    return c.id;
}

static int32_t draw(fm_sampler *s, uint32_t vocab, const fm_sample_params *p, uint64_t index)
{
    double u = fm_rng_uniform(p->seed, SAMPLER_STREAM, index);
    double t = (double)p->temperature, total = 0.0, mass, sum = 0.0;
    bool top_k = p->top_k > 0 && p->top_k < vocab;
    float best = s->heap[0].logit;

    for (uint32_t i = 1; i < vocab; i++)
        best = s->heap[i].logit > best ? s->heap[i].logit : best;
    for (uint32_t i = 0; !top_k && i < vocab; i++)
        total += weight_of(s->heap[i].logit, best, t);
    for (size_t i = vocab / 2; i-- > 0;)
        sift_down(s->heap, vocab, i);
    if (!top_k && p->top_p >= 1.0f && !(p->min_p > 0.0f))
        return draw_uncut(s, vocab, t, u, total);
    size_t n = keep(s, vocab, p, total, &mass), i = 0;
    for (; i + 1 < n; i++) {
        sum += s->weight[i];
        if (sum > u * mass)
            break;
    }
    return s->kept[i].id;
}

static bool is_allowed(const uint64_t *allowed, int32_t id)
{
    return allowed[id / 64] >> (id % 64) & 1;
}

/* Takes out the tokens that are not allowed. */
static fm_status restrict_to(fm_sampler *s, uint32_t vocab, const uint64_t *allowed)
{
    bool any = false;

    for (uint32_t i = 0; i < vocab; i++) {
        if (!is_allowed(allowed, (int32_t)i))
            s->heap[i].logit = -INFINITY;
        any = any || s->heap[i].logit > -INFINITY;
    }
    return any ? FM_OK : fm_fail(FM_EINVAL, "no token that is allowed here has a finite logit");
}

static int32_t best_of(const fm_sampler *s, uint32_t vocab)
{
    cand best = s->heap[0];

    for (uint32_t i = 1; i < vocab; i++)
        if (s->heap[i].logit > best.logit)
            best = s->heap[i];
    return best.id;
}

fm_status fm_sampler_pick_allowed(int32_t *token_out, fm_sampler *s, const float *logits,
                                  uint32_t vocab, const fm_sample_params *p,
                                  const uint64_t *allowed, const int32_t *history,
                                  size_t history_count, uint64_t index)
{
    fm_status rc = fm_sample_check(p);

    *token_out = -1;
    if (rc < 0)
        return rc;
    if (vocab == 0 || vocab > s->vocab)
        return fm_fail(FM_EINVAL, "sampler: row of %u logits, room for %u", vocab, s->vocab);
    FM_TRY(load(s, logits, vocab, p->repetition_penalty, history, history ? history_count : 0));
    if (allowed)
        FM_TRY(restrict_to(s, vocab, allowed));
    if (!(p->temperature > 0.0f)) {
        *token_out = best_of(s, vocab);
        return FM_OK;
    }
    *token_out = draw(s, vocab, p, index);
    if (allowed && !is_allowed(allowed, *token_out)) { /* rounding drew beyond the last one */
        *token_out = s->kept[0].id;
        for (uint32_t i = 0; i < vocab && !is_allowed(allowed, *token_out); i++)
            *token_out = (int32_t)i;
    }
    return FM_OK;
}

fm_status fm_sampler_pick(int32_t *token_out, fm_sampler *s, const float *logits, uint32_t vocab,
                          const fm_sample_params *p, const int32_t *history, size_t history_count,
                          uint64_t index)
{
    return fm_sampler_pick_allowed(token_out, s, logits, vocab, p, NULL, history, history_count,
                                   index);
}

static void insert_top(fm_logprob *top, uint32_t *n, uint32_t max, int32_t id, float logit)
{
    if (*n == max && !(logit > top[max - 1].logprob))
        return;
    uint32_t i = *n < max ? (*n)++ : max - 1;
    for (; i > 0 && logit > top[i - 1].logprob; i--)
        top[i] = top[i - 1];
    top[i].token = id;
    top[i].logprob = logit;
}

fm_status fm_logprobs(float *logprob, fm_logprob *top, uint32_t top_count, const float *logits,
                      uint32_t vocab, int32_t token)
{
    float best = -INFINITY;
    double sum = 0.0;
    uint32_t n = 0;

    if (top_count > vocab || (logprob && (token < 0 || (uint32_t)token >= vocab)))
        return fm_fail(FM_EINVAL, "logprobs: token or count outside the row of %u logits", vocab);
    for (uint32_t i = 0; i < vocab; i++) {
        if (!(logits[i] < INFINITY))
            return fm_fail(FM_ECORRUPT, "logit %u is %s: the model's weights are broken", i,
                           isnan(logits[i]) ? "NaN" : "infinite");
        best = logits[i] > best ? logits[i] : best;
        if (top_count > 0)
            insert_top(top, &n, top_count, (int32_t)i, logits[i]);
    }
    if (!(best > -INFINITY))
        return fm_fail(FM_ECORRUPT, "no logit is finite");
    for (uint32_t i = 0; i < vocab; i++)
        sum += weight_of(logits[i], best, 1.0);
    double lse = (double)best + fm_log(sum);
    if (logprob)
        *logprob = (float)((double)logits[token] - lse);
    for (uint32_t i = 0; i < n; i++)
        top[i].logprob = (float)((double)top[i].logprob - lse);
    return FM_OK;
}
