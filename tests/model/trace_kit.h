/* trace_kit.h - pairs of models that differ, and what PyTorch hooks make of them (golden/trace:
 * tests/peer/trace_golden.py). */
#ifndef FM_TESTS_MODEL_TRACE_KIT_H
#define FM_TESTS_MODEL_TRACE_KIT_H

#include <math.h>

#include "infer/trace.h"
#include "tests/model/infer_kit.h"

#define LIMIT 1e-5 /* log-probabilities in float32 against float64 */

static const char *const names[] = {"gemma2", "gpt_neox", "qwen3_moe", "olmo2"};
static const char *const sites[] = {"residual", "attention", "mlp"};

typedef struct pair {
    fm_source *src[2]; /* child, parent */
    fm_model *m[2];
    ik_ref ref;
    int32_t *wrong, *right;
    size_t wrong_len, right_len;
} pair;

static inline void open_pair(pair *p, fm_engine *e, const char *name)
{
    static const char *const folder[] = {"trace", "arch"};
    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < 2; i++) {
        char *dir = fm_asprintf("%s/tests/model/golden/%s/%s", FM_SOURCE_DIR, folder[i], name);
        tk_ok(fm_source_open(&p->src[i], dir));
        p->m[i] = ik_model(e, p->src[i], name);
        fm_free(dir);
    }
    char *file = fm_asprintf("%s/tests/model/golden/trace/%s/ref.safetensors", FM_SOURCE_DIR, name);
    tk_ok(fm_source_open(&p->ref.src, file));
    fm_free(file);
    p->wrong = ik_ref_get(&p->ref, "wrong", &p->wrong_len);
    p->right = ik_ref_get(&p->ref, "right", &p->right_len);
}

static inline void close_pair(pair *p)
{
    for (size_t i = 0; i < 2; i++) {
        fm_model_close(p->m[i]);
        fm_source_close(p->src[i]);
    }
    fm_source_close(p->ref.src);
    fm_free(p->wrong);
    fm_free(p->right);
}

static inline fm_trace_ask ask_of(const pair *p, unsigned to, unsigned from)
{
    return (fm_trace_ask){.to = p->m[to],
                          .from = p->m[from],
                          .wrong = p->wrong,
                          .wrong_len = p->wrong_len,
                          .right = p->right,
                          .right_len = p->right_len,
                          .sites = (1u << FM_SITES) - 1};
}

static inline void check_direction(const pair *p, unsigned to, const char *word)
{
    fm_trace t;
    fm_trace_ask q = ask_of(p, to, 1 - to);
    tk_ok(fm_trace_grid(&t, &q));
    double *margin = ik_ref_get(&p->ref, "margin", NULL), most = 0;
    assert_true(fabs(t.margin - margin[to]) < LIMIT &&
                fabs(t.from_margin - margin[1 - to]) < LIMIT);
    for (unsigned s = 0; s < FM_SITES; s++) {
        char key[64];
        size_t floats = 0;
        snprintf(key, sizeof key, "%s.%s", word, sites[s]);
        double *want = ik_ref_get(&p->ref, key, &floats);
        assert_int_equal(floats / 2, (size_t)t.rows[s] * t.columns);
        for (size_t i = 0; i < floats / 2; i++) {
            if (!(fabs(t.effect[s][i] - want[i]) < LIMIT))
                fail_msg("%s cell %zu: %.9g, PyTorch has %.9g", key, i, t.effect[s][i], want[i]);
            most = FM_MAX(most, fabs(want[i] - margin[to]));
        }
        fm_free(want);
    }
    assert_true(most > 0.05); /* a grid on which nothing moves would prove nothing */
    fm_free(margin);
    fm_trace_release(&t);
}

#endif
