/* hooks.c - rows of hidden states read and replaced on their way through a pass. */
#include "infer/step.h"

#include "store/base/mem.h"

fm_status fm_seq_hooks(fm_seq *s, const fm_hook *hook, size_t n)
{
    const fm_arch *a = &s->model->arch;
    if (a->sw.encoder && n)
        return fm_fail(FM_EINVAL, "hooks: %s is an encoder, hooks are for decoders", a->family);
    if (!s->uncached && s->len && n)
        return fm_fail(FM_EINVAL,
                       "hooks: the sequence has %u tokens that ran without; open a new "
                       "one",
                       s->len);
    for (size_t i = 0; i < n; i++) {
        const fm_hook *k = &hook[i];
        uint32_t layers = a->layers + (k->site == FM_SITE_RESIDUAL);
        if ((unsigned)k->site >= FM_SITES || k->layer >= layers)
            return fm_fail(FM_EINVAL, "hook %zu: no site %d of layer %u, the model has %u layers",
                           i, (int)k->site, k->layer, a->layers);
    }
    if (n)
        s->uncached = true;
    s->hook = n ? hook : NULL;
    s->hooks = n;
    return FM_OK;
}

fm_status fmi_find_hooked(fmi_step *s, const fm_row *rows, uint32_t n)
{
    bool any = false;
    s->hooked_count = 0;
    for (uint32_t i = 0; i < s->seqs; i++)
        any = any || s->seq[i]->hooks;
    if (!any)
        return FM_OK;
    fm_status rc = fm_grow(&s->hooked, &s->hooked_cap, n, sizeof *s->hooked);
    for (uint32_t i = 0; rc == FM_OK && i < n; i++) {
        const fm_seq *q = rows[s->order[i]].seq;
        if (q->hooks)
            s->hooked[s->hooked_count++] = (fmi_hooked){q, i, s->pos[s->order[i]] - q->base};
    }
    return rc;
}

/* Rows of sequences with hooks begin at layer 0 and so are the last of a pass. */
fm_status fmi_run_hooks(fmi_pass *p, fm_site site, uint32_t layer, float *x)
{
    fm_backend *be = p->e->be;
    size_t h = p->g->hidden, bytes = h * sizeof(float);
    uint32_t first = p->row0 + p->rows - p->m;
    fm_status rc = FM_OK;
    for (uint32_t i = 0; i < p->s->hooked_count; i++) {
        const fmi_hooked *w = &p->s->hooked[i];
        if (w->row < first || w->row >= p->row0 + p->rows)
            continue;
        float *row = x + (size_t)(w->row - first) * h;
        for (size_t j = 0; j < w->seq->hooks && rc == FM_OK; j++) {
            const fm_hook *k = &w->seq->hook[j];
            if (k->site != site || k->layer != layer || w->token < k->token ||
                w->token - k->token >= k->tokens)
                continue;
            size_t at = (size_t)(w->token - k->token) * h;
            if (k->read)
                rc = be->download(be, k->read + at, row, bytes);
            if (rc == FM_OK && k->write)
                rc = be->upload(be, row, k->write + at, bytes);
        }
    }
    return rc;
}
