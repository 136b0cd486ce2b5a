/* mixtures.c - makes the guilty step's child with some units set back to the parent's, and runs
 * it. */
#include <string.h>

#include "cli/ops/blame/blame.h"
#include "store/base/math/hash.h"
#include "store/base/mem.h"

fm_status fmo_blame_mixture(const fmo_blame *b, const fm_tree *from, const bool *take,
                            fm_tree **out)
{
    FM_TRY(fm_tree_copy(out, from));
    for (size_t u = 0; u < b->unit_count; u++) {
        for (size_t i = 0; !take[u] && i < b->unit[u].count; i++) {
            const fm_change *ch = b->unit[u].change[i];
            FM_TRY(ch->a ? fm_tree_put_entry(*out, ch->a) : fm_tree_remove(*out, ch->b->path));
        }
    }
    return fmo_blame_close_gaps(*out);
}

/* Names a mixture for `noise`. */
static fm_status mixture_id(const fmo_blame *b, const bool *take, uint64_t *out)
{
    fm_digest d;
    FM_TRY(fm_sha256(&d, take, b->unit_count * sizeof *take));
    memcpy(out, d.b, sizeof *out);
    return FM_OK;
}

fm_status fmo_blame_run_mixtures(fmo_blame *b, const bool *take, const uint32_t *repeat, size_t n,
                                 fmo_blame_heard *heard)
{
    fm_tree **tree = fm_calloc(n, sizeof *tree);
    fmo_blame_question *q = fm_calloc(n, sizeof *q);
    fm_status rc = tree && q ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const bool *row = take + i * b->unit_count;
        q[i] = (fmo_blame_question){.what = "a mixture of parent and child", .repeat = repeat[i]};
        rc = mixture_id(b, row, &q[i].id);
        FM_THEN(rc, fmo_blame_mixture(b, b->child, row, &tree[i]));
        q[i].tree = tree[i];
    }
    FM_THEN(rc, fmo_blame_ask(b, q, n, heard));
    for (size_t i = 0; tree && i < n; i++)
        fm_tree_free(tree[i]);
    fm_free(tree);
    fm_free(q);
    return rc;
}
