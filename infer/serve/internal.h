/* internal.h - one request on its way between threads, and what the files of this folder share.
 *
 * A job belongs to two sides. The HTTP side (a libmicrohttpd thread) reads, parses, formats and
 * sends; the engine side (the caller of fm_server_run) resolves, adopts and generates, and has
 * threads of prepare.c encode the prompts in between. A job is handed to the engine through the
 * server's queue while its connection is suspended, and handed back by resuming it. What both touch at the same time lies behind job->lock. Lock order:
 * job, then server. */
#ifndef FM_INFER_SERVE_INTERNAL_H
#define FM_INFER_SERVE_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "infer/serve/conns.h"
#include "infer/serve/openai.h"
#include "infer/serve/server.h"
#include "store/base/os/clock.h"

FM_BEGIN_DECLS

typedef struct fmi_job fmi_job;

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
    fm_model *model;  /* NULL until it is loaded; set by the loader's thread while it has it */
    bool ready;       /* adopted by the engine */
    atomic_uint pins; /* jobs that hold it; only the engine thread pins */
    uint32_t kept;    /* names of fm_server_pin that mean it */
    uint64_t used;    /* a clock of uses, for the choice of what to close */
    fmi_job *waiting; /* until it is ready; a reference each, oldest first */
    double parked;    /* since when it waits for others to end; 0: it does not */
    bool for_memory;  /* parked for that, not for a place among max_models */
    bool alone;       /* when its load began no other was in memory or on its way, but kept ones */
    uint64_t opened;  /* server->opened then */
    struct fmi_resident *next;
    /* what the loader is given and says */
    char *name; /* that it was first asked for by, for errors */
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

/* Finds what j asks for and hands j back with it pinned, now or when it is loaded; or with a fault.
 * Takes a reference of its own where j waits. */
void fmi_models_want(fm_server *s, fmi_job *j);
/* What the loader finished: models are adopted, jobs that waited go on. A load that lacked memory
 * is begun again when something idle could be closed for it; while all are busy it is parked for a
 * second, then its jobs are told. */
void fmi_models_settle(fm_server *s);
/* Clients that left while they waited for a load; with all: everybody that waits, 503. */
void fmi_models_drop_waiting(fm_server *s, bool all);
/* Loads on this thread, with nobody beside it; keep: fm_server_pin. */
FM_CHECKED fm_status fmi_models_load_now(fm_server *s, const char *name, bool keep);
void fmi_models_close_all(fm_server *s);
/* name NULL: the list object; else the one, FM_ENOTFOUND. */
FM_CHECKED fm_status fmi_models_describe(fm_server *s, const char *name, fm_json **out);

/* ---- loader.c: one thread that loads models one after another ---- */

FM_CHECKED fm_status fmi_loader_start(fm_server *s);
void fmi_loader_stop(fm_server *s); /* what it is at ends cancelled; it takes no more */
/* Tree and weights of r's version into r->model, or r->rc and r->error. Any thread. */
void fmi_load(fm_server *s, fmi_resident *r, unsigned threads);
/* Engine thread: queue r; take all that are done, oldest first. */
void fmi_loader_put(fm_server *s, fmi_resident *r);
fmi_resident *fmi_loader_take(fm_server *s);

/* ---- jobs ---- */

/* All answers that are kept until they are sent, by the most that they may come to: so much for each
 * sequence that may wait or run (one of 4,096 tokens with 20 alternatives each takes three quarters
 * of it), but not less than MIN. */
#define FMI_ANSWER_BYTES_EACH ((size_t)1 << 20)
#define FMI_ANSWER_BYTES_MIN ((size_t)256 << 20)

typedef struct fmi_token {
    int32_t id;
    float logprob;
    uint32_t top0, top_count; /* within choice->top */
    uint32_t text_at;         /* code points of the answer before it */
    uint32_t text_end;        /* bytes of the answer's text once it was there */
} fmi_token;

typedef struct fmi_choice {
    fmi_job *job;
    int32_t *prompt; /* owned by the first of the answers to it */
    size_t prompt_len;
    uint32_t cached; /* tokens of it that the prefix cache saved computing */
    uint64_t id;     /* the scheduler's; 0: not there */
    bool done;
    char finish[12];
    fm_buf text;
    fmi_token *token;
    size_t count, cap;
    fm_logprob *top;
    size_t tops, tops_cap;
    size_t text_chars;            /* code points of all tokens so far */
    size_t sent_text, sent_token; /* what went out; sent_token: of the list that is being written */
    unsigned list;                /* whole answers: of "logprobs", which is being written */
    bool began, ended;            /* first and last piece went out */
    float *vector;                /* embeddings: [hidden] */
} fmi_choice;

typedef enum fmi_route {
    FMI_ROUTE_NONE,
    FMI_ROUTE_HEALTH,
    FMI_ROUTE_METRICS,
    FMI_ROUTE_MODELS,
    FMI_ROUTE_MODEL,
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
    double found;    /* when its model was; likewise */
    fmi_route route;
    char *name; /* of GET /v1/models/{name} */
    bool close; /* the connection ends with the answer */

    fm_buf body; /* HTTP side, while reading */
    size_t body_seen;
    fmi_ask ask;
    uint32_t admitted; /* sequences counted in server->admitted */

    pthread_mutex_t lock; /* everything below */
    fmi_stage stage;
    bool suspended;
    bool gone; /* the client is not there any more */
    fmi_fault fault;
    fm_json *listing;
    fmi_resident *res;
    fmi_choice *choice; /* [choices] */
    size_t choices, left;
    bool first_token;
    fm_buf out; /* formatted, not yet sent */
    size_t out_at;
    size_t filled; /* whole answers: choices that are in it, or went out */
    bool stream_over;
    size_t answer_bytes; /* counted in server->answer_bytes */

    fmi_job *next_queued, *next_active;
};

void fmi_job_ref(fmi_job *j);
void fmi_job_unref(fmi_job *j);
void fmi_job_resume(fmi_job *j); /* takes the lock */
void fmi_job_resume_locked(fmi_job *j);
/* To the HTTP side: its next stage, or FMI_FAILED where there is a fault. Takes the lock. */
void fmi_job_give_back(fmi_job *j, fmi_stage next);
/* The client closed its connection. Takes the lock. */
bool fmi_job_client_left(fmi_job *j);
unsigned fmi_job_http_of(fm_status rc);
const char *fmi_job_question(const fmi_job *j); /* the field that holds what is asked */
/* It ends before its answer is whole: its client left (499, to nobody), or the server ends. */
void fmi_job_fail_cancelled(fmi_job *j);
/* A fault about the model, from the thread's error. */
void fmi_job_fail_model(fmi_job *j, fm_status rc);
/* Records the fault once; the thread's error text where text is NULL. Lock held or not needed. */
void fmi_job_fail(fmi_job *j, unsigned http, const char *code, const char *param, const char *text);

/* ---- answer.c: what goes back ---- */

FM_CHECKED fm_status fmi_fault_write(fm_buf *out, const fmi_fault *f);
/* Appends the next pieces of the whole answer to j->out until it holds most bytes, at least one;
 * sets j->stream_over at the end. Lock held, or nobody else has j any more. */
FM_CHECKED fm_status fmi_answer_fill(fmi_job *j, size_t most);

/* ---- vectors.c: embeddings ---- */

/* Engine thread: the next step of the oldest job that wants vectors, if there is one. */
void fmi_vectors_step(fm_server *s);
void fmi_vectors_cancel(fmi_job *j); /* engine thread: what is not computed will not be */
FM_CHECKED fm_status fmi_vectors_fill(fmi_job *j, size_t most); /* as fmi_answer_fill */

/* ---- sse.c: appends to j->out what is new, until it holds most bytes; sets j->stream_over at the
 * end. Lock held. ---- */
FM_CHECKED fm_status fmi_sse_fill(fmi_job *j, size_t most);

/* Pieces of answers that sse.c uses too. */
fm_json *fmi_answer_base(const fmi_job *j, bool chunk, fm_status *rc);
fm_json *fmi_answer_usage(const fmi_job *j, fm_status *rc);
fm_json *fmi_answer_logprobs(const fmi_job *j, const fmi_choice *c, size_t from, size_t to,
                             fm_status *rc);

/* ---- http.c ---- */

FM_CHECKED fm_status fmi_http_start(fm_server *s);
void fmi_http_stop(fm_server *s);

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
    uint32_t residents, loading; /* both counts hold those that are not ready */
    fmi_kept *kept;
    uint64_t use_clock;
    uint64_t opened; /* loads that ended well */
    struct fmi_prepare *prepare;

    atomic_bool stop;      /* asked for */
    atomic_bool refusing;  /* no new requests */
    atomic_uint open_jobs; /* HTTP sides alive */
    atomic_bool working;   /* sequences run: the loader takes one CPU, not all */
    atomic_bool no_loads;  /* the loader is to end */
    atomic_size_t body_bytes;
    atomic_size_t answer_bytes; /* most that the answers in flight may come to */

    pthread_mutex_t lock; /* below */
    pthread_cond_t wake;
    fmi_job *queue, **queue_end;
    pthread_t loader;
    bool has_loader;
    pthread_cond_t load;
    fmi_resident *to_load, **to_load_end, *loaded, **loaded_end;
    bool closed; /* nobody takes from the queue any more */
    uint32_t admitted;

    fmi_job *active; /* engine thread */
};

/* ---- queue.c ---- */

/* Hands j (a reference of its own) to the engine thread; false: nobody is there. */
bool fmi_server_post(fm_server *s, fmi_job *j);
/* Engine thread: the whole queue, oldest first; waits up to `seconds` while it is empty. close: it
 * takes no more. */
fmi_job *fmi_server_take(fm_server *s, double seconds, bool close);

/* ---- util.c ---- */

/* Room for n more sequences? Counted until fmi_server_leave. */
bool fmi_server_admit(fm_server *s, uint32_t n);
void fmi_server_leave(fm_server *s, uint32_t n);
void fmi_models_unpin(fmi_resident *r); /* any thread; NULL is a no-op */

FM_END_DECLS
#endif
