/* error.h - status codes and the thread-local text that explains the last failure.
 *
 * A function that can fail returns fm_status: FM_OK or negative. The text is set once, where the
 * fact is known, in the form "what, where, what to do", and is passed up untouched; callers may
 * only add the place in front (fm_error_prefix). The library never prints and never exits. */
#ifndef FM_BASE_ERROR_H
#define FM_BASE_ERROR_H

#include "store/base/fm.h"

FM_BEGIN_DECLS

typedef enum fm_status {
    FM_OK = 0,
    FM_EINVAL = -1,       /* the caller's input is wrong: a bad option, name, value, request */
    FM_ENOMEM = -2,       /* out of memory; text is static, recording it cannot fail */
    FM_EIO = -3,          /* the operating system refused: open, read, write, fsync, rename */
    FM_ENOTFOUND = -4,    /* no such object, revision, file, field */
    FM_EEXISTS = -5,      /* already there, and overwriting was not requested */
    FM_ECORRUPT = -6,     /* bytes contradict their digest, length or format */
    FM_EVERSION = -7,     /* written by a newer fmstore; nothing was changed */
    FM_EUNSUPPORTED = -8, /* well-formed, but this build or backend cannot do it */
    FM_ECONFLICT = -9,    /* another process changed it first (compare-and-swap lost) */
    FM_EBASE = -10,       /* a delta or adapter does not fit its parent */
    FM_ELIMIT = -11,      /* beyond a named maximum */
    FM_ECANCELLED = -12,  /* stopped on request */
    FM_EREFUSED = -13,    /* a regular "no": a gate suite failed; the command exits with 1 */
} fm_status;

/* Record the text for the current thread and return status, so that callers write
 * `return fm_fail(FM_ECORRUPT, "...")`. Text is cut at 1,023 bytes, never allocated. */
fm_status fm_fail(fm_status status, const char *fmt, ...) FM_PRINTF(2, 3);

/* Put "<prefix>: " in front of the current text; returns status unchanged. */
fm_status fm_error_prefix(fm_status status, const char *fmt, ...) FM_PRINTF(2, 3);

/* The current thread's text, valid until its next fm_fail; "" before the first failure. */
const char *fm_error_text(void);
void fm_error_clear(void);

/* Carry an error across cleanup or from a worker thread to the one that joins it. */
typedef struct fm_error_state {
    char text[1024];
} fm_error_state;
void fm_error_save(fm_error_state *out);
void fm_error_restore(const fm_error_state *state);

/* Returns the failure of `call` from the calling function, which must hold nothing that it has to
 * release: a function that does keeps its status in `rc` and has one way out. */
#define FM_TRY(call)                                                                               \
    do {                                                                                           \
        const int fm_try_rc = (call);                                                              \
                                                                                                   \
        if (fm_try_rc != FM_OK)                                                                    \
            return fm_try_rc;                                                                      \
    } while (0)

/* Makes `call` only where all calls before it succeeded; `rc` keeps the first failure. For a
 * function that has something to release after the last call. */
#define FM_THEN(rc, call)                                                                          \
    do {                                                                                           \
        if ((rc) == FM_OK)                                                                         \
            (rc) = (call);                                                                         \
    } while (0)

const char *fm_status_name(fm_status status); /* "corrupt", "not found", ... for --json */

FM_END_DECLS
#endif
