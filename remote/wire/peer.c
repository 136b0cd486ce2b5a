/* peer.c - answers the messages of another fmstore. */
#include "remote/wire/peer.h"

#include <string.h>

#include "store/base/cancel.h"
#include "store/base/mem.h"

struct fmr_peer {
    fm_repo *r;
    fm_store *store;
    fmr_service service;
    fm_intake *intake; /* NULL: no record was asked about or came yet */
    fm_buf list;       /* items of the frame being made */
};

fm_status fmr_peer_new(fmr_peer **out, fm_repo *r, fmr_service service)
{
    *out = NULL;
    fmr_peer *p = fm_calloc(1, sizeof *p);
    if (!p)
        return FM_ENOMEM;
    p->r = r;
    p->store = fm_repo_store(r);
    p->service = service;
    fm_buf_init(&p->list, FMR_FRAME_MAX + 8192);
    fm_status rc =
        fm_store_lease(p->store, service == FMR_WRITE,
                       service == FMR_WRITE ? "a push from elsewhere" : "a fetch from elsewhere");
    if (rc == FM_EIO && service == FMR_READ) { /* a repository that can only be read */
        fm_error_clear();
        rc = FM_OK;
    }
    if (rc != FM_OK) {
        fm_free(p);
        return rc;
    }
    *out = p;
    return FM_OK;
}

void fmr_peer_free(fmr_peer *p)
{
    if (!p)
        return;
    fm_intake_close(p->intake);
    fm_buf_release(&p->list);
    fm_free(p);
}

/* ---- messages ---- */

static fm_status send_list(fmr_peer *p, fmr_wire *w)
{
    FM_TRY(fmr_send_buf(w, FMR_LIST, &p->list));
    fm_buf_clear(&p->list);
    return FM_OK;
}

static fm_status item_done(fmr_peer *p, fmr_wire *w)
{
    FM_TRY(fm_buf_ok(&p->list));
    return p->list.len + 4096 > FMR_FRAME_MAX ? send_list(p, w) : FM_OK;
}

static fm_status end_answer(fmr_peer *p, fmr_wire *w, const fm_buf *fields)
{
    if (p->list.len)
        FM_TRY(send_list(p, w));
    FM_TRY(fields ? fmr_send_buf(w, FMR_END, fields) : fmr_send(w, FMR_END, NULL, 0));
    return fmr_turn(w);
}

/* Reads lists of items of `each` bytes up to the message's end, or to an empty list. The caller
 * frees *out. */
static fm_status read_items(fmr_wire *w, size_t each, size_t most, uint8_t **out, size_t *count,
                            bool *ended)
{
    size_t cap = 0;
    *out = NULL;
    *count = 0;
    *ended = false;
    for (;;) {
        fmr_frame type;
        fm_span s;
        FM_TRY(fmr_receive(w, false, &type, &s));
        *ended = type == FMR_END;
        if (*ended || (type == FMR_LIST && s.len == 0))
            return FM_OK;
        if (type != FMR_LIST || s.len % each)
            return fm_fail(FM_ECORRUPT,
                           "a frame '%c' of %zu bytes came within a list of items "
                           "of %zu",
                           (char)type, s.len, each);
        FM_TRY(fm_go_on());
        if (*count + s.len / each > most)
            return fm_fail(FM_ELIMIT, "more than %zu items in one message", most);
        FM_TRY(fm_grow(out, &cap, *count + s.len / each, each));
        memcpy(*out + *count * each, s.data, s.len);
        *count += s.len / each;
    }
}

static fm_status no_list(fmr_wire *w)
{
    fm_span s;
    return fmr_expect(w, FMR_END, &s);
}

static fm_status need_intake(fmr_peer *p)
{
    return p->intake ? FM_OK : fm_intake_open(&p->intake, p->store);
}

/* ---- reading ---- */

static fm_status hello(fmr_peer *p, fmr_wire *w, fm_cursor *fields)
{
    fm_buf b;
    (void)fm_cursor_u32(fields); /* the client compares the versions */
    (void)fm_cursor_u8(fields);
    FM_TRY(fm_cursor_ok(fields, "the wire", "a greeting"));
    bool partial;
    FM_TRY(no_list(w));
    FM_TRY(fm_repo_partial(p->r, &partial));
    fm_buf_init(&b, 4096);
    fm_buf_u32(&b, FMR_WIRE_VERSION);
    fm_buf_u8(&b, p->service == FMR_WRITE);
    fm_buf_u8(&b, partial);
    fm_status rc = end_answer(p, w, &b);
    fm_buf_release(&b);
    return rc;
}

typedef struct answer {
    fmr_peer *p;
    fmr_wire *w;
} answer;

static fm_status send_ref(void *ctx, const char *name, const fm_oid *oid, const fm_oid *peeled)
{
    const answer *a = ctx;
    fmr_put_text(&a->p->list, name);
    fmr_put_oid(&a->p->list, oid);
    fmr_put_oid(&a->p->list, peeled);
    return item_done(a->p, a->w);
}

static fm_status refs(fmr_peer *p, fmr_wire *w)
{
    answer a = {p, w};
    FM_TRY(no_list(w));
    FM_TRY(fm_exchange_refs(p->r, send_ref, &a));
    return end_answer(p, w, NULL);
}

static fm_status git_get(fmr_peer *p, fmr_wire *w)
{
    uint8_t *want = NULL, *have = NULL;
    fm_exchange_ask ask = {0};
    uint64_t objects = 0;
    bool ended;
    fm_buf b;
    fm_buf_init(&b, 64);
    fm_status rc = read_items(w, sizeof(fm_oid), FMR_LIST_MAX, &want, &ask.wants, &ended);
    if (rc == FM_OK && !ended)
        rc = read_items(w, sizeof(fm_oid), FMR_LIST_MAX, &have, &ask.haves, &ended);
    ask.want = (const fm_oid *)want;
    ask.have = (const fm_oid *)have;
    FM_THEN(rc, fm_git_send(p->r, &ask, fmr_send_data, w, &objects));
    fm_buf_u64(&b, objects);
    FM_THEN(rc, end_answer(p, w, &b));
    fm_buf_release(&b);
    fm_free(want);
    fm_free(have);
    return rc;
}

static fm_status info(fmr_peer *p, fmr_wire *w)
{
    uint8_t *items = NULL;
    size_t count;
    bool ended;
    fm_status rc = read_items(w, FM_DIGEST_BYTES, FMR_ASK_IDS, &items, &count, &ended);
    for (size_t i = 0; rc == FM_OK && i < count; i++) {
        fm_record_info found;
        fm_status got = fm_record_info_of(p->store, &found, &((const fm_digest *)items)[i]);
        if (got == FM_ENOTFOUND)
            fm_error_clear();
        else
            rc = got;
        fmr_put_info(&p->list, got == FM_OK, &found);
        FM_THEN(rc, item_done(p, w));
    }
    FM_THEN(rc, end_answer(p, w, NULL));
    fm_free(items);
    return rc;
}

/* A client that asks for a record that was coded anew in between hears that, and asks again. */
static fm_status find_record(fmr_peer *p, const fmr_ask_record *ask, fm_record_info *found,
                             bool *there)
{
    const fm_status rc = fm_record_info_of(p->store, found, &ask->id);
    *there =
        rc == FM_OK && fm_digest_eq(&found->head, &ask->head) && ask->offset <= found->stored_bytes;
    if (rc != FM_ENOTFOUND)
        return rc;
    fm_error_clear();
    return FM_OK;
}

static fm_status send_record(fmr_peer *p, fmr_wire *w, const uint8_t *item)
{
    fm_record_info found;
    fmr_ask_record ask;
    fm_cursor at;
    bool there;
    fm_cursor_init(&at, fm_span_of(item, FMR_ASK_RECORD_BYTES));
    fmr_take_digest(&at, &ask.id);
    fmr_take_digest(&at, &ask.head);
    ask.offset = fm_cursor_u64(&at);
    FM_TRY(find_record(p, &ask, &found, &there));
    const uint8_t byte = there;
    FM_TRY(fmr_send(w, FMR_RECORD, &byte, 1));
    return there ? fm_record_send(p->store, &found, ask.offset, fmr_send_data, w) : FM_OK;
}

static fm_status get(fmr_peer *p, fmr_wire *w)
{
    uint8_t *items = NULL;
    size_t count;
    bool ended;
    fm_status rc = read_items(w, FMR_ASK_RECORD_BYTES, FMR_ASK_IDS, &items, &count, &ended);
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        rc = send_record(p, w, items + i * FMR_ASK_RECORD_BYTES);
    FM_THEN(rc, end_answer(p, w, NULL));
    fm_free(items);
    return rc;
}

/* ---- writing ---- */

static fm_status has(fmr_peer *p, fmr_wire *w)
{
    uint8_t *items = NULL;
    size_t count;
    bool ended;
    fm_status rc = read_items(w, FM_DIGEST_BYTES, FMR_ASK_IDS, &items, &count, &ended);
    FM_THEN(rc, need_intake(p));
    for (size_t i = 0; rc == FM_OK && i < count; i++) {
        fm_buf_u8(&p->list, fm_intake_has(p->intake, &((const fm_digest *)items)[i]));
        rc = item_done(p, w);
    }
    FM_THEN(rc, end_answer(p, w, NULL));
    fm_free(items);
    return rc;
}

static fm_status cut(fmr_peer *p, fmr_wire *w)
{
    fmr_ask_record c = {0};
    fm_buf b;
    FM_TRY(no_list(w));
    FM_TRY(need_intake(p));
    const bool there = fm_intake_cut(p->intake, &c.id, &c.head, &c.offset);
    fm_buf_init(&b, 256);
    fm_buf_u8(&b, there);
    fmr_put_digest(&b, &c.id);
    fmr_put_digest(&b, &c.head);
    fm_buf_u64(&b, c.offset);
    fm_status rc = end_answer(p, w, &b);
    fm_buf_release(&b);
    return rc;
}

/* One record: its description is in `s`; *type is the frame after its bytes. */
static fm_status take_record(fmr_peer *p, fmr_wire *w, fmr_frame *type, fm_span *s)
{
    fm_record_info found;
    fm_cursor at;
    bool there;
    fm_cursor_init(&at, *s);
    FM_TRY(fmr_take_info(&at, &there, &found));
    const uint64_t offset = fm_cursor_u64(&at);
    FM_TRY(fm_cursor_ok(&at, "the wire", "a record's offset"));
    if (!there)
        return fm_fail(FM_ECORRUPT, "the wire: a record without a description");
    FM_TRY(fm_intake_begin(p->intake, &found, offset));
    for (;;) {
        FM_TRY(fmr_receive(w, false, type, s));
        if (*type != FMR_DATA)
            return fm_intake_end(p->intake);
        FM_TRY(fm_intake_bytes(p->intake, s->data, s->len));
    }
}

static fm_status put(fmr_peer *p, fmr_wire *w)
{
    fm_intake_stats stats = {0};
    fmr_frame type;
    fm_span s;
    fm_buf b;
    FM_TRY(need_intake(p));
    FM_TRY(fmr_receive(w, false, &type, &s));
    while (type == FMR_RECORD)
        FM_TRY(take_record(p, w, &type, &s));
    if (type != FMR_END)
        return fm_fail(FM_ECORRUPT, "the wire: a frame '%c' came where a record is due",
                       (char)type);
    FM_TRY(fm_intake_publish(p->intake, &stats));
    fm_buf_init(&b, 64);
    fm_buf_u64(&b, stats.objects);
    fm_buf_u64(&b, stats.bytes);
    fm_status rc = end_answer(p, w, &b);
    fm_buf_release(&b);
    return rc;
}

/* ---- without messages ---- */

typedef struct hand {
    fm_bytes_fn fn, sent; /* sent may be NULL */
    void *fn_ctx, *sent_ctx;
    uint64_t *bytes;
} hand;

static fm_status hand_over(void *ctx, const void *data, size_t len)
{
    const hand *h = ctx;
    FM_TRY(h->fn(h->fn_ctx, data, len));
    *h->bytes += len;
    return h->sent ? h->sent(h->sent_ctx, data, len) : FM_OK;
}

fm_status fmr_peer_get(fmr_peer *p, const fmr_ask_record *ask, size_t count, const fmr_sink *to,
                       uint64_t *bytes)
{
    hand h = {.fn = to->bytes, .fn_ctx = to->ctx, .bytes = bytes};
    for (size_t i = 0; i < count; i++) {
        fm_record_info found;
        bool there;
        FM_TRY(find_record(p, &ask[i], &found, &there));
        FM_TRY(to->begin(to->ctx, i, there));
        if (!there)
            continue;
        FM_TRY(fm_record_send(p->store, &found, ask[i].offset, hand_over, &h));
        FM_TRY(to->end(to->ctx));
    }
    return FM_OK;
}

static fm_status intake_piece(void *intake, const void *data, size_t len)
{
    return fm_intake_bytes(intake, data, len);
}

fm_status fmr_peer_put(fmr_peer *p, const fmr_load *load, uint64_t *bytes)
{
    fm_intake_stats stats;
    FM_TRY(need_intake(p));
    hand h = {intake_piece, load->sent, p->intake, load->ctx, bytes};
    for (size_t i = 0; i < load->count; i++) {
        FM_TRY(fm_intake_begin(p->intake, &load->info[i], load->offset[i]));
        FM_TRY(fm_record_send(load->from, &load->info[i], load->offset[i], hand_over, &h));
        FM_TRY(fm_intake_end(p->intake));
    }
    return fm_intake_publish(p->intake, &stats);
}

static fm_status take_git(fmr_wire *w, fm_git_intake *in, uint64_t *objects)
{
    for (;;) {
        fmr_frame type;
        fm_span s;
        FM_TRY(fmr_receive(w, false, &type, &s));
        if (type == FMR_END)
            return fm_git_intake_end(in, objects);
        if (type != FMR_DATA)
            return fm_fail(FM_ECORRUPT, "the wire: a frame '%c' came within a pack", (char)type);
        FM_TRY(fm_git_intake_bytes(in, s.data, s.len));
    }
}

static fm_status git_put(fmr_peer *p, fmr_wire *w)
{
    fm_git_intake *in = NULL;
    uint64_t objects = 0;
    fm_buf b;
    fm_buf_init(&b, 64);
    fm_status rc = fm_git_intake_open(&in, p->r, 0);
    FM_THEN(rc, take_git(w, in, &objects));
    fm_git_intake_close(in);
    fm_buf_u64(&b, objects);
    FM_THEN(rc, end_answer(p, w, &b));
    fm_buf_release(&b);
    return rc;
}

#define MOVES_MAX 65536u

typedef struct wishes {
    fm_ref_wish *wish;
    char (*name)[FMR_NAME_MAX];
    size_t count, wish_cap, name_cap;
} wishes;

static fm_status take_wishes(wishes *v, fm_span s)
{
    fm_cursor at;
    fm_cursor_init(&at, s);
    while (fm_cursor_left(&at) > 0) {
        if (v->count == MOVES_MAX)
            return fm_fail(FM_ELIMIT, "more than %u refs in one message", MOVES_MAX);
        FM_TRY(fm_grow(&v->wish, &v->wish_cap, v->count + 1, sizeof *v->wish));
        FM_TRY(fm_grow(&v->name, &v->name_cap, v->count + 1, sizeof *v->name));
        FM_TRY(fmr_take_wish(&at, &v->wish[v->count], v->name[v->count]));
        v->count++;
    }
    return FM_OK;
}

static fm_status read_wishes(fmr_wire *w, wishes *v)
{
    for (;;) {
        fmr_frame type;
        fm_span s;
        FM_TRY(fmr_receive(w, false, &type, &s));
        if (type == FMR_END)
            break;
        if (type != FMR_LIST)
            return fm_fail(FM_ECORRUPT, "the wire: a frame '%c' came where a list is due",
                           (char)type);
        FM_TRY(take_wishes(v, s));
    }
    for (size_t i = 0; i < v->count; i++) { /* the array has stopped moving */
        v->wish[i].name = v->name[i];
        if (!fm_exchange_ref_travels(v->name[i]))
            return fm_fail(FM_EREFUSED, "'%s' is no branch, tag, note or result", v->name[i]);
    }
    return FM_OK;
}

static fm_status move(fmr_peer *p, fmr_wire *w)
{
    wishes v = {0};
    fm_status rc = read_wishes(w, &v);
    FM_THEN(rc, fm_refs_move(p->r, v.wish, v.count, false, "push"));
    for (size_t i = 0; rc == FM_OK && i < v.count; i++) {
        fmr_put_outcome(&p->list, &v.wish[i]);
        rc = item_done(p, w);
    }
    FM_THEN(rc, end_answer(p, w, NULL));
    fm_free(v.wish);
    fm_free(v.name);
    return rc;
}

/* ---- the loop ---- */

static fm_status answer_one(fmr_peer *p, fmr_wire *w, fm_span s)
{
    fm_cursor fields;
    fm_cursor_init(&fields, s);
    const uint8_t op = fm_cursor_u8(&fields);
    fm_buf_clear(&p->list);
    if (op >= FMR_HAS && op <= FMR_MOVE && p->service != FMR_WRITE)
        return fm_fail(FM_EREFUSED, "this repository can only be read from here");
    switch (op) {
    case FMR_HELLO:
        return hello(p, w, &fields);
    case FMR_REFS:
        return refs(p, w);
    case FMR_GIT_GET:
        return git_get(p, w);
    case FMR_INFO:
        return info(p, w);
    case FMR_GET:
        return get(p, w);
    case FMR_HAS:
        return has(p, w);
    case FMR_CUT:
        return cut(p, w);
    case FMR_PUT:
        return put(p, w);
    case FMR_GIT_PUT:
        return git_put(p, w);
    case FMR_MOVE:
        return move(p, w);
    default:
        return fm_fail(FM_EUNSUPPORTED, "operation %u is not known here: a newer fmstore asks", op);
    }
}

fm_status fmr_peer_answer(fmr_peer *p, fmr_wire *w, bool *more)
{
    fmr_frame type;
    fm_span s;
    *more = false;
    FM_TRY(fmr_receive(w, true, &type, &s));
    if (type == 0)
        return FM_OK;
    if (type != FMR_ASK)
        return fm_fail(FM_ECORRUPT, "%s: a frame '%c' came where a question is due", w->peer,
                       (char)type);
    fm_status rc = answer_one(p, w, s);
    if (rc == FM_OK) {
        *more = true;
        return FM_OK;
    }
    /* The message may not have been read to its end, so the connection ends with this answer. */
    fm_error_state text;
    fm_error_save(&text);
    fm_ignore(fmr_send_fail(w, rc), "the other side may be gone");
    fm_error_restore(&text);
    return rc;
}

fm_status fmr_peer_run(fmr_peer *p, const fmr_stream *stream)
{
    fmr_wire w;
    bool more = true;
    fm_status rc = fmr_wire_init(&w, stream, "the client");
    while (rc == FM_OK && more)
        rc = fmr_peer_answer(p, &w, &more);
    fmr_wire_release(&w);
    return rc;
}
