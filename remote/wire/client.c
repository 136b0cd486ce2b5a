/* client.c - asks another fmstore over a stream. */
#include "remote/wire/client.h"

#include <string.h>

#include "store/base/mem.h"

typedef struct client {
    fmr_far far;
    fmr_wire wire;
    char *peer;
    void (*close)(void *ctx);
    fmr_peer *here; /* the one that answers, in this process; NULL */
    fm_buf list; /* items of the frame being made */
} client;

static client *of(fmr_far *f)
{
    return (client *)f;
}

/* ---- messages ---- */

static fm_status ask(client *c, fmr_op op)
{
    const uint8_t byte = (uint8_t)op;
    fm_buf_clear(&c->list);
    if (c->wire.ahead_at != c->wire.ahead_end)
        return fm_fail(FM_ECORRUPT, "%s: sends more than an answer", c->peer);
    return fmr_send(&c->wire, FMR_ASK, &byte, 1);
}

static fm_status send_list(client *c)
{
    FM_TRY(fmr_send_buf(&c->wire, FMR_LIST, &c->list));
    fm_buf_clear(&c->list);
    return FM_OK;
}

/* Call after each item: no item is cut in two. */
static fm_status item_done(client *c)
{
    FM_TRY(fm_buf_ok(&c->list));
    return c->list.len + 4096 > FMR_FRAME_MAX ? send_list(c) : FM_OK;
}

static fm_status end_ask(client *c)
{
    if (c->list.len)
        FM_TRY(send_list(c));
    FM_TRY(fmr_send(&c->wire, FMR_END, NULL, 0));
    return fmr_turn(&c->wire);
}

static fm_status take_end(client *c, fm_cursor *fields)
{
    fm_span p;
    FM_TRY(fmr_expect(&c->wire, FMR_END, &p));
    fm_cursor_init(fields, p);
    return FM_OK;
}

/* A list of answers, item by item. */
typedef struct answers {
    client *c;
    fm_cursor at;
    bool ended;
} answers;

/* Moves to the next item; ended: there is none. */
static fm_status next(answers *a)
{
    while (!a->ended && fm_cursor_left(&a->at) == 0) {
        fmr_frame type;
        fm_span p;
        FM_TRY(fmr_receive(&a->c->wire, false, &type, &p));
        if (type != FMR_LIST && type != FMR_END)
            return fm_fail(FM_ECORRUPT, "%s: a frame '%c' came where a list is due", a->c->peer,
                           (char)type);
        if (type == FMR_LIST && p.len == 0) /* or an answer could go on for ever */
            return fm_fail(FM_ECORRUPT, "%s: sends an empty list", a->c->peer);
        a->ended = type == FMR_END;
        fm_cursor_init(&a->at, p);
    }
    return FM_OK;
}

static fm_status need(answers *a)
{
    FM_TRY(next(a));
    return a->ended ? fm_fail(FM_ECORRUPT, "%s: the answer has too few items", a->c->peer) : FM_OK;
}

static fm_status need_end(answers *a)
{
    FM_TRY(next(a));
    return a->ended ? FM_OK : fm_fail(FM_ECORRUPT, "%s: the answer has too many items", a->c->peer);
}

/* ---- operations ---- */

static fm_status hello(client *c, fmr_service service)
{
    fm_cursor at;
    uint8_t fields[6] = {FMR_HELLO};
    fm_put_u32(fields + 1, FMR_WIRE_VERSION);
    fields[5] = (uint8_t)service;
    FM_TRY(fmr_send(&c->wire, FMR_ASK, fields, sizeof fields));
    FM_TRY(end_ask(c));
    FM_TRY(take_end(c, &at));
    const uint32_t version = fm_cursor_u32(&at);
    const bool may_write = fm_cursor_u8(&at) != 0;
    c->far.unkept = fm_cursor_u8(&at) != 0;
    FM_TRY(fm_cursor_ok(&at, c->peer, "its greeting"));
    if (version != FMR_WIRE_VERSION)
        return fm_fail(FM_EVERSION, "%s: speaks version %u of the protocol; this is version %u",
                       c->peer, version, FMR_WIRE_VERSION);
    if (service == FMR_WRITE && !may_write)
        return fm_fail(FM_EREFUSED, "%s: can only be read from here", c->peer);
    return FM_OK;
}

static fm_status refs(fmr_far *f, fm_exchange_ref_fn fn, void *ctx)
{
    client *c = of(f);
    answers a = {.c = c};
    size_t count = 0;
    FM_TRY(ask(c, FMR_REFS));
    FM_TRY(end_ask(c));
    for (;;) {
        char name[FMR_NAME_MAX];
        fm_oid oid, peeled;
        FM_TRY(next(&a));
        if (a.ended)
            return need_end(&a);
        if (++count > FMR_LIST_MAX)
            return fm_fail(FM_ELIMIT, "%s: more than %zu refs", c->peer, FMR_LIST_MAX);
        fmr_take_text(&a.at, name, sizeof name);
        fmr_take_oid(&a.at, &oid);
        fmr_take_oid(&a.at, &peeled);
        FM_TRY(fm_cursor_ok(&a.at, c->peer, "a ref"));
        if (fm_exchange_ref_travels(name)) /* a newer fmstore may have other kinds */
            FM_TRY(fn(ctx, name, &oid, &peeled));
    }
}

static fm_status git_get(fmr_far *f, const fm_exchange_ask *what, fm_bytes_fn fn, void *ctx)
{
    client *c = of(f);
    FM_TRY(ask(c, FMR_GIT_GET));
    for (size_t i = 0; i < what->wants; i++) {
        fmr_put_oid(&c->list, &what->want[i]);
        FM_TRY(item_done(c));
    }
    if (c->list.len)
        FM_TRY(send_list(c));
    FM_TRY(fmr_send(&c->wire, FMR_LIST, NULL, 0)); /* the wants end */
    for (size_t i = 0; i < what->haves; i++) {
        fmr_put_oid(&c->list, &what->have[i]);
        FM_TRY(item_done(c));
    }
    FM_TRY(end_ask(c));
    for (;;) {
        fmr_frame type;
        fm_span p;
        FM_TRY(fmr_receive(&c->wire, false, &type, &p));
        if (type == FMR_END)
            break;
        if (type != FMR_DATA)
            return fm_fail(FM_ECORRUPT, "%s: a frame '%c' came within a pack", c->peer, (char)type);
        FM_TRY(fn(ctx, p.data, p.len));
    }
    return FM_OK;
}

static fm_status ask_ids(client *c, fmr_op op, const fm_digest *id, size_t count)
{
    FM_TRY(ask(c, op));
    for (size_t i = 0; i < count; i++) {
        fmr_put_digest(&c->list, &id[i]);
        FM_TRY(item_done(c));
    }
    return end_ask(c);
}

static fm_status info_of(client *c, const fm_digest *id, size_t count, fm_record_info *out,
                         bool *there)
{
    answers a = {.c = c};
    FM_TRY(ask_ids(c, FMR_INFO, id, count));
    for (size_t i = 0; i < count; i++) {
        FM_TRY(need(&a));
        FM_TRY(fmr_take_info(&a.at, &there[i], &out[i]));
        if (there[i] && !fm_digest_eq(&out[i].id, &id[i]))
            return fm_fail(FM_ECORRUPT, "%s: describes another object than it was asked for",
                           c->peer);
    }
    return need_end(&a);
}

static fm_status info(fmr_far *f, const fm_digest *id, size_t count, fm_record_info *out,
                      bool *there)
{
    for (size_t at = 0; at < count; at += FMR_ASK_IDS)
        FM_TRY(
            info_of(of(f), id + at, FM_MIN(count - at, (size_t)FMR_ASK_IDS), out + at, there + at));
    return FM_OK;
}

static fm_status get_one(client *c, size_t i, const fmr_sink *to, fmr_frame *type, fm_span *p)
{
    if (*type != FMR_RECORD || p->len != 1)
        return fm_fail(FM_ECORRUPT, "%s: a frame '%c' came where a record is due", c->peer,
                       (char)*type);
    const bool there = p->data[0] != 0;
    FM_TRY(to->begin(to->ctx, i, there));
    for (;;) {
        FM_TRY(fmr_receive(&c->wire, false, type, p));
        if (*type != FMR_DATA)
            break;
        if (!there)
            return fm_fail(FM_ECORRUPT, "%s: sends bytes of a record that it lacks", c->peer);
        FM_TRY(to->bytes(to->ctx, p->data, p->len));
    }
    return there ? to->end(to->ctx) : FM_OK;
}

/* Records [from, to) of what is asked for. */
static fm_status get_some(client *c, const fmr_ask_record *what, size_t from, size_t to,
                          const fmr_sink *sink)
{
    fmr_frame type;
    fm_span p;
    FM_TRY(ask(c, FMR_GET));
    for (size_t i = from; i < to; i++) {
        fmr_put_digest(&c->list, &what[i].id);
        fmr_put_digest(&c->list, &what[i].head);
        fm_buf_u64(&c->list, what[i].offset);
        FM_TRY(item_done(c));
    }
    FM_TRY(end_ask(c));
    FM_TRY(fmr_receive(&c->wire, false, &type, &p));
    for (size_t i = from; i < to; i++)
        FM_TRY(get_one(c, i, sink, &type, &p));
    if (type != FMR_END)
        return fm_fail(FM_ECORRUPT, "%s: sends more records than it was asked for", c->peer);
    return FM_OK;
}

static fm_status get(fmr_far *f, const fmr_ask_record *what, size_t count, const fmr_sink *to)
{
    client *c = of(f);
    if (c->here)
        return fmr_peer_get(c->here, what, count, to, &c->wire.bytes_in);
    for (size_t at = 0; at < count; at += FMR_ASK_IDS)
        FM_TRY(get_some(c, what, at, FM_MIN(count, at + FMR_ASK_IDS), to));
    return FM_OK;
}

static fm_status has_of(client *c, const fm_digest *id, size_t count, bool *there)
{
    answers a = {.c = c};
    FM_TRY(ask_ids(c, FMR_HAS, id, count));
    for (size_t i = 0; i < count; i++) {
        FM_TRY(need(&a));
        there[i] = fm_cursor_u8(&a.at) != 0;
    }
    return need_end(&a);
}

static fm_status has(fmr_far *f, const fm_digest *id, size_t count, bool *there)
{
    for (size_t at = 0; at < count; at += FMR_ASK_IDS)
        FM_TRY(has_of(of(f), id + at, FM_MIN(count - at, (size_t)FMR_ASK_IDS), there + at));
    return FM_OK;
}

static fm_status cut(fmr_far *f, fmr_ask_record *out, bool *there)
{
    client *c = of(f);
    fm_cursor at;
    FM_TRY(ask(c, FMR_CUT));
    FM_TRY(end_ask(c));
    FM_TRY(take_end(c, &at));
    *there = fm_cursor_u8(&at) != 0;
    fmr_take_digest(&at, &out->id);
    fmr_take_digest(&at, &out->head);
    out->offset = fm_cursor_u64(&at);
    return fm_cursor_ok(&at, c->peer, "a cut record");
}

/* An answer that came before the message ended says why the other side stopped reading. */
static fm_status why_not(client *c, fm_status rc)
{
    fmr_frame type;
    fm_span p;
    fm_error_state first;
    fm_error_save(&first);
    const fm_status said = fmr_receive(&c->wire, true, &type, &p);
    if (said != FM_OK && c->wire.told)
        return said;
    fm_error_restore(&first);
    return rc;
}

typedef struct sender {
    client *c;
    const fmr_load *load;
} sender;

static fm_status send_piece(void *ctx, const void *data, size_t len)
{
    const sender *s = ctx;
    FM_TRY(fmr_send_data(&s->c->wire, data, len));
    return s->load->sent ? s->load->sent(s->load->ctx, data, len) : FM_OK;
}

static fm_status put_records(client *c, const fmr_load *load)
{
    sender s = {c, load};
    FM_TRY(ask(c, FMR_PUT));
    for (size_t i = 0; i < load->count; i++) {
        fm_buf_clear(&c->list);
        fmr_put_info(&c->list, true, &load->info[i]);
        fm_buf_u64(&c->list, load->offset[i]);
        FM_TRY(fmr_send_buf(&c->wire, FMR_RECORD, &c->list));
        FM_TRY(fm_record_send(load->from, &load->info[i], load->offset[i], send_piece, &s));
    }
    fm_buf_clear(&c->list);
    return end_ask(c);
}

static fm_status put(fmr_far *f, const fmr_load *load)
{
    client *c = of(f);
    fm_cursor at;
    if (c->here)
        return fmr_peer_put(c->here, load, &c->wire.bytes_out);
    fm_status rc = put_records(c, load);
    if (rc == FM_EIO)
        rc = why_not(c, rc);
    FM_THEN(rc, take_end(c, &at));
    return rc;
}

static fm_status send_git(void *ctx, const void *data, size_t len)
{
    return fmr_send_data(ctx, data, len);
}

static fm_status git_put(fmr_far *f, fm_repo *from, const fm_exchange_ask *what)
{
    client *c = of(f);
    fm_cursor at;
    FM_TRY(ask(c, FMR_GIT_PUT));
    fm_status rc = fm_git_send(from, what, send_git, &c->wire, NULL);
    FM_THEN(rc, end_ask(c));
    if (rc == FM_EIO)
        rc = why_not(c, rc);
    FM_THEN(rc, take_end(c, &at));
    return rc;
}

static fm_status move(fmr_far *f, fm_ref_wish *wish, size_t count)
{
    client *c = of(f);
    answers a = {.c = c};
    FM_TRY(ask(c, FMR_MOVE));
    for (size_t i = 0; i < count; i++) {
        fmr_put_wish(&c->list, &wish[i]);
        FM_TRY(item_done(c));
    }
    FM_TRY(end_ask(c));
    for (size_t i = 0; i < count; i++) {
        FM_TRY(need(&a));
        FM_TRY(fmr_take_outcome(&a.at, &wish[i]));
    }
    return need_end(&a);
}

static void traffic(fmr_far *f, uint64_t *in, uint64_t *out)
{
    *in = of(f)->wire.bytes_in;
    *out = of(f)->wire.bytes_out;
}

static void close_client(fmr_far *f)
{
    client *c = of(f);
    if (c->close)
        c->close(c->wire.stream.ctx);
    fmr_wire_release(&c->wire);
    fm_buf_release(&c->list);
    fm_free(c->peer);
    fm_free(c);
}

static const fmr_far_ops client_ops = {refs, git_get, info, get,     has,         cut,
                                       put,  git_put, move, traffic, close_client};

void fmr_client_beside(fmr_far *f, fmr_peer *here)
{
    of(f)->here = here;
}

fm_status fmr_client_new(fmr_far **out, const fmr_stream *stream, void (*close)(void *ctx),
                         const char *peer, fmr_service service)
{
    *out = NULL;
    client *c = fm_calloc(1, sizeof *c);
    char *name = fm_strdup(peer);
    if (!c || !name) {
        fm_free(c);
        fm_free(name);
        if (close)
            close(stream->ctx);
        return FM_ENOMEM;
    }
    c->far.ops = &client_ops;
    c->peer = name;
    c->close = close;
    fm_buf_init(&c->list, FMR_FRAME_MAX + 4096);
    fm_status rc = fmr_wire_init(&c->wire, stream, c->peer);
    FM_THEN(rc, hello(c, service));
    if (rc != FM_OK) {
        fm_error_state text;
        fm_error_save(&text);
        close_client(&c->far);
        fm_error_restore(&text);
        return rc;
    }
    *out = &c->far;
    return FM_OK;
}
