/* blame.c - functions that the parts of a blame share: they run the case on many trees and open the
 * guilty step. */
#include "cli/ops/blame/blame.h"
#include "cli/ops/base/say.h"

#include <math.h>
#include <string.h>

#include "store/base/math/hash.h"
#include "store/base/map.h"
#include "store/base/mem.h"

#define MODELS_AT_ONCE 16u
#define ASKS_AT_ONCE 256u
#define BYTES_AT_ONCE ((uint64_t)8 << 30) /* distinct tensors of a batch's models */

/* ---- running the case ---- */

char fmo_blame_letter(char c)
{
    char low = c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
    bool word = (low >= 'a' && low <= 'z') || (low >= '0' && low <= '9') || (uint8_t)low >= 0x80;
    return word ? low : 0;
}

/* A digest of the answer's letters and digits. A case without an answer (a log-probability) can
 * fail in one way only: 1. */
static fm_status answer_digest(const fm_case_result *r, uint64_t *out)
{
    fm_buf words;
    fm_digest d;
    *out = 1;
    if (!r->answer)
        return FM_OK;
    fm_buf_init(&words, 0);
    for (const char *p = r->answer; *p; p++) {
        char c = fmo_blame_letter(*p);
        if (c)
            fm_buf_append(&words, &c, 1);
    }
    fm_status rc = fm_buf_ok(&words);
    FM_THEN(rc, fm_sha256(&d, words.data, words.len));
    if (rc == FM_OK)
        memcpy(out, d.b, sizeof *out);
    *out += *out == 0;
    fm_buf_release(&words);
    return rc;
}

static fm_status hear(const fm_case_result *r, fmo_blame_heard *out)
{
    *out = (fmo_blame_heard){.verdict = r->verdict, .score = r->score};
    out->output = r->output ? fm_strdup(r->output) : NULL;
    out->text = r->answer ? fm_strdup(r->answer) : NULL;
    if (r->verdict == FM_ERROR_CASE && !out->output && r->detail)
        out->output = fm_strdup(r->detail);
    return answer_digest(r, &out->answer);
}

void fmo_blame_heard_release(fmo_blame_heard *h, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fm_free(h[i].output);
        fm_free(h[i].text);
    }
    memset(h, 0, n * sizeof *h);
}

/* Counts the bytes of a tree's tensors that are not in `seen`, and adds them to it. */
static fm_status new_bytes(fm_map *seen, const fm_tree *tree, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind != FM_ENTRY_TENSOR || fm_map_has(seen, e->id.b, sizeof e->id.b))
            continue;
        *out += e->bytes;
        FM_TRY(fm_map_put(seen, e->id.b, sizeof e->id.b, seen, NULL));
    }
    return FM_OK;
}

/* The models of a batch, one for each tree. */
typedef struct loaded {
    fm_model *model[MODELS_AT_ONCE];
    const fm_tree *tree[MODELS_AT_ONCE];
    bool refused[MODELS_AT_ONCE];
    char *why[MODELS_AT_ONCE];
    size_t count;
} loaded;

static fm_status load(fmo_blame *b, loaded *l, const fmo_blame_question *q, size_t *at)
{
    for (*at = 0; *at < l->count; ++*at)
        if (l->tree[*at] == q->tree)
            return FM_OK;
    fm_assert(l->count < MODELS_AT_ONCE);
    size_t k = l->count++;
    l->tree[k] = q->tree;
    (void)fmo_ui_progress(b->c, 0, 0, "asking %s", q->what);
    if (b->c->stopped)
        return fmo_ui_go_on(b->c);
    fm_status rc = q->provider
                       ? fm_model_load(&l->model[k], b->c->engine, q->tree, q->provider, q->what)
                       : fm_ops_load_model(b->c, q->tree, q->what, &l->model[k]);
    if (rc == FM_EUNSUPPORTED) {
        l->refused[k] = true;
        l->why[k] = fm_strdup(fm_error_text());
        fm_error_clear();
        rc = l->why[k] ? FM_OK : FM_ENOMEM;
    }
    return rc;
}

static void unload(loaded *l)
{
    for (size_t i = 0; i < l->count; i++) {
        fm_model_close(l->model[i]);
        fm_free(l->why[i]);
    }
}

/* Sets the score of results that have none to the margin. */
static fm_status add_margins(const fmo_blame *b, const fmo_blame_question *q,
                             const fm_suite_ask *ask, const size_t *of, size_t n,
                             fmo_blame_heard *out)
{
    fm_model **model = fm_calloc(n, sizeof *model);
    double *margin = fm_calloc(n, sizeof *margin);
    size_t *at = fm_calloc(n, sizeof *at), some = 0;
    fm_status rc = model && margin && at ? FM_OK : FM_ENOMEM;
    for (size_t k = 0; rc == FM_OK && k < n; k++)
        if (!q[of[k]].suite && isnan(out[of[k]].score)) {
            at[some] = of[k];
            model[some++] = ask[k].model;
        }
    if (rc == FM_OK && some)
        rc = fmo_blame_margins(b, model, some, margin);
    for (size_t k = 0; rc == FM_OK && k < some; k++)
        out[at[k]].score = margin[k];
    fm_free(model);
    fm_free(margin);
    fm_free(at);
    return rc;
}

static fm_status ask_batch(fmo_blame *b, const fmo_blame_question *q, size_t n,
                           fmo_blame_heard *out)
{
    loaded l = {.count = 0};
    fm_suite_ask *ask = fm_calloc(n, sizeof *ask);
    fm_suite_run *run = fm_calloc(n, sizeof *run);
    size_t *of = fm_calloc(n, sizeof *of), asks = 0, at;
    fm_result_cache cache = fmo_suite_cache(b->c);
    fm_status rc = ask && run && of ? fm_ops_engine(b->c) : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        rc = load(b, &l, &q[i], &at);
        if (rc == FM_OK && l.refused[at]) {
            out[i] = (fmo_blame_heard){.verdict = FM_ERROR_CASE, .score = NAN};
            rc = (out[i].output = fm_strdup(l.why[at])) ? FM_OK : FM_ENOMEM;
        } else if (rc == FM_OK) {
            const char *own = fm_suite_case_name(b->suite, b->case_index);
            of[asks] = i;
            ask[asks++] = (fm_suite_ask){.suite = q[i].suite ? q[i].suite : b->suite,
                                         .model = l.model[at],
                                         .case_name = q[i].suite ? q[i].case_name : own,
                                         .seed_shift = q[i].repeat};
        }
    }
    if (rc == FM_OK && asks)
        rc = fm_suites_run(run, ask, asks, &cache);
    for (size_t k = 0; run && k < asks; k++) {
        FM_THEN(rc, hear(&run[k].result[0], &out[of[k]]));
        fm_suite_run_release(&run[k]);
    }
    if (rc == FM_OK && b->right)
        rc = add_margins(b, q, ask, of, asks, out);
    for (size_t i = 0; rc == FM_OK && b->noise && i < n; i++)
        if (out[i].verdict != FM_ERROR_CASE)
            b->noise(b->noise_ctx, &q[i], &out[i]);
    unload(&l);
    fm_free(ask);
    fm_free(run);
    fm_free(of);
    return rc;
}

/* The number of questions that go into one batch. */
static fm_status batch_of(const fmo_blame_question *q, size_t n, size_t *some)
{
    fm_map *seen = NULL;
    size_t trees = 0;
    uint64_t bytes = 0, more;
    fm_status rc = fm_map_new(&seen);
    for (*some = 0; rc == FM_OK && *some < n && *some < ASKS_AT_ONCE; ++*some) {
        bool known = false;
        for (size_t k = 0; k < *some && !known; k++)
            known = q[k].tree == q[*some].tree;
        if (known)
            continue;
        rc = new_bytes(seen, q[*some].tree, &more);
        if (trees == MODELS_AT_ONCE || (trees && bytes + more > BYTES_AT_ONCE))
            break;
        bytes += more;
        trees++;
    }
    fm_map_free(seen);
    return rc;
}

fm_status fmo_blame_ask(fmo_blame *b, const fmo_blame_question *q, size_t n, fmo_blame_heard *out)
{
    fm_status rc = FM_OK;
    memset(out, 0, n * sizeof *out);
    for (size_t at = 0, some; rc == FM_OK && at < n; at += some) {
        rc = batch_of(q + at, n - at, &some);
        FM_THEN(rc, ask_batch(b, q + at, some, out + at));
    }
    fmo_ui_progress_end(b->c);
    if (rc < 0)
        fmo_blame_heard_release(out, n);
    return rc;
}

double fmo_blame_flip_rate(const fmo_blame *b)
{
    if (b->how.flip_rate > 0)
        return b->how.flip_rate;
    return fm_suite_case_samples(b->suite, b->case_index) ? FM_BLAME_MEASURE : 0;
}

/* ---- the guilty step ---- */

fm_status fmo_blame_node_tree(fmo_blame *b, size_t node, const fm_tree **out)
{
    fm_status rc = FM_OK;
    if (!b->version[node].tree)
        rc = fm_version_tree(b->c->repo, &b->version[node].tree, &b->version[node].commit.oid);
    *out = b->version[node].tree;
    return rc;
}

bool fmo_blame_has_step(const fmo_blame *b)
{
    fm_blame_class v = b->history.verdict;
    return v == FM_BLAME_INTRODUCED || v == FM_BLAME_REINTRODUCED || v == FM_BLAME_EXPOSED ||
           v == FM_BLAME_INTERACTION;
}

fm_status fmo_blame_open_culprit(fmo_blame *b)
{
    const fm_version *v = &b->version[b->history.culprit].commit;
    fm_suite_run run = {0};
    fm_model *m = NULL;
    if (b->child)
        return FM_OK;
    fm_result_cache cache = fmo_suite_cache(b->c);
    fm_status rc = fm_version_tree(b->c->repo, &b->child, &v->oid);
    if (rc == FM_OK && v->parent_count)
        rc = fm_version_tree(b->c->repo, &b->parent, &v->parent[0]);
    FM_THEN(rc, fm_ops_load_model(b->c, b->child, "culprit", &m));
    FM_THEN(rc, fm_suite_run_on(&run, b->suite, m, fm_suite_case_name(b->suite, b->case_index),
                                &cache));
    fm_model_close(m);
    if (rc == FM_OK) {
        const fm_case_result *r = &run.result[0];
        b->answer = r->answer ? fm_strdup(r->answer) : NULL;
        b->detail = r->detail ? fm_strdup(r->detail) : NULL;
        fm_suite_run_release(&run);
    }
    return rc;
}

static void fmo_data_release(fmo_blame_data_section *s)
{
    for (size_t i = 0; i < s->rankings; i++) {
        fm_free(s->ranking[i].score);
        fm_free(s->ranking[i].rank);
    }
    s->rankings = 0;
}

void fmo_blame_release(fmo_blame *b)
{
    for (size_t i = 0; i < b->count; i++) {
        fmo_blamed_version *v = &b->version[i];
        fm_version_release(&v->commit);
        fm_free((void *)(uintptr_t)v->node.parent);
        fm_free(v->output);
        fm_free(v->text);
        fm_tree_free(v->tree);
    }
    for (size_t u = 0; u < b->unit_count; u++)
        fm_free(b->unit[u].change);
    for (size_t i = 0; i < b->example_count; i++) {
        fm_free(b->example[i].preview);
        fm_free(b->example[i].file);
    }
    fmo_data_release(&b->data);
    fm_free(b->version);
    fm_suite_free(b->forms);
    fm_blame_history_release(&b->history);
    fm_tree_free(b->parent);
    fm_tree_free(b->child);
    fm_free(b->change);
    fm_free(b->unit);
    fm_free(b->minimal.take);
    fm_free(b->repair.take);
    fm_free(b->rank);
    fm_free(b->rank_set.take);
    fm_shapley_release(&b->shapley);
    fm_free(b->shapley_why_not);
    fm_free(b->answer);
    fm_free(b->detail);
    fm_free(b->example);
    fm_free(b->data_name);
}
