/* case.c - upper, lower and title case as Python maps them. utf8proc has the mappings to one
 * character; those to several ("ß" to "SS") follow from its full case folding. */
#include <utf8proc.h>

#include "infer/jinja/jinja.h"
#include "infer/tokenizer/internal.h"

bool jj_is_cased(uint32_t cp)
{
    int k = fmi_category(cp);

    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

bool jj_is_printable(uint32_t cp)
{
    int k = fmi_category(cp);
    bool separator = k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP;

    return cp == ' ' || !(separator || k >= UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CN);
}

static uint32_t simple(uint32_t cp, jj_case to)
{
    utf8proc_int32_t c = (utf8proc_int32_t)cp;

    if (to == JJ_LOWER)
        return fmi_lower_15(cp);
    c = to == JJ_UPPER ? utf8proc_toupper(c) : utf8proc_totitle(c);
    /* A newer utf8proc gives capitals that Unicode 15 has not. */
    return fmi_category((uint32_t)c) == UTF8PROC_CATEGORY_CN ? cp : (uint32_t)c;
}

/* One code point as Python maps it: up to three. A small or title letter that folds to several
 * characters has these as its capital form; its title form is one where Unicode has one. */
static size_t map_one(uint32_t out[3], uint32_t cp, jj_case to)
{
    utf8proc_int32_t fold[4];
    utf8proc_ssize_t n = 1;

    out[0] = simple(cp, to);
    if (to == JJ_LOWER && cp == 0x130) {
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    if (to != JJ_LOWER && cp >= 0x80 && jj_is_cased(cp) && fmi_category(cp) != UTF8PROC_CATEGORY_LU)
        n = utf8proc_decompose_char((utf8proc_int32_t)cp, fold, 4, UTF8PROC_CASEFOLD, NULL);
    if (n < 2 || n > 3 || (to == JJ_TITLE && out[0] != cp && cp != 0xdf) ||
        fmi_category(cp) == (to == JJ_TITLE ? UTF8PROC_CATEGORY_LT : UTF8PROC_CATEGORY_LU))
        return 1;
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        uint32_t part = (uint32_t)fold[i];
        bool whole = to == JJ_UPPER || i == 0 || cp == 0x149; /* 0x149: an apostrophe before n */
        out[i] = whole ? simple(part, JJ_UPPER) : part == 0x3b9 ? 0x345 : part; /* iota below */
    }
    return (size_t)n;
}

static bool is_ignorable(uint32_t cp)
{
    int k = fmi_category(cp);

    return cp == '\'' || cp == '.' || cp == ':' || cp == 0xb7 || cp == 0x2019 ||
           k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

/* Whether the capital sigma at `at` ends a word: its small form is then another one. */
static bool final_sigma(const uint8_t *p, size_t at, size_t len)
{
    uint32_t cp = 0;
    bool before = false;

    for (size_t i = at; i > 0;) {
        i--;
        while (i > 0 && (p[i] & 0xc0) == 0x80)
            i--;
        fm_utf8_next(p + i, &cp);
        if (is_ignorable(cp))
            continue;
        before = jj_is_cased(cp);
        break;
    }
    for (size_t i = at + 2; before && i < len;) {
        i += fm_utf8_next(p + i, &cp);
        if (!is_ignorable(cp))
            return !jj_is_cased(cp);
    }
    return before;
}

size_t jj_put_case(fm_buf *out, jj_val str, size_t at, jj_case to)
{
    const uint8_t *p = (const uint8_t *)str.u.s.p;
    uint32_t cp, mapped[3];
    uint8_t bytes[4];
    size_t n = fm_utf8_next(p + at, &cp), count = 1;

    if (to == JJ_LOWER && cp == 0x3a3)
        mapped[0] = final_sigma(p, at, str.u.s.n) ? 0x3c2 : 0x3c3;
    else
        count = map_one(mapped, cp, to);
    for (size_t i = 0; i < count; i++)
        fm_buf_append(out, bytes, fm_utf8_put(bytes, mapped[i]));
    return n;
}

fm_status jj_put_cased(jj_ctx *c, fm_buf *out, jj_val str, jj_case to)
{
    FM_TRY(jj_work_by(c, str.u.s.n, JJ_MAP));

    for (size_t i = 0; i < str.u.s.n;)
        i += jj_put_case(out, str, i, to);
    return FM_OK;
}

fm_status jj_cased(jj_ctx *c, jj_val *out, jj_val str, jj_case to)
{
    fm_buf b;

    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    fm_status rc = jj_put_cased(c, &b, str, to);
    return jj_buf_str(c, out, &b, rc);
}
