/* seq_open.c - opens sequences: the first one of a model computes its virtual positions, and either
 * all ranks open a sequence or none does. */
#include "infer/engine/engine.h"

static fm_status open_seq(fm_seq **out, fm_model *m)
{
    FM_TRY(m->virtual_len ? fmi_virtual_ready(m) : FM_OK);
    return fmi_seq_new(out, m);
}

static fm_status open_logged(fm_seq **out, fm_model *m, const fmi_engine_log *log)
{
    bool met = false;
    FM_TRY(log->open(m));

    fm_status rc = open_seq(out, m);
    rc = log->opened(m, *out, rc, &met);
    if (rc == FM_OK)
        return rc;
    fm_seq_close(*out);
    *out = NULL;
    if (met) /* another rank may lack the virtual positions: all compute them again */
        fmi_virtual_drop(m);
    return rc;
}

fm_status fm_seq_open(fm_seq **out, fm_model *m)
{
    *out = NULL;
    if (fm_engine_batch_stages(m->engine) > 1)
        return fm_fail(FM_EUNSUPPORTED, "an engine that trains over stages has some layers alone "
                                        "and cannot answer");
    const fmi_engine_log *log = m->engine->log;
    return log ? open_logged(out, m, log) : open_seq(out, m);
}
