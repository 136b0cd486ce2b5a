/* batch.c - a micro-batch as flat rows, without padding.
 *
 * Attention is causal, so tokens after a sequence's last target change neither the loss nor any
 * gradient. They are left out, and so is the last token, which predicts nothing. */
#include "train/net/internal.h"

#include "infer/model/class_head.h"
#include "store/base/mem.h"

#include <string.h>

/* Token i predicts labels[i + 1]. */
static bool has_target(const fmt_seq_in *s, uint32_t token)
{
    return token + 1 < s->len && s->labels[token + 1] >= 0;
}

/* The token of a pick that takes one token of a sequence. */
static uint32_t picked_token(const fmt_seq_in *s, const fmt_batch_how *how)
{
    if (how->pick == FMT_PICK_LAST)
        return s->len - 1;
    if (how->pick == FMT_PICK_CLASS)
        return (uint32_t)fmi_class_token(s->ids, s->len, how->whole, how->pad);
    return 0;
}

static uint32_t tokens_used(const fmt_seq_in *s, const fmt_batch_how *how)
{
    if (how->whole || how->pick == FMT_PICK_ALL || s->len == 0)
        return s->len;
    if (how->pick != FMT_PICK_TARGETS)
        return picked_token(s, how) + 1;
    for (uint32_t i = s->len; i > 1; i--)
        if (s->labels[i - 1] >= 0)
            return i - 1;
    return 0;
}

uint32_t fmt_seq_rows(const fmt_seq_in *s, const fmt_batch_how *how)
{
    uint32_t n = tokens_used(s, how);
    return n > 0 ? n + how->virt : 0;
}

uint32_t fmt_seq_labels(const fmt_seq_in *s)
{
    uint32_t n = 0;

    for (uint32_t i = 1; i < s->len; i++)
        n += s->labels[i] >= 0;
    return n;
}

uint32_t fmt_seq_picked(const fmt_seq_in *s, const fmt_batch_how *how)
{
    if (how->pick == FMT_PICK_TARGETS)
        return fmt_seq_labels(s);
    return how->pick == FMT_PICK_ALL ? s->len : s->len > 0;
}

static fm_status check_ids(const fmt_seq_in *s, const fmt_batch_how *how)
{
    uint32_t vocab = how->vocab;

    for (uint32_t i = 0; i < s->len; i++) {
        if (s->ids[i] < 0 || (uint32_t)s->ids[i] >= vocab)
            return fm_fail(FM_EINVAL, "token id %d at %u is not in the vocabulary of %u", s->ids[i],
                           i, vocab);
        if (how->pick == FMT_PICK_TARGETS && s->labels[i] != FMT_NO_LABEL &&
            (s->labels[i] < 0 || (uint32_t)s->labels[i] >= vocab))
            return fm_fail(FM_EINVAL, "label %d at %u is neither -100 nor in the vocabulary of %u",
                           s->labels[i], i, vocab);
    }
    return FM_OK;
}

/* Makes space for the rows; the arrays grow to the largest batch so far and stay. */
static fm_status batch_room(fmt_batch *b, const fmt_seq_in *s, size_t n, const fmt_batch_how *how)
{
    fmt_batch_clear(b);
    for (size_t i = 0; i < n; i++) {
        uint32_t rows = fmt_seq_rows(&s[i], how);
        b->rows += rows;
        b->labels += fmt_seq_picked(&s[i], how);
        b->seqs += rows > 0;
        b->tokens += s[i].len;
        b->longest = FM_MAX(b->longest, rows > 0 ? rows + how->offset : 0);
    }
    FM_TRY(fm_grow(&b->ids, &b->cap[0], b->rows, sizeof(int32_t)));
    FM_TRY(fm_grow(&b->pos, &b->cap[1], b->rows, sizeof(int32_t)));
    FM_TRY(fm_grow(&b->label_row, &b->cap[2], b->labels, sizeof(int32_t)));
    FM_TRY(fm_grow(&b->label, &b->cap[3], b->labels, sizeof(int32_t)));
    FM_TRY(fm_grow(&b->len, &b->cap[4], b->seqs, sizeof(uint32_t)));

    return fm_grow(&b->which, &b->cap[5], b->seqs, sizeof(uint32_t));
}

/* Label of a token's row; *picked: the row is picked. */
static int32_t label_of(const fmt_seq_in *s, const fmt_batch_how *how, uint32_t token, bool *picked)
{
    if (how->pick == FMT_PICK_TARGETS) {
        *picked = has_target(s, token);
        return *picked ? s->labels[token + 1] : FMT_NO_LABEL;
    }
    *picked = how->pick == FMT_PICK_ALL || token == picked_token(s, how);
    return FMT_NO_LABEL;
}

static void put_rows(fmt_batch *b, const fmt_seq_in *s, const fmt_batch_how *how, uint32_t row,
                     uint32_t *label)
{
    uint32_t tokens = tokens_used(s, how);

    for (uint32_t v = 0; v < how->virt; v++, row++) {
        b->ids[row] = 0;
        b->pos[row] = (int32_t)(how->offset + v);
    }
    for (uint32_t t = 0; t < tokens; t++, row++) {
        b->ids[row] = s->ids[t];
        b->pos[row] = (int32_t)(how->offset + how->virt + t);
        bool picked = false;
        int32_t is = label_of(s, how, t, &picked);
        if (!picked)
            continue;
        b->label_row[*label] = (int32_t)row;
        b->label[(*label)++] = is;
    }
}

fm_status fmt_batch_build(fmt_batch *out, const fmt_seq_in *s, size_t n, const fmt_batch_how *how)
{
    uint32_t row = 0;
    uint32_t label = 0;
    uint32_t seq = 0;

    for (size_t i = 0; i < n; i++) {
        FM_TRY(check_ids(&s[i], how));
    }
    FM_TRY(batch_room(out, s, n, how));
    for (size_t i = 0; i < n; i++) {
        uint32_t rows = fmt_seq_rows(&s[i], how);
        if (rows == 0)
            continue;
        out->len[seq] = rows;
        out->which[seq++] = (uint32_t)i;
        put_rows(out, &s[i], how, row, &label);
        row += rows;
    }
    return FM_OK;
}

void fmt_batch_clear(fmt_batch *b)
{
    b->rows = b->labels = b->seqs = b->longest = 0;
    b->tokens = 0;
}

void fmt_batch_release(fmt_batch *b)
{
    int32_t *const part[] = {b->ids, b->pos, b->label_row, b->label};

    for (size_t i = 0; i < FM_ARRAY_LEN(part); i++)
        fm_free(part[i]);
    fm_free(b->len);
    fm_free(b->which);
    memset(b, 0, sizeof(*b));
}
