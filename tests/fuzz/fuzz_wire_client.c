/* Any bytes as what a server answers to a fetch, or (the first bit) to a push: nothing crashes, and
 * where a branch moved fsck finds nothing. FUZZ_WIRE_SEEDS=FOLDER writes what a real server
 * says. */
#include <unistd.h>

#include "tests/kit/wire_kit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static fm_repo *full; /* what is pushed */
static char *full_dir;

static void write_seeds(const char *folder)
{
    static const char *const name[] = {"fetch", "push"};
    for (uint8_t write = 0; write < 2; write++) {
        char *dir;
        wk_loop l;
        fm_repo *other = kit_repo(&dir);
        wk_talk(&l, write ? full : other, write ? other : full, write ? FMR_WRITE : FMR_READ);
        wk_seed(folder, name[write], write, &l.heard);
        wk_loop_release(&l);
        kit_close(other, dir);
    }
}

static fm_status converse(fm_span answers, fm_repo *to, fmr_service service)
{
    wk_bytes side = {.from = answers};
    fmr_far *far = NULL;
    fm_buf_init(&side.to, (size_t)256 << 20);
    const fmr_stream stream = {&side, wk_read_frame, wk_write, NULL};
    fm_status rc = fmr_client_new(&far, &stream, NULL, "the far side", service);
    FM_THEN(rc, service == FMR_WRITE ? wk_push(far, full) : wk_fetch(far, to));
    if (far)
        far->ops->close(far);
    fm_buf_release(&side.to);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fm_repo *to;
    static char *dir;
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);
    if (size == 0)
        return 0;
    if (!full)
        full = wk_repo(&full_dir);
    const char *folder = getenv("FUZZ_WIRE_SEEDS");
    if (folder)
        write_seeds(folder);
    if (!dir)
        dir = tk_scratch();
    if (!to)
        fm_assert(fm_repo_init(dir, true) == FM_OK && fm_repo_open(&to, dir) == FM_OK);
    const fmr_service service = data[0] & 1 ? FMR_WRITE : FMR_READ;
    const fm_status rc = converse(fm_span_of(data + 1, size - 1), to, service);
    if (rc != FM_OK)
        fm_assert(fm_error_text()[0] || rc == FM_ECONFLICT || rc == FM_EREFUSED || rc == FM_EBASE);
    if (service == FMR_WRITE || rc != FM_OK)
        return 0;
    fm_repo_close(to);
    wk_sound(dir);
    fm_assert(fm_remove_tree(dir) == FM_OK);
    to = NULL;
    return 0;
}
