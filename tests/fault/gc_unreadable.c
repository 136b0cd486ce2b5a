/* gc and repack while a pack cannot be read: nothing is deleted, and once the pack is put right,
 * every version is what it was. Each bit of a pack's frame, the heads of its records, cut and
 * missing packs, one that may not be opened, one of a newer fmstore; with lists of condemned
 * objects that were written before, and beside a writer.
 *   FM_GC_STRIDE=n (7): every n-th bit of the records; of the frame each bit is tried always. */
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/math/rng.h"
#include "store/gc/gc.h"
#include "store/pack/pack.h"
#include "tests/kit/lineage_kit.h"

enum { ELEMS = 3000, BYTES = 2 * ELEMS };

typedef struct bench {
    char *dir;
    fm_repo *r; /* idle: SQLite syncs when the last handle of a file closes, which is slow */
    fm_digest hidden, child, stray;
    char *hidden_pack;
    char *pack; /* the child's: its record alone says that the hidden object is needed */
    fm_buf sound;
} bench;

static void fill(uint8_t *p, unsigned variant)
{
    for (unsigned i = 0; i < ELEMS; i++)
        fm_put_u16(p + 2 * (size_t)i, (uint16_t)(0x3f00 + (fm_rng_u64(1, 0, i) & 0xff)));
    for (unsigned i = 0; i < variant * 20; i++)
        p[2 * (fm_rng_u64(2, variant, i) % ELEMS)] ^= 3;
}

static fm_digest put(fm_repo *r, unsigned variant, const fm_digest *parent)
{
    uint8_t bytes[BYTES];
    fm_shape shape = {1, {ELEMS}};
    fm_digest id;
    fm_txn *t;
    fill(bytes, variant);
    tk_ok(fm_txn_begin(&t, fm_repo_store(r)));
    tk_ok(fm_txn_put_tensor(t, &id, FM_BF16, &shape, fm_span_of(bytes, BYTES), parent, NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    return id;
}

static void expect(fm_store *s, unsigned variant, const fm_digest *id)
{
    uint8_t want[BYTES], got[BYTES];
    fill(want, variant);
    tk_ok(fm_store_read(s, id, got, BYTES));
    assert_memory_equal(got, want, BYTES);
}

/* old: what the branch pointed to, NULL: it is new. */
static fm_oid branch(fm_repo *r, const char *name, const fm_digest *id, const fm_oid *old)
{
    fm_shape shape = {1, {ELEMS}};
    fm_tree *tree;
    char ref[64];
    fm_commit_opts o = {.kind = "import", .message = name, .time = KIT_TIME + (old != NULL)};
    fm_oid oid;
    tk_ok(fm_tree_new(&tree));
    tk_ok(fm_tree_put_file(tree, "model.json", fm_span_str("{\"format\":1,\"config\":{}}")));
    tk_ok(fm_tree_put_tensor(tree, "tensors/x.weight", "x.weight", FM_BF16, &shape, id));
    tk_ok(fm_version_commit(r, &oid, tree, &o));
    snprintf(ref, sizeof ref, "refs/heads/%s", name);
    tk_ok(fm_ref_update(r, ref, &oid, old, "made"));
    fm_tree_free(tree);
    return oid;
}

static fm_names packs_of(const char *dir)
{
    fm_names names;
    char *packs = fm_path_join(dir, "packs");
    tk_ok(fm_list_dir(&names, packs));
    fm_free(packs);
    return names;
}

/* The path of the one pack that was not in `before`. */
static char *new_pack(const char *dir, const fm_names *before)
{
    fm_names now = packs_of(dir);
    char *path = NULL;
    for (size_t i = 0; i < now.count; i++) {
        bool old = false;
        for (size_t k = 0; k < before->count; k++)
            old = old || strcmp(before->name[k], now.name[i]) == 0;
        if (!old)
            path = fm_asprintf("%s/packs/%s", dir, now.name[i]);
    }
    fm_names_release(&now);
    assert_non_null(path);
    return path;
}

/* `hidden` is in no tree: only the child's delta needs it. `stray` nothing needs. */
static bench make(void)
{
    bench b;
    memset(&b, 0, sizeof b);
    b.r = kit_repo(&b.dir);
    fm_names before = packs_of(b.dir);
    b.hidden = put(b.r, 0, NULL);
    b.hidden_pack = new_pack(b.dir, &before);
    fm_names_release(&before);
    before = packs_of(b.dir);
    b.child = put(b.r, 1, &b.hidden);
    b.pack = new_pack(b.dir, &before);
    fm_names_release(&before);
    b.stray = put(b.r, 7, NULL);
    fm_oid first =
        branch(b.r, "child", &b.child, NULL); /* so that its reflog has what may expire */
    branch(b.r, "child", &b.child, &first);
    fm_object_info info;
    tk_ok(fm_store_info(fm_repo_store(b.r), &info, &b.child));
    assert_int_equal(info.chain_depth, 1);
    fm_buf_init(&b.sound, 0);
    tk_ok(fm_read_file(&b.sound, b.pack, 1 << 24));
    fm_repo_close(b.r); /* its lease ends */
    tk_ok(fm_repo_open(&b.r, b.dir));
    return b;
}

static void end(bench *b)
{
    fm_repo_close(b->r);
    fm_buf_release(&b->sound);
    fm_free(b->hidden_pack);
    fm_free(b->pack);
    fm_free(b->dir);
}

static fm_status collect(const bench *b, bool repack, const char *prune)
{
    fm_repo *r;
    fm_gc_report report;
    fm_gc_opts o = fm_gc_defaults();
    o.prune = prune;
    o.reflog = "now";
    o.repack = o.repack_all = repack;
    tk_ok(fm_repo_open(&r, b->dir));
    fm_status rc = fm_repo_gc(r, &o, &report);
    if (rc == FM_OK)
        fm_gc_report_release(&report);
    fm_error_state kept;
    fm_error_save(&kept);
    fm_repo_close(r);
    fm_error_restore(&kept);
    return rc;
}

/* Not synced: no power is cut here. */
static void write_pack(const bench *b, const void *bytes, size_t len)
{
    FILE *f = fopen(b->pack, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void restore(const bench *b)
{
    write_pack(b, b->sound.data, b->sound.len);
}

/* The child reads; the pack of the hidden object was not taken from under it. */
static void is_whole(const bench *b)
{
    fm_repo *r;
    tk_ok(fm_repo_open(&r, b->dir));
    expect(fm_repo_store(r), 1, &b->child);
    expect(fm_repo_store(r), 0, &b->hidden);
    fm_repo_close(r);
}

static void read_log(const bench *b, fm_buf *out)
{
    char *path = fm_path_join(b->dir, "lineage.git/logs/refs/heads/child");
    fm_buf_init(out, 0);
    tk_ok(fm_read_file(out, path, 1 << 20));
    fm_free(path);
}

/* Damage is done already: gc and repack must refuse by name and leave packs and reflogs as they
 * are. */
static void must_refuse(const bench *b, fm_status want, const char *say)
{
    fm_buf log, log_after;
    fm_names before = packs_of(b->dir);
    read_log(b, &log);
    for (int repack = 0; repack < 2; repack++) {
        fm_status rc = collect(b, repack, "now");
        if (rc != want)
            print_message("%s: %s\n", repack ? "repack" : "gc",
                          rc ? fm_error_text() : "no refusal");
        assert_int_equal(rc, want);
        if (!strstr(fm_error_text(), say))
            print_message("%s\n", fm_error_text());
        assert_non_null(strstr(fm_error_text(), say));
    }
    fm_names after = packs_of(b->dir);
    read_log(b, &log_after);
    assert_int_equal(log.len, log_after.len);
    fm_buf_release(&log);
    fm_buf_release(&log_after);
    assert_int_equal(before.count, after.count);
    for (size_t i = 0; i < before.count; i++)
        assert_string_equal(before.name[i], after.name[i]);
    fm_names_release(&before);
    fm_names_release(&after);
    char *list = fm_path_join(b->dir, "condemned");
    assert_false(fm_path_exists(list));
    fm_free(list);
}

static void flip(const bench *b, uint64_t bit)
{
    fm_buf bytes;
    fm_buf_init(&bytes, 0);
    fm_buf_append(&bytes, b->sound.data, b->sound.len);
    bytes.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    write_pack(b, bytes.data, bytes.len);
    fm_buf_release(&bytes);
}

/* Header and footer. That records may carry recipes harms nobody where none does. */
TEST(every_bit_of_the_frame)
{
    bench b = make();
    const uint64_t recipes = 12 * 8, footer = (b.sound.len - FMS_PACK_FOOTER_BYTES) * 8;
    for (uint64_t i = 0; i < 8 * (FMS_PACK_HEADER_BYTES + FMS_PACK_FOOTER_BYTES); i++) {
        uint64_t bit = i < 8 * FMS_PACK_HEADER_BYTES ? i : footer + i - 8 * FMS_PACK_HEADER_BYTES;
        if (bit == recipes)
            continue;
        flip(&b, bit);
        must_refuse(&b, FM_ECORRUPT, "--repair");
    }
    restore(&b);
    is_whole(&b);
    tk_ok(collect(&b, false, "now"));
    is_whole(&b);
    end(&b);
}

/* The head of the child's record and its payload, by bits: a damaged payload still says what it
 * needs, and then gc may go on; whatever it does, nothing is lost. */
TEST(bits_of_the_records)
{
    bench b = make();
    const char *set = getenv("FM_GC_STRIDE");
    const uint64_t stride = set ? strtoull(set, NULL, 10) : 7;
    fms_record rec;
    tk_ok(fms_record_parse(&rec,
                           fm_span_of(b.sound.data + FMS_PACK_HEADER_BYTES,
                                      b.sound.len - FMS_PACK_HEADER_BYTES - FMS_PACK_FOOTER_BYTES),
                           "child"));
    const uint64_t first = 8 * FMS_PACK_HEADER_BYTES, head = first + 8 * rec.head_bytes;
    for (uint64_t bit = first; bit < head; bit += stride) {
        flip(&b, bit);
        must_refuse(&b, FM_ECORRUPT, "--repair");
    }
    for (uint64_t bit = head; bit < 8 * (b.sound.len - FMS_PACK_FOOTER_BYTES); bit += 997) {
        flip(&b, bit);
        fm_ignore(collect(&b, false, "now"), "it may refuse");
        fm_ignore(collect(&b, true, "now"), "likewise");
        restore(&b);
        is_whole(&b);
    }
    end(&b);
}

TEST(every_length)
{
    bench b = make();
    const size_t len = b.sound.len;
    const size_t to[] = {0,   1,       63,       64,       127,      128,
                         129, len / 2, len - 65, len - 64, len - 63, len - 1};
    for (size_t i = 0; i < FM_ARRAY_LEN(to); i++) {
        write_pack(&b, b.sound.data, to[i]);
        must_refuse(&b, FM_ECORRUPT, "--repair");
    }
    uint8_t *longer = fm_calloc(1, len + 64);
    assert_non_null(longer);
    memcpy(longer, b.sound.data, len);
    for (size_t more = 1; more <= 64; more += 21) {
        write_pack(&b, longer, len + more);
        must_refuse(&b, FM_ECORRUPT, "--repair");
    }
    fm_free(longer);
    restore(&b);
    is_whole(&b);
    end(&b);
}

static void index_of(const bench *b, char *out, size_t bytes)
{
    snprintf(out, bytes, "rm -f '%s'/index.sqlite*", b->dir);
}

/* Known to the index, or to nobody but the version that needs it; and one that no version needs. */
TEST(a_missing_pack)
{
    bench b = make();
    char command[600];
    fm_fsck_report report;
    fm_repo *r;
    char *away = fm_asprintf("%s.away", b.pack);
    index_of(&b, command, sizeof command);
    assert_int_equal(rename(b.pack, away), 0);
    must_refuse(&b, FM_ECORRUPT, "is missing from packs/");
    assert_int_equal(system(command), 0); /* nothing knows the pack any more */
    must_refuse(&b, FM_ECORRUPT, "no pack holds object");
    assert_int_equal(rename(away, b.pack), 0);
    is_whole(&b);
    assert_int_equal(rename(b.hidden_pack, away), 0); /* the child is there, what it needs is not */
    assert_int_equal(system(command), 0);
    must_refuse(&b, FM_ECORRUPT, "no pack holds object");
    assert_int_equal(rename(away, b.hidden_pack), 0);
    is_whole(&b);

    tk_ok(fm_repo_open(&r, b.dir));
    fm_names before = packs_of(b.dir);
    put(r, 9, NULL);
    char *extra = new_pack(b.dir, &before);
    fm_names_release(&before);
    fm_repo_close(r);
    assert_int_equal(unlink(extra), 0);
    must_refuse(&b, FM_ECORRUPT, "is missing from packs/");
    tk_ok(fm_repo_open(&r, b.dir));
    tk_ok(fm_repo_fsck(r, true, &report, kit_print_fault, NULL)); /* finds all versions whole */
    assert_int_equal(report.faults, 0);
    fm_repo_close(r);
    tk_ok(collect(&b, false, "now"));
    is_whole(&b);
    fm_free(extra);
    fm_free(away);
    end(&b);
}

TEST(a_pack_that_may_not_be_opened)
{
    bench b = make();
    if (geteuid() == 0) { /* who may open everything becomes somebody who may not */
        char command[600];
        snprintf(command, sizeof command, "chmod 0755 '%s/..' && chown -R 65534:65534 '%s'", b.dir,
                 b.dir);
        assert_int_equal(system(command), 0);
    }
    assert_int_equal(chmod(b.pack, 0), 0);
    pid_t pid = fork();
    if (pid == 0) {
        fm_gc_report report;
        fm_gc_opts o = fm_gc_defaults();
        fm_repo *r;
        o.prune = o.reflog = "now";
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
            _exit(2);
        _exit(fm_repo_open(&r, b.dir) == FM_OK && fm_repo_gc(r, &o, &report) == FM_OK ? 1 : 0);
    }
    int code = -1;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_int_equal(code, 0);
    assert_int_equal(chmod(b.pack, 0644), 0);
    is_whole(&b);
    end(&b);
}

/* As a newer fmstore writes it: the name fits the bytes. The index may know it or not. */
TEST(a_pack_of_a_newer_fmstore)
{
    bench b = make();
    fm_digest sum;
    char hex[FM_HEX_CHARS + 1], command[600];
    index_of(&b, command, sizeof command);
    fm_put_u32(b.sound.data + 8, FMS_PACK_VERSION + 1);
    assert_int_equal(unlink(b.pack), 0);
    assert_int_equal(system(command), 0);
    tk_ok(fm_sha256(&sum, b.sound.data, b.sound.len));
    fm_digest_hex(&sum, hex);
    char *newer = fm_asprintf("%s/packs/%s.pack", b.dir, hex);
    tk_ok(fm_write_file(newer, b.sound.data, b.sound.len));
    must_refuse(&b, FM_EVERSION, "Upgrade this fmstore");
    /* Nor may a repair put it away as if it were damaged. */
    fm_repo *r;
    fm_gc_report report;
    fm_gc_opts o = fm_gc_defaults();
    uint64_t packs = 1;
    o.quarantine = true;
    o.prune = o.reflog = "never";
    tk_ok(fm_repo_open(&r, b.dir));
    tk_ok(fm_store_lease(fm_repo_store(r), true, "test"));
    tk_ok(fm_store_salvage(fm_repo_store(r), &packs));
    assert_int_equal(packs, 0);
    fm_store_lease_end(fm_repo_store(r));
    assert_true(fm_repo_gc(r, &o, &report) != FM_OK);
    fm_repo_close(r);
    assert_true(fm_path_exists(newer));
    fm_put_u32(b.sound.data + 8, FMS_PACK_VERSION);
    assert_int_equal(unlink(newer), 0);
    restore(&b);
    is_whole(&b);
    fm_free(newer);
    end(&b);
}

/* Condemned while all was readable; deleted is nothing while it is not. */
TEST(a_list_from_before_is_not_honoured)
{
    bench b = make();
    tk_ok(collect(&b, false, "never"));
    char *list = fm_path_join(b.dir, "condemned");
    assert_true(fm_path_exists(list));
    flip(&b, 0);
    for (int repack = 0; repack < 2; repack++)
        assert_int_equal(collect(&b, repack, "now"), FM_ECORRUPT);
    fm_repo *r;
    tk_ok(fm_repo_open(&r, b.dir));
    expect(fm_repo_store(r), 7, &b.stray);
    fm_repo_close(r);
    restore(&b);
    is_whole(&b);
    tk_ok(collect(&b, false, "now"));
    is_whole(&b);
    fm_free(list);
    end(&b);
}

/* What lands between gc's two looks stands on something that gc has condemned meanwhile. */
TEST(a_version_that_lands_meanwhile_keeps_what_it_needs)
{
    bench b = make();
    fms_gc *g;
    fm_store *s, *writer;
    fms_gc_opts o = {.now = 1000, .expire = INT64_MAX, .depth = FMS_CHAIN_MAX};
    fm_repo *r;
    tk_ok(fm_repo_open(&r, b.dir));
    writer = fm_repo_store(r);
    tk_ok(fm_store_lease(writer, true, "test"));
    tk_ok(fm_store_open(&s, b.dir));
    tk_ok(fms_gc_open(&g, s, &o));
    fm_digest early = put(r, 6, NULL); /* gc has looked, and marks it first of all */
    tk_ok(fms_gc_reach(g, &early, 3));
    tk_ok(fms_gc_reach(g, &b.child, 1));
    fm_digest late = put(r, 8, &b.stray); /* its lease is older than the list: it is stored */
    fm_object_info info;
    tk_ok(fm_store_info(writer, &info, &late));
    assert_int_equal(info.chain_depth, 1);
    tk_ok(fms_gc_condemn(g, NULL, 0));
    tk_ok(fms_gc_rewrite(g));
    fm_store_lease_end(writer); /* its ref has moved */
    tk_ok(fms_gc_enter(g));
    tk_ok(fms_gc_reach(g, &b.child, 1));
    tk_ok(fms_gc_reach(g, &late, 2));
    tk_ok(fms_gc_remove(g));
    tk_ok(fms_gc_leave(g));
    fms_gc_close(g);
    fm_store_close(s);
    fm_repo_close(r);
    tk_ok(fm_store_open(&s, b.dir));
    expect(s, 6, &early);
    expect(s, 8, &late);
    expect(s, 7, &b.stray);
    expect(s, 1, &b.child);
    fm_store_close(s);
    end(&b);
}

/* All could be read when gc looked; not when it is about to delete. */
TEST(a_pack_that_comes_meanwhile_stops_the_deletion)
{
    bench b = make();
    fms_gc *g;
    fm_store *s;
    fms_gc_opts o = {.now = 1000, .expire = INT64_MAX, .depth = FMS_CHAIN_MAX};
    char *other = fm_asprintf("%s/packs/%064d.pack", b.dir, 7);
    tk_ok(fm_store_open(&s, b.dir));
    tk_ok(fms_gc_open(&g, s, &o));
    tk_ok(fms_gc_reach(g, &b.child, 1));
    tk_ok(fms_gc_condemn(g, NULL, 0));
    tk_ok(fms_gc_rewrite(g));
    tk_ok(fm_write_file(other, b.sound.data, b.sound.len / 2));
    assert_int_equal(fms_gc_enter(g), FM_ECORRUPT);
    fms_gc_close(g);
    expect(s, 7, &b.stray);
    fm_store_close(s);
    fm_free(other);
    end(&b);
}

/* Versions are made all the time while a pack comes and goes. */
TEST(beside_a_writer)
{
    bench b = make();
    enum { MADE = 40, ROUNDS = 60 };
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        for (unsigned n = 0; n < MADE; n++) {
            fm_repo *r;
            char name[24];
            snprintf(name, sizeof name, "made%u", n);
            if (fm_repo_open(&r, b.dir) != FM_OK ||
                fm_store_lease(fm_repo_store(r), true, "test") != FM_OK)
                _exit(1);
            fm_digest hidden = put(r, 100 + 2 * n, NULL), id = put(r, 101 + 2 * n, &hidden);
            branch(r, name, &id, NULL);
            fm_repo_close(r);
        }
        _exit(0);
    }
    for (unsigned n = 0; n < ROUNDS; n++) {
        if (n % 3 == 0)
            flip(&b, fm_rng_u64(3, 0, n) % (8 * 8)); /* the magic */
        else if (n % 3 == 1)
            write_pack(&b, b.sound.data, b.sound.len / 2);
        else
            assert_int_equal(unlink(b.pack), 0);
        assert_int_equal(collect(&b, n % 2, "now"), FM_ECORRUPT);
        restore(&b);
        if (n % 10 == 9)
            tk_ok(collect(&b, false, "now"));
    }
    int code = -1;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_int_equal(code, 0);
    tk_ok(collect(&b, false, "now"));
    is_whole(&b);
    fm_repo *r;
    tk_ok(fm_repo_open(&r, b.dir));
    for (unsigned n = 0; n < MADE; n++) {
        char rev[24];
        fm_oid oid;
        fm_tree *tree;
        snprintf(rev, sizeof rev, "made%u", n);
        tk_ok(fm_rev_resolve(r, &oid, rev));
        tk_ok(fm_version_tree(r, &tree, &oid));
        expect(fm_repo_store(r), 101 + 2 * n, &fm_tree_find(tree, "tensors/x.weight")->id);
        fm_tree_free(tree);
    }
    fm_repo_close(r);
    assert_int_equal(kit_faults(b.dir), 0);
    end(&b);
}

/* fsck --repair with nothing but the repository itself: the records are in the damaged pack. */
TEST(a_damaged_frame_is_mended_from_its_records)
{
    bench b = make();
    const uint64_t bit[] = {0,
                            8 * 8,
                            12 * 8 + 1,
                            8 * 20,
                            8 * (b.sound.len - FMS_PACK_FOOTER_BYTES),
                            8 * (b.sound.len - 1)};
    for (size_t i = 0; i <= FM_ARRAY_LEN(bit); i++) {
        fm_repo *r;
        fm_repair_report report;
        fm_buf now;
        if (i < FM_ARRAY_LEN(bit))
            flip(&b, bit[i]);
        else
            write_pack(&b, b.sound.data, b.sound.len - FMS_PACK_FOOTER_BYTES);
        tk_ok(fm_repo_open(&r, b.dir));
        tk_ok(fm_repo_repair(r, b.dir, &report));
        assert_int_equal(report.packs, 1);
        fm_repo_close(r);
        fm_buf_init(&now, 0);
        tk_ok(fm_read_file(&now, b.pack, 1 << 24));
        assert_int_equal(now.len, b.sound.len);
        assert_memory_equal(now.data, b.sound.data, now.len);
        fm_buf_release(&now);
        is_whole(&b);
        assert_int_equal(kit_faults(b.dir), 0);
    }
    tk_ok(collect(&b, false, "now"));
    is_whole(&b);
    end(&b);
}

/* Two records in one pack, of which one has rotted with the frame: the other one is saved, and the
 * rotten one is not copied. */
TEST(only_what_decodes_is_saved)
{
    bench b = make();
    uint8_t bytes[2][BYTES];
    fm_shape shape = {1, {ELEMS}};
    fm_digest id[2];
    fm_repair_report report;
    fm_repo *r;
    fm_txn *t;
    fm_buf sound;
    tk_ok(fm_repo_open(&r, b.dir));
    fm_names before = packs_of(b.dir);
    tk_ok(fm_txn_begin(&t, fm_repo_store(r)));
    for (unsigned i = 0; i < 2; i++) {
        fill(bytes[i], 20 + i);
        tk_ok(
            fm_txn_put_tensor(t, &id[i], FM_BF16, &shape, fm_span_of(bytes[i], BYTES), NULL, NULL));
    }
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    fm_repo_close(r);
    char *path = new_pack(b.dir, &before);
    fm_names_release(&before);
    fm_buf_init(&sound, 0);
    tk_ok(fm_read_file(&sound, path, 1 << 24));
    fm_free(b.pack);
    b.pack = path;
    memset(sound.data + sound.len - 200, 0, 200); /* the footer, and the last record's payload */
    write_pack(&b, sound.data, sound.len);
    tk_ok(fm_repo_open(&r, b.dir));
    tk_ok(fm_repo_repair(r, b.dir, &report));
    assert_int_equal(report.packs, 1);
    expect(fm_repo_store(r), 20, &id[0]);
    fm_repo_close(r);
    tk_ok(fm_repo_open(&r, b.dir));
    assert_false(fm_store_has(fm_repo_store(r), &id[1]));
    fm_repo_close(r);
    fm_buf_release(&sound);
    end(&b);
}

typedef struct reader {
    fm_store *s;
    const fm_digest *id;
    pthread_barrier_t *begin;
    fm_status rc;
} reader;

static void *read_child(void *arg)
{
    reader *r = arg;
    uint8_t got[BYTES];
    (void)pthread_barrier_wait(r->begin);
    r->rc = fm_store_read(r->s, r->id, got, BYTES);
    return NULL;
}

/* The index judged the pack while it was damaged. The first thread that misses scans all packs
 * anew; one that missed beside it looks again too. */
TEST(readers_find_a_pack_that_was_put_right)
{
    enum { TRIES = 200, READERS = 16 };
    bench b = make();
    for (unsigned n = 0; n < TRIES; n++) {
        fm_store *s;
        pthread_t thread[READERS];
        pthread_barrier_t begin;
        reader r[READERS];
        flip(&b, 0);
        tk_ok(fm_repo_rebuild_index(b.r));
        restore(&b);
        tk_ok(fm_store_open(&s, b.dir));
        assert_int_equal(pthread_barrier_init(&begin, NULL, READERS), 0);
        for (unsigned i = 0; i < READERS; i++) {
            r[i] = (reader){s, &b.child, &begin, FM_OK};
            assert_int_equal(pthread_create(&thread[i], NULL, read_child, &r[i]), 0);
        }
        for (unsigned i = 0; i < READERS; i++)
            assert_int_equal(pthread_join(thread[i], NULL), 0);
        (void)pthread_barrier_destroy(&begin);
        for (unsigned i = 0; i < READERS; i++)
            assert_int_equal(r[i].rc, FM_OK);
        fm_store_close(s);
    }
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_of_the_frame),
        cmocka_unit_test(bits_of_the_records),
        cmocka_unit_test(every_length),
        cmocka_unit_test(a_missing_pack),
        cmocka_unit_test(a_pack_that_may_not_be_opened),
        cmocka_unit_test(a_pack_of_a_newer_fmstore),
        cmocka_unit_test(a_list_from_before_is_not_honoured),
        cmocka_unit_test(a_version_that_lands_meanwhile_keeps_what_it_needs),
        cmocka_unit_test(a_pack_that_comes_meanwhile_stops_the_deletion),
        cmocka_unit_test(beside_a_writer),
        cmocka_unit_test(a_damaged_frame_is_mended_from_its_records),
        cmocka_unit_test(only_what_decodes_is_saved),
        cmocka_unit_test(readers_find_a_pack_that_was_put_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
