/* openai_read.c - error texts about a field of a request. */
#include "infer/serve/openai_read.h"

#include <stdio.h>

fm_status fmi_ask_at(fmi_ask *a, const char *param, fm_status rc)
{
    (void)snprintf(a->param, sizeof(a->param), "%s", param);
    return rc;
}

const char *fmi_ask_type(const fm_json *v)
{
    static const char *const name[] = {
        [FM_JSON_NULL] = "null",       [FM_JSON_BOOL] = "a boolean",  [FM_JSON_INT] = "a number",
        [FM_JSON_REAL] = "a number",   [FM_JSON_STRING] = "a string", [FM_JSON_ARRAY] = "an array",
        [FM_JSON_OBJECT] = "an object"};
    return name[fm_json_typeof(v)];
}

fm_status fmi_ask_wants(const fmi_ask_reader *r, const char *what)
{
    return fmi_ask_at(
        r->a, r->name,
        fm_fail(FM_EINVAL, "'%s' must be %s, is %s", r->name, what, fmi_ask_type(r->v)));
}
