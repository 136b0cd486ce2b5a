/* sentencepiece_normalize.c - how a SentencePiece model normalises a text. */
#include "infer/tokenizer/internal.h"

#include <string.h>

#include "store/base/cancel.h"

/* Rewrites the beginning of text to *to; returns the bytes that this replaces. */
static size_t rewrite(const fmi_norm *n, fm_span text, fm_span *to)
{
    int32_t symbol;
    uint32_t cp;
    size_t len = fmi_ptree_longest(&n->symbols, text, &symbol);

    if (len > 0) {
        *to = fm_span_of(text.data, len);
        return len;
    }
    if (n->map && (len = fmi_charsmap_longest(n->map, text, to)) > 0)
        return len;
    len = fm_utf8_next(text.data, &cp);
    *to = fm_span_of(text.data, len);
    return len;
}

static void put_space(const fmi_norm *n, fm_buf *out)
{
    fm_buf_str(out, n->escape ? FMI_SPM_SPACE : " ");
}

static void drop_trailing(const fmi_norm *n, fm_buf *out, size_t begin)
{
    fm_span space = fm_span_str(n->escape ? FMI_SPM_SPACE : " ");

    while (out->len - begin >= space.len &&
           memcmp(out->data + out->len - space.len, space.data, space.len) == 0)
        out->len -= space.len;
}

fm_status fmi_spm_normalize(const fmi_norm *n, bool first, fm_span in, fm_buf *out)
{
    bool prefix = n->prefix && (first || n->every_segment), after_space = n->left;
    size_t begin = out->len, turns = 0, next = 0;
    fm_span to;

    while (n->left && in.len > 0) { /* spaces at the beginning */
        size_t len = rewrite(n, in, &to);
        if (!fm_span_eq(to, fm_span_str(" ")))
            break;
        in.data += len;
        in.len -= len;
    }
    if (in.len == 0)
        return FM_OK;
    if (prefix)
        put_space(n, out);
    while (in.len > 0 && out->failed == FM_OK) {
        FM_TRY(fm_go_on_at(turns++, &next));
        size_t len = rewrite(n, in, &to);
        in.data += len;
        in.len -= len;
        for (; after_space && to.len > 0 && *to.data == ' '; to.len--)
            to.data++;
        for (size_t i = 0; i < to.len; i++) {
            if (to.data[i] == ' ')
                put_space(n, out);
            else
                fm_buf_u8(out, to.data[i]);
        }
        if (to.len > 0)
            after_space = n->left && to.data[to.len - 1] == ' ';
    }
    if (fm_buf_ok(out) == FM_OK && n->right)
        drop_trailing(n, out, begin);
    if (n->suffix)
        put_space(n, out);
    return fm_buf_ok(out);
}
