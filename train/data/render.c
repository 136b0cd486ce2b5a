/* render.c - turns one training record into an example: its kind, its pieces, its preview. */
#include "train/data/render.h"

#include "store/base/mem.h"
#include "store/base/text/utf8.h"

#include <string.h>

static fm_status take_preview(fm_example *out, const fmt_pieces *p)
{
    fm_buf text;
    size_t prompt = p->prompt.len;
    size_t answer = p->answer.len;

    /* A long prompt's end says less than the answer's beginning: each gets half the bytes. */
    if (prompt + answer + 4 > FMT_PREVIEW_BYTES) {
        size_t half = FMT_PREVIEW_BYTES / 2 - 2;
        size_t spare = answer < half ? half - answer : 0;
        prompt = FM_MIN(prompt, half + spare);
        answer = FM_MIN(answer, FMT_PREVIEW_BYTES - 4 - prompt);
    }
    fm_buf_init(&text, 0);
    if (prompt > 0) {
        fm_buf_append(&text, p->prompt.data, fm_utf8_clip(p->prompt.data, p->prompt.len, prompt));
        fm_buf_str(&text, " -> ");
    }
    if (answer > 0)
        fm_buf_append(&text, p->answer.data, fm_utf8_clip(p->answer.data, p->answer.len, answer));
    fm_status rc = fm_buf_ok(&text);
    if (rc == FM_OK) {
        out->preview = fm_strndup(fm_buf_cstr(&text), text.len);
        rc = out->preview ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&text);
    return rc;
}

static fm_status take_example(fm_example *out, fmt_render_info *info, fmt_pieces *p)
{
    FM_TRY(fm_buf_ok(&p->prompt));

    FM_TRY(fm_buf_ok(&p->answer));
    fmt_end_part(p);
    size_t n = p->ids.count;
    out->len = (uint32_t)n;
    out->ids = fm_calloc(n, sizeof(int32_t));
    out->labels = fm_calloc(n, sizeof(int32_t));
    if (!out->ids || !out->labels)
        return FM_ENOMEM;
    if (n > 0) {
        memcpy(out->ids, p->ids.id, n * sizeof(int32_t));
        memcpy(out->labels, p->labels.id, n * sizeof(int32_t));
    }
    out->parts = p->parts;
    for (uint32_t i = 0; i < p->parts; i++) {
        size_t end = i + 1 < p->parts ? p->part_at[i + 1] : n;
        out->part_len[i] = (uint32_t)(end - p->part_at[i]);
        out->lost += (uint32_t)FM_MIN(p->part_lost[i], (size_t)UINT32_MAX / FM_EXAMPLE_PARTS);
    }
    out->klass = -1;
    out->index = (uint32_t)p->number;
    info->kind = p->kind;
    info->prompt_len = p->answered ? (uint32_t)FM_MIN(p->prompt_len, (size_t)out->part_len[0]) : 0;
    info->has_answer = p->answered && p->kind != FMT_KIND_TEXT && p->kind != FMT_KIND_BLOCK;
    return take_preview(out, p);
}

static void pieces_init(fmt_pieces *p, const fmt_renderer *r, size_t number, fmt_kind kind)
{
    memset(p, 0, sizeof(*p));
    p->r = r;
    p->number = number;
    p->kind = kind;
    fm_buf_init(&p->prompt, 0);
    fm_buf_init(&p->answer, 0);
}

static fm_status pieces_finish(fm_example *out, fmt_render_info *info, fmt_pieces *p, fm_status rc)
{
    FM_THEN(rc, take_example(out, info, p));
    if (rc < 0)
        fmt_example_release(out);
    fm_ids_release(&p->ids);
    fm_ids_release(&p->labels);
    fm_buf_release(&p->prompt);
    fm_buf_release(&p->answer);
    return rc;
}

fm_status fmt_render_record(fm_example *out, fmt_render_info *info, const fmt_renderer *r,
                            const fm_json *record, size_t number)
{
    fmt_pieces p;

    memset(out, 0, sizeof(*out));
    memset(info, 0, sizeof(*info));
    pieces_init(&p, r, number, fmt_kind_of(record, r->objective));
    fmt_begin_part(&p);
    fm_status rc = fmt_add_record(&p, record);
    return pieces_finish(out, info, &p, rc);
}

fm_status fmt_render_block(fm_example *out, fmt_render_info *info, const fmt_renderer *r,
                           const int32_t *ids, size_t n, size_t number)
{
    fmt_pieces p;
    fm_buf text;

    memset(out, 0, sizeof(*out));
    memset(info, 0, sizeof(*info));
    pieces_init(&p, r, number, FMT_KIND_BLOCK);
    fm_buf_init(&text, 0);
    fmt_begin_part(&p);
    fm_status rc = FM_OK;
    for (size_t i = 0; i < n && rc == FM_OK; i++)
        rc = fmt_add_id(&p, ids[i], true);
    FM_THEN(rc, fm_tokenizer_decode(r->tok, ids, n, false, &text));
    fmt_note(&p.answer, fm_buf_span(&text));
    FM_THEN(rc, fm_sha256(&out->digest, text.data, text.len));
    fm_buf_release(&text);
    return pieces_finish(out, info, &p, rc);
}

void fmt_example_release(fm_example *e)
{
    fm_free(e->ids);
    fm_free(e->labels);
    fm_free(e->preview);
    memset(e, 0, sizeof(*e));
}
