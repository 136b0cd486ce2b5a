/* builtin.c - the functions that every template sees. */
#include "infer/jinja/jinja.h"

#include <string.h>

enum { RANGE, DICT, NAMESPACE, RAISE, STRFTIME, CYCLER, JOINER, LIPSUM };

/* The last three are jinja2's; to call them is refused. */
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
    fm_status rc = FM_OK;

    if (from.type != JJ_DICT)
        return jj_error(c, FM_EUNSUPPORTED, "a mapping of %s is not implemented",
                        jj_type_name(from));
    for (size_t i = 0; i < from.u.dict->count && rc == FM_OK; i++)
        rc = jj_dict_put(c, d, from.u.dict->p[i].key, from.u.dict->p[i].value);
    return rc;
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

/* Civil date of a day number since 1970-01-01 (proleptic Gregorian). */
static void civil(int64_t days, int64_t *year, int *month, int *day)
{
    int64_t z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097;
    int64_t doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;

    *day = (int)(doy - (153 * mp + 2) / 5 + 1);
    *month = (int)(mp < 10 ? mp + 3 : mp - 9);
    *year = yoe + era * 400 + (*month <= 2);
}

static bool clock_field(fm_buf *b, char f, int second)
{
    switch (f) {
    case 'H':
        fm_buf_printf(b, "%02d", second / 3600);
        break;
    case 'M':
        fm_buf_printf(b, "%02d", second / 60 % 60);
        break;
    case 'S':
        fm_buf_printf(b, "%02d", second % 60);
        break;
    case 'I':
        fm_buf_printf(b, "%02d", (second / 3600 + 11) % 12 + 1);
        break;
    case 'p':
        fm_buf_str(b, second < 43200 ? "AM" : "PM");
        break;
    default:
        return false;
    }
    return true;
}

static bool time_field(fm_buf *b, char f, int64_t now)
{
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    static const char *const days[] = {"Thursday", "Friday",  "Saturday", "Sunday",
                                       "Monday",   "Tuesday", "Wednesday"};
    int64_t day_number = now >= 0 ? now / 86400 : -((86399 - now) / 86400), year;
    int second = (int)(now - day_number * 86400), month, day;
    const char *weekday = days[(size_t)((day_number % 7 + 7) % 7)];

    civil(day_number, &year, &month, &day);
    switch (f) {
    case 'Y':
        fm_buf_printf(b, "%lld", (long long)year);
        break;
    case 'y':
        fm_buf_printf(b, "%02lld", (long long)(year % 100));
        break;
    case 'm':
        fm_buf_printf(b, "%02d", month);
        break;
    case 'd':
        fm_buf_printf(b, "%02d", day);
        break;
    case 'B':
        fm_buf_str(b, months[month - 1]);
        break;
    case 'b':
        fm_buf_append(b, months[month - 1], 3);
        break;
    case 'A':
        fm_buf_str(b, weekday);
        break;
    case 'a':
        fm_buf_append(b, weekday, 3);
        break;
    case '%':
        fm_buf_char(b, '%');
        break;
    default:
        return clock_field(b, f, second);
    }
    return true;
}

static fm_status strftime_now(jj_ctx *c, jj_val *out, const jj_args *a)
{
    jj_val f = jj_arg(a, 0, NULL);
    fm_buf b;
    fm_status rc = jj_need_str(c, f, "strftime_now");

    if (rc == FM_OK)
        rc = jj_work_by(c, f.u.s.n, JJ_CALL);
    if (rc < 0)
        return rc;
    fm_buf_init(&b, 4096);
    for (size_t i = 0; i < f.u.s.n; i++) {
        if (f.u.s.p[i] != '%') {
            fm_buf_char(&b, f.u.s.p[i]);
        } else if (++i >= f.u.s.n || !time_field(&b, f.u.s.p[i], c->now)) {
            fm_buf_release(&b);
            return jj_error(c, FM_EUNSUPPORTED, "strftime_now: a field of '%s' is not implemented",
                            f.u.s.p);
        }
    }
    return jj_buf_str(c, out, &b);
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
