/* sweep.c - chooses the settings to try, the trials that go on, and the winner. */
#include "cli/ops/derive/sweep.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "store/base/math/rng.h"

#define RUNGS_MAX 32u
#define KEYS_MAX 16u
#define GOES_ON UINT32_MAX

typedef struct trial {
    fm_json *set;
    double *loss; /* [seen] */
    size_t loss_cap;
    uint32_t seen;
    uint32_t dropped; /* the rung at which it was dropped, or GOES_ON */
    uint32_t place;   /* rank among the trials that reached that rung, or the end; from 1 */
    double metric;    /* at that rung, or at the end */
    char *failed;     /* the reason; NULL: it has not failed */
} trial;

struct fmo_sweep {
    char *name;
    bool random;
    uint64_t seed;
    trial *trial;
    size_t count, cap;
    uint32_t rung[RUNGS_MAX];
    uint32_t came[RUNGS_MAX]; /* number of trials that reached each rung */
    size_t rungs, decided;
    double keep;
    size_t winner;
    bool shares_data;
};

/* ---- settings ---- */

static bool is_reserved(const char *key, const fm_json *v)
{
    return strcmp(key, "search") == 0 || strcmp(key, "trials") == 0 ||
           (strcmp(key, "seed") == 0 && !fm_json_is(v, FM_JSON_ARRAY));
}

/* Whether a setting has no influence on the examples. */
static bool leaves_data_alone(const char *key)
{
    static const char *const keys[] = {
        "r",          "alpha",       "rslora",         "dora",   "dropout", "loraplus",
        "targets",    "lr",          "beta1",          "beta2",  "eps",     "weight_decay",
        "clip",       "schedule",    "steps",          "seed",   "warmup",  "epochs",
        "batch",      "bias",        "rank_pattern",   "freeze", "layers",  "alpha_pattern",
        "accumulate", "feedforward", "modules_to_save"};
    for (size_t i = 0; i < FM_ARRAY_LEN(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static fm_status add_trial(fmo_sweep *s, fm_json *set)
{
    fm_status rc = set ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_grow(&s->trial, &s->cap, s->count + 1, sizeof *s->trial));
    if (rc < 0) {
        fm_json_free(set);
        return rc;
    }
    s->trial[s->count++] = (trial){.set = set, .dropped = GOES_ON};
    return FM_OK;
}

static fm_status check_keys(fmo_sweep *s, const fm_json *spec, const char *where)
{
    fm_train_config probe = fm_train_defaults(FM_METHOD_LORA);
    size_t keys = 0;
    s->shares_data = true;
    for (void *it = fm_json_iter(spec); it; it = fm_json_next(spec, it)) {
        const char *key = fm_json_iter_key(it);
        const fm_json *v = fm_json_iter_value(it);
        if (is_reserved(key, v))
            continue;
        if (strcmp(key, "method") == 0)
            return fm_fail(FM_EINVAL,
                           "%s: sweep: 'method' cannot be swept; make it several "
                           "children",
                           where);
        if (fm_train_config_set(&probe, key, "") == FM_EINVAL &&
            strstr(fm_error_text(), "is unknown"))
            return fm_error_prefix(FM_EINVAL, "%s: sweep", where);
        fm_error_clear();
        bool list = fm_json_is(v, FM_JSON_ARRAY);
        if (!list && !(s->random && fm_json_is(v, FM_JSON_OBJECT)))
            return fm_fail(FM_EINVAL, "%s: sweep: '%s' must be a list of values%s", where, key,
                           s->random ? ", {log: [from, to]} or {uniform: [from, to]}"
                                     : " (ranges go with search: random)");
        if (list && fm_json_count(v) == 0)
            return fm_fail(FM_EINVAL, "%s: sweep: '%s' is an empty list", where, key);
        s->shares_data = s->shares_data && leaves_data_alone(key);
        if (++keys > KEYS_MAX)
            return fm_fail(FM_ELIMIT, "%s: sweep: more than %u keys", where, KEYS_MAX);
    }
    return keys ? FM_OK : fm_fail(FM_EINVAL, "%s: sweep: no setting is swept", where);
}

/* Point n of the grid: the digits of n in mixed radix, the last key fastest. */
static fm_json *grid_point(const fm_json *spec, uint64_t n, uint64_t total)
{
    fm_status rc = FM_OK;
    fm_json *set = fm_json_new_object();
    for (void *it = fm_json_iter(spec); it; it = fm_json_next(spec, it)) {
        const fm_json *v = fm_json_iter_value(it);
        if (is_reserved(fm_json_iter_key(it), v))
            continue;
        total /= fm_json_count(v);
        fm_json_put(&rc, set, fm_json_iter_key(it), fm_json_copy(fm_json_at(v, n / total)));
        n %= total;
    }
    if (rc == FM_OK)
        return set;
    fm_json_free(set);
    return NULL;
}

static fm_status make_grid(fmo_sweep *s, const fm_json *spec, const char *where)
{
    uint64_t total = 1;

    for (void *it = fm_json_iter(spec); it; it = fm_json_next(spec, it)) {
        if (!is_reserved(fm_json_iter_key(it), fm_json_iter_value(it)))
            total *= fm_json_count(fm_json_iter_value(it));
        if (total > SWEEP_TRIALS_MAX)
            return fm_fail(FM_ELIMIT, "%s: sweep: more than %u trials", where, SWEEP_TRIALS_MAX);
    }
    for (uint64_t n = 0; n < total; n++)
        FM_TRY(add_trial(s, grid_point(spec, n, total)));
    return FM_OK;
}

/* Rounds to six digits, so that the recipe shows exactly the value used. */
static double six_digits(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.5e", x);
    return strtod(text, NULL);
}

static fm_status draw_range(fm_json **out, const fm_json *v, double u, const char *key,
                            const char *where)
{
    const fm_json *log = fm_json_get(v, "log"), *uniform = fm_json_get(v, "uniform");
    const fm_json *range = log ? log : uniform;
    double from = fm_json_real(fm_json_at(range, 0), NAN);
    double to = fm_json_real(fm_json_at(range, 1), NAN);
    if (!log == !uniform || fm_json_count(v) != 1 || fm_json_count(range) != 2 || !(from <= to) ||
        (log && !(from > 0)))
        return fm_fail(FM_EINVAL,
                       "%s: sweep: '%s' wants {log: [from, to]} with 0 < from <= to, or {uniform: "
                       "[from, to]}",
                       where, key);
    double x =
        log ? fm_exp(fm_log(from) + u * (fm_log(to) - fm_log(from))) : from + u * (to - from);
    *out = fm_json_new_real(six_digits(x));
    return *out ? FM_OK : FM_ENOMEM;
}

/* Draws point n: each key has a random stream of its own, by its position in the file. */
static fm_status random_point(const fmo_sweep *s, const fm_json *spec, uint64_t n,
                              const char *where, fm_json **out)
{
    fm_status rc = FM_OK;
    uint64_t stream = 0;
    *out = fm_json_new_object();
    for (void *it = fm_json_iter(spec); it && rc == FM_OK; it = fm_json_next(spec, it), stream++) {
        const fm_json *v = fm_json_iter_value(it);
        fm_json *value = NULL;
        if (is_reserved(fm_json_iter_key(it), v))
            continue;
        if (fm_json_is(v, FM_JSON_ARRAY))
            value = fm_json_copy(
                fm_json_at(v, (size_t)fm_rng_below(s->seed, stream, n, fm_json_count(v))));
        else
            rc = draw_range(&value, v, fm_rng_uniform(s->seed, stream, n), fm_json_iter_key(it),
                            where);
        if (rc == FM_OK)
            fm_json_put(&rc, *out, fm_json_iter_key(it), value);
    }
    return rc;
}

static bool is_known(const fmo_sweep *s, const fm_json *set)
{
    for (size_t i = 0; i < s->count; i++)
        if (fm_json_equal(s->trial[i].set, set))
            return true;
    return false;
}

/* Draws the trials; a point drawn before is drawn again. If the lists have no more points, there
 * are fewer trials. */
static fm_status make_random(fmo_sweep *s, const fm_json *spec, uint64_t trials, const char *where)
{
    fm_status rc = FM_OK;
    for (uint64_t n = 0; rc == FM_OK && s->count < trials && n < 64 * trials; n++) {
        fm_json *set = NULL;
        rc = random_point(s, spec, n, where, &set);
        if (rc == FM_OK && !is_known(s, set))
            rc = add_trial(s, set);
        else
            fm_json_free(set);
    }
    return rc;
}

static fm_status read_sweep(fmo_sweep *s, const fm_json *spec, const char *where)
{
    const char *search = fm_json_cstr(fm_json_get(spec, "search"), "grid");
    const fm_json *trials = fm_json_get(spec, "trials"), *seed = fm_json_get(spec, "seed");
    int64_t n = fm_json_int(trials, 0);
    s->random = strcmp(search, "random") == 0;
    if (!s->random && strcmp(search, "grid") != 0)
        return fm_fail(FM_EINVAL, "%s: sweep: search '%s' is neither grid nor random", where,
                       search);
    if (s->random && (n < 1 || n > SWEEP_TRIALS_MAX))
        return fm_fail(FM_EINVAL, "%s: sweep: search random wants 'trials' from 1 to %u", where,
                       SWEEP_TRIALS_MAX);
    if (!s->random && trials)
        return fm_fail(FM_EINVAL, "%s: sweep: 'trials' goes with search: random", where);
    if (seed && !fm_json_is(seed, FM_JSON_ARRAY) &&
        (!s->random || !fm_json_is(seed, FM_JSON_INT) || fm_json_int(seed, 0) < 0))
        return fm_fail(FM_EINVAL,
                       "%s: sweep: 'seed' is a list to sweep, or with search: random a number",
                       where);
    s->seed = fm_json_is(seed, FM_JSON_INT) ? (uint64_t)fm_json_int(seed, 0) : 0;
    FM_TRY(check_keys(s, spec, where));

    return s->random ? make_random(s, spec, (uint64_t)n, where) : make_grid(s, spec, where);
}

static fm_status read_halving(fmo_sweep *s, const fm_json *child, const char *where)
{
    static const char *const known[] = {"rungs", "keep", "metric", NULL};
    const fm_json *h = fm_json_get(child, "halving"), *rungs = fm_json_get(h, "rungs");
    s->keep = fm_json_real(fm_json_get(h, "keep"), 0.5);
    if (!h)
        return FM_OK;
    FM_TRY(fm_json_known_keys(h, known, where));
    if (strcmp(fm_json_cstr(fm_json_get(h, "metric"), "loss"), "loss") != 0)
        return fm_fail(FM_EINVAL, "%s: halving: the metric there is is 'loss'", where);
    if (!(s->keep > 0.0 && s->keep < 1.0))
        return fm_fail(FM_EINVAL, "%s: halving: 'keep' must lie between 0 and 1", where);
    s->rungs = fm_json_count(rungs);
    if (!fm_json_is(rungs, FM_JSON_ARRAY) || s->rungs < 1 || s->rungs > RUNGS_MAX)
        return fm_fail(FM_EINVAL, "%s: halving: 'rungs' must list 1 to %u numbers of steps", where,
                       RUNGS_MAX);
    for (size_t i = 0; i < s->rungs; i++) {
        int64_t n = fm_json_int(fm_json_at(rungs, i), 0);
        if (n < 1 || n >= UINT32_MAX || (i && n <= s->rung[i - 1]))
            return fm_fail(FM_EINVAL, "%s: halving: 'rungs' must be whole numbers that ascend",
                           where);
        s->rung[i] = (uint32_t)n;
    }
    if (fm_json_path(child, "set.steps") || fm_json_path(child, "sweep.steps"))
        return fm_fail(FM_EINVAL,
                       "%s: halving: the last of 'rungs' is the number of steps; leave out 'steps'",
                       where);
    return FM_OK;
}

fm_status fmo_sweep_new(fmo_sweep **out, const fm_json *child, const char *name, const char *where)
{
    fmo_sweep *s = fm_calloc(1, sizeof *s);
    *out = s;
    if (!s)
        return FM_ENOMEM;
    s->winner = SIZE_MAX;
    s->name = fm_strdup(name);
    FM_TRY(s->name ? read_sweep(s, fm_json_get(child, "sweep"), where) : FM_ENOMEM);
    return read_halving(s, child, where);
}

void fmo_sweep_free(fmo_sweep *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++) {
        fm_json_free(s->trial[i].set);
        fm_free(s->trial[i].loss);
        fm_free(s->trial[i].failed);
    }
    fm_free(s->trial);
    fm_free(s->name);
    fm_free(s);
}

const char *fmo_sweep_name(const fmo_sweep *s)
{
    return s->name;
}

size_t fmo_sweep_trials(const fmo_sweep *s)
{
    return s->count;
}

const fm_json *fmo_sweep_settings(const fmo_sweep *s, size_t trial_at)
{
    return s->trial[trial_at].set;
}

void fmo_sweep_trial_config(const fmo_sweep *s, fm_train_config *c)
{
    if (s->rungs)
        c->steps = s->rung[s->rungs - 1];
}

bool fmo_sweep_halves(const fmo_sweep *s)
{
    return s->rungs > 1 && s->count > 1;
}

bool fmo_sweep_shares_data(const fmo_sweep *s)
{
    return s->shares_data;
}

/* ---- losses ---- */

fm_status fmo_sweep_step(fmo_sweep *s, size_t trial_at, uint32_t step, double loss)
{
    trial *t = &s->trial[trial_at];
    if (step > t->seen) /* a gap: the losses of the steps between are missing */
        return fm_fail(FM_EINVAL, "sweep '%s': trial %zu comes to step %u after step %u", s->name,
                       trial_at + 1, step, t->seen);
    FM_TRY(fm_grow(&t->loss, &t->loss_cap, (size_t)step + 1, sizeof *t->loss));
    t->loss[step] = loss;
    t->seen = FM_MAX(t->seen, step + 1);
    return FM_OK;
}

fm_status fmo_sweep_log(fmo_sweep *s, size_t trial_at, const fm_json *log)
{
    for (size_t i = 0; i < fm_json_count(log); i++)
        FM_TRY(fmo_sweep_step(s, trial_at, (uint32_t)i,
                              fm_json_real(fm_json_get(fm_json_at(log, i), "loss"), INFINITY)));
    return FM_OK;
}

void fmo_sweep_failed(fmo_sweep *s, size_t trial_at, const char *why)
{
    trial *t = &s->trial[trial_at];
    if (t->dropped != GOES_ON)
        return;
    fm_free(t->failed);
    t->failed = fm_strdup(why);
}

bool fmo_sweep_dropped(const fmo_sweep *s, size_t trial_at)
{
    return s->trial[trial_at].dropped != GOES_ON;
}

uint32_t fmo_sweep_seen(const fmo_sweep *s, size_t trial_at)
{
    return s->trial[trial_at].seen;
}

/* ---- judgement ---- */

/* The mean loss over the last quarter of the first `steps` steps; NaN counts as infinity. */
static double metric_at(const trial *t, uint32_t steps)
{
    uint32_t n = (steps + 3) / 4;
    double sum = 0.0;
    for (uint32_t i = steps - n; i < steps; i++)
        sum += t->loss[i];
    double mean = n ? sum / (double)n : (double)INFINITY;
    return isnan(mean) ? (double)INFINITY : mean;
}

/* Whether a trial is neither dropped nor failed. */
static bool races(const trial *t)
{
    return t->dropped == GOES_ON && !t->failed;
}

static void rank(fmo_sweep *s, const size_t *who, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        trial *t = &s->trial[who[i]];
        t->place = 1;
        for (size_t k = 0; k < n; k++) {
            const trial *o = &s->trial[who[k]];
            if (o->metric < t->metric || (o->metric == t->metric && who[k] < who[i]))
                t->place++;
        }
    }
}

/* Decides a rung. False: some trial left has not reached it yet. */
static bool decide(fmo_sweep *s, size_t rung)
{
    size_t who[SWEEP_TRIALS_MAX], n = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (!races(&s->trial[i]))
            continue;
        if (s->trial[i].seen < s->rung[rung])
            return false;
        s->trial[i].metric = metric_at(&s->trial[i], s->rung[rung]);
        who[n++] = i;
    }
    rank(s, who, n);
    double want = ceil(s->keep * (double)n - 1e-9);
    uint32_t keep = want < 1.0 ? 1 : (uint32_t)want;
    s->came[rung] = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        if (s->trial[who[i]].place > keep)
            s->trial[who[i]].dropped = (uint32_t)rung;
    return true;
}

fm_status fmo_sweep_judge(fmo_sweep *s)
{
    while (s->decided + 1 < s->rungs && decide(s, s->decided))
        s->decided++;
    return FM_OK;
}

fm_status fmo_sweep_end(fmo_sweep *s, size_t *winner)
{
    size_t who[SWEEP_TRIALS_MAX], n = 0;
    fm_status rc = fmo_sweep_judge(s);
    for (size_t i = 0; i < s->count; i++) {
        trial *t = &s->trial[i];
        if (!races(t))
            continue;
        t->metric = t->seen ? metric_at(t, t->seen) : (double)INFINITY;
        who[n++] = i;
    }
    rank(s, who, n);
    for (size_t i = 0; i < n; i++)
        if (s->trial[who[i]].place == 1)
            s->winner = who[i];
    *winner = s->winner;
    return rc;
}

/* ---- sweep.json ---- */

static void outcome(const fmo_sweep *s, size_t i, char *out, size_t bytes)
{
    const trial *t = &s->trial[i];
    if (t->failed)
        snprintf(out, bytes, "failed: %.400s", t->failed);
    else if (t->dropped != GOES_ON)
        snprintf(out, bytes, "dropped at step %u: %u of %u", s->rung[t->dropped], t->place,
                 s->came[t->dropped]);
    else if (i == s->winner)
        snprintf(out, bytes, "wins");
    else
        snprintf(out, bytes, "ended: place %u", t->place);
}

static uint32_t steps_of(const fmo_sweep *s, const trial *t)
{
    return t->dropped != GOES_ON ? s->rung[t->dropped] : t->seen;
}

static fm_json *trial_json(const fmo_sweep *s, size_t i)
{
    const trial *t = &s->trial[i];
    char text[512];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    outcome(s, i, text, sizeof text);
    fm_json_put(&rc, o, "trial", fm_json_new_int((int64_t)i + 1));
    fm_json_put(&rc, o, "set", fm_json_copy(t->set));
    fm_json_put(&rc, o, "steps", fm_json_new_int((int64_t)steps_of(s, t)));
    if (!t->failed)
        fm_json_put(&rc, o, "loss", fm_json_new_real(t->metric));
    fm_json_put(&rc, o, "outcome", fm_json_new_str(text));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

fm_json *fmo_sweep_json(const fmo_sweep *s)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *trials = fm_json_new_array();
    fm_json_put(&rc, o, "format", fm_json_new_int(1));
    fm_json_put(&rc, o, "search", fm_json_new_str(s->random ? "random" : "grid"));
    if (s->random)
        fm_json_put(&rc, o, "seed", fm_json_new_int((int64_t)s->seed));
    fm_json_put(&rc, o, "metric", fm_json_new_str("loss"));
    if (s->rungs) {
        fm_json *rungs = fm_json_new_array();
        for (size_t i = 0; i < s->rungs; i++)
            fm_json_push_to(&rc, rungs, fm_json_new_int((int64_t)s->rung[i]));
        fm_json_put(&rc, o, "rungs", rungs);
        fm_json_put(&rc, o, "keep", fm_json_new_real(s->keep));
    }
    fm_json_put(&rc, o, "winner",
                fm_json_new_int(s->winner == SIZE_MAX ? 0 : (int64_t)s->winner + 1));
    for (size_t i = 0; i < s->count; i++)
        fm_json_push_to(&rc, trials, trial_json(s, i));
    fm_json_put(&rc, o, "trials", trials);
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}
