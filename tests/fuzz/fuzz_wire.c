/* Any bytes as what a client says to a repository: the first bit says whether it may push. Nothing
 * crashes, what moved leaves a sound repository, and a reader changes nothing.
 * FUZZ_WIRE_SEEDS=FOLDER writes what a real fetch and a real push say. */
#include <unistd.h>

#include "tests/kit/wire_kit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static fm_repo *repo; /* at dir, a copy of the one at first; NULL: it was changed */
static char *first, *dir;

static fm_status fold(void *ctx, const char *name, const fm_oid *oid, const fm_oid *peeled)
{
    uint64_t *sum = ctx;
    (void)peeled;
    for (; *name; name++)
        *sum = *sum * 31 + (uint8_t)*name;
    for (size_t i = 0; i < sizeof oid->b; i++)
        *sum = *sum * 31 + oid->b[i];
    return FM_OK;
}

static uint64_t refs_now(void)
{
    uint64_t sum = 1;
    fm_assert(fm_exchange_refs(repo, fold, &sum) == FM_OK);
    return sum;
}

static void need_repo(void)
{
    if (repo)
        return;
    if (!first) {
        fm_repo_close(wk_repo(&first));
        dir = tk_scratch();
    }
    kit_copy_tree(first, dir);
    fm_assert(fm_repo_open(&repo, dir) == FM_OK);
}

static void write_seeds(const char *folder)
{
    char *near_dir;
    wk_loop l;
    fm_repo *near = kit_repo(&near_dir);
    wk_talk(&l, near, repo, FMR_READ);
    wk_seed(folder, "fetch", 0, &l.said);
    wk_loop_release(&l);
    kit_close(near, near_dir);
    near = wk_repo(&near_dir);
    char *far_dir;
    fm_repo *far = kit_repo(&far_dir);
    wk_talk(&l, near, far, FMR_WRITE);
    wk_seed(folder, "push", 1, &l.said);
    wk_loop_release(&l);
    kit_close(near, near_dir);
    kit_close(far, far_dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);
    if (size == 0)
        return 0;
    need_repo();
    const char *folder = getenv("FUZZ_WIRE_SEEDS");
    if (folder)
        write_seeds(folder);
    const fmr_service service = data[0] & 1 ? FMR_WRITE : FMR_READ;
    const uint64_t before = refs_now();
    wk_bytes side = {.from = fm_span_of(data + 1, size - 1)};
    fm_buf_init(&side.to, (size_t)256 << 20);
    const fmr_stream stream = {&side, wk_read, wk_write, NULL};
    fmr_peer *p = NULL;
    fm_assert(fmr_peer_new(&p, repo, service) == FM_OK);
    if (fmr_peer_run(p, &stream) != FM_OK)
        fm_assert(fm_error_text()[0]);
    fmr_peer_free(p);
    fm_buf_release(&side.to);
    fm_assert(service == FMR_WRITE || refs_now() == before);
    if (refs_now() != before) {
        fm_repo_close(repo);
        repo = NULL;
        wk_sound(dir);
    }
    return 0;
}
