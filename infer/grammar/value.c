/* value.c - the parts of values: blanks, texts, strings, and values that no schema describes. */
#include "infer/grammar/internal.h"

#include <string.h>

#define SPACES_MAX 24
#define TABS_MAX 6
#define LONG_STRING 24 /* from so many counted characters on, each is a call: one state each */

/* ---- rules ---- */

fm_status gr_new_rule(gr_builder *b, gr_rule r, const char *where, uint32_t *out)
{
    if (b->rules >= FM_GRAMMAR_RULES_MAX)
        return fm_fail(FM_ELIMIT, "%s: more than %u subschemas", b->where, FM_GRAMMAR_RULES_MAX);
    FM_TRY(fm_grow(&b->rule, &b->rules_cap, b->rules + 1, sizeof *b->rule));
    r.where = fm_strdup(where);
    if (!r.where)
        return FM_ENOMEM;
    *out = (uint32_t)b->rules;
    b->rule[b->rules++] = r;
    return gr_work(b, 16);
}

fm_status gr_built_in(gr_builder *b, gr_rule_kind kind, int depth, uint32_t *out)
{
    for (size_t i = 0; i < b->rules; i++)
        if (b->rule[i].kind == kind && b->rule[i].depth == depth) {
            *out = (uint32_t)i;
            return FM_OK;
        }
    return gr_new_rule(b, (gr_rule){.kind = kind, .depth = depth}, "schema", out);
}

fm_status gr_own(gr_builder *b, fm_json *v)
{
    fm_status rc =
        v ? fm_grow(&b->owned, &b->owned_cap, b->owned_count + 1, sizeof *b->owned) : FM_ENOMEM;

    if (rc == FM_OK)
        b->owned[b->owned_count++] = v;
    else
        fm_json_free(v);
    return rc;
}

/* ---- blanks and texts ---- */

fm_status gr_str(gr_builder *b, uint32_t in, uint32_t out, const char *s)
{
    return gr_text(b, in, out, fm_span_str(s));
}

static fm_status run_of(gr_builder *b, uint32_t in, uint32_t out, char c, int most)
{
    fm_status rc = FM_OK;

    for (int i = 0; rc == FM_OK && i < most; i++) {
        uint32_t next;
        rc = gr_node(b, &next);
        FM_THEN(rc, gr_bytes(b, in, next, (uint8_t)c, (uint8_t)c));
        FM_THEN(rc, gr_empty(b, next, out));
        in = next;
    }
    return rc;
}

fm_status gr_some_blanks(gr_builder *b, uint32_t in, uint32_t out, bool space)
{
    uint32_t line;
    FM_TRY(gr_node(b, &line));

    if (space)
        FM_TRY(gr_str(b, in, out, " "));
    FM_TRY(gr_str(b, in, line, "\n"));
    FM_TRY(gr_empty(b, line, out));
    FM_TRY(run_of(b, line, out, ' ', SPACES_MAX));
    return run_of(b, line, out, '\t', TABS_MAX);
}

fm_status gr_blanks(gr_builder *b, uint32_t in, uint32_t out, bool space, bool lines)
{
    uint32_t rule;
    fm_status rc = gr_empty(b, in, out);

    if (rc < 0 || b->compact)
        return rc;
    if (!lines)
        return space ? gr_str(b, in, out, " ") : FM_OK;
    rc = gr_built_in(b, GR_BLANK, space, &rule);
    return rc < 0 ? rc : gr_call_to(b, in, out, rule);
}

fm_status gr_json_text(gr_builder *b, uint32_t in, uint32_t out, const fm_json *v)
{
    fm_buf t;

    fm_buf_init(&t, 0);
    fm_status rc = fm_json_write(&t, v, FM_JSON_COMPACT);
    FM_THEN(rc, gr_text(b, in, out, fm_buf_span(&t)));
    fm_buf_release(&t);
    return rc;
}

fm_status gr_count_of(const gr_builder *b, const fm_json *schema, const char *key, uint32_t absent,
                      uint32_t *out)
{
    const fm_json *v = fm_json_get(schema, key);

    *out = absent;
    if (!v)
        return FM_OK;
    int64_t n = fm_json_int(v, -1);
    if (!fm_json_is(v, FM_JSON_INT) || n < 0)
        return fm_fail(FM_EINVAL, "%s: '%s' must be an integer from 0", b->where, key);
    if (n > FM_GRAMMAR_REPEAT_MAX)
        return fm_fail(FM_ELIMIT, "%s: '%s' is %lld, at most %u go", b->where, key, (long long)n,
                       FM_GRAMMAR_REPEAT_MAX);
    *out = (uint32_t)n;
    return FM_OK;
}

/* ---- strings ---- */

static const struct {
    const char *name, *pattern;
} formats[] = {
#define DATE                                                                                       \
    "(?:[12][0-9]{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|"  \
    "(?:0[13578]|1[02])-31)|(?:[12][0-9](?:0[48]|[2468][048]|[13579][26])|(?:16|2[048])00)-02-29)"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"
#define ZONE "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
    {"date", "^" DATE "$"},
    {"time", "^" TIME ZONE "$"},
    {"date-time", "^" DATE "T" TIME ZONE "$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"ipv4", "^" BYTE "\\." BYTE "\\." BYTE "\\." BYTE "$"},
    {"email",
     "^[A-Za-z0-9_+-]{1,20}(?:\\.[A-Za-z0-9_+-]{1,20}){0,3}@" LABEL "(?:\\." LABEL "){1,3}$"},
};

static fm_status pattern_of(const gr_builder *b, const fm_json *schema, fm_span *out)
{
    const fm_json *pattern = fm_json_get(schema, "pattern"),
                  *format = fm_json_get(schema, "format");

    *out = fm_json_str(pattern);
    if (pattern && !out->data)
        return fm_fail(FM_EINVAL, "%s: 'pattern' must be a string", b->where);
    if (!format)
        return FM_OK;
    if (pattern)
        return fm_fail(FM_EUNSUPPORTED, "%s: 'pattern' beside 'format' is not supported", b->where);
    for (size_t i = 0; i < FM_ARRAY_LEN(formats); i++)
        if (fm_span_eq_str(fm_json_str(format), formats[i].name)) {
            *out = fm_span_str(formats[i].pattern);
            return FM_OK;
        }
    return fm_fail(FM_EUNSUPPORTED, "%s: format '%.64s' is not supported", b->where,
                   fm_json_cstr(format, ""));
}

static fm_status one_char(gr_builder *b, uint32_t in, uint32_t out, bool by_call)
{
    uint32_t rule;

    if (!by_call)
        return gr_any_char(b, in, out);
    FM_TRY(gr_built_in(b, GR_CHAR, 0, &rule));
    return gr_call_to(b, in, out, rule);
}

/* Writes least to most characters (GR_NONE: any number). */
static fm_status counted(gr_builder *b, uint32_t in, uint32_t out, uint32_t least, uint32_t most)
{
    uint32_t copies = most == GR_NONE ? least : most, next;
    fm_status rc = FM_OK;

    for (uint32_t i = 0; rc == FM_OK && i < copies; i++) {
        rc = gr_node(b, &next);
        if (rc == FM_OK && i >= least)
            rc = gr_empty(b, in, out);
        FM_THEN(rc, one_char(b, in, next, copies >= LONG_STRING));
        in = next;
    }
    if (rc == FM_OK && most == GR_NONE)
        rc = gr_any_char(b, in, in);
    return rc < 0 ? rc : gr_empty(b, in, out);
}

fm_status gr_string(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema)
{
    uint32_t least = 0, most = GR_NONE, open, close;
    fm_span pattern = {NULL, 0};
    FM_TRY(gr_count_of(b, schema, "minLength", 0, &least));

    FM_TRY(gr_count_of(b, schema, "maxLength", GR_NONE, &most));
    FM_TRY(pattern_of(b, schema, &pattern));
    if (pattern.data && (least > 0 || most != GR_NONE))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: minLength and maxLength beside 'pattern' or 'format' are not "
                       "supported; put the lengths into the pattern",
                       b->where);
    if (most < least)
        return FM_OK; /* no string is both so short and so long */
    FM_TRY(gr_node(b, &open));
    FM_TRY(gr_node(b, &close));
    FM_TRY(gr_str(b, in, open, "\""));
    FM_TRY(gr_str(b, close, out, "\""));
    return pattern.data ? gr_pattern(b, open, close, pattern)
                        : counted(b, open, close, least, most);
}

/* ---- values that no schema describes ---- */

static fm_status call_built_in(gr_builder *b, uint32_t in, uint32_t out, gr_rule_kind kind,
                               int depth)
{
    uint32_t rule;
    FM_TRY(gr_built_in(b, kind, depth, &rule));

    return gr_call_to(b, in, out, rule);
}

/* {...} or [...] of values of the depth below; depth 0: empty ones only. */
fm_status gr_any_container(gr_builder *b, uint32_t in, uint32_t out, bool braces, int depth)
{
    uint32_t empty, begin, named, colon, before, filled, comma, end;
    uint32_t *const node[] = {&empty, &begin, &named, &colon, &before, &filled, &comma, &end};
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(node); i++)
        rc = gr_node(b, node[i]);
    FM_THEN(rc, gr_str(b, in, empty, braces ? "{" : "["));
    FM_THEN(rc, gr_str(b, empty, out, braces ? "}" : "]"));
    if (rc < 0 || depth == 0)
        return rc;
    rc = gr_blanks(b, empty, begin, false, true);
    if (rc == FM_OK && braces)
        rc = call_built_in(b, begin, named, GR_STRING, 0);
    if (rc == FM_OK && braces)
        rc = gr_str(b, named, colon, ":");
    FM_THEN(rc, braces ? gr_blanks(b, colon, before, true, false) : gr_empty(b, begin, before));
    FM_THEN(rc, call_built_in(b, before, filled, GR_ANY, depth - 1));
    FM_THEN(rc, gr_str(b, filled, comma, ","));
    FM_THEN(rc, gr_blanks(b, comma, begin, true, true));
    FM_THEN(rc, gr_blanks(b, filled, end, false, true));
    return rc < 0 ? rc : gr_str(b, end, out, braces ? "}" : "]");
}

fm_status gr_any_string(gr_builder *b, uint32_t in, uint32_t out)
{
    uint32_t open;
    FM_TRY(gr_node(b, &open));

    FM_TRY(gr_str(b, in, open, "\""));
    FM_TRY(gr_any_char(b, open, open));
    return gr_str(b, open, out, "\"");
}

fm_status gr_any_value(gr_builder *b, uint32_t in, uint32_t out, int depth)
{
    static const char *const word[] = {"true", "false", "null"};
    FM_TRY(gr_any_string(b, in, out));

    for (size_t i = 0; i < FM_ARRAY_LEN(word); i++)
        FM_TRY(gr_str(b, in, out, word[i]));
    FM_TRY(gr_number(b, in, out, NULL, false));
    FM_TRY(gr_any_container(b, in, out, false, depth));
    return gr_any_container(b, in, out, true, depth);
}
