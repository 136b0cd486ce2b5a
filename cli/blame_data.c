/* blame_data.c - which examples of the guilty step's data pull towards the wrong answer. */
#include "cli/blame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/data.h"
#include "infer/prompt.h"
#include "store/base/mem.h"
#include "train/train.h"

static int by_score(const void *x, const void *y)
{
    const blame_example *a = x, *b = y;
    if (a->score != b->score)
        return a->score < b->score ? 1 : -1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* How many examples stand out of the crowd: more than six robust deviations (median absolute
 * deviation, scaled to a normal's) above the median. A place to look, not a verdict. */
static size_t standing_out(const blame_example *e, size_t count)
{
    double *v = fm_calloc(count, sizeof *v);
    size_t out = 0;
    if (!v || count == 0) {
        fm_free(v);
        return 0;
    }
    double median = e[count / 2].score;
    for (size_t i = 0; i < count; i++)
        v[i] = fabs(e[i].score - median);
    qsort(v, count, sizeof *v, by_value);
    double bound = median + 6 * 1.4826 * v[count / 2];
    while (out < count && e[out].score > fmax(bound, 0))
        out++;
    fm_free(v);
    return out;
}

/* prompt + the culprit's wrong answer, labels on the answer. */
static fm_status make_target(const blame *b, const fm_model *m, fm_example *target)
{
    fm_ids ids = {0};
    size_t prompt;
    fm_status rc = fm_suite_case_prompt(&ids, b->suite, b->case_index, m);
    prompt = ids.count;
    if (rc == FM_OK)
        rc = fm_tokenizer_encode(fm_model_tokenizer(m), fm_span_str(b->answer), false, &ids);
    if (rc == FM_OK && ids.count == prompt)
        rc = fm_fail(FM_EUNSUPPORTED, "the answer is empty, so no gradient can be taken of it");
    if (rc == FM_OK && !(target->labels = fm_calloc(ids.count, sizeof *target->labels)))
        rc = FM_ENOMEM;
    if (rc < 0) {
        fm_ids_release(&ids);
        return rc;
    }
    for (size_t i = 0; i < ids.count; i++)
        target->labels[i] = i < prompt ? -100 : ids.id[i];
    target->len = target->part_len[0] = (uint32_t)ids.count;
    target->parts = 1;
    target->klass = -1;
    target->ids = ids.id; /* taken */
    return FM_OK;
}

/* Did the culprit's step train an adapter (rather than the weights themselves)? */
static bool trained_adapter(const blame *b)
{
    size_t begin, end, parent_begin = 0, parent_end = 0;
    fm_tree_range(b->child, "adapters/", &begin, &end);
    if (b->parent)
        fm_tree_range(b->parent, "adapters/", &parent_begin, &parent_end);
    return end - begin > parent_end - parent_begin;
}

/* A record's number says all where there is one file. */
static char *preview_of(const fm_dataset *data, const fm_example *e)
{
    if (fm_dataset_files(data) == 1)
        return fm_strdup(e->preview);
    fm_json *manifest = fm_dataset_file_manifest(data, e->file);
    char *text = manifest ? fm_asprintf("%s: %s", fm_json_cstr(fm_json_get(manifest, "name"), ""),
                                        e->preview)
                          : NULL;
    fm_json_free(manifest);
    return text;
}

static fm_status rank(blame *b, const fm_dataset *data, const fm_example *target)
{
    size_t n = fm_dataset_count(data);
    fm_provider p = fm_store_provider(fm_repo_store(b->c->repo));
    double *score = fm_calloc(n, sizeof *score);
    b->example = fm_calloc(n, sizeof *b->example);
    if (!score || !b->example) {
        fm_free(score);
        return FM_ENOMEM;
    }
    fm_status rc = fm_influence(b->c->engine, b->child, trained_adapter(b) ? NULL : b->parent, &p,
                                data, target, score);
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const fm_example *e = fm_dataset_at(data, i);
        b->example[i] = (blame_example){e->index, score[i], preview_of(data, e)};
        b->example_count++;
    }
    if (rc == FM_OK) {
        qsort(b->example, n, sizeof *b->example, by_score);
        b->outstanding = standing_out(b->example, n);
    }
    fm_free(score);
    return rc;
}

/* The data as the recipe trained on it: same files and settings, same records left out. */
static fm_status open_data(blame *b, const fm_model *m, fm_dataset **out)
{
    size_t begin, end;
    fm_json *recipe = NULL;
    fm_train_config config;
    fm_tree_range(b->child, "data/", &begin, &end);
    fm_status rc = tree_recipe(b->c, b->child, &recipe);
    if (rc < 0 || begin == end || !recipe) {
        fm_json_free(recipe);
        return rc;
    }
    const fm_json *data = fm_json_get(recipe, "data");
    b->data_name = fm_strdup(fm_json_cstr(fm_json_get(fm_json_at(data, 0), "name"), ""));
    rc = b->data_name
             ? fm_train_config_from_json(&config, fm_json_get(recipe, "config"), "recipe.json")
             : FM_ENOMEM;
    if (rc == FM_OK)
        rc = data_of_version(b->c, b->child, recipe, &config, fm_model_tokenizer(m),
                             fm_model_chat_template(m), out);
    fm_json_free(recipe);
    return rc;
}

fm_status blame_data(blame *b)
{
    fm_model *m = NULL;
    fm_dataset *data = NULL;
    fm_example target = {0};
    fm_status rc = blame_open_culprit(b);
    if (rc == FM_OK && b->answer)
        rc = cli_load_model(b->c, b->child, "culprit", &m);
    if (rc == FM_OK && m)
        rc = open_data(b, m, &data);
    if (rc == FM_OK && data)
        rc = make_target(b, m, &target);
    if (rc == FM_OK && data) {
        out_progress("data: gradients of %zu examples", fm_dataset_count(data));
        rc = rank(b, data, &target);
    }
    out_progress_end();
    fm_free(target.ids);
    fm_free(target.labels);
    fm_dataset_close(data);
    fm_model_close(m);
    return rc;
}
