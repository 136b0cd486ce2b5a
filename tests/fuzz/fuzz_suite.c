/* Suites: no input crashes, hangs or expands without bound; what parses has cases with names that
 * find them, and parses again to the same digests. */
#include "testing/testing.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    }
    fm_suite_free(a);
    fm_suite_free(b);
    return 0;
}
