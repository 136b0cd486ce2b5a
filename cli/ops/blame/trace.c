/* trace.c - finds the layer and token at which the answer turns: runs the child with the parent's
 * states and the parent with the child's (infer/trace.h). */
#include "cli/ops/blame/blame_more.h"
#include "cli/ops/base/say.h"

#include <string.h>

#include "store/base/mem.h"

enum { ROWS_MAX = 12000 }; /* limit of rows in one direction; beyond it tokens are joined */

typedef struct texts {
    fm_ids wrong, right;
} texts;

static fm_status say_no(fmo_blame_more *m, fm_status rc)
{
    if (rc != FM_EUNSUPPORTED && rc != FM_EINVAL && rc != FM_ELIMIT)
        return rc;
    m->grids.why_not = fm_strdup(fm_error_text());
    fm_error_clear();
    return m->grids.why_not ? FM_OK : FM_ENOMEM;
}

/* Makes both texts, of the same tokens for both models. If one text begins with the other, both get
 * an end token. */
static fm_status open_texts(const fmo_blame_more *m, fm_model *child, fm_model *parent, texts *t)
{
    fm_ids other = {0};
    size_t prompt = 0;
    const fm_arch *a = fm_model_arch(child);
    const fm_suite *s = m->b->suite;
    const size_t at = m->b->case_index;
    fm_status rc = fm_suite_case_answer(&t->wrong, &prompt, s, at, child, m->answers.wrong);
    FM_THEN(rc, fm_suite_case_answer(&t->right, &prompt, s, at, child, m->answers.right));
    FM_THEN(rc, fm_suite_case_answer(&other, &prompt, s, at, parent, m->answers.wrong));
    if (rc == FM_OK && (other.count != t->wrong.count ||
                        memcmp(other.id, t->wrong.id, other.count * sizeof *other.id) != 0))
        rc = fm_fail(FM_EUNSUPPORTED, "parent and child turn the case into other tokens");
    size_t shorter = FM_MIN(t->wrong.count, t->right.count);
    if (rc == FM_OK && memcmp(t->wrong.id, t->right.id, shorter * sizeof *other.id) == 0 &&
        a->eos_count) {
        rc = fm_ids_push(&t->wrong, a->eos[0]);
        FM_THEN(rc, fm_ids_push(&t->right, a->eos[0]));
    }
    fm_ids_release(&other);
    return rc;
}

static bool show(void *ctx, uint64_t done, uint64_t total)
{
    return fmo_ui_progress(ctx, done, total, "trace: %.0f %%",
                           100.0 * (double)done / (double)total);
}

static fm_status grid(fmo_blame_more *m, fm_model *to, fm_model *from, const texts *t,
                      fm_trace *out)
{
    const fm_trace_ask ask = {.to = to,
                              .from = from,
                              .wrong = t->wrong.id,
                              .wrong_len = t->wrong.count,
                              .right = t->right.id,
                              .right_len = t->right.count,
                              .sites = (1u << FM_SITES) - 1,
                              .rows_max = ROWS_MAX,
                              .progress = show,
                              .ctx = m->b->c};
    m->runs++;
    return fm_trace_grid(out, &ask);
}

static fm_status name_tokens(fmo_blame_more *m, const fm_model *model, const texts *t)
{
    fmo_blame_grids *g = &m->grids;
    const fm_tokenizer *tok = fm_model_tokenizer(model);
    g->token = fm_calloc(g->grid[0].common, sizeof *g->token);
    if (!g->token)
        return FM_ENOMEM;
    fm_status rc = FM_OK;
    for (uint32_t i = 0; rc == FM_OK && i < g->grid[0].common; i++) {
        fm_buf text;
        fm_buf_init(&text, 0);
        rc = fm_tokenizer_decode(tok, &t->wrong.id[i], 1, false, &text);
        if (rc == FM_OK && !(g->token[i] = fm_strdup(fm_buf_cstr(&text))))
            rc = FM_ENOMEM;
        fm_buf_release(&text);
    }
    return rc;
}

static fm_status trace_models(fmo_blame_more *m, fm_model *child, fm_model *parent)
{
    texts t = {0};
    fm_status rc = open_texts(m, child, parent, &t);
    FM_THEN(rc, grid(m, child, parent, &t, &m->grids.grid[0]));
    FM_THEN(rc, grid(m, parent, child, &t, &m->grids.grid[1]));
    FM_THEN(rc, name_tokens(m, child, &t));
    m->grids.done = rc == FM_OK;
    fm_ids_release(&t.wrong);
    fm_ids_release(&t.right);
    return say_no(m, rc);
}

fm_status fmo_blame_trace(fmo_blame_more *m)
{
    fmo_blame *b = m->b;
    double began = fm_now_s();
    fm_model *child = NULL, *parent = NULL;
    FM_TRY(fmo_blame_open_culprit(b));
    if (!b->parent || !m->answers.wrong || !m->answers.right) {
        m->grids.why_not = fm_strdup(b->parent ? "there is no right answer to compare with"
                                               : "the version has no parent");
        return m->grids.why_not ? FM_OK : FM_ENOMEM;
    }
    fm_status rc = fm_ops_load_model(b->c, b->parent, "parent", &parent);
    FM_THEN(rc, fm_ops_load_model(b->c, b->child, "child", &child));
    FM_THEN(rc, trace_models(m, child, parent));
    fmo_ui_progress_end(b->c);
    fm_model_close(child);
    fm_model_close(parent);
    m->grids.seconds = fm_now_s() - began;
    m->seconds += m->grids.seconds;
    return rc;
}
