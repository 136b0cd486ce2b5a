/* suite_kit.h - what model tests of suites share: the family's base, suites in a few lines, results
 * by name. */
#ifndef FM_TESTS_MODEL_SUITE_KIT_H
#define FM_TESTS_MODEL_SUITE_KIT_H

#include "testing/testing.h"
#include "tests/model/infer_kit.h"

typedef struct sk_world {
    fm_source *src;
    fm_engine *engine;
    fm_model *model; /* examples/atlas/base */
} sk_world;

static inline int sk_open(void **state)
{
    sk_world *w = fm_calloc(1, sizeof *w);
    char *path = tk_source("examples/atlas/base");
    tk_ok(fm_source_open(&w->src, path));
    fm_free(path);
    w->engine = ik_engine(2, 64);
    w->model = ik_model(w->engine, w->src, "base");
    *state = w;
    return 0;
}

static inline int sk_close(void **state)
{
    sk_world *w = *state;
    fm_model_close(w->model);
    fm_engine_free(w->engine);
    fm_source_close(w->src);
    fm_free(w);
    return 0;
}

static inline fm_suite *sk_parsed(const char *yaml)
{
    fm_suite *s = NULL;
    tk_ok(fm_suite_parse(&s, fm_span_str(yaml), "t.yaml"));
    return s;
}

static inline const fm_case_result *sk_result(const fm_suite_run *run, const char *name)
{
    for (size_t i = 0; i < run->count; i++)
        if (strcmp(run->result[i].name, name) == 0)
            return &run->result[i];
    fail_msg("no result '%s'", name);
    return NULL;
}

static inline void sk_verdict(const fm_suite_run *run, const char *name, fm_verdict want)
{
    const fm_case_result *r = sk_result(run, name);
    if (r->verdict != want)
        fail_msg("%s: verdict %d (%s) %s", name, (int)r->verdict, r->detail ? r->detail : "",
                 r->output ? r->output : "");
    assert_int_equal(r->detail == NULL, want == FM_PASS);
}

#endif
