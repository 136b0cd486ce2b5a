/* internal.h - one request on its way between threads, and what the files of this folder share.
 *
 * Two sides work on a job. The HTTP side (a libmicrohttpd thread) reads, parses, formats and sends;
 * the engine side (the caller of fm_server_run) resolves, adopts and generates, and lets threads of
 * prepare.c encode the prompts in between. A job is handed to the engine through the server's queue
 * while its connection is suspended, and handed back by resuming it. job->lock guards what both
 * sides use at the same time. Lock order: job, then server. */
#ifndef FM_INFER_SERVE_INTERNAL_H
#define FM_INFER_SERVE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "infer/serve/conns.h"
#include "infer/serve/mhd.h"
#include "infer/serve/openai.h"
#include "infer/serve/server.h"
#include "infer/serve/site.h"
#include "store/base/os/clock.h"

FM_BEGIN_DECLS

typedef struct fmi_job fmi_job;
typedef struct fmi_site_load {
    const fm_server_site *site;
    atomic_uint running; /* threads that answer */
    fm_site_call *first; /* those that hold a place; the server's site_lock guards it */
} fmi_site_load;

/* ---- metrics.c ---- */

#define FMI_MAX_CODES 24
#define FMI_MAX_BUCKETS 16

typedef struct fmi_histogram {
    const double *edge; /* upper ends, ascending */
    size_t edges;
    uint64_t in[FMI_MAX_BUCKETS + 1];
    double sum;
    uint64_t count;
} fmi_histogram;

typedef struct fmi_metrics {
    pthread_mutex_t lock;
    struct {
        unsigned code;
        uint64_t count;
    } by_code[FMI_MAX_CODES];
    uint64_t tokens_in, tokens_out, cancelled;
    uint32_t running, waiting, resident, loading, models_running;
    uint64_t loads, load_failures;
    fm_engine_stats engine;
    fmi_histogram step_rows, step_models, first_token, whole, load;
} fmi_metrics;

FM_CHECKED fm_status fmi_metrics_init(fmi_metrics *m);
void fmi_metrics_destroy(fmi_metrics *m);
void fmi_metrics_code(fmi_metrics *m, unsigned code);
void fmi_metrics_add(fmi_metrics *m, fmi_histogram *h, double value);
void fmi_metrics_write(fmi_metrics *m, fm_buf *out); /* Prometheus text */

/* ---- models.c: versions in memory and on their way; engine thread only ---- */

typedef struct fmi_resident {
    char version[65];
    fm_model *model;  /* NULL until it is loaded; the loader's thread sets it */
    bool ready;       /* adopted by the engine */
    atomic_uint pins; /* jobs that hold it; only the engine thread pins */
    uint32_t kept;    /* names of fm_server_pin that mean it */
    uint64_t used;    /* server->use_clock at its last use: the least is closed first */
    fmi_job *waiting; /* jobs that wait until it is ready; a reference each, oldest first */
    double parked;    /* time since it waits for other models to end; 0: it does not wait */
    bool for_memory;  /* parked for memory, not for a place among max_models */
    bool alone;       /* when its load began, no other but kept models were loaded or loading */
    uint64_t opened;  /* server->opened when its load began */
    struct fmi_resident *next;
    /* For the loader, and its result. */
    char *name; /* the name in the first request for it, for errors */
    fm_status rc;
    fm_error_state error;
    double seconds;
    struct fmi_resident *next_load;
} fmi_resident;

/* A name that keeps its version in memory. */
typedef struct fmi_kept {
    char *name;
    fmi_resident *res; /* NULL until its version is there */
    struct fmi_kept *next;
} fmi_kept;

/* Finds the model of j and hands j back with the model pinned, now or when it is loaded; or with a
 * fault. Takes a reference of its own where j waits. */
void fmi_models_want(fm_server *s, fmi_job *j);
/* Adopts the models that the loader finished; jobs that waited for them go on. A load that lacked
 * memory begins again when an idle model could be closed for it; while all are busy it is parked
 * for a second, then its jobs fail. */
void fmi_models_settle(fm_server *s);
/* Drops jobs that wait for a load and whose clients have left; all: fails all of them by 503. */
void fmi_models_drop_waiting(fm_server *s, bool all);
/* Loads on this thread, before the server runs; keep: fm_server_pin. */
FM_CHECKED fm_status fmi_models_load_now(fm_server *s, const char *name, bool keep);
void fmi_models_close_all(fm_server *s);
/* name NULL: the list of models; else the model of this name, FM_ENOTFOUND. */
FM_CHECKED fm_status fmi_models_describe(fm_server *s, const char *name, fm_json **out);

/* ---- loader.c: one thread that loads models one after another ---- */

FM_CHECKED fm_status fmi_loader_start(fm_server *s);
void fmi_loader_stop(fm_server *s); /* the current load ends cancelled; no other begins */
/* Loads tree and weights of r's version into r->model, or sets r->rc and r->error. Any thread. */
void fmi_load(fm_server *s, fmi_resident *r, unsigned threads);
/* Engine thread: queues r. */
void fmi_loader_put(fm_server *s, fmi_resident *r);
/* Engine thread: takes all finished loads, oldest first. */
fmi_resident *fmi_loader_take(fm_server *s);

/* ---- jobs ---- */

/* Limit of the bytes that all unsent answers may come to: so many for each sequence that may wait
 * or run (an answer of 4,096 tokens with 20 alternatives each takes three quarters of that), but
 * not less than MIN. */
#define FMI_ANSWER_BYTES_EACH ((size_t)1 << 20)
#define FMI_ANSWER_BYTES_MIN ((size_t)256 << 20)

typedef struct fmi_token {
    int32_t id;
    float logprob;
    uint32_t top0, top_count; /* within choice->top */
    uint32_t text_at;         /* code points of the answer before this token */
    uint32_t text_end;        /* bytes of the answer's text including this token */
} fmi_token;

typedef struct fmi_choice {
    fmi_job *job;
    int32_t *prompt; /* owned by the first choice with this prompt */
    size_t prompt_len;
    uint32_t cached; /* tokens of the prompt that the prefix cache saved computing */
    uint64_t id;     /* the scheduler's; 0: not in the scheduler */
    bool done;
    char finish[12];
    fm_buf text;
    fmi_token *token;
    size_t count, cap;
    fm_logprob *top;
    size_t tops, tops_cap;
    size_t text_chars;            /* code points of all tokens so far */
    size_t sent_text, sent_token; /* already written; sent_token: of the current list */
    unsigned list;                /* whole answers: the list of "logprobs" that is being written */
    bool began, ended;            /* first and last piece are written */
    float *vector;                /* embeddings: [hidden] */
} fmi_choice;

typedef enum fmi_route {
    FMI_ROUTE_NONE,
    FMI_ROUTE_HEALTH,
    FMI_ROUTE_METRICS,
    FMI_ROUTE_MODELS,
    FMI_ROUTE_MODEL,
    FMI_ROUTE_SITE,
    FMI_ROUTE_COMPLETIONS,
    FMI_ROUTE_CHAT,
    FMI_ROUTE_EMBEDDINGS
} fmi_route;

/* What the job waits for, or what the HTTP side does next when it is resumed. */
typedef enum fmi_stage {
    FMI_READ,    /* HTTP: the body comes in */
    FMI_LIST,    /* engine: describe models */
    FMI_LISTED,  /* HTTP: answer */
    FMI_FIND,    /* engine: resolve and pin the model */
    FMI_FOUND,   /* prepare.c: encode the prompts */
    FMI_RUN,     /* engine: generate */
    FMI_RUNNING, /* HTTP: stream, or wait for the end */
    FMI_FAILED   /* HTTP: send fault */
} fmi_stage;

typedef struct fmi_fault {
    unsigned http;    /* 0: none */
    const char *code; /* static */
    char param[64];
    char text[1024];
} fmi_fault;

struct fmi_job {
    atomic_uint refs;
    fm_server *server;
    struct MHD_Connection *conn;
    int fd;
    char id[40];
    int64_t created; /* unix seconds */
    double begun;    /* monotonic seconds */
    double found;    /* when its model was found; monotonic seconds */
    fmi_route route;
    char *name; /* of GET /v1/models/{name} */
    fmi_site_load *site; /* of its address; NULL: none */
    fm_site_call *call;         /* set before its thread begins */
    bool close; /* the connection ends with the answer */

    fm_buf body; /* HTTP side, while reading */
    size_t body_seen;
    fmi_ask ask;
    uint32_t admitted; /* sequences counted in server->admitted */

    pthread_mutex_t lock; /* guards everything below */
    fmi_stage stage;
    bool suspended;
    bool gone; /* the client has left */
    fmi_fault fault;
    fm_json *listing;
    fmi_resident *res;
    fmi_choice *choice; /* [choices] */
    size_t choices, left;
    bool first_token;
    fm_buf out; /* formatted, not yet sent */
    size_t out_at;
    size_t filled; /* whole answers: choices that are in out or were sent */
    bool stream_over;
    size_t answer_bytes; /* counted in server->answer_bytes */

    fmi_job *next_queued, *next_active;
};

void fmi_job_ref(fmi_job *j);
void fmi_job_unref(fmi_job *j);
void fmi_job_resume(fmi_job *j); /* takes the lock */
void fmi_job_resume_locked(fmi_job *j);
/* Hands j to the HTTP side at its next stage, or at FMI_FAILED with a fault. Takes the lock. */
void fmi_job_give_back(fmi_job *j, fmi_stage next);
/* Whether the client has closed its connection. Takes the lock. */
bool fmi_job_client_left(fmi_job *j);
unsigned fmi_job_http_of(fm_status rc);
const char *fmi_job_question(const fmi_job *j); /* name of the field that holds the prompt */
/* The job ends before its answer is whole: its client left (499, not sent), or the server ends. */
void fmi_job_fail_cancelled(fmi_job *j);
/* A fault about the model, from the thread's error. */
void fmi_job_fail_model(fmi_job *j, fm_status rc);
/* Records the fault once; the thread's error text where text is NULL. Lock held or not needed. */
void fmi_job_fail(fmi_job *j, unsigned http, const char *code, const char *param, const char *text);

/* ---- answer.c: what goes back ---- */

FM_CHECKED fm_status fmi_fault_write(fm_buf *out, const fmi_fault *f);
/* Appends the next pieces of the whole answer, at least one, to j->out until it holds `most` bytes;
 * sets j->stream_over at the end. The caller holds the lock, or the only reference to j. */
FM_CHECKED fm_status fmi_answer_fill(fmi_job *j, size_t most);

/* ---- vectors.c: embeddings ---- */

/* Engine thread: the next step of the oldest job that wants vectors, if there is one. */
void fmi_vectors_step(fm_server *s);
void fmi_vectors_cancel(fmi_job *j); /* engine thread: computes no more vectors of j */
FM_CHECKED fm_status fmi_vectors_fill(fmi_job *j, size_t most); /* as fmi_answer_fill */

/* ---- sse.c ---- */

/* Appends new text to j->out as events until it holds `most` bytes; sets j->stream_over at the end.
 * The caller holds the lock. */
FM_CHECKED fm_status fmi_sse_fill(fmi_job *j, size_t most);

/* Pieces of answers that sse.c uses too. */
fm_json *fmi_answer_base(const fmi_job *j, bool chunk, fm_status *rc);
fm_json *fmi_answer_usage(const fmi_job *j, fm_status *rc);
fm_json *fmi_answer_logprobs(const fmi_job *j, const fmi_choice *c, size_t from, size_t to,
                             fm_status *rc);

/* ---- http.c ---- */

FM_CHECKED fm_status fmi_http_start(fm_server *s);
void fmi_http_stop(fm_server *s);

/* ---- site.c ---- */

#define FMI_SITES_MAX 8u

FM_CHECKED fm_status fmi_sites_init(fm_server *s, const fm_server_site *sites);
void fmi_sites_end(fm_server *s);  /* requests under way end with FM_ECANCELLED; no other begins */
void fmi_sites_wait(fm_server *s); /* as end, and waits for their threads */
/* HTTP threads. NULL: no site has this address. */
fmi_site_load *fmi_site_of(fm_server *s, const char *url);
bool fmi_site_takes(const fm_server_site *site, const char *method);
/* Begins the callback's thread. False: it sets a fault. */
bool fmi_site_begin(fmi_job *j, const char *url, const char *method);
/* A piece of the body; *len becomes what is left of it, with the connection suspended if that is
 * all of it. False: close the connection. */
bool fmi_site_body(fmi_job *j, const char *data, size_t *len);
/* The body is whole. WAITS: the connection is suspended; FAILED: the fault says why. *out NULL
 * where memory lacks. */
typedef enum fmi_site_next { FMI_SITE_WAITS, FMI_SITE_FAILED, FMI_SITE_ANSWERS } fmi_site_next;
fmi_site_next fmi_site_asked(fmi_job *j, unsigned *status, struct MHD_Response **out);
void fmi_site_left(fmi_job *j); /* lock held: the connection ended */
void fmi_site_free(fm_site_call *c);

/* ---- server.c ---- */

struct fm_server {
    fm_server_opts opts;
    char *host;
    fm_digest key; /* of the API key */
    bool local;    /* bound to a loopback address */
    uint16_t port;
    fm_engine *engine;
    fm_scheduler *scheduler;
    struct MHD_Daemon *daemon;
    fmi_conns conns;
    fmi_metrics metrics;
    fmi_resident *resident;
    uint32_t residents, loading; /* models, including those that are not ready; those that load */
    fmi_kept *kept;
    uint64_t use_clock;
    uint64_t opened; /* loads that succeeded */
    struct fmi_prepare *prepare;
    fmi_site_load site[FMI_SITES_MAX]; /* those without one follow the others */
    pthread_mutex_t site_lock;         /* taken before a job's */
    atomic_bool sites_end;

    atomic_bool stop;      /* the server is to end */
    atomic_bool refusing;  /* no new requests */
    atomic_uint open_jobs; /* HTTP sides alive */
    atomic_bool working;   /* sequences run: the loader takes one CPU, not all */
    atomic_bool no_loads;  /* the loader is to end */
    atomic_size_t body_bytes;
    atomic_size_t answer_bytes; /* most bytes that the unsent answers may come to */

    pthread_mutex_t lock; /* guards what follows, up to admitted */
    pthread_cond_t wake;
    fmi_job *queue, **queue_end;
    pthread_t loader;
    bool has_loader;
    pthread_cond_t load;
    fmi_resident *to_load, **to_load_end, *loaded, **loaded_end;
    bool closed; /* the engine thread takes no more jobs from the queue */
    uint32_t admitted;

    fmi_job *active; /* engine thread alone */
};

/* ---- queue.c ---- */

/* Queues j for the engine thread, with a reference of its own; false: the queue is closed. */
bool fmi_server_post(fm_server *s, fmi_job *j);
/* Engine thread: takes the whole queue, oldest first; waits up to `seconds` while it is empty.
 * close: closes the queue. */
fmi_job *fmi_server_take(fm_server *s, double seconds, bool close);

/* ---- util.c ---- */

/* Whether n more sequences may wait or run; if so they are counted until fmi_server_leave. */
bool fmi_server_admit(fm_server *s, uint32_t n);
void fmi_server_leave(fm_server *s, uint32_t n);
void fmi_models_unpin(fmi_resident *r); /* any thread; NULL is a no-op */

FM_END_DECLS
#endif
