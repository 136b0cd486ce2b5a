/* sampler.h - choose the next token from a row of logits.
 *
 * Order of operations, as Hugging Face's generate: repetition penalty, temperature, top-k, top-p,
 * min-p, then one draw. Candidates are ordered by logit, equal logits by id (lowest first), so
 * every cut and every draw has one exact answer, with the same bits on any machine: exponentials
 * and sums are in double by store/base/math/detmath.h, in that order. Greedy takes the first
 * candidate. The draw is a pure function of (seed, index). */
#ifndef FM_INFER_SAMPLER_H
#define FM_INFER_SAMPLER_H

#include "store/base/error.h"

FM_BEGIN_DECLS

typedef struct fm_sample_params {
    float temperature;        /* 0 = greedy */
    uint32_t top_k;           /* 0 = off; exactly k are kept */
    float top_p;              /* 1 = off; smallest head whose mass reaches top_p */
    float min_p;              /* 0 = off; keeps p >= min_p * p of the best */
    float repetition_penalty; /* 1 = off; over prompt and answer, as HF: l > 0 ? l / r : l * r */
    uint64_t seed;
} fm_sample_params;
/* Greedy, everything off. */
void fm_sample_defaults(fm_sample_params *p);
/* FM_EINVAL names the field and its range. */
FM_CHECKED fm_status fm_sample_check(const fm_sample_params *p);

typedef struct fm_logprob {
    int32_t token;
    float logprob;
} fm_logprob;

/* Working memory for rows of up to vocab logits. One thread at a time; picking allocates nothing.
 */
typedef struct fm_sampler fm_sampler;
FM_CHECKED fm_status fm_sampler_new(fm_sampler **out, uint32_t vocab);
void fm_sampler_free(fm_sampler *s); /* NULL is a no-op */

/* logits [vocab] f32, not changed. history: prompt and answer so far (only read when
 * repetition_penalty is not 1; may be NULL then). index: number of the token within the answer,
 * from 0. FM_EINVAL: a bad parameter; FM_ECORRUPT: NaN or +inf among the logits, or nothing finite.
 */
FM_CHECKED fm_status fm_sampler_pick(int32_t *token_out, fm_sampler *s, const float *logits,
                                     uint32_t vocab, const fm_sample_params *p,
                                     const int32_t *history, size_t history_count, uint64_t index);
/* The same among the tokens whose bit in allowed is set (allowed[i / 64] bit i % 64, [vocab / 64 +
 * 1]; NULL: all); the others are left out before everything else. FM_EINVAL: no allowed token has a
 * finite logit. */
FM_CHECKED fm_status fm_sampler_pick_allowed(int32_t *token_out, fm_sampler *s, const float *logits,
                                             uint32_t vocab, const fm_sample_params *p,
                                             const uint64_t *allowed, const int32_t *history,
                                             size_t history_count, uint64_t index);

/* Log-softmax of the raw logits (before penalty and temperature). *logprob: of token (NULL: not
 * wanted), top[0..top_count) the best, lowest id first among equals; top_count <= vocab. */
FM_CHECKED fm_status fm_logprobs(float *logprob, fm_logprob *top, uint32_t top_count,
                                 const float *logits, uint32_t vocab, int32_t token);

FM_END_DECLS
#endif
