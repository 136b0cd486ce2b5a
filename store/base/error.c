/* error.c - the thread-local error text. A fixed buffer per thread: recording a failure must work
 * when memory is what ran out, so nothing here allocates. */
#include "store/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local fm_error_state current;

fm_status fm_fail(fm_status status, const char *fmt, ...)
{
    /* Formatted into a local buffer first: an argument may be the current text itself. */
    char text[sizeof(current.text)];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n < 0)
        text[0] = '\0';
    memcpy(current.text, text, sizeof(text[0]) * (strlen(text) + 1));
    return status;
}

fm_status fm_error_prefix(fm_status status, const char *fmt, ...)
{
    char prefix[sizeof(current.text)];
    char rest[sizeof(current.text)];
    const size_t room = sizeof(current.text) - 1;
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(prefix, sizeof(prefix), fmt, ap);
    va_end(ap);
    if (n < 0)
        return status;
    memcpy(rest, current.text, sizeof(rest));
    size_t used = FM_MIN(strlen(prefix), room);
    memcpy(current.text, prefix, used);
    for (const char *sep = ": "; *sep && used < room; sep++)
        current.text[used++] = *sep;
    size_t keep = FM_MIN(strlen(rest), room - used);
    memcpy(current.text + used, rest, keep);
    current.text[used + keep] = '\0';
    return status;
}

const char *fm_error_text(void)
{
    return current.text;
}

void fm_error_clear(void)
{
    current.text[0] = '\0';
}

void fm_error_save(fm_error_state *out)
{
    memcpy(out, &current, sizeof(*out));
}

void fm_error_restore(const fm_error_state *state)
{
    memmove(&current, state, sizeof(current));
}

const char *fm_status_name(fm_status status)
{
    switch (status) {
    case FM_OK:
        return "ok";
    case FM_EINVAL:
        return "invalid";
    case FM_ENOMEM:
        return "out of memory";
    case FM_EIO:
        return "io";
    case FM_ENOTFOUND:
        return "not found";
    case FM_EEXISTS:
        return "exists";
    case FM_ECORRUPT:
        return "corrupt";
    case FM_EVERSION:
        return "newer version";
    case FM_EUNSUPPORTED:
        return "unsupported";
    case FM_ECONFLICT:
        return "conflict";
    case FM_EBASE:
        return "wrong base";
    case FM_ELIMIT:
        return "limit";
    case FM_ECANCELLED:
        return "cancelled";
    case FM_EREFUSED:
        return "refused";
    }
    return "unknown";
}

/* The one place that writes to stderr: a broken assertion cannot be returned to a caller. */
void fm_assert_failed(const char *cond, const char *file, int line)
{
    char text[512];
    int n = snprintf(text, sizeof(text), "%s:%d: assertion failed: %s\n", file, line, cond);

    if (n > 0) {
        ssize_t done = write(STDERR_FILENO, text, FM_MIN((size_t)n, sizeof(text) - 1));
        (void)done; /* the process is about to abort: a failed write has no one to be reported to */
    }
    abort();
}
