/* serve.h - this repository as a remote: answers another fmstore on two file descriptors, or behind
 * a web server. */
#ifndef FM_REMOTE_SERVE_H
#define FM_REMOTE_SERVE_H

#include "lineage/lineage.h"

FM_BEGIN_DECLS

/* Answers until `in` ends. write: versions may be pushed. A request that fails is told to the other
 * side, and returned. */
FM_CHECKED fm_status fm_remote_serve(fm_repo *r, bool write, int in, int out);

/* ---- over HTTP ----
 * A message of the wire is the body of a POST to {base}/fmstore/wire, and its answer the answer's
 * body. Reading needs no state here. A push has a session, with a repository and a writer's lease
 * of its own: the header FM_REMOTE_SESSION of its first request says "new", that of the answer has
 * the session's name, which each further request carries. It ends by DELETE, by a message that
 * fails, after FM_REMOTE_IDLE_S seconds without a request, or when a newer one needs its place. */
#define FM_REMOTE_WIRE_PATH "/fmstore/wire"
#define FM_REMOTE_WIRE_TYPE "application/x-fmstore-wire"
#define FM_REMOTE_SESSION "X-Fmstore-Session"
#define FM_REMOTE_SESSION_MAX 64u /* characters */
#define FM_REMOTE_SESSIONS 16u    /* at the same time */
#define FM_REMOTE_IDLE_S 600.0

typedef struct fm_remote_web fm_remote_web;
/* dir: of a repository. write: versions may be pushed by whoever gets here. */
FM_CHECKED fm_status fm_remote_web_new(fm_remote_web **out, const char *dir, bool write);
void fm_remote_web_free(fm_remote_web *w); /* no request is under way; NULL is fine */

/* One request, as a web server has it. */
typedef struct fm_remote_exchange {
    const char *session; /* the header's value; NULL */
    bool ends;           /* DELETE */
    void *ctx;
    fm_status (*read)(void *ctx, void *dst, size_t cap,
                      size_t *got); /* of its body; got 0: the end */
    /* Status 200 or 204, with a session's name for the header, or NULL. Once, then the body. */
    fm_status (*begin)(void *ctx, unsigned status, const char *session);
    fm_status (*write)(void *ctx, const void *data, size_t len);
} fm_remote_exchange;
/* Answers it, on any thread. What the wire can say is said there, with status 200. A failure before
 * `begin` is for the web server to tell: FM_ELIMIT: every session is busy, try again. */
FM_CHECKED fm_status fm_remote_web_answer(fm_remote_web *w, const fm_remote_exchange *x);

FM_END_DECLS
#endif
