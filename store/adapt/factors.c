/* factors.c - adapters that come to low-rank factors: a run sees them as a LoRA of scale 1, a merge
 * adds their product. Formulas as in PEFT 0.21 (peft/tuners: adalora, vera, vblora). */
#include <math.h>
#include <string.h>

#include "store/adapt/adapt_impl.h"
#include "store/base/mem.h"

fm_status adt_by_factors(adt_work *w)
{
    const uint64_t r = (uint64_t)w->step->num[0];
    float *a = fm_malloc((size_t)(r * w->in) * sizeof *a);
    float *b = fm_malloc((size_t)(w->out * r) * sizeof *b);
    fm_status rc = a && b ? w->step->op->factor(a, w, false) : FM_ENOMEM;

    FM_THEN(rc, w->step->op->factor(b, w, true));
    if (rc == FM_OK)
        fm_lora_merge(w->w, a, b, w->out, w->in, r, 1.0f);
    fm_free(a);
    fm_free(b);
    return rc;
}

static fm_status set_rank(adt_step *s, uint64_t r)
{
    if (r < 1 || r > FM_MAX_LORA_RANK)
        return fm_fail(FM_EBASE, "'%s': rank %llu is not one of 1 to %u", s->module,
                       (unsigned long long)r, FM_MAX_LORA_RANK);
    s->num[0] = (double)r;
    return FM_OK;
}

/* ==== AdaLoRA: B (A * E), at the rank that is left; its scale is that of the first rank ==== */

fm_status adt_fit_adalora(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    const uint64_t r = adt_dim(s, 0, 0);
    const double alpha = fm_json_real(fm_json_get(c, "lora_alpha"), NAN);
    const int64_t first = fm_json_int(fm_json_get(c, "init_r"), 12);

    if (!(fabs(alpha) <= 1e9) || first < 1 || first > (int64_t)FM_MAX_LORA_RANK)
        return fm_fail(FM_EINVAL, "adapter_config.json: fields 'lora_alpha' and 'init_r' must be "
                                  "numbers, the second at least 1");
    if (r == 0) /* the budget left it nothing */
        return FM_OK;
    FM_TRY(adt_need(s, 0, 2, r, in));
    FM_TRY(adt_need(s, 1, 2, out, r));
    FM_TRY(adt_need(s, 2, 2, r, 1));
    s->num[1] = (alpha > 0 ? alpha : (double)r) / (double)((float)first + 1e-5f);
    return set_rank(s, r);
}

fm_status adt_factor_adalora(float *dst, const adt_work *w, bool b)
{
    const uint64_t r = (uint64_t)w->step->num[0];
    const float scale = (float)w->step->num[1];

    if (b)
        memcpy(dst, w->part[1], (size_t)(w->out * r) * sizeof *dst);
    for (uint64_t i = 0; !b && i < r * w->in; i++)
        dst[i] = w->part[0][i] * w->part[2][i / w->in] * scale;
    return FM_OK;
}

/* ==== VeRA: (lambda_b * B) (lambda_d * A), A and B those of the whole adapter ==== */

enum { VERA_B, VERA_D, SHARED_A, SHARED_B };
enum { RANK, SEED, MOST_OUT, MOST_IN };

/* Without projections in the file they are drawn again, as PEFT draws them for the largest module:
 * MOST_OUT and MOST_IN, which adt_plan_make sets. */
fm_status adt_fit_vera(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    const uint64_t r = adt_dim(s, VERA_D, 0);
    const fm_entry *a = s->part[SHARED_A], *b = s->part[SHARED_B];

    FM_TRY(adt_need(s, VERA_B, 1, out, 0));
    FM_TRY(adt_need(s, VERA_D, 1, r, 0));
    if (!a != !b)
        return fm_fail(FM_EBASE, "'%s': one of vera_A and vera_B is missing", s->module);
    if (a && (a->shape.rank != 2 || b->shape.rank != 2 || a->shape.dim[0] != r ||
              a->shape.dim[1] < in || b->shape.dim[0] < out || b->shape.dim[1] != r))
        return fm_fail(FM_EBASE, "'%s': vera_A and vera_B do not fit [%llu, %llu] at rank %llu",
                       s->module, (unsigned long long)out, (unsigned long long)in,
                       (unsigned long long)r);
    s->num[SEED] = (double)fm_json_int(fm_json_get(c, "projection_prng_key"), 0);
    return set_rank(s, r);
}

/* torch's kaiming_uniform: even over -bound to bound, bound sqrt(6 / fan_in). */
static void draw(float *out, uint64_t n, uint64_t fan_in, adt_twister *t)
{
    const float bound = (float)(sqrt(3.0) * (sqrt(2.0) / sqrt((double)fan_in)));

    for (uint64_t i = 0; i < n; i++) {
        const float x = (float)(adt_twister_next(t) & 0xffffffu) * 0x1p-24f;
        out[i] = x * (bound + bound) - bound;
    }
}

static fm_status drawn(float **out, const adt_work *w, bool b)
{
    const double *num = w->step->num;
    const uint64_t r = (uint64_t)num[RANK];
    const uint64_t of_a = r * (uint64_t)num[MOST_IN], of_b = r * (uint64_t)num[MOST_OUT];
    adt_twister t;

    *out = fm_malloc((size_t)FM_MAX(of_a, of_b) * sizeof **out);
    if (!*out)
        return FM_ENOMEM;
    adt_twister_seed(&t, (uint64_t)num[SEED]);
    draw(*out, of_a, (uint64_t)num[MOST_IN], &t);
    if (b)
        draw(*out, of_b, r, &t);
    return FM_OK;
}

fm_status adt_factor_vera(float *dst, const adt_work *w, bool b)
{
    const uint64_t r = (uint64_t)w->step->num[RANK];
    const float *all = w->part[b ? SHARED_B : SHARED_A];
    const uint64_t wide =
        all ? adt_dim(w->step, SHARED_A, 1) : (uint64_t)w->step->num[MOST_IN]; /* of A */
    float *own = NULL;
    if (!all)
        FM_TRY(drawn(&own, w, b));
    all = all ? all : own;

    for (uint64_t i = 0; b && i < w->out * r; i++)
        dst[i] = w->part[VERA_B][i / r] * all[i];
    for (uint64_t l = 0; !b && l < r; l++)
        for (uint64_t k = 0; k < w->in; k++)
            dst[l * w->in + k] = w->part[VERA_D][l] * all[l * wide + k];
    fm_free(own);
    return FM_OK;
}

/* ==== VB-LoRA: pieces of A and B are mixtures of vectors of a bank ==== */

enum { LOGITS_A, LOGITS_B, INDEX_A, WEIGHT_A, INDEX_B, WEIGHT_B, BANK };
enum { TOPK = 1, PIECE, MOST_TOPK = 64 };

/* The logits [n, m, vectors] of a factor; or indices [n, m, k] with k - 1 weights. */
static fm_status fit_mixture(adt_step *s, bool b, uint64_t n, uint64_t m)
{
    const size_t logits = b ? LOGITS_B : LOGITS_A, index = b ? INDEX_B : INDEX_A;
    const uint64_t k = (uint64_t)s->num[TOPK];
    const size_t i = s->part[logits] ? logits : index;
    const fm_entry *e = s->part[i], *weight = s->part[index + 1];

    if (!e || (i == index && !weight))
        return fm_fail(FM_EBASE, "'%s': vblora_logits are missing", s->module);
    if (e->shape.rank != 3 || e->shape.dim[0] != n || e->shape.dim[1] != m ||
        e->shape.dim[2] != (i == logits ? adt_dim(s, BANK, 0) : k) ||
        (i == index && (weight->shape.rank != 3 || weight->shape.dim[0] != n ||
                        weight->shape.dim[1] != m || weight->shape.dim[2] + 1 != k)))
        return fm_fail(FM_EBASE, "adapter tensor '%s' does not fit [%llu, %llu] mixtures of %llu",
                       e->name, (unsigned long long)n, (unsigned long long)m,
                       (unsigned long long)k);
    return FM_OK;
}

fm_status adt_fit_vblora(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    const int64_t k = fm_json_int(fm_json_get(c, "topk"), 2);
    const int64_t r = fm_json_int(fm_json_get(c, "r"), 4);
    const uint64_t vectors = adt_dim(s, BANK, 0), piece = adt_dim(s, BANK, 1);

    FM_TRY(adt_need(s, BANK, 2, vectors, piece));
    FM_TRY(set_rank(s, r > 0 ? (uint64_t)r : 0));
    if (piece < 1 || in % piece || out % piece || k < 1 || k > MOST_TOPK || (uint64_t)k > vectors)
        return fm_fail(FM_EBASE,
                       "'%s': a bank of %llu vectors of %llu, %lld of them mixed, does "
                       "not fit [%llu, %llu]",
                       s->module, (unsigned long long)vectors, (unsigned long long)piece,
                       (long long)k, (unsigned long long)out, (unsigned long long)in);
    s->num[TOPK] = (double)k;
    s->num[PIECE] = (double)piece;
    FM_TRY(fit_mixture(s, false, (uint64_t)r, in / piece));
    return fit_mixture(s, true, out / piece, (uint64_t)r);
}

typedef struct mixture {
    uint64_t vector[MOST_TOPK];
    float weight[MOST_TOPK];
} mixture;

/* The k greatest of n logits, and their softmax. */
static void best_of(mixture *m, const float *logit, uint64_t n, size_t k)
{
    float sum = 0;

    for (size_t i = 0; i < k; i++) {
        uint64_t best = UINT64_MAX;
        for (uint64_t v = 0; v < n; v++) {
            bool taken = best != UINT64_MAX && !(logit[v] > logit[best]);
            for (size_t j = 0; !taken && j < i; j++)
                taken = m->vector[j] == v;
            best = taken ? best : v;
        }
        m->vector[i] = best;
        m->weight[i] = expf(logit[best] - logit[m->vector[0]]);
        sum += m->weight[i];
    }
    for (size_t i = 0; i < k; i++)
        m->weight[i] /= sum;
}

/* The mixture at place i of a factor; FM_EBASE: an index leaves the bank. */
static fm_status mixture_at(mixture *m, const adt_work *w, bool b, uint64_t i)
{
    const size_t k = (size_t)w->step->num[TOPK];
    const uint64_t vectors = adt_dim(w->step, BANK, 0);
    const float *logit = w->part[b ? LOGITS_B : LOGITS_A];
    const float *index = w->part[b ? INDEX_B : INDEX_A], *weight = w->part[b ? WEIGHT_B : WEIGHT_A];
    float rest = 1;

    if (logit) {
        best_of(m, logit + i * vectors, vectors, k);
        return FM_OK;
    }
    for (size_t j = 0; j < k; j++) {
        const float v = index[i * k + j];
        if (!(v >= 0 && v < (float)vectors))
            return fm_fail(FM_EBASE, "'%s': topk_indices leave the bank", w->step->module);
        m->vector[j] = (uint64_t)v;
        m->weight[j] = j + 1 < k ? weight[i * (k - 1) + j] : rest;
        rest -= m->weight[j];
    }
    return FM_OK;
}

fm_status adt_factor_vblora(float *dst, const adt_work *w, bool b)
{
    const uint64_t r = (uint64_t)w->step->num[0], piece = (uint64_t)w->step->num[PIECE];
    const uint64_t places = (b ? w->out : w->in) / piece * r;
    const size_t k = (size_t)w->step->num[TOPK];
    mixture m;

    for (uint64_t i = 0; i < places; i++) {
        FM_TRY(mixture_at(&m, w, b, i));
        for (uint64_t v = 0; v < piece; v++) {
            float sum = 0;
            for (size_t j = 0; j < k; j++)
                sum += m.weight[j] * w->part[BANK][m.vector[j] * piece + v];
            /* A [r, in / piece, piece]; B [out / piece, r, piece], turned to [out, r] */
            dst[b ? (i / r * piece + v) * r + i % r : i * piece + v] = sum;
        }
    }
    return FM_OK;
}
