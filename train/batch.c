/* batch.c - a micro-batch as flat rows, without padding.
 *
 * Attention is causal, so tokens after a sequence's last target change neither the loss nor any
 * gradient; they are left out, as is the last token, which has nothing to predict. */
#include "train/internal.h"

#include "store/base/mem.h"

#include <string.h>

/* Token i predicts labels[i + 1]. */
static bool has_target(const fmi_seq_in *s, uint32_t token)
{
    return token + 1 < s->len && s->labels[token + 1] >= 0;
}

static uint32_t tokens_used(const fmi_seq_in *s, const fmi_batch_how *how)
{
    if (how->whole)
        return s->len;
    for (uint32_t i = s->len; i > 1; i--)
        if (s->labels[i - 1] >= 0)
            return i - 1;
    return 0;
}

uint32_t fmi_seq_rows(const fmi_seq_in *s, const fmi_batch_how *how)
{
    uint32_t n = tokens_used(s, how);
    return n > 0 ? n + how->virt : 0;
}

uint32_t fmi_seq_labels(const fmi_seq_in *s)
{
    uint32_t n = 0;

    for (uint32_t i = 1; i < s->len; i++)
        n += s->labels[i] >= 0;
    return n;
}

static fm_status check_ids(const fmi_seq_in *s, uint32_t vocab)
{
    for (uint32_t i = 0; i < s->len; i++) {
        if (s->ids[i] < 0 || (uint32_t)s->ids[i] >= vocab)
            return fm_fail(FM_EINVAL, "token id %d at %u is not in the vocabulary of %u", s->ids[i],
                           i, vocab);
        if (s->labels[i] != FMI_NO_LABEL && (s->labels[i] < 0 || (uint32_t)s->labels[i] >= vocab))
            return fm_fail(FM_EINVAL, "label %d at %u is neither -100 nor in the vocabulary of %u",
                           s->labels[i], i, vocab);
    }
    return FM_OK;
}

static fm_status batch_alloc(fmi_batch *b, const fmi_seq_in *s, size_t n, const fmi_batch_how *how)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t rows = fmi_seq_rows(&s[i], how);
        b->rows += rows;
        b->labels += fmi_seq_labels(&s[i]);
        b->seqs += rows > 0;
        b->tokens += s[i].len;
        b->longest = FM_MAX(b->longest, rows > 0 ? rows + how->offset : 0);
    }
    b->ids = fm_calloc(b->rows, sizeof(int32_t));
    b->pos = fm_calloc(b->rows, sizeof(int32_t));
    b->label_row = fm_calloc(b->labels, sizeof(int32_t));
    b->label = fm_calloc(b->labels, sizeof(int32_t));
    b->len = fm_calloc(b->seqs, sizeof(uint32_t));
    b->which = fm_calloc(b->seqs, sizeof(uint32_t));
    bool all = b->ids && b->pos && b->label_row && b->label && b->len && b->which;
    return all ? FM_OK : FM_ENOMEM;
}

static void put_rows(fmi_batch *b, const fmi_seq_in *s, const fmi_batch_how *how, uint32_t row,
                     uint32_t *label)
{
    uint32_t tokens = tokens_used(s, how);

    for (uint32_t v = 0; v < how->virt; v++, row++)
        b->pos[row] = (int32_t)(how->offset + v);
    for (uint32_t t = 0; t < tokens; t++, row++) {
        b->ids[row] = s->ids[t];
        b->pos[row] = (int32_t)(how->offset + how->virt + t);
        if (!has_target(s, t))
            continue;
        b->label_row[*label] = (int32_t)row;
        b->label[(*label)++] = s->labels[t + 1];
    }
}

fm_status fmi_batch_build(fmi_batch *out, const fmi_seq_in *s, size_t n, const fmi_batch_how *how)
{
    uint32_t row = 0;
    uint32_t label = 0;
    uint32_t seq = 0;

    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < n; i++) {
        fm_status rc = check_ids(&s[i], how->vocab);
        if (rc < 0)
            return rc;
    }
    fm_status rc = batch_alloc(out, s, n, how);
    if (rc < 0) {
        fmi_batch_release(out);
        return rc;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t rows = fmi_seq_rows(&s[i], how);
        if (rows == 0)
            continue;
        out->len[seq] = rows;
        out->which[seq++] = (uint32_t)i;
        put_rows(out, &s[i], how, row, &label);
        row += rows;
    }
    return FM_OK;
}

void fmi_batch_release(fmi_batch *b)
{
    int32_t *const part[] = {b->ids, b->pos, b->label_row, b->label};

    for (size_t i = 0; i < FM_ARRAY_LEN(part); i++)
        fm_free(part[i]);
    fm_free(b->len);
    fm_free(b->which);
    memset(b, 0, sizeof(*b));
}
