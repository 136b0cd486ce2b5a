/* contamination.c - which examples hold a text that is meant to test the model.
 *
 * Both sides are reduced to words: lower case, letters and digits, without the separators. A text
 * of 13 words or more is found where any 13 consecutive words of it occur (the measure of Brown et
 * al. 2020, appendix C), a shorter one where the whole text occurs. A text of fewer than four words
 * is skipped: "yes" is everywhere. Examples are searched as they are trained on, after the cut. */
#include "train/data/report.h"

#include "store/base/mem.h"
#include "store/base/text/utf8.h"

#include <stdlib.h>
#include <string.h>

#define MOST 13u
#define LEAST 4u
#define BASE UINT64_C(0x9E3779B97F4A7C15)
#define SIEVE_BITS 16

typedef struct gram { /* `words` consecutive words of a probe */
    uint32_t words;
    uint32_t probe;
    uint64_t hash;
} gram;

typedef struct words {
    uint64_t *hash;
    size_t count, cap;
} words;

typedef struct search {
    gram *gram;
    size_t grams, cap;
    /* bit map by the high bits of a hash: clear means that no gram has it */
    uint64_t sieve[MOST + 1][1u << (SIEVE_BITS - 6)];
    bool used[MOST + 1];
    words w;
    fm_buf text;
} search;

fm_status fmt_hit_add(fmt_hits *list, size_t example, size_t other)
{
    FM_TRY(fm_grow(&list->item, &list->cap, list->count + 1, sizeof(*list->item)));

    list->item[list->count++] = (fmt_hit){(uint32_t)example, (uint32_t)other};
    return FM_OK;
}

/* Bytes of a word character at s: ASCII letters and digits, and characters beyond ASCII except
 * general punctuation (U+2000 .. U+206F) and the no-break space. 0: a separator. */
static size_t word_char(const uint8_t *s, size_t left)
{
    if (s[0] < 0x80)
        return (s[0] >= '0' && s[0] <= '9') || ((s[0] | 0x20) >= 'a' && (s[0] | 0x20) <= 'z');
    if (left >= 3 && s[0] == 0xE2 && (s[1] == 0x80 || s[1] == 0x81))
        return 0;
    if (left >= 2 && s[0] == 0xC2 && s[1] == 0xA0)
        return 0;
    size_t n = fm_utf8_len(s, left);
    return n > 0 ? n : 1;
}

static size_t separator(const uint8_t *s, size_t left)
{
    size_t n = fm_utf8_len(s, left);
    return n > 0 ? n : 1;
}

static fm_status split(words *w, fm_span text)
{
    w->count = 0;
    for (size_t i = 0; i < text.len;) {
        uint64_t h = UINT64_C(14695981039346656037); /* FNV-1a, then mixed */
        size_t n = word_char(text.data + i, text.len - i);
        if (n == 0) {
            i += separator(text.data + i, text.len - i);
            continue;
        }
        for (; n > 0; n = i < text.len ? word_char(text.data + i, text.len - i) : 0)
            for (; n > 0; n--, i++) {
                uint8_t c = text.data[i];
                c = c >= 'A' && c <= 'Z' ? (uint8_t)(c | 0x20) : c;
                h = (h ^ c) * UINT64_C(1099511628211);
            }
        h = (h ^ h >> 32) * UINT64_C(0xD6E8FEB86659FD93);
        FM_TRY(fm_grow(&w->hash, &w->cap, w->count + 1, sizeof(*w->hash)));
        w->hash[w->count++] = h ^ h >> 32;
    }
    return FM_OK;
}

static int by_gram(const void *a, const void *b)
{
    const gram *x = a;
    const gram *y = b;

    if (x->words != y->words)
        return x->words < y->words ? -1 : 1;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return (x->probe > y->probe) - (x->probe < y->probe);
}

static uint64_t power(uint32_t n)
{
    uint64_t p = 1;

    while (n-- > 0)
        p *= BASE;
    return p;
}

/* The hash of the next window, from that of the last one: word `out` leaves, word `in` enters. */
static uint64_t roll(uint64_t hash, uint64_t out, uint64_t in, uint64_t top)
{
    return (hash - out * top) * BASE + in;
}

static fm_status add_gram(search *s, uint32_t n, uint64_t hash, size_t probe)
{
    FM_TRY(fm_grow(&s->gram, &s->cap, s->grams + 1, sizeof(*s->gram)));
    uint64_t low = hash >> (64 - SIEVE_BITS);
    s->gram[s->grams++] = (gram){n, (uint32_t)probe, hash};
    s->sieve[n][low >> 6] |= (uint64_t)1 << (low & 63);
    s->used[n] = true;
    return FM_OK;
}

static fm_status add_probe(search *s, size_t number)
{
    uint32_t n = (uint32_t)FM_MIN(s->w.count, (size_t)MOST);
    uint64_t top = power(n - 1);
    uint64_t hash = 0;

    for (size_t i = 0; i < s->w.count; i++) {
        hash = roll(hash, i >= n ? s->w.hash[i - n] : 0, s->w.hash[i], top);
        if (i + 1 >= n)
            FM_TRY(add_gram(s, n, hash, number));
    }
    return FM_OK;
}

/* The first probe that has this gram, or -1. */
static int64_t look_up(const search *s, uint32_t n, uint64_t hash)
{
    uint64_t low = hash >> (64 - SIEVE_BITS);
    size_t begin = 0;
    size_t end = s->grams;
    gram wanted = {n, 0, hash};

    if (!(s->sieve[n][low >> 6] >> (low & 63) & 1))
        return -1;
    while (begin < end) {
        size_t middle = begin + (end - begin) / 2;
        if (by_gram(&s->gram[middle], &wanted) < 0)
            begin = middle + 1;
        else
            end = middle;
    }
    bool same = begin < s->grams && s->gram[begin].words == n && s->gram[begin].hash == hash;
    return same ? (int64_t)s->gram[begin].probe : -1;
}

static int64_t find_in_words(const search *s)
{
    for (uint32_t n = LEAST; n <= MOST; n++) {
        uint64_t top = power(n - 1);
        uint64_t hash = 0;
        for (size_t i = 0; s->used[n] && i < s->w.count; i++) {
            hash = roll(hash, i >= n ? s->w.hash[i - n] : 0, s->w.hash[i], top);
            int64_t probe = i + 1 >= n ? look_up(s, n, hash) : -1;
            if (probe >= 0)
                return probe;
        }
    }
    return -1;
}

static fm_status look_at(search *s, fmt_report *r, size_t i)
{
    const fm_example *e = fm_dataset_at(r->d, i);
    const int32_t *ids = e->ids;
    int64_t probe = -1;

    for (uint32_t k = 0; k < e->parts && probe < 0; ids += e->part_len[k++]) {
        fm_buf_clear(&s->text);
        FM_TRY(fm_tokenizer_decode(r->tok, ids, e->part_len[k], true, &s->text));
        FM_TRY(split(&s->w, fm_buf_span(&s->text)));
        probe = find_in_words(s);
    }
    return probe < 0 ? FM_OK : fmt_hit_add(&r->contaminated, i, (size_t)probe);
}

fm_status fmt_find_probes(fmt_report *r)
{
    search *s = fm_calloc(1, sizeof(*s));
    fm_status rc = s ? FM_OK : FM_ENOMEM;

    if (!s)
        return rc;
    fm_buf_init(&s->text, 0);
    for (size_t i = 0; i < r->opts->probes && rc == FM_OK; i++) {
        rc = split(&s->w, r->opts->probe[i].text);
        if (rc == FM_OK && s->w.count < LEAST)
            r->short_probes++;
        else if (rc == FM_OK)
            rc = add_probe(s, i);
    }
    if (s->grams > 0)
        qsort(s->gram, s->grams, sizeof(*s->gram), by_gram);
    for (size_t i = 0; i < fm_dataset_count(r->d) && s->grams > 0 && rc == FM_OK; i++)
        rc = look_at(s, r, i);
    fm_buf_release(&s->text);
    fm_free(s->gram);
    fm_free(s->w.hash);
    fm_free(s);
    return rc;
}
