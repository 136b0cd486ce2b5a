/* What tokenizers know of every code point: the tables of unicode_15.c are Unicode 15.0's, and
 * classes, lower case, clusters and normal forms are the recorded ones whatever utf8proc is there
 * (LD_PRELOAD another one to see). */
#include "infer/jinja/jinja.h"
#include "infer/tokenizer/internal.h"

#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

#include "store/base/math/hash.h"
#include "tests/testkit.h"

#define LAST 0x10ffffu

static bool is_surrogate(uint32_t cp)
{
    return cp >= 0xd800 && cp <= 0xdfff;
}

TEST(the_tables_are_those_of_unicode_15)
{
    if (strcmp(utf8proc_unicode_version(), "15.0.0") != 0) {
        printf("utf8proc knows Unicode %s here\n", utf8proc_unicode_version());
        skip();
    }
    for (uint32_t cp = 0; cp <= LAST; cp++) {
        utf8proc_int32_t c = (utf8proc_int32_t)cp;
        if (fmi_category(cp) != (int)utf8proc_category(c))
            fail_msg("U+%04X: category %d", cp, fmi_category(cp));
        if (fmi_boundclass(cp) != (int)utf8proc_get_property(c)->boundclass)
            fail_msg("U+%04X: class %d", cp, fmi_boundclass(cp));
        if (fmi_lower_15(cp) != (uint32_t)utf8proc_tolower(c))
            fail_msg("U+%04X: lower case U+%04X", cp, fmi_lower_15(cp));
    }
}

static void assert_digest(fm_hasher *h, const char *want)
{
    fm_digest d;
    char hex[FM_HEX_CHARS + 1];
    tk_ok(fm_hasher_final(h, &d));
    fm_hasher_free(h);
    fm_digest_hex(&d, hex);
    assert_string_equal(hex, want);
}

TEST(classes_and_lower_case_are_the_recorded_ones)
{
    fm_hasher *h;
    tk_ok(fm_hasher_new(&h));
    for (uint32_t cp = 0; cp <= LAST; cp++) {
        uint32_t v[] = {fmi_is_numeric(cp),    fmi_is_space(cp), fmi_is_word(cp),
                        fmi_is_nonspacing(cp), fmi_is_mark(cp),  fmi_is_punctuation(cp),
                        fmi_is_other(cp),      fmi_lower(cp),    (uint32_t)fmi_script(cp)};
        tk_ok(fm_hasher_update(h, v, sizeof v));
    }
    assert_digest(h, "4d47ba6f32e0794403e7ff8a60957406322a6206aa2c25b2542faaafcf33ed44");
}

/* Of each code point alone, and between a letter and marks that it may join, or be sorted among. */
static void add_form(fm_hasher *h, const fmi_norms *ns, fmi_tok_scratch *s, uint32_t cp)
{
    static const uint32_t around[][2] = {{0, 0}, {'a', 0x301}, {0x1100, 0x11a8}, {0x105d2, 0x307}};
    for (size_t k = 0; k < FM_ARRAY_LEN(around); k++) {
        uint8_t text[16];
        size_t n = around[k][0] ? fm_utf8_put(text, around[k][0]) : 0;
        fm_span out;
        n += fm_utf8_put(text + n, cp);
        n += around[k][1] ? fm_utf8_put(text + n, around[k][1]) : 0;
        s->grow_left = 1 << 20;
        tk_ok(fmi_norms_run(ns, s, fm_span_of(text, n), &out));
        tk_ok(fm_hasher_update(h, out.data, out.len));
    }
}

/* Upper, lower and title case of templates: their texts become prompts. */
TEST(case_in_templates_is_the_recorded_one)
{
    fm_hasher *h;
    fm_buf out;
    fm_buf_init(&out, 0);
    tk_ok(fm_hasher_new(&h));
    for (uint32_t cp = 1; cp <= LAST; cp++) {
        uint8_t text[4];
        jj_val v = {.type = JJ_STRING};
        bool asked[] = {jj_is_cased(cp), jj_is_printable(cp)};
        if (is_surrogate(cp))
            continue;
        v.u.s.p = (const char *)text;
        v.u.s.n = fm_utf8_put(text, cp);
        fm_buf_clear(&out);
        (void)jj_put_case(&out, v, 0, JJ_LOWER);
        (void)jj_put_case(&out, v, 0, JJ_UPPER);
        (void)jj_put_case(&out, v, 0, JJ_TITLE);
        tk_ok(fm_hasher_update(h, out.data, out.len));
        tk_ok(fm_hasher_update(h, asked, sizeof asked));
    }
    fm_buf_release(&out);
    assert_digest(h, "f3d1c714faec2620ad8cfafdc07a4bdab09bd361ef3e86f238edc1a113fba009");
}

TEST(a_pcre2_of_a_newer_unicode_is_refused_by_name)
{
    char here[32];
    fm_regex_unicode(here);
    tk_ok(fmi_regex_check_unicode(here, "field"));
    tk_ok(fmi_regex_check_unicode("16.0.0", "field"));
    tk_fails(fmi_regex_check_unicode("17.0.0", "pre_tokenizer"), FM_EUNSUPPORTED,
             "pre_tokenizer: a regular expression of a tokenizer needs a PCRE2 with Unicode 14 to "
             "16");
    assert_non_null(strstr(fm_error_text(), "knows Unicode 17.0.0"));
    tk_fails(fmi_regex_check_unicode("", "field"), FM_EUNSUPPORTED, "PCRE2");
}

TEST(normal_forms_are_the_recorded_ones)
{
    static const char *const form[] = {"NFC", "NFD", "NFKC", "NFKD"};
    fmi_tok_scratch s = {0};
    fm_hasher *h;
    tk_ok(fm_hasher_new(&h));
    fm_buf_init(&s.norm[0], 0);
    fm_buf_init(&s.norm[1], 0);
    for (size_t i = 0; i < FM_ARRAY_LEN(form); i++) {
        fmi_norms ns = {0};
        fm_json *v;
        char text[40];
        snprintf(text, sizeof text, "{\"type\":\"%s\"}", form[i]);
        tk_ok(fm_json_parse(&v, fm_span_str(text), "normalizer"));
        tk_ok(fmi_norms_parse(&ns, v));
        for (uint32_t cp = 1; cp <= LAST; cp++)
            if (!is_surrogate(cp))
                add_form(h, &ns, &s, cp);
        fmi_norms_release(&ns);
        fm_json_free(v);
    }
    fm_buf_release(&s.norm[0]);
    fm_buf_release(&s.norm[1]);
    assert_digest(h, "9cceb82daf8e2bfc7215369cff9fd049d5191e7698f48cde92f8bb3a46f28804");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tables_are_those_of_unicode_15),
        cmocka_unit_test(classes_and_lower_case_are_the_recorded_ones),
        cmocka_unit_test(case_in_templates_is_the_recorded_one),
        cmocka_unit_test(a_pcre2_of_a_newer_unicode_is_refused_by_name),
        cmocka_unit_test(normal_forms_are_the_recorded_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
