/* util.c - helpers of a tokenizer's parsers and models: lists of ids, and fields that many parts of
 * a tokenizer.json have. */
#include "infer/tokenizer/internal.h"

#include <string.h>

fm_status fm_ids_push(fm_ids *ids, int32_t id)
{
    if (ids->count == ids->cap) {
        FM_TRY(fm_grow(&ids->id, &ids->cap, ids->count + 1, sizeof *ids->id));
    }
    ids->id[ids->count++] = id;
    return FM_OK;
}

void fm_ids_release(fm_ids *ids)
{
    fm_free(ids->id);
    memset(ids, 0, sizeof *ids);
}

/* ---- fields ---- */

fm_status fmi_need_bool(bool *out, const fm_json *obj, const char *key, bool dflt,
                        const char *field)
{
    const fm_json *v = fm_json_get(obj, key);

    *out = dflt;
    if (fm_json_typeof(v) == FM_JSON_NULL)
        return FM_OK;
    if (!fm_json_is(v, FM_JSON_BOOL))
        return fm_fail(FM_EINVAL, "%s: field '%s' must be true or false", field, key);
    *out = fm_json_bool(v, dflt);
    return FM_OK;
}

fm_status fmi_pattern_parse(fmi_regex **out, const fm_json *pattern, const char *field)
{
    fm_span text = fm_json_str(fm_json_get(pattern, "Regex"));

    *out = NULL;
    if (text.data)
        return fmi_regex_new(out, text, false, field);
    text = fm_json_str(fm_json_get(pattern, "String"));
    if (!text.data)
        return fm_fail(FM_EINVAL, "%s: field 'pattern' must hold a String or a Regex", field);
    return fmi_regex_new(out, text, true, field);
}
