/* data.c - ranks the examples of the guilty step's data by how they pull towards the wrong answer:
 * opens the step by its recipe, makes texts of the case, computes the scores of every method. */
#include "cli/ops/blame/blame_more.h"
#include "cli/ops/base/say.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ops/derive/data.h"
#include "cli/ops/derive/objective_setup.h"
#include "cli/ops/derive/checkpoints.h"
#include "infer/prompt.h"
#include "store/base/mem.h"
#include "train/train.h"

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

typedef struct placed {
    double score;
    uint32_t at;
} placed;

/* The place among the first n at which the scores fall most steeply, to less than half; n if there
 * is none. */
static size_t steepest(const placed *p, size_t n, size_t count, double bound)
{
    size_t cut = n;
    double most = 2.0;
    for (size_t i = 1; i <= n && i < count; i++) {
        double fall = p[i - 1].score / fmax(p[i].score, bound);
        if (bound > 0 && fall > most) {
            most = fall;
            cut = i;
        }
    }
    return cut;
}

/* The number of examples that stand out: more than six robust deviations (median absolute
 * deviation, scaled to a normal's) above the median, down to the steepest fall among those. They
 * are a place to look, not a verdict. */
static fm_status standing_out(size_t *out, const placed *p, size_t count)
{
    double *v = fm_calloc(count, sizeof *v);
    *out = 0;
    if (!v || count == 0) {
        fm_free(v);
        return v ? FM_OK : FM_ENOMEM;
    }
    double median = p[count / 2].score;
    for (size_t i = 0; i < count; i++)
        v[i] = fabs(p[i].score - median);
    qsort(v, count, sizeof *v, by_value);
    double bound = fmax(median + 6 * 1.4826 * v[count / 2], 0);
    while (*out < count && p[*out].score > bound)
        ++*out;
    *out = steepest(p, *out, count, bound);
    fm_free(v);
    return FM_OK;
}

const fm_attribution_kind blame_data_order[FM_ATTRIBUTIONS] = {
    FM_ATTR_PATH,      FM_ATTR_COSINE, FM_ATTR_RELATIF, FM_ATTR_TRACIN,
    FM_ATTR_INFLUENCE, FM_ATTR_BM25,   FM_ATTR_DOT};

/* ---- the guilty step ---- */
typedef struct step {
    fm_json *recipe;
    fm_train_config config;
    fm_model *model; /* of the child */
    fm_dataset *data;
    fmo_goal goal;
    fm_train_job job;
    fm_provider p;
    fm_example wrong, right;
    bool right_known;
    fm_train_state *state;
    size_t states;
} step;

static void step_release(step *s)
{
    for (size_t i = 0; i < s->states; i++)
        fm_train_state_release(&s->state[i]);
    fm_free(s->state);
    fm_free(s->wrong.ids);
    fm_free(s->wrong.labels);
    fm_free(s->right.ids);
    fm_free(s->right.labels);
    fmo_goal_release(&s->goal);
    fm_dataset_close(s->data);
    fm_model_close(s->model);
    fm_json_free(s->recipe);
}

/* Opens the data of the recipe: same files and settings, same records left out. *found false: the
 * version has no data, or no recipe. */
static fm_status open_step(fmo_blame *b, step *s, bool *found)
{
    size_t begin, end;
    fm_tree_range(b->child, "data/", &begin, &end);
    fm_status rc = fmo_tree_recipe(b->c, b->child, &s->recipe);
    *found = rc == FM_OK && begin < end && s->recipe;
    if (!*found)
        return rc;
    const fm_json *files = fm_json_get(s->recipe, "data");
    b->data_name = fm_strdup(fm_json_cstr(fm_json_get(fm_json_at(files, 0), "name"), ""));
    FM_TRY(b->data_name ? fm_train_config_from_json(&s->config, fm_json_get(s->recipe, "config"),
                                                    "recipe.json")
                        : FM_ENOMEM);
    FM_TRY(fm_ops_load_model(b->c, b->child, "culprit", &s->model));
    FM_TRY(fmo_data_of_version(b->c, b->child, s->recipe, &s->config, fm_model_tokenizer(s->model),
                               fm_model_chat_template(s->model), &s->data));
    FM_TRY(fmo_goal_of_recipe(&s->goal, b->c, s->data, &s->config, s->recipe));
    s->p = fm_store_provider(fm_repo_store(b->c->repo));
    s->job = (fm_train_job){.name = "the guilty step",
                            .config = s->config,
                            .parent = b->parent ? b->parent : b->child,
                            .data = s->data};
    fmo_goal_job(&s->goal, &s->job);
    return FM_OK;
}

/* ---- the case as texts ---- */
/* Makes an example of prompt and answer, with labels on the answer. */
static fm_status make_text(const fmo_blame *b, const fm_model *m, const char *answer, fm_example *e)
{
    fm_ids ids = {0};
    size_t prompt;
    fm_status rc = fm_suite_case_prompt(&ids, b->suite, b->case_index, m);
    prompt = ids.count;
    FM_THEN(rc, fm_tokenizer_encode(fm_model_tokenizer(m), fm_span_str(answer), false, &ids));
    if (rc == FM_OK && ids.count == prompt)
        rc = fm_fail(FM_EUNSUPPORTED, "the answer is empty, so no gradient can be taken of it");
    if (rc == FM_OK && !(e->labels = fm_calloc(ids.count, sizeof *e->labels)))
        rc = FM_ENOMEM;
    if (rc < 0) {
        fm_ids_release(&ids);
        return rc;
    }
    for (size_t i = 0; i < ids.count; i++)
        e->labels[i] = i < prompt ? -100 : ids.id[i];
    e->len = e->part_len[0] = (uint32_t)ids.count;
    e->parts = 1;
    e->klass = -1;
    e->ids = ids.id; /* e owns them now */
    return FM_OK;
}

/* For classifiers: makes an example of the case's text, with the class of that name. */
static fm_status make_class(const fmo_blame *b, const step *s, const char *answer, fm_example *e)
{
    fm_ids ids = {0};
    uint32_t n = fm_dataset_classes(s->data), klass = 0;
    while (klass < n && strcmp(fm_dataset_class_name(s->data, klass), answer) != 0)
        klass++;
    if (klass == n)
        return fm_fail(FM_EUNSUPPORTED, "the answer '%s' is none of the classes of the data",
                       fmo_ui_shown(answer, 40));
    fm_status rc = fm_suite_case_prompt(&ids, b->suite, b->case_index, s->model);
    if (rc < 0) {
        fm_ids_release(&ids);
        return rc;
    }
    *e = (fm_example){
        .ids = ids.id, .len = (uint32_t)ids.count, .parts = 1, .klass = (int32_t)klass};
    e->part_len[0] = e->len;
    return FM_OK;
}

static fm_status make_side(const fmo_blame *b, const step *s, const char *answer, fm_example *e)
{
    return s->config.objective == FM_OBJECTIVE_CLASSIFY ? make_class(b, s, answer, e)
                                                        : make_text(b, s->model, answer, e);
}

/* Takes the parent's answer, if it passes, as the right one: unlike the fragment or pattern that
 * the case expects, it is a whole answer as such a model writes it. */
static fm_status right_answer(fmo_blame *b, step *s)
{
    fmo_blame_heard r = {0};
    const fmo_blame_question q = {.tree = b->parent, .what = "parent"};
    const char *target = b->data.opts.target;
    if (!b->parent || (target && strcmp(target, "wrong") == 0))
        return FM_OK;
    fm_status rc = fmo_blame_ask(b, &q, 1, &r);
    if (rc == FM_OK && r.verdict == FM_PASS && r.text && r.text[0] &&
        strcmp(r.text, b->answer) != 0) {
        rc = make_side(b, s, r.text, &s->right);
        s->right_known = rc == FM_OK;
    }
    fmo_blame_heard_release(&r, 1);
    if (rc == FM_EUNSUPPORTED) { /* a class that the data do not have */
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

/* ---- kept checkpoints of the run ---- */
static fm_status open_states(fmo_blame *b, step *s, fm_attribution_in *in)
{
    enum { MOST = 8 };
    fm_digest run;
    fm_status rc = fm_attribution_run(in, &run);
    FM_THEN(rc, fmo_checkpoints_states(b->c, &run, MOST, (uint64_t)1 << 30, &s->state, &s->states));
    if (rc < 0) { /* without them, points between parent and child serve */
        for (size_t i = 0; i < s->states; i++)
            fm_train_state_release(&s->state[i]);
        s->states = 0;
        fm_error_clear();
    }
    in->state = s->state;
    in->states = s->states;
    b->data.checkpoints = s->states > 0;
    return rc == FM_ENOMEM ? rc : FM_OK;
}

/* ---- scores ---- */
static fm_status choose(fmo_blame_data_section *d, size_t n, double *score[FM_ATTRIBUTIONS])
{
    const char *name = d->opts.method;
    bool all = name && strcmp(name, "all") == 0;
    fm_attribution_kind one = blame_data_order[0];
    fm_status rc = name && !all ? fm_attribution_find(&one, name) : FM_OK;
    d->count = n;
    for (int i = 0; rc == FM_OK && i < FM_ATTRIBUTIONS; i++) {
        fm_attribution_kind kind = blame_data_order[i];
        if (!all && kind != one)
            continue;
        fmo_blame_ranking *r = &d->ranking[d->rankings++];
        *r = (fmo_blame_ranking){.kind = kind,
                                 .score = fm_calloc(n, sizeof *r->score),
                                 .rank = fm_calloc(n, sizeof *r->rank),
                                 .fidelity = {(double)NAN, (double)NAN, (double)NAN}};
        score[kind] = r->score;
        rc = r->score && r->rank ? FM_OK : FM_ENOMEM;
    }
    return rc;
}

static int by_placed(const void *x, const void *y)
{
    const placed *a = x, *b = y;
    if (a->score < b->score || a->score > b->score)
        return a->score < b->score ? 1 : -1;
    return a->at < b->at ? -1 : a->at > b->at;
}

static fm_status make_ranks(fmo_blame_data_section *d)
{
    placed *p = fm_calloc(d->count, sizeof *p);
    if (!p)
        return FM_ENOMEM;
    fm_status rc = FM_OK;
    for (size_t k = 0; k < d->rankings && rc == FM_OK; k++) {
        fmo_blame_ranking *r = &d->ranking[k];
        for (size_t i = 0; i < d->count; i++)
            p[i] = (placed){r->score[i], (uint32_t)i};
        qsort(p, d->count, sizeof *p, by_placed);
        for (size_t i = 0; i < d->count; i++)
            r->rank[p[i].at] = (uint32_t)i;
        rc = standing_out(&r->outstanding, p, d->count);
    }
    fm_free(p);
    return rc;
}

static char *file_name(const fm_dataset *data, const fm_example *e)
{
    fm_json *manifest = fm_dataset_file_manifest(data, e->file);
    char *name = fm_strdup(fm_json_cstr(fm_json_get(manifest, "name"), ""));
    fm_json_free(manifest);
    return name;
}

/* Takes the examples of the first ranking, which blame shows. */
static fm_status take_examples(fmo_blame *b, const fm_dataset *data)
{
    const fmo_blame_ranking *r = &b->data.ranking[0];
    size_t n = b->data.count;
    bool several = fm_dataset_files(data) > 1;
    b->example = fm_calloc(n, sizeof *b->example);
    if (!b->example)
        return FM_ENOMEM;
    b->example_count = n;
    for (size_t i = 0; i < n; i++) {
        const fm_example *e = fm_dataset_at(data, i);
        fmo_blame_example *out = &b->example[r->rank[i]];
        *out = (fmo_blame_example){.index = e->index, .place = (uint32_t)i, .score = r->score[i]};
        out->preview = fm_strdup(e->preview);
        out->file = several ? file_name(data, e) : NULL;
        if (!out->preview || (several && !out->file))
            return FM_ENOMEM;
    }
    b->outstanding = r->outstanding;
    return FM_OK;
}

static void show(void *ctx, size_t done, size_t of)
{
    const fmo_blame *b = ctx;
    (void)fmo_ui_progress(b->c, done, of, "data: %s %zu/%zu",
                          b->data.trainings > 0 ? "step" : "gradient", done, of);
}

static fm_status rank(fmo_blame *b, step *s)
{
    fmo_blame_data_section *d = &b->data;
    double *score[FM_ATTRIBUTIONS] = {0};
    fm_attribution_in in = {.e = b->c->engine,
                            .p = &s->p,
                            .job = &s->job,
                            .child = b->child,
                            .wrong = &s->wrong,
                            .right = s->right_known ? &s->right : NULL,
                            .progress = show,
                            .ctx = b};
    fm_status rc = choose(d, fm_dataset_count(s->data), score);
    d->right_known = s->right_known;
    FM_THEN(rc, open_states(b, s, &in));
    double begun = fm_now_s();
    if (rc == FM_OK) {
        d->evaluations = fm_attribution_cost(&in, score);
        rc = fm_attribution_scores(&in, score);
    }
    d->seconds = fm_now_s() - begun;
    FM_THEN(rc, make_ranks(d));
    if (rc == FM_OK && d->opts.fidelity)
        rc = fmo_blame_data_fidelity(b, &in);
    return rc == FM_OK ? take_examples(b, s->data) : rc;
}

fm_status fmo_blame_data(fmo_blame *b)
{
    step s = {0};
    bool found = false;
    fm_status rc = fmo_blame_open_culprit(b);
    if (rc == FM_OK && b->answer)
        rc = open_step(b, &s, &found);
    if (rc == FM_OK && found)
        rc = make_side(b, &s, b->answer, &s.wrong);
    if (rc == FM_OK && found)
        rc = right_answer(b, &s);
    if (rc == FM_OK && found)
        rc = rank(b, &s);
    fmo_ui_progress_end(b->c);
    step_release(&s);
    return rc;
}
