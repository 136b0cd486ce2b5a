/* http_serve.c - answers messages of the wire that come as requests of a web server: repositories
 * for readers are kept open between them, sessions of pushes have their own. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "remote/serve.h"
#include "remote/wire/peer.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"

#define READERS_KEPT 4u
#define READER_AGE_S 10.0 /* an older one is opened anew: it may map packs that gc has deleted */
#define BUSY_WITHIN_S 30.0 /* for the session's last request, which may still be under way */
#define SPARED_S 5.0 /* a session without a request for so long may give its place to another */
#define LOOK_S 5     /* how often idle sessions and old readers are looked for */

typedef struct session {
    char name[33]; /* of 128 random bits */
    fm_repo *repo;
    fmr_peer *peer;
    bool busy;
    double used; /* when its last request ended */
} session;

typedef struct reader {
    fm_repo *repo; /* NULL: none */
    double opened;
} reader;

struct fm_remote_web {
    char *dir;
    bool write;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t change;
    bool ends;
    reader reader[READERS_KEPT];
    size_t readers;
    session *session[FM_REMOTE_SESSIONS];
    pthread_t sweeper;
    bool has_sweeper;
};

/* ==== sessions ==== */

static void close_session(session *s)
{
    if (!s)
        return;
    fmr_peer_free(s->peer);
    fm_repo_close(s->repo);
    fm_free(s);
}

static fm_status make_session(const fm_remote_web *w, session **out)
{
    uint8_t bits[16];
    session *s = fm_calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return FM_ENOMEM;
    fm_status rc = getrandom(bits, sizeof bits, 0) == (ssize_t)sizeof bits
                       ? FM_OK
                       : fm_fail(FM_EIO, "no random name for a session");
    for (size_t i = 0; i < sizeof bits; i++)
        (void)snprintf(s->name + 2 * i, 3, "%02x", bits[i]);
    s->busy = true;
    FM_THEN(rc, fm_repo_open(&s->repo, w->dir));
    FM_THEN(rc, fmr_peer_new(&s->peer, s->repo, FMR_WRITE));
    if (rc != FM_OK) {
        close_session(s);
        return rc;
    }
    *out = s;
    return FM_OK;
}

/* Lock held. The place of the session that is idle the longest, and since `since` at least; NULL:
 * there is none. */
static session **idle_place(fm_remote_web *w, double since)
{
    session **best = NULL;
    for (size_t i = 0; i < FM_REMOTE_SESSIONS; i++) {
        session **at = &w->session[i];
        if (*at && !(*at)->busy && (*at)->used <= since && (!best || (*at)->used < (*best)->used))
            best = at;
    }
    return best;
}

/* Lock held. Puts s into a free place, or one whose session may go. */
static fm_status place(fm_remote_web *w, session *s, session **gone)
{
    session **at = NULL;
    *gone = NULL;
    for (size_t i = 0; i < FM_REMOTE_SESSIONS && !at; i++)
        if (!w->session[i])
            at = &w->session[i];
    if (!at)
        at = idle_place(w, fm_now_s() - SPARED_S);
    if (!at)
        return fm_fail(FM_ELIMIT, "%u pushes are under way; try again", FM_REMOTE_SESSIONS);
    *gone = *at;
    *at = s;
    return FM_OK;
}

static fm_status begin_session(fm_remote_web *w, session **out)
{
    session *gone;
    fm_error_state text;
    FM_TRY(make_session(w, out));
    (void)pthread_mutex_lock(&w->lock);
    const fm_status rc = place(w, *out, &gone);
    (void)pthread_mutex_unlock(&w->lock);
    if (rc == FM_OK) {
        close_session(gone);
        return FM_OK;
    }
    fm_error_save(&text);
    close_session(*out);
    *out = NULL;
    fm_error_restore(&text);
    return rc;
}

static session **find(fm_remote_web *w, const char *name)
{
    for (size_t i = 0; i < FM_REMOTE_SESSIONS; i++)
        if (w->session[i] && strcmp(w->session[i]->name, name) == 0)
            return &w->session[i];
    return NULL;
}

static void wait_for_change(fm_remote_web *w, double seconds)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    const double at = (double)until.tv_sec + (double)until.tv_nsec / 1e9 + seconds;
    until.tv_sec = (time_t)at;
    until.tv_nsec = (long)((at - (double)until.tv_sec) * 1e9);
    (void)pthread_cond_timedwait(&w->change, &w->lock, &until);
}

/* Lock held. Its last request may have been given up by its client a moment ago. */
static fm_status wait_for_session(fm_remote_web *w, const char *name, session ***at)
{
    const double end = fm_now_s() + BUSY_WITHIN_S;
    while ((*at = find(w, name)) && (**at)->busy && !w->ends) {
        const double left = end - fm_now_s();
        if (left <= 0)
            return fm_fail(FM_ECONFLICT, "another request of this push is still being answered");
        wait_for_change(w, left);
    }
    return *at && !w->ends
               ? FM_OK
               : fm_fail(FM_ECONFLICT,
                         "this push's session has ended (a request failed, it was idle for %.0f "
                         "minutes, or the server was started anew); push again: what has arrived "
                         "is kept",
                         FM_REMOTE_IDLE_S / 60);
}

static fm_status take_session(fm_remote_web *w, const char *name, session **out)
{
    session **at;
    *out = NULL;
    (void)pthread_mutex_lock(&w->lock);
    fm_status rc = wait_for_session(w, name, &at);
    if (rc == FM_OK) {
        *out = *at;
        (*out)->busy = true;
    }
    (void)pthread_mutex_unlock(&w->lock);
    return rc;
}

/* ends: the session is over. */
static void give_session(fm_remote_web *w, session *s, bool ends)
{
    (void)pthread_mutex_lock(&w->lock);
    session **at = find(w, s->name);
    s->used = fm_now_s();
    s->busy = false;
    if (ends && at)
        *at = NULL;
    (void)pthread_cond_broadcast(&w->change);
    (void)pthread_mutex_unlock(&w->lock);
    if (ends)
        close_session(s);
}

/* ==== readers ==== */

static bool is_old(const reader *r)
{
    return fm_now_s() - r->opened > READER_AGE_S;
}

/* Lock held. */
static reader old_reader(fm_remote_web *w)
{
    for (size_t i = 0; i < w->readers; i++)
        if (is_old(&w->reader[i])) {
            const reader r = w->reader[i];
            w->reader[i] = w->reader[--w->readers];
            return r;
        }
    return (reader){NULL, 0};
}

static fm_status take_reader(fm_remote_web *w, reader *out)
{
    *out = (reader){NULL, 0};
    (void)pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->readers && !out->repo; i++)
        if (!is_old(&w->reader[i])) {
            *out = w->reader[i];
            w->reader[i] = w->reader[--w->readers];
        }
    (void)pthread_mutex_unlock(&w->lock);
    if (out->repo)
        return FM_OK;
    out->opened = fm_now_s();
    return fm_repo_open(&out->repo, w->dir);
}

/* Its lease ends here, or what it named would be kept for as long as the server runs. */
static void give_reader(fm_remote_web *w, reader r)
{
    fm_store_lease_end(fm_repo_store(r.repo));
    (void)pthread_mutex_lock(&w->lock);
    const bool keep = w->readers < READERS_KEPT && !is_old(&r);
    if (keep)
        w->reader[w->readers++] = r;
    (void)pthread_mutex_unlock(&w->lock);
    if (!keep)
        fm_repo_close(r.repo);
}

/* Closes sessions that are idle for too long, and readers that are old. */
static void *sweep(void *arg)
{
    fm_remote_web *w = arg;
    (void)pthread_mutex_lock(&w->lock);
    while (!w->ends) {
        session **at = idle_place(w, fm_now_s() - FM_REMOTE_IDLE_S), *gone = at ? *at : NULL;
        const reader old = old_reader(w);
        if (!gone && !old.repo) {
            wait_for_change(w, LOOK_S);
            continue;
        }
        if (at)
            *at = NULL;
        (void)pthread_mutex_unlock(&w->lock);
        close_session(gone);
        fm_repo_close(old.repo);
        (void)pthread_mutex_lock(&w->lock);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ==== a request ==== */

typedef struct request {
    const fm_remote_exchange *x;
    const char *name; /* of the session that begins with it; NULL */
    bool begun, failed;
} request;

static fm_status read_body(void *ctx, void *dst, size_t cap, size_t *got)
{
    request *q = ctx;
    const fm_status rc = q->x->read(q->x->ctx, dst, cap, got);
    q->failed = q->failed || rc != FM_OK;
    return rc;
}

static fm_status write_answer(void *ctx, const void *data, size_t len)
{
    request *q = ctx;
    fm_status rc = FM_OK;
    if (!q->begun) {
        rc = q->x->begin(q->x->ctx, 200, q->name);
        q->begun = true;
    }
    FM_THEN(rc, q->x->write(q->x->ctx, data, len));
    q->failed = q->failed || rc != FM_OK;
    return rc;
}

/* A failure that the wire told is no failure of the request; one before that is a body that begins
 * with no message. */
static fm_status outcome(const request *q, fm_status rc)
{
    if (q->failed || rc == FM_OK)
        return rc;
    if (q->begun)
        return FM_OK;
    return rc == FM_ECORRUPT || rc == FM_EIO ? FM_EINVAL : rc;
}

/* *good: the message was answered, and another may follow. */
static fm_status answer_by(fmr_peer *p, request *q, bool *good)
{
    const fmr_stream stream = {q, read_body, write_answer, NULL};
    fmr_wire wire;
    fm_status rc = fmr_wire_init(&wire, &stream, "the client");
    *good = false;
    FM_THEN(rc, fmr_peer_answer(p, &wire, good));
    if (rc == FM_OK && !*good)
        rc = fm_fail(FM_EINVAL, "there is no message in the request");
    *good = rc == FM_OK;
    fmr_wire_release(&wire);
    return outcome(q, rc);
}

/* The current error as an answer of the wire. */
static fm_status tell(request *q, fm_status why)
{
    const fmr_stream stream = {q, read_body, write_answer, NULL};
    fmr_wire wire;
    fm_error_state text;
    fm_error_save(&text);
    fm_status rc = fmr_wire_init(&wire, &stream, "the client");
    fm_error_restore(&text);
    FM_THEN(rc, fmr_send_fail(&wire, why));
    fmr_wire_release(&wire);
    return rc;
}

static fm_status answer_reader(fm_remote_web *w, request *q)
{
    fmr_peer *p = NULL;
    reader r;
    bool good;
    FM_TRY(take_reader(w, &r));
    fm_status rc = fmr_peer_new(&p, r.repo, FMR_READ);
    FM_THEN(rc, answer_by(p, q, &good));
    fmr_peer_free(p);
    give_reader(w, r);
    return rc;
}

static fm_status answer_writer(fm_remote_web *w, session *s, request *q)
{
    bool good;
    const fm_status rc = answer_by(s->peer, q, &good);
    fm_error_state text;
    fm_error_save(&text);
    give_session(w, s, !good);
    fm_error_restore(&text);
    return rc;
}

static fm_status end_session(fm_remote_web *w, const fm_remote_exchange *x)
{
    session *s;
    if (x->session && take_session(w, x->session, &s) == FM_OK)
        give_session(w, s, true);
    fm_error_clear(); /* one that is over is over */
    return x->begin(x->ctx, 204, NULL);
}

fm_status fm_remote_web_answer(fm_remote_web *w, const fm_remote_exchange *x)
{
    request q = {.x = x};
    session *s;
    if (x->ends)
        return end_session(w, x);
    if (!x->session || !w->write) /* a greeting hears there that nothing may be written */
        return answer_reader(w, &q);
    if (strcmp(x->session, "new") == 0) {
        FM_TRY(begin_session(w, &s));
        q.name = s->name;
        return answer_writer(w, s, &q);
    }
    const fm_status rc = take_session(w, x->session, &s);
    return rc == FM_OK ? answer_writer(w, s, &q) : tell(&q, rc);
}

/* ==== begin and end ==== */

static fm_status make_locks(fm_remote_web *w)
{
    pthread_condattr_t attr;
    bool ok = pthread_mutex_init(&w->lock, NULL) == 0 && pthread_condattr_init(&attr) == 0;
    if (ok) {
        ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
             pthread_cond_init(&w->change, &attr) == 0;
        (void)pthread_condattr_destroy(&attr);
    }
    return ok ? FM_OK : fm_fail(FM_ENOMEM, "a remote's server: cannot make a lock");
}

fm_status fm_remote_web_new(fm_remote_web **out, const char *dir, bool write)
{
    *out = NULL;
    fm_remote_web *w = fm_calloc(1, sizeof *w);
    if (!w)
        return FM_ENOMEM;
    fm_status rc = make_locks(w);
    if (rc != FM_OK) {
        fm_free(w);
        return rc;
    }
    w->write = write;
    w->dir = fm_strdup(dir);
    if (!w->dir)
        rc = FM_ENOMEM;
    if (rc == FM_OK) {
        w->has_sweeper = pthread_create(&w->sweeper, NULL, sweep, w) == 0;
        if (!w->has_sweeper)
            rc = fm_fail(FM_ENOMEM, "a remote's server: no thread");
    }
    if (rc != FM_OK) {
        fm_remote_web_free(w);
        return rc;
    }
    *out = w;
    return FM_OK;
}

void fm_remote_web_free(fm_remote_web *w)
{
    if (!w)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->ends = true;
    (void)pthread_cond_broadcast(&w->change);
    (void)pthread_mutex_unlock(&w->lock);
    if (w->has_sweeper)
        (void)pthread_join(w->sweeper, NULL);
    for (size_t i = 0; i < FM_REMOTE_SESSIONS; i++)
        close_session(w->session[i]);
    while (w->readers)
        fm_repo_close(w->reader[--w->readers].repo);
    (void)pthread_cond_destroy(&w->change);
    (void)pthread_mutex_destroy(&w->lock);
    fm_free(w->dir);
    fm_free(w);
}
