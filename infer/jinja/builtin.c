/* builtin.c - the functions that every template sees. */
#include "infer/jinja/jinja.h"

#include <string.h>
#include <time.h>

enum { RANGE, DICT, NAMESPACE, RAISE, STRFTIME, CYCLER, JOINER, LIPSUM };

/* The last three exist in jinja2; calling them is refused. */
static const char *const functions[] = {"range",        "dict",   "namespace", "raise_exception",
                                        "strftime_now", "cycler", "joiner",    "lipsum"};

bool jj_builtin_find(const jj_ctx *c, const char *name, jj_val *out)
{
    for (int i = 0; i < (int)FM_ARRAY_LEN(functions); i++) {
        if (strcmp(functions[i], name) != 0 || (i == STRFTIME && !c->have_now))
            continue;
        memset(out, 0, sizeof *out);
        out->type = JJ_BUILTIN;
        out->u.builtin = i;
        return true;
    }
    return false;
}

static fm_status range(jj_ctx *c, jj_val *out, const jj_args *a)
{
    int64_t v[3] = {0, 0, 1}; /* start, stop, step */
    uint64_t n = 0;

    if (a->count < 1 || a->count > 3 || a->kw_count > 0)
        return jj_error(c, FM_EINVAL, "range takes 1 to 3 arguments");
    for (size_t i = 0; i < a->count; i++) {
        if (a->pos[i].type != JJ_INT && a->pos[i].type != JJ_BOOL)
            return jj_error(c, FM_EINVAL, "range needs integers");
        v[a->count == 1 ? 1 : i] = jj_whole(a->pos[i]);
    }
    if (v[2] == 0)
        return jj_error(c, FM_EINVAL, "range step is 0");
    if (v[2] > 0 ? v[1] > v[0] : v[1] < v[0]) {
        uint64_t gap = v[2] > 0 ? (uint64_t)v[1] - (uint64_t)v[0] : (uint64_t)v[0] - (uint64_t)v[1];
        uint64_t step = v[2] > 0 ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
        n = (gap - 1) / step + 1;
    }
    if (n > JJ_RANGE_MAX)
        return jj_error(c, FM_ELIMIT, "range of more than %d", JJ_RANGE_MAX);
    fm_status rc = jj_list_new(c, out);
    for (uint64_t i = 0; i < n && rc == FM_OK; i++)
        rc = jj_list_push(c, out->u.list, jj_int((int64_t)((uint64_t)v[0] + i * (uint64_t)v[2])));
    out->type = JJ_RANGE;
    return rc;
}

static fm_status put_all(jj_ctx *c, jj_dict *d, jj_val from)
{
    if (from.type != JJ_DICT)
        return jj_error(c, FM_EUNSUPPORTED, "a mapping of %s is not implemented",
                        jj_type_name(from));
    for (size_t i = 0; i < from.u.dict->count; i++)
        FM_TRY(jj_dict_put(c, d, from.u.dict->p[i].key, from.u.dict->p[i].value));
    return FM_OK;
}

static fm_status new_mapping(jj_ctx *c, jj_val *out, const jj_args *a, bool ns)
{
    fm_status rc = jj_dict_new(c, out);

    if (rc == FM_OK && a->count > 1)
        return jj_error(c, FM_EINVAL, "dict and namespace take at most one positional argument");
    if (rc == FM_OK && a->count == 1)
        rc = put_all(c, out->u.dict, a->pos[0]);
    for (size_t i = 0; i < a->kw_count && rc == FM_OK; i++)
        rc = jj_dict_put(c, out->u.dict, jj_str(a->kw[i], strlen(a->kw[i])), a->kw_value[i]);
    if (ns)
        out->type = JJ_NAMESPACE;
    return rc;
}

static bool time_field(fm_buf *b, char f, const struct tm *t)
{
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    static const char digits[] = "mdHMSIy";
    const int value[] = {t->tm_mon + 1,
                         t->tm_mday,
                         t->tm_hour,
                         t->tm_min,
                         t->tm_sec,
                         (t->tm_hour + 11) % 12 + 1,
                         (t->tm_year + 1900) % 100};
    const char *hit = strchr(digits, f);

    if (f && hit)
        fm_buf_printf(b, "%02d", value[hit - digits]);
    else if (f == 'Y')
        fm_buf_printf(b, "%d", t->tm_year + 1900);
    else if (f == 'B' || f == 'A')
        fm_buf_str(b, f == 'B' ? months[t->tm_mon] : days[t->tm_wday]);
    else if (f == 'b' || f == 'a')
        fm_buf_append(b, f == 'b' ? months[t->tm_mon] : days[t->tm_wday], 3);
    else if (f == 'p')
        fm_buf_str(b, t->tm_hour < 12 ? "AM" : "PM");
    else if (f == '%')
        fm_buf_char(b, '%');
    else
        return false;
    return true;
}

static fm_status strftime_now(jj_ctx *c, jj_val *out, const jj_args *a)
{
    jj_val f = jj_arg(a, 0, NULL);
    time_t now = (time_t)c->now;
    struct tm t;
    fm_buf b;
    FM_TRY(jj_need_str(c, f, "strftime_now"));

    FM_TRY(jj_work_by(c, f.u.s.n, JJ_CALL));

    if (!gmtime_r(&now, &t))
        return jj_error(c, FM_EINVAL, "strftime_now: no such time");
    fm_buf_init(&b, 4096);
    for (size_t i = 0; i < f.u.s.n; i++) {
        if (f.u.s.p[i] != '%') {
            fm_buf_char(&b, f.u.s.p[i]);
        } else if (++i >= f.u.s.n || !time_field(&b, f.u.s.p[i], &t)) {
            fm_buf_release(&b);
            return jj_error(c, FM_EUNSUPPORTED, "strftime_now: a field of '%s' is not implemented",
                            f.u.s.p);
        }
    }
    return jj_buf_str(c, out, &b, FM_OK);
}

fm_status jj_builtin_call(jj_ctx *c, jj_val *out, int fn, const jj_args *a)
{
    jj_val text;

    *out = jj_none();
    switch (fn) {
    case RANGE:
        return range(c, out, a);
    case DICT:
    case NAMESPACE:
        return new_mapping(c, out, a, fn == NAMESPACE);
    case STRFTIME:
        return strftime_now(c, out, a);
    case RAISE:
        text = jj_arg(a, 0, "message");
        return jj_error(c, FM_EINVAL, "template refuses: %.*s",
                        text.type == JJ_STRING ? (int)FM_MIN(text.u.s.n, (size_t)800) : 0,
                        text.type == JJ_STRING ? text.u.s.p : "");
    default:
        return jj_error(c, FM_EUNSUPPORTED, "function '%s' is not implemented", functions[fn]);
    }
}
