/* Records travel between stores as they lie: what comes is compared, what is wrong is refused and
 * loses nothing, what broke off goes on. */
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/cancel.h"
#include "store/exchange/intake.h"
#include "store/gc/gc.h"
#include "tests/kit/exchange_kit.h"

static xk_store from; /* every kind of record */
static cpu_set_t all_cpus;

static fm_intake *intake(fm_store *s)
{
    fm_intake *in;
    tk_ok(fm_intake_open(&in, s));
    return in;
}

static int set_up(void **state)
{
    (void)state;
    from = xk_full();
    return sched_getaffinity(0, sizeof all_cpus, &all_cpus);
}

static int tear_down(void **state)
{
    (void)state;
    xk_release(&from);
    return 0;
}

/* The only file of incoming/. */
static char *the_file(const char *root)
{
    fm_names names;
    char *dir = fm_path_join(root, "incoming");
    tk_ok(fm_list_dir(&names, dir));
    assert_int_equal(names.count, 1);
    char *path = fm_path_join(dir, names.name[0]);
    fm_names_release(&names);
    fm_free(dir);
    return path;
}

static void change(const char *path, uint64_t at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    const int byte = fgetc(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    assert_true(fputc(byte ^ 1, f) != EOF);
    assert_int_equal(fclose(f), 0);
}

/* ==== what travels ========================================================================= */

TEST(every_kind_of_record_is_sent)
{
    fm_coding coding;
    assert_int_equal(from.info[XK_CODED].depth, 0);
    assert_int_equal(from.info[XK_CHILD].depth, 1);
    assert_int_equal(from.info[XK_GRANDCHILD].depth, 2);
    tk_ok(fm_store_coding(from.s, &coding, &from.id[XK_CAST]));
    assert_string_equal(coding.recipe, "cast");
    assert_int_equal(from.info[XK_CAST].depth, 3);
    assert_int_equal(from.info[XK_CAST_CHILD].depth, 4);
    assert_true(from.info[XK_CAST].stored_bytes < 4 * XK_ELEMS / 100);
    tk_ok(fm_store_coding(from.s, &coding, &from.id[XK_RAW]));
    assert_string_equal(coding.codec[0].name, "raw");
    assert_int_equal(from.info[XK_EMPTY].bytes, 0);
}

static void all_in_pieces_of(uint64_t piece)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    fm_intake_stats stats;
    uint64_t bytes = 0;
    for (int i = 0; i < XK_OBJECTS; i++) {
        assert_false(fm_intake_has(in, &from.id[i]));
        tk_ok(xk_send(&from, i, in, piece));
        assert_true(fm_intake_has(in, &from.id[i]));
        assert_false(fm_store_has(to.s, &from.id[i])); /* until it is published */
        bytes += from.info[i].stored_bytes;
    }
    tk_ok(fm_intake_publish(in, &stats));
    assert_int_equal(stats.objects, XK_OBJECTS);
    assert_int_equal(stats.bytes, bytes);
    fm_intake_close(in);
    fm_store_close(to.s);
    to.s = xk_open(to.root);
    for (int i = 0; i < XK_OBJECTS; i++)
        xk_expect(&from, i, to.s);
    xk_sound(to.s);
    assert_int_equal(xk_files(to.root, "packs"), 1);
    assert_int_equal(xk_files(to.root, "incoming"), 0);
    xk_release(&to);
}

TEST(all_records_arrive_as_they_lie)
{
    all_in_pieces_of(0);
    all_in_pieces_of(63);
    all_in_pieces_of(200001);
}

TEST(what_is_known_passes_quietly)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    fm_intake_stats stats;
    tk_ok(xk_send(&from, XK_CODED, in, 0));
    tk_ok(xk_send(&from, XK_CODED, in, 0)); /* received before */
    tk_ok(fm_intake_publish(in, NULL));
    tk_ok(xk_send(&from, XK_CODED, in, 0)); /* stored before */
    tk_ok(xk_send(&from, XK_CHILD, in, 0));
    tk_ok(fm_intake_publish(in, &stats));
    tk_ok(fm_intake_publish(in, &stats)); /* nothing more */
    assert_int_equal(stats.objects, 2);
    assert_int_equal(stats.bytes,
                     from.info[XK_CODED].stored_bytes + from.info[XK_CHILD].stored_bytes);
    tk_ok(fm_intake_begin(in, &from.info[XK_CODED], 0));
    tk_fails(fm_intake_end(in), FM_ECORRUPT, "0 of");
    fm_intake_close(in);
    assert_int_equal(xk_files(to.root, "packs"), 2);
    xk_sound(to.s);
    xk_release(&to);
}

TEST(a_full_file_is_published_by_itself)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    fm_intake_stats stats;
    in->roll_bytes = 1 << 20;
    for (int i = 0; i < XK_OBJECTS; i++)
        tk_ok(xk_send(&from, i, in, 0));
    assert_true(xk_files(to.root, "packs") >= 2);
    assert_true(fm_store_has(to.s, &from.id[XK_RAW]));
    tk_ok(fm_intake_publish(in, &stats));
    assert_int_equal(stats.objects, XK_OBJECTS);
    fm_intake_close(in);
    for (int i = 0; i < XK_OBJECTS; i++)
        xk_expect(&from, i, to.s);
    xk_sound(to.s);
    xk_release(&to);
}

/* XK_CODED as the last of a chain that only the receiver has. */
static xk_store with_coded_at_depth(unsigned depth)
{
    xk_store to = xk_empty();
    uint8_t *bytes = fm_malloc((size_t)2 * XK_ELEMS);
    fm_object_info info;
    tk_ok(fm_store_read(from.s, &from.id[XK_CODED], bytes, (uint64_t)2 * XK_ELEMS));
    for (unsigned k = 0; k < depth; k++)
        bytes[1000 + 2 * (size_t)k] ^= 1;
    for (unsigned k = 0; k <= depth; k++) {
        xk_put(&to, (int)k, FM_BF16, XK_ELEMS, bytes, (int)k - 1, NULL);
        bytes[1000 + 2 * (size_t)k] ^= 1;
    }
    fm_free(bytes);
    assert_true(fm_digest_eq(&to.id[depth], &from.id[XK_CODED]));
    tk_ok(fm_store_info(to.s, &info, &from.id[XK_CODED]));
    assert_int_equal(info.chain_depth, depth);
    return to;
}

/* The receiver has the parent, but deeper than the child thinks. */
TEST(a_parent_may_be_deeper_here)
{
    xk_store to = with_coded_at_depth(3);
    fm_object_info info;
    fm_intake *in = intake(to.s);
    tk_ok(xk_send(&from, XK_CODED, in, 0)); /* known */
    tk_ok(xk_send(&from, XK_CHILD, in, 0));
    tk_ok(xk_send(&from, XK_GRANDCHILD, in, 0));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    tk_ok(fm_store_info(to.s, &info, &from.id[XK_CHILD]));
    assert_int_equal(info.chain_depth, 4);
    tk_ok(fm_store_info(to.s, &info, &from.id[XK_GRANDCHILD]));
    assert_int_equal(info.chain_depth, 5);
    xk_expect(&from, XK_CHILD, to.s);
    xk_expect(&from, XK_GRANDCHILD, to.s);
    xk_sound(to.s);
    xk_release(&to);
}

TEST(a_parent_at_the_greatest_depth_is_told_with_the_way_out)
{
    xk_store to = with_coded_at_depth(FMS_CHAIN_MAX);
    fm_intake *in = intake(to.s);
    tk_fails(xk_send(&from, XK_CHILD, in, 0), FM_EBASE, "repack --depth");
    fm_intake_close(in);
    xk_release(&to);
    to = with_coded_at_depth(FMS_CHAIN_MAX - 1);
    in = intake(to.s);
    tk_ok(xk_send(&from, XK_CHILD, in, 0));
    tk_fails(xk_send(&from, XK_GRANDCHILD, in, 0), FM_EBASE, "repack --depth");
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    xk_expect(&from, XK_CHILD, to.s);
    xk_sound(to.s);
    xk_release(&to);
}

/* ==== what is refused ====================================================================== */

static fm_status receive(fm_intake *in, const fm_record_info *info, fm_span bytes)
{
    fm_status rc = fm_intake_begin(in, info, 0);
    FM_THEN(rc, fm_intake_bytes(in, bytes.data, bytes.len));
    FM_THEN(rc, fm_intake_end(in));
    FM_THEN(rc, fm_intake_settle(in));
    return rc;
}

static void expect_refused(fm_intake *in, int which, const fm_buf *b, const char *needle)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&from.id[which], hex);
    fm_status rc = receive(in, &from.info[which], fm_buf_span(b));
    if (rc != FM_ECORRUPT && rc != FM_ELIMIT && rc != FM_EVERSION)
        fail_msg("object %d: status %d, %s", which, (int)rc, fm_error_text());
    assert_non_null(strstr(fm_error_text(), hex));
    if (needle)
        assert_non_null(strstr(fm_error_text(), needle));
    assert_false(fm_intake_has(in, &from.id[which]));
}

static void flip_each(fm_intake *in, int which)
{
    fm_buf b = xk_record(&from, which);
    const uint64_t head = fm_get_u32(b.data + 8), payload = fm_get_u64(b.data + 104);
    const uint64_t at[] = {0,
                           9,
                           12,
                           13,
                           14,
                           20,
                           40,
                           97,
                           105,
                           113,
                           117,
                           121,
                           190,
                           192,
                           225,
                           228,
                           head - 33,
                           head - 1,
                           head,
                           head + 9,
                           head + payload / 2,
                           head + payload - 1,
                           b.len - 1};
    for (size_t i = 0; i < FM_ARRAY_LEN(at); i++) {
        if (at[i] >= b.len || (payload == 0 && at[i] >= head))
            continue;
        if (which == XK_CAST_CHILD && at[i] == head) /* the length of a row: all rows are alike */
            continue;
        b.data[at[i]] ^= 0x41;
        expect_refused(in, which, &b, at[i] >= head && at[i] < head + payload ? "leaf" : NULL);
        b.data[at[i]] ^= 0x41;
    }
    fm_buf_release(&b);
}

TEST(wrong_bytes_are_refused_and_lose_nothing)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    for (int i = 0; i < XK_OBJECTS; i++) {
        flip_each(in, i);
        tk_ok(xk_send(&from, i, in, 0));
    }
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    for (int i = 0; i < XK_OBJECTS; i++)
        xk_expect(&from, i, to.s);
    xk_sound(to.s);
    xk_release(&to);
}

TEST(a_child_before_its_parent_is_refused_by_name)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&from.id[XK_CHILD], hex);
    tk_fails(xk_send(&from, XK_GRANDCHILD, in, 0), FM_EBASE, hex);
    fm_digest_hex(&from.id[XK_GRANDCHILD], hex);
    tk_fails(xk_send(&from, XK_CAST, in, 777), FM_EBASE, hex);
    tk_ok(xk_send(&from, XK_CODED, in, 0));
    tk_ok(xk_send(&from, XK_CHILD, in, 0));
    tk_ok(xk_send(&from, XK_GRANDCHILD, in, 0));
    tk_ok(xk_send(&from, XK_CAST, in, 0));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    xk_expect(&from, XK_CAST, to.s);
    xk_sound(to.s);
    xk_release(&to);
}

TEST(more_and_fewer_bytes_are_refused)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    fm_buf b = xk_record(&from, XK_CODED);
    const fm_record_info *info = &from.info[XK_CODED];
    for (size_t n = 0; n < b.len; n += n < 400 ? 37 : 300000) {
        tk_ok(fm_intake_begin(in, info, 0));
        tk_ok(fm_intake_bytes(in, b.data, n));
        tk_fails(fm_intake_end(in), FM_ECORRUPT, "bytes came");
    }
    tk_ok(fm_intake_begin(in, info, 0));
    tk_ok(fm_intake_bytes(in, b.data, b.len));
    tk_fails(fm_intake_bytes(in, "x", 1), FM_ECORRUPT, "more than its");
    tk_fails(fm_intake_bytes(in, "x", 1), FM_EINVAL, "not begun");
    tk_fails(fm_intake_end(in), FM_EINVAL, "not begun");
    tk_ok(fm_intake_begin(in, info, 0));
    tk_fails(fm_intake_begin(in, info, 0), FM_EINVAL, "has ended");
    tk_fails(fm_intake_publish(in, NULL), FM_EINVAL, "not ended");
    tk_ok(fm_intake_bytes(in, b.data, b.len));
    tk_ok(fm_intake_end(in));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    xk_expect(&from, XK_CODED, to.s);
    fm_buf_release(&b);
    xk_release(&to);
}

TEST(claims_that_no_record_meets_are_refused_before_a_byte)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    const fm_record_info good = from.info[XK_CODED];
    fm_record_info i = good;
    i.bytes = FM_MAX_TENSOR_BYTES + 1;
    tk_fails(fm_intake_begin(in, &i, 0), FM_ELIMIT, "decoded bytes");
    i = good;
    i.stored_bytes = UINT64_MAX - 63;
    tk_fails(fm_intake_begin(in, &i, 0), FM_ELIMIT, "stored bytes");
    i.stored_bytes = good.stored_bytes + 1;
    tk_fails(fm_intake_begin(in, &i, 0), FM_ELIMIT, "stored bytes");
    i.stored_bytes = 192;
    tk_fails(fm_intake_begin(in, &i, 0), FM_ELIMIT, "stored bytes");
    i.stored_bytes = 3 * good.bytes / 64 * 64;
    tk_fails(fm_intake_begin(in, &i, 0), FM_ELIMIT, "stored bytes");
    i = good;
    i.depth = FMS_CHAIN_MAX + 1;
    tk_fails(fm_intake_begin(in, &i, 0), FM_ELIMIT, "depth");
    i = good;
    i.parent_count = FM_PARENTS_MAX + 1;
    tk_fails(fm_intake_begin(in, &i, 0), FM_ELIMIT, "parents");
    tk_fails(fm_intake_begin(in, &good, 64), FM_EINVAL, "not here");
    assert_int_equal(xk_files(to.root, "incoming"), 0);
    fm_intake_close(in);
    xk_release(&to);
}

TEST(a_head_that_is_another_s_is_refused)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    fm_buf b = xk_record(&from, XK_CODED);
    fm_record_info i = from.info[XK_CODED];
    i.id.b[3] ^= 1;
    tk_fails(receive(in, &i, fm_buf_span(&b)), FM_ECORRUPT, "another's");
    i = from.info[XK_CODED];
    i.head.b[3] ^= 1;
    tk_fails(receive(in, &i, fm_buf_span(&b)), FM_ECORRUPT, "another's");
    i = from.info[XK_CODED];
    i.depth = 1;
    tk_fails(receive(in, &i, fm_buf_span(&b)), FM_ECORRUPT, "another's");
    i = from.info[XK_CODED];
    i.parent_count = 1;
    tk_fails(receive(in, &i, fm_buf_span(&b)), FM_ECORRUPT, "another's");
    i = from.info[XK_CODED];
    i.bytes -= 2;
    tk_fails(receive(in, &i, fm_buf_span(&b)), FM_ECORRUPT, "another's");
    i = from.info[XK_CODED];
    i.stored_bytes += 64;
    tk_fails(receive(in, &i, fm_buf_span(&b)), FM_ECORRUPT, "another's");
    tk_ok(receive(in, &from.info[XK_CODED], fm_buf_span(&b)));
    fm_intake_close(in);
    fm_buf_release(&b);
    xk_release(&to);
}

/* A wrong leaf among many: it is named, and what follows it is not written. */
TEST(a_wrong_leaf_is_named_and_ends_the_writing)
{
    const size_t bytes = (size_t)12 << 20;
    xk_store big = xk_empty(), to = xk_empty();
    uint64_t *words = fm_malloc(bytes), size;
    for (size_t i = 0; i < bytes / 8; i++)
        words[i] = fm_rng_u64(4, 4, i);
    xk_put_blob(&big, 0, words, bytes);
    fm_free(words);
    tk_ok(fm_record_info_of(big.s, &big.info[0], &big.id[0]));
    fm_buf b = xk_record(&big, 0);
    b.data[fm_get_u32(b.data + 8) + FM_LEAF_BYTES + 5] ^= 1;
    fm_intake *in = intake(to.s);
    tk_ok(fm_intake_begin(in, &big.info[0], 0));
    tk_ok(fm_intake_bytes(in, b.data, (size_t)9 << 20));
    tk_ok(fms_compare_all(in));
    char *path = the_file(to.root);
    for (size_t at = (size_t)9 << 20; at < (size_t)12 << 20; at += (size_t)1 << 20) {
        tk_ok(fm_intake_bytes(in, b.data + at, (size_t)1 << 20));
        tk_ok(fm_file_bytes(&size, path));
        assert_int_equal(size, 64);
    }
    tk_fails(fm_intake_end(in), FM_ECORRUPT, "leaf 1");
    tk_ok(xk_send(&big, 0, in, 300001));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    xk_expect(&big, 0, to.s);
    fm_free(path);
    fm_buf_release(&b);
    xk_release(&to);
    xk_release(&big);
}

/* ==== compared while more comes ============================================================ */

/* An intake whose caller compares all, as late as it may: without threads. */
static fm_intake *lone_intake(fm_store *s)
{
    cpu_set_t one = all_cpus;
    for (size_t k = 0, n = 0; k < CPU_SETSIZE; k++)
        if (CPU_ISSET(k, &all_cpus) && n++ > 0)
            CPU_CLR(k, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    fm_intake *in = intake(s);
    assert_int_equal(sched_setaffinity(0, sizeof all_cpus, &all_cpus), 0);
    assert_int_equal(in->started, 1);
    return in;
}

static fm_intake *any_intake(fm_store *s, bool lone)
{
    return lone ? lone_intake(s) : intake(s);
}

/* Hands over a record without a wait, one byte of its payload changed. */
static fm_status hand_wrong(fm_intake *in, int which)
{
    fm_buf b = xk_record(&from, which);
    b.data[fm_get_u32(b.data + 8)] ^= 1;
    fm_status rc = fm_intake_begin(in, &from.info[which], 0);
    FM_THEN(rc, fm_intake_bytes(in, b.data, b.len));
    FM_THEN(rc, fm_intake_end(in));
    fm_buf_release(&b);
    return rc;
}

/* Whichever call tells it. */
static void amid_good_ones(int wrong, bool lone)
{
    xk_store to = xk_empty();
    fm_intake *in = any_intake(to.s, lone);
    fm_intake_stats stats;
    char hex[FM_HEX_CHARS + 1];
    fm_status rc = FM_OK;
    fm_digest_hex(&from.id[wrong], hex);
    for (int i = 0; rc == FM_OK && i < XK_OBJECTS; i++)
        rc = i == wrong ? hand_wrong(in, i) : xk_hand(&from, i, in, 0);
    FM_THEN(rc, fm_intake_settle(in));
    tk_fails(rc, FM_ECORRUPT, hex);
    tk_ok(fm_intake_settle(in)); /* it is told once */
    for (int i = 0; i < XK_OBJECTS; i++)
        assert_int_equal(fm_intake_has(in, &from.id[i]), i < wrong);
    tk_ok(fm_intake_publish(in, &stats));
    assert_int_equal(stats.objects, wrong);
    for (int i = wrong; i < XK_OBJECTS; i++)
        tk_ok(xk_hand(&from, i, in, 0));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    for (int i = 0; i < XK_OBJECTS; i++)
        xk_expect(&from, i, to.s);
    xk_sound(to.s);
    xk_release(&to);
}

TEST(a_wrong_record_amid_good_ones_takes_what_follows_it_along)
{
    const int wrong[] = {XK_CODED, XK_CHILD, XK_RAW, XK_BLOB, XK_SMALL};
    for (size_t i = 0; i < FM_ARRAY_LEN(wrong); i++) {
        amid_good_ones(wrong[i], false);
        amid_good_ones(wrong[i], true);
    }
}

/* The close comes before anything was compared: the next intake does it. */
TEST(what_was_not_compared_is_taken_over)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        xk_store to = xk_empty();
        fm_intake *in = lone_intake(to.s);
        tk_ok(xk_hand(&from, XK_CODED, in, 0));
        tk_ok(wrong ? hand_wrong(in, XK_RAW) : xk_hand(&from, XK_RAW, in, 0));
        tk_ok(xk_hand(&from, XK_BLOB, in, 0));
        assert_true(fm_intake_has(in, &from.id[XK_BLOB]));
        assert_int_equal(in->waiting, 3);
        fm_intake_close(in);
        in = intake(to.s);
        assert_true(fm_store_has(to.s, &from.id[XK_CODED]));
        assert_int_equal(fm_store_has(to.s, &from.id[XK_RAW]), !wrong);
        assert_int_equal(fm_store_has(to.s, &from.id[XK_BLOB]), !wrong);
        fm_intake_close(in);
        assert_int_equal(xk_files(to.root, "incoming"), 0);
        xk_sound(to.s);
        xk_release(&to);
    }
}

enum { SMALL_ONES = 3 * FMS_INTAKE_RECORDS };

static void many_small_ones(bool lone)
{
    xk_store many = xk_empty(), to = xk_empty();
    fm_digest *id = fm_calloc(SMALL_ONES, sizeof *id);
    fm_intake *in = any_intake(to.s, lone);
    fm_intake_stats stats;
    for (int i = 0; i < SMALL_ONES; i++) {
        xk_put_blob(&many, 0, &i, sizeof i);
        id[i] = many.id[0];
        tk_ok(fm_record_info_of(many.s, &many.info[0], &id[i]));
        tk_ok(xk_hand(&many, 0, in, 0));
        tk_ok(xk_hand(&many, 0, in, 0)); /* which waits, and passes */
        assert_true(in->waiting < FMS_INTAKE_RECORDS);
        assert_true(fm_intake_has(in, &id[i]));
    }
    tk_ok(fm_intake_publish(in, &stats));
    assert_int_equal(stats.objects, SMALL_ONES);
    for (int i = 0; i < SMALL_ONES; i++)
        assert_true(fm_store_has(to.s, &id[i]));
    fm_intake_close(in);
    xk_sound(to.s);
    fm_free(id);
    xk_release(&to);
    xk_release(&many);
}

TEST(more_records_come_than_may_wait)
{
    many_small_ones(false);
    many_small_ones(true);
}

static void is_bounded(bool lone)
{
    const size_t bytes = (size_t)(FMS_INTAKE_AHEAD_BYTES + (8 << 20)), piece = (size_t)1 << 20;
    xk_store big = xk_empty(), to = xk_empty();
    uint64_t *words = fm_malloc(bytes);
    for (size_t i = 0; i < bytes / 8; i++)
        words[i] = fm_rng_u64(4, 5, i);
    xk_put_blob(&big, 0, words, bytes);
    fm_free(words);
    tk_ok(fm_record_info_of(big.s, &big.info[0], &big.id[0]));
    fm_buf b = xk_record(&big, 0);
    fm_intake *in = any_intake(to.s, lone);
    tk_ok(fm_intake_begin(in, &big.info[0], 0));
    uint64_t most = 0;
    for (size_t at = 0; at < b.len; at += piece) {
        tk_ok(fm_intake_bytes(in, b.data + at, FM_MIN(piece, b.len - at)));
        (void)pthread_mutex_lock(&in->lock);
        most = FM_MAX(most, in->behind);
        (void)pthread_mutex_unlock(&in->lock);
    }
    assert_true(most <= FMS_INTAKE_AHEAD_BYTES);
    /* Without threads not before it has to; as much waits for the file's digest. */
    assert_true(!lone || most > FMS_INTAKE_AHEAD_BYTES / 2 - 4 * piece);
    fm_cancel(true);
    fm_status rc = fm_intake_end(in);
    FM_THEN(rc, fm_intake_settle(in));
    tk_fails(rc, FM_ECANCELLED, NULL);
    fm_intake_close(in);
    fm_cancel(false);
    in = intake(to.s);
    assert_true(fm_store_has(to.s, &big.id[0]));
    fm_intake_close(in);
    xk_expect(&big, 0, to.s);
    fm_buf_release(&b);
    xk_release(&to);
    xk_release(&big);
}

TEST(what_waits_is_bounded_and_a_stop_keeps_it)
{
    is_bounded(false);
    is_bounded(true);
}

/* ==== what broke off ======================================================================= */

static uint64_t expect_cut(fm_intake *in, int which)
{
    fm_digest id, head;
    uint64_t bytes;
    assert_true(fm_intake_cut(in, &id, &head, &bytes));
    assert_true(fm_digest_eq(&id, &from.id[which]));
    assert_true(fm_digest_eq(&head, &from.info[which].head));
    return bytes;
}

static bool is_cut(fm_intake *in)
{
    fm_digest id, head;
    uint64_t bytes;
    return fm_intake_cut(in, &id, &head, &bytes);
}

static void go_on(fm_intake *in, int which, uint64_t at)
{
    xk_sink sink = {in, 0, UINT64_MAX};
    tk_ok(fm_intake_begin(in, &from.info[which], at));
    tk_ok(fm_record_send(from.s, &from.info[which], at, xk_take, &sink));
    tk_ok(fm_intake_end(in));
}

static void cut_at(uint64_t at)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    const uint64_t head = 320; /* 192 + 2 * 40 + 32, rounded up */
    tk_ok(xk_send(&from, XK_CODED, in, 0));
    tk_ok(xk_send(&from, XK_BLOB, in, 0));
    xk_send_part(&from, XK_CHILD, in, at);
    fm_intake_close(in);
    assert_false(fm_store_has(to.s, &from.id[XK_CODED]));
    in = intake(to.s);
    assert_true(fm_store_has(to.s, &from.id[XK_CODED]));
    assert_true(fm_store_has(to.s, &from.id[XK_BLOB]));
    assert_int_equal(is_cut(in), at >= head);
    if (is_cut(in)) {
        assert_int_equal(expect_cut(in, XK_CHILD), at);
        tk_fails(fm_intake_begin(in, &from.info[XK_CHILD], at - 1), FM_EINVAL, "not here");
        go_on(in, XK_CHILD, at);
    } else {
        tk_ok(xk_send(&from, XK_CHILD, in, 0));
    }
    assert_false(is_cut(in));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    xk_expect(&from, XK_CODED, to.s);
    xk_expect(&from, XK_CHILD, to.s);
    xk_sound(to.s);
    assert_int_equal(xk_files(to.root, "incoming"), 0);
    xk_release(&to);
}

TEST(a_cut_record_goes_on_at_its_byte)
{
    const uint64_t whole = from.info[XK_CHILD].stored_bytes;
    const uint64_t at[] = {1, 191, 192, 319, 320, 321, 5000, whole / 2, whole - 1};
    for (size_t i = 0; i < FM_ARRAY_LEN(at); i++)
        cut_at(at[i]);
}

TEST(a_cut_record_is_kept_over_closes_and_dropped_by_another)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    xk_send_part(&from, XK_RAW, in, 1500000);
    fm_intake_close(in);
    for (int i = 0; i < 3; i++) {
        in = intake(to.s);
        assert_int_equal(expect_cut(in, XK_RAW), 1500000);
        tk_ok(fm_intake_publish(in, NULL)); /* which leaves it */
        assert_int_equal(expect_cut(in, XK_RAW), 1500000);
        fm_intake_close(in);
    }
    in = intake(to.s);
    tk_ok(fm_intake_begin(in, &from.info[XK_RAW], 1500000)); /* and broke off at once */
    fm_intake_close(in);
    in = intake(to.s);
    assert_int_equal(expect_cut(in, XK_RAW), 1500000);
    tk_ok(xk_send(&from, XK_SMALL, in, 0));
    assert_false(is_cut(in));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    in = intake(to.s);
    assert_false(is_cut(in));
    fm_intake_close(in);
    xk_expect(&from, XK_SMALL, to.s);
    assert_int_equal(xk_files(to.root, "incoming"), 0);
    xk_release(&to);
}

TEST(of_several_cut_records_the_longest_is_kept)
{
    xk_store to = xk_empty();
    fm_intake *in[3];
    fm_store *s[3];
    for (int i = 0; i < 3; i++) {
        s[i] = xk_open(to.root);
        in[i] = intake(s[i]); /* beside the living ones, whose files are theirs */
        assert_false(is_cut(in[i]));
    }
    tk_ok(xk_send(&from, XK_CODED, in[0], 0));
    xk_send_part(&from, XK_CHILD, in[0], 4000);
    tk_ok(xk_send(&from, XK_BLOB, in[1], 0));
    xk_send_part(&from, XK_RAW, in[1], 2000000);
    xk_send_part(&from, XK_CONST, in[2], 400);
    for (int i = 0; i < 3; i++) {
        fm_intake_close(in[i]);
        fm_store_close(s[i]);
    }
    assert_int_equal(xk_files(to.root, "incoming"), 3);
    fm_intake *next = intake(to.s);
    assert_int_equal(expect_cut(next, XK_RAW), 2000000);
    assert_int_equal(xk_files(to.root, "incoming"), 1);
    assert_true(fm_store_has(to.s, &from.id[XK_CODED]));
    assert_true(fm_store_has(to.s, &from.id[XK_BLOB]));
    go_on(next, XK_RAW, 2000000);
    tk_ok(fm_intake_publish(next, NULL));
    fm_intake_close(next);
    xk_expect(&from, XK_RAW, to.s);
    xk_sound(to.s);
    xk_release(&to);
}

/* A power cut may tear what was not synced: it is not published, and what came before it is. */
TEST(a_torn_file_is_taken_over_up_to_the_tear)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    tk_ok(xk_send(&from, XK_CODED, in, 0));
    tk_ok(xk_send(&from, XK_BLOB, in, 0));
    tk_ok(xk_send(&from, XK_CONST, in, 0));
    fm_intake_close(in);
    char *path = the_file(to.root);
    change(path, 64 + from.info[XK_CODED].stored_bytes + 3000);
    fm_free(path);
    in = intake(to.s);
    assert_true(fm_store_has(to.s, &from.id[XK_CODED]));
    assert_false(fm_store_has(to.s, &from.id[XK_BLOB]));
    assert_false(is_cut(in));
    tk_ok(xk_send(&from, XK_BLOB, in, 0));
    xk_send_part(&from, XK_RAW, in, 900000);
    fm_intake_close(in);
    path = the_file(to.root);
    change(path, 64 + from.info[XK_BLOB].stored_bytes + 500000); /* in the cut record */
    fm_free(path);
    in = intake(to.s);
    assert_int_equal(expect_cut(in, XK_RAW), 900000);
    xk_sink sink = {in, 0, UINT64_MAX};
    tk_ok(fm_intake_begin(in, &from.info[XK_RAW], 900000));
    tk_ok(fm_record_send(from.s, &from.info[XK_RAW], 900000, xk_take, &sink));
    fm_status rc = fm_intake_end(in);
    FM_THEN(rc, fm_intake_settle(in));
    tk_fails(rc, FM_ECORRUPT, "leaf 0");
    tk_ok(xk_send(&from, XK_RAW, in, 0));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    xk_expect(&from, XK_RAW, to.s);
    xk_expect(&from, XK_BLOB, to.s);
    xk_sound(to.s);
    xk_release(&to);
}

TEST(foreign_files_in_incoming_harm_nothing)
{
    xk_store to = xk_empty();
    char *dir = fm_path_join(to.root, "incoming"), *file = fm_path_join(dir, "tmp-1-0"),
         *folder = fm_path_join(dir, "folder"), *pipe = fm_path_join(dir, "pipe");
    tk_ok(fm_make_dirs(folder));
    assert_int_equal(mkfifo(pipe, 0600), 0);
    for (int i = 0; i < 4; i++) {
        uint8_t bytes[300] = {0};
        if (i > 1)
            fms_pack_header(bytes, FMS_PACK_RECIPES);
        if (i > 2)
            memset(bytes + 64, 0xff, sizeof bytes - 64);
        tk_ok(fm_write_file(file, bytes, i == 0 ? 0 : sizeof bytes));
        fm_intake *in = intake(to.s);
        assert_false(is_cut(in));
        assert_false(fm_path_exists(file));
        tk_ok(fms_incoming_sweep(to.root, INT64_MAX));
        fm_intake_close(in);
    }
    assert_int_equal(xk_files(to.root, "packs"), 0);
    fm_free(dir);
    fm_free(file);
    fm_free(folder);
    fm_free(pipe);
    xk_release(&to);
}

/* A power cut may bring back the name under which a published pack came. */
TEST(a_published_pack_is_never_cut_by_its_old_name)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    fm_names names;
    tk_ok(xk_send(&from, XK_CODED, in, 0));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    char *packs = fm_path_join(to.root, "packs"),
         *again = fm_path_join(to.root, "incoming/tmp-1-0");
    tk_ok(fm_list_dir(&names, packs));
    char *pack = fm_path_join(packs, names.name[0]);
    assert_int_equal(link(pack, again), 0);
    in = intake(to.s);
    fm_intake_close(in);
    assert_false(fm_path_exists(again));
    assert_int_equal(xk_files(to.root, "packs"), 1);
    xk_sound(to.s);
    fm_names_release(&names);
    fm_free(packs);
    fm_free(pack);
    fm_free(again);
    xk_release(&to);
}

TEST(a_stop_on_request_keeps_what_came)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    tk_ok(xk_send(&from, XK_CODED, in, 0));
    fm_cancel(true);
    tk_fails(xk_send(&from, XK_CHILD, in, 0), FM_ECANCELLED, NULL);
    fm_intake_close(in);
    fm_cancel(false);
    in = intake(to.s);
    assert_true(fm_store_has(to.s, &from.id[XK_CODED]));
    assert_true(fm_store_has(to.s, &from.id[XK_CHILD]));
    fm_intake_close(in);
    xk_release(&to);
}

/* ==== gc =================================================================================== */

TEST(gc_removes_dead_files_that_are_old_enough)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    int64_t now;
    xk_send_part(&from, XK_RAW, in, 900000);
    char *path = the_file(to.root);
    tk_ok(fms_incoming_sweep(to.root, INT64_MAX)); /* its owner lives */
    assert_true(fm_path_exists(path));
    fm_intake_close(in);
    tk_ok(fm_file_time(&now, path));
    tk_ok(fms_incoming_sweep(to.root, now / 1000000000 - 1));
    tk_ok(fms_incoming_sweep(to.root, INT64_MIN));
    assert_true(fm_path_exists(path));
    tk_ok(fms_incoming_sweep(to.root, now / 1000000000));
    assert_false(fm_path_exists(path));
    fm_free(path);
    xk_store none = xk_empty(); /* which has no such folder */
    tk_ok(fms_incoming_sweep(none.root, INT64_MAX));
    xk_release(&none);
    xk_release(&to);
}

/* Nothing is reached: what is there is condemned. */
static void condemn_all(fm_store *s)
{
    fms_gc *g;
    const fms_gc_opts o = {.now = 1000, .expire = INT64_MIN, .depth = FMS_CHAIN_MAX};
    tk_ok(fms_gc_open(&g, s, &o));
    tk_ok(fms_gc_condemn(g, NULL, 0));
    tk_ok(fms_gc_rewrite(g));
    tk_ok(fms_gc_enter(g));
    tk_ok(fms_gc_remove(g));
    tk_ok(fms_gc_leave(g));
    fms_gc_close(g);
}

TEST(what_gc_condemned_is_received_again)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    fm_intake_stats stats;
    tk_ok(xk_send(&from, XK_CODED, in, 0));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    fm_store_lease_end(to.s);
    condemn_all(to.s);
    fm_store_close(to.s);
    to.s = xk_open(to.root);
    in = intake(to.s);
    assert_true(fm_store_has(to.s, &from.id[XK_CODED]));
    assert_false(fm_intake_has(in, &from.id[XK_CODED]));
    tk_fails(xk_send(&from, XK_CHILD, in, 0), FM_EBASE, NULL);
    tk_ok(xk_send(&from, XK_CODED, in, 0));
    tk_ok(xk_send(&from, XK_CHILD, in, 0));
    tk_ok(fm_intake_publish(in, &stats));
    assert_int_equal(stats.objects, 2);
    fm_intake_close(in);
    xk_expect(&from, XK_CHILD, to.s);
    xk_release(&to);
}

/* A gc at the same time deletes nothing that came: the lease names the pack. */
TEST(gc_leaves_what_was_published_to_its_lease)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    fm_store *other = xk_open(to.root);
    tk_ok(xk_send(&from, XK_CODED, in, 0));
    tk_ok(fm_intake_publish(in, NULL));
    xk_send_part(&from, XK_RAW, in, 900000);
    fms_gc *g;
    const fms_gc_opts o = {.now = 1000, .expire = INT64_MAX, .depth = FMS_CHAIN_MAX};
    tk_ok(fms_gc_open(&g, other, &o));
    tk_ok(fms_gc_condemn(g, NULL, 0));
    tk_ok(fms_gc_rewrite(g));
    tk_ok(fms_gc_enter(g));
    tk_ok(fms_gc_remove(g));
    tk_ok(fms_gc_leave(g));
    assert_int_equal(fms_gc_result(g)->gone_objects, 0);
    fms_gc_close(g);
    fm_store_close(other);
    fm_intake_close(in);
    xk_expect(&from, XK_CODED, to.s);
    xk_sound(to.s);
    xk_release(&to);
}

/* ==== the sender =========================================================================== */

static fm_status count_bytes(void *ctx, const void *data, size_t len)
{
    (void)data;
    assert_true(len > 0 && len <= (size_t)1 << 20);
    *(uint64_t *)ctx += len;
    return FM_OK;
}

TEST(the_sender_gives_any_rest_of_a_record)
{
    const fm_record_info *i = &from.info[XK_RAW];
    uint64_t n = 0;
    tk_ok(fm_record_send(from.s, i, 0, count_bytes, &n));
    assert_int_equal(n, i->stored_bytes);
    n = 0;
    tk_ok(fm_record_send(from.s, i, 12345, count_bytes, &n));
    assert_int_equal(n, i->stored_bytes - 12345);
    n = 0;
    tk_ok(fm_record_send(from.s, i, i->stored_bytes, count_bytes, &n));
    assert_int_equal(n, 0);
    tk_fails(fm_record_send(from.s, i, i->stored_bytes + 1, count_bytes, &n), FM_EINVAL, "has");
    fm_record_info other = *i;
    other.head.b[0] ^= 1;
    tk_fails(fm_record_send(from.s, &other, 0, count_bytes, &n), FM_ENOTFOUND, "ask anew");
    other = *i;
    other.id.b[0] ^= 1;
    tk_fails(fm_record_send(from.s, &other, 0, count_bytes, &n), FM_ENOTFOUND, "ask anew");
    tk_fails(fm_record_info_of(from.s, &other, &other.id), FM_ENOTFOUND, "not in the store");
}

/* Of an object's records the shallowest goes, so that a parent's depth is less than its child's. */
TEST(the_sender_prefers_the_record_of_least_depth)
{
    xk_store to = xk_empty();
    uint8_t *bytes = fm_malloc((size_t)2 * XK_ELEMS);
    tk_ok(fm_store_read(from.s, &from.id[XK_CODED], bytes, (uint64_t)2 * XK_ELEMS));
    bytes[1000] ^= 1;
    xk_put(&to, 0, FM_BF16, XK_ELEMS, bytes, -1, NULL);
    tk_ok(fm_store_read(from.s, &from.id[XK_CODED], bytes, (uint64_t)2 * XK_ELEMS));
    xk_put(&to, 1, FM_BF16, XK_ELEMS, bytes, 0, NULL);
    fm_free(bytes);
    tk_ok(fm_record_info_of(to.s, &to.info[1], &to.id[1]));
    assert_int_equal(to.info[1].depth, 1);
    fm_names names;
    char *packs = fm_path_join(from.root, "packs");
    tk_ok(fm_list_dir(&names, packs));
    for (size_t i = 0; i < names.count; i++) { /* another process puts its packs there */
        char *a = fm_asprintf("%s/packs/%s", from.root, names.name[i]);
        char *b = fm_asprintf("%s/packs/%s", to.root, names.name[i]);
        assert_int_equal(link(a, b), 0);
        fm_free(a);
        fm_free(b);
    }
    fm_names_release(&names);
    fm_free(packs);
    fm_store_close(to.s);
    to.s = xk_open(to.root);
    tk_ok(fm_record_info_of(to.s, &to.info[1], &to.id[1]));
    assert_int_equal(to.info[1].depth, 0);
    xk_release(&to);
}

TEST(what_fsck_found_damaged_is_not_offered)
{
    xk_store to = xk_empty();
    fm_intake *in = intake(to.s);
    fm_names names;
    fm_fsck_report report;
    fm_record_info info;
    tk_ok(xk_send(&from, XK_RAW, in, 0));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    fm_store_close(to.s);
    char *packs = fm_path_join(to.root, "packs");
    tk_ok(fm_list_dir(&names, packs));
    char *pack = fm_path_join(packs, names.name[0]);
    change(pack, 100000);
    to.s = xk_open(to.root);
    tk_ok(fm_record_info_of(to.s, &info, &from.id[XK_RAW])); /* nobody knows yet */
    tk_ok(fm_store_fsck(to.s, true, &report, NULL, NULL));
    assert_true(report.faults > 0);
    tk_fails(fm_record_info_of(to.s, &info, &from.id[XK_RAW]), FM_ENOTFOUND, "run fsck");
    fm_names_release(&names);
    fm_free(packs);
    fm_free(pack);
    xk_release(&to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_record_is_sent),
        cmocka_unit_test(all_records_arrive_as_they_lie),
        cmocka_unit_test(what_is_known_passes_quietly),
        cmocka_unit_test(a_full_file_is_published_by_itself),
        cmocka_unit_test(a_parent_may_be_deeper_here),
        cmocka_unit_test(a_parent_at_the_greatest_depth_is_told_with_the_way_out),
        cmocka_unit_test(wrong_bytes_are_refused_and_lose_nothing),
        cmocka_unit_test(a_child_before_its_parent_is_refused_by_name),
        cmocka_unit_test(more_and_fewer_bytes_are_refused),
        cmocka_unit_test(claims_that_no_record_meets_are_refused_before_a_byte),
        cmocka_unit_test(a_head_that_is_another_s_is_refused),
        cmocka_unit_test(a_wrong_leaf_is_named_and_ends_the_writing),
        cmocka_unit_test(a_wrong_record_amid_good_ones_takes_what_follows_it_along),
        cmocka_unit_test(what_was_not_compared_is_taken_over),
        cmocka_unit_test(more_records_come_than_may_wait),
        cmocka_unit_test(what_waits_is_bounded_and_a_stop_keeps_it),
        cmocka_unit_test(a_cut_record_goes_on_at_its_byte),
        cmocka_unit_test(a_cut_record_is_kept_over_closes_and_dropped_by_another),
        cmocka_unit_test(of_several_cut_records_the_longest_is_kept),
        cmocka_unit_test(a_torn_file_is_taken_over_up_to_the_tear),
        cmocka_unit_test(foreign_files_in_incoming_harm_nothing),
        cmocka_unit_test(a_published_pack_is_never_cut_by_its_old_name),
        cmocka_unit_test(a_stop_on_request_keeps_what_came),
        cmocka_unit_test(gc_removes_dead_files_that_are_old_enough),
        cmocka_unit_test(what_gc_condemned_is_received_again),
        cmocka_unit_test(gc_leaves_what_was_published_to_its_lease),
        cmocka_unit_test(the_sender_gives_any_rest_of_a_record),
        cmocka_unit_test(the_sender_prefers_the_record_of_least_depth),
        cmocka_unit_test(what_fsck_found_damaged_is_not_offered),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
