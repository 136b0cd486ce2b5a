/* blame.c - what the parts of a blame share: the case asked of many trees, the guilty step opened. */
#include "cli/blame.h"

#include <math.h>
#include <string.h>

#include "store/base/hash.h"
#include "store/base/map.h"
#include "store/base/mem.h"

#define MODELS_AT_ONCE 16u
#define BYTES_AT_ONCE ((uint64_t)8 << 30) /* of tensors that the models of a batch do not share */

/* ---- asking ---- */

/* Letters and digits, in lower case: "Mirefall." and "mirefall" are one answer. A case without an
 * answer (a log-probability) has one way to fail. */
static fm_status answer_digest(const fm_case_result *r, uint64_t *out)
{
    fm_buf words;
    fm_digest d;
    *out = 1;
    if (!r->answer)
        return FM_OK;
    fm_buf_init(&words, 0);
    for (const char *p = r->answer; *p; p++) {
        char c = *p >= 'A' && *p <= 'Z' ? (char)(*p + ('a' - 'A')) : *p;
        bool word = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (uint8_t)c >= 0x80;
        if (word)
            fm_buf_append(&words, &c, 1);
    }
    fm_status rc = fm_buf_ok(&words);
    if (rc == FM_OK)
        rc = fm_sha256(&d, words.data, words.len);
    if (rc == FM_OK)
        memcpy(out, d.b, sizeof *out);
    *out += *out == 0;
    fm_buf_release(&words);
    return rc;
}

static fm_status hear(const fm_case_result *r, blame_heard *out)
{
    *out = (blame_heard){.verdict = r->verdict, .score = r->score};
    out->output = r->output ? fm_strdup(r->output) : NULL;
    out->text = r->answer ? fm_strdup(r->answer) : NULL;
    if (r->verdict == FM_ERROR_CASE && !out->output && r->detail)
        out->output = fm_strdup(r->detail);
    return answer_digest(r, &out->answer);
}

static fm_status hear_error(blame_heard *out)
{
    *out = (blame_heard){.verdict = FM_ERROR_CASE, .score = NAN};
    out->output = fm_strdup(fm_error_text());
    fm_error_clear();
    return out->output ? FM_OK : FM_ENOMEM;
}

void blame_heard_release(blame_heard *h, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fm_free(h[i].output);
        fm_free(h[i].text);
    }
}

/* Tensor bytes of a tree that are not in `seen` yet. */
static fm_status new_bytes(fm_map *seen, const fm_tree *tree, uint64_t *out)
{
    fm_status rc = FM_OK;
    *out = 0;
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind != FM_ENTRY_TENSOR || fm_map_has(seen, e->id.b, sizeof e->id.b))
            continue;
        *out += e->bytes;
        rc = fm_map_put(seen, e->id.b, sizeof e->id.b, seen, NULL);
    }
    return rc;
}

/* One batch of at most MODELS_AT_ONCE trees. */
static fm_status ask_batch(blame *b, const fm_suite *suite, const char *case_name,
                           const blame_question *q, size_t n, blame_heard *out)
{
    fm_model *model[MODELS_AT_ONCE] = {NULL};
    fm_suite_ask ask[MODELS_AT_ONCE];
    fm_suite_run run[MODELS_AT_ONCE];
    size_t of[MODELS_AT_ONCE], asks = 0, ran = 0;
    fm_result_cache cache = suite_cache(b->c);
    fm_status rc = cli_engine(b->c);
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        out_progress("asking %s", q[i].what);
        rc = q[i].provider
                 ? fm_model_load(&model[i], b->c->engine, q[i].tree, q[i].provider, q[i].what)
                 : cli_load_model(b->c, q[i].tree, q[i].what, &model[i]);
        if (rc == FM_OK) {
            of[asks] = i;
            ask[asks++] = (fm_suite_ask){suite, model[i], case_name, q[i].repeat};
        } else if (rc == FM_EUNSUPPORTED) {
            rc = hear_error(&out[i]);
        }
    }
    if (rc == FM_OK && asks) {
        rc = fm_suites_run(run, ask, asks, &cache);
        ran = rc == FM_OK ? asks : 0;
    }
    for (size_t k = 0; k < ran; k++) {
        if (rc == FM_OK)
            rc = hear(&run[k].result[0], &out[of[k]]);
        fm_suite_run_release(&run[k]);
    }
    for (size_t i = 0; i < n; i++) {
        fm_model_close(model[i]);
        if (rc == FM_OK && b->noise && out[i].verdict != FM_ERROR_CASE)
            b->noise(b->noise_ctx, &q[i], &out[i]);
    }
    return rc;
}

fm_status blame_ask(blame *b, const fm_suite *suite, const char *case_name, const blame_question *q,
                    size_t n, blame_heard *out)
{
    fm_status rc = FM_OK;
    memset(out, 0, n * sizeof *out);
    for (size_t at = 0, some; rc == FM_OK && at < n; at += some) {
        fm_map *seen = NULL;
        uint64_t bytes = 0, more;
        rc = fm_map_new(&seen);
        for (some = 0; rc == FM_OK && at + some < n && some < MODELS_AT_ONCE; some++) {
            rc = new_bytes(seen, q[at + some].tree, &more);
            if (some && bytes + more > BYTES_AT_ONCE)
                break;
            bytes += more;
        }
        fm_map_free(seen);
        if (rc == FM_OK)
            rc = ask_batch(b, suite, case_name, q + at, some, out + at);
    }
    out_progress_end();
    if (rc < 0)
        blame_heard_release(out, n);
    return rc;
}

double blame_flip_rate(const blame *b)
{
    if (b->how.flip_rate > 0)
        return b->how.flip_rate;
    return fm_suite_case_samples(b->suite, b->case_index) ? FM_BLAME_MEASURE : 0;
}

/* ---- the guilty step ---- */

fm_status blame_node_tree(blame *b, size_t node, const fm_tree **out)
{
    fm_status rc = FM_OK;
    if (!b->tree[node])
        rc = fm_version_tree(b->c->repo, &b->tree[node], &b->version[node].oid);
    *out = b->tree[node];
    return rc;
}

bool blame_has_step(const blame *b)
{
    fm_blame_class v = b->history.verdict;
    return v == FM_BLAME_INTRODUCED || v == FM_BLAME_REINTRODUCED || v == FM_BLAME_EXPOSED ||
           v == FM_BLAME_INTERACTION;
}

fm_status blame_open_culprit(blame *b)
{
    const fm_version *v = &b->version[b->history.culprit];
    fm_suite_run run = {0};
    fm_model *m = NULL;
    if (b->child)
        return FM_OK;
    fm_result_cache cache = suite_cache(b->c);
    fm_status rc = fm_version_tree(b->c->repo, &b->child, &v->oid);
    if (rc == FM_OK && v->parent_count)
        rc = fm_version_tree(b->c->repo, &b->parent, &v->parent[0]);
    if (rc == FM_OK)
        rc = cli_load_model(b->c, b->child, "culprit", &m);
    if (rc == FM_OK)
        rc =
            fm_suite_run_on(&run, b->suite, m, fm_suite_case_name(b->suite, b->case_index), &cache);
    fm_model_close(m);
    if (rc == FM_OK) {
        const fm_case_result *r = &run.result[0];
        b->answer = r->answer ? fm_strdup(r->answer) : NULL;
        b->detail = r->detail ? fm_strdup(r->detail) : NULL;
        fm_suite_run_release(&run);
    }
    return rc;
}

void blame_release(blame *b)
{
    for (size_t i = 0; i < b->count; i++) {
        fm_version_release(&b->version[i]);
        if (b->node)
            fm_free((void *)(uintptr_t)b->node[i].parent);
        if (b->output)
            fm_free(b->output[i]);
        if (b->text)
            fm_free(b->text[i]);
        if (b->tree)
            fm_tree_free(b->tree[i]);
    }
    for (size_t u = 0; u < b->unit_count; u++)
        fm_free(b->unit[u].change);
    for (size_t i = 0; i < b->example_count; i++)
        fm_free(b->example[i].preview);
    fm_free(b->version);
    fm_free(b->names);
    fm_free(b->node);
    fm_free(b->changed_bytes);
    fm_free(b->output);
    fm_free(b->text);
    fm_free(b->tree);
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
    fm_free(b->keep);
    fm_free(b->answer);
    fm_free(b->detail);
    fm_free(b->example);
    fm_free(b->data_name);
}
