/* date.c - points of time as people write them for git: "2.weeks.ago", "now", a date. */
#include "lineage/lineage.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const struct unit {
    const char *name;
    int64_t seconds;
} units[] = {{"second", 1},       {"minute", 60},        {"hour", 3600},       {"day", 86400},
             {"week", 7 * 86400}, {"month", 30 * 86400}, {"year", 365 * 86400}};

static bool is_gap(char ch)
{
    return ch == '.' || ch == ' ' || ch == '-';
}

/* "2.weeks.ago", "2 weeks", "90days" */
static bool parse_ago(int64_t *out, const char *text, int64_t now)
{
    int64_t n = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9' && p - text < 9; p++)
        n = n * 10 + (*p - '0');
    if (p == text)
        return false;
    while (is_gap(*p))
        p++;
    for (size_t i = 0; i < FM_ARRAY_LEN(units); i++) {
        size_t len = strlen(units[i].name);
        if (strncmp(p, units[i].name, len) != 0)
            continue;
        p += len;
        p += *p == 's';
        while (is_gap(*p))
            p++;
        if (*p && strcmp(p, "ago") != 0)
            return false;
        *out = now - n * units[i].seconds;
        return true;
    }
    return false;
}

static bool parse_date(int64_t *out, const char *text)
{
    struct tm tm;
    int used = 0;
    memset(&tm, 0, sizeof tm);
    if (sscanf(text, "%4d-%2d-%2d%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &used) != 3)
        return false;
    const char *rest = text + used;
    if (*rest == ' ' || *rest == 'T') {
        int more = 0;
        if (sscanf(rest + 1, "%2d:%2d:%2d%n", &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &more) != 3)
            return false;
        rest += 1 + more;
        rest += *rest == 'Z';
    }
    if (*rest || tm.tm_year < 1970 || tm.tm_mon < 1 || tm.tm_mon > 12 || tm.tm_mday < 1 ||
        tm.tm_mday > 31 || tm.tm_hour > 23 || tm.tm_min > 59 || tm.tm_sec > 60)
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    *out = (int64_t)timegm(&tm);
    return true;
}

static bool parse_seconds(int64_t *out, const char *text)
{
    size_t len = strlen(text);
    if (len < 9 || len > 12 || strspn(text, "0123456789") != len)
        return false;
    *out = 0;
    for (; *text; text++)
        *out = *out * 10 + (*text - '0');
    return true;
}

fm_status fm_time_parse(int64_t *out, const char *text, int64_t now)
{
    *out = INT64_MIN;
    if (strcmp(text, "never") == 0 || strcmp(text, "false") == 0)
        return FM_OK;
    *out = INT64_MAX;
    if (strcmp(text, "now") == 0 || strcmp(text, "all") == 0)
        return FM_OK;
    if (parse_seconds(out, text) || parse_date(out, text) || parse_ago(out, text, now))
        return FM_OK;
    *out = INT64_MIN;
    return fm_fail(FM_EINVAL,
                   "'%.60s' is no time: write now, never, 2.weeks.ago, 90.days, 2026-11-21, "
                   "\"2026-11-21 18:00:00\" (UTC) or seconds since 1970",
                   text);
}
