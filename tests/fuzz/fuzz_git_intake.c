/* Any bytes as a git pack of the other side: as they are, with the checksum that makes them be
 * looked at, and as the contents of objects whose pack is sound. Nothing is left of a pack that is
 * refused, pointers are told of what arrived, and where a branch moves to one of its versions fsck
 * finds nothing. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <git2.h>

#include "tests/kit/versions_kit.h"

#define MAX_PACK_BYTES (1u << 16)
#define MAX_IDS 32u
#define PIECE_BYTES 61u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* libgit2 1.5 leaks where a delta makes an object that the pack holds already. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libgit2.so";
}

typedef struct ids {
    fm_oid id[MAX_IDS];
    size_t count;
} ids;

static int take_id(const git_oid *id, void *ctx)
{
    ids *all = ctx;

    if (all->count < MAX_IDS)
        memcpy(all->id[all->count++].b, id->id, sizeof all->id[0].b);
    return 0;
}

static fm_status see_pointer(void *ctx, const fm_digest *id, bool is_tensor, uint64_t bytes)
{
    (void)ctx;
    (void)id;
    (void)is_tensor;
    (void)bytes;
    return FM_OK;
}

static fm_status see_bytes(void *ctx, const void *data, size_t len)
{
    (void)ctx;
    (void)data;
    (void)len;
    return FM_OK;
}

static fm_status take(fm_repo *r, fm_span pack)
{
    fm_git_intake *in = NULL;
    fm_status rc = fm_git_intake_open(&in, r, MAX_PACK_BYTES);

    fm_assert(rc == FM_OK);
    for (size_t at = 0; rc == FM_OK && at < pack.len; at += PIECE_BYTES)
        rc = fm_git_intake_bytes(in, pack.data + at, FM_MIN(pack.len - at, (size_t)PIECE_BYTES));
    if (rc == FM_OK)
        rc = fm_git_intake_end(in, NULL);
    fm_git_intake_close(in);
    fm_assert(rc == FM_OK || rc == FM_ECORRUPT || rc == FM_ELIMIT);
    return rc;
}

static void gather(const char *dir, ids *all)
{
    char *objects = fm_path_join(dir, "lineage.git/objects");
    git_odb *odb = NULL;

    fm_assert(objects && git_odb_open(&odb, objects) == 0);
    fm_assert(git_odb_foreach(odb, take_id, all) == 0);
    git_odb_free(odb);
    fm_free(objects);
}

static void print_fault(void *ctx, const char *text)
{
    (void)ctx;
    print_error("fault: %s\n", text);
}

static void use(fm_repo *r, const char *dir, const ids *all)
{
    static const char *const name[] = {"refs/heads/x", "refs/notes/fmstore",
                                       "refs/fmstore/results"};
    bool moved = false;

    for (size_t i = 0; i < all->count; i++) {
        const fm_exchange_ask ask = {&all->id[i], all->id, 1, i};
        fm_ignore(fm_exchange_pointers(r, &ask, see_pointer, NULL), "only crashes count");
        for (size_t k = 0; k < FM_ARRAY_LEN(name); k++) {
            fm_ref_wish w = {
                .name = name[k], .new_oid = all->id[i], .any_old = true, .force = true};
            fm_assert(fm_refs_move(r, &w, 1, false, "fuzz") == FM_OK);
            moved |= w.status == FM_OK;
        }
        fm_ignore(fm_git_send(r, &ask, see_bytes, NULL, NULL), "only crashes count");
    }
    if (moved) {
        fm_fsck_report report;
        fm_repo *again = NULL;
        fm_assert(fm_repo_open(&again, dir) == FM_OK);
        fm_assert(fm_repo_fsck(again, true, &report, print_fault, NULL) == FM_OK &&
                  report.faults == 0);
        fm_repo_close(again);
    }
}

static void nothing_in(const char *dir, const char *sub)
{
    char *path = fm_path_join(dir, sub);
    fm_names names;

    fm_assert(path && fm_list_dir(&names, path) == FM_OK && names.count == 0);
    fm_names_release(&names);
    fm_free(path);
}

static void run(fm_span pack)
{
    static fm_repo *r;
    static char *dir;
    ids all = {.count = 0};

    if (!dir)
        dir = tk_scratch();
    if (!r)
        fm_assert(fm_repo_init(dir, true) == FM_OK && fm_repo_open(&r, dir) == FM_OK);
    fm_status rc = take(r, pack);
    nothing_in(dir, "tmp");
    if (rc < 0) {
        nothing_in(dir, "lineage.git/objects/pack");
        return;
    }
    gather(dir, &all);
    use(r, dir, &all);
    fm_repo_close(r);
    fm_assert(fm_remove_tree(dir) == FM_OK);
    r = NULL;
}

/* An object is its type, two bytes of length, and contents in which 0xff n stands for the id of the
 * nth object before, and 0xfe n for its hex digits. */
static void run_objects(const uint8_t *data, size_t size)
{
    git_oid id[MAX_IDS];
    fm_buf pack, text;
    uint32_t count = 0;

    kit_pack_begin(&pack, 0);
    fm_buf_init(&text, 0);
    for (size_t at = 0; at + 3 <= size && count < MAX_IDS; count++) {
        const unsigned type = 1 + (data[at] - 1u) % 4;
        const size_t len = FM_MIN((size_t)data[at + 1] | (size_t)data[at + 2] << 8, size - at - 3);
        const uint8_t *p = data + at + 3;
        fm_buf_clear(&text);
        for (size_t i = 0; i < len; i++) {
            char hex[41] = "";
            const git_oid *of = i + 1 < len && p[i + 1] < count ? &id[p[i + 1]] : NULL;
            if (of && p[i] == 0xff)
                fm_buf_append(&text, of->id, sizeof of->id);
            else if (of && p[i] == 0xfe)
                fm_buf_str(&text, git_oid_tostr(hex, sizeof hex, of));
            else
                fm_buf_u8(&text, p[i]);
            i += of && p[i] >= 0xfe;
        }
        fm_assert(git_odb_hash(&id[count], fm_buf_cstr(&text), text.len, (git_object_t)type) == 0);
        kit_pack_object(&pack, type, fm_buf_cstr(&text), FM_MIN(text.len, (size_t)65535));
        at += 3 + len;
    }
    pack.data[11] = (uint8_t)count;
    kit_pack_end(&pack);
    run(fm_buf_span(&pack));
    fm_buf_release(&pack);
    fm_buf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fm_buf b;
    uint8_t sum[20];

    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);
    if (size > 4 && memcmp(data, "OBJS", 4) == 0) {
        run_objects(data + 4, size - 4);
        return 0;
    }
    run(fm_span_of(data, size));
    fm_buf_init(&b, 0);
    fm_buf_append(&b, data, size);
    if (fm_sha1(sum, data, size) == FM_OK) {
        fm_buf_append(&b, sum, sizeof sum);
        if (fm_buf_ok(&b) == FM_OK)
            run(fm_buf_span(&b));
    }
    fm_buf_release(&b);
    return 0;
}
