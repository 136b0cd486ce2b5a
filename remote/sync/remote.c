/* remote.c - opens and closes a remote; its refs. */
#include "remote/link/open.h"
#include "remote/sync/sync.h"
#include "store/base/mem.h"

fm_status fm_remote_check_url(const char *text)
{
    fmr_url u;
    FM_TRY(fmr_url_parse(&u, text));
    fmr_url_release(&u);
    return FM_OK;
}

fm_status fm_remote_open(fm_remote **out, const fm_remote_opts *opts)
{
    *out = NULL;
    fm_remote *m = fm_calloc(1, sizeof *m);
    if (!m)
        return FM_ENOMEM;
    const fmr_open_opts how = {opts->ssh, opts->program, opts->ca_file};
    fm_status rc = fmr_url_parse(&m->url, opts->url);
    FM_THEN(rc, fmr_open(&m->far, &m->url, opts->write ? FMR_WRITE : FMR_READ, &how));
    if (rc != FM_OK) {
        fm_remote_close(m);
        return rc;
    }
    *out = m;
    return FM_OK;
}

void fm_remote_close(fm_remote *m)
{
    fm_error_state text;
    if (!m)
        return;
    fm_error_save(&text);
    if (m->far)
        m->far->ops->close(m->far);
    fmr_url_release(&m->url);
    fm_free(m);
    fm_error_restore(&text);
}

const char *fm_remote_url(const fm_remote *m)
{
    return m->url.text;
}

fm_status fm_remote_refs(fm_remote *m, fm_exchange_ref_fn fn, void *ctx)
{
    return m->far->ops->refs(m->far, fn, ctx);
}
