/* sentencepiece_bpe.c - SentencePiece's byte-pair encoding: of all neighbours that together are a
 * piece, the pair whose piece has the largest score is joined, leftmost first among equals.
 * User-defined symbols are one symbol from the start and are never joined.
 *
 * A heap holds the candidates; stale ones are known by their length. */
#include "infer/tokenizer/internal.h"

#include <string.h>

#include "store/base/cancel.h"

#define NONE UINT32_MAX

struct fmi_spm_symbol {
    size_t off;
    uint32_t len; /* 0: joined to its left neighbour */
    uint32_t prev, next;
    bool frozen;
};

struct fmi_spm_pair {
    float score;
    uint32_t left, right, len;
};

struct fmi_spm_bpe {
    fmi_vocab all;      /* every piece */
    fmi_vocab normal;   /* pieces that a text can become */
    fmi_vocab reserved; /* the other pieces; looked up first */
    fmi_ptree symbols;  /* user-defined */
    float *score;       /* [count] */
    size_t len_max;     /* bytes of the longest normal piece */
    int32_t unk, byte_id[256];
    bool byte_fallback;
};

static fm_status take_piece(fmi_spm_bpe *m, const fmi_piece_def *d, size_t i, fmi_ptree_key *key,
                            size_t *users)
{
    bool normal = d->type == FMI_PIECE_NORMAL || d->type == FMI_PIECE_USER;
    fm_status rc = fmi_vocab_put(&m->all, d->text, (uint32_t)i);

    if (d->type == FMI_PIECE_UNUSED)
        return fm_fail(FM_EUNSUPPORTED,
                       "tokenizer.model: pieces[%zu]: type UNUSED is not implemented for BPE", i);
    FM_THEN(rc, fmi_vocab_put(normal ? &m->normal : &m->reserved, d->text, (uint32_t)i));
    m->score[i] = d->score;
    if (normal)
        m->len_max = FM_MAX(m->len_max, d->text.len);
    if (d->type == FMI_PIECE_USER)
        key[(*users)++] = (fmi_ptree_key){d->text, (int32_t)i};
    return rc;
}

fm_status fmi_spm_bpe_new(fmi_spm_bpe **out, const fmi_pieces_model *p)
{
    fmi_spm_bpe *m = fm_calloc(1, sizeof *m);
    fmi_ptree_key *key = fm_calloc(p->count + 1, sizeof *key);
    size_t users = 0;
    fm_status rc = m && key ? FM_OK : FM_ENOMEM;

    *out = NULL;
    if (rc == FM_OK) {
        m->score = fm_calloc(p->count + 1, sizeof *m->score);
        m->all.twice_ok = true;
        m->unk = p->unk;
        m->byte_fallback = p->byte_fallback;
        rc = m->score ? FM_OK : FM_ENOMEM;
    }
    for (size_t i = 0; rc == FM_OK && i < p->count; i++)
        rc = take_piece(m, &p->piece[i], i, key, &users);
    FM_THEN(rc, fmi_ptree_build(&m->symbols, key, users));
    if (rc == FM_OK)
        fmi_byte_ids(m->byte_id, &m->all);
    for (size_t i = 0; rc == FM_OK && m->byte_fallback && i < 256; i++)
        if (m->byte_id[i] < 0)
            rc = fm_fail(FM_ECORRUPT, "tokenizer.model: byte_fallback without the piece <0x%02X>",
                         (unsigned)i);
    fm_free(key);
    if (rc < 0)
        fmi_spm_bpe_free(m);
    else
        *out = m;
    return rc;
}

void fmi_spm_bpe_free(fmi_spm_bpe *m)
{
    if (!m)
        return;
    fmi_vocab_release(&m->all);
    fmi_vocab_release(&m->normal);
    fmi_vocab_release(&m->reserved);
    fmi_ptree_release(&m->symbols);
    fm_free(m->score);
    fm_free(m);
}

const fmi_vocab *fmi_spm_bpe_vocab(const fmi_spm_bpe *m)
{
    return &m->all;
}

static bool before(const struct fmi_spm_pair *a, const struct fmi_spm_pair *b)
{
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static void sift_down(struct fmi_spm_pair *h, size_t n)
{
    struct fmi_spm_pair item = h[0];
    size_t i = 0;

    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n)
            break;
        if (c + 1 < n && before(&h[c + 1], &h[c]))
            c++;
        if (!before(&h[c], &item))
            break;
        h[i] = h[c];
        i = c;
    }
    h[i] = item;
}

static void sift_up(struct fmi_spm_pair *h, size_t i)
{
    struct fmi_spm_pair item = h[i];

    while (i > 0 && before(&item, &h[(i - 1) / 2])) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = item;
}

static void offer(const fmi_spm_bpe *m, fmi_tok_scratch *s, size_t *n, fm_span text, uint32_t left,
                  uint32_t right)
{
    const struct fmi_spm_symbol *a = &s->spm_sym[left], *b = &s->spm_sym[right];
    size_t len = (size_t)a->len + b->len;

    if (a->frozen || b->frozen || len > m->len_max)
        return;
    int32_t id = fmi_vocab_find(&m->normal, fm_span_of(text.data + a->off, len));
    if (id < 0)
        return;
    s->spm_pair[*n] = (struct fmi_spm_pair){m->score[id], left, right, (uint32_t)len};
    sift_up(s->spm_pair, (*n)++);
}

static fm_status cut(const fmi_spm_bpe *m, fmi_tok_scratch *s, fm_span text, size_t *count)
{
    size_t n = 0;
    fm_status rc = fm_grow(&s->spm_sym, &s->spm_sym_cap, text.len, sizeof *s->spm_sym);

    for (size_t i = 0; i < text.len && rc == FM_OK; n++) {
        int32_t user;
        uint32_t cp;
        size_t len = fmi_ptree_longest(&m->symbols, fm_span_of(text.data + i, text.len - i), &user);
        bool frozen = len > 0;
        rc = fm_go_on();
        if (!frozen)
            len = fm_utf8_next(text.data + i, &cp);
        s->spm_sym[n] =
            (struct fmi_spm_symbol){i, (uint32_t)len, (uint32_t)n - 1, (uint32_t)n + 1, frozen};
        i += len;
    }
    if (n > 0) {
        s->spm_sym[0].prev = NONE;
        s->spm_sym[n - 1].next = NONE;
    }
    *count = n;
    FM_THEN(rc, fm_grow(&s->spm_pair, &s->spm_pair_cap, 3 * n, sizeof *s->spm_pair));
    return rc;
}

static fm_status join_all(const fmi_spm_bpe *m, fmi_tok_scratch *s, fm_span text, size_t count)
{
    struct fmi_spm_symbol *sym = s->spm_sym;
    size_t n = 0, turns = 0, next = 0;

    for (uint32_t i = 0; i + 1 < count; i++) {
        FM_TRY(fm_go_on_at(turns++, &next));
        offer(m, s, &n, text, i, i + 1);
    }
    while (n > 0) {
        FM_TRY(fm_go_on_at(turns++, &next));
        struct fmi_spm_pair top = s->spm_pair[0];
        s->spm_pair[0] = s->spm_pair[--n];
        if (n > 0)
            sift_down(s->spm_pair, n);
        struct fmi_spm_symbol *a = &sym[top.left], *b = &sym[top.right];
        if (a->len == 0 || b->len == 0 || a->len + b->len != top.len)
            continue; /* stale */
        a->len += b->len;
        b->len = 0;
        a->next = b->next;
        if (a->next != NONE)
            sym[a->next].prev = top.left;
        if (a->prev != NONE)
            offer(m, s, &n, text, a->prev, top.left);
        if (a->next != NONE)
            offer(m, s, &n, text, top.left, a->next);
    }
    return FM_OK;
}

fm_status fmi_spm_bpe_encode(const fmi_spm_bpe *m, fmi_tok_scratch *s, fm_span text, fm_ids *out)
{
    size_t count;
    bool unknown = false;
    fm_status rc = cut(m, s, text, &count);

    if (rc < 0 || count == 0)
        return rc;
    rc = join_all(m, s, text, count);
    for (uint32_t i = 0; i != NONE && rc == FM_OK; i = s->spm_sym[i].next) {
        fm_span piece = fm_span_of(text.data + s->spm_sym[i].off, s->spm_sym[i].len);
        int32_t id = fmi_vocab_find(&m->reserved, piece);
        if (id < 0)
            id = fmi_vocab_find(&m->normal, piece);
        if (id >= 0 && id != m->unk) {
            rc = fm_ids_push(out, id);
            unknown = false;
            continue;
        }
        for (size_t k = 0; m->byte_fallback && k < piece.len && rc == FM_OK; k++)
            rc = fm_ids_push(out, m->byte_id[piece.data[k]]);
        if (!m->byte_fallback && !unknown) /* neighbouring unknowns are one */
            rc = fm_ids_push(out, m->unk);
        unknown = true;
    }
    return rc;
}
