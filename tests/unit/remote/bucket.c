/* What a bucket is believed: manifests and heads that lie are refused by name, an object's first
 * record counts, records come in an order in which they can be decoded, and of two writers one
 * wins. */
#include <pthread.h>
#include <string.h>

#include "remote/bucket/bucket.h"
#include "remote/bucket/crew.h"
#include "remote/bucket/door.h"
#include "remote/bucket/heads.h"
#include "remote/bucket/manifest.h"
#include "remote/sync/sync.h"
#include "store/pack/pack.h"
#include "tests/testkit.h"

#define A64 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B64 "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define C40 "cccccccccccccccccccccccccccccccccccccccc"

/* ==== manifests ==== */

static void refused(const char *text, fm_status status, const char *why)
{
    fmr_manifest m;
    tk_fails(fmr_manifest_parse(&m, fm_span_str(text), "list"), status, why);
    assert_int_equal(m.refs + m.packs + m.gits, 0);
}

TEST(a_manifest_comes_back_as_it_was_written)
{
    fmr_manifest m, again;
    fm_buf text, second;
    static const char whole[] =
        "{\"fmstore_bucket\": 1,"
        "\"refs\": [{\"name\": \"refs/heads/x\", \"oid\": \"" C40 "\"},"
        "{\"name\": \"refs/tags/v\", \"oid\": \"" C40 "\", \"commit\": \"" C40 "\"}],"
        "\"packs\": [{\"sha256\": \"" A64 "\", \"bytes\": 640, \"heads_sha256\": \"" B64
        "\", \"heads_bytes\": 256}],"
        "\"lineage\": [{\"sha256\": \"" B64 "\", \"bytes\": 9, \"tips\": [\"" C40 "\"]}]}";
    tk_ok(fmr_manifest_parse(&m, fm_span_str(whole), "list"));
    assert_int_equal(m.refs, 2);
    assert_int_equal(m.pack[0].bytes, 640);
    assert_int_equal(m.git[0].tips, 1);
    fm_buf_init(&text, 0);
    fm_buf_init(&second, 0);
    tk_ok(fmr_manifest_write(&m, &text));
    tk_ok(fmr_manifest_parse(&again, fm_buf_span(&text), "list"));
    tk_ok(fmr_manifest_write(&again, &second));
    assert_string_equal(fm_buf_cstr(&text), fm_buf_cstr(&second));
    fmr_manifest_release(&again);

    static const fm_oid none;
    tk_ok(fmr_manifest_set_ref(&m, "refs/heads/x", &none, &none));
    assert_null(fmr_manifest_ref(&m, "refs/heads/x"));
    assert_non_null(fmr_manifest_ref(&m, "refs/tags/v"));
    m.pack[0].gone = true; /* what is not there any more is not written */
    fm_buf_clear(&text);
    tk_ok(fmr_manifest_write(&m, &text));
    assert_null(strstr(fm_buf_cstr(&text), A64));
    fm_buf_release(&text);
    fm_buf_release(&second);
    fmr_manifest_release(&m);
}

#define PACK(name, bytes, heads, heads_bytes)                                                      \
    "{\"fmstore_bucket\": 1, \"packs\": [{\"sha256\": \"" name "\", \"bytes\": " bytes             \
    ", \"heads_sha256\": \"" heads "\", \"heads_bytes\": " heads_bytes "}]}"
#define GIT(name, bytes, tips)                                                                     \
    "{\"fmstore_bucket\": 1, \"lineage\": [{\"sha256\": \"" name "\", \"bytes\": " bytes           \
    ", \"tips\": " tips "}]}"

TEST(manifests_that_lie_are_refused)
{
    refused("", FM_ECORRUPT, "list");
    refused("{}", FM_ECORRUPT, "is not the list of a bucket");
    refused("<html></html>", FM_ECORRUPT, "list");
    refused("{\"fmstore_bucket\": 2}", FM_EVERSION, "version 2");
    refused(PACK("../../etc/passwd", "640", B64, "256"), FM_ECORRUPT, "\"sha256\"");
    refused(PACK("", "640", B64, "256"), FM_ECORRUPT, "\"sha256\"");
    refused(PACK(A64, "-1", B64, "256"), FM_ECORRUPT, "\"bytes\"");
    refused(PACK(A64, "0", B64, "256"), FM_ECORRUPT, "\"bytes\"");
    refused(PACK(A64, "1e300", B64, "256"), FM_ECORRUPT, "\"bytes\"");
    refused(PACK(A64, "640", "../x", "256"), FM_ECORRUPT, "\"heads_sha256\"");
    refused(PACK(A64, "640", B64, "641"), FM_ECORRUPT, "\"heads_bytes\"");
    refused(PACK(A64, "9000000000000000000", B64, "8000000000000000000"), FM_ECORRUPT,
            "\"heads_bytes\"");
    refused(GIT(A64, "9000000000000000000", "[\"" C40 "\"]"), FM_ECORRUPT, "\"bytes\"");
    refused(GIT("..", "9", "[\"" C40 "\"]"), FM_ECORRUPT, "\"sha256\"");
    refused(GIT(A64, "9", "[]"), FM_ECORRUPT, "\"tips\"");
    refused(GIT(A64, "9", "[7]"), FM_ECORRUPT, "\"tips\"");
    refused("{\"fmstore_bucket\": 1, \"refs\": [{\"name\": \"refs/heads/x\", \"oid\": \"7\"}]}",
            FM_ECORRUPT, "\"oid\"");
    refused("{\"fmstore_bucket\": 1, \"refs\": [{\"name\": \"a\\u0000b\", \"oid\": \"" C40 "\"}]}",
            FM_ECORRUPT, "\"name\"");
    refused("{\"fmstore_bucket\": 1, \"refs\": [{\"name\": \"x\", \"oid\": \"" C40
            "\"}, {\"name\": \"x\", \"oid\": \"" C40 "\"}]}",
            FM_ECORRUPT, "\"name\"");
}

/* ==== heads ==== */

/* A blob's record of one leaf that has so many bytes, coded against others, whose head is appended.
 * Returns the whole record's bytes. */
static uint64_t add_head(fm_buf *out, uint8_t seed, const fm_digest *parent, uint32_t depth,
                         fm_digest *id)
{
    const uint64_t bytes = 1000;
    fms_leaf_row row = {.codec = 0, .stored_bytes = (uint32_t)bytes};
    fm_shape shape = {1, {bytes / 4}};
    fms_record r = {.is_blob = false,
                    .dtype = fm_dtype_parse("F32", 3),
                    .shape = shape,
                    .leaf_count = 1,
                    .bytes = bytes,
                    .payload_bytes = bytes,
                    .depth = depth};
    memset(row.digest.b, seed, sizeof row.digest.b);
    tk_ok(fm_tensor_id_from_leaves(&r.id, r.dtype, &r.shape, bytes, &row.digest));
    if (parent) {
        r.parent_count = 1;
        r.parent[0] = *parent;
    }
    const size_t before = out->len;
    tk_ok(fms_record_head(out, &r, &row));
    *id = r.id;
    return out->len - before + 1024; /* 1000 and padding */
}

static uint64_t pack_bytes(uint64_t records)
{
    return FMS_PACK_HEADER_BYTES + records + FMS_PACK_FOOTER_BYTES;
}

TEST(heads_say_where_records_lie)
{
    fmr_heads h;
    fm_buf text;
    fm_digest a, b;
    fm_record_info info;
    fm_buf_init(&text, 0);
    tk_ok(fmr_heads_init(&h));
    const uint64_t first = add_head(&text, 1, NULL, 0, &a);
    const uint64_t all = first + add_head(&text, 2, &a, 1, &b);
    tk_ok(fmr_heads_add(&h, fm_buf_span(&text), 0, pack_bytes(all), "p.heads"));
    const fmr_place *p = fmr_heads_find(&h, &b);
    assert_int_equal(p->offset, FMS_PACK_HEADER_BYTES + first);
    assert_int_equal(p->stored_bytes, all - first);
    assert_int_equal(p->level, 1);
    fmr_place_info(p, &info);
    assert_memory_equal(&info.parent[0], &a, sizeof a);
    assert_memory_equal(&info.head, text.data + text.len - FM_DIGEST_BYTES, FM_DIGEST_BYTES);

    /* The same object in a later pack, and one that builds on it and says a lesser depth. */
    fm_digest again, c;
    fm_buf_clear(&text);
    uint64_t more = add_head(&text, 2, NULL, 0, &again);
    more += add_head(&text, 3, &b, 1, &c);
    tk_ok(fmr_heads_add(&h, fm_buf_span(&text), 1, pack_bytes(more), "q.heads"));
    assert_int_equal(fmr_heads_find(&h, &again)->pack, 0);
    assert_int_equal(fmr_heads_find(&h, &c)->level, 2);
    fm_buf_release(&text);
    fmr_heads_release(&h);
}

TEST(heads_that_lie_are_refused)
{
    fmr_heads h;
    fm_buf text;
    fm_digest a, b;
    fm_buf_init(&text, 0);
    tk_ok(fmr_heads_init(&h));
    uint64_t all = add_head(&text, 1, NULL, 0, &a);
    const size_t one = text.len;
    all += add_head(&text, 2, NULL, 0, &b);
    const fm_span good = fm_buf_span(&text);
    const uint64_t bytes = pack_bytes(all);
    static const uint64_t lies[] = {0, 1, 64, 128, UINT64_MAX, UINT64_MAX - 63};
    for (size_t i = 0; i < FM_ARRAY_LEN(lies); i++)
        tk_fails(fmr_heads_add(&h, good, 0, lies[i], "p.heads"), FM_ECORRUPT, "p.heads");
    tk_fails(fmr_heads_add(&h, good, 0, bytes + 64, "p.heads"), FM_ECORRUPT, "its records end");
    tk_fails(fmr_heads_add(&h, good, 0, bytes - 64, "p.heads"), FM_ECORRUPT, "leaves the pack");
    tk_fails(fmr_heads_add(&h, fm_span_of(text.data, one), 0, bytes, "p.heads"), FM_ECORRUPT,
             "its records end");
    for (size_t len = one + 1; len < text.len; len += 37) /* cut in the second head */
        tk_fails(fmr_heads_add(&h, fm_span_of(text.data, len), 0, bytes, "p.heads"), FM_ECORRUPT,
                 "p.heads");
    for (size_t at = 0; at < text.len; at += 5) {
        text.data[at] ^= 0x40;
        tk_fails(fmr_heads_add(&h, good, 0, bytes, "p.heads"), FM_ECORRUPT, "p.heads");
        text.data[at] ^= 0x40;
    }
    tk_ok(fmr_heads_add(&h, good, 0, bytes, "p.heads"));
    fm_buf_release(&text);
    fmr_heads_release(&h);
}

/* ==== the order of records ==== */

TEST(what_a_record_is_coded_against_comes_before_it)
{
    fmr_list l;
    fm_digest id[3];
    size_t *order, count;
    memset(id, 0, sizeof id);
    tk_ok(fmr_list_init(&l));
    for (uint8_t i = 0; i < 3; i++) {
        id[i].b[0] = (uint8_t)(i + 1);
        tk_ok(fmr_list_add(&l, &id[i]));
    }
    tk_ok(fmr_list_grow_info(&l));
    memset(l.info, 0, 3 * sizeof *l.info);
    l.there[0] = l.there[1] = l.there[2] = true;
    l.info[0].depth = 1; /* on the second, which another sender has coded in five steps */
    l.info[0].parent_count = 1;
    l.info[0].parent[0] = id[1];
    l.info[1].depth = 5;
    l.info[1].parent_count = 1;
    l.info[1].parent[0] = id[2];
    l.info[2].depth = 4;
    tk_ok(fmr_list_order(&l, &order, &count));
    assert_int_equal(count, 3);
    assert_int_equal(order[0], 2);
    assert_int_equal(order[1], 1);
    assert_int_equal(order[2], 0);
    fm_free(order);
    l.info[2].parent_count = 1; /* a circle ends as well */
    l.info[2].parent[0] = id[0];
    tk_ok(fmr_list_order(&l, &order, &count));
    assert_int_equal(count, 3);
    fm_free(order);
    fmr_list_release(&l);
}

/* ==== a folder ==== */

TEST(of_two_writers_one_wins)
{
    char tag[FMR_TAG_MAX], *dir = tk_scratch();
    fmr_door *d;
    fm_buf now;
    fm_buf_init(&now, 1000);
    tk_ok(fmr_door_folder(&d, dir));
    tk_fails(d->ops->get(d, FMR_MANIFEST_NAME, 0, 0, &now, tag), FM_ENOTFOUND, NULL);
    tk_ok(d->ops->put(d, FMR_MANIFEST_NAME, fm_span_str("one"), ""));
    tk_fails(d->ops->put(d, FMR_MANIFEST_NAME, fm_span_str("two"), ""), FM_ECONFLICT, "first");
    tk_ok(d->ops->get(d, FMR_MANIFEST_NAME, 0, 0, &now, tag));
    tk_ok(d->ops->put(d, FMR_MANIFEST_NAME, fm_span_str("two"), tag));
    tk_fails(d->ops->put(d, FMR_MANIFEST_NAME, fm_span_str("three"), tag), FM_ECONFLICT, "first");
    fm_buf_clear(&now);
    tk_ok(d->ops->get(d, FMR_MANIFEST_NAME, 0, 0, &now, NULL));
    assert_string_equal(fm_buf_cstr(&now), "two");
    fm_buf_clear(&now);
    tk_fails(d->ops->get(d, FMR_MANIFEST_NAME, 2, 2, &now, NULL), FM_ECORRUPT, "has 3 bytes");
    tk_fails(d->ops->get(d, FMR_MANIFEST_NAME, UINT64_MAX, 2, &now, NULL), FM_ECORRUPT, NULL);
    d->ops->close(d);
    fm_buf_release(&now);
    fm_free(dir);
}

static fm_status note(void *ctx, const char *name, const fm_oid *oid, const fm_oid *peeled)
{
    (void)oid;
    (void)peeled;
    fm_buf_printf(ctx, "%s ", name);
    return fm_buf_ok(ctx);
}

TEST(a_folder_is_a_bucket_once_it_is_made_one)
{
    char *dir = tk_scratch();
    fmr_far *f;
    fm_buf names;
    assert_false(fmr_is_bucket(dir));
    tk_fails(fmr_open_bucket_folder(&f, dir, FMR_WRITE), FM_ENOTFOUND, "no repository of fmstore");
    tk_ok(fm_remote_make_bucket(dir));
    tk_fails(fm_remote_make_bucket(dir), FM_EEXISTS, "bucket already");
    assert_true(fmr_is_bucket(dir));
    tk_ok(fmr_open_bucket_folder(&f, dir, FMR_READ));
    fm_buf_init(&names, 1000);
    tk_ok(f->ops->refs(f, note, &names));
    assert_int_equal(names.len, 0);
    f->ops->close(f);
    tk_fails(fmr_open_bucket_http(&f, "http://127.0.0.1:1/x", FMR_WRITE, NULL), FM_EREFUSED,
             "can only be read");
    tk_fails(fmr_open_bucket_s3(&f, "b/../c", "", FMR_READ), FM_EINVAL, "no name of a bucket");
    tk_fails(fmr_open_bucket_s3(&f, "models", "a/../b", FMR_READ), FM_EINVAL, "'..'");
    fm_buf_release(&names);
    fm_free(dir);
}

/* ==== threads ==== */

typedef struct jobs {
    pthread_mutex_t mutex;
    unsigned done;
} jobs;

static fm_status job(void *ctx, unsigned worker, unsigned slot)
{
    jobs *j = ctx;
    (void)worker;
    (void)pthread_mutex_lock(&j->mutex);
    j->done++;
    (void)pthread_mutex_unlock(&j->mutex);
    return slot == 3 ? fm_fail(FM_EIO, "slot %u failed", slot) : FM_OK;
}

TEST(a_crew_does_all_jobs_and_carries_their_failures)
{
    jobs j = {PTHREAD_MUTEX_INITIALIZER, 0};
    fmr_crew *c;
    tk_ok(fmr_crew_new(&c, 3, job, &j));
    for (unsigned round = 0; round < 50; round++)
        for (unsigned slot = 0; slot < 8; slot++) {
            if (round && slot == 3)
                tk_fails(fmr_crew_wait(c, slot), FM_EIO, "slot 3 failed");
            else
                tk_ok(fmr_crew_wait(c, slot));
            fmr_crew_give(c, slot);
        }
    for (unsigned slot = 0; slot < 8; slot++)
        fm_ignore(fmr_crew_wait(c, slot), "they were looked at");
    assert_int_equal(j.done, 400);
    fmr_crew_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_manifest_comes_back_as_it_was_written),
        cmocka_unit_test(manifests_that_lie_are_refused),
        cmocka_unit_test(heads_say_where_records_lie),
        cmocka_unit_test(heads_that_lie_are_refused),
        cmocka_unit_test(what_a_record_is_coded_against_comes_before_it),
        cmocka_unit_test(of_two_writers_one_wins),
        cmocka_unit_test(a_folder_is_a_bucket_once_it_is_made_one),
        cmocka_unit_test(a_crew_does_all_jobs_and_carries_their_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
