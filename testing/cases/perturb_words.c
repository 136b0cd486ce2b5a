/* perturb_words.c - perturbations that use lists of words: contractions, names and places,
 * negation.
 *
 * They know English, by lists and positions of words and not by grammar. Each changes only what it
 * can change without spoiling the sentence; to other texts it does not apply. */
#include "testing/cases/perturb.h"

#include <stdio.h>
#include <string.h>

#include "store/base/math/rng.h"

uint64_t fmv_draw_below(fmv_draw *d, uint64_t n)
{
    return fm_rng_below(d->seed, d->stream, d->at++, n);
}

bool fmv_letter(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
}

static uint8_t lower(uint8_t c)
{
    return c >= 'A' && c <= 'Z' ? (uint8_t)(c + 0x20) : c;
}

static bool word_byte(uint8_t c)
{
    return fmv_letter(c) || (c >= '0' && c <= '9') || c == '_';
}

static bool word_begins(fm_span s, size_t i)
{
    return i == 0 || (!word_byte(s.data[i - 1]) && s.data[i - 1] != '\'');
}

/* Whether the phrase is at i as whole words; an apostrophe after it continues the word unless
 * possessive is allowed. */
static bool stands_at(fm_span s, size_t i, const char *phrase, bool exact_case, bool possessive)
{
    size_t n = strlen(phrase);
    if (n == 0 || n > s.len - i || !word_begins(s, i))
        return false;
    for (size_t k = 0; k < n; k++) {
        uint8_t a = s.data[i + k], b = (uint8_t)phrase[k];
        if (exact_case ? a != b : lower(a) != lower(b))
            return false;
    }
    if (i + n == s.len)
        return true;
    uint8_t next = s.data[i + n];
    return !word_byte(next) && (possessive || next != '\'');
}

/* Appends the replacement, with a capital if the replaced text had one. */
static void put_as(fm_buf *out, const char *text, uint8_t model)
{
    uint8_t first = (uint8_t)*text;
    if (model >= 'A' && model <= 'Z' && first >= 'a' && first <= 'z')
        first = (uint8_t)(first - 0x20);
    fm_buf_append(out, &first, 1);
    fm_buf_str(out, text + 1);
}

/* ==== contractions ==== */

static const struct {
    const char *full, *brief;
    bool goes_on; /* a word must follow: "Yes, it is." stays */
} contraction[] = {
    {"cannot", "can't", false},
    {"can not", "can't", false},
    {"will not", "won't", false},
    {"do not", "don't", false},
    {"does not", "doesn't", false},
    {"did not", "didn't", false},
    {"is not", "isn't", false},
    {"are not", "aren't", false},
    {"was not", "wasn't", false},
    {"were not", "weren't", false},
    {"has not", "hasn't", false},
    {"have not", "haven't", false},
    {"had not", "hadn't", false},
    {"would not", "wouldn't", false},
    {"could not", "couldn't", false},
    {"should not", "shouldn't", false},
    {"must not", "mustn't", false},
    {"what is", "what's", true},
    {"who is", "who's", true},
    {"where is", "where's", true},
    {"how is", "how's", true},
    {"when is", "when's", true},
    {"there is", "there's", true},
    {"here is", "here's", true},
    {"that is", "that's", true},
    {"it is", "it's", true},
    {"he is", "he's", true},
    {"she is", "she's", true},
    {"I am", "I'm", true},
    {"you are", "you're", true},
    {"we are", "we're", true},
    {"they are", "they're", true},
    {"I will", "I'll", true},
    {"you will", "you'll", true},
    {"we will", "we'll", true},
    {"they will", "they'll", true},
    {"it will", "it'll", true},
    {"let us", "let's", true},
};

static size_t contraction_at(fm_span s, size_t i, bool expand, size_t *which)
{
    for (size_t k = 0; k < FM_ARRAY_LEN(contraction); k++) {
        const char *from = expand ? contraction[k].brief : contraction[k].full;
        size_t n = strlen(from);
        if (!stands_at(s, i, from, false, false))
            continue;
        if (!expand && contraction[k].goes_on &&
            !(i + n + 1 < s.len && s.data[i + n] == ' ' && word_byte(s.data[i + n + 1])))
            continue;
        *which = k;
        return n;
    }
    return 0;
}

static bool contract_all(fm_buf *out, fm_span s, bool expand)
{
    bool any = false;
    size_t which = 0, n;
    for (size_t i = 0; i < s.len; i += n) {
        n = contraction_at(s, i, expand, &which);
        if (n) {
            put_as(out, expand ? contraction[which].full : contraction[which].brief, s.data[i]);
            any = true;
        } else {
            n = 1;
            fm_buf_append(out, s.data + i, 1);
        }
    }
    return any;
}

fm_status fmv_perturb_contractions(fm_buf *out, const fmv_perturbation *p, fm_span text,
                                   fmv_draw *d, bool *applies)
{
    const size_t before = out->len;
    (void)d; /* changes all contractions at once: nothing is drawn */
    *applies = p->mode != FMV_MODE_EXPAND && contract_all(out, text, false);
    if (!*applies && p->mode != FMV_MODE_CONTRACT) {
        out->len = before;
        *applies = contract_all(out, text, true);
    }
    return FM_OK;
}

/* ==== names and places ==== */

#define FOUND_MAX 64

typedef struct swap_lists {
    fmv_words list[3];
    size_t count;
} swap_lists;

static void lists_of(swap_lists *l, const fmv_perturbation *p)
{
    static const char *const names[] = {"female-names", "male-names", "first-names"};
    static const char *const places[] = {"cities", "countries", NULL};
    memset(l, 0, sizeof *l);
    if (p->words.own || p->words.builtin) {
        l->list[l->count++] = p->words;
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        const char *name = p->kind == FMV_NAMES ? names[i] : places[i];
        if (name)
            l->list[l->count++] = (fmv_words){fmv_lexicon_builtin(name), NULL};
    }
}

/* Finds the longest entry of any list at i; returns its length, 0: none. */
static size_t entry_at(const swap_lists *l, fm_span s, size_t i, size_t *list, const char **word)
{
    size_t best = 0;
    if (!word_begins(s, i))
        return 0;
    for (size_t k = 0; k < l->count; k++)
        for (size_t e = 0; e < fmv_words_count(&l->list[k]); e++) {
            const char *w = fmv_words_at(&l->list[k], e);
            if (strlen(w) > best && stands_at(s, i, w, true, true)) {
                best = strlen(w);
                *list = k;
                *word = w;
            }
        }
    return best;
}

static bool among(const char *const *found, size_t n, const char *word)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(found[i], word) == 0)
            return true;
    return false;
}

fm_status fmv_perturb_swap(fm_buf *out, const fmv_perturbation *p, fm_span text, fmv_draw *d,
                           bool *applies)
{
    swap_lists l;
    const char *found[FOUND_MAX], *word = NULL, *other = NULL;
    size_t from[FOUND_MAX], n = 0, list = 0, len, left = 0;
    lists_of(&l, p);
    *applies = false;
    for (size_t i = 0; i < text.len && n < FOUND_MAX; i += len ? len : 1) {
        len = entry_at(&l, text, i, &list, &word);
        if (len && !among(found, n, word)) {
            from[n] = list;
            found[n++] = word;
        }
    }
    if (!n)
        return FM_OK;
    size_t pick = (size_t)fmv_draw_below(d, n);
    const fmv_words *w = &l.list[from[pick]];
    for (size_t e = 0; e < fmv_words_count(w); e++)
        left += *fmv_words_at(w, e) && !among(found, n, fmv_words_at(w, e));
    if (!left)
        return FM_OK;
    left = (size_t)fmv_draw_below(d, left);
    for (size_t e = 0; !other; e++)
        if (*fmv_words_at(w, e) && !among(found, n, fmv_words_at(w, e)) && left-- == 0)
            other = fmv_words_at(w, e);
    *applies = true;
    for (size_t i = 0; i < text.len; i += len ? len : 1) {
        len = entry_at(&l, text, i, &list, &word);
        if (len && strcmp(word, found[pick]) == 0)
            fm_buf_str(out, other);
        else
            fm_buf_append(out, text.data + i, len ? len : 1);
    }
    return FM_OK;
}

/* ==== negation ==== */

static const struct {
    const char *word, *negated;
} auxiliary[] = {
    {"is", "isn't"},         {"are", "aren't"},     {"was", "wasn't"},   {"were", "weren't"},
    {"can", "can't"},        {"could", "couldn't"}, {"will", "won't"},   {"would", "wouldn't"},
    {"should", "shouldn't"}, {"must", "mustn't"},   {"does", "doesn't"}, {"do", "don't"},
    {"did", "didn't"},
};
#define FIRST_DO 10 /* from here on: auxiliaries only in a question ("I did it") */
/* Verbs that take "do not" after I, you, we, they. */
static const char *const plain_verbs[] = {"like",  "love",  "want",  "need", "think",     "believe",
                                          "know",  "see",   "enjoy", "hate", "live",      "work",
                                          "eat",   "speak", "read",  "play", "recommend", "agree",
                                          "trust", "use",   NULL};
static const char *const plural_subjects[] = {"I", "you", "we", "they", NULL};
static const char *const ask_words[] = {"what", "who", "which", "where",
                                        "when", "why", "how",   NULL};
/* Words after "do" that make no question: "Do it". */
static const char *const objects[] = {"it", "this", "that", "them", "so", "your", "my", NULL};
static const char *const negators[] = {"not",    "no",      "never", "nobody",  "nothing", "none",
                                       "cannot", "neither", "nor",   "without", NULL};

static const char *word_of(fm_span s, size_t i, const char *const *list)
{
    for (; *list; list++)
        if (stands_at(s, i, *list, false, false))
            return *list;
    return NULL;
}

static bool negative(fm_span s)
{
    for (size_t i = 0; i < s.len; i++) {
        if (word_begins(s, i) && word_of(s, i, negators))
            return true;
        if (i + 2 < s.len && lower(s.data[i]) == 'n' && s.data[i + 1] == '\'' &&
            lower(s.data[i + 2]) == 't')
            return true;
    }
    return false;
}

/* Whether only white space is between i and the end of the sentence before. */
static bool sentence_begins(fm_span s, size_t i)
{
    while (i > 0 && (s.data[i - 1] == ' ' || s.data[i - 1] == '\n'))
        i--;
    return i == 0 || strchr(".!?:\n", s.data[i - 1]) != NULL;
}

/* Whether a question word, or a phrase that begins with one, is before the auxiliary at i in its
 * sentence: "Which city is". */
static bool asked(fm_span s, size_t i)
{
    size_t begin = i;
    while (begin > 0 && !strchr(".!?:\n", s.data[begin - 1]))
        begin--;
    while (begin < i && s.data[begin] == ' ')
        begin++;
    return begin < i && word_of(s, begin, ask_words) != NULL;
}

static void replace(fm_buf *out, fm_span s, size_t at, size_t len, const char *with)
{
    fm_buf_append(out, s.data, at);
    fm_buf_str(out, with);
    fm_buf_append(out, s.data + at + len, s.len - at - len);
}

/* Negates an auxiliary. At the beginning of a sentence and after a question word the subject
 * follows the auxiliary, so the short form is right ("Isn't it?", "What isn't red?"); elsewhere
 * "not" follows it. */
static bool negate_auxiliary(fm_buf *out, fm_span s)
{
    for (size_t i = 0; i < s.len; i++)
        for (size_t k = 0; k < FM_ARRAY_LEN(auxiliary) && word_begins(s, i); k++) {
            size_t n = strlen(auxiliary[k].word);
            if (!stands_at(s, i, auxiliary[k].word, false, false))
                continue;
            bool more = i + n + 1 < s.len && s.data[i + n] == ' ' && word_byte(s.data[i + n + 1]);
            bool question = sentence_begins(s, i) || asked(s, i);
            if (!more && (i + n < s.len || k >= FIRST_DO))
                continue; /* "Yes, it is." */
            if (k >= FIRST_DO && (!question || (n == 2 && word_of(s, i + n + 1, objects))))
                continue; /* "Do it." */
            if (question) {
                fm_buf_append(out, s.data, i);
                put_as(out, auxiliary[k].negated, s.data[i]);
                fm_buf_append(out, s.data + i + n, s.len - i - n);
            } else {
                replace(out, s, i + n, 0, " not");
            }
            return true;
        }
    return false;
}

static bool negate_verb(fm_buf *out, fm_span s)
{
    for (size_t i = 0; i < s.len; i++) {
        const char *subject = word_begins(s, i) ? word_of(s, i, plural_subjects) : NULL;
        if (!subject)
            continue;
        size_t at = i + strlen(subject) + 1;
        if (at < s.len && s.data[at - 1] == ' ' && word_of(s, at, plain_verbs)) {
            replace(out, s, at, 0, "do not ");
            return true;
        }
    }
    return false;
}

/* Removes the first negation: "X not" -> "X", "Xn't" -> "X"; "do not like" -> "like". */
static bool affirm(fm_buf *out, fm_span s)
{
    char full[32];
    for (size_t i = 0; i < s.len; i++)
        for (size_t k = 0; k < FM_ARRAY_LEN(auxiliary) && word_begins(s, i); k++) {
            const char *word = auxiliary[k].word;
            snprintf(full, sizeof full, "%s not", word);
            bool brief = stands_at(s, i, auxiliary[k].negated, false, false);
            bool whole = stands_at(s, i, full, false, false);
            bool one = strcmp(word, "can") == 0 && stands_at(s, i, "cannot", false, false);
            size_t n = one ? strlen("cannot") : strlen(brief ? auxiliary[k].negated : full);
            if (!brief && !whole && !one)
                continue;
            fm_buf_append(out, s.data, i);
            if (strcmp(word, "do") == 0 && !sentence_begins(s, i) && !asked(s, i))
                n += i + n < s.len && s.data[i + n] == ' '; /* "I do not like" -> "I like" */
            else
                put_as(out, word, s.data[i]);
            fm_buf_append(out, s.data + i + n, s.len - i - n);
            return true;
        }
    return false;
}

fm_status fmv_perturb_negation(fm_buf *out, const fmv_perturbation *p, fm_span text, fmv_draw *d,
                               bool *applies)
{
    (void)d; /* takes the first place that it knows: nothing is drawn */
    bool is = negative(text);
    *applies = false;
    if (p->mode != FMV_MODE_REMOVE && !is)
        *applies = negate_auxiliary(out, text) || negate_verb(out, text);
    else if (p->mode != FMV_MODE_ADD && is)
        *applies = affirm(out, text);
    return FM_OK;
}
