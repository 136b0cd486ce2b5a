/* markup.c - assertions on answers that are XML (xml.c) or HTML, or contain some.
 *
 * HTML gives every text a meaning, so the check here is narrower, as SUITES.md describes: elements
 * of HTML by name, closed where they must be. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "store/base/mem.h"
#include "testing/assert/assert.h"
#include "testing/assert/xml.h"

#define ATTRIBUTES_MAX 64u
#define PATH_BYTES_MAX ((size_t)200)
#define SEARCH_BYTES_MAX ((size_t)4 << 20) /* most bytes searched inside one answer */
#define TRY_BYTES 64u                      /* what each attempt counts in addition to its bytes */

typedef struct name {
    const uint8_t *at;
    size_t len;
} name;

typedef struct reader {
    fm_span s;
    size_t at;
    name open[FMV_TAGS_DEEP_MAX]; /* elements around this place */
    size_t depth, elements;
    const char *why; /* the error at `at`; NULL: none yet */
} reader;

/* ---- letters ---- */

static bool wrong(reader *r, const char *why)
{
    if (!r->why)
        r->why = why;
    return false;
}

static int peek(const reader *r)
{
    return r->at < r->s.len ? r->s.data[r->at] : -1;
}

static bool starts(const reader *r, const char *text)
{
    size_t n = strlen(text);
    return r->s.len - r->at >= n && memcmp(r->s.data + r->at, text, n) == 0;
}

static bool skip_to(reader *r, const char *end, const char *why)
{
    const uint8_t *at = memmem(r->s.data + r->at, r->s.len - r->at, end, strlen(end));
    r->at = at ? (size_t)(at - r->s.data) + strlen(end) : r->s.len;
    return at || wrong(r, why);
}

static bool is_space(int c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_space(reader *r)
{
    while (is_space(peek(r)))
        r->at++;
}

static bool name_char(int c, bool first)
{
    return c >= 0x80 || c == '_' || c == ':' || isalpha(c) ||
           (!first && (c == '-' || c == '.' || isdigit(c)));
}

static bool take_name(reader *r, name *out)
{
    size_t from = r->at;
    while (name_char(peek(r), r->at == from))
        r->at++;
    *out = (name){r->s.data + from, r->at - from};
    return out->len || wrong(r, "a name is missing");
}

static bool same_name(name a, name b)
{
    return a.len == b.len && strncasecmp((const char *)a.at, (const char *)b.at, a.len) == 0;
}

/* ---- elements ---- */

static bool take_attribute(reader *r, name *out)
{
    if (!take_name(r, out))
        return false;
    skip_space(r);
    if (peek(r) != '=')
        return true;
    r->at++;
    skip_space(r);
    int quote = peek(r);
    if (quote != '"' && quote != '\'') {
        while (peek(r) >= 0 && !is_space(peek(r)) && peek(r) != '>')
            r->at++;
        return true;
    }
    r->at++;
    while (peek(r) >= 0 && peek(r) != quote)
        r->at++;
    r->at++;
    return r->at <= r->s.len || wrong(r, "an attribute has no end");
}

static bool take_attributes(reader *r)
{
    name seen[ATTRIBUTES_MAX];
    size_t n = 0;
    for (;;) {
        bool apart = is_space(peek(r));
        skip_space(r);
        int c = peek(r);
        if (c == '>' || c == '/' || c == -1)
            return c != -1 || wrong(r, "a tag has no end");
        if (n == ATTRIBUTES_MAX || !apart)
            return wrong(r, apart ? "too many attributes" : "attributes stand together");
        if (!take_attribute(r, &seen[n]))
            return false;
        for (size_t i = 0; i < n; i++)
            if (same_name(seen[i], seen[n]))
                return wrong(r, "an attribute is there twice");
        n++;
    }
}

static const char *const html_void[] = {"area",  "base", "br",   "col",    "embed", "hr",  "img",
                                        "input", "link", "meta", "source", "track", "wbr", NULL};
/* Elements whose end tag may be left out. */
static const char *const html_open[] = {
    "p",      "li",       "dt", "dd", "tr",       "td",   "th",   "thead", "tbody", "tfoot",
    "option", "optgroup", "rp", "rt", "colgroup", "html", "head", "body",  NULL};
static const char *const html_other[] = {
    "a",        "abbr",       "address",  "article",  "aside",    "audio",  "b",       "bdi",
    "bdo",      "blockquote", "button",   "canvas",   "caption",  "cite",   "code",    "data",
    "datalist", "del",        "details",  "dfn",      "dialog",   "div",    "dl",      "em",
    "fieldset", "figcaption", "figure",   "footer",   "form",     "h1",     "h2",      "h3",
    "h4",       "h5",         "h6",       "header",   "hgroup",   "i",      "iframe",  "ins",
    "kbd",      "label",      "legend",   "main",     "map",      "mark",   "math",    "menu",
    "meter",    "nav",        "noscript", "object",   "ol",       "output", "picture", "pre",
    "progress", "q",          "ruby",     "s",        "samp",     "script", "search",  "section",
    "select",   "slot",       "small",    "span",     "strong",   "style",  "sub",     "summary",
    "sup",      "svg",        "table",    "template", "textarea", "time",   "title",   "u",
    "ul",       "var",        "video",    NULL};

static bool listed(const char *const *list, name n)
{
    for (; *list; list++)
        if (strlen(*list) == n.len && strncasecmp(*list, (const char *)n.at, n.len) == 0)
            return true;
    return false;
}

static bool html_name(name n)
{
    return listed(html_other, n) || listed(html_open, n) || listed(html_void, n) ||
           (n.len > 2 && isalpha(n.at[0]) && memchr(n.at, '-', n.len));
}

static bool raw_text(reader *r, name n)
{
    static const char *const raw[] = {"script", "style", "textarea", "title", NULL};
    char end[16];
    if (!listed(raw, n))
        return true;
    snprintf(end, sizeof end, "</%.*s", (int)FM_MIN(n.len, (size_t)10), (const char *)n.at);
    for (size_t len = strlen(end); r->at + len <= r->s.len; r->at++)
        if (strncasecmp((const char *)r->s.data + r->at, end, len) == 0)
            return true;
    return wrong(r, "a script, style or title has no end");
}

static bool open_tag(reader *r)
{
    name n;
    r->at++;
    if (!take_name(r, &n))
        return false;
    if (!html_name(n))
        return wrong(r, "an element is not of HTML");
    if (r->depth == FMV_TAGS_DEEP_MAX)
        return wrong(r, "elements are nested too deep");
    if (!take_attributes(r))
        return false;
    r->at += peek(r) == '/';
    if (peek(r) != '>')
        return wrong(r, "a tag has no end");
    r->at++;
    r->open[r->depth++] = n;
    r->elements++;
    if (listed(html_void, n)) {
        r->depth--;
        return true;
    }
    return raw_text(r, n);
}

static bool close_tag(reader *r)
{
    name n;
    r->at += 2;
    if (!take_name(r, &n))
        return false;
    skip_space(r);
    if (peek(r) != '>')
        return wrong(r, "an end tag has no end");
    while (r->depth && !same_name(r->open[r->depth - 1], n) &&
           listed(html_open, r->open[r->depth - 1]))
        r->depth--;
    if (!r->depth || !same_name(r->open[r->depth - 1], n))
        return wrong(r, "an end tag closes what is not open");
    r->at++;
    r->depth--;
    return true;
}

/* Reads one part of a document: a tag, a comment, or text. */
static bool take_part(reader *r)
{
    if (starts(r, "<!--")) {
        r->at += 4;
        return skip_to(r, "-->", "a comment has no end");
    }
    if (r->s.len - r->at > 9 && strncasecmp((const char *)r->s.data + r->at, "<!doctype", 9) == 0)
        return skip_to(r, ">", "the doctype has no end");
    if (starts(r, "<!"))
        return wrong(r, "document types are not read");
    if (starts(r, "</"))
        return close_tag(r);
    if (peek(r) == '<')
        return open_tag(r);
    r->at++;
    return true;
}

/* Whether the whole text is a document, of one element or more. */
static bool is_document(reader *r)
{
    if (peek(r) != '<')
        return wrong(r, "it does not begin with a tag");
    while (r->at < r->s.len)
        if (!take_part(r))
            return false;
    while (r->depth && listed(html_open, r->open[r->depth - 1]))
        r->depth--;
    if (r->depth)
        return wrong(r, "an element is not closed");
    if (r->s.data[r->s.len - 1] != '>')
        return wrong(r, "it does not end with a tag");
    return r->elements || wrong(r, "there is no element");
}

/* Whether one whole element begins at `at`. */
static bool is_element(reader *r)
{
    do {
        if (r->at >= r->s.len || !take_part(r))
            return false;
    } while (r->depth);
    return r->elements;
}

/* Reads HTML as fmv_xml_read reads XML. */
static fm_status read_html(fm_span s, size_t at, bool whole, fmv_tags *out)
{
    reader r = {.s = s, .at = at};
    out->holds = whole ? is_document(&r) : is_element(&r);
    out->why = r.why;
    out->at = out->end = r.at;
    out->depth = r.depth;
    for (size_t i = 0; i < r.depth; i++)
        out->open[i] = (size_t)(r.open[i].at - s.data) - 1;
    return FM_OK;
}

/* ---- assertions ---- */

enum { IS_XML, HAS_XML, IS_HTML, HAS_HTML };

static bool of_html(const fmv_assertion *a)
{
    return a->type->how == IS_HTML || a->type->how == HAS_HTML;
}

static fm_status read_markup(fmv_assertion *a, const char *where)
{
    if (fm_json_bool(a->value, false))
        return FM_OK;
    if (of_html(a) || !fm_json_is(a->value, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "%s: expect.%s wants true%s", where, a->type->word,
                       of_html(a) ? "" : ", or a list of paths of elements like root.child");
    if (fm_json_count(a->value) > FMV_XML_PATHS_MAX)
        return fm_fail(FM_ELIMIT, "%s: expect.%s: more than %u paths", where, a->type->word,
                       FMV_XML_PATHS_MAX);
    for (size_t i = 0; i < fm_json_count(a->value); i++)
        if (fm_json_str(fm_json_at(a->value, i)).len > PATH_BYTES_MAX)
            return fm_fail(FM_ELIMIT, "%s: expect.%s: a path has more than %zu bytes", where,
                           a->type->word, PATH_BYTES_MAX);
    return fmv_want_texts(a, false, where);
}

static fm_status read_tags(const fmv_assertion *a, fm_span s, size_t at, bool whole, fmv_tags *out)
{
    return of_html(a) ? read_html(s, at, whole, out) : fmv_xml_read(s, at, whole, a->value, out);
}

static fm_status check_whole(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    fmv_tags t = {.why = "it is empty"};
    fm_span s = fmv_trim(said->text);
    if (s.len)
        FM_TRY(read_tags(a, s, 0, true, &t));
    fmv_set_grade(out, t.holds);
    if (!t.holds)
        snprintf(out->note, sizeof out->note, "%s, at byte %zu", t.why, t.at);
    return FM_OK;
}

/* Marks elements that cannot be read: elements that were open where the reading stopped would stop
 * there from their own start too. If they are nested too deep, that holds only for a start outside;
 * but if any of them is closed, the innermost is, which is as good where no path is asked for and
 * no end tag may be left out. */
static void mark_open(uint8_t *hopeless, const fmv_assertion *a, const fmv_tags *t)
{
    size_t n = t->depth < FMV_TAGS_DEEP_MAX                ? t->depth
               : of_html(a) || fm_json_count(a->value) > 0 ? 0
                                                           : t->depth - 1;
    for (size_t i = 0; i < n; i++)
        hopeless[t->open[i]] = 1;
}

static bool may_begin(fm_span s, size_t i)
{
    return s.data[i] == '<' && (i + 1 == s.len || isalpha(s.data[i + 1]) || s.data[i + 1] >= 0x80 ||
                                s.data[i + 1] == '_');
}

static fm_status check_inside(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    size_t looked = 0;
    bool found = false;
    fm_status rc = FM_OK;
    fmv_tags t;
    uint8_t *hopeless = fm_calloc(said->text.len + 1, 1);
    if (!hopeless)
        return FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && !found && i < said->text.len && looked <= SEARCH_BYTES_MAX;
         i++) {
        if (!may_begin(said->text, i) || hopeless[i])
            continue;
        rc = read_tags(a, said->text, i, false, &t);
        if (rc < 0)
            break;
        found = t.holds;
        looked += t.end - i + TRY_BYTES;
        mark_open(hopeless, a, &t);
    }
    fm_free(hopeless);
    if (rc < 0)
        return rc;
    if (looked > SEARCH_BYTES_MAX && !found) {
        if (a->negated) /* no find does not prove that there is none */
            return fm_fail(FM_ELIMIT, "the search for elements in the answer took too long");
        snprintf(out->note, sizeof out->note, "none was found before the search took too long");
    }
    fmv_set_grade(out, found);
    return FM_OK;
}

#define MARKUP(w, h, c)                                                                            \
    {                                                                                              \
        .word = w, .kind = FMV_RULE, .how = h, .threshold = NAN, .read = read_markup, .check = c   \
    }
const fmv_assert_type fmv_assert_markup[] = {
    MARKUP("is-xml", IS_XML, check_whole),
    MARKUP("contains-xml", HAS_XML, check_inside),
    MARKUP("is-html", IS_HTML, check_whole),
    MARKUP("contains-html", HAS_HTML, check_inside),
    {0},
};
