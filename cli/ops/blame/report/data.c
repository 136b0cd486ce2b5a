/* data.c - writes the ranking of examples as JSON. */
#include <math.h>

#include "cli/ops/blame/blame.h"

static void set_measured(fm_status *rc, fm_json *o, const char *key, double v)
{
    if (!isnan(v))
        fm_json_put(rc, o, key, fm_json_new_real(v));
}

static fm_json *ranking_json(const fmo_blame_data_section *d, const fmo_blame_ranking *r)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *scores = fm_json_new_array(), *ranks = fm_json_new_array();
    const fm_attribution_method *m = &fm_attribution_methods[r->kind];
    for (size_t i = 0; i < d->count; i++) {
        fm_json_push_to(&rc, scores, fm_json_new_real(r->score[i]));
        fm_json_push_to(&rc, ranks, fm_json_new_int(r->rank[i]));
    }
    fm_json_put(&rc, o, "method", fm_json_new_str(m->name));
    fm_json_put(&rc, o, "says", fm_json_new_str(m->says));
    fm_json_put(&rc, o, "scores", scores);
    fm_json_put(&rc, o, "ranks", ranks);
    if (d->trainings > 0) {
        fm_json *f = fm_json_new_object();
        set_measured(&rc, f, "without_first", r->fidelity.top);
        set_measured(&rc, f, "without_last", r->fidelity.bottom);
        set_measured(&rc, f, "lds", r->fidelity.lds);
        fm_json_put(&rc, o, "fidelity", f);
    }
    return o;
}

static fm_json *examples_json(const fmo_blame *b)
{
    fm_status rc = FM_OK;
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < b->example_count; i++) {
        fm_json *e = fm_json_new_object();
        if (b->example[i].file)
            fm_json_put(&rc, e, "file", fm_json_new_str(b->example[i].file));
        fm_json_put(&rc, e, "record", fm_json_new_int(b->example[i].index));
        fm_json_put(&rc, e, "rank", fm_json_new_int((int64_t)i));
        fm_json_put(&rc, e, "score", fm_json_new_real(b->example[i].score));
        fm_json_put(&rc, e, "stands_out", fm_json_new_bool(i < b->outstanding));
        fm_json_put(&rc, e, "preview", fm_json_new_str(b->example[i].preview));
        fm_json_push_to(&rc, list, e);
    }
    return list;
}

fm_json *fmo_blame_data_json(const fmo_blame *b)
{
    const fmo_blame_data_section *d = &b->data;
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *rankings = fm_json_new_array();
    fm_json_put(&rc, o, "name", fm_json_new_str(b->data_name));
    if (d->rankings > 0) {
        fm_json_put(&rc, o, "method",
                    fm_json_new_str(fm_attribution_methods[d->ranking[0].kind].name));
        fm_json_put(&rc, o, "target", fm_json_new_str(d->right_known ? "margin" : "wrong answer"));
        fm_json_put(&rc, o, "checkpoints", fm_json_new_bool(d->checkpoints));
        fm_json_put(&rc, o, "evaluations", fm_json_new_int((int64_t)d->evaluations));
        fm_json_put(&rc, o, "seconds", fm_json_new_real(d->seconds));
    }
    if (d->trainings > 0) {
        fm_json_put(&rc, o, "trainings", fm_json_new_int(d->trainings));
        fm_json_put(&rc, o, "group", fm_json_new_int((int64_t)d->group));
        fm_json_put(&rc, o, "halves", fm_json_new_int((int64_t)d->halves));
        fm_json_put(&rc, o, "margin", fm_json_new_real(d->margin));
        set_measured(&rc, o, "without_random", d->random);
    }
    fm_json_put(&rc, o, "examples", examples_json(b));
    for (size_t i = 0; i < d->rankings; i++)
        fm_json_push_to(&rc, rankings, ranking_json(d, &d->ranking[i]));
    fm_json_put(&rc, o, "rankings", rankings);
    return o;
}
