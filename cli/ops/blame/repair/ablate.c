/* ablate.c - recipe ablation: trains the guilty step again without a file, with one setting of the
 * parent or of the defaults, with half the steps, with another seed. */
#include <math.h>
#include <string.h>

#include "cli/ops/blame/repair/rederive.h"
#include "cli/ops/base/say.h"
#include "store/base/mem.h"

enum { IN_A_PASS = 4 }; /* trainings in one pass */

/* Settings whose value may be the cause; not those that fit the model to the data's form (targets,
 * layers, max_tokens, objective). */
static const char *const settings[] = {
    "lr",      "epochs", "steps",    "batch",        "accumulate", "r",    "alpha",
    "dropout", "warmup", "schedule", "weight_decay", "loraplus",   "clip", "answers_only"};

typedef struct planned { /* the training of steps.ablation[i] */
    fm_train_config config;
    fm_json *recipe;
} planned;

typedef struct plan {
    fmo_blame_more *m;
    const fmo_replay *r;
    planned *item;
    size_t count, cap;
    double whole_s;
    uint32_t steps;
} plan;

/* Takes ownership of recipe and what; share: of the whole run's time. */
static fm_status add(plan *p, const fm_train_config *config, fm_json *recipe, double share,
                     char *what)
{
    fmo_blame_steps *s = &p->m->steps;
    fm_status rc = recipe && what ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_grow(&p->item, &p->cap, p->count + 1, sizeof *p->item));
    FM_THEN(rc, fm_grow(&s->ablation, &s->ablation_cap, s->ablations + 1, sizeof *s->ablation));
    if (rc < 0) {
        fm_json_free(recipe);
        fm_free(what);
        return rc;
    }
    p->item[p->count++] = (planned){*config, recipe};
    s->ablation[s->ablations++] = (fmo_blame_ablation){
        .what = what, .verdict = FM_ERROR_CASE, .margin = NAN, .estimate_s = p->whole_s * share};
    return FM_OK;
}

static char *value_text(const fm_json *v)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = fm_json_write(&text, v, FM_JSON_COMPACT);
    return rc == FM_OK ? fm_buf_take(&text) : NULL;
}

static double share_of(const char *key, const fm_json *own, const fm_json *other)
{
    double a = fm_json_real(own, 0), b = fm_json_real(other, 0);
    bool length = strcmp(key, "epochs") == 0 || strcmp(key, "steps") == 0;
    if (strcmp(key, "steps") == 0 && b < 1) /* the epochs then give the number, not known here */
        return 1;
    return length && a > 0 ? b / a : 1;
}

static fm_status add_setting(plan *p, const char *key, const fm_json *mine, const fm_json *theirs,
                             const char *whose)
{
    const fm_json *own = fm_json_get(mine, key), *other = fm_json_get(theirs, key);
    fm_train_config config;
    if (!own || !other || fm_json_equal(own, other))
        return FM_OK;
    if (strcmp(key, "epochs") == 0 && p->r->config.steps) /* epochs have no effect */
        return FM_OK;
    fm_json *changed = fm_json_copy(mine);
    fm_status rc = changed ? fm_json_set(changed, key, fm_json_copy(other)) : FM_ENOMEM;
    FM_THEN(rc, fm_train_config_from_json(&config, changed, "the changed recipe"));
    fm_json_free(changed);
    if (rc < 0)
        return rc;
    char *was = value_text(own), *is = value_text(other);
    bool by_epochs = strcmp(key, "steps") == 0 && fm_json_int(other, 0) == 0;
    char *what = !was || !is ? NULL
                 : by_epochs ? fm_asprintf("as many steps as %g epochs take instead of %s (%s)",
                                           config.epochs, was, whose)
                             : fm_asprintf("%s %s instead of %s (%s)", key, is, was, whose);
    rc = add(p, &config, fm_json_copy(p->r->recipe), share_of(key, own, other), what);
    fm_free(was);
    fm_free(is);
    return rc;
}

/* Adds settings of the parent if it was trained by the same method, else the defaults. */
static fm_status add_settings(plan *p)
{
    const fmo_replay *r = p->r;
    fm_json *recipe = NULL, *mine = fm_train_config_json(&r->config);
    fm_train_config defaults = fm_train_defaults(r->config.method);
    fm_status rc = mine ? fmo_tree_recipe(r->c, r->parent, &recipe) : FM_ENOMEM;
    const fm_json *config = fm_json_get(recipe, "config");
    bool same = config && fm_json_equal(fm_json_get(recipe, "operation"),
                                        fm_json_get(r->recipe, "operation"));
    fm_json *theirs = same ? fm_json_ref(config) : fm_train_config_json(&defaults);
    if (rc == FM_OK && !theirs)
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(settings); i++)
        rc = add_setting(p, settings[i], mine, theirs, same ? "the parent's" : "the default");
    fm_json_free(theirs);
    fm_json_free(mine);
    fm_json_free(recipe);
    return rc;
}

static fm_status add_files(plan *p)
{
    const fm_json *data = fm_json_get(p->r->recipe, "data");

    for (size_t i = 0; fm_json_count(data) > 1 && i < fm_json_count(data); i++) {
        const char *name = fm_json_cstr(fm_json_get(fm_json_at(data, i), "name"), "");
        if (!fm_json_bool(fm_json_get(fm_json_at(data, i), "evaluation"), false))
            FM_TRY(add(p, &p->r->config, fmo_blame_recipe_without(p->r->recipe, name, NULL, 0), 1,
                       fm_asprintf("without %s", name)));
    }
    return FM_OK;
}

static fm_status add_others(plan *p)
{
    fm_train_config half = p->r->config, seed = p->r->config;

    half.steps = p->steps / 2;
    seed.seed++;
    if (half.steps)
        FM_TRY(add(p, &half, fm_json_copy(p->r->recipe), 0.5,
                   fm_asprintf("%u steps, half of %u", half.steps, p->steps)));

    return add(p, &seed, fm_json_copy(p->r->recipe), 1,
               fm_asprintf("seed %llu instead of %llu", (unsigned long long)seed.seed,
                           (unsigned long long)p->r->config.seed));
}

static fm_status judge(const plan *p, fmo_blame_variant *v, fmo_blame_ablation *a, double seconds)
{
    fmo_blame_overlay made;
    fm_tree *tree = NULL;
    fm_status rc = FM_OK;
    a->seconds = seconds;
    if (v->result.failed) {
        a->why = fm_strdup(v->result.why ? v->result.why : "training failed");
        return a->why ? FM_OK : FM_ENOMEM;
    }
    fmo_blame_overlay_open(&made, p->m->b);
    rc = fmo_blame_tree_of_result(p->r, &v->result, &tree, &made);
    FM_THEN(rc, fmo_blame_try(p->m, tree, &made, "ablation", &a->verdict, &a->margin));
    a->run = rc == FM_OK;
    fm_tree_free(tree);
    fmo_blame_overlay_release(&made);
    return rc;
}

/* Opens a variant. One that cannot be trained (no example is left) gets the reason in a->why; the
 * others go on. */
static fm_status open_one(const plan *p, size_t i, fmo_blame_variant *v, fmo_blame_ablation *a,
                          bool *fit)
{
    fm_status rc = fmo_blame_variant_open(v, p->r, &p->item[i].config, p->item[i].recipe);
    p->item[i].recipe = NULL;
    *fit = rc == FM_OK;
    if (rc == FM_OK)
        return FM_OK;
    fmo_blame_variant_release(v);
    if (rc == FM_ENOMEM)
        return rc;
    a->why = fm_strdup(fm_error_text());
    fm_error_clear();
    return a->why ? FM_OK : FM_ENOMEM;
}

static fm_status run_some(const plan *p, const size_t *pick, size_t n)
{
    fmo_blame_variant v[IN_A_PASS];
    size_t which[IN_A_PASS], open = 0;
    double began = fm_now_s();
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        bool fit = false;
        which[open] = pick[i];
        rc = open_one(p, pick[i], &v[open], &p->m->steps.ablation[pick[i]], &fit);
        open += fit;
    }
    if (rc == FM_OK && open)
        rc = fmo_blame_variants_train(p->m, p->r, v, open, "ablation");
    double each = (fm_now_s() - began) / (double)FM_MAX(open, (size_t)1);
    for (size_t i = 0; rc == FM_OK && i < open; i++)
        rc = judge(p, &v[i], &p->m->steps.ablation[which[i]], each);
    for (size_t i = 0; i < open; i++)
        fmo_blame_variant_release(&v[i]);
    return rc;
}

/* Trains the variants in the order of the list, as many as the budget allows by their estimates. */
static fm_status run_all(const plan *p)
{
    fmo_blame_steps *s = &p->m->steps;
    double left = (double)p->m->budget_s - s->seconds, sum = 0;
    size_t pick[IN_A_PASS], n = 0;

    for (size_t i = 0; i < s->ablations; i++)
        sum += s->ablation[i].estimate_s;
    fmo_ui_say(p->m->b->c, FM_UI_NOTE,
               "blame: %zu changed recipes, about %.0f s of training; --budget leaves %.0f s",
               s->ablations, sum, FM_MAX(left, 0.0));
    for (size_t i = 0; i < s->ablations; i++) {
        if (s->ablation[i].estimate_s > left) {
            s->ablation[i].why = fm_strdup("the budget is used up");
        } else {
            left -= s->ablation[i].estimate_s;
            pick[n++] = i;
        }
        if (n == IN_A_PASS || (n && i + 1 == s->ablations)) {
            FM_TRY(run_some(p, pick, n));
            n = 0;
        }
    }
    return FM_OK;
}

fm_status fmo_blame_ablate(fmo_blame_more *m, const fmo_replay *r)
{
    plan p = {.m = m, .r = r, .whole_s = m->steps.plan_s, .steps = m->steps.steps};
    double began = fm_now_s();
    fm_status rc = add_files(&p);
    FM_THEN(rc, add_others(&p));
    FM_THEN(rc, add_settings(&p));
    if (rc == FM_OK && m->rederive)
        rc = run_all(&p);
    for (size_t i = 0; i < p.count; i++)
        fm_json_free(p.item[i].recipe);
    fm_free(p.item);
    m->steps.seconds += fm_now_s() - began;
    return rc;
}
