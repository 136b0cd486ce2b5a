/* perturb.c - perturbations of letters, spaces and marks; and the table of all perturbations. */
#include "testing/cases/perturb.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

const char *const fmv_perturb_words[FMV_PERTURBATIONS] = {
    "typos",  "contractions", "names",  "locations", "numbers", "negation",
    "casing", "punctuation",  "prefix", "suffix",    "neutral", "whitespace"};

static bool digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static bool space(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* ==== typos ==== */

static bool ascii_letter(uint8_t c)
{
    return c < 0x80 && fmv_letter(c);
}

/* Whether letters i and i + 1 may be swapped: both of one word, differing in more than case. */
static bool can_swap(const uint8_t *t, size_t len, size_t i)
{
    return i + 1 < len && ascii_letter(t[i]) && ascii_letter(t[i + 1]) &&
           (t[i] | 0x20) != (t[i + 1] | 0x20);
}

/* Swaps p->n times: at a random place, or the next place where a swap is possible. */
static fm_status typos(fm_buf *out, const fmv_perturbation *p, fm_span text, fmv_draw *d,
                       bool *applies)
{
    uint8_t *t = fm_memdup(text.data, text.len + !text.len);
    uint8_t *taken = fm_calloc(text.len + 2, 1); /* letter i has moved */
    uint32_t *place = fm_calloc(text.len + 1, sizeof *place);
    size_t n = 0;
    fm_status rc = t && taken && place ? FM_OK : FM_ENOMEM;
    *applies = false;
    for (size_t i = 0; rc == FM_OK && i < text.len; i++)
        if (can_swap(t, text.len, i))
            place[n++] = (uint32_t)i;
    for (uint32_t k = 0; rc == FM_OK && n && k < p->n; k++) {
        size_t at = (size_t)fmv_draw_below(d, n), tries = 0;
        while (tries < n && (taken[place[at]] || taken[place[at] + 1])) {
            at = at + 1 < n ? at + 1 : 0;
            tries++;
        }
        if (tries == n)
            break;
        size_t i = place[at];
        uint8_t first = t[i];
        t[i] = t[i + 1];
        t[i + 1] = first;
        taken[i] = taken[i + 1] = 1;
        *applies = true;
    }
    if (rc == FM_OK)
        fm_buf_append(out, t, text.len);
    fm_free(t);
    fm_free(taken);
    fm_free(place);
    return rc;
}

/* ==== numbers ==== */

/* Length of a whole number at i, no part of a word, a decimal or a date; 0: none. */
static size_t number_at(fm_span s, size_t i)
{
    size_t n = 0;
    if (i > 0 && (digit(s.data[i - 1]) || fmv_letter(s.data[i - 1]) || s.data[i - 1] == '_'))
        return 0;
    if (i > 1 && strchr(".,:/-", s.data[i - 1]) && digit(s.data[i - 2]))
        return 0;
    while (i + n < s.len && digit(s.data[i + n]))
        n++;
    if (n == 0 || n > 15 || (i + n < s.len && (fmv_letter(s.data[i + n]) || s.data[i + n] == '_')))
        return 0;
    if (i + n + 1 < s.len && strchr(".,:/-", s.data[i + n]) && digit(s.data[i + n + 1]))
        return 0;
    return n;
}

static fm_status numbers(fm_buf *out, fm_span text, fmv_draw *d, bool *applies)
{
    size_t found = 0, from = 0, len = 0;
    char other[24];
    for (size_t i = 0; i < text.len; i++)
        found += number_at(text, i) > 0;
    *applies = found > 0;
    if (!found)
        return FM_OK;
    uint64_t pick = fmv_draw_below(d, found), low = 1, value = 0, draw;
    while (!(len = number_at(text, from)) || pick-- > 0)
        from++;
    for (size_t k = 0; k < len; k++) {
        value = value * 10 + (uint64_t)(text.data[from + k] - '0');
        low *= k ? 10 : 1;
    }
    low = len == 1 ? 0 : low;
    do /* another number with as many digits: there are 9 low of them, or 10 */
        draw = low + fmv_draw_below(d, low ? 9 * low : 10);
    while (draw == value);
    int wrote = snprintf(other, sizeof other, "%llu", (unsigned long long)draw);
    for (size_t i = 0; i < text.len;) {
        if (number_at(text, i) == len && memcmp(text.data + i, text.data + from, len) == 0) {
            fm_buf_append(out, other, (size_t)wrote);
            i += len;
        } else {
            fm_buf_append(out, text.data + i++, 1);
        }
    }
    return FM_OK;
}

/* ==== casing, punctuation, white space, additions ==== */

static void casing(fm_buf *out, const fmv_perturbation *p, fm_span text)
{
    bool inside = false; /* inside a word */
    for (size_t i = 0; i < text.len; i++) {
        uint8_t c = text.data[i];
        bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
        bool up = p->mode == FMV_MODE_UPPER || (p->mode == FMV_MODE_TITLE && !inside);
        if (lower && up)
            c = (uint8_t)(c - 0x20);
        else if (upper && p->mode == FMV_MODE_LOWER)
            c = (uint8_t)(c + 0x20);
        inside = fmv_letter(c) || digit(c) || c == '\'';
        fm_buf_append(out, &c, 1);
    }
}

static bool mark(uint8_t c)
{
    return c == '.' || c == ',' || c == '!' || c == '?' || c == ';' || c == ':';
}

/* Removes marks that end a word; marks inside a word (3.5, e.g., 10:30) stay. */
static void strip_marks(fm_buf *out, fm_span text)
{
    for (size_t i = 0; i < text.len; i++) {
        size_t after = i;
        while (after < text.len && mark(text.data[after]))
            after++;
        if (after > i && (after == text.len || space(text.data[after])))
            i = after - 1;
        else
            fm_buf_append(out, text.data + i, 1);
    }
}

static void add_mark(fm_buf *out, fm_span text)
{
    size_t end = text.len;
    while (end > 0 && space(text.data[end - 1]))
        end--;
    fm_buf_append(out, text.data, end);
    if (end > 0 && !mark(text.data[end - 1]))
        fm_buf_char(out, '.');
    else if (end > 0 && text.data[end - 1] != ':') /* "Answer:" stays, "What?" becomes "What??" */
        fm_buf_append(out, text.data + end - 1, 1);
    fm_buf_append(out, text.data + end, text.len - end);
}

static void punctuation(fm_buf *out, const fmv_perturbation *p, fm_span text)
{
    size_t before = out->len;
    if (p->mode != FMV_MODE_ADD)
        strip_marks(out, text);
    if (p->mode == FMV_MODE_ADD || (p->mode == FMV_MODE_ANY && out->len - before == text.len)) {
        out->len = before;
        add_mark(out, text);
    }
}

/* Doubles one space between words; if there is none, adds one in front. */
static void whitespace(fm_buf *out, fm_span text, fmv_draw *d)
{
    size_t found = 0;
    for (size_t i = 1; i + 1 < text.len; i++)
        found += text.data[i] == ' ';
    uint64_t pick = found ? fmv_draw_below(d, found) : 0;
    if (!found)
        fm_buf_char(out, ' ');
    for (size_t i = 0; i < text.len; i++) {
        fm_buf_append(out, text.data + i, 1);
        if (i > 0 && i + 1 < text.len && text.data[i] == ' ' && pick-- == 0)
            fm_buf_char(out, ' ');
    }
}

static const char *const neutral_sentences[] = {"Here is a question.",
                                                "Hello.",
                                                "Please read this.",
                                                "I have a short question.",
                                                "Good day to you.",
                                                "It is Tuesday today.",
                                                "Let us begin.",
                                                "This is a test.",
                                                "Thank you for your time.",
                                                "One more thing."};

static fm_status addition(fm_buf *out, const fmv_perturbation *p, fm_span text, fmv_draw *d)
{
    bool after = p->kind == FMV_SUFFIX;
    const char *words = p->kind == FMV_NEUTRAL
                            ? neutral_sentences[fmv_draw_below(d, FM_ARRAY_LEN(neutral_sentences))]
                            : p->text;
    size_t n = strlen(words);
    bool apart = after ? text.len && !space(text.data[text.len - 1]) && !space((uint8_t)*words)
                       : n && !space((uint8_t)words[n - 1]);
    if (after)
        fm_buf_append(out, text.data, text.len);
    if (after && apart)
        fm_buf_char(out, ' ');
    fm_buf_str(out, words);
    if (!after && apart)
        fm_buf_char(out, ' ');
    if (!after)
        fm_buf_append(out, text.data, text.len);
    return FM_OK;
}

uint64_t fmv_stream_of(fm_span text, uint64_t salt)
{
    uint64_t h = 14695981039346656037u ^ salt;
    for (size_t i = 0; i < text.len; i++)
        h = (h ^ text.data[i]) * 1099511628211u;
    return h;
}

static fm_status dispatch(fm_buf *out, const fmv_perturbation *p, fm_span text, fmv_draw *d,
                          bool *applies)
{
    switch (p->kind) {
    case FMV_TYPOS:
        return typos(out, p, text, d, applies);
    case FMV_CONTRACTIONS:
        return fmv_perturb_contractions(out, p, text, d, applies);
    case FMV_NAMES:
    case FMV_LOCATIONS:
        return fmv_perturb_swap(out, p, text, d, applies);
    case FMV_NEGATION:
        return fmv_perturb_negation(out, p, text, d, applies);
    case FMV_NUMBERS:
        return numbers(out, text, d, applies);
    case FMV_CASING:
        casing(out, p, text);
        return FM_OK;
    case FMV_PUNCTUATION:
        punctuation(out, p, text);
        return FM_OK;
    case FMV_WHITESPACE:
        whitespace(out, text, d);
        return FM_OK;
    case FMV_PREFIX:
    case FMV_SUFFIX:
    case FMV_NEUTRAL:
        return addition(out, p, text, d);
    case FMV_PERTURBATIONS:
        break;
    }
    return FM_OK;
}

fm_status fmv_perturb(fm_buf *out, const fmv_perturbation *p, fm_span text, uint64_t seed,
                      bool *applies)
{
    const size_t before = out->len;
    fmv_draw d = {seed, fmv_stream_of(p->salt.data ? p->salt : text, (uint64_t)p->kind), 0};
    *applies = true;
    FM_TRY(dispatch(out, p, text, &d, applies));
    FM_TRY(fm_buf_ok(out));
    if (*applies) /* a result equal to the text does not count */
        *applies = !fm_span_eq(fm_span_of(out->data + before, out->len - before), text);
    if (!*applies && out->data) {
        out->len = before;
        out->data[before] = 0;
    }
    return FM_OK;
}
