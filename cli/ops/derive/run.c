/* run.c - the operation: makes a family of the options and derives it, over all ranks. */
#include "cli/ops/derive.h"

#include <string.h>

#include "cli/ops/base/ranks.h"
#include "cli/ops/derive/family.h"
#include "store/base/mem.h"

/* Chooses the compute mode, which the recipe records: file and command line must agree. */
static fm_status choose_mode(fm_ops *c, const fmo_family *f, const char *word)
{
    const char *mode = fmo_family_mode(f);
    if (mode && word && strcmp(mode, word) != 0)
        return fm_fail(FM_EINVAL, "--mode %s, but the family file says mode: %s", word, mode);
    if (word || mode)
        c->mode = word ? word : mode;
    if (c->engine && c->mode && strcmp(c->mode, fm_engine_mode(c->engine)) != 0)
        return fm_fail(FM_EINVAL,
                       "the handle's engine computes in mode %s, not %s; use another handle",
                       fm_engine_mode(c->engine), c->mode);
    return FM_OK;
}

/* Gives each rank one shard of a step, unless the file or --set has another number. */
static fm_status share_over_ranks(fm_ops *c, fmo_family *f)
{
    uint32_t ranks = fmo_ranks_count(c);
    if (c->split > 1)
        return fm_fail(FM_EUNSUPPORTED,
                       "training deals whole layers to stages and does not split them; leave "
                       "--tensor-parallel-size out");
    if (ranks <= 1)
        return FM_OK;
    for (size_t i = 0; i < f->count; i++)
        if (f->child[i].config.shards == 1)
            f->child[i].config.shards = ranks;
    c->split_batches = true;
    return FM_OK;
}

/* Checks the options before anything is read. */
static fm_status check_opts(const fm_derive_opts *o)
{
    bool own = o->parent || o->config_dir || o->name || o->method || o->message || o->teacher ||
               o->eval || o->skip || o->data.count || o->set.count || o->suites.count;
    if (o->family_file)
        return own ? fm_fail(FM_EINVAL, "%s says itself what the children are", o->family_file)
                   : FM_OK;
    if (!o->name || o->data.count == 0 || !o->parent == !o->config_dir)
        return fm_fail(FM_EINVAL, "a derivation wants a name, data, and a parent or a folder to "
                                  "pretrain from");
    return FM_OK;
}

fm_status fm_ops_derive(fm_ops *c, const fm_derive_opts *opts, fm_derive_result *out)
{
    fmo_family f = {0};
    fm_derive_result own;
    uint32_t ranks = 0;
    const char *mode = c->mode;
    if (!out)
        out = &own;
    memset(out, 0, sizeof *out);
    c->stopped = false;
    fm_status rc = check_opts(opts);
    FM_THEN(rc, opts->family_file ? fmo_family_read(&f, opts->family_file)
                                  : fmo_family_of_opts(&f, opts));
    FM_THEN(rc, choose_mode(c, &f, opts->mode));
    if (rc == FM_OK && !opts->plan && !opts->check_data) {
        rc = share_over_ranks(c, &f);
    } else { /* one rank can plan and check data */
        ranks = c->ranks;
        c->ranks = 0;
    }
    FM_THEN(rc, fm_ops_lease(c, true, "derive"));
    FM_THEN(rc, fmo_family_derive(c, &f, opts, ranks, out));
    c->mode = mode; /* the text of the file is freed next */
    fmo_family_release(&f);
    if (out == &own)
        fm_derive_result_release(out);
    return rc;
}

void fm_derive_result_release(fm_derive_result *r)
{
    for (size_t i = 0; i < r->count; i++)
        fm_free(r->item[i].name);
    fm_free(r->item);
    memset(r, 0, sizeof *r);
}
