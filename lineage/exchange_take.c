/* exchange_take.c - the receiver of a git pack.
 *
 * Bytes are looked at (pack_scan.h) before libgit2 indexes them in a folder of their own below
 * REPO/tmp. The pack moves into lineage.git once the lease names all its objects; a kill before
 * leaves the folder, which the next intake or gc removes, as no process holds its lock any more. */
#include "lineage/exchange.h"
#include "lineage/internal.h"
#include "lineage/pack_scan.h"
#include "store/base/cancel.h"
#include "store/base/os/clock.h"

#include <stdlib.h>
#include <string.h>

#include <git2/indexer.h>
#include <git2/odb_backend.h>

#define DEFAULT_BYTES ((uint64_t)4 << 30)
#define PIECE_BYTES ((size_t)1 << 20) /* between two looks at a request to stop */
/* libgit2 goes through all deltas once for each link of a chain whose deltas come before their
 * bases, and unpacks all below a large one anew. Senders put bases first, and then its work is
 * about that of the bytes' arrival: it gets so many times as much processor time, and some
 * seconds. */
#define RESOLVE_TIMES 10.0
#define RESOLVE_S 5.0

struct fm_git_intake {
    fm_repo *r;
    fml_pack_scan *scan;
    git_indexer *indexer;
    git_indexer_progress progress; /* libgit2 goes on by it */
    fm_staging *folder;
    double spent; /* seconds of processor time for the bytes */
    double end;   /* that the deltas may take, by the thread's clock; 0: they wait */
    bool failed, ended;
    git_oid *id;
    size_t count, cap;
    fm_status rc; /* of the callbacks */
};

/* ---- bytes ---- */

static int look_up(const git_indexer_progress *stats, void *ctx)
{
    fm_git_intake *in = ctx;

    (void)stats;
    in->rc = fm_go_on();
    if (in->rc == FM_OK && in->end > 0 && fm_thread_cpu_s() > in->end)
        in->rc = fm_fail(
            FM_ELIMIT, "the git pack of the other side takes too long to put together: deltas "
                       "come before their bases; 'git repack -adf' there makes one that does not");
    return in->rc == FM_OK ? 0 : -1;
}

fm_status fm_git_intake_open(fm_git_intake **out, fm_repo *r, uint64_t max_bytes)
{
    git_indexer_options opts;
    fm_git_intake *in;

    *out = NULL;
    if (!r)
        return fm_fail(FM_EINVAL, "intake: no repository");
    FM_TRY(fm_store_lease(r->store, true, "an intake of versions"));
    in = fm_calloc(1, sizeof *in);
    if (!in)
        return FM_ENOMEM;
    in->r = r;
    fm_status rc = fm_staging_make(&in->folder, r);
    FM_THEN(rc, fml_pack_scan_new(&in->scan, max_bytes ? max_bytes : DEFAULT_BYTES));
    int code = git_indexer_options_init(&opts, GIT_INDEXER_OPTIONS_VERSION);
    opts.progress_cb = look_up;
    opts.progress_cb_payload = in;
    if (rc == FM_OK && code == 0)
        code = git_indexer_new(&in->indexer, fm_staging_dir(in->folder), 0, NULL, &opts);
    if (rc == FM_OK && code < 0)
        rc = fml_git_fail(code, "cannot begin a git pack in '%s'", fm_staging_dir(in->folder));
    if (rc < 0)
        fm_git_intake_close(in);
    else
        *out = in;
    return rc;
}

static fm_status index_failed(const fm_git_intake *in, int code)
{
    return in->rc < 0 ? in->rc : fml_damage(code, "the git pack of the other side cannot be taken");
}

static fm_status append(fm_git_intake *in, fm_span bytes)
{
    FM_TRY(fml_pack_scan_bytes(in->scan, bytes));
    while (bytes.len > 0) {
        const size_t n = FM_MIN(bytes.len, PIECE_BYTES);
        FM_TRY(fm_go_on());
        int code = git_indexer_append(in->indexer, bytes.data, n, &in->progress);
        if (code < 0)
            return index_failed(in, code);
        bytes = fm_span_of(bytes.data + n, bytes.len - n);
    }
    return FM_OK;
}

fm_status fm_git_intake_bytes(fm_git_intake *in, const void *data, size_t len)
{
    if (in->failed || in->ended)
        return fm_fail(FM_EINVAL, "this intake has %s", in->failed ? "failed before" : "ended");
    const double from = fm_thread_cpu_s();
    fm_status rc = append(in, fm_span_of(data, len));
    in->spent += fm_thread_cpu_s() - from;
    in->failed = rc < 0;
    return rc;
}

/* ---- into place ---- */

static int gather_id(const git_oid *id, void *ctx)
{
    fm_git_intake *in = ctx;

    in->rc = fm_grow(&in->id, &in->cap, in->count + 1, sizeof *in->id);
    if (in->rc < 0)
        return -1;
    in->id[in->count++] = *id;
    return 0;
}

static fm_status check_chains(const fm_git_intake *in, const char *idx)
{
    fm_file_map map;
    FM_TRY(fm_map_file(&map, idx));
    fm_status rc = fml_pack_scan_chains(in->scan, fm_span_of(map.data, map.len));
    fm_unmap_file(&map);
    return rc;
}

static fm_status hold_ids(fm_git_intake *in, const char *idx)
{
    int code = fml_pack_each(idx, gather_id, in);

    if (code < 0)
        return index_failed(in, code);
    return fms_store_hold(in->r->store, FMS_HOLD_GIT, in->id[0].id, in->count);
}

/* The index first: every reader ignores one without its pack. */
static fm_status place(const fm_git_intake *in, const char *name)
{
    static const char *const ext[] = {".idx", ".pack"};
    char *from[2] = {NULL, NULL}, *to[2] = {NULL, NULL};
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < 2; i++) {
        from[i] = fm_asprintf("%s/%s%s", fm_staging_dir(in->folder), name, ext[i]);
        to[i] = fm_asprintf("%s/objects/pack/%s%s", in->r->git_path, name, ext[i]);
        rc = from[i] && to[i] ? FM_OK : FM_ENOMEM;
    }
    if (rc == FM_OK && !(fm_path_exists(to[0]) && fm_path_exists(to[1])))
        for (size_t i = 0; rc == FM_OK && i < 2; i++)
            rc = fm_move_file(from[i], to[i]);
    for (size_t i = 0; i < 2; i++) {
        fm_free(from[i]);
        fm_free(to[i]);
    }
    return rc;
}

static fm_status take_pack(fm_git_intake *in)
{
    in->end = fm_thread_cpu_s() + RESOLVE_S + RESOLVE_TIMES * in->spent;
    int code = git_indexer_commit(in->indexer, &in->progress);

    if (code < 0)
        return index_failed(in, code);
    char *name = fm_asprintf("pack-%s", git_indexer_name(in->indexer));
    char *idx = name ? fm_asprintf("%s/%s.idx", fm_staging_dir(in->folder), name) : NULL;
    fm_status rc = idx ? check_chains(in, idx) : FM_ENOMEM;
    FM_THEN(rc, hold_ids(in, idx));
    FM_THEN(rc, place(in, name));
    fm_free(idx);
    fm_free(name);
    if (rc == FM_OK && git_odb_refresh(in->r->odb) < 0)
        rc = fml_git_fail(-1, "cannot reload '%s'", in->r->git_path);
    return rc;
}

fm_status fm_git_intake_end(fm_git_intake *in, uint64_t *objects)
{
    uint32_t count = 0;

    if (in->failed || in->ended)
        return fm_fail(FM_EINVAL, "this intake has %s", in->failed ? "failed before" : "ended");
    fm_status rc = fml_pack_scan_end(in->scan, &count);
    if (rc == FM_OK && count > 0)
        rc = take_pack(in);
    in->failed = rc < 0;
    in->ended = rc == FM_OK;
    if (rc == FM_OK && objects)
        *objects = count;
    return rc;
}

void fm_git_intake_close(fm_git_intake *in)
{
    if (!in)
        return;
    git_indexer_free(in->indexer);
    fml_pack_scan_free(in->scan);
    fm_staging_end(in->folder);
    fm_free(in->id);
    fm_free(in);
}
