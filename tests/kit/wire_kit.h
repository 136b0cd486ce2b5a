/* wire_kit.h - both sides of the wire in one thread: what one says is heard by the other at once,
 * and kept as seeds for fuzzing; and a side whose words are given. */
#ifndef FM_TESTS_KIT_WIRE_H
#define FM_TESTS_KIT_WIRE_H

#include "remote/sync/sync.h"
#include "remote/wire/client.h"
#include "remote/wire/peer.h"
#include "store/base/os/io.h"
#include "tests/kit/lineage_kit.h"

/* Bytes that are read in pieces, and what was written. */
typedef struct wk_bytes {
    fm_span from;
    size_t at;
    fm_buf to;
} wk_bytes;

static inline fm_status wk_read(void *ctx, void *dst, size_t cap, size_t *got)
{
    wk_bytes *b = ctx;
    *got = FM_MIN(cap, b->from.len - b->at);
    if (*got)
        memcpy(dst, b->from.data + b->at, *got);
    b->at += *got;
    return FM_OK;
}

/* A frame at a time: a client that finds more than an answer refuses it. */
static inline fm_status wk_read_frame(void *ctx, void *dst, size_t cap, size_t *got)
{
    wk_bytes *b = ctx;
    const size_t left = b->from.len - b->at;
    const size_t frame = left < 5 ? left : (size_t)fm_get_u32(b->from.data + b->at) + 5;
    return wk_read(b, dst, FM_MIN(cap, frame), got);
}

static inline fm_status wk_write(void *ctx, const void *data, size_t len)
{
    wk_bytes *b = ctx;
    fm_buf_append(&b->to, data, len);
    return fm_buf_ok(&b->to);
}

/* A client's stream whose other side is a peer in this thread. */
typedef struct wk_loop {
    fmr_peer *peer;
    wk_bytes side; /* the peer's: from is what the client said since the last answer */
    fm_buf said, heard, turn;
    size_t read;
} wk_loop;

static inline fm_status wk_loop_write(void *ctx, const void *data, size_t len)
{
    wk_loop *l = ctx;
    fm_buf_append(&l->said, data, len);
    fm_buf_append(&l->turn, data, len);
    return fm_buf_ok(&l->turn);
}

static inline fm_status wk_loop_turn(void *ctx)
{
    wk_loop *l = ctx;
    const fmr_stream stream = {&l->side, wk_read, wk_write, NULL};
    l->side.from = fm_buf_span(&l->turn);
    l->side.at = 0;
    fm_buf_clear(&l->side.to);
    fm_status rc = fmr_peer_run(l->peer, &stream);
    fm_buf_append(&l->heard, l->side.to.data, l->side.to.len);
    fm_buf_clear(&l->turn);
    return rc;
}

static inline fm_status wk_loop_read(void *ctx, void *dst, size_t cap, size_t *got)
{
    wk_loop *l = ctx;
    *got = FM_MIN(cap, l->heard.len - l->read);
    if (*got)
        memcpy(dst, l->heard.data + l->read, *got);
    l->read += *got;
    return FM_OK;
}

static inline void wk_loop_init(wk_loop *l, fm_repo *r, fmr_service service)
{
    memset(l, 0, sizeof *l);
    fm_buf_init(&l->said, 0);
    fm_buf_init(&l->heard, 0);
    fm_buf_init(&l->turn, 0);
    fm_buf_init(&l->side.to, 0);
    tk_ok(fmr_peer_new(&l->peer, r, service));
}

static inline void wk_loop_release(wk_loop *l)
{
    fmr_peer_free(l->peer);
    fm_buf_release(&l->said);
    fm_buf_release(&l->heard);
    fm_buf_release(&l->turn);
    fm_buf_release(&l->side.to);
}

/* The same repository each time: branch main of two versions. */
static inline fm_repo *wk_repo(char **dir)
{
    fm_repo *r = kit_repo(dir);
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    const fm_oid first = kit_branch(r, "main", NULL, 1);
    fm_tree *tree = kit_model(r, 3, 2, 2);
    const fm_oid second = kit_commit(r, tree, "second", &first, 1, KIT_TIME + 9);
    tk_ok(fm_ref_update(r, "refs/heads/main", &second, &first, "made"));
    fm_tree_free(tree);
    return r;
}

typedef struct wk_refs {
    fm_oid oid[8];
    char name[8][FMR_NAME_MAX];
    size_t count;
} wk_refs;

static inline fm_status wk_take_ref(void *ctx, const char *name, const fm_oid *oid,
                                    const fm_oid *peeled)
{
    wk_refs *refs = ctx;
    (void)peeled;
    if (refs->count < FM_ARRAY_LEN(refs->oid)) {
        snprintf(refs->name[refs->count], FMR_NAME_MAX, "%s", name);
        refs->oid[refs->count++] = *oid;
    }
    return FM_OK;
}

/* As fmstore fetches: what the far side has, by every ref; then the refs move. */
static inline fm_status wk_fetch(fmr_far *far, fm_repo *to)
{
    fm_remote m = {.url = {.text = (char[]){"the far side"}}, .far = far};
    wk_refs refs = {.count = 0};
    fm_ref_wish wish[FM_ARRAY_LEN(refs.oid)];
    fm_travel t;
    FM_TRY(fm_remote_refs(&m, wk_take_ref, &refs));
    const fm_fetch f = {.want = refs.oid, .wants = refs.count};
    if (refs.count)
        FM_TRY(fm_remote_fetch(&m, to, &f, &t));
    memset(wish, 0, sizeof wish);
    for (size_t i = 0; i < refs.count; i++)
        wish[i] = (fm_ref_wish){
            .name = refs.name[i], .new_oid = refs.oid[i], .any_old = true, .force = true};
    return fm_refs_move(to, wish, refs.count, false, "fetch");
}

/* As fmstore pushes its branch main, to another name. */
static inline fm_status wk_push(fmr_far *far, fm_repo *from)
{
    fm_remote m = {.url = {.text = (char[]){"the far side"}}, .far = far};
    fm_ref_wish wish = {.name = "refs/heads/pushed"};
    fm_push p = {.wish = &wish, .count = 1};
    fm_travel t;
    FM_TRY(fm_ref_read(from, &wish.new_oid, "refs/heads/main"));
    FM_TRY(fm_remote_push(&m, from, &p, &t));
    return wish.status;
}

/* A true fetch, or a true push of main, between `near` and the peer's `far`. */
static inline void wk_talk(wk_loop *l, fm_repo *near, fm_repo *far, fmr_service service)
{
    fmr_far *f = NULL;
    wk_loop_init(l, far, service);
    const fmr_stream stream = {l, wk_loop_read, wk_loop_write, wk_loop_turn};
    tk_ok(fmr_client_new(&f, &stream, NULL, "the far side", service));
    tk_ok(service == FMR_WRITE ? wk_push(f, near) : wk_fetch(f, near));
    f->ops->close(f);
}

/* Writes `first`, then bytes, as a seed. */
static inline void wk_seed(const char *folder, const char *name, uint8_t first, const fm_buf *bytes)
{
    fm_buf b;
    char *path = fm_asprintf("%s/%s", folder, name);
    fm_buf_init(&b, 0);
    fm_buf_u8(&b, first);
    fm_buf_append(&b, bytes->data, bytes->len);
    assert_non_null(path);
    tk_ok(fm_write_file(path, b.data, b.len));
    fm_buf_release(&b);
    fm_free(path);
}

static inline void wk_sound(const char *dir)
{
    assert_int_equal(kit_faults(dir), 0);
}

#endif
