/* site.c - requests that the server's owner answers: a thread for each, and two bounded queues
 * between it and the connection. job->lock guards a call; its thread looks at the server's end four
 * times a second while it waits. */
#include "infer/serve/site.h"

#include <linux/tcp.h> /* the C library's tcp_info is an older one */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "infer/serve/internal.h"
#include "store/base/mem.h"
#include "store/base/ring.h"

#define LOOK_S 0.25
#define MAX_HEADERS 32u /* of an answer */
#define SITE_BLOCK ((size_t)256 << 10)
#define DISCARD_BYTES ((uint64_t)64 << 20) /* of a body that is not wanted, from who has no key */

typedef struct pair {
    char *name, *value;
    bool argument;
} pair;

struct fm_site_call {
    fmi_job *job;
    const fm_server_site *site;
    char *method;
    const char *path; /* within url */
    char *url;
    pair *asked;
    size_t asked_count, asked_cap;
    bool is_head;

    const void *client;       /* of its connection */
    fm_site_call *next, **at; /* site_lock: among those that hold a place; at NULL: it holds none */

    /* job->lock */
    pthread_cond_t wake; /* the callback's thread waits for it */
    fm_ring in, out;
    bool in_ended;     /* the request's body is whole */
    bool dropping;     /* nobody reads the body any more */
    uint64_t dropped;  /* bytes of it */
    bool begun, ended; /* the answer; ended: the callback has returned */
    bool failed;       /* the answer is not whole */
    bool left;         /* the connection is over, or has another request */
    bool cut;          /* its socket was shut down here */
    double late;       /* seconds that the client is behind FM_SITE_BYTES_A_SECOND */
    double since;      /* that the callback waits for it; 0: it does not wait */
    uint64_t passed;   /* bytes of the body and of the answer, through the queues */
    uint64_t seen;     /* of traffic(), when `late` was reckoned */
    unsigned status;
    uint64_t bytes, written;
    pair set[MAX_HEADERS];
    size_t set_count;
};

/* ==== the request ==== */

static fm_status keep_pair(fm_site_call *c, const char *name, const char *value, bool argument)
{
    FM_TRY(fm_grow(&c->asked, &c->asked_cap, c->asked_count + 1, sizeof *c->asked));
    pair *p = &c->asked[c->asked_count++];
    *p = (pair){fm_strdup(name), fm_strdup(value ? value : ""), argument};
    return p->name && p->value ? FM_OK : FM_ENOMEM;
}

typedef struct keeping {
    fm_site_call *call;
    fm_status rc;
} keeping;

static enum MHD_Result keep_one(void *cls, enum MHD_ValueKind kind, const char *name,
                                const char *value)
{
    keeping *k = cls;
    k->rc = keep_pair(k->call, name, value, kind == MHD_GET_ARGUMENT_KIND);
    return k->rc == FM_OK ? MHD_YES : MHD_NO;
}

/* Copies what was asked: libmicrohttpd's own belongs to its thread. */
static fm_status copy_request(fm_site_call *c, const char *url, const char *method)
{
    keeping k = {c, FM_OK};
    c->method = fm_strdup(method);
    c->url = fm_strdup(url);
    if (!c->method || !c->url)
        return FM_ENOMEM;
    c->path = c->url + strlen(c->site->prefix);
    c->is_head = strcmp(method, "HEAD") == 0;
    (void)MHD_get_connection_values(c->job->conn, MHD_HEADER_KIND, keep_one, &k);
    if (k.rc == FM_OK)
        (void)MHD_get_connection_values(c->job->conn, MHD_GET_ARGUMENT_KIND, keep_one, &k);
    return k.rc;
}

static const char *find(const fm_site_call *c, const char *name, bool argument)
{
    for (size_t i = 0; i < c->asked_count; i++) {
        const pair *p = &c->asked[i];
        if (p->argument == argument &&
            (argument ? strcmp(p->name, name) : strcasecmp(p->name, name)) == 0)
            return p->value;
    }
    return NULL;
}

const char *fm_site_method(const fm_site_call *c)
{
    return c->method;
}

const char *fm_site_path(const fm_site_call *c)
{
    return c->path;
}

const char *fm_site_header(const fm_site_call *c, const char *name)
{
    return find(c, name, false);
}

const char *fm_site_argument(const fm_site_call *c, const char *name)
{
    return find(c, name, true);
}

/* ==== the callback's thread ==== */

/* Lock held. Grows with every byte that the client acknowledges or sends. The queues alone would
 * not do: the kernel takes megabytes at once of an answer that leaves slowly. */
static uint64_t traffic(const fm_site_call *c)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    if (!c->left && c->job->fd >= 0)
        (void)getsockopt(c->job->fd, IPPROTO_TCP, TCP_INFO, &info, &len);
    return c->passed + info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

/* Lock held. How many seconds the client is behind. */
static double behind(fm_site_call *c)
{
    const uint64_t all = traffic(c);
    if (c->since > 0) {
        const double now = fm_now_s();
        c->late += now - c->since;
        c->since = now;
    }
    if (all > c->seen)
        c->late = FM_MAX(c->late - (double)(all - c->seen) / FM_SITE_BYTES_A_SECOND, 0);
    c->seen = all;
    return c->late;
}

/* Lock held. libmicrohttpd closes the connection then; the descriptor is its own until `left`. */
static void cut(fm_site_call *c)
{
    if (!c->left && !c->cut && c->job->fd >= 0)
        (void)shutdown(c->job->fd, SHUT_RDWR);
    c->cut = true;
    (void)pthread_cond_signal(&c->wake);
}

/* Lock held. What ends a callback that waits for its client. */
static fm_status go_on(fm_site_call *c)
{
    if (c->job->gone)
        return fm_fail(FM_EIO, "the client has left");
    if (atomic_load(&c->job->server->sites_end))
        return fm_fail(FM_ECANCELLED, "the server ends");
    if (behind(c) > FM_SITE_STALL_S)
        cut(c);
    return c->cut ? fm_fail(FM_EIO, "the client moves fewer than %.0f bytes a second",
                            FM_SITE_BYTES_A_SECOND)
                  : FM_OK;
}

static void wait_for_client(fm_site_call *c)
{
    struct timespec until;
    c->since = fm_now_s();
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(LOOK_S * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    (void)pthread_cond_timedwait(&c->wake, &c->job->lock, &until);
    (void)behind(c);
    c->since = 0;
}

/* As much as there is, at least a byte before the end. */
static fm_status read_locked(fm_site_call *c, void *dst, size_t cap, size_t *got)
{
    for (;;) {
        FM_TRY(go_on(c));
        if (c->dropping)
            return fm_fail(FM_EINVAL, "site: the answer has begun; the body is no longer read");
        *got = fm_ring_take(&c->in, dst, cap);
        if (c->in.len <= FM_SITE_QUEUE_BYTES / 2 && !c->in_ended)
            fmi_job_resume_locked(c->job);
        if (*got || c->in_ended)
            return FM_OK;
        wait_for_client(c);
    }
}

fm_status fm_site_read(fm_site_call *c, void *dst, size_t cap, size_t *got)
{
    *got = 0;
    (void)pthread_mutex_lock(&c->job->lock);
    fm_status rc = read_locked(c, dst, cap, got);
    (void)pthread_mutex_unlock(&c->job->lock);
    return rc;
}

static bool has_control(const char *text)
{
    for (; *text; text++)
        if ((uint8_t)*text < 0x20 || *text == 0x7f)
            return true;
    return false;
}

fm_status fm_site_set(fm_site_call *c, const char *name, const char *value)
{
    if (c->set_count == MAX_HEADERS || has_control(name) || has_control(value))
        return fm_fail(FM_EINVAL, "site: a header of the answer cannot be set");
    pair *p = &c->set[c->set_count++];
    *p = (pair){fm_strdup(name), fm_strdup(value), false};
    return p->name && p->value ? FM_OK : FM_ENOMEM;
}

fm_status fm_site_begin(fm_site_call *c, unsigned status, uint64_t bytes)
{
    (void)pthread_mutex_lock(&c->job->lock);
    fm_status rc = go_on(c);
    if (rc == FM_OK) {
        c->status = status;
        c->bytes = bytes;
        c->begun = c->dropping = true;
        fmi_job_resume_locked(c->job);
    }
    (void)pthread_mutex_unlock(&c->job->lock);
    return rc;
}

static fm_status write_locked(fm_site_call *c, const uint8_t *data, size_t len)
{
    if (!c->begun || len > c->bytes - c->written)
        return fm_fail(FM_EINVAL, "site: the answer has not begun, or has more bytes than it said");
    c->written += len;
    while (len > 0) {
        size_t put;
        FM_TRY(go_on(c));
        FM_TRY(fm_ring_put(&c->out, data, len, &put));
        data += put;
        len -= put;
        if (put)
            fmi_job_resume_locked(c->job);
        else
            wait_for_client(c);
    }
    return FM_OK;
}

fm_status fm_site_write(fm_site_call *c, const void *data, size_t len)
{
    if (c->is_head)
        return FM_OK;
    (void)pthread_mutex_lock(&c->job->lock);
    fm_status rc = write_locked(c, data, len);
    (void)pthread_mutex_unlock(&c->job->lock);
    return rc;
}

static unsigned http_of(fm_status rc)
{
    switch ((int)rc) {
    case FM_EREFUSED:
        return 403;
    case FM_ECONFLICT:
        return 409;
    default:
        return fmi_job_http_of(rc);
    }
}

/* Lock held. */
static void end(fm_site_call *c, fm_status rc)
{
    const bool short_of = c->begun && c->bytes != FM_SITE_UNKNOWN && c->written < c->bytes;
    if (rc == FM_OK && !c->begun)
        rc = fm_fail(FM_EIO, "there is no answer");
    if (rc != FM_OK && !c->begun)
        fmi_job_fail(c->job, http_of(rc), fm_status_name(rc), NULL, NULL);
    c->failed = rc != FM_OK || (short_of && !c->is_head);
    c->ended = c->dropping = true;
    fmi_job_resume_locked(c->job);
}

/* Lock held. Waits until the answer has left: until then the request has its place. */
static void see_off(fm_site_call *c)
{
    while (!c->left && c->out.len > 0 && go_on(c) == FM_OK)
        wait_for_client(c);
}

/* ==== places ==== */

/* Lock of the sites held. */
static void give_place(fm_site_call *c)
{
    if (!c->at)
        return;
    *c->at = c->next;
    if (c->next)
        c->next->at = c->at;
    c->at = NULL;
}

static void take_place(fmi_site_load *load, fm_site_call *c)
{
    c->next = load->first;
    c->at = &load->first;
    if (c->next)
        c->next->at = &c->next;
    load->first = c;
}

/* Lock of the sites held. Takes the place of the slowest client; of this one alone: its own. */
static bool push_out(fmi_site_load *load, const void *client)
{
    fm_site_call *slowest = NULL;
    double most = FM_SITE_SLOW_S;
    for (fm_site_call *c = load->first; c; c = c->next) {
        (void)pthread_mutex_lock(&c->job->lock);
        const double late = behind(c);
        (void)pthread_mutex_unlock(&c->job->lock);
        if (late > most && (!client || c->client == client)) {
            most = late;
            slowest = c;
        }
    }
    if (!slowest)
        return false;
    (void)pthread_mutex_lock(&slowest->job->lock);
    cut(slowest);
    (void)pthread_mutex_unlock(&slowest->job->lock);
    give_place(slowest);
    return true;
}

static bool find_place(fmi_job *j)
{
    fmi_site_load *load = j->site;
    const uint32_t places = load->site->most ? load->site->most : FM_SITE_REQUESTS;
    uint32_t taken = 0, own = 0;
    (void)pthread_mutex_lock(&j->server->site_lock);
    for (const fm_site_call *c = load->first; c; c = c->next) {
        taken++;
        own += c->client == j->call->client;
    }
    const bool greedy = own >= places - places / 4;
    const bool ok = (taken < places && !greedy) || push_out(load, greedy ? j->call->client : NULL);
    if (ok)
        take_place(load, j->call);
    (void)pthread_mutex_unlock(&j->server->site_lock);
    return ok;
}

static void leave_place(fmi_job *j)
{
    (void)pthread_mutex_lock(&j->server->site_lock);
    give_place(j->call);
    (void)pthread_mutex_unlock(&j->server->site_lock);
}

static void *answer(void *arg)
{
    fmi_job *j = arg;
    fm_site_call *c = j->call;
    fmi_site_load *load = j->site;
    fm_error_clear();
    const fm_status rc = c->site->answer(c->site->ctx, c);
    (void)pthread_mutex_lock(&j->lock);
    end(c, rc);
    see_off(c);
    (void)pthread_mutex_unlock(&j->lock);
    leave_place(j);
    fmi_job_unref(j);
    atomic_fetch_sub(&load->running, 1); /* the server may be freed from here on */
    return NULL;
}

/* ==== the HTTP side ==== */

static bool fits(const fm_server_site *site, const char *url)
{
    const size_t n = strlen(site->prefix);
    if (strncmp(url, site->prefix, n) != 0 ||
        (site->prefix[n - 1] != '/' && url[n] && url[n] != '/'))
        return false;
    return !site->takes || site->takes(url + n);
}

fmi_site_load *fmi_site_of(fm_server *s, const char *url)
{
    for (size_t i = 0; i < FMI_SITES_MAX && s->site[i].site; i++)
        if (fits(s->site[i].site, url))
            return &s->site[i];
    return NULL;
}

bool fmi_site_takes(const fm_server_site *site, const char *method)
{
    const size_t n = strlen(method);
    for (const char *p = site->methods; *p; p += strspn(p, ", ")) {
        const size_t len = strcspn(p, ", ");
        if (len == n && strncmp(p, method, n) == 0)
            return true;
        p += len;
    }
    return false;
}

static fm_status make_wake(fm_site_call *c)
{
    pthread_condattr_t attr;
    bool ok = pthread_condattr_init(&attr) == 0;
    if (ok) {
        ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
             pthread_cond_init(&c->wake, &attr) == 0;
        (void)pthread_condattr_destroy(&attr);
    }
    return ok ? FM_OK : fm_fail(FM_ENOMEM, "site: cannot make a lock");
}

static bool spawn(fmi_job *j)
{
    pthread_attr_t attr;
    pthread_t thread;
    if (pthread_attr_init(&attr) != 0)
        return false;
    fmi_job_ref(j);
    const bool ok = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0 &&
                    pthread_create(&thread, &attr, answer, j) == 0;
    (void)pthread_attr_destroy(&attr);
    if (!ok)
        fmi_job_unref(j);
    return ok;
}

static bool make_call(fmi_job *j, const char *url, const char *method)
{
    fm_site_call *c = fm_calloc(1, sizeof *c);
    if (!c)
        return false;
    if (make_wake(c) != FM_OK) {
        fm_free(c);
        return false;
    }
    c->in.max = c->out.max = FM_SITE_QUEUE_BYTES;
    c->job = j;
    c->site = j->site->site;
    c->client = fmi_conns_client(j->conn);
    j->call = c; /* the job frees it */
    return copy_request(c, url, method) == FM_OK;
}

bool fmi_site_begin(fmi_job *j, const char *url, const char *method)
{
    bool full = false;
    atomic_fetch_add(&j->site->running, 1);
    if (!atomic_load(&j->server->sites_end) && make_call(j, url, method)) {
        full = !find_place(j);
        if (!full && spawn(j))
            return true;
        leave_place(j);
    }
    fmi_site_free(j->call);
    j->call = NULL;
    atomic_fetch_sub(&j->site->running, 1);
    fmi_job_fail(j, 503, full ? "queue_full" : "out_of_memory", NULL,
                 full ? "too many requests are being answered; try again"
                      : "there is no memory for this request; try again");
    return false;
}

bool fmi_site_body(fmi_job *j, const char *data, size_t *len)
{
    fm_site_call *c = j->call;
    size_t put = *len;
    fm_status rc = FM_OK;
    (void)pthread_mutex_lock(&j->lock);
    if (c->dropping)
        c->dropped += put;
    else
        rc = fm_ring_put(&c->in, data, *len, &put);
    c->passed += put;
    if (put)
        (void)pthread_cond_signal(&c->wake);
    const bool too_much = c->dropped > DISCARD_BYTES && !j->server->opts.api_key;
    if (!put && rc == FM_OK) {
        j->suspended = true;
        MHD_suspend_connection(j->conn);
    }
    (void)pthread_mutex_unlock(&j->lock);
    *len -= put;
    return rc == FM_OK && !too_much;
}

static ssize_t read_answer(void *cls, uint64_t pos, char *dst, size_t max)
{
    fmi_job *j = cls;
    fm_site_call *c = j->call;
    (void)pos;
    (void)pthread_mutex_lock(&j->lock);
    ssize_t n = (ssize_t)fm_ring_take(&c->out, dst, max);
    c->passed += (size_t)n;
    if (n > 0 && c->out.len <= FM_SITE_QUEUE_BYTES / 2)
        (void)pthread_cond_signal(&c->wake);
    if (n == 0 && c->ended) {
        n = c->failed ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else if (n == 0) { /* the next byte resumes the connection */
        j->suspended = true;
        MHD_suspend_connection(j->conn);
    }
    (void)pthread_mutex_unlock(&j->lock);
    return n;
}

static void answer_done(void *cls)
{
    fmi_job_unref(cls);
}

/* After the lock was taken once with `begun` set, status and headers do not change. */
static struct MHD_Response *make_response(fmi_job *j)
{
    const fm_site_call *c = j->call;
    fmi_job_ref(j);
    struct MHD_Response *r =
        MHD_create_response_from_callback(c->bytes == FM_SITE_UNKNOWN ? MHD_SIZE_UNKNOWN : c->bytes,
                                          SITE_BLOCK, read_answer, j, answer_done);
    if (!r) {
        fmi_job_unref(j);
        return NULL;
    }
    for (size_t i = 0; i < c->set_count; i++)
        (void)MHD_add_response_header(r, c->set[i].name, c->set[i].value);
    return r;
}

fmi_site_next fmi_site_asked(fmi_job *j, unsigned *status, struct MHD_Response **out)
{
    fm_site_call *c = j->call;
    (void)pthread_mutex_lock(&j->lock);
    if (!c->in_ended)
        (void)pthread_cond_signal(&c->wake);
    c->in_ended = true;
    const bool begun = c->begun, waits = !c->begun && !c->ended;
    if (waits) {
        j->suspended = true;
        MHD_suspend_connection(j->conn);
    }
    (void)pthread_mutex_unlock(&j->lock);
    if (waits)
        return FMI_SITE_WAITS;
    if (!begun)
        return FMI_SITE_FAILED;
    *status = c->status;
    *out = make_response(j);
    return FMI_SITE_ANSWERS;
}

void fmi_site_left(fmi_job *j)
{
    j->call->left = true;
    (void)pthread_cond_signal(&j->call->wake);
}

static void free_pair(pair *p)
{
    fm_free(p->name);
    fm_free(p->value);
}

void fmi_site_free(fm_site_call *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->asked_count; i++)
        free_pair(&c->asked[i]);
    for (size_t i = 0; i < c->set_count; i++)
        free_pair(&c->set[i]);
    fm_free(c->asked);
    fm_free(c->method);
    fm_free(c->url);
    fm_ring_release(&c->in);
    fm_ring_release(&c->out);
    (void)pthread_cond_destroy(&c->wake);
    fm_free(c);
}

/* ==== the server ==== */

fm_status fmi_sites_init(fm_server *s, const fm_server_site *sites)
{
    for (size_t n = 0; sites && sites[n].prefix; n++) {
        const fm_server_site *site = &sites[n];
        if (n + 1 >= FMI_SITES_MAX || site->prefix[0] != '/' || !site->methods || !site->answer)
            return fm_fail(FM_EINVAL, "server: a site lacks something, or there are too many");
        if (site->writes && !s->opts.api_key)
            return fm_fail(FM_EINVAL, "server: what %s changes needs an API key", site->prefix);
        s->site[n].site = site;
    }
    return FM_OK;
}

void fmi_sites_end(fm_server *s)
{
    atomic_store(&s->sites_end, true);
}

void fmi_sites_wait(fm_server *s)
{
    const struct timespec t = {.tv_nsec = 2000000};
    fmi_sites_end(s);
    for (size_t i = 0; i < FMI_SITES_MAX; i++)
        while (atomic_load(&s->site[i].running))
            (void)nanosleep(&t, NULL);
}
