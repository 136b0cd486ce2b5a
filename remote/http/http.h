/* http.h - requests over HTTP and HTTPS: the only door to libcurl, which is opened at run time.
 *
 * What comes back is hostile: its length is limited while it arrives, a redirect goes to http or
 * https alone (and never from https to http), and credentials are sent to the host that they were
 * given for, not to where it redirects. A request that fails before any byte of its body was taken
 * is tried again, with growing pauses, where the failure may pass (a lost connection, 429, 500,
 * 502, 503, 504). Every wait looks at fm_go_on. A session belongs to one thread. */
#ifndef FM_REMOTE_HTTP_HTTP_H
#define FM_REMOTE_HTTP_HTTP_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

typedef struct fmr_http fmr_http; /* keeps connections open between requests */

typedef struct fmr_http_opts {
    const char *ca_file;      /* certificates to trust (PEM) in the place of the system's; NULL */
    unsigned tries;           /* of one request; 0: 5 */
    unsigned stall_seconds;   /* fewer than 1 byte a second for so long is a failure; 0: 60 */
    unsigned connect_seconds; /* 0: 20 */
} fmr_http_opts;
/* opts may be NULL. FM_EUNSUPPORTED: libcurl cannot be opened; the text names the package. */
FM_CHECKED fm_status fmr_http_open(fmr_http **out, const fmr_http_opts *opts);
void fmr_http_close(fmr_http *h); /* NULL is fine */

#define FMR_HTTP_MAX_HEADERS 16u
#define FMR_HTTP_ANY UINT64_MAX

/* Fills dst with up to cap bytes; *got 0 ends the body. */
typedef fm_status (*fmr_body_fn)(void *ctx, void *dst, size_t cap, size_t *got);
typedef fm_status (*fmr_take_fn)(void *ctx, const void *data, size_t len);

typedef struct fmr_request {
    const char *method;                       /* "GET", "HEAD", "PUT", "POST", "DELETE" */
    const char *url;                          /* http:// or https:// */
    const char *header[FMR_HTTP_MAX_HEADERS]; /* "Name: value"; NULL ends the list */
    const char *user, *password;              /* basic; NULL: none */
    const char *bearer;                       /* NULL: none */
    uint64_t from, bytes; /* a range; bytes 0: all; FMR_HTTP_ANY: from `from` to the end */
    fm_span body;         /* sent whole, unless send is given */
    fmr_body_fn send;     /* a body in pieces: such a request is not tried again */
    uint64_t send_bytes;  /* FMR_HTTP_ANY: not known (chunked) */
    uint64_t max_bytes;   /* of the answer; more is FM_ELIMIT. 0: 64 MiB */
    fmr_take_fn take;     /* NULL: the answer's body goes to fmr_answer.body */
    void *ctx;            /* of send, take and stopped */
    bool (*stopped)(void *ctx); /* looked at while it waits; true: FM_ECANCELLED. May be NULL */
    bool no_redirect;     /* the caller looks at a redirect itself */
} fmr_request;

typedef struct fmr_answer {
    unsigned status; /* 200, 206, 404, ... after redirects */
    fm_buf body; /* also of an error status, at most 64 KiB of it, whether take is given or not */
    fm_buf headers; /* of the last answer, lines that end in "\r\n" */
    char *url;      /* after redirects */
} fmr_answer;
/* FM_OK: an answer came, whatever its status. take is called for status 200 and 206 alone. A server
 * that sends another range than was asked for, or another number of bytes than it announced, is
 * FM_ECORRUPT (bytes beyond a Content-Length are not read, and end the connection). FM_EIO: no
 * answer; the text names host and cause, and no credentials. */
FM_CHECKED fm_status fmr_http_do(fmr_http *h, const fmr_request *q, fmr_answer *out);
void fmr_answer_release(fmr_answer *a);
/* The value of a header (its name in any case) without blanks around it; data NULL: absent. */
fm_span fmr_answer_header(const fmr_answer *a, const char *name);
/* FM_OK for a status below 300, else a failure whose text has `what`, the URL without its query and
 * user, the status and what it means: 401 and 403 FM_EREFUSED, 404 FM_ENOTFOUND, 409 and 412
 * FM_ECONFLICT, 429 and 503 FM_EIO, the others FM_EIO. */
FM_CHECKED fm_status fmr_answer_check(const fmr_answer *a, const char *what);

/* Appends a URL for people: without user, password, query and control bytes. */
void fmr_url_shown(fm_buf *out, const char *url);
/* Appends text with all but letters, digits and "-._~" (and '/' if slashes) as %XX. */
void fmr_url_escape(fm_buf *out, const char *text, bool slashes);
/* Appends text with each %XX as a byte; form: and each '+' as a blank. */
void fmr_url_unescape(fm_buf *out, const char *text, size_t len, bool form);

FM_END_DECLS
#endif
