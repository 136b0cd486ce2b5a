/* job.c - jobs, for all parts of a run: the error of one case, many generations. */
#include "store/base/mem.h"
#include "testing/run/run.h"

fm_status fmv_case_error(fmv_job *j, fm_status rc)
{
    if (rc == FM_ENOMEM || rc == FM_ECANCELLED)
        return rc;
    fm_free(j->result->detail);
    fm_json_free(j->result->metrics);
    j->result->metrics = NULL;
    j->broken = true;
    j->result->verdict = FM_ERROR_CASE;
    j->result->detail = fm_strdup(fm_error_text());
    fm_error_clear();
    return j->result->detail ? FM_OK : FM_ENOMEM;
}

#define GENERATIONS_AT_ONCE 4096 /* the scheduler's queue is bounded */

fm_status fmv_generate_all(fm_engine *e, const fm_gen_request *req, fm_gen_result *const *to,
                           size_t n)
{
    fm_gen_result *out = fm_calloc(FM_MIN(n, (size_t)GENERATIONS_AT_ONCE), sizeof *out);
    fm_status rc = out ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i += GENERATIONS_AT_ONCE) {
        size_t some = FM_MIN(n - i, (size_t)GENERATIONS_AT_ONCE);
        rc = fm_generate(e, req + i, some, out);
        for (size_t k = 0; rc == FM_OK && k < some; k++) {
            fm_gen_result_release(to[i + k]);
            *to[i + k] = out[k];
        }
    }
    fm_free(out);
    return rc;
}
