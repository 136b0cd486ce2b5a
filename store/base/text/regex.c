/* regex.c - regular expressions through PCRE2. */
#include "store/base/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "store/base/buf.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"

/* PCRE2 limits the steps of a match at each place where it may begin, and does not report how many
 * it took. So many places are tried with few steps first; one at which they are not enough is tried
 * alone, with ten times as many, and so on. The steps of failed tries of a run are added up. */
#define FIRST_STEPS 1000u
#define AT_LINES 2u /* of PCRE2_INFO_FIRSTCODETYPE: it matches there and behind line ends only */
#define FIRST_PLACES ((size_t)64)
#define WINDOW_SECONDS 0.05 /* a window that took longer is followed by no larger one */
#define HEAP_MAX_KIB 65536u /* heap of one match; it holds each level, so it bounds the depth */
#define JIT_STACK_MAX ((size_t)8 << 20)
#define PATTERN_MAX_BYTES 1024u /* a pattern of a PEFT config */
#define PATTERN_STEPS 20000u

struct fm_regex {
    pcre2_code *code;
    uint32_t groups; /* the whole match counts as one */
    bool jit;        /* matched by machine code */
    bool at_once;    /* where it may begin depends on where the search begins: no windows */
    bool valid;      /* its subjects are known to be UTF-8 */
    char said[104];  /* the first characters of the pattern, for errors */
};

struct fm_regex_run {
    pcre2_general_context *gctx;
    pcre2_match_context *mctx;
    pcre2_match_data *md;
    pcre2_jit_stack *stack;
    uint32_t groups, match_steps;
    size_t vain_steps, matched;
    const uint8_t *text; /* [text_len] found to be UTF-8 by this search */
    size_t text_len;
};

static void *door_malloc(size_t bytes, void *data)
{
    (void)data;
    return fm_malloc(bytes);
}

static void door_free(void *p, void *data)
{
    (void)data;
    fm_free(p);
}

static fm_status compile(fm_regex *re, fm_span pattern, uint32_t options, const char *where)
{
    pcre2_general_context *gctx = pcre2_general_context_create(door_malloc, door_free, NULL);
    pcre2_compile_context *cctx = gctx ? pcre2_compile_context_create(gctx) : NULL;
    int error = PCRE2_ERROR_HEAP_FAILED;
    PCRE2_SIZE at = 0;

    if (cctx) {
        pcre2_set_newline(cctx, PCRE2_NEWLINE_LF);
        re->code = pcre2_compile(pattern.data ? pattern.data : (const uint8_t *)"", pattern.len,
                                 options, &error, &at, cctx);
    }
    pcre2_compile_context_free(cctx);
    pcre2_general_context_free(gctx);
    if (re->code)
        return FM_OK;
    if (error == PCRE2_ERROR_HEAP_FAILED)
        return fm_fail(FM_ENOMEM, "out of memory");
    PCRE2_UCHAR why[256] = "";
    pcre2_get_error_message(error, why, sizeof why);
    return fm_fail(FM_EINVAL, "%s: the regular expression '%s': %s at offset %zu", where, re->said,
                   (const char *)why, (size_t)at);
}

/* Whether the pattern may hold \\G, the place where the search began. */
static bool find_g(fm_span pattern)
{
    for (size_t i = 0; i + 1 < pattern.len; i++)
        if (pattern.data[i] == '\\' && pattern.data[i + 1] == 'G')
            return true;
    return false;
}

void fm_regex_unicode(char out[32])
{
    char said[64] = "";

    (void)pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, said);
    snprintf(out, 32, "%.31s", said);
}

fm_status fm_regex_new(fm_regex **out, fm_span pattern, unsigned flags, const char *where)
{
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    size_t jit_bytes = 0; /* none where the pattern itself says that it wants no machine code */

    *out = NULL;
    if (pattern.len > FM_REGEX_MAX_BYTES)
        return fm_fail(FM_ELIMIT, "%s: a regular expression of %zu bytes (at most %zu)", where,
                       pattern.len, FM_REGEX_MAX_BYTES);
    fm_regex *re = fm_calloc(1, sizeof *re);
    if (!re)
        return FM_ENOMEM;
    snprintf(re->said, sizeof re->said, "%.*s", (int)FM_MIN(pattern.len, (size_t)100),
             (const char *)pattern.data);
    options |= flags & FM_REGEX_CASELESS ? PCRE2_CASELESS : 0u;
    options |= PCRE2_USE_OFFSET_LIMIT;
    options |= flags & FM_REGEX_WHOLE ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0u;
    fm_status rc = compile(re, pattern, options, where);
    if (rc < 0) {
        fm_regex_free(re);
        return rc;
    }
    pcre2_pattern_info(re->code, PCRE2_INFO_CAPTURECOUNT, &re->groups);
    re->groups++;
    uint32_t all = 0, first = 0;
    pcre2_pattern_info(re->code, PCRE2_INFO_ALLOPTIONS, &all);
    pcre2_pattern_info(re->code, PCRE2_INFO_FIRSTCODETYPE, &first);
    re->at_once = all & PCRE2_ANCHORED || first == AT_LINES || find_g(pattern);
    re->valid = flags & FM_REGEX_OFTEN;
    re->jit = re->valid && pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0 &&
              pcre2_pattern_info(re->code, PCRE2_INFO_JITSIZE, &jit_bytes) == 0 && jit_bytes > 0;
    *out = re;
    return FM_OK;
}

void fm_regex_free(fm_regex *re)
{
    if (!re)
        return;
    pcre2_code_free(re->code);
    fm_free(re);
}

fm_status fm_regex_run_new(fm_regex_run **out, uint32_t match_steps, size_t vain_steps)
{
    *out = NULL;
    fm_regex_run *run = fm_calloc(1, sizeof *run);
    if (!run)
        return FM_ENOMEM;
    run->match_steps = match_steps;
    run->vain_steps = vain_steps;
    run->gctx = pcre2_general_context_create(door_malloc, door_free, NULL);
    run->mctx = run->gctx ? pcre2_match_context_create(run->gctx) : NULL;
    if (!run->mctx) {
        fm_regex_run_free(run);
        return fm_fail(FM_ENOMEM, "out of memory");
    }
    pcre2_set_heap_limit(run->mctx, HEAP_MAX_KIB);
    *out = run;
    return FM_OK;
}

void fm_regex_run_free(fm_regex_run *run)
{
    if (!run)
        return;
    pcre2_jit_stack_free(run->stack);
    pcre2_match_data_free(run->md);
    pcre2_match_context_free(run->mctx);
    pcre2_general_context_free(run->gctx);
    fm_free(run);
}

static bool make_room(const fm_regex *re, fm_regex_run *run)
{
    if (re->groups <= run->groups)
        return true;
    pcre2_match_data_free(run->md);
    run->md = pcre2_match_data_create(re->groups, run->gctx);
    run->groups = run->md ? re->groups : 0;
    return run->md != NULL;
}

/* Looks for a match that begins at `from` or one of the `places` bytes behind it. */
static int match(const fm_regex *re, fm_regex_run *run, fm_span s, size_t from, size_t places,
                 uint32_t steps)
{
    const bool all = places > s.len - from;

    pcre2_set_match_limit(run->mctx, FM_MIN(steps, run->match_steps));
    pcre2_set_offset_limit(run->mctx, all ? PCRE2_UNSET : from + places);
    if (!re->jit) {
        bool seen = re->valid || (run->text == s.data && run->text_len == s.len);
        int n = pcre2_match(re->code, s.data, s.len, from, seen ? PCRE2_NO_UTF_CHECK : 0u, run->md,
                            run->mctx);
        run->text = s.data; /* an ill-formed text ends the search */
        run->text_len = s.len;
        return n;
    }
    int n = pcre2_jit_match(re->code, s.data, s.len, from, 0, run->md, run->mctx);
    if (n != PCRE2_ERROR_JIT_STACKLIMIT || run->stack)
        return n;
    /* 32 KiB of machine stack were not enough: allocate a stack and try once more. */
    run->stack = pcre2_jit_stack_create((size_t)64 << 10, JIT_STACK_MAX, run->gctx);
    if (!run->stack)
        return PCRE2_ERROR_NOMEMORY;
    pcre2_jit_stack_assign(run->mctx, NULL, run->stack);
    return pcre2_jit_match(re->code, s.data, s.len, from, 0, run->md, run->mctx);
}

/* A match at one place, or wherever it may begin if that is no choice of ours. */
static int match_within(const fm_regex *re, fm_regex_run *run, fm_span s, size_t from,
                        size_t places)
{
    for (uint32_t steps = FIRST_STEPS;; steps *= 10) {
        int n = match(re, run, s, from, places, steps);
        if (n != PCRE2_ERROR_MATCHLIMIT || steps >= run->match_steps || steps > run->vain_steps)
            return n;
        run->vain_steps -= steps;
    }
}

/* Searches window by window, each twice as large as the last one that was done in time. Where the
 * windows lie decides how soon a request to stop is seen, and nothing else. */
static fm_status search(const fm_regex *re, fm_regex_run *run, fm_span s, size_t from, int *n)
{
    size_t places = FIRST_PLACES;
    double begun = 0;

    for (;;) {
        const size_t tried = re->at_once ? s.len : FM_MIN(places, s.len - from);
        *n = match(re, run, s, from, tried, FIRST_STEPS);
        if (*n == PCRE2_ERROR_MATCHLIMIT && tried > 0 && !re->at_once) {
            places = tried / 2;
            continue;
        }
        if (*n == PCRE2_ERROR_MATCHLIMIT)
            *n = match_within(re, run, s, from, tried);
        if (*n != PCRE2_ERROR_NOMATCH || re->at_once || from + tried >= s.len)
            return FM_OK;
        FM_TRY(fm_go_on());
        const double now = fm_now_s();
        if (begun <= 0 || now - begun < WINDOW_SECONDS)
            places = FM_MAX(2 * tried, (size_t)1);
        begun = now;
        from += tried + 1;
        while (from < s.len && (s.data[from] & 0xc0) == 0x80)
            from++;
    }
}

fm_status fm_regex_next(const fm_regex *re, fm_regex_run *run, fm_span text, size_t from,
                        bool *found, size_t *begin, size_t *end)
{
    int n = PCRE2_ERROR_NOMEMORY;

    *found = false;
    FM_TRY(fm_go_on());
    if (!text.data)
        text.data = (const uint8_t *)"";
    run->text = NULL;
    if (make_room(re, run))
        FM_TRY(search(re, run, text, from, &n));
    if (n == PCRE2_ERROR_NOMATCH)
        return FM_OK;
    if (n == PCRE2_ERROR_NOMEMORY)
        return fm_fail(FM_ENOMEM, "out of memory");
    if (n < 0)
        return fm_fail(FM_ELIMIT,
                       "the regular expression '%s' gave up on this text (PCRE2 error %d)",
                       re->said, n);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(run->md);
    *begin = span[0];
    *end = span[1];
    *found = true;
    run->matched = (size_t)n;
    return FM_OK;
}

const size_t *fm_regex_groups(const fm_regex_run *run, size_t *count)
{
    *count = run->matched;
    return pcre2_get_ovector_pointer(run->md);
}

/* ---- patterns of PEFT's configs ---- */

bool fm_pattern_is_regex(const char *pattern)
{
    return strpbrk(pattern, "\\^$*+?()[]{}|") != NULL;
}

/* p stands behind "(?". */
static bool is_python_group(const char *p)
{
    if (*p == '<')
        return p[1] == '=' || p[1] == '!';
    if (*p == 'P')
        return p[1] != '>';
    if (*p == '(')
        return isalnum((unsigned char)p[1]) && p[1] != 'R' && strncmp(p + 1, "DEFINE", 6) != 0;
    if (*p == '-')
        return p[1 + strspn(p + 1, "imsx")] == ':';
    return strchr(":=!#imsx", *p) != NULL; /* at the end too: PCRE2 says what is missing */
}

/* The first construct in p that Python lacks or reads otherwise; NULL: there is none. */
static const char *not_python(const char *p)
{
    for (; *p; p++) {
        if (p[0] == '\\') {
            p++;
            if (((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z')) &&
                !strchr("AbBdDsSwWafnrtx", *p))
                return "an escape";
            if (p[0] == 'x' && p[1] == '{')
                return "an escape";
            if (*p == '\0')
                return "a trailing backslash";
        } else if (p[0] == '(' && p[1] == '*') {
            return "a verb";
        } else if (p[0] == '(' && p[1] == '?' && !is_python_group(p + 2)) {
            return "a group";
        } else if (p[0] == '[' && p[1] == ':') {
            return "a named class";
        } else if (p[0] == '{' && p[1] == ',') {
            return "a repeat without a lower bound";
        }
    }
    return NULL;
}

fm_status fm_pattern_matches(bool *out, const char *pattern, const char *text, const char *where)
{
    const char *why = not_python(pattern);
    fm_regex *re = NULL;
    fm_regex_run *run = NULL;
    size_t begin, end;

    *out = false;
    if (strlen(pattern) > PATTERN_MAX_BYTES)
        return fm_fail(FM_ELIMIT, "%s: a pattern of more than %u bytes", where, PATTERN_MAX_BYTES);
    if (why)
        return fm_fail(FM_EUNSUPPORTED, "%s: the pattern '%s' is not supported: %s", where, pattern,
                       why);
    fm_status rc = fm_regex_new(&re, fm_span_str(pattern), FM_REGEX_WHOLE, where);
    FM_THEN(rc, fm_regex_run_new(&run, PATTERN_STEPS, PATTERN_STEPS));
    FM_THEN(rc, fm_regex_next(re, run, fm_span_str(text), 0, out, &begin, &end));
    fm_regex_run_free(run);
    fm_regex_free(re);
    return rc;
}
