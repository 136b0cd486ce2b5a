/* hooks.c - rows of hidden states read and replaced during a pass; over ranks, too.
 *
 * At every site the rows are whole on each rank of the stage that computes it, since partial sums
 * were added before. So all ranks of the stage replace alike; rank 0 reads the rows of its own
 * stage, and the first rank of another stage sends the rows that it read after the passes. */
#include "infer/engine/pipeline.h"

#include <string.h>

#include "infer/device/room.h"
#include "store/base/mem.h"

fm_status fm_seq_hooks(fm_seq *s, const fm_hook *hook, size_t n)
{
    const fm_arch *a = &s->model->arch;
    if (a->sw.encoder && n)
        return fm_fail(FM_EINVAL, "hooks: %s is an encoder, hooks are for decoders", a->family);
    if (!s->uncached && s->len && n)
        return fm_fail(FM_EINVAL,
                       "hooks: the sequence has %u tokens that ran without; open a new "
                       "one",
                       s->len);
    for (size_t i = 0; i < n; i++) {
        const fm_hook *k = &hook[i];
        uint32_t layers = a->layers + (k->site == FM_SITE_RESIDUAL);
        if ((unsigned)k->site >= FM_SITES || k->layer >= layers)
            return fm_fail(FM_EINVAL, "hook %zu: no site %d of layer %u, the model has %u layers",
                           i, (int)k->site, k->layer, a->layers);
    }
    if (n && !s->uncached)
        fmi_log_op(s, FMI_OP_UNCACHE, 0, 0);
    if (n)
        s->uncached = true;
    s->hook = n ? hook : NULL;
    s->hooks = n;
    return FM_OK;
}

/* ==== which rows are read ==== */

static bool covers(const fm_hook *k, uint32_t token)
{
    return token >= k->token && token - k->token < k->tokens;
}

/* The stage that computes what hook k reads or replaces. */
static uint32_t stage_of(const fm_seq *s, const fm_hook *k)
{
    uint32_t layer = k->site == FM_SITE_RESIDUAL && k->layer > 0 ? k->layer - 1 : k->layer;
    return fmi_stage_split_stage(&fmi_priv(s->model)->split, layer);
}

/* Whether hook k reads the row on that stage. */
static bool reads_at(const fmi_hooked *w, const fm_hook *k, uint32_t stage)
{
    return k->read && covers(k, w->token) && stage_of(w->seq, k) == stage;
}

static uint32_t count_reads(const fmi_hooked *w, uint32_t stage)
{
    uint32_t n = 0;
    for (size_t j = 0; j < w->seq->hooks; j++)
        n += reads_at(w, &w->seq->hook[j], stage);
    return n;
}

/* Whether a hook reads the row, on any stage. */
static bool is_read(const fmi_hooked *w)
{
    bool is = false;
    for (size_t j = 0; j < w->seq->hooks; j++)
        is = is || (w->seq->hook[j].read && covers(&w->seq->hook[j], w->token));
    return is;
}

/* Whether this rank sends its stage's rows: one rank of a stage does, since all have them whole. */
static bool speaks(const fm_engine *e)
{
    return fm_comm_rank(e->group) == 0;
}

fm_status fmi_find_hooked(fmi_step *s, const fm_row *rows, uint32_t n)
{
    bool any = false;
    s->hooked_count = 0;
    for (uint32_t i = 0; i < s->seqs; i++)
        any = any || s->seq[i]->hooks;
    if (!any)
        return FM_OK;
    fm_status rc = fm_grow(&s->hooked, &s->hooked_cap, n, sizeof *s->hooked);
    uint32_t taken = 0;
    s->taken_ld = 0;
    for (uint32_t i = 0; rc == FM_OK && i < n; i++) {
        const fm_seq *q = rows[s->order[i]].seq;
        if (!q->hooks)
            continue;
        fmi_hooked *w = &s->hooked[s->hooked_count++];
        *w = (fmi_hooked){q, i, s->pos[s->order[i]] - q->base, taken};
        taken += count_reads(w, s->e->stage);
        if (is_read(w))
            s->taken_ld = FM_MAX(s->taken_ld, (size_t)q->model->arch.hidden);
    }
    if (rc == FM_OK && s->e->stage > 0 && speaks(s->e))
        rc = fmi_float_room(s->e->be, &s->taken, &s->taken_floats, taken * s->taken_ld);
    return rc;
}

/* ==== in a pass ==== */

/* Copies one row: on rank 0 to the caller's memory, on another stage to its send buffer. */
static fm_status read_row(fmi_step *s, float *to, const float *row, size_t h, uint32_t taken)
{
    fm_engine *e = s->e;
    if (fm_comm_rank(e->comm) == 0)
        return e->be->download(e->be, to, row, h * sizeof(float));
    if (e->stage > 0 && speaks(e))
        e->be->copy_rows(e->be, s->taken + taken * s->taken_ld, s->taken_ld, row, h, NULL, 1,
                         (uint32_t)h);
    return FM_OK;
}

static fm_status run_row(fmi_pass *p, const fmi_hooked *w, fm_site site, uint32_t layer, float *row)
{
    fm_backend *be = p->e->be;
    size_t h = p->g->hidden;
    uint32_t taken = w->taken;
    fm_status rc = FM_OK;
    for (size_t j = 0; j < w->seq->hooks && rc == FM_OK; j++) {
        const fm_hook *k = &w->seq->hook[j];
        bool here = k->site == site && k->layer == layer && covers(k, w->token);
        size_t at = here ? (size_t)(w->token - k->token) * h : 0;
        if (here && k->read)
            rc = read_row(p->s, k->read + at, row, h, taken);
        if (rc == FM_OK && here && k->write)
            rc = be->upload(be, row, k->write + at, h * sizeof(float));
        taken += reads_at(w, k, p->e->stage);
    }
    return rc;
}

/* Rows of sequences with hooks begin at layer 0 and so are the last of a pass. */
fm_status fmi_run_hooks(fmi_pass *p, fm_site site, uint32_t layer, float *x)
{
    uint32_t first = p->row0 + p->rows - p->m;

    for (uint32_t i = 0; i < p->s->hooked_count; i++) {
        const fmi_hooked *w = &p->s->hooked[i];
        if (w->row >= first && w->row < p->row0 + p->rows)
            FM_TRY(run_row(p, w, site, layer, x + (size_t)(w->row - first) * p->g->hidden));
    }
    return FM_OK;
}

/* ==== what other stages read ==== */

/* Rank 0: copies the rows of one stage from taken_host to the caller's memory. */
static void scatter(const fmi_step *s, uint32_t stage)
{
    const float *from = s->taken_host;
    for (uint32_t i = 0; i < s->hooked_count; i++) {
        const fmi_hooked *w = &s->hooked[i];
        size_t h = w->seq->model->arch.hidden;
        for (size_t j = 0; j < w->seq->hooks; j++) {
            const fm_hook *k = &w->seq->hook[j];
            if (!reads_at(w, k, stage))
                continue;
            memcpy(k->read + (size_t)(w->token - k->token) * h, from, h * sizeof(float));
            from += s->taken_ld;
        }
    }
}

static fm_status take_from(fmi_step *s, uint32_t stage, size_t floats)
{
    fm_engine *e = s->e;
    size_t bytes = floats * sizeof(float);
    FM_TRY(fmi_float_room(e->be, &s->taken, &s->taken_floats, floats));
    FM_TRY(fm_grow(&s->taken_host, &s->taken_host_floats, floats, sizeof(float)));
    FM_TRY(fm_comm_recv(e->comm, s->taken, bytes, stage * fm_comm_size(e->group)));
    FM_TRY(fm_comm_settle(e->comm));
    FM_TRY(e->be->download(e->be, s->taken_host, s->taken, bytes));
    scatter(s, stage);
    return FM_OK;
}

fm_status fmi_hooks_deliver(fmi_step *s)
{
    fm_engine *e = s->e;

    for (uint32_t stage = 1; stage < e->stages; stage++) {
        size_t floats = 0;
        for (uint32_t i = 0; i < s->hooked_count; i++)
            floats += count_reads(&s->hooked[i], stage) * s->taken_ld;
        if (floats == 0)
            continue;
        if (fm_comm_rank(e->comm) == 0)
            FM_TRY(take_from(s, stage, floats));
        else if (e->stage == stage && speaks(e))
            FM_TRY(fm_comm_send(e->comm, s->taken, floats * sizeof(float), 0));
    }
    return FM_OK;
}

/* ==== to the other ranks ==== */

enum { READS = 1, WRITES = 2 };
#define HOOK_WORDS 5u /* site, layer, token, tokens, READS | WRITES */

/* The number of k's tokens among [from, from + rows); *token: the first of them. */
static uint32_t part_of(const fm_hook *k, uint32_t from, uint32_t rows, uint32_t *token)
{
    uint64_t begin = FM_MAX(k->token, from);
    uint64_t end = FM_MIN((uint64_t)k->token + k->tokens, (uint64_t)from + rows);
    *token = (uint32_t)begin;
    return begin < end ? (uint32_t)(end - begin) : 0;
}

uint64_t fmi_hooks_size(const fm_seq *s, uint32_t rows)
{
    uint64_t bytes = 16, row = s->model->arch.hidden * sizeof(float);
    uint32_t token;
    for (size_t j = 0; j < s->hooks; j++) {
        uint32_t n = part_of(&s->hook[j], s->len, rows, &token);
        bytes += n ? 4 * HOOK_WORDS + (s->hook[j].write ? n * row : 0) : 0;
    }
    return bytes;
}

void fmi_hooks_encode(fm_buf *log, const fm_seq *s, uint32_t rows)
{
    size_t h = s->model->arch.hidden;
    uint32_t count = 0, token, floats = 0;
    for (size_t j = 0; j < s->hooks; j++) {
        uint32_t n = part_of(&s->hook[j], s->len, rows, &token);
        count += n > 0;
        floats += s->hook[j].write ? n * (uint32_t)h : 0;
    }
    fm_buf_u32(log, count);
    fm_buf_u32(log, floats);
    for (size_t j = 0; j < s->hooks; j++) {
        const fm_hook *k = &s->hook[j];
        uint32_t n = part_of(k, s->len, rows, &token);
        if (n == 0)
            continue;
        fm_buf_u32(log, (uint32_t)k->site);
        fm_buf_u32(log, k->layer);
        fm_buf_u32(log, token);
        fm_buf_u32(log, n);
        fm_buf_u32(log, (k->read ? READS : 0) | (k->write ? WRITES : 0));
        if (k->write)
            fm_buf_append(log, k->write + (size_t)(token - k->token) * h, n * h * sizeof(float));
    }
}

/* Decodes one hook; its replacement rows go to *rows, which has space for *left floats. */
static bool decode_one(fm_cursor *c, fm_hook *k, size_t h, float **rows, uint64_t *left)
{
    static float elsewhere; /* marks a hook that reads: the rows are sent to rank 0 */
    uint32_t site = fm_cursor_u32(c), layer = fm_cursor_u32(c);
    uint32_t token = fm_cursor_u32(c), tokens = fm_cursor_u32(c), what = fm_cursor_u32(c);
    uint64_t floats = what & WRITES ? (uint64_t)tokens * h : 0;
    if (c->failed || site >= FM_SITES || floats > *left)
        return false;
    *k = (fm_hook){.site = (fm_site)site, .layer = layer, .token = token, .tokens = tokens};
    k->read = what & READS ? &elsewhere : NULL;
    if (floats) {
        fm_span bytes = fm_cursor_bytes(c, floats * sizeof(float));
        if (c->failed)
            return false;
        memcpy(*rows, bytes.data, bytes.len);
        k->write = *rows;
        *rows += floats;
        *left -= floats;
    }
    return true;
}

fm_status fmi_hooks_decode(fm_cursor *c, fm_seq *s, void **memory)
{
    uint64_t count = fm_cursor_u32(c), left = fm_cursor_u32(c);
    uint64_t bytes = count * HOOK_WORDS * 4 + left * sizeof(float);
    *memory = NULL;
    if (c->failed || bytes > fm_cursor_left(c))
        return fm_fail(FM_ECORRUPT, "rank 0 tells of hidden states that are not there");
    size_t before = fm_cursor_left(c);
    char *room = s ? fm_malloc(count * sizeof(fm_hook) + left * sizeof(float) + 1) : NULL;
    if (!room) {
        fm_cursor_skip(c, bytes);
        return s ? FM_ENOMEM : FM_OK;
    }
    fm_hook *hook = (fm_hook *)(void *)room;
    float *rows = (float *)(void *)(room + count * sizeof(fm_hook));
    bool good = true;
    for (uint64_t i = 0; i < count && good; i++)
        good = decode_one(c, &hook[i], s->model->arch.hidden, &rows, &left);
    good = good && before - fm_cursor_left(c) == bytes;
    fm_status rc = good ? fm_seq_hooks(s, hook, count)
                        : fm_fail(FM_ECORRUPT, "rank 0 tells of hidden states that cannot be read");
    if (rc != FM_OK) {
        fm_free(room);
        return rc;
    }
    *memory = room;
    return FM_OK;
}
