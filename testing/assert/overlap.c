/* overlap.c - assertions on how much of a text an answer repeats.
 *
 * levenshtein: edits between code points. rouge-n, rouge-l (Lin 2004): F1 over words, which are
 * those of rouge_score without its stemmer: letters a-z without case, and digits. bleu (Papineni
 * 2002): of one sentence as sacrebleu's sentence_bleu computes it: tokens of 13a, smoothing `exp`,
 * effective order. gleu (Wu 2016): as nltk's sentence_gleu, over tokens of 13a. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "testing/assert/assert.h"

#define CELLS_MAX ((size_t)200000000) /* most cells of a table of edits */
#define ORDER 4

enum { ROUGE_N, ROUGE_L, BLEU, GLEU };

/* ---- levenshtein ---- */

static fm_status points_of(uint32_t **out, size_t *n, fm_span s, bool ignore_case)
{
    *out = fm_calloc(s.len + 1, sizeof **out);
    *n = 0;
    if (!*out)
        return FM_ENOMEM;
    for (size_t at = 0; at < s.len; ++*n) {
        uint32_t c = fmv_next_point(s, &at);
        (*out)[*n] = ignore_case && c >= 'A' && c <= 'Z' ? c + 32 : c;
    }
    return FM_OK;
}

static fm_status edits(size_t *out, const uint32_t *a, size_t n, const uint32_t *b, size_t m)
{
    if (n && m > CELLS_MAX / n)
        return fm_fail(FM_ELIMIT, "levenshtein: %zu by %zu characters are too many", n, m);
    size_t *row = fm_calloc(m + 1, sizeof *row);
    if (!row)
        return FM_ENOMEM;
    for (size_t k = 0; k <= m; k++)
        row[k] = k;
    for (size_t i = 0; i < n; i++) {
        size_t corner = row[0]++;
        for (size_t k = 1; k <= m; k++) {
            size_t best = FM_MIN(corner + (a[i] != b[k - 1]), FM_MIN(row[k], row[k - 1]) + 1);
            corner = row[k];
            row[k] = best;
        }
    }
    *out = row[m];
    fm_free(row);
    return FM_OK;
}

static fm_status read_levenshtein(fmv_assertion *a, const char *where)
{
    if (a->threshold != floor(a->threshold))
        return fm_fail(FM_EINVAL, "%s: expect.levenshtein: 'threshold' wants a whole number",
                       where);
    return fmv_want_text(a, true, where);
}

static fm_status check_levenshtein(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    uint32_t *x = NULL, *y = NULL;
    size_t n = 0, m = 0, d = 0;
    fm_status rc = points_of(&x, &n, fmv_trim(said->text), a->ignore_case);
    FM_THEN(rc, points_of(&y, &m, fmv_trim(fm_json_str(a->value)), a->ignore_case));
    FM_THEN(rc, edits(&d, x, n, y, m));
    fm_free(x);
    fm_free(y);
    out->holds = (double)d <= a->threshold;
    out->score = FM_MAX(n, m) ? 1 - (double)d / (double)FM_MAX(n, m) : 1;
    snprintf(out->note, sizeof out->note, "%zu edits, at most %g", d, a->threshold);
    return rc;
}

/* ---- tokens ---- */

typedef struct words {
    uint32_t *id; /* equal words have equal ids within one dictionary */
    size_t n;
} words;

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

/* Keeps a-z and 0-9; every other character separates words. */
static fm_status plain_words(fm_buf *out, fm_span s)
{
    for (size_t i = 0; i < s.len; i++) {
        int c = s.data[i];
        if (c >= 'A' && c <= 'Z')
            c += 32;
        fm_buf_char(out, is_digit(c) || (c >= 'a' && c <= 'z') ? (char)c : ' ');
    }
    return fm_buf_ok(out);
}

static fm_status replaced(fm_buf *s, const char *from, const char *to)
{
    fm_buf out;
    fm_buf_init(&out, 0);
    size_t n = strlen(from);
    for (size_t i = 0; i < s->len;) {
        if (s->len - i >= n && memcmp(s->data + i, from, n) == 0) {
            fm_buf_str(&out, to);
            i += n;
        } else {
            fm_buf_append(&out, s->data + i++, 1);
        }
    }
    fm_status rc = fm_buf_ok(&out);
    fm_buf_release(s);
    *s = out;
    return rc;
}

/* Puts spaces into every pair of characters for which `apart` is not 0: bits 1 before, 2 between, 4
 * behind. A character is in one pair only, as in a substitution from left to right. */
static fm_status spaced_pairs(fm_buf *s, int (*apart)(int a, int b))
{
    fm_buf out;
    fm_buf_init(&out, 0);
    for (size_t i = 0; i < s->len; i++) {
        int how = i + 1 < s->len ? apart(s->data[i], s->data[i + 1]) : 0;
        if (how & 1)
            fm_buf_char(&out, ' ');
        fm_buf_append(&out, s->data + i, 1);
        if (!how)
            continue;
        if (how & 2)
            fm_buf_char(&out, ' ');
        fm_buf_append(&out, s->data + ++i, 1);
        if (how & 4)
            fm_buf_char(&out, ' ');
    }
    fm_status rc = fm_buf_ok(&out);
    fm_buf_release(s);
    *s = out;
    return rc;
}

static int stop_after_other(int a, int b)
{
    return !is_digit(a) && (b == '.' || b == ',') ? 2 | 4 : 0;
}

static int stop_before_other(int a, int b)
{
    return (a == '.' || a == ',') && !is_digit(b) ? 1 | 2 : 0;
}

static int dash_after_digit(int a, int b)
{
    return is_digit(a) && b == '-' ? 2 | 4 : 0;
}

/* mteval-v13a's tokens: {-~ [-` space-& (-+ :-@ / alone; stops and dashes by their neighbours. */
static fm_status tokens_13a(fm_buf *out, fm_span s, bool ignore_case)
{
    static const char *const fixed[][2] = {{"<skipped>", ""}, {"-\n", ""},    {"\n", " "},
                                           {"&quot;", "\""},  {"&amp;", "&"}, {"&lt;", "<"},
                                           {"&gt;", ">"}};
    fm_buf t;
    fm_buf_init(&t, 0);
    while (s.len && is_digit(s.data[s.len - 1]) == 0 && s.data[s.len - 1] <= ' ')
        s.len--;
    fm_buf_append(&t, s.data, s.len);
    fm_status rc = fm_buf_ok(&t);
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(fixed); i++)
        rc = replaced(&t, fixed[i][0], fixed[i][1]);
    fm_buf_char(out, ' ');
    for (size_t i = 0; i < t.len; i++) {
        int c = t.data[i];
        bool alone = (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
                     (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
        if (ignore_case && c >= 'A' && c <= 'Z')
            c += 32;
        if (alone)
            fm_buf_char(out, ' ');
        fm_buf_u8(out, (uint8_t)c);
        if (alone)
            fm_buf_char(out, ' ');
    }
    fm_buf_char(out, ' ');
    fm_buf_release(&t);
    FM_THEN(rc, fm_buf_ok(out));
    FM_THEN(rc, spaced_pairs(out, stop_after_other));
    FM_THEN(rc, spaced_pairs(out, stop_before_other));
    return rc == FM_OK ? spaced_pairs(out, dash_after_digit) : rc;
}

/* Numbers the words between white space by their index in the dictionary. */
static fm_status numbered(words *out, fm_map *dictionary, fm_span s)
{
    out->id = fm_calloc(s.len / 2 + 2, sizeof *out->id);
    out->n = 0;
    fm_status rc = out->id ? FM_OK : FM_ENOMEM;
    for (size_t at = 0, from = 0; rc == FM_OK && at <= s.len;) {
        size_t end = at;
        bool blank = at == s.len || fmv_is_blank(fmv_next_point(s, &at));
        if (!blank)
            continue;
        if (end > from) {
            uintptr_t id = (uintptr_t)fm_map_get(dictionary, s.data + from, end - from);
            if (!id) {
                id = fm_map_count(dictionary) + 1;
                rc = fm_map_put(dictionary, s.data + from, end - from, (void *)id, NULL);
            }
            out->id[out->n++] = (uint32_t)id;
        }
        if (at == s.len && end == s.len)
            break;
        from = at;
    }
    return rc;
}

static fm_status words_of(words *out, fm_map *dictionary, const fmv_assertion *a, fm_span text)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_status rc = a->type->how == ROUGE_N || a->type->how == ROUGE_L
                       ? plain_words(&b, text)
                       : tokens_13a(&b, text, a->ignore_case);
    FM_THEN(rc, numbered(out, dictionary, fm_buf_span(&b)));
    fm_buf_release(&b);
    return rc;
}

/* ---- n-grams ---- */

typedef struct gram {
    uint32_t word[ORDER];
} gram;
typedef struct grams {
    gram *g; /* sorted */
    size_t n;
} grams;

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(gram));
}

static fm_status grams_of(grams *out, const words *w, size_t order)
{
    out->n = w->n >= order ? w->n - order + 1 : 0;
    out->g = fm_calloc(out->n + 1, sizeof *out->g);
    if (!out->g)
        return FM_ENOMEM;
    for (size_t i = 0; i < out->n; i++)
        memcpy(out->g[i].word, w->id + i, order * sizeof *w->id);
    qsort(out->g, out->n, sizeof *out->g, by_bytes);
    return FM_OK;
}

/* How often the gram occurs in `in`. */
static size_t times(const grams *in, const gram *g)
{
    size_t low = 0, high = in->n, n = 0;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (by_bytes(&in->g[mid], g) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    while (low + n < in->n && by_bytes(&in->g[low + n], g) == 0)
        n++;
    return n;
}

/* Counts n-grams of the answer that some text has, each at most as often as any text has it. */
static fm_status common(size_t *hits, size_t *of, const words *answer, const words *text,
                        size_t texts, size_t order)
{
    grams mine = {0}, *theirs = fm_calloc(texts, sizeof *theirs);
    fm_status rc = theirs ? grams_of(&mine, answer, order) : FM_ENOMEM;
    for (size_t t = 0; rc == FM_OK && t < texts; t++)
        rc = grams_of(&theirs[t], &text[t], order);
    *hits = 0;
    *of = mine.n;
    for (size_t i = 0; rc == FM_OK && i < mine.n;) {
        size_t own = times(&mine, &mine.g[i]), most = 0;
        for (size_t t = 0; t < texts; t++)
            most = FM_MAX(most, times(&theirs[t], &mine.g[i]));
        *hits += FM_MIN(own, most);
        i += own;
    }
    for (size_t t = 0; theirs && t < texts; t++)
        fm_free(theirs[t].g);
    fm_free(theirs);
    fm_free(mine.g);
    return rc;
}

/* ---- measures ---- */

static double f1(size_t hits, size_t answer, size_t text)
{
    double p = answer ? (double)hits / (double)answer : 0,
           r = text ? (double)hits / (double)text : 0;
    return p + r > 0 ? 2 * p * r / (p + r) : 0;
}

static fm_status rouge_n(double *out, const words *answer, const words *text, size_t order)
{
    size_t hits, of, have = text->n >= order ? text->n - order + 1 : 0;
    fm_status rc = common(&hits, &of, answer, text, 1, order);
    *out = f1(hits, of, have);
    return rc;
}

/* F1 of the longest common subsequence. */
static fm_status rouge_l(double *out, const words *answer, const words *text)
{
    if (answer->n && text->n > CELLS_MAX / answer->n)
        return fm_fail(FM_ELIMIT, "rouge-l: %zu by %zu words are too many", answer->n, text->n);
    size_t *row = fm_calloc(text->n + 1, sizeof *row);
    if (!row)
        return FM_ENOMEM;
    for (size_t i = 0; i < answer->n; i++) {
        size_t corner = 0;
        for (size_t k = 1; k <= text->n; k++) {
            size_t above = row[k];
            row[k] = answer->id[i] == text->id[k - 1] ? corner + 1 : FM_MAX(above, row[k - 1]);
            corner = above;
        }
    }
    *out = f1(row[text->n], answer->n, text->n);
    fm_free(row);
    return FM_OK;
}

/* The length of the text whose length is nearest to n; the shorter of two. */
static size_t nearest_length(size_t n, const words *text, size_t texts)
{
    size_t best = text[0].n;
    for (size_t t = 1; t < texts; t++) {
        size_t have = best > n ? best - n : n - best,
               now = text[t].n > n ? text[t].n - n : n - text[t].n;
        if (now < have || (now == have && text[t].n < best))
            best = text[t].n;
    }
    return best;
}

static fm_status bleu(double *out, const words *answer, const words *text, size_t texts)
{
    double sum = 0, halves = 1;
    size_t order = 0, hits, of, any = 0;
    *out = 0;
    for (size_t n = 1; n <= ORDER; n++) {
        FM_TRY(common(&hits, &of, answer, text, texts, n));
        if (!of)
            break;
        order = n;
        any += hits;
        if (!hits)
            halves *= 2;
        sum += hits ? fm_log((double)hits / (double)of) : -fm_log(halves * (double)of);
    }
    if (!any)
        return FM_OK;
    double have = (double)answer->n, want = (double)nearest_length(answer->n, text, texts);
    *out = (have < want ? fm_exp(1 - want / have) : 1) * fm_exp(sum / (double)order);
    return FM_OK;
}

static fm_status gleu(double *out, const words *answer, const words *text)
{
    size_t hits = 0, mine = 0, theirs = 0;
    for (size_t n = 1; n <= ORDER; n++) {
        size_t h, of;
        FM_TRY(common(&h, &of, answer, text, 1, n));
        hits += h;
        mine += of;
        theirs += text->n >= n ? text->n - n + 1 : 0;
    }
    *out = FM_MAX(mine, theirs) ? (double)hits / (double)FM_MAX(mine, theirs) : 0;
    return FM_OK;
}

static fm_status measured(double *out, const fmv_assertion *a, const words *answer,
                          const words *text, size_t texts)
{
    fm_status rc = FM_OK;
    *out = 0;
    if (a->type->how == BLEU)
        return bleu(out, answer, text, texts);
    for (size_t t = 0; rc == FM_OK && t < texts; t++) {
        double one = 0;
        rc = a->type->how == ROUGE_N   ? rouge_n(&one, answer, &text[t], a->n)
             : a->type->how == ROUGE_L ? rouge_l(&one, answer, &text[t])
                                       : gleu(&one, answer, &text[t]);
        *out = FM_MAX(*out, one);
    }
    return rc;
}

static fm_status overlap(double *out, const fmv_assertion *a, fm_span answer)
{
    size_t texts = fmv_text_count(a->value);
    words *w = fm_calloc(texts + 1, sizeof *w);
    fm_map *dictionary = NULL;
    fm_status rc = w ? fm_map_new(&dictionary) : FM_ENOMEM;
    for (size_t t = 0; rc == FM_OK && t <= texts; t++)
        rc = words_of(&w[t], dictionary, a, t ? fmv_text_at(a->value, t - 1) : answer);
    FM_THEN(rc, measured(out, a, &w[0], w + 1, texts));
    for (size_t t = 0; w && t <= texts; t++)
        fm_free(w[t].id);
    fm_free(w);
    fm_map_free(dictionary);
    return rc;
}

static fm_status read_overlap(fmv_assertion *a, const char *where)
{
    fm_status rc = fmv_want_texts(a, true, where);
    bool rouge = a->type->how == ROUGE_N || a->type->how == ROUGE_L;
    for (size_t i = 0; rc == FM_OK && i < fmv_text_count(a->value); i++) {
        fm_map *dictionary = NULL;
        words w = {0};
        rc = fm_map_new(&dictionary);
        FM_THEN(rc, words_of(&w, dictionary, a, fmv_text_at(a->value, i)));
        if (rc == FM_OK && w.n < (a->type->how == ROUGE_N ? a->n : 1))
            rc = fm_fail(FM_EINVAL, "%s: expect.%s: '%.40s' has too few words%s", where,
                         a->type->word, (const char *)fmv_text_at(a->value, i).data,
                         rouge ? " of a-z and 0-9" : "");
        fm_free(w.id);
        fm_map_free(dictionary);
    }
    return rc;
}

static fm_status check_overlap(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    double score = 0;
    fm_status rc = overlap(&score, a, said->text);
    fmv_grade_at_least(out, score, a->threshold);
    return rc;
}

#define OVERLAP(w, h, t, f)                                                                        \
    {                                                                                              \
        .word = w, .kind = FMV_TEXTS, .how = h, .flags = FMV_TAKES_THRESHOLD | (f),                \
        .threshold = t, .low = 1e-6, .high = 1, .read = read_overlap, .check = check_overlap       \
    }
const fmv_assert_type fmv_assert_overlap[] = {
    {.word = "levenshtein",
     .kind = FMV_TEXTS,
     .flags = FMV_TAKES_THRESHOLD,
     .threshold = 5,
     .low = 0,
     .high = 1e6,
     .read = read_levenshtein,
     .check = check_levenshtein},
    OVERLAP("rouge-n", ROUGE_N, 0.75, FMV_TAKES_N),
    OVERLAP("rouge-l", ROUGE_L, 0.75, 0),
    OVERLAP("bleu", BLEU, 0.5, 0),
    OVERLAP("gleu", GLEU, 0.5, 0),
    {0},
};
