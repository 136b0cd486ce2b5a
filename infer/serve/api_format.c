/* api_format.c - the form of answers that a request wants: {"type": "text" | "json_object" |
 * "json_schema"}, and the fields guided_json and structured_outputs of other servers. */
#include "infer/serve/openai_read.h"

#include <string.h>

/* Reports a fault of a schema as a fault of the request. */
static fm_status blame(const fmi_ask_reader *r, fm_status rc)
{
    if (rc == FM_OK || rc == FM_ENOMEM)
        return rc;
    fm_ignore(fm_error_prefix(rc, "'%s'", r->name), "the status is always the request's");
    return fmi_ask_at(r->a, r->name, FM_EINVAL);
}

static fm_status set_form(const fmi_ask_reader *r, const fm_json *schema)
{
    if (r->a->grammar)
        return fmi_ask_at(
            r->a, r->name,
            fm_fail(FM_EINVAL, "'%s': the form of the answer is given twice", r->name));
    if (schema)
        return blame(r, fm_grammar_new(&r->a->grammar, schema, false));
    return blame(r, fm_grammar_new_object(&r->a->grammar, false));
}

static fm_status bad(const fmi_ask_reader *r, const char *what)
{
    return fmi_ask_at(r->a, r->name, fm_fail(FM_EINVAL, "'%s' %s", r->name, what));
}

static fm_status only_keys(const fmi_ask_reader *r, const fm_json *o, const char *const *known)
{
    return blame(r, fm_json_known_keys(o, known, "object"));
}

fm_status fmi_ask_take_format(fmi_ask_reader *r)
{
    static const char *const outer[] = {"type", "json_schema", NULL};
    static const char *const inner[] = {"name", "description", "schema", "strict", NULL};
    const char *type = fm_json_cstr(fm_json_get(r->v, "type"), "");
    const fm_json *js = fm_json_get(r->v, "json_schema");
    FM_TRY(only_keys(r, r->v, outer));
    if (fm_json_typeof(js) != FM_JSON_NULL && strcmp(type, "json_schema") != 0)
        return bad(r, "has a 'json_schema', which needs type \"json_schema\"");
    if (strcmp(type, "text") == 0)
        return FM_OK;
    if (strcmp(type, "json_object") == 0)
        return set_form(r, NULL);
    if (strcmp(type, "json_schema") != 0)
        return bad(r, "must have type \"text\", \"json_object\" or \"json_schema\"");
    if (!fm_json_is(js, FM_JSON_OBJECT) || !fm_json_get(js, "schema"))
        return bad(r, "needs {\"json_schema\": {\"name\": ..., \"schema\": {...}}}");
    FM_TRY(only_keys(r, js, inner));
    return set_form(r, fm_json_get(js, "schema"));
}

fm_status fmi_ask_take_guided_json(fmi_ask_reader *r)
{
    fm_span text = fm_json_str(r->v);
    fm_json *schema = NULL;

    if (!text.data)
        return set_form(r, r->v);
    fm_status rc = blame(r, fm_json_parse(&schema, text, "schema"));
    FM_THEN(rc, set_form(r, schema));
    fm_json_free(schema);
    return rc;
}

fm_status fmi_ask_take_structured(fmi_ask_reader *r)
{
    static const char *const known[] = {"json", "json_object", NULL};
    const fm_json *schema = fm_json_get(r->v, "json");

    if (!fm_json_is(r->v, FM_JSON_OBJECT))
        return fmi_ask_wants(r, "an object");
    FM_TRY(only_keys(r, r->v, known));
    if (fm_json_bool(fm_json_get(r->v, "json_object"), false))
        return schema ? bad(r, "takes one of 'json' and 'json_object'") : set_form(r, NULL);
    if (!schema || fm_json_is(schema, FM_JSON_NULL))
        return bad(r, "needs 'json' or 'json_object': true");
    fmi_ask_reader inner = {r->a, schema, r->name, r->cap};
    return fmi_ask_take_guided_json(&inner);
}
