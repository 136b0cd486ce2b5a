/* take.c - settings of a config by name. */
#include "infer/arch/table.h"

bool fmi_absent(const fm_json *v)
{
    return fm_json_typeof(v) == FM_JSON_NULL;
}

fm_status fmi_take_u32(uint32_t *out, const fm_json *c, const char *key, int64_t dflt, int64_t low,
                       int64_t high, const char *what)
{
    const fm_json *v = fm_json_get(c, key);
    int64_t n = dflt;
    if (!fmi_absent(v)) {
        if (!fm_json_is(v, FM_JSON_INT))
            return fm_fail(FM_EINVAL, "%s: config field '%s' must be an integer", what, key);
        n = fm_json_int(v, 0);
    } else if (dflt < 0) {
        return fm_fail(FM_EINVAL, "%s: config field '%s' is missing", what, key);
    }
    if (n < low || n > high)
        return fm_fail(FM_EINVAL, "%s: config field '%s' is %lld, allowed are %lld to %lld", what,
                       key, (long long)n, (long long)low, (long long)high);
    *out = (uint32_t)n;
    return FM_OK;
}

fm_status fmi_take_positive(double *out, const fm_json *c, const char *key, double dflt,
                            const char *what)
{
    const fm_json *v = fm_json_get(c, key);
    double x = dflt;
    if (!fmi_absent(v)) {
        if (!fm_json_is(v, FM_JSON_INT) && !fm_json_is(v, FM_JSON_REAL))
            return fm_fail(FM_EINVAL, "%s: config field '%s' must be a number", what, key);
        x = fm_json_real(v, 0);
    }
    if (!(x > 0.0 && x <= 1e12))
        return fm_fail(FM_EINVAL, "%s: config field '%s' must be a positive number", what, key);
    *out = x;
    return FM_OK;
}

fm_status fmi_take_bool(bool *out, const fm_json *c, const char *key, bool dflt, const char *what)
{
    const fm_json *v = fm_json_get(c, key);
    if (!fmi_absent(v) && !fm_json_is(v, FM_JSON_BOOL))
        return fm_fail(FM_EINVAL, "%s: config field '%s' must be true or false", what, key);
    *out = fm_json_bool(v, dflt);
    return FM_OK;
}
