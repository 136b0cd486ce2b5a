/* quarantine.c - cases whose verdict has changed with the seed; records of them are kept with the
 * results.
 *
 * The key of a record is made from the case's digest alone: the same question with the same
 * sampling is as unsteady on the next version, and a changed case begins anew. Only cases that
 * sample have a record. A record is never deleted, so lifting writes another one. */
#include <string.h>

#include "testing/suite/internal.h"

#define REPEATS_MAX 1000000.0

static fm_status key_of(char out[65], const fm_suite *s, size_t i)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest key;
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_digest_hex(&s->cases[i].digest, hex);
    fm_buf_printf(&text, "{\"case\":\"%s\",\"quarantine\":1}", hex);
    fm_status rc = fm_buf_ok(&text);
    FM_THEN(rc, fm_sha256(&key, text.data, text.len));
    if (rc == FM_OK)
        fm_digest_hex(&key, out);
    fm_buf_release(&text);
    return rc;
}

/* Reads a record. A merged history may hold any text here; what is no record counts as none. */
static fm_quarantine record_of(fm_span text)
{
    fm_json *o = NULL;
    fm_quarantine q = {0};
    if (fm_json_parse(&o, text, "kept quarantine") < 0)
        fm_error_clear();
    double repeats = fm_json_real(fm_json_get(o, "repeats"), 0);
    double passed = fm_json_real(fm_json_get(o, "passed"), 0);
    if (fm_json_bool(fm_json_get(o, "quarantined"), false) && passed >= 0 && passed <= repeats &&
        repeats >= 2 && repeats <= REPEATS_MAX)
        q = (fm_quarantine){.on = true, .repeats = (uint32_t)repeats, .passed = (uint32_t)passed};
    fm_json_free(o);
    return q;
}

fm_status fm_quarantine_read(fm_quarantine *out, const fm_suite *s, size_t i,
                             const fm_result_cache *kept)
{
    char key[65];
    fm_buf text;
    fm_assert(i < s->count);
    *out = (fm_quarantine){0};
    if (!kept || !kept->get || !fmv_case_samples(&s->cases[i]))
        return FM_OK;
    fm_buf_init(&text, 0);
    fm_status rc = key_of(key, s, i);
    FM_THEN(rc, kept->get(kept->ctx, &text, key));
    if (rc == FM_OK)
        *out = record_of(fm_buf_span(&text));
    if (rc == FM_ENOTFOUND || rc == FM_ECORRUPT) {
        fm_error_clear();
        rc = FM_OK;
    }
    fm_buf_release(&text);
    return rc;
}

static fm_status write(const fm_suite *s, size_t i, const fm_quarantine *q,
                       const fm_result_cache *kept)
{
    char key[65];
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_buf_printf(&text, "{\"passed\":%u,\"quarantined\":%s,\"repeats\":%u}", q->passed,
                  q->on ? "true" : "false", q->repeats);
    fm_status rc = fm_buf_ok(&text);
    FM_THEN(rc, key_of(key, s, i));
    FM_THEN(rc, kept->put(kept->ctx, key, fm_buf_span(&text)));
    fm_buf_release(&text);
    return rc;
}

fm_status fm_quarantine_note(const fm_suite_run *run, const fm_result_cache *kept)
{
    for (size_t i = 0; kept && kept->put && i < run->count; i++) {
        const fm_case_result *r = &run->result[i];
        const fm_quarantine q = {true, r->repeats, r->repeats_passed};
        if (r->flaky && !r->quarantined)
            FM_TRY(write(run->suite, r->at, &q, kept));
    }
    return FM_OK;
}

fm_status fm_quarantine_apply(fm_suite_run *run, const fm_result_cache *kept)
{
    bool any = false;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < run->count; i++) {
        fm_case_result *r = &run->result[i];
        fm_quarantine q = {0};
        if (!r->repeats) /* else this run has repeated it */
            rc = fm_quarantine_read(&q, run->suite, r->at, kept);
        if (rc < 0 || !q.on || r->verdict == FM_ERROR_CASE)
            continue;
        r->flaky = r->quarantined = any = true;
        r->repeats = q.repeats;
        r->repeats_passed = q.passed;
    }
    if (!any)
        return rc;
    fmv_run_count(run);
    return rc == FM_OK ? fmv_measures_take(run) : rc;
}

fm_status fm_quarantine_lift(const fm_suite *s, size_t i, const fm_result_cache *kept, bool *was)
{
    fm_quarantine q;
    fm_status rc = fm_quarantine_read(&q, s, i, kept);
    *was = q.on;
    q.on = false;
    return rc == FM_OK && *was ? write(s, i, &q, kept) : rc;
}
