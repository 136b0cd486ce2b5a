/* job.c - the life of a request: references, faults, and its way back to the HTTP side. */
#include "infer/serve/internal.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

#define TRIM_BYTES ((size_t)1 << 20) /* after larger requests free heap goes back to the system */

void fmi_job_ref(fmi_job *j)
{
    atomic_fetch_add(&j->refs, 1);
}

static void free_choice(fmi_choice *c, bool owns)
{
    if (owns)
        fm_free(c->prompt);
    fm_free(c->token);
    fm_free(c->top);
    fm_free(c->vector);
    fm_buf_release(&c->text);
}

/* Roughly the bytes that the request took from the heaps of all its threads. */
static size_t bytes_of(const fmi_job *j)
{
    size_t n = j->body_seen + j->out.cap;
    for (size_t i = 0; i < j->choices; i++) {
        const fmi_choice *c = &j->choice[i];
        n += c->cap * sizeof(*c->token) + c->tops_cap * sizeof(*c->top) + c->text.cap;
    }
    return n + (j->ask.kind == FMI_ASK_EMBED ? j->answer_bytes : 0);
}

void fmi_job_unref(fmi_job *j)
{
    if (!j || atomic_fetch_sub(&j->refs, 1) != 1)
        return;
    bool large = bytes_of(j) >= TRIM_BYTES;
    atomic_fetch_sub(&j->server->answer_bytes, j->answer_bytes);
    if (j->admitted)
        fmi_server_leave(j->server, j->admitted);
    fmi_models_unpin(j->res);
    for (size_t i = 0; i < j->choices; i++)
        free_choice(&j->choice[i], i % j->ask.n == 0);
    fm_free(j->choice);
    fm_free(j->name);
    fmi_site_free(j->call);
    fm_json_free(j->listing);
    fmi_ask_release(&j->ask);
    fm_buf_release(&j->body);
    fm_buf_release(&j->out);
    (void)pthread_mutex_destroy(&j->lock);
    fm_free(j);
    if (large)
        fm_mem_trim();
}

/* The connection cannot be closed while it is suspended, so conn is alive here. */
void fmi_job_resume_locked(fmi_job *j)
{
    if (!j->suspended)
        return;
    j->suspended = false;
    MHD_resume_connection(j->conn);
}

void fmi_job_resume(fmi_job *j)
{
    (void)pthread_mutex_lock(&j->lock);
    fmi_job_resume_locked(j);
    (void)pthread_mutex_unlock(&j->lock);
}

void fmi_job_give_back(fmi_job *j, fmi_stage next)
{
    (void)pthread_mutex_lock(&j->lock);
    j->stage = j->fault.http ? FMI_FAILED : next;
    fmi_job_resume_locked(j);
    (void)pthread_mutex_unlock(&j->lock);
}

/* libmicrohttpd does not watch a suspended connection. The descriptor cannot be closed while the
 * lock is held and the connection stays suspended, so this thread may look at it. */
bool fmi_job_client_left(fmi_job *j)
{
    (void)pthread_mutex_lock(&j->lock);
    if (!j->gone && j->suspended && j->fd >= 0) {
        struct pollfd p = {.fd = j->fd, .events = POLLRDHUP};
        if (poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)))
            j->gone = true;
    }
    bool gone = j->gone;
    (void)pthread_mutex_unlock(&j->lock);
    return gone;
}

unsigned fmi_job_http_of(fm_status rc)
{
    switch ((int)rc) {
    case FM_EINVAL:
    case FM_EUNSUPPORTED:
        return 400;
    case FM_ENOTFOUND:
        return 404;
    case FM_ELIMIT:
    case FM_ECANCELLED:
        return 503;
    default:
        return 500;
    }
}

const char *fmi_job_question(const fmi_job *j)
{
    static const char *const field[] = {"prompt", "messages", "input"};
    return field[j->ask.kind];
}

void fmi_job_fail_cancelled(fmi_job *j)
{
    if (j->gone)
        fmi_job_fail(j, 499, "client_left", NULL, "the client left before its answer was whole");
    else
        fmi_job_fail(j, 503, "shutting_down", NULL, "the server ended before this answer did");
}

void fmi_job_fail_model(fmi_job *j, fm_status rc)
{
    unsigned http = rc == FM_EIO ? 503 : fmi_job_http_of(rc); /* a failed read may pass */
    fmi_job_fail(j, http,
                 http == 404    ? "model_not_found"
                 : rc == FM_EIO ? "model_not_readable"
                 : http == 503  ? "models_busy"
                                : "model_not_usable",
                 "model", NULL);
}

void fmi_job_fail(fmi_job *j, unsigned http, const char *code, const char *param, const char *text)
{
    fmi_fault *f = &j->fault;
    if (f->http)
        return;
    f->http = http;
    f->code = code;
    (void)snprintf(f->param, sizeof(f->param), "%s", param ? param : "");
    (void)snprintf(f->text, sizeof(f->text), "%s", text ? text : fm_error_text());
}
