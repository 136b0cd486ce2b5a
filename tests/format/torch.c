/* PyTorch checkpoints: what torch.save wrote equals its safetensors twin and comes back byte for
 * byte; what is hostile is refused by name, and nothing is executed. */
#include "tests/format/fixtures.h"
#include "tests/format/torch_kit.h"

#include <stdio.h>
#include <time.h>

#include "store/base/cancel.h"
#include "store/formats/torch.h"

static char *golden(const char *name, const char *end)
{
    char *relative = fm_asprintf("tests/format/golden/torch/%s%s", name, end);
    char *path = tk_source(relative);
    fm_free(relative);
    return path;
}

/* Every tensor of b is in a with the same id, and a's provider gives those bytes. */
static void same_tensors(const fm_source *a, const char *root, const fm_source *b)
{
    const fm_provider pa = fm_source_provider(a), pb = fm_source_provider(b);
    const fm_tree *ta = fm_source_tree(a), *tb = fm_source_tree(b);
    size_t tensors = 0, others = 0;
    for (size_t i = 0; i < fm_tree_count(ta); i++)
        others += fm_tree_at(ta, i)->kind == FM_ENTRY_TENSOR;
    for (size_t i = 0; i < fm_tree_count(tb); i++) {
        const fm_entry *e = fm_tree_at(tb, i);
        if (e->kind != FM_ENTRY_TENSOR)
            continue;
        char *path = fm_asprintf("%s%s", root, e->path);
        const fm_entry *same = fm_tree_find(ta, path);
        fm_buf x, y;
        if (!same)
            fail_msg("'%s' is missing", path);
        fm_buf_init(&x, 0);
        fm_buf_init(&y, 0);
        tk_ok(fm_entry_read(&x, &pa, same));
        tk_ok(fm_entry_read(&y, &pb, e));
        assert_string_equal(same->name, e->name);
        assert_true(fm_span_eq(fm_buf_span(&x), fm_buf_span(&y)));
        assert_true(fm_digest_eq(&same->id, &e->id));
        fm_buf_release(&x);
        fm_buf_release(&y);
        fm_free(path);
        tensors++;
    }
    assert_true(tensors > 0);
    assert_int_equal(tensors, others);
}

static void equals_its_twin(const char *name, const char *end, const char *root)
{
    char *bin = golden(name, end), *twin = golden(name, ".safetensors"), *dir = tk_scratch();
    char *out = fm_path_join(dir, "out");
    fm_source *a = NULL, *b = NULL;
    tk_ok(fm_source_open(&a, bin));
    tk_ok(fm_source_open(&b, twin));
    same_tensors(a, root, b);
    fm_source_close(a);
    fm_source_close(b);
    fx_round_trip(bin, out);
    fm_free(bin);
    fm_free(twin);
    fm_free(out);
    fm_free(dir);
}

TEST(checkpoints_equal_safetensors_and_come_back)
{
    static const char *const name[] = {"dtypes",   "views",     "legacy",
                                       "training", "protocol4", "protocol5"};
    for (size_t i = 0; i < FM_ARRAY_LEN(name); i++)
        equals_its_twin(name[i], ".bin", "");
    equals_its_twin("sharded", "", "");
    equals_its_twin("adapter", "", "adapters/0-lora/");
}

/* A range of a view is that range of the whole. */
TEST(a_view_is_gathered_in_pieces)
{
    char *path = golden("views", ".bin");
    fm_file_map map;
    fm_torch *t = NULL;
    size_t strided = 0;
    tk_ok(fm_map_file(&map, path));
    const fm_span file = fm_span_of(map.data, map.len);
    tk_ok(fm_torch_parse(&t, file, "views"));
    for (size_t i = 0; i < fm_torch_count(t); i++) {
        const fm_torch_tensor *p = fm_torch_at(t, i);
        const uint64_t elem = fm_dtype_get(p->dtype)->block_bytes;
        uint8_t *whole = fm_malloc((size_t)p->bytes), *part = fm_malloc((size_t)p->bytes);
        fm_torch_gather(p, file.data, 0, whole, p->bytes);
        for (uint64_t at = 0, n; at < p->bytes; at += n) {
            n = FM_MIN(7 * elem + 1, p->bytes - at);
            fm_torch_gather(p, file.data, at, part + at, n);
        }
        assert_memory_equal(whole, part, (size_t)p->bytes);
        strided += !p->contiguous;
        assert_ptr_equal(fm_torch_find(t, p->name), p);
        fm_free(whole);
        fm_free(part);
    }
    assert_true(strided >= 6);
    fm_torch_close(t);
    fm_unmap_file(&map);
    fm_free(path);
}

TEST(what_is_no_weights_is_refused_by_name)
{
    static const char *const want[][2] = {
        {"evil", "'posix.system', which is not on the list"},
        {"module", "'torch.nn.modules.linear.Linear'"},
        {"complex", "'torch.ComplexFloatStorage'"},
        {"sparse", "'torch._utils._rebuild_sparse_tensor'"},
        {"script", "is compressed"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(want); i++) {
        char *path = golden(want[i][0], ".bin");
        fm_source *src = NULL;
        tk_fails(fm_source_open(&src, path), FM_EUNSUPPORTED, want[i][1]);
        assert_null(src);
        fm_free(path);
    }
    assert_false(fm_path_exists("/tmp/fmstore-was-here"));
}

/* ---- hostile pickles ---- */

static void refuse_pickle(const void *pkl, size_t len, fm_status status, const char *needle)
{
    fm_torch *t = NULL;
    fm_buf zip;
    fm_buf_init(&zip, 0);
    zk_model(&zip, fm_span_of(pkl, len));
    tk_fails(fm_torch_parse(&t, fm_buf_span(&zip), "x.bin"), status, needle);
    assert_null(t);
    fm_buf_release(&zip);
}

static void pickles_that_call_or_lie_are_refused(void **state)
{
#define P(text) text, sizeof(text) - 1
    static const struct {
        const char *pkl;
        size_t len;
        fm_status status;
        const char *needle;
    } bad[] = {
        {P("\x80\2cos\nsystem\n(X\2\0\0\0lstR."), FM_EUNSUPPORTED, "'os.system'"},
        {P("\x80\2cbuiltins\neval\n)R."), FM_EUNSUPPORTED, "'builtins.eval'"},
        {P("\x80\2ctorch.storage\n_load_from_bytes\n)R."), FM_EUNSUPPORTED, "_load_from_bytes"},
        {P("\x80\2cnumpy\n\033[31mred\n."), FM_EUNSUPPORTED, "'numpy.?[31mred'"},
        {P("\x80\4\x8c\2os\x8c\6system\x93)R."), FM_EUNSUPPORTED, "'os.system'"},
        {P("\x80\2(ios\nsystem\n."), FM_EUNSUPPORTED, "INST"},
        {P("\x80\2ccollections\nOrderedDict\n)\x81."), FM_EUNSUPPORTED, "NEWOBJ"},
        {P("\x80\2\x82\1."), FM_EUNSUPPORTED, "EXT1"},
        {P("\x80\2Pos.system\n."), FM_EUNSUPPORTED, "PERSID"},
        {P("\x80\6}."), FM_EUNSUPPORTED, "protocol"},
        {P("\x80\2}}R."), FM_ECORRUPT, "a call of what"},
        {P("\x80\2ctorch\nFloatStorage\n)R."), FM_EUNSUPPORTED, "'torch.FloatStorage'"},
        {P("\x80\2ccollections\nOrderedDict\n}\x85R."), FM_ECORRUPT, "OrderedDict"},
        {P("\x80\2ctorch\nSize\n}\x85R."), FM_ECORRUPT, "torch.Size"},
        {P("\x80\2ctorch._utils\n_rebuild_parameter\n}}}\x87R."), FM_ECORRUPT, "no tensor"},
        {P("\x80\2ctorch._utils\n_rebuild_tensor_v2\n)R."), FM_ECORRUPT, "arguments"},
        {P("\x80\2cos"), FM_ECORRUPT, "without its end"},
        {P("\x80\2}r\xff\xff\xff\xff."), FM_ELIMIT, "memo"},
        {P("\x80\2}h\1."), FM_ECORRUPT, "not remembered"},
        {P("\x80\2q\1."), FM_ECORRUPT, "nothing to remember"},
        {P("\x80\2t."), FM_ECORRUPT, "no mark"},
        {P("\x80\2\x87."), FM_ECORRUPT, "not there"},
        {P("\x80\2(."), FM_ECORRUPT, "other than one"},
        {P("\x80\2}(}}u}u."), FM_ECORRUPT, "no mark"},
        {P("\x80\2}(}u."), FM_ECORRUPT, "no dictionary"},
        {P("\x80\2}}a."), FM_ECORRUPT, "no list"},
        {P("\x80\2](}s."), FM_ECORRUPT, "no dictionary"},
        {P("\x80\2]}b."), FM_ECORRUPT, "state"},
        {P("\x80\2}Q."), FM_ECORRUPT, "no storage"},
        {P("\x80\2X\xff\xff\xff\x7f"
           "a."),
         FM_ECORRUPT, "past the end"},
        {P("\x80\2\x8b\xff\xff\xff\xff."), FM_ECORRUPT, "past the end"},
        {P("\x80\4\x95\xff\xff\xff\xff\xff\xff\xff\xff}."), FM_ECORRUPT, "frame"},
        {P("\x80\2}"), FM_ECORRUPT, "without its end mark"},
        {P("\x80\2J\1"), FM_ECORRUPT, "middle"},
        {P("\x80\2}.."), FM_ECORRUPT, "behind its end"},
        {P("(dp0\n."), FM_ECORRUPT, "no pickle"},
        {P("\x80\2]."), FM_EUNSUPPORTED, "no dictionary of tensors"},
        {P("\x80\2}."), FM_EUNSUPPORTED, "holds no tensor"},
        {P("\x80\2}X\1\0\0\0l]q\1h\1as."), FM_ELIMIT, "nested deeper"},
        {P("\x80\2}X\1\0\0\0\xff]s."), FM_EUNSUPPORTED, "UTF-8"},
        {P("\x80\2}N]s."), FM_EUNSUPPORTED, "UTF-8"},
    };
#undef P
    (void)state;
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++)
        refuse_pickle(bad[i].pkl, bad[i].len, bad[i].status, bad[i].needle);
}

/* Few bytes that stand for very many values. */
TEST(bombs_end_at_their_limits)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_buf_str(&b, "\x80\2}X");
    fm_buf_append(&b, "\1\0\0\0l(]q\0", 9);
    for (char level = 1; level < 12; level++) { /* each list holds the one below ten times */
        fm_buf_char(&b, ']');
        for (int i = 0; i < 10; i++) {
            fm_buf_char(&b, 'h');
            fm_buf_char(&b, (char)(level - 1));
            fm_buf_char(&b, 'a');
        }
        fm_buf_char(&b, 'q');
        fm_buf_char(&b, level);
    }
    fm_buf_str(&b, "ts.");
    refuse_pickle(b.data, b.len, FM_ELIMIT, "stand for more");
    fm_buf_clear(&b);
    fm_buf_str(&b, "\x80\2");
    memset(fm_buf_extend(&b, 2000000), '}', 2000000);
    refuse_pickle(b.data, b.len, FM_ELIMIT, "on the stack");
    fm_buf_clear(&b);
    fm_buf_str(&b, "\x80\2]");
    for (size_t i = 0; i < 3000000; i++)
        fm_buf_append(&b, "}a", 2);
    refuse_pickle(b.data, b.len, FM_ELIMIT, "values");
    fm_buf_clear(&b);
    fm_buf_str(&b, "\x80\2");
    memset(fm_buf_extend(&b, 3000000), '(', 3000000);
    refuse_pickle(b.data, b.len, FM_ECORRUPT, "without its end mark");
    fm_buf_release(&b);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void put_long_key(fm_buf *b, size_t bytes)
{
    fm_buf_char(b, 'X');
    fm_buf_u32(b, (uint32_t)bytes);
    memset(fm_buf_extend(b, bytes), 'k', bytes);
    fm_buf_append(b, "q\0", 2);
}

/* Work is counted in bytes: a key of 1 MiB that four bytes use again costs four bytes. */
TEST(a_long_key_used_often_costs_little)
{
    const double begin = now_s();
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_buf_str(&b, "\x80\2}("); /* memo 0: the key; 1: an empty dictionary */
    put_long_key(&b, 1u << 20);
    fm_buf_str(&b, "}q\1");
    for (size_t i = 0; i < 400000; i++)
        fm_buf_append(&b, "h\0h\1", 4);
    fm_buf_str(&b, "u.");
    refuse_pickle(b.data, b.len, FM_EUNSUPPORTED, "holds no tensor");
    fm_buf_clear(&b);
    fm_buf_str(&b, "\x80\2}("); /* dictionaries without a tensor, offered as the model */
    fm_buf_str(&b, "X\5");
    fm_buf_append(&b, "\0\0\0modelq\0", 10);
    fm_buf_str(&b, "}q\1(");
    for (size_t i = 0; i < 100000; i++)
        fm_buf_append(&b, "h\0N", 3);
    fm_buf_char(&b, 'u');
    for (size_t i = 0; i < 100000; i++)
        fm_buf_append(&b, "h\0h\1", 4);
    fm_buf_str(&b, "u.");
    refuse_pickle(b.data, b.len, FM_ELIMIT, "stand for more");
    fm_buf_release(&b);
    assert_true(now_s() - begin < 5.0); /* 0.1 s; once hours */
}

/* Few tensors under few keys, which are long and nested, make very many names. */
TEST(names_from_shared_dictionaries_have_a_limit)
{
    const pk_tensor t = {.elems = 6, .rank = 1, .size = {6}, .stride = {1}};
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_buf_str(&b, "\x80\2}(");
    put_long_key(&b, 500);
    fm_buf_str(&b, "}("); /* 1: a dictionary of 1,000 names of one tensor */
    pk_int(&b, 0);
    pk_put_tensor(&b, &t);
    fm_buf_str(&b, "q\2");
    for (int i = 1; i < 1000; i++) {
        pk_int(&b, i);
        fm_buf_append(&b, "h\2", 2);
    }
    fm_buf_str(&b, "uq\1");
    for (int i = 0; i < 1000; i++)
        fm_buf_append(&b, "h\0h\1", 4);
    fm_buf_str(&b, "u.");
    refuse_pickle(b.data, b.len, FM_ELIMIT, "times the file's bytes");
    fm_buf_release(&b);
}

TEST(a_request_to_stop_ends_the_reading)
{
    const pk_tensor t = {.elems = 6, .rank = 1, .size = {6}, .stride = {1}};
    fm_buf b;
    fm_buf_init(&b, 0);
    pk_one(&b, &t);
    fm_cancel(true);
    refuse_pickle(b.data, b.len, FM_ECANCELLED, "stopped on request");
    fm_cancel(false);
    fm_buf_release(&b);
}

TEST(tensors_outside_of_their_storage_are_refused)
{
    static const struct {
        pk_tensor t;
        fm_status status;
        const char *needle;
    } bad[] = {
        {{.elems = 6, .offset = 1, .rank = 2, .size = {2, 3}, .stride = {3, 1}},
         FM_ECORRUPT,
         "outside"},
        {{.elems = 6, .rank = 2, .size = {2, 3}, .stride = {4, 1}}, FM_ECORRUPT, "outside"},
        {{.elems = 6, .offset = INT64_MAX, .rank = 1, .size = {2}, .stride = {1}},
         FM_ECORRUPT,
         "outside"},
        {{.elems = 6, .rank = 2, .size = {2, 2}, .stride = {INT64_MAX, INT64_MAX}},
         FM_ECORRUPT,
         "outside"},
        {{.elems = 6, .offset = -1, .rank = 1, .size = {2}, .stride = {1}}, FM_ECORRUPT, "offset"},
        {{.elems = 6, .rank = 1, .size = {-2}, .stride = {1}}, FM_ECORRUPT, "size"},
        {{.elems = 6, .rank = 1, .size = {2}, .stride = {-1}}, FM_ECORRUPT, "strides"},
        {{.elems = 6, .rank = 9, .size = {0}, .stride = {0}}, FM_ECORRUPT, "at most 8"},
        {{.elems = 6, .rank = 1, .strides = 2, .size = {2}, .stride = {1, 1}},
         FM_ECORRUPT,
         "strides"},
        {{.elems = 6, .rank = 2, .size = {1ll << 40, 1ll << 40}, .stride = {0, 0}}, FM_ELIMIT, ""},
        {{.elems = 7, .rank = 1, .size = {2}, .stride = {1}}, FM_ECORRUPT, "another size"},
        {{.elems = INT64_MAX, .rank = 1, .size = {2}, .stride = {1}}, FM_ECORRUPT, "another size"},
        {{.elems = 6, .key = "1", .rank = 1, .size = {2}, .stride = {1}}, FM_ECORRUPT, "lacks"},
        {{.elems = 6, .key = "../version", .rank = 1, .size = {2}, .stride = {1}},
         FM_ECORRUPT,
         "short name"},
        {{.elems = 24, .storage = "UntypedStorage", .rank = 1, .size = {2}, .stride = {1}},
         FM_ECORRUPT,
         "dtype"},
        {{.elems = 6, .storage = "QInt8Storage", .rank = 1, .size = {2}, .stride = {1}},
         FM_EUNSUPPORTED,
         "'torch.QInt8Storage'"},
    };
    fm_buf b;
    fm_buf_init(&b, 0);
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fm_buf_clear(&b);
        pk_one(&b, &bad[i].t);
        refuse_pickle(b.data, b.len, bad[i].status, bad[i].needle);
    }
    fm_buf_release(&b);
}

/* 24 bytes that would fill two gigabytes. */
TEST(an_expanded_view_has_a_limit)
{
    const pk_tensor t = {.elems = 6, .rank = 2, .size = {1 << 19, 1 << 10}, .stride = {0, 0}};
    char *dir = tk_scratch(), *path = fm_path_join(dir, "x.bin");
    fm_source *src = NULL;
    fm_buf b, zip;
    fm_buf_init(&b, 0);
    fm_buf_init(&zip, 0);
    pk_one(&b, &t);
    zk_model(&zip, fm_buf_span(&b));
    tk_ok(fm_write_file(path, zip.data, zip.len));
    tk_fails(fm_source_open(&src, path), FM_ELIMIT, "contiguous");
    fm_buf_release(&b);
    fm_buf_release(&zip);
    fm_free(path);
    fm_free(dir);
}

/* ---- hostile archives ---- */

TEST(archives_that_lie_are_refused)
{
    static const uint8_t six[24] = {0};
    const pk_tensor t = {.elems = 6, .rank = 1, .size = {6}, .stride = {1}};
    fm_buf p, zip;
    fm_torch *out = NULL;
    fm_buf_init(&p, 0);
    fm_buf_init(&zip, 0);
    pk_one(&p, &t);
    const zk_entry pkl = {.name = "m/data.pkl", .data = p.data, .len = p.len};
    const struct {
        zk_entry second;
        fm_status status;
        const char *needle;
    } bad[] = {
        {{.name = "m/data/0", .data = six, .len = 24}, FM_OK, NULL},
        {{.name = "m/data/0", .data = six, .len = 24, .descriptor = true}, FM_OK, NULL},
        {{.name = "m/data/0", .data = six, .len = 24, .descriptor = true, .bad_descriptor = true},
         FM_ECORRUPT,
         "descriptor"},
        {{.name = "m/data/0", .data = six, .len = 24, .method = 8}, FM_EUNSUPPORTED, "compressed"},
        {{.name = "m/data/0", .data = six, .len = 24, .flags = 1}, FM_EUNSUPPORTED, "encrypted"},
        {{.name = "m/data/0", .data = six, .len = 24, .flags = 0x40}, FM_EUNSUPPORTED, "flags"},
        {{.name = "m/data/0", .local_name = "m/data/1", .data = six, .len = 24},
         FM_ECORRUPT,
         "contradicts"},
        {{.name = "m/data/0", .data = six, .len = 24, .claim = 20}, FM_ECORRUPT, "contradicts"},
        {{.name = "m/data/0", .data = six, .len = 24, .claim = 1u << 30},
         FM_ECORRUPT,
         "central directory"},
        {{.name = "m/data.pkl", .data = p.data, .len = p.len, .at_first = true},
         FM_ECORRUPT,
         "overlap"},
        {{.name = "m/data.pkl", .data = six, .len = 24}, FM_ECORRUPT, "twice"},
        {{.name = "m/../0", .data = six, .len = 24}, FM_ECORRUPT, "relative path"},
        {{.name = "/m/0", .data = six, .len = 24}, FM_ECORRUPT, "relative path"},
        {{.name = "m//0", .data = six, .len = 24}, FM_ECORRUPT, "relative path"},
        {{.name = "m\\0", .data = six, .len = 24}, FM_ECORRUPT, "relative path"},
        {{.name = "n/data/0", .data = six, .len = 24}, FM_ECORRUPT, "several folders"},
        {{.name = "m/byteorder", .data = "big", .len = 3}, FM_EUNSUPPORTED, "byteorder"},
        {{.name = "m/constants.pkl", .data = six, .len = 1}, FM_EUNSUPPORTED, "TorchScript"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        const zk_entry e[] = {pkl, bad[i].second};
        zk_build(&zip, e, 2);
        if (bad[i].status == FM_OK)
            tk_ok(fm_torch_parse(&out, fm_buf_span(&zip), "x.bin"));
        else
            tk_fails(fm_torch_parse(&out, fm_buf_span(&zip), "x.bin"), bad[i].status,
                     bad[i].needle);
        fm_torch_close(out);
        out = NULL;
    }
    fm_buf_release(&p);
    fm_buf_release(&zip);
}

/* Cut anywhere it is refused; with any one byte changed it is refused or read within bounds. */
TEST(cut_and_flipped_files_do_no_harm)
{
    static const char *const name[] = {"dtypes", "protocol4", "legacy"};
    for (size_t k = 0; k < FM_ARRAY_LEN(name); k++) {
        char *path = golden(name[k], ".bin");
        fm_buf b;
        fm_torch *t = NULL;
        fm_buf_init(&b, 0);
        tk_ok(fm_read_file(&b, path, 1u << 20));
        for (size_t len = 0; len < b.len; len++) {
            uint8_t *cut = fm_memdup(b.data, len);
            assert_true(fm_torch_parse(&t, fm_span_of(cut, len), "cut") < 0);
            fm_free(cut);
        }
        for (size_t i = 0; i < 8 * b.len; i += 3) {
            uint8_t sink[4096];
            b.data[i / 8] ^= (uint8_t)(1u << (i % 8));
            if (fm_torch_parse(&t, fm_buf_span(&b), "flipped") == FM_OK)
                for (size_t n = 0; n < fm_torch_count(t); n++)
                    if (fm_torch_at(t, n)->bytes <= sizeof sink)
                        fm_torch_gather(fm_torch_at(t, n), b.data, 0, sink,
                                        fm_torch_at(t, n)->bytes);
            fm_torch_close(t);
            t = NULL;
            b.data[i / 8] ^= (uint8_t)(1u << (i % 8));
        }
        fm_buf_release(&b);
        fm_free(path);
    }
}

TEST(every_failed_allocation_is_told)
{
    char *path = golden("training", ".bin");
    fm_file_map map;
    fm_torch *t = NULL;
    fm_status rc = FM_ENOMEM;
    uint64_t nth = 0;
    tk_ok(fm_map_file(&map, path));
    while (rc == FM_ENOMEM) {
        assert_null(t);
        fm_mem_fail_at(++nth, false);
        rc = fm_torch_parse(&t, fm_span_of(map.data, map.len), "x");
        fm_mem_fail_at(0, false);
    }
    tk_ok(rc);
    assert_true(nth > 20);
    fm_torch_close(t);
    fm_unmap_file(&map);
    fm_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_equal_safetensors_and_come_back),
        cmocka_unit_test(a_view_is_gathered_in_pieces),
        cmocka_unit_test(what_is_no_weights_is_refused_by_name),
        cmocka_unit_test(pickles_that_call_or_lie_are_refused),
        cmocka_unit_test(bombs_end_at_their_limits),
        cmocka_unit_test(a_long_key_used_often_costs_little),
        cmocka_unit_test(names_from_shared_dictionaries_have_a_limit),
        cmocka_unit_test(a_request_to_stop_ends_the_reading),
        cmocka_unit_test(tensors_outside_of_their_storage_are_refused),
        cmocka_unit_test(an_expanded_view_has_a_limit),
        cmocka_unit_test(archives_that_lie_are_refused),
        cmocka_unit_test(cut_and_flipped_files_do_no_harm),
        cmocka_unit_test(every_failed_allocation_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
