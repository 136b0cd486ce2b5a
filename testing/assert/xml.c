/* xml.c - XML through expat. */
#include "testing/assert/xml.h"

#include <expat.h>
#include <limits.h>
#include <string.h>

#include "store/base/mem.h"

typedef struct reader {
    XML_Parser parser;
    fm_span s;
    size_t from; /* offset in s at which the parser's bytes begin */
    bool whole, closed;
    const fm_json *paths;
    bool seen[FMV_XML_PATHS_MAX];
    size_t len[FMV_TAGS_DEEP_MAX]; /* length of the name of each open element */
    fmv_tags *tags;
} reader;

static void stop(reader *r, const char *why)
{
    r->tags->why = why;
    XML_StopParser(r->parser, XML_FALSE);
}

static bool is_path(const reader *r, fm_span want)
{
    size_t at = 0;
    for (size_t k = 0; k < r->tags->depth; k++) {
        const uint8_t *name = r->s.data + r->tags->open[k] + 1;
        if (k > 0 && (at == want.len || want.data[at++] != '.'))
            return false;
        if (want.len - at < r->len[k] || memcmp(want.data + at, name, r->len[k]) != 0)
            return false;
        at += r->len[k];
    }
    return at == want.len;
}

static void XMLCALL element_begins(void *ctx, const XML_Char *name, const XML_Char **attributes)
{
    reader *r = ctx;
    fmv_tags *t = r->tags;
    (void)attributes;
    if (t->depth == FMV_TAGS_DEEP_MAX) {
        stop(r, "elements are nested too deep");
        return;
    }
    r->len[t->depth] = strlen(name);
    t->open[t->depth++] = r->from + (size_t)XML_GetCurrentByteIndex(r->parser);
    for (size_t i = 0; i < fm_json_count(r->paths); i++)
        r->seen[i] = r->seen[i] || is_path(r, fm_json_str(fm_json_at(r->paths, i)));
}

static void XMLCALL element_ends(void *ctx, const XML_Char *name)
{
    reader *r = ctx;
    (void)name;
    if (r->tags->why) /* expat ends an empty element even when it was told to stop */
        return;
    r->closed = --r->tags->depth == 0;
    if (r->closed && !r->whole)
        stop(r, NULL);
}

static void XMLCALL doctype_begins(void *ctx, const XML_Char *name, const XML_Char *system,
                                   const XML_Char *public, int internal)
{
    (void)name;
    (void)system;
    (void)public;
    (void)internal;
    stop(ctx, "document types are not read");
}

static bool all_seen(const reader *r)
{
    for (size_t i = 0; i < fm_json_count(r->paths); i++)
        if (!r->seen[i])
            return false;
    return true;
}

/* Such an error stands where its token begins; expat has looked for the token's end up to the
 * text's. */
static bool runs_to_the_end(enum XML_Error error)
{
    return error == XML_ERROR_UNCLOSED_TOKEN || error == XML_ERROR_PARTIAL_CHAR ||
           error == XML_ERROR_UNCLOSED_CDATA_SECTION;
}

fm_status fmv_xml_read(fm_span s, size_t at, bool whole, const fm_json *paths, fmv_tags *out)
{
    static const XML_Memory_Handling_Suite door = {fm_malloc, fm_realloc, fm_free};
    reader r = {.s = s, .from = at, .whole = whole, .paths = paths, .tags = out};

    out->holds = false;
    out->why = NULL;
    out->depth = 0;
    r.parser = XML_ParserCreate_MM("UTF-8", &door, NULL);
    if (!r.parser)
        return FM_ENOMEM;
    XML_SetUserData(r.parser, &r);
    XML_SetElementHandler(r.parser, element_begins, element_ends);
    XML_SetStartDoctypeDeclHandler(r.parser, doctype_begins);
    (void)XML_Parse(r.parser, (const char *)s.data + at, (int)FM_MIN(s.len - at, (size_t)INT_MAX),
                    XML_TRUE);
    enum XML_Error error = XML_GetErrorCode(r.parser);
    out->at = at + (size_t)XML_GetCurrentByteIndex(r.parser);
    out->end = runs_to_the_end(error) ? s.len : out->at;
    if (error != XML_ERROR_NONE && error != XML_ERROR_ABORTED)
        out->why = XML_ErrorString(error);
    XML_ParserFree(r.parser);
    if (!out->why && !all_seen(&r))
        out->why = "an element that must be there is not";
    out->holds = r.closed && !out->why;
    return error == XML_ERROR_NO_MEMORY ? fm_fail(FM_ENOMEM, "out of memory") : FM_OK;
}
