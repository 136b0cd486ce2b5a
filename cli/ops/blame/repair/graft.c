/* graft.c - makes repair candidates that take or mix tensors of the guilty step's parent. */
#include "cli/ops/blame/repair/fix.h"
#include "cli/ops/base/say.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/interpolate.h"

enum { HALVINGS = 6 };

/* Whether e is factor A or B (`which`) of a low-rank term. */
static bool is_factor(const fm_entry *e, char which)
{
    char word[16];
    snprintf(word, sizeof word, ".lora_%c.", which);
    return strstr(e->name, word) != NULL;
}

/* Checks that no later step changed the entry too. */
static fm_status still_there(const fm_tree *tree, const fm_change *ch)
{
    const fm_entry *e = fm_tree_find(tree, (ch->b ? ch->b : ch->a)->path);
    if (ch->b ? e && fm_digest_eq(&e->id, &ch->b->id) : !e)
        return FM_OK;
    return fm_fail(FM_EUNSUPPORTED, "a later step changed %s too", (ch->b ? ch->b : ch->a)->path);
}

/* parent + alpha (child - parent), each product and sum in double, rounded once. */
static fm_status mix_entry(fm_tree *tree, fmo_blame_overlay *made, const fm_entry *a,
                           const fm_entry *b, double alpha)
{
    float *x = NULL, *y = NULL;
    uint64_t n = 0;
    fm_status rc = fm_shape_elems(&n, &b->shape);
    FM_THEN(rc, fmo_blame_read_f32(&made->store, b, &y));
    if (rc == FM_OK && a)
        rc = fmo_blame_read_f32(&made->store, a, &x);
    for (uint64_t i = 0; rc == FM_OK && i < n; i++) {
        double from = x ? (double)x[i] : 0;
        y[i] = (float)(from + alpha * ((double)y[i] - from));
    }
    FM_THEN(rc, fmo_blame_overlay_put(made, tree, b, y));
    fm_free(x);
    fm_free(y);
    return rc;
}

/* alpha 0 takes the parent's entry without arithmetic. */
fm_status fmo_blame_graft_entry(fm_tree *tree, fmo_blame_overlay *made, const fm_entry *a,
                                const fm_entry *b, double alpha)
{
    if (alpha <= 0)
        return a ? fm_tree_put_entry(tree, a) : fm_tree_remove(tree, b->path);
    bool both = a && b && a->dtype == b->dtype && fmo_blame_can_compute(b) &&
                fm_shape_eq(&a->shape, &b->shape);
    bool added = !a && fmo_blame_can_compute(b);
    if (added && is_factor(b, 'A'))
        return FM_OK;
    if (both || (added && is_factor(b, 'B')))
        return mix_entry(tree, made, a, b, alpha);
    return fm_fail(FM_EUNSUPPORTED, "%s has no values between the parent's and its own",
                   (b ? b : a)->path);
}

static fm_status graft_change(fmo_blame_candidate *k, const fm_change *ch, double alpha)
{
    FM_TRY(still_there(k->tree, ch));
    return fmo_blame_graft_entry(k->tree, k->made, ch->a, ch->b, alpha);
}

/* Gives the candidate an empty, open overlay. */
fm_status fmo_blame_candidate_clear(fmo_blame_more *m, fmo_blame_candidate *k)
{
    if (k->made)
        fmo_blame_overlay_release(k->made);
    else if (!(k->made = fm_calloc(1, sizeof *k->made)))
        return FM_ENOMEM;
    fmo_blame_overlay_open(k->made, m->b);
    return FM_OK;
}

fm_status fmo_blame_graft(fmo_blame_more *m, fmo_blame_candidate *k, double alpha)
{
    fmo_blame *b = m->b;
    fm_tree_free(k->tree);
    k->tree = NULL;
    fm_status rc = fmo_blame_candidate_clear(m, k);
    FM_THEN(rc, fm_version_tree(b->c->repo, &k->tree, &b->version[0].commit.oid));
    for (size_t u = 0; rc == FM_OK && u < b->unit_count; u++)
        for (size_t i = 0; rc == FM_OK && (k->whole || b->repair.take[u]) && i < b->unit[u].count;
             i++)
            rc = graft_change(k, b->unit[u].change[i], alpha);
    return rc == FM_OK && alpha <= 0 ? fmo_blame_close_gaps(k->tree) : rc;
}

typedef struct mixing {
    fmo_blame_more *m;
    fmo_blame_candidate *k;
} mixing;

static fm_status passes_at(void *ctx, double alpha, bool *passes)
{
    const mixing *x = ctx;
    fm_verdict v = FM_ERROR_CASE;
    double margin = NAN;
    (void)fmo_ui_progress(x->m->b->c, 0, 0, "repair: the tensors at %.3f of the way to the child",
                          alpha);
    *passes = false;
    if (alpha >= 1) /* the version itself, which fails */
        return FM_OK;
    fm_status rc = fmo_blame_graft(x->m, x->k, alpha);
    FM_THEN(rc, fmo_blame_try(x->m, x->k->tree, x->k->made, "mixture", &v, &margin));
    *passes = v == FM_PASS;
    return rc;
}

/* Sets k->alpha and leaves its tree in k. */
fm_status fmo_blame_reweight(fmo_blame_more *m, fmo_blame_candidate *k)
{
    mixing x = {m, k};
    fm_interpolation a;
    fm_status rc = fm_blame_interpolate(&a, HALVINGS, passes_at, &x);
    if (rc == FM_OK && !a.found)
        rc = fm_fail(FM_EUNSUPPORTED, "the case fails with the parent's tensors too");
    if (rc == FM_OK && a.alpha <= 0)
        rc = fm_fail(FM_EUNSUPPORTED, "nothing of the change can stay; see the reverted set");
    FM_THEN(rc, fmo_blame_graft(m, k, a.alpha));
    k->alpha = a.alpha;
    return rc;
}

fm_json *fmo_blame_graft_recipe(const fmo_blame_more *m, const fmo_blame_candidate *k)
{
    const fmo_blame *b = m->b;
    const fm_version *culprit = &b->version[b->history.culprit].commit;
    char hex[41];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *list = fm_json_new_array();
    for (size_t u = 0; u < b->unit_count; u++)
        for (size_t i = 0; (k->whole || b->repair.take[u]) && i < b->unit[u].count; i++) {
            const fm_change *ch = b->unit[u].change[i];
            const fm_entry *e = ch->b ? ch->b : ch->a;
            if (k->alpha > 0 && !ch->a && is_factor(e, 'A'))
                continue;
            fm_json_push_to(&rc, list, fm_json_new_str(e->path));
        }
    fm_json_put(&rc, o, "format", fm_json_new_int(1));
    fm_json_put(&rc, o, "operation", fm_json_new_str("graft"));
    fm_json_put(&rc, o, "engine", fm_json_new_str("fmstore " FM_VERSION));
    fm_oid_hex(&b->version[0].commit.oid, hex);
    fm_json_put(&rc, o, "version", fm_json_new_str(hex));
    fm_oid_hex(&culprit->parent[0], hex);
    fm_json_put(&rc, o, "from", fm_json_new_str(hex));
    fm_oid_hex(&culprit->oid, hex);
    fm_json_put(&rc, o, "step", fm_json_new_str(hex));
    fm_json_put(&rc, o, "alpha", fm_json_new_real(k->alpha));
    fm_json_put(&rc, o, "tensors", list);
    fm_json_put(&rc, o, "repairs", fm_json_new_str(m->case_spec));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}
