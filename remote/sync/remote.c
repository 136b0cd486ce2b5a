/* remote.c - opens and closes a remote; its refs. */
#include <string.h>

#include "remote/githost/githost.h"
#include "remote/sync/sync.h"
#include "store/base/mem.h"

static fm_status parse(fmr_url *url, fmr_url *packs, const char *url_text, const char *packs_text)
{
    memset(packs, 0, sizeof *packs);
    FM_TRY(fmr_url_parse(url, url_text));
    if (!packs_text)
        return url->scheme == FMR_GIT
                   ? fm_fail(FM_EINVAL,
                             "%s: a git host has the lineage alone; --packs URL names the bucket "
                             "that has the tensors",
                             url->text)
                   : FM_OK;
    FM_TRY(fmr_url_parse(packs, packs_text));
    return fmr_githost_check(url, packs);
}

fm_status fm_remote_check_url(const char *url, const char *packs)
{
    fmr_url u = {0}, p;
    const fm_status rc = parse(&u, &p, url, packs);
    fmr_url_release(&u);
    fmr_url_release(&p);
    return rc;
}

fm_status fm_remote_open(fm_remote **out, const fm_remote_opts *opts)
{
    fmr_url packs;
    *out = NULL;
    fm_remote *m = fm_calloc(1, sizeof *m);
    if (!m)
        return FM_ENOMEM;
    const fmr_open_opts how = {opts->ssh, opts->program, opts->ca_file};
    const fmr_service service = opts->write ? FMR_WRITE : FMR_READ;
    fm_status rc = parse(&m->url, &packs, opts->url, opts->packs);
    if (rc == FM_OK)
        rc = opts->packs ? fmr_open_githost(&m->far, opts->url, &packs, service, &how)
                         : fmr_open(&m->far, &m->url, service, &how);
    if (rc == FM_OK && opts->packs) {
        m->packs = packs.text;
        packs.text = NULL;
    }
    fmr_url_release(&packs);
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
    fm_free(m->packs);
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
