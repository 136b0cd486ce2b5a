/* Suites: no input crashes, hangs or expands without bound; what parses has cases with names that
 * find them, and parses again to the same digests. */
#include "testing/testing.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Forms of a case are cases, and the same each time. */
static void perturbed(const fm_suite *s, size_t i)
{
    fm_suite *x = NULL, *y = NULL;
    if (fm_suite_perturbed(&x, s, i, i + 1, 3) < 0)
        return;
    fm_assert(fm_suite_perturbed(&y, s, i, i + 1, 3) == FM_OK);
    fm_assert(fm_suite_count(x) == fm_suite_count(y) && fm_suite_count(x) <= 3);
    for (size_t k = 0; k < fm_suite_count(x); k++) {
        fm_digest p = fm_suite_case_digest(x, k), q = fm_suite_case_digest(y, k);
        fm_assert(fm_digest_eq(&p, &q));
    }
    fm_suite_free(x);
    fm_suite_free(y);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fm_suite *a = NULL, *b = NULL;

    if (fm_suite_parse(&a, fm_span_of(data, size), "fuzz") < 0) {
        fm_assert(!a && fm_error_text()[0]);
        return 0;
    }
    fm_assert(fm_suite_parse(&b, fm_span_of(data, size), "fuzz") == FM_OK);
    fm_assert(fm_suite_count(a) > 0 && fm_suite_count(a) == fm_suite_count(b));
    fm_assert(fm_suite_name(a)[0]);
    size_t shown = FM_MIN(fm_suite_count(a), (size_t)1000);
    for (size_t i = 0; i < shown; i++) {
        fm_digest p = fm_suite_case_digest(a, i), q = fm_suite_case_digest(b, i);
        fm_assert(fm_digest_eq(&p, &q));
        fm_assert(fm_suite_find(a, fm_suite_case_name(a, i)) == (long)i);
        fm_assert(fm_suite_case_matches(a, i, "name", fm_suite_case_name(a, i)));
        if (i < 3)
            perturbed(a, i);
    }
    fm_suite_free(a);
    fm_suite_free(b);
    return 0;
}
