/* blame_table.c - every version of every planted family asked once, and what then counts. */
#include "tests/bench/blame_bench.h"

#include <string.h>

#include "store/base/os/io.h"

/* ==== versions ============================================================================= */

typedef struct collect {
    bench *b;
    bb_family *f;
    fm_map *index; /* oid -> node + 1 */
} collect;

static fm_status collect_version(void *ctx, const fm_version *v)
{
    collect *k = ctx;
    bb_family *f = k->f;
    fm_status rc = fm_grow(&f->version, &f->cap, f->count + 1, sizeof *f->version);
    if (rc == FM_OK)
        rc = fm_version_read(k->b->c->repo, &f->version[f->count], &v->oid);
    if (rc == FM_OK)
        rc = fm_map_put(k->index, v->oid.b, sizeof v->oid.b, (void *)(uintptr_t)++f->count, NULL);
    return rc;
}

static fm_status link_versions(bench *b, bb_family *f, const fm_map *index)
{
    f->node = fm_calloc(f->count, sizeof *f->node);
    f->tree = fm_calloc(f->count, sizeof *f->tree);
    fm_status rc = f->node && f->tree ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < f->count; i++) {
        const fm_version *v = &f->version[i];
        size_t *parent = fm_calloc(v->parent_count + 1, sizeof *parent);
        if (!parent)
            return FM_ENOMEM;
        f->node[i].parent = parent;
        f->node[i].parent_count = v->parent_count;
        for (uint32_t p = 0; p < v->parent_count; p++)
            parent[p] = (uintptr_t)fm_map_get(index, v->parent[p].b, sizeof v->parent[p].b) - 1;
        rc = fm_version_tree(b->c->repo, &f->tree[i], &v->oid);
    }
    return rc;
}

static fm_status open_versions(bench *b, bb_family *f)
{
    fm_oid tip, culprit;
    collect k = {b, f, NULL};
    const char *name = fm_json_cstr(fm_json_get(f->plan, "culprit"), NULL);
    fm_status rc = fm_map_new(&k.index);
    if (rc == FM_OK)
        rc = fm_rev_resolve(b->c->repo, &tip, fm_json_cstr(fm_json_get(f->plan, "tip"), ""));
    if (rc == FM_OK)
        rc = fm_log_walk(b->c->repo, &tip, 1, collect_version, &k);
    if (rc == FM_OK)
        rc = link_versions(b, f, k.index);
    if (rc == FM_OK && name) {
        rc = fm_rev_resolve(b->c->repo, &culprit, name);
        const uintptr_t at =
            rc == FM_OK ? (uintptr_t)fm_map_get(k.index, culprit.b, sizeof culprit.b) : 0;
        if (rc == FM_OK && !at)
            rc = fm_fail(FM_ENOTFOUND, "%s: '%s' is no ancestor of its tip", f->id, name);
        f->culprit = at - 1;
    }
    fm_map_free(k.index);
    return rc;
}

static fm_status open_suite(bench *b, bb_family *f)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    char *path = fm_path_join(b->dir, fm_json_cstr(fm_json_get(f->plan, "suite"), ""));
    fm_status rc = path ? fm_read_file(&text, path, (size_t)1 << 20) : FM_ENOMEM;
    if (rc == FM_OK)
        rc = fm_suite_parse(&f->suite, fm_buf_span(&text), path);
    f->forms = (size_t)fm_json_int(fm_json_get(f->plan, "forms"), 0);
    f->repeats = (size_t)fm_json_int(fm_json_get(f->plan, "repeats"), 0);
    if (rc == FM_OK && fm_suite_count(f->suite) != 1 + f->forms + f->repeats)
        rc = fm_fail(FM_EINVAL, "%s: %s has other cases than planned", f->id, path);
    fm_free(path);
    fm_buf_release(&text);
    return rc;
}

/* ==== asking =============================================================================== */

static bb_outcome outcome_of(const fm_case_result *r)
{
    fm_digest d;
    bb_outcome o = {r->verdict, 0};
    if (r->answer && fm_sha256(&d, r->answer, strlen(r->answer)) == FM_OK)
        o.answer = fm_get_u64(d.b) | 1;
    return o;
}

static fm_status ask_version(bench *b, bb_family *f, size_t i)
{
    fm_model *m = NULL;
    fm_suite_run run = {0};
    fm_result_cache cache = fmo_suite_cache(b->c);
    fm_status rc = fm_ops_load_model(b->c, f->tree[i], f->id, &m);
    if (rc == FM_OK)
        rc = fm_suite_run_on(&run, f->suite, m, NULL, &cache);
    for (size_t k = 0; rc == FM_OK && k < run.count; k++) {
        const bb_outcome o = outcome_of(&run.result[k]);
        if (k == 0)
            f->at[i] = o;
        else if (k <= f->forms)
            f->form[i * f->forms + k - 1] = o;
        else
            f->again[i * f->repeats + k - 1 - f->forms] = o;
    }
    if (rc == FM_OK)
        fm_suite_run_release(&run);
    fm_model_close(m);
    return rc;
}

fm_status bb_run(bench *b, bb_family *f, const fm_tree *tree, bb_outcome *out)
{
    fm_model *m = NULL;
    fm_suite_run run = {0};
    fm_result_cache cache = fmo_suite_cache(b->c);
    fm_status rc = fm_ops_load_model(b->c, tree, f->id, &m);
    if (rc == FM_OK)
        rc = fm_suite_run_on(&run, f->suite, m, "case", &cache);
    if (rc == FM_OK) {
        *out = outcome_of(&run.result[0]);
        fm_suite_run_release(&run);
    }
    fm_model_close(m);
    return rc;
}

static fm_status ask_family(bench *b, bb_family *f)
{
    f->at = fm_calloc(f->count, sizeof *f->at);
    f->form = fm_calloc(f->count * f->forms + 1, sizeof *f->form);
    f->again = fm_calloc(f->count * f->repeats + 1, sizeof *f->again);
    fm_status rc = f->at && f->form && f->again ? fm_map_new(&f->mixed) : FM_ENOMEM;
    if (rc == FM_OK)
        rc = fm_map_new(&f->stepped);
    for (size_t i = 0; rc == FM_OK && i < f->count; i++)
        rc = ask_version(b, f, i);
    return rc;
}

/* ==== does it count? ======================================================================= */

static bool parents_pass(const bb_family *f, size_t i)
{
    bool pass = f->node[i].parent_count > 0;
    for (size_t p = 0; p < f->node[i].parent_count; p++)
        pass = pass && f->at[f->node[i].parent[p]].verdict == FM_PASS;
    return pass;
}

/* Ancestors of i, itself left out. */
static void mark_ancestors(const bb_family *f, size_t i, bool *mark)
{
    for (size_t p = 0; p < f->node[i].parent_count; p++)
        mark[f->node[i].parent[p]] = true;
    for (size_t k = i + 1; k < f->count; k++)
        for (size_t p = 0; mark[k] && p < f->node[k].parent_count; p++)
            mark[f->node[k].parent[p]] = true;
}

uint64_t bb_wrong(const bb_family *f)
{
    return f->at[f->culprit].answer;
}

/* How many of the culprit's ancestors fail, and how many of these with its very answer; how many
 * pass but give it to other forms of the case. */
typedef struct older {
    size_t fail, same, formed;
} older;

static fm_status look_back(const bb_family *f, older *out)
{
    bool *mark = fm_calloc(f->count, sizeof *mark);
    *out = (older){0};
    if (!mark)
        return FM_ENOMEM;
    mark_ancestors(f, f->culprit, mark);
    for (size_t k = 0; k < f->count; k++) {
        size_t same = 0;
        if (!mark[k])
            continue;
        out->fail += f->at[k].verdict == FM_FAIL;
        out->same += f->at[k].verdict == FM_FAIL && f->at[k].answer == bb_wrong(f);
        for (size_t i = 0; i < f->forms; i++)
            same += f->form[k * f->forms + i].answer == bb_wrong(f);
        out->formed += f->at[k].verdict == FM_PASS && same > 0;
    }
    fm_free(mark);
    return FM_OK;
}

/* Between the culprit and the tip, along first parents, it must go on failing. */
static bool fails_to_tip(const bb_family *f)
{
    bool fails = true;
    for (size_t i = 0; i < f->culprit; i = f->node[i].parent[0])
        fails = fails && f->at[i].verdict == FM_FAIL;
    return fails;
}

static fm_status twin_passes(bench *b, bb_family *f, bool *passes)
{
    fm_oid oid;
    fm_tree *tree = NULL;
    bb_outcome o = {FM_ERROR_CASE, 0};
    fm_status rc =
        fm_ops_resolve(b->c, fm_json_cstr(fm_json_get(f->plan, "twin"), ""), &oid, &tree);
    if (rc == FM_OK)
        rc = bb_run(b, f, tree, &o);
    *passes = o.verdict == FM_PASS;
    fm_tree_free(tree);
    return rc;
}

static fm_status judge_guilty(bench *b, bb_family *f)
{
    older old;
    bool twin = true;
    bb_outcome alone = {FM_FAIL, 0};
    fm_status rc = look_back(f, &old);
    if (rc == FM_OK && fm_json_get(f->plan, "twin"))
        rc = twin_passes(b, f, &twin);
    if (rc == FM_OK && f->truth == FM_BLAME_INTRODUCED && f->culprit + 1 < f->count)
        rc = bb_mix_steps(b, f, &f->culprit, 1, &alone);
    if (f->at[0].verdict != FM_FAIL || f->at[f->culprit].verdict != FM_FAIL)
        f->discard = "the fault does not show";
    else if (!parents_pass(f, f->culprit))
        f->discard = "it fails before already";
    else if (!fails_to_tip(f))
        f->discard = "a later step mends it";
    else if (!twin)
        f->discard = "the step fails without the fault too";
    else if (f->truth == FM_BLAME_EXPOSED && old.same == 0)
        f->discard = "no older version gives this answer";
    else if (f->truth != FM_BLAME_EXPOSED && (old.fail || old.formed))
        f->discard = "an older version knows this answer";
    else if (alone.verdict == FM_PASS)
        f->discard = "the step alone does no harm";
    return rc;
}

static void judge_flaky(bb_family *f)
{
    for (size_t i = 0; i < f->count; i++) {
        size_t fail = 0;
        for (size_t k = 0; k < f->repeats; k++)
            fail += f->again[i * f->repeats + k].verdict == FM_FAIL;
        if (fail * 4 < f->repeats || fail * 4 > f->repeats * 3)
            f->discard = "not a matter of chance at each version";
    }
}

static fm_status judge(bench *b, bb_family *f)
{
    if (f->truth == FM_BLAME_FLAKY) {
        judge_flaky(f);
        return FM_OK;
    }
    if (f->truth != FM_BLAME_PASSES)
        return judge_guilty(b, f);
    if (f->at[0].verdict != FM_PASS)
        f->discard = "it does not pass";
    return FM_OK;
}

/* ==== all families ========================================================================= */

static const struct {
    const char *word;
    fm_blame_class truth;
} truths[] = {{"introduced", FM_BLAME_INTRODUCED},
              {"exposed", FM_BLAME_EXPOSED},
              {"interaction", FM_BLAME_INTERACTION},
              {"passes", FM_BLAME_PASSES},
              {"flaky", FM_BLAME_FLAKY}};

static void read_plan(bb_family *f, const fm_json *plan)
{
    f->plan = plan;
    f->id = fm_json_cstr(fm_json_get(plan, "id"), "?");
    f->what = fm_json_cstr(fm_json_get(plan, "what"), "?");
    f->kind = fm_json_cstr(fm_json_get(plan, "kind"), "?")[0];
    for (size_t i = 0; i < FM_ARRAY_LEN(truths); i++)
        if (strcmp(truths[i].word, fm_json_cstr(fm_json_get(plan, "verdict"), "")) == 0)
            f->truth = truths[i].truth;
}

fm_status bb_tables(bench *b)
{
    char *path = fm_path_join(b->dir, "plan.json");
    fm_status rc = path ? fm_json_parse_file(&b->doc, path, (size_t)16 << 20) : FM_ENOMEM;
    const fm_json *list = fm_json_get(b->doc, "families");
    b->count = rc == FM_OK ? fm_json_count(list) : 0;
    b->family = fm_calloc(b->count + 1, sizeof *b->family);
    if (rc == FM_OK)
        rc = b->family ? fm_ops_lease(b->c, true, "bench_blame") : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < b->count; i++) {
        bb_family *f = &b->family[i];
        read_plan(f, fm_json_at(list, i));
        if (!strchr(b->kinds, f->kind)) {
            f->discard = "not asked for";
            continue;
        }
        rc = open_suite(b, f);
        if (rc == FM_OK)
            rc = open_versions(b, f);
        if (rc == FM_OK)
            rc = ask_family(b, f);
        if (rc == FM_OK)
            rc = judge(b, f);
        if (rc == FM_OK)
            rc = fm_result_flush(b->c->repo);
        fprintf(stderr, "  %s %-16s %2zu versions: %s\n", f->id, f->what, f->count,
                f->discard ? f->discard : "counts");
    }
    fm_free(path);
    return rc;
}

static void release_family(bb_family *f)
{
    for (size_t i = 0; i < f->count; i++) {
        fm_version_release(&f->version[i]);
        if (f->node)
            fm_free((void *)(uintptr_t)f->node[i].parent);
        if (f->tree)
            fm_tree_free(f->tree[i]);
    }
    fm_map *memory[2] = {f->mixed, f->stepped};
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; memory[k] && i < fm_map_count(memory[k]); i++)
            fm_free(fm_map_value_at(memory[k], i));
        fm_map_free(memory[k]);
    }
    fm_free(f->version);
    fm_free(f->node);
    fm_free(f->tree);
    fm_free(f->at);
    fm_free(f->form);
    fm_free(f->again);
    fm_suite_free(f->suite);
}

void bb_tables_release(bench *b)
{
    for (size_t i = 0; i < b->count; i++)
        release_family(&b->family[i]);
    fm_free(b->family);
    fm_json_free(b->doc);
}
