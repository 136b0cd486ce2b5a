/* exchange_kit.h - a store with every kind of record, and its records sent to another store. */
#ifndef FM_TESTS_KIT_EXCHANGE_H
#define FM_TESTS_KIT_EXCHANGE_H

#include <stdlib.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/exchange.h"
#include "store/txn/put.h"
#include "tests/testkit.h"

enum {
    XK_RAW,
    XK_CODED,
    XK_CHILD,
    XK_GRANDCHILD,
    XK_CAST,
    XK_CAST_CHILD,
    XK_BLOB,
    XK_EMPTY,
    XK_CONST,
    XK_SMALL,
    XK_OBJECTS,
    XK_ELEMS = 900000 /* of the tensors; 2 leaves of BF16, 4 of F32, neither whole */
};

/* Objects in an order in which they may be sent. */
typedef struct xk_store {
    char *root;
    fm_store *s;
    fm_digest id[XK_OBJECTS];
    fm_record_info info[XK_OBJECTS];
} xk_store;

static inline fm_store *xk_open(const char *root)
{
    fm_store *s;
    tk_ok(fm_store_open(&s, root));
    return s;
}

static inline xk_store xk_empty(void)
{
    xk_store x;
    memset(&x, 0, sizeof x);
    x.root = tk_scratch();
    tk_ok(fm_store_init(x.root));
    x.s = xk_open(x.root);
    return x;
}

static inline void xk_release(xk_store *x)
{
    fm_store_close(x->s);
    fm_free(x->root);
}

static inline void xk_put(xk_store *x, int which, fm_dtype dtype, size_t elems, const void *bytes,
                          int parent, const fms_guess *made)
{
    const fm_shape shape = {1, {elems}};
    const fm_span span = fm_span_of(bytes, elems * fm_dtype_get(dtype)->block_bytes);
    fm_txn *t;
    tk_ok(fm_txn_begin(&t, x->s));
    if (made)
        tk_ok(fms_txn_put_made(t, &x->id[which], dtype, &shape, span, made));
    else
        tk_ok(fm_txn_put_tensor(t, &x->id[which], dtype, &shape, span,
                                parent < 0 ? NULL : &x->id[parent], NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
}

static inline void xk_put_blob(xk_store *x, int which, const void *bytes, size_t len)
{
    fm_txn *t;
    tk_ok(fm_txn_begin(&t, x->s));
    tk_ok(fm_txn_put_blob(t, &x->id[which], fm_span_of(bytes, len), NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
}

/* A few elements of each thousand change a little. */
static inline void xk_step(uint8_t *bf16, uint64_t stream)
{
    for (size_t i = 0; i < XK_ELEMS; i += 50)
        bf16[2 * i] ^= (uint8_t)(fm_rng_u64(2, stream, i) & 3);
}

static inline xk_store xk_full(void)
{
    xk_store x = xk_empty();
    uint8_t *bf16 = fm_malloc((size_t)2 * XK_ELEMS), *f32 = fm_malloc((size_t)4 * XK_ELEMS);
    const fms_guess cast = {.recipe = {.op = FMS_OP_CAST}, .parent_count = 1};
    fms_guess made = cast;
    assert_non_null(bf16);
    assert_non_null(f32);
    for (size_t i = 0; i < XK_ELEMS; i++) {
        const float v = (float)(0.02 * fm_rng_normal(1, 7, i));
        fm_put_u16(bf16 + 2 * i, fm_f32_to_bf16(v));
        memcpy(f32 + 4 * i, &v, 4);
    }
    for (size_t i = 0; i < XK_ELEMS; i++)
        f32[4 * i] = (uint8_t)fm_rng_u64(8, 8, i);
    xk_put(&x, XK_CODED, FM_BF16, XK_ELEMS, bf16, -1, NULL);
    xk_step(bf16, 1);
    xk_put(&x, XK_CHILD, FM_BF16, XK_ELEMS, bf16, XK_CODED, NULL);
    xk_step(bf16, 2);
    xk_put(&x, XK_GRANDCHILD, FM_BF16, XK_ELEMS, bf16, XK_CHILD, NULL);
    for (size_t i = 0; i < XK_ELEMS; i++) { /* its cast is made from the grandchild exactly */
        const uint32_t bits = (uint32_t)fm_get_u16(bf16 + 2 * i) << 16;
        fm_put_u32(f32 + 4 * i, bits);
    }
    fm_put_u32(f32 + 400, 1); /* but for a leaf, which differs a little */
    made.parent[0] = x.id[XK_GRANDCHILD];
    xk_put(&x, XK_CAST, FM_F32, XK_ELEMS, f32, -1, &made);
    f32[40] ^= 1;
    xk_put(&x, XK_CAST_CHILD, FM_F32, XK_ELEMS, f32, XK_CAST, NULL);
    for (size_t i = 0; i < (size_t)4 * XK_ELEMS; i++)
        f32[i] = (uint8_t)fm_rng_u64(9, 1, i);
    xk_put(&x, XK_RAW, FM_U8, (size_t)3 * XK_ELEMS, f32, -1, NULL);
    xk_put_blob(&x, XK_BLOB, f32 + 5, 70001);
    xk_put(&x, XK_EMPTY, FM_F32, 0, f32, -1, NULL);
    memset(f32, 0, (size_t)4 * XK_ELEMS);
    xk_put(&x, XK_CONST, FM_F32, XK_ELEMS, f32, -1, NULL);
    xk_put_blob(&x, XK_SMALL, "hello\n", 6);
    for (int i = 0; i < XK_OBJECTS; i++)
        tk_ok(fm_record_info_of(x.s, &x.info[i], &x.id[i]));
    fm_free(bf16);
    fm_free(f32);
    return x;
}

typedef struct xk_sink {
    fm_intake *in;
    uint64_t piece; /* bytes a call; 0: as they come */
    uint64_t left;  /* bytes that still go; then FM_ECANCELLED */
} xk_sink;

static inline fm_status xk_take(void *ctx, const void *data, size_t len)
{
    xk_sink *k = ctx;
    const uint8_t *p = data;
    while (len > 0) {
        const size_t most = k->piece ? FM_MIN(len, (size_t)k->piece) : len;
        const size_t n = (size_t)FM_MIN(k->left, (uint64_t)most);
        if (n == 0)
            return fm_fail(FM_ECANCELLED, "the connection broke");
        fm_status rc = fm_intake_bytes(k->in, p, n);
        if (rc != FM_OK)
            return rc;
        k->left -= n;
        p += n;
        len -= n;
    }
    return FM_OK;
}

/* One record from one store to another; it may not be compared yet. */
static inline fm_status xk_hand(const xk_store *from, int which, fm_intake *in, uint64_t piece)
{
    xk_sink sink = {in, piece, UINT64_MAX};
    fm_status rc = fm_intake_begin(in, &from->info[which], 0);
    FM_THEN(rc, fm_record_send(from->s, &from->info[which], 0, xk_take, &sink));
    FM_THEN(rc, fm_intake_end(in));
    return rc;
}

static inline fm_status xk_send(const xk_store *from, int which, fm_intake *in, uint64_t piece)
{
    fm_status rc = xk_hand(from, which, in, piece);
    FM_THEN(rc, fm_intake_settle(in));
    return rc;
}

/* The first `bytes` of it. */
static inline void xk_send_part(const xk_store *from, int which, fm_intake *in, uint64_t bytes)
{
    xk_sink sink = {in, 1000, bytes};
    tk_ok(fm_intake_begin(in, &from->info[which], 0));
    tk_fails(fm_record_send(from->s, &from->info[which], 0, xk_take, &sink), FM_ECANCELLED,
             "broke");
}

static inline fm_buf xk_record(const xk_store *from, int which);
static inline fm_status xk_gather(void *ctx, const void *data, size_t len)
{
    fm_buf_append(ctx, data, len);
    return fm_buf_ok(ctx);
}

static inline fm_buf xk_record(const xk_store *from, int which)
{
    fm_buf b;
    fm_buf_init(&b, (size_t)1 << 30);
    tk_ok(fm_record_send(from->s, &from->info[which], 0, xk_gather, &b));
    assert_int_equal(b.len, from->info[which].stored_bytes);
    return b;
}

/* The object reads the same in both, and lies in as many bytes. */
static inline void xk_expect(const xk_store *from, int which, fm_store *to)
{
    fm_object_info a, b;
    tk_ok(fm_store_info(from->s, &a, &from->id[which]));
    tk_ok(fm_store_info(to, &b, &from->id[which]));
    assert_int_equal(a.stored_bytes, b.stored_bytes);
    assert_int_equal(a.parent_count, b.parent_count);
    assert_memory_equal(a.parent, b.parent, sizeof a.parent);
    assert_string_equal(a.codec, b.codec);
    uint8_t *x = fm_malloc((size_t)a.bytes + 1), *y = fm_malloc((size_t)a.bytes + 1);
    tk_ok(fm_store_read(from->s, &from->id[which], x, a.bytes));
    tk_ok(fm_store_read(to, &from->id[which], y, a.bytes));
    assert_memory_equal(x, y, (size_t)a.bytes);
    fm_free(x);
    fm_free(y);
}

static inline void xk_print_fault(void *ctx, const char *text)
{
    (void)ctx;
    print_message("fault: %s\n", text);
}

static inline void xk_sound(fm_store *s)
{
    fm_fsck_report report;
    tk_ok(fm_store_fsck(s, true, &report, xk_print_fault, NULL));
    assert_int_equal(report.faults, 0);
}

/* Files in a folder of the repository; 0 where there is none. */
static inline size_t xk_files(const char *root, const char *folder)
{
    fm_names names = {NULL, 0};
    char *dir = fm_path_join(root, folder);
    const size_t n = fm_list_dir(&names, dir) == FM_OK ? names.count : 0;
    fm_names_release(&names);
    fm_free(dir);
    return n;
}

#endif
