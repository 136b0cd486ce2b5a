/* site.h - addresses of the server that its owner answers: bodies and answers are streams of bytes
 * of any length.
 *
 * A request whose path begins with a site's prefix, and is none of the server's own, is answered by
 * the site's callback on a thread of its own. The callback pulls the request's body and pushes the
 * answer; both wait for the client over queues of FM_SITE_QUEUE_BYTES, so memory does not grow with
 * what travels. Host, Origin and API key are checked before the callback hears of a request. What a
 * range, a condition or a HEAD means is the callback's business: it reads headers and sets them. */
#ifndef FM_INFER_SERVE_SITE_H
#define FM_INFER_SERVE_SITE_H

#include "store/base/error.h"

FM_BEGIN_DECLS

#define FM_SITE_QUEUE_BYTES ((size_t)1 << 20)
#define FM_SITE_REQUESTS 16u /* that a site answers at the same time, where it says nothing */
/* A request holds its place until its answer has left. While the callback waits for a client that
 * moves fewer bytes a second, the client falls behind; after SLOW seconds it may lose its place to
 * another request, after STALL its connection is cut. A client (an address) has at most three
 * quarters of a site's places. */
#define FM_SITE_BYTES_A_SECOND 4096.0
#define FM_SITE_SLOW_S 5.0
#define FM_SITE_STALL_S 60.0

typedef struct fm_site_call fm_site_call; /* one request and its answer */

typedef struct fm_server_site {
    /* "/site/", or "/site": that address and those below it. NULL ends an array of sites; the first
     * that fits answers. */
    const char *prefix;
    const char *methods; /* "GET, HEAD": others get 405 */
    bool writes;         /* requests may change something: such a server must have an API key */
    uint32_t most;       /* requests at the same time; more get 503 with Retry-After. 0: as above */
    void *ctx;
    /* Answers one request. A failure before fm_site_begin is told to the client by a status that
     * fits and the error's text; after it, the connection is cut, so that the client sees that the
     * answer is not whole. */
    fm_status (*answer)(void *ctx, fm_site_call *call);
    /* Whether the site has this path, which begins behind the prefix; NULL: it has all. On the
     * server's threads, and quickly. */
    bool (*takes)(const char *path);
} fm_server_site;

/* What was asked; valid until the callback returns. NULL: there is no such header or argument. */
const char *fm_site_method(const fm_site_call *c);
const char *fm_site_path(const fm_site_call *c); /* behind the prefix; %XX are decoded */
const char *fm_site_header(const fm_site_call *c, const char *name);   /* in any case */
const char *fm_site_argument(const fm_site_call *c, const char *name); /* of ?a=b&c=d, decoded */

/* The next bytes of the request's body; *got 0: its end. FM_EIO: the client has left.
 * FM_ECANCELLED: the server ends. */
FM_CHECKED fm_status fm_site_read(fm_site_call *c, void *dst, size_t cap, size_t *got);

/* A header of the answer, before it begins. FM_EINVAL: a control byte is in it. */
FM_CHECKED fm_status fm_site_set(fm_site_call *c, const char *name, const char *value);
/* The answer begins: what was not read of the request's body is thrown away. bytes: of the answer's
 * body, which FM_SITE_UNKNOWN sends in chunks. A HEAD has the same and writes nothing. */
#define FM_SITE_UNKNOWN UINT64_MAX
FM_CHECKED fm_status fm_site_begin(fm_site_call *c, unsigned status, uint64_t bytes);
/* Fails as fm_site_read does. FM_EINVAL: more than fm_site_begin said. */
FM_CHECKED fm_status fm_site_write(fm_site_call *c, const void *data, size_t len);

FM_END_DECLS
#endif
