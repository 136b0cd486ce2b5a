/* markup.c - answers that are XML or HTML, or hold some.
 *
 * XML: well-formed as the standard says, without a document type (so no entity is ever expanded):
 * declaration, comments, instructions, CDATA, elements with quoted attributes of different names,
 * the five entities and character references. HTML has a meaning for every text, so what is asked
 * here is narrower and stated in SUITES.md: elements of HTML by name, closed where they must be. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "store/base/mem.h"
#include "testing/assert/assert.h"

#define DEEP_MAX 256
#define ATTRIBUTES_MAX 64u
#define PATHS_MAX 16u
#define PATH_BYTES_MAX ((size_t)200)
#define SEARCH_BYTES_MAX ((size_t)4 << 20) /* looked at inside one answer */

typedef struct name {
    const uint8_t *at;
    size_t len;
} name;

typedef struct reader {
    fm_span s;
    size_t at;
    bool html;
    name open[DEEP_MAX]; /* elements around this place */
    size_t depth, elements;
    const fm_json *paths; /* that must be there; seen: which were */
    bool seen[PATHS_MAX];
    const char *why; /* what is wrong at `at`; NULL: nothing yet */
} reader;

/* ---- letters ---- */

static bool wrong(reader *r, const char *why)
{
    if (!r->why)
        r->why = why;
    return false;
}

static int peek(const reader *r, size_t ahead)
{
    return r->at + ahead < r->s.len ? r->s.data[r->at + ahead] : -1;
}

static bool starts(const reader *r, const char *text)
{
    size_t n = strlen(text);
    return r->s.len - r->at >= n && memcmp(r->s.data + r->at, text, n) == 0;
}

static bool skip_to(reader *r, const char *end, const char *why)
{
    for (size_t n = strlen(end); r->at + n <= r->s.len; r->at++)
        if (starts(r, end)) {
            r->at += n;
            return true;
        }
    return wrong(r, why);
}

static bool is_space(int c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_space(reader *r)
{
    while (is_space(peek(r, 0)))
        r->at++;
}

/* The table NameStartChar and NameChar of XML 1.0. */
static bool name_char(uint32_t c, bool first)
{
    static const struct {
        uint32_t low, high;
        bool first;
    } range[] = {{':', ':', true},         {'A', 'Z', true},       {'_', '_', true},
                 {'a', 'z', true},         {0xC0, 0xD6, true},     {0xD8, 0xF6, true},
                 {0xF8, 0x2FF, true},      {0x370, 0x37D, true},   {0x37F, 0x1FFF, true},
                 {0x200C, 0x200D, true},   {0x2070, 0x218F, true}, {0x2C00, 0x2FEF, true},
                 {0x3001, 0xD7FF, true},   {0xF900, 0xFDCF, true}, {0xFDF0, 0xFFFD, true},
                 {0x10000, 0xEFFFF, true}, {'-', '.', false},      {'0', '9', false},
                 {0xB7, 0xB7, false},      {0x300, 0x36F, false},  {0x203F, 0x2040, false}};
    for (size_t i = 0; i < FM_ARRAY_LEN(range); i++)
        if (c >= range[i].low && c <= range[i].high)
            return range[i].first || !first;
    return false;
}

static bool take_name(reader *r, name *out)
{
    size_t from = r->at, next = r->at;
    for (; r->at < r->s.len; r->at = next) {
        next = r->at;
        if (!name_char(fmv_next_point(r->s, &next), r->at == from))
            break;
    }
    *out = (name){r->s.data + from, r->at - from};
    return out->len || wrong(r, "a name is missing");
}

static bool same_name(const reader *r, name a, name b)
{
    return a.len == b.len && (r->html ? strncasecmp((const char *)a.at, (const char *)b.at, a.len)
                                      : memcmp(a.at, b.at, a.len)) == 0;
}

/* "&amp;", "&#10;", "&#x41;". In HTML an ampersand may stand alone. */
static bool take_reference(reader *r)
{
    static const char *const known[] = {"&lt;", "&gt;", "&amp;", "&apos;", "&quot;"};
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (starts(r, known[i])) {
            r->at += strlen(known[i]);
            return true;
        }
    if (r->html) {
        r->at++;
        return true;
    }
    if (!starts(r, "&#"))
        return wrong(r, "'&' begins no entity of XML");
    bool hex = peek(r, 2) == 'x';
    uint32_t point = 0;
    size_t n = hex ? 3 : 2, digits = 0;
    for (int c; (c = peek(r, n)) >= 0 && (hex ? isxdigit(c) : isdigit(c)) && digits < 8;
         n++, digits++)
        point = point * (hex ? 16 : 10) + (uint32_t)(isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
    bool allowed = (point >= 0x20 && point <= 0xD7FF) || (point >= 0xE000 && point <= 0xFFFD) ||
                   (point >= 0x10000 && point <= 0x10FFFF) || is_space((int)FM_MIN(point, 0xFFu));
    if (!digits || peek(r, n) != ';' || !allowed)
        return wrong(r, "a character reference is wrong");
    r->at += n + 1;
    return true;
}

/* ---- elements ---- */

static bool take_attribute(reader *r, name *out)
{
    if (!take_name(r, out))
        return false;
    skip_space(r);
    if (peek(r, 0) != '=')
        return r->html || wrong(r, "an attribute has no value");
    r->at++;
    skip_space(r);
    int quote = peek(r, 0);
    if (quote != '"' && quote != '\'') {
        if (!r->html)
            return wrong(r, "an attribute is not quoted");
        while (peek(r, 0) >= 0 && !is_space(peek(r, 0)) && peek(r, 0) != '>')
            r->at++;
        return true;
    }
    r->at++;
    while (peek(r, 0) >= 0 && peek(r, 0) != quote) {
        if (!r->html && peek(r, 0) == '<')
            return wrong(r, "'<' stands in an attribute");
        if (peek(r, 0) != '&')
            r->at++;
        else if (!take_reference(r))
            return false;
    }
    r->at++;
    return r->at <= r->s.len || wrong(r, "an attribute has no end");
}

static bool take_attributes(reader *r)
{
    name seen[ATTRIBUTES_MAX];
    size_t n = 0;
    for (;;) {
        bool apart = is_space(peek(r, 0));
        skip_space(r);
        int c = peek(r, 0);
        if (c == '>' || c == '/' || c == -1)
            return c != -1 || wrong(r, "a tag has no end");
        if (n == ATTRIBUTES_MAX || !apart)
            return wrong(r, apart ? "too many attributes" : "attributes stand together");
        if (!take_attribute(r, &seen[n]))
            return false;
        for (size_t i = 0; i < n; i++)
            if (same_name(r, seen[i], seen[n]))
                return wrong(r, "an attribute is there twice");
        n++;
    }
}

static const char *const html_void[] = {"area",  "base", "br",   "col",    "embed", "hr",  "img",
                                        "input", "link", "meta", "source", "track", "wbr", NULL};
/* Their end may be left out. */
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

/* The dotted path of the element that was opened last, against those that must be there. */
static void see_path(reader *r)
{
    for (size_t i = 0; i < FM_MIN(fm_json_count(r->paths), (size_t)PATHS_MAX); i++) {
        fm_span want = fm_json_str(fm_json_at(r->paths, i));
        size_t at = 0, k = 0;
        for (; k < r->depth && at < want.len; k++) {
            name n = r->open[k];
            if (want.len - at < n.len || memcmp(want.data + at, n.at, n.len) != 0)
                break;
            at += n.len;
            if (at < want.len && want.data[at] == '.')
                at++;
            else if (at < want.len)
                break;
        }
        r->seen[i] = r->seen[i] || (k == r->depth && at == want.len);
    }
}

static bool raw_text(reader *r, name n)
{
    static const char *const raw[] = {"script", "style", "textarea", "title", NULL};
    char end[16];
    if (!r->html || !listed(raw, n))
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
    if (r->html && !html_name(n))
        return wrong(r, "an element is not of HTML");
    if (r->depth == DEEP_MAX)
        return wrong(r, "elements are nested too deep");
    if (!take_attributes(r))
        return false;
    bool empty = peek(r, 0) == '/';
    r->at += empty;
    if (peek(r, 0) != '>')
        return wrong(r, "a tag has no end");
    r->at++;
    r->open[r->depth++] = n;
    r->elements++;
    see_path(r);
    if ((empty && !r->html) || (r->html && listed(html_void, n))) {
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
    if (peek(r, 0) != '>')
        return wrong(r, "an end tag has no end");
    while (r->html && r->depth && !same_name(r, r->open[r->depth - 1], n) &&
           listed(html_open, r->open[r->depth - 1]))
        r->depth--;
    if (!r->depth || !same_name(r, r->open[r->depth - 1], n))
        return wrong(r, "an end tag closes what is not open");
    r->at++;
    r->depth--;
    return true;
}

/* One thing of a document: a tag, a comment, an instruction, CDATA, or text. */
static bool take_part(reader *r)
{
    if (starts(r, "<!--")) {
        r->at += 4;
        if (r->html)
            return skip_to(r, "-->", "a comment has no end");
        return skip_to(r, "--", "a comment has no end") &&
               (peek(r, 0) == '>' ? (void)r->at++, true : wrong(r, "'--' stands in a comment"));
    }
    if (!r->html && starts(r, "<?")) {
        r->at += 2;
        return skip_to(r, "?>", "an instruction has no end");
    }
    if (!r->html && starts(r, "<![CDATA[")) {
        r->at += 9;
        return (r->depth || wrong(r, "text stands outside of the root")) &&
               skip_to(r, "]]>", "CDATA has no end");
    }
    if (r->html && r->s.len - r->at > 9 &&
        strncasecmp((const char *)r->s.data + r->at, "<!doctype", 9) == 0)
        return skip_to(r, ">", "the doctype has no end");
    if (starts(r, "<!"))
        return wrong(r, "document types are not read");
    if (starts(r, "</"))
        return close_tag(r);
    if (peek(r, 0) == '<')
        return open_tag(r);
    if (peek(r, 0) == '&')
        return (r->depth || r->html || wrong(r, "text stands outside of the root")) &&
               take_reference(r);
    if (!r->html && !r->depth && !is_space(peek(r, 0)))
        return wrong(r, "text stands outside of the root");
    if (!r->html && starts(r, "]]>"))
        return wrong(r, "']]>' stands in the text");
    if (!r->html && peek(r, 0) < 0x20 && !is_space(peek(r, 0)))
        return wrong(r, "a control character");
    r->at++;
    return true;
}

static bool all_seen(reader *r)
{
    for (size_t i = 0; i < fm_json_count(r->paths); i++)
        if (!r->seen[i])
            return wrong(r, "an element that must be there is not");
    return true;
}

/* The whole is a document: one root in XML, one element or more in HTML. */
static bool is_document(reader *r)
{
    size_t roots = 0;
    if (r->html && peek(r, 0) != '<')
        return wrong(r, "it does not begin with a tag");
    while (r->at < r->s.len) {
        size_t before = r->depth, elements = r->elements;
        if (!take_part(r))
            return false;
        roots += before == 0 && r->elements > elements;
        if (!r->html && roots > 1)
            return wrong(r, "there is more than one root");
    }
    while (r->html && r->depth && listed(html_open, r->open[r->depth - 1]))
        r->depth--;
    if (r->depth)
        return wrong(r, "an element is not closed");
    if (r->html && r->s.data[r->s.len - 1] != '>')
        return wrong(r, "it does not end with a tag");
    return roots ? all_seen(r) : wrong(r, "there is no element");
}

/* One whole element begins here. */
static bool is_element(reader *r)
{
    do {
        if (r->at >= r->s.len || !take_part(r))
            return false;
    } while (r->depth);
    return r->elements && all_seen(r);
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
    if (fm_json_count(a->value) > PATHS_MAX)
        return fm_fail(FM_ELIMIT, "%s: expect.%s: more than %u paths", where, a->type->word,
                       PATHS_MAX);
    for (size_t i = 0; i < fm_json_count(a->value); i++)
        if (fm_json_str(fm_json_at(a->value, i)).len > PATH_BYTES_MAX)
            return fm_fail(FM_ELIMIT, "%s: expect.%s: a path has more than %zu bytes", where,
                           a->type->word, PATH_BYTES_MAX);
    return fmv_want_texts(a, false, where);
}

static fm_status check_whole(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    reader r = {.s = fmv_trim(said->text), .html = of_html(a), .paths = a->value};
    bool ok = r.s.len ? is_document(&r) : wrong(&r, "it is empty");
    fmv_set_grade(out, ok);
    if (!ok)
        snprintf(out->note, sizeof out->note, "%s, at byte %zu", r.why, r.at);
    return FM_OK;
}

/* What was open where the reading broke off breaks off there too, wherever it is begun: a mark says
 * so. Nested too deep, it only would from outside; but if any of them is closed, the innermost is,
 * which is as good where no path is asked for and no end tag may be left out. */
static void mark_open(uint8_t *hopeless, const reader *r)
{
    size_t n = r->depth < DEEP_MAX                  ? r->depth
               : r->html || fm_json_count(r->paths) ? 0
                                                    : r->depth - 1;
    for (size_t i = 0; i < n; i++)
        hopeless[r->open[i].at - r->s.data - 1] = 1;
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
    uint8_t *hopeless = fm_calloc(said->text.len + 1, 1);
    if (!hopeless)
        return FM_ENOMEM;
    for (size_t i = 0; !found && i < said->text.len && looked <= SEARCH_BYTES_MAX; i++) {
        if (!may_begin(said->text, i) || hopeless[i])
            continue;
        reader r = {.s = said->text, .at = i, .html = of_html(a), .paths = a->value};
        found = is_element(&r);
        looked += r.at - i + sizeof r / 64;
        mark_open(hopeless, &r);
    }
    fm_free(hopeless);
    if (looked > SEARCH_BYTES_MAX && !found) {
        if (a->negated) /* nothing was found: no reason to say that nothing is there */
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
