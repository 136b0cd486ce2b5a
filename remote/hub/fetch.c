/* fetch.c - downloads: threads that take one file after the other, each over its own connections.
 *
 * A file gathers in its part, to which bytes are only ever appended, so whatever is there after a
 * kill is a beginning of the file and the next run asks for the rest. A part whose digest turns out
 * wrong although an earlier process began it (the power failed, say) is fetched once more whole. Of
 * a file without a digest the server's ETag is kept beside the part, and the rest is asked for
 * under the condition that it is still the same (If-Range). */
#include "remote/hub/fetch.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#include "remote/hub/cache.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"
#include "store/base/os/io.h"

#define THREADS 4u
#define HELD_BYTES ((size_t)256 << 10) /* written at once */
#define HASH_BYTES ((size_t)1 << 20)
#define IDLE_TRIES 4u                     /* of a file that does not grow */
#define GROWTH_BYTES ((uint64_t)64 << 10) /* less does not count as growing */
#define TICK_NS 100000000L
#define TAG_BYTES ((size_t)256)

typedef struct fetching {
    const fmr_fetch *f;
    atomic_size_t next;
    atomic_bool stop;
    atomic_ullong done;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned running;     /* under lock, as what follows */
    fm_status rc;         /* the first failure */
    fm_error_state error; /* its text */
} fetching;

/* One file on its way. */
typedef struct arrival {
    fetching *all;
    const fmr_fetch_job *job;
    fm_lock *file;   /* the part: locked, so that no other process appends to it */
    fm_hasher *hash; /* of what is in the part; NULL: not wanted */
    fm_buf held;     /* not yet in the part */
    uint64_t bytes;  /* in the part and held */
    bool resumed;    /* an earlier process began it */
    fm_status local; /* what failed here and not on the way */
    fmr_answer answer;
    char tag[TAG_BYTES]; /* the server's ETag, of a file without a digest; "": not known */
} arrival;

/* ==== the part ==== */

static fm_status flush(arrival *a)
{
    fm_status rc = fm_lock_append(a->file, a->held.data, a->held.len);
    fm_buf_clear(&a->held);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", a->job->part);
}

static char *tag_path(const arrival *a)
{
    return fm_asprintf("%s.etag", a->job->part);
}

/* Keeps the ETag of the answer whose first bytes come; one that may differ in meaning (weak) is not
 * one. */
static fm_status keep_tag(arrival *a)
{
    const fm_span tag = fmr_answer_header(&a->answer, "ETag");
    char *path = tag_path(a);
    fm_status rc = path ? FM_OK : FM_ENOMEM;
    if (tag.data && tag.len > 2 && tag.len < TAG_BYTES && tag.data[0] == '"') {
        memcpy(a->tag, tag.data, tag.len);
        a->tag[tag.len] = '\0';
        FM_THEN(rc, fm_write_file(path, tag.data, tag.len));
    } else {
        FM_THEN(rc, fm_remove_file(path));
    }
    fm_free(path);
    return rc;
}

static fm_status read_tag(arrival *a)
{
    char *path = tag_path(a);
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = path ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && fm_path_exists(path))
        rc = fm_read_file(&text, path, TAG_BYTES - 1);
    if (rc == FM_OK && strlen(fm_buf_cstr(&text)) == text.len && text.len > 0)
        memcpy(a->tag, text.data, text.len + 1);
    fm_buf_release(&text);
    fm_free(path);
    return rc;
}

static fm_status drop_tag(arrival *a)
{
    char *path = tag_path(a);
    fm_status rc = path ? fm_remove_file(path) : FM_ENOMEM;
    fm_free(path);
    a->tag[0] = '\0';
    return rc;
}

static fm_status take_bytes(arrival *a, const void *data, size_t len)
{
    if (a->all->stop)
        return fm_fail(FM_ECANCELLED, "stopped");
    if (!a->job->file && a->bytes == 0)
        FM_TRY(keep_tag(a));
    if (a->hash)
        FM_TRY(fm_hasher_update(a->hash, data, len));
    fm_buf_append(&a->held, data, len);
    FM_TRY(fm_buf_ok(&a->held));
    a->bytes += len;
    atomic_fetch_add(&a->all->done, len);
    return a->held.len >= HELD_BYTES ? flush(a) : FM_OK;
}

static fm_status on_bytes(void *ctx, const void *data, size_t len)
{
    arrival *a = ctx;
    a->local = take_bytes(a, data, len);
    return a->local;
}

static fm_status begin_anew(arrival *a)
{
    fm_digest unfinished;
    fm_lock_end(a->file, a->job->part);
    a->file = NULL;
    atomic_fetch_sub(&a->all->done, a->bytes);
    a->bytes = 0;
    a->resumed = false;
    fm_buf_clear(&a->held);
    if (!a->job->file)
        FM_TRY(drop_tag(a));
    if (a->hash)
        FM_TRY(fm_hasher_final(a->hash, &unfinished));
    return fm_lock_try(&a->file, a->job->part);
}

/* Hashes what an earlier process left. */
static fm_status read_part(arrival *a, uint64_t bytes)
{
    uint8_t *piece = fm_malloc(HASH_BYTES);
    fm_status rc = piece ? FM_OK : FM_ENOMEM;
    for (uint64_t at = 0; rc == FM_OK && a->hash && at < bytes; at += HASH_BYTES) {
        const size_t n = (size_t)FM_MIN(bytes - at, (uint64_t)HASH_BYTES);
        rc = fm_go_on();
        FM_THEN(rc, fm_pread_file(a->job->part, at, piece, n));
        FM_THEN(rc, fm_hasher_update(a->hash, piece, n));
    }
    fm_free(piece);
    a->bytes = bytes;
    a->resumed = bytes > 0;
    atomic_fetch_add(&a->all->done, bytes);
    return rc;
}

static fm_status open_part(arrival *a)
{
    uint64_t bytes = 0;
    FM_TRY(fm_lock_try(&a->file, a->job->part));
    FM_TRY(fm_file_bytes(&bytes, a->job->part));
    if (!a->job->file)
        FM_TRY(read_tag(a));
    if (bytes > 0 && (a->job->file ? bytes > a->job->file->bytes : !a->tag[0]))
        return begin_anew(a);
    return read_part(a, bytes);
}

/* ==== its digest ==== */

static fm_status check_digest(arrival *a, bool *right)
{
    const fmr_hub_file *f = a->job->file;
    char hex[FM_HEX_CHARS + 1];
    fm_digest digest;
    *right = true;
    if (!f)
        return FM_OK;
    if (a->hash) {
        FM_TRY(fm_hasher_final(a->hash, &digest));
        fm_digest_hex(&digest, hex);
    } else {
        FM_TRY(fmr_git_id(hex, a->job->part, f->bytes));
    }
    *right = strcmp(hex, f->etag) == 0;
    if (*right)
        return FM_OK;
    return fm_fail(FM_ECORRUPT,
                   "%s: these are other bytes than the Hub announces: their %s is %.16s..., not "
                   "%.16s...; nothing was imported",
                   a->job->what, f->lfs ? "SHA-256" : "git blob id", hex, f->etag);
}

/* The part has all bytes: compares it and puts it where it belongs. *again: it is to be fetched
 * once more, because an earlier process began it. */
static fm_status finish(arrival *a, bool *again)
{
    bool right;
    *again = false;
    FM_TRY(flush(a));
    const bool resumed = a->resumed;
    fm_status rc = check_digest(a, &right);
    if (rc == FM_ECORRUPT && !right) {
        fm_error_state kept;
        fm_error_save(&kept);
        FM_TRY(begin_anew(a));
        fm_error_restore(&kept);
        *again = resumed;
        return resumed ? FM_OK : rc;
    }
    if (rc == FM_OK && !a->job->file)
        rc = drop_tag(a);
    return rc == FM_OK ? fm_move_file(a->job->part, a->job->path) : rc;
}

/* ==== requests ==== */

static fmr_request request_of(arrival *a, char *condition, size_t bytes)
{
    const fmr_hub_file *file = a->job->file;
    fmr_request q = {.method = "GET",
                     .url = a->job->url,
                     .bearer = a->all->f->token,
                     .take = on_bytes,
                     .ctx = a,
                     .max_bytes = FMR_HUB_FILE_MAX_BYTES};
    if (file)
        q.max_bytes = FM_MAX(file->bytes - a->bytes, (uint64_t)1);
    if (a->bytes > 0) {
        q.from = a->bytes;
        q.bytes = file ? file->bytes - a->bytes : FMR_HTTP_ANY;
    }
    if (a->bytes > 0 && !file) {
        (void)snprintf(condition, bytes, "If-Range: %s", a->tag);
        q.header[0] = condition;
    }
    return q;
}

static fm_status check_answer(const arrival *a)
{
    const fmr_fetch *f = a->all->f;
    const fmr_hub_file *file = a->job->file;
    if (a->answer.status >= 300)
        return fmr_hub_explain(&a->answer, a->job->what, f->page, f->token != NULL);
    if (a->answer.status != 200 && a->answer.status != 206)
        return fm_fail(FM_EIO, "%s: HTTP %u has no file in it", a->job->what, a->answer.status);
    if (file && a->bytes != file->bytes)
        return fm_fail(FM_ECORRUPT, "%s: has %" PRIu64 " bytes, the Hub announces %" PRIu64,
                       a->job->what, a->bytes, file->bytes);
    return FM_OK;
}

/* One request for what is missing; *final: another one would not help. */
static fm_status ask(arrival *a, fmr_http *http, bool *final)
{
    char condition[TAG_BYTES + 16];
    const fmr_request q = request_of(a, condition, sizeof condition);
    const bool resumes = a->bytes > 0;
    a->local = FM_OK;
    fm_status rc = fmr_http_do(http, &q, &a->answer);
    *final = a->local != FM_OK || rc == FM_ECANCELLED || rc == FM_ENOMEM || rc == FM_ELIMIT ||
             rc == FM_EINVAL || a->bytes == 0; /* it was tried several times already */
    if (rc != FM_OK)
        return fm_error_prefix(rc, "%s", a->job->what);
    *final = !(resumes && a->answer.status == 416); /* the server has a shorter file now */
    rc = *final ? check_answer(a)
                : fm_fail(FM_ECORRUPT, "%s: has no byte %" PRIu64, a->job->what, a->bytes);
    fmr_answer_release(&a->answer);
    return rc;
}

static fm_status pause_a_little(const arrival *a, unsigned tried)
{
    const double end = fm_now_s() + 0.25 * (double)(1u << FM_MIN(tried, 6u));
    const struct timespec step = {0, 20 * 1000 * 1000};
    while (fm_now_s() < end) {
        FM_TRY(fm_go_on());
        if (a->all->stop)
            return fm_fail(FM_ECANCELLED, "stopped");
        (void)nanosleep(&step, NULL);
    }
    return FM_OK;
}

static bool is_whole(const arrival *a)
{
    return a->job->file && a->bytes == a->job->file->bytes;
}

/* Asks until the file is whole, as long as it grows. Where nothing can be added to what is here, a
 * server that gives no parts, or has another file by now, is asked for the whole. */
static fm_status fill(arrival *a, fmr_http *http)
{
    for (unsigned idle = 0; !is_whole(a);) {
        const uint64_t before = a->bytes;
        bool final;
        fm_status rc = ask(a, http, &final);
        if (rc == FM_OK || final)
            return rc;
        idle = a->bytes >= before + GROWTH_BYTES ? 0 : idle + 1;
        if (idle >= IDLE_TRIES)
            return rc;
        if ((rc == FM_ECORRUPT && a->bytes == before) || (!a->job->file && !a->tag[0]))
            FM_TRY(begin_anew(a));
        FM_TRY(pause_a_little(a, idle));
    }
    return FM_OK;
}

static fm_status fetch_one(fetching *all, const fmr_fetch_job *job, fmr_http *http)
{
    arrival a = {.all = all, .job = job};
    bool again = true;
    fm_buf_init(&a.held, 0);
    fm_status rc = job->file && job->file->lfs ? fm_hasher_new(&a.hash) : FM_OK;
    FM_THEN(rc, open_part(&a));
    while (rc == FM_OK && again) {
        rc = fill(&a, http);
        FM_THEN(rc, finish(&a, &again));
    }
    if (rc != FM_OK && a.file && a.held.len > 0) { /* what came is kept */
        fm_error_state kept;
        fm_error_save(&kept);
        fm_ignore(flush(&a), "the next run asks for it again");
        fm_error_restore(&kept);
    }
    fm_lock_drop(a.file);
    fm_hasher_free(a.hash);
    fm_buf_release(&a.held);
    return rc;
}

/* ==== threads ==== */

static fm_status fetch_some(fetching *all)
{
    fmr_http *http = NULL;
    fm_status rc = fmr_http_open(&http, NULL);
    while (rc == FM_OK && !all->stop) {
        const size_t i = atomic_fetch_add(&all->next, 1);
        if (i >= all->f->count)
            break;
        rc = fetch_one(all, &all->f->job[i], http);
    }
    fmr_http_close(http);
    return rc;
}

static void *work(void *arg)
{
    fetching *all = arg;
    fm_status rc = fetch_some(all);
    (void)pthread_mutex_lock(&all->lock);
    if (rc != FM_OK && all->rc == FM_OK) {
        all->rc = rc;
        fm_error_save(&all->error);
        all->stop = true;
    }
    all->running--;
    (void)pthread_cond_signal(&all->changed);
    (void)pthread_mutex_unlock(&all->lock);
    return NULL;
}

/* Reports progress until the last thread ends. */
static void watch(fetching *all, uint64_t total)
{
    (void)pthread_mutex_lock(&all->lock);
    while (all->running > 0) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += TICK_NS;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        (void)pthread_cond_timedwait(&all->changed, &all->lock, &until);
        (void)pthread_mutex_unlock(&all->lock);
        if (all->f->progress && all->f->progress(all->f->ctx, all->done, total))
            all->stop = true;
        (void)pthread_mutex_lock(&all->lock);
    }
    (void)pthread_mutex_unlock(&all->lock);
}

/* The bytes that are still to come, or 0 where nobody knows. */
static fm_status check_room(const fmr_fetch *f, uint64_t *total)
{
    uint64_t wanted = 0;
    struct statvfs disk;
    *total = 0;
    for (size_t i = 0; i < f->count; i++) {
        uint64_t there = 0;
        if (!f->job[i].file)
            continue;
        if (fm_path_exists(f->job[i].part))
            FM_TRY(fm_file_bytes(&there, f->job[i].part));
        *total += f->job[i].file->bytes;
        wanted += f->job[i].file->bytes - FM_MIN(there, f->job[i].file->bytes);
    }
    char *folder = f->count ? fm_strndup(f->job[0].part,
                                         (size_t)(fm_path_base(f->job[0].part) - f->job[0].part))
                            : fm_strdup(".");
    if (!folder)
        return FM_ENOMEM;
    const bool known = statvfs(folder, &disk) == 0;
    const uint64_t room = known ? (uint64_t)disk.f_bavail * disk.f_frsize : 0;
    fm_free(folder);
    if (known && wanted > room)
        return fm_fail(FM_EIO,
                       "the download needs %" PRIu64 " bytes and the disk has %" PRIu64
                       " free: make room, or let HF_HUB_CACHE have the model on another disk",
                       wanted, room);
    return FM_OK;
}

fm_status fmr_fetch_all(const fmr_fetch *f)
{
    fetching all = {.f = f, .rc = FM_OK};
    pthread_t thread[THREADS];
    unsigned started = 0;
    uint64_t total;
    if (f->count == 0)
        return FM_OK;
    FM_TRY(check_room(f, &total));
    (void)pthread_mutex_init(&all.lock, NULL);
    (void)pthread_cond_init(&all.changed, NULL);
    all.running = (unsigned)FM_MIN(f->count, (size_t)THREADS);
    for (const unsigned wanted = all.running; started < wanted; started++)
        if (pthread_create(&thread[started], NULL, work, &all) != 0) {
            (void)pthread_mutex_lock(&all.lock);
            all.running -= wanted - started;
            (void)pthread_mutex_unlock(&all.lock);
            break;
        }
    if (started == 0)
        all.rc = fm_fail(FM_EIO, "cannot start a thread: %s", strerror(EAGAIN));
    else
        watch(&all, total);
    for (unsigned i = 0; i < started; i++)
        (void)pthread_join(thread[i], NULL);
    (void)pthread_cond_destroy(&all.changed);
    (void)pthread_mutex_destroy(&all.lock);
    if (started > 0 && all.rc != FM_OK)
        fm_error_restore(&all.error);
    return all.rc;
}
