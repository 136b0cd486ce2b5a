/* util.c - helpers of every part of a rendering: errors with their line, the counts of work and of
 * memory, new strings. */
#include "infer/jinja/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LOOK_EVERY 2000000u /* units between two calls of the watch: one or two milliseconds */

fm_status jj_error(const jj_ctx *c, fm_status rc, const char *fmt, ...)
{
    char text[900];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fm_fail(rc, "line %u: %s", c->line, text);
}

fm_status jj_work(jj_ctx *c, uint64_t n)
{
    uint64_t left = c->work < c->work_max ? c->work_max - c->work : 0;

    if (n > left)
        return jj_error(c, FM_ELIMIT,
                        "the template does too much: more than %llu million units of work",
                        (unsigned long long)(c->work_max / 1000000));
    c->work += n;
    if (c->work < c->look_at)
        return FM_OK;
    c->look_at = c->work + LOOK_EVERY;
    if (c->watch && c->watch->stop && c->watch->stop(c->watch->ctx))
        return fm_fail(FM_ECANCELLED, "stopped while it was rendered");
    return FM_OK;
}

fm_status jj_work_by(jj_ctx *c, uint64_t times, uint64_t each)
{
    uint64_t n;

    return jj_work(c, __builtin_mul_overflow(times, each, &n) ? UINT64_MAX : n);
}

void *jj_alloc(jj_ctx *c, size_t bytes)
{
    c->bytes += bytes;
    c->work += bytes;
    return c->bytes > JJ_MEMORY_MAX ? NULL : fm_arena_alloc(c->arena, bytes);
}

fm_status jj_alloc_status(const jj_ctx *c)
{
    if (c->bytes > JJ_MEMORY_MAX)
        return jj_error(c, FM_ELIMIT, "template needs more than %zu bytes", JJ_MEMORY_MAX);
    return FM_ENOMEM;
}

jj_val jj_str(const char *p, size_t n)
{
    jj_val v = {.type = JJ_STRING};
    v.u.s.p = n > 0 ? p : "";
    v.u.s.n = n;
    return v;
}

fm_status jj_str_copy(jj_ctx *c, jj_val *out, const void *p, size_t n)
{
    char *s = jj_alloc(c, n + 1);

    if (!s)
        return jj_alloc_status(c);
    if (n > 0)
        memcpy(s, p, n);
    *out = jj_str(s, n);
    return FM_OK;
}

fm_status jj_buf_str(jj_ctx *c, jj_val *out, fm_buf *b, fm_status rc)
{
    FM_THEN(rc, fm_buf_ok(b));
    FM_THEN(rc, jj_str_copy(c, out, b->data, b->len));
    fm_buf_release(b);
    return rc;
}
