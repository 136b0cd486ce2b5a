/* Suites: no input crashes, hangs or expands without bound; what parses has cases with names that
 * find them, and parses again to the same digests. */
#include "testing/testing.h"

#include <stddef.h>
#include <string.h>

#include "store/base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The same bytes as a document over a suite: what is accepted leaves a suite whose waived cases are
 * cases of it. */
static void change(const uint8_t *data, size_t size)
{
    static const char base[] = "suite: s\ncases:\n- {name: a, prompt: p, expect: {contains: x}}\n"
                               "- {name: b, prompt: q, expect: {contains: y}}\n";
    const fm_suite_doc doc[] = {{fm_span_str(base), "base"}, {fm_span_of(data, size), "fuzz"}};
    char *suite = NULL, *topic = NULL;
    fm_suite *s = NULL;

    fm_status kind = fm_suite_doc_kind(&suite, &topic, doc[1].yaml, "fuzz");
    fm_assert((kind == FM_OK) == (suite != NULL));
    if (fm_suite_parse_changed(&s, doc, 2) == FM_OK) {
        fm_assert(topic && strcmp(suite, "s") == 0 && fm_suite_count(s) >= 2);
        for (size_t i = 0; i < FM_MIN(fm_suite_count(s), (size_t)1000); i++)
            fm_assert(!fm_suite_waived(s, i) || fm_suite_waiver(s, i)->reason[0]);
    }
    fm_free(suite);
    fm_free(topic);
    fm_suite_free(s);
}

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

    change(data, size);
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
