/* server.h - the HTTP server: an OpenAI-compatible API over the scheduler, many models in one
 * batch.
 *
 *   GET  /v1/models   POST /v1/chat/completions   POST /v1/completions   (SSE with "stream")
 *   POST /v1/embeddings          GET  /health                 GET  /metrics (Prometheus text)
 *   and what its owner answers (site.h)
 *
 * libmicrohttpd's threads only parse, queue and stream; one engine thread (the caller of
 * fm_server_run) owns the engine, resolves names and runs steps; one loading thread reads models
 * meanwhile, first come first served; four threads render templates and tokenize. The folder knows
 * no repository: callbacks resolve names. A name is resolved anew at each request; requests in
 * flight stay on the version they began with; answers carry it as "system_fingerprint".
 *
 * The engine's weight_bytes_max and max_models limit memory: where a load does not fit, models
 * without requests are closed, the least recently used first, pinned ones never. Where all are busy
 * the request is answered 503 with Retry-After, and 400 where the model does not fit alone. */
#ifndef FM_INFER_SERVE_SERVER_H
#define FM_INFER_SERVE_SERVER_H

#include "infer/infer.h"
#include "infer/serve/site.h"

FM_BEGIN_DECLS

typedef struct fm_server_catalog {
    void *ctx;
    /* Name -> version id (hex, NUL-terminated). FM_ENOTFOUND: 404; FM_EIO, it could not be read:
     * 503. Cheap: called per request. On the engine thread, as list. */
    fm_status (*resolve)(void *ctx, const char *name, char version[65]);
    /* The version's tree; the caller frees it. On the loading thread, parallel to the others. */
    fm_status (*tree)(void *ctx, const char *version, fm_tree **out);
    /* Names to list; each_fn returns non-OK to stop. */
    fm_status (*list)(void *ctx,
                      fm_status (*each_fn)(void *each_ctx, const char *name, const char *version,
                                           int64_t created),
                      void *each_ctx);
    fm_provider provider;
} fm_server_catalog;

typedef struct fm_server_opts {
    const char *host;      /* "127.0.0.1" */
    uint16_t port;         /* 0 = any free one */
    const char *api_key;   /* NULL = none; compared in constant time */
    uint32_t max_running;  /* sequences of one batch (32) */
    uint32_t max_queue;    /* waiting requests; beyond: 503 with Retry-After (256) */
    uint32_t max_models;   /* resident at once (64) */
    uint32_t max_tokens;   /* cap and default of a request's max_tokens (cap 4096, default 256) */
    size_t max_body_bytes; /* beyond: 413 (4 MiB) */
    fm_server_catalog catalog;
    /* Further addresses, until one without a prefix; borrowed. NULL: none. */
    const fm_server_site *sites;
} fm_server_opts;
fm_server_opts fm_server_defaults(void);

typedef struct fm_server fm_server;
/* Binds and listens; FM_EIO names host and port. */
FM_CHECKED fm_status fm_server_new(fm_server **out, fm_engine *e, const fm_server_opts *opts);
uint16_t fm_server_port(const fm_server *s);
bool fm_server_local(const fm_server *s); /* only this machine reaches it */
/* Loads a model ahead of its first request; before fm_server_run. */
FM_CHECKED fm_status fm_server_preload(fm_server *s, const char *name);
/* As preload, and the version that the name means is never closed to free memory: from the time it
 * is loaded until a request finds that the name has moved and the new version is loaded. */
FM_CHECKED fm_status fm_server_pin(fm_server *s, const char *name);
/* Serves until *stop is non-zero (a signal handler may set it; looked at every 100 ms) or
 * fm_server_stop; then refuses new requests, finishes those in flight (10 s at most), returns. */
FM_CHECKED fm_status fm_server_run(fm_server *s, const volatile int *stop);
void fm_server_stop(fm_server *s); /* from any thread */
/* For fm_engine_hung, on its thread: the engine's thread will not come back. Every request ends
 * with text, as far as answers leave in two seconds; then the process may only be ended. */
void fm_server_abandon(fm_server *s, const char *text);
void fm_server_free(fm_server *s);

FM_END_DECLS
#endif
