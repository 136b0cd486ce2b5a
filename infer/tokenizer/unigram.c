/* unigram.c - Unigram: of all ways to cut a word into tokens takes the one with the largest sum of
 * scores (Viterbi over the bytes; of equal sums the one found first).
 *
 * tokenizer.json's models add in double precision, SentencePiece's own in single: near ties come
 * out differently, so each is computed as in its original. */
#include "infer/tokenizer/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cancel.h"

#define UNK_PENALTY 10.0

struct fmi_best { /* the best cut that ends at a byte */
    double score;
    uint32_t start; /* of its last token; NONE: no cut ends here; after turn_links: of the next */
    int32_t id;
};
#define NONE UINT32_MAX

struct fmi_unigram {
    fmi_vocab vocab;
    fmi_ptree tree;
    double *score; /* [vocab.size] */
    double unk_score;
    int32_t unk; /* -1: none */
    int32_t byte_id[256];
    bool byte_fallback;
    bool single; /* SentencePiece's arithmetic */
};

/* ---- reading ---- */

/* The double that `tokenizers` makes of a score. Its JSON reader reads the decimal digits as an
 * integer and divides by a power of ten, which is off by one rounding for one score in eight; that
 * decides where two cuts differ only by rounding. The digits are those of the shortest text that
 * means the score, as these files are written. */
static double as_read_there(double v)
{
    char text[40], digits[24];
    size_t n = 0;
    int precision = 14;

    if (v == 0)
        return 0;
    do
        snprintf(text, sizeof text, "%.*e", precision, fabs(v));
    while (strtod(text, NULL) != fabs(v) && ++precision < 17);
    const char *e = strchr(text, 'e');
    for (const char *p = text; p < e; p++)
        if (*p != '.')
            digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = 0;
    long exponent = strtol(e + 1, NULL, 10) - (long)(n - 1);
    double f = (double)strtoull(digits, NULL, 10);
    if (exponent < -300 || exponent > 300)
        return v;
    f = exponent < 0 ? f / pow(10, (double)-exponent) : f * pow(10, (double)exponent);
    return v < 0 ? -f : f;
}

static fm_status parse_vocab(fmi_unigram *m, const fm_json *list, double *min)
{
    size_t count = fm_json_count(list);

    if (!fm_json_is(list, FM_JSON_ARRAY) || count > FM_TOK_VOCAB_MAX)
        return fm_fail(FM_EINVAL,
                       "tokenizer.json: model.vocab must be a list of at most %zu [text, score]",
                       FM_TOK_VOCAB_MAX);
    m->score = fm_calloc(count + 1, sizeof *m->score);
    if (!m->score)
        return FM_ENOMEM;
    m->vocab.twice_ok = true; /* of equal texts the last id is used */
    for (size_t i = 0; i < count; i++) {
        const fm_json *one = fm_json_at(list, i), *score = fm_json_at(one, 1);
        fm_span text = fm_json_str(fm_json_at(one, 0));
        if (!text.data || !(fm_json_is(score, FM_JSON_REAL) || fm_json_is(score, FM_JSON_INT)))
            return fm_fail(FM_ECORRUPT, "tokenizer.json: model.vocab[%zu] is no [text, score]", i);
        m->score[i] = as_read_there(fm_json_real(score, 0));
        *min = i == 0 || m->score[i] < *min ? m->score[i] : *min;
        FM_TRY(fmi_vocab_put(&m->vocab, text, (uint32_t)i));
    }
    return FM_OK;
}

static fm_status build_tree(fmi_unigram *m, const uint8_t *skip)
{
    fmi_ptree_key *key = fm_calloc(m->vocab.size + 1, sizeof *key);
    size_t n = 0;

    if (!key)
        return FM_ENOMEM;
    for (size_t id = 0; id < m->vocab.size; id++) {
        fm_span text = fmi_vocab_text(&m->vocab, (int32_t)id);
        if (text.len > 0 && !(skip && skip[id]))
            key[n++] = (fmi_ptree_key){text, (int32_t)id};
    }
    fm_status rc = fmi_ptree_build(&m->tree, key, n);
    fm_free(key);
    return rc;
}

static fm_status parse(fmi_unigram *m, const fm_json *model)
{
    const fm_json *unk = fm_json_get(model, "unk_id");
    double min = 0;
    FM_TRY(parse_vocab(m, fm_json_get(model, "vocab"), &min));

    FM_TRY(
        fmi_need_bool(&m->byte_fallback, model, "byte_fallback", false, "tokenizer.json: model"));
    m->unk = -1;
    if (fm_json_typeof(unk) != FM_JSON_NULL) {
        int64_t id = fm_json_int(unk, -1);
        if (id < 0 || (uint64_t)id >= m->vocab.size)
            return fm_fail(FM_ECORRUPT, "tokenizer.json: model.unk_id is beyond the vocabulary");
        m->unk = (int32_t)id;
    }
    m->unk_score = min - UNK_PENALTY;
    fmi_byte_ids(m->byte_id, &m->vocab);
    return build_tree(m, NULL);
}

fm_status fmi_unigram_new(fmi_unigram **out, const fm_json *model)
{
    fmi_unigram *m = fm_calloc(1, sizeof *m);

    *out = NULL;
    if (!m)
        return FM_ENOMEM;
    fm_status rc = parse(m, model);
    if (rc < 0) {
        fmi_unigram_free(m);
        return rc;
    }
    *out = m;
    return FM_OK;
}

fm_status fmi_unigram_of_pieces(fmi_unigram **out, const fmi_pieces_model *p)
{
    fmi_unigram *m = fm_calloc(1, sizeof *m);
    uint8_t *skip = fm_calloc(p->count + 1, 1);
    fm_status rc = m && skip ? FM_OK : FM_ENOMEM;
    float min = 0;
    bool any = false;

    *out = NULL;
    if (rc == FM_OK) {
        m->single = true;
        m->vocab.twice_ok = true;
        m->unk = p->unk;
        m->byte_fallback = p->byte_fallback;
        m->score = fm_calloc(p->count + 1, sizeof *m->score);
        rc = m->score ? FM_OK : FM_ENOMEM;
    }
    for (size_t i = 0; rc == FM_OK && i < p->count; i++) {
        if (p->piece[i].type == FMI_PIECE_NORMAL) {
            min = !any || p->piece[i].score < min ? p->piece[i].score : min;
            any = true;
        }
        rc = fmi_vocab_put(&m->vocab, p->piece[i].text, (uint32_t)i);
    }
    for (size_t i = 0; rc == FM_OK && i < p->count; i++) {
        const fmi_piece_def *d = &p->piece[i];
        skip[i] = d->type != FMI_PIECE_NORMAL && d->type != FMI_PIECE_USER;
        m->score[i] = (double)d->score;
        if (d->type == FMI_PIECE_USER) /* 0.1: above any logarithm of a probability */
            m->score[i] = (double)0.1f;
    }
    if (rc == FM_OK) {
        m->unk_score = (double)(min - (float)UNK_PENALTY);
        fmi_byte_ids(m->byte_id, &m->vocab);
        rc = build_tree(m, skip);
    }
    fm_free(skip);
    if (rc < 0)
        fmi_unigram_free(m);
    else
        *out = m;
    return rc;
}

void fmi_unigram_free(fmi_unigram *m)
{
    if (!m)
        return;
    fmi_vocab_release(&m->vocab);
    fmi_ptree_release(&m->tree);
    fm_free(m->score);
    fm_free(m);
}

const fmi_vocab *fmi_unigram_vocab(const fmi_unigram *m)
{
    return &m->vocab;
}

/* ---- encoding ---- */

static void offer(const fmi_unigram *m, struct fmi_best *at, double score, uint32_t start,
                  int32_t id)
{
    if (m->single)
        score = (double)(float)score;
    if (at->start != NONE && !(score > at->score))
        return;
    at->score = score;
    at->start = start;
    at->id = id;
}

/* Offers all tokens that begin at `start`, and the unknown character. */
static fm_status extend(const fmi_unigram *m, struct fmi_best *best, fm_span word, size_t start,
                        size_t char_len)
{
    double here = best[start].score;
    bool covered = false;
    uint32_t node = 0;

    for (size_t i = start; i < word.len; i++) {
        node = fmi_ptree_step(&m->tree, node, word.data[i]);
        if (node == 0)
            break;
        int32_t id = fmi_ptree_token(&m->tree, node);
        if (id < 0)
            continue;
        offer(m, &best[i + 1], m->score[id] + here, (uint32_t)start, id);
        covered = covered || i + 1 - start == char_len;
    }
    if (covered)
        return FM_OK;
    if (m->unk < 0)
        return fm_fail(FM_EINVAL, "tokenizer.json: model has no unk_id, and the text needs it");
    offer(m, &best[start + char_len], m->unk_score + here, (uint32_t)start, m->unk);
    return FM_OK;
}

/* Writes a run of unknown characters. */
static fm_status put_unknown(const fmi_unigram *m, fm_span run, fm_ids *out)
{
    int32_t id = m->single ? -1 : fmi_vocab_find(&m->vocab, run);
    bool bytes = m->byte_fallback;

    if (id >= 0)
        return fm_ids_push(out, id);
    for (size_t i = 0; i < run.len && bytes; i++)
        bytes = m->byte_id[run.data[i]] >= 0;
    if (!bytes)
        return fm_ids_push(out, m->unk);
    for (size_t i = 0; i < run.len; i++)
        FM_TRY(fm_ids_push(out, m->byte_id[run.data[i]]));
    return FM_OK;
}

/* Turns the links of the best cut round: each then leads from a token's start to the next one. */
static void turn_links(struct fmi_best *best, size_t len)
{
    uint32_t at = (uint32_t)len, next = NONE;
    int32_t id = -1;

    for (;;) {
        struct fmi_best b = best[at];
        best[at].start = next;
        best[at].id = id;
        if (at == 0)
            break;
        next = at;
        id = b.id;
        at = b.start;
    }
}

fm_status fmi_unigram_encode(const fmi_unigram *m, fmi_tok_scratch *s, fm_span word, fm_ids *out)
{
    struct fmi_best *best;

    if (word.len >= s->best_cap) {
        FM_TRY(fm_grow(&s->best, &s->best_cap, word.len + 1, sizeof *s->best));
    }
    best = s->best;
    for (size_t i = 0; i <= word.len; i++)
        best[i] = (struct fmi_best){0, NONE, -1};
    for (size_t i = 0; i < word.len;) {
        uint32_t cp;
        size_t n = fm_utf8_next(word.data + i, &cp);
        FM_TRY(fm_go_on());
        FM_TRY(extend(m, best, word, i, n));
        i += n;
    }

    turn_links(best, word.len);
    for (size_t i = 0; i < word.len;) {
        int32_t id = best[i].id;
        size_t end = best[i].start;
        if (id == m->unk && m->unk >= 0) { /* neighbouring unknowns are one */
            while (end < word.len && best[end].id == m->unk)
                end = best[end].start;
            FM_TRY(put_unknown(m, fm_span_of(word.data + i, end - i), out));
        } else {
            FM_TRY(fm_ids_push(out, id));
        }
        i = end;
    }
    return FM_OK;
}
