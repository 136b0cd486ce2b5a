/* aux_models.c - auxiliary models: opened once for a run, asked about all answers together. */
#include "testing/run/aux_models.h"

#include <math.h>
#include <string.h>

#include "infer/prompt.h"
#include "store/base/mem.h"
#include "testing/run/run.h"

#define REPLY_TOKENS_MIN 64u /* tokens that must be left for a judge's reply */
#define REPLY_TOKENS_MAX 192u
#define MODELS_MAX 64u /* most models of one run */

void fmv_aux_release(fmv_aux *h)
{
    for (size_t i = 0; i < h->texts; i++) {
        fm_buf_release(&h->text[i]);
        if (h->ids)
            fm_ids_release(&h->ids[i]);
    }
    fm_free(h->text);
    fm_free(h->ids);
    fm_free(h->out);
    fm_gen_result_release(&h->gen);
}

void fmv_auxs_release(fmv_job *j)
{
    for (size_t i = 0; j->aux && i < j->c->prompt_count * j->c->aux_count; i++)
        fmv_aux_release(&j->aux[i]);
    fm_free(j->aux);
    j->aux = NULL;
}

/* ---- the auxiliary models of a run ---- */

struct fmv_aux_models {
    fm_engine *engine;
    const fm_result_cache *env;
    struct {
        const char *id;
        fm_model *model; /* NULL: it could not be opened, for the reason `why` */
        char *why;
    } opened[MODELS_MAX];
    size_t models;
    struct {
        const char *form;
        fm_grammar *grammar;
    } form[8];
    size_t forms;
};

void fmv_aux_models_free(fmv_aux_models *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->models; i++) {
        fm_model_close(h->opened[i].model);
        fm_free(h->opened[i].why);
    }
    for (size_t i = 0; i < h->forms; i++)
        fm_grammar_free(h->form[i].grammar);
    fm_free(h);
}

static fm_status open_model(fmv_aux_models *h, const char *id, fm_model **out)
{
    *out = NULL;
    if (!h->env || !h->env->open)
        return fm_fail(FM_EUNSUPPORTED,
                       "model '%.60s': no repository is at hand that it could be opened from", id);
    FM_TRY(h->env->open(h->env->ctx, id, out));
    if (fm_model_engine(*out) != h->engine) {
        fm_model_close(*out);
        *out = NULL;
        return fm_fail(FM_EINVAL, "model '%.60s' belongs to another engine", id);
    }
    return FM_OK;
}

static fm_status model_of(fmv_aux_models *h, const char *id, fm_model **out)
{
    size_t i = 0;
    while (i < h->models && strcmp(h->opened[i].id, id) != 0)
        i++;
    if (i == MODELS_MAX)
        return fm_fail(FM_ELIMIT, "a run asks at most %u models about its answers", MODELS_MAX);
    if (i == h->models) {
        fm_status rc = open_model(h, id, out);
        if (rc == FM_ENOMEM)
            return rc;
        h->opened[i].id = id;
        h->opened[i].model = *out;
        h->opened[i].why = rc < 0 ? fm_strdup(fm_error_text()) : NULL;
        h->models++;
        fm_error_clear();
    }
    *out = h->opened[i].model;
    return *out ? FM_OK
                : fm_fail(FM_ENOTFOUND, "%s", h->opened[i].why ? h->opened[i].why : "no memory");
}

static fm_status grammar_of(fmv_aux_models *h, const char *form, fm_grammar **out)
{
    fm_json *schema = NULL;
    for (size_t i = 0; i < h->forms; i++)
        if (h->form[i].form == form) {
            *out = h->form[i].grammar;
            return FM_OK;
        }
    fm_assert(h->forms < FM_ARRAY_LEN(h->form));
    fm_status rc = fm_json_parse(&schema, fm_span_str(form), "judge");
    FM_THEN(rc, fm_grammar_new(out, schema, true));
    fm_json_free(schema);
    if (rc == FM_OK) {
        h->form[h->forms].form = form;
        h->form[h->forms++].grammar = *out;
    }
    return rc;
}

/* ---- the questions to each ---- */

typedef struct asking {
    fmv_aux_models *h;
    fmv_job *j;
    fmv_aux *aux; /* the aux entries of this answer */
    fmv_answer said;
} asking;

static fm_status encode(fmv_aux *h, fmv_aux_role role)
{
    h->ids = fm_calloc(h->texts, sizeof *h->ids);
    if (!h->ids)
        return FM_ENOMEM;
    for (size_t i = 0; i < h->texts; i++) {
        fm_span text = fm_buf_span(&h->text[i]);
        if (role != FMV_JUDGE)
            FM_TRY(fmv_trim(text).len ? fm_embed_encode(h->model, text, &h->ids[i]) : FM_OK);
        else if (fm_model_chat_template(h->model))
            FM_TRY(fm_prompt_user(&h->ids[i], h->model, text));
        else
            FM_TRY(fm_prompt_text(&h->ids[i], h->model, text));
        FM_TRY(fmv_check_ids(&h->ids[i], role == FMV_JUDGE ? REPLY_TOKENS_MIN : 0,
                             fm_model_arch(h->model)));
    }
    return FM_OK;
}

static fm_status ask_aux(void *ctx, const fmv_assertion *a)
{
    asking *x = ctx;
    fmv_aux *h = &x->aux[a->aux_at];
    fm_status rc = model_of(x->h, a->model, &h->model);
    if (rc == FM_OK && a->type->role == FMV_CLASSIFIER && !fm_model_classes(h->model))
        rc = fm_fail(FM_EUNSUPPORTED, "it has no classification head");
    if (rc == FM_OK && a->type->role == FMV_CLASSIFIER && fm_model_scores(h->model))
        rc = fm_fail(FM_EUNSUPPORTED, "its head gives a number, and no class");
    FM_THEN(rc, a->type->ask(a, &x->said, h));
    FM_THEN(rc, encode(h, a->type->role));
    if (rc == FM_OK && a->type->role != FMV_JUDGE) {
        h->width = a->type->role == FMV_EMBEDDER ? fm_model_arch(h->model)->hidden
                                                 : fm_model_classes(h->model);
        h->out = fm_calloc(h->texts * h->width, sizeof *h->out);
        if (!h->out)
            rc = FM_ENOMEM;
    }
    return rc < 0 && rc != FM_ENOMEM
               ? fm_error_prefix(rc, "expect.%s, model %.12s", a->type->word, a->model)
               : rc;
}

static fm_status ask_all(fmv_aux_models *h, fmv_job *j)
{
    const fmv_case *c = j->c;
    fm_status rc = FM_OK;
    j->aux = fm_calloc(c->prompt_count * c->aux_count, sizeof *j->aux);
    if (!j->aux)
        return FM_ENOMEM;
    for (size_t k = 0; rc == FM_OK && k < c->prompt_count; k++) {
        fm_buf question;
        fm_buf_init(&question, 0);
        rc = fmv_question(&question, c, k);
        asking x = {h,
                    j,
                    j->aux + k * c->aux_count,
                    {.text = fm_buf_span(&j->said[k].text), .question = fm_buf_span(&question)}};
        FM_THEN(rc, fmv_each_aux(c, ask_aux, &x));
        fm_buf_release(&question);
    }
    return rc;
}

/* ---- one batch for each kind of model ---- */

/* The requests of some jobs to auxiliary models. */
typedef struct batch {
    fmv_aux_models *h;
    fm_gen_request *gen;
    fm_gen_result **to;
    fm_embed_request *embed;
    fm_classify_request *classify;
    size_t gens, embeds, classifies;
    fmv_aux *aux; /* used while the requests of one answer are gathered */
} batch;

static fm_status gather_one(void *ctx, const fmv_assertion *a)
{
    batch *b = ctx;
    fmv_aux *h = &b->aux[a->aux_at];
    fm_grammar *g = NULL;
    fm_status rc = FM_OK;
    if (a->type->role == FMV_JUDGE) {
        rc = grammar_of(b->h, fmv_judge_form(a), &g);
        b->to[b->gens] = &h->gen;
        size_t room = fm_model_arch(h->model)->max_positions - h->ids[0].count;
        fm_gen_request *q = &b->gen[b->gens++];
        *q = (fm_gen_request){.model = h->model,
                              .prompt = h->ids[0].id,
                              .prompt_len = h->ids[0].count,
                              .max_new = (uint32_t)FM_MIN((size_t)REPLY_TOKENS_MAX, room),
                              .grammar = g};
        fm_sample_defaults(&q->sampling);
        return rc;
    }
    for (size_t i = 0; i < h->texts; i++) {
        const fm_ids *ids = &h->ids[i];
        float *out = h->out + i * h->width;
        if (!ids->count)
            continue;
        if (a->type->role == FMV_EMBEDDER)
            b->embed[b->embeds++] = (fm_embed_request){h->model, ids->id, ids->count, out};
        else
            b->classify[b->classifies++] =
                (fm_classify_request){h->model, ids->id, ids->count, out};
    }
    return rc;
}

static size_t texts_of(const fmv_job *job, size_t jobs)
{
    size_t n = 0;
    for (size_t i = 0; i < jobs; i++)
        for (size_t k = 0; job[i].aux && k < job[i].c->prompt_count * job[i].c->aux_count; k++)
            n += job[i].aux[k].texts;
    return n;
}

static fm_status run_batch(fmv_aux_models *h, fmv_job *job, size_t jobs)
{
    size_t room = texts_of(job, jobs) + 1;
    batch b = {.h = h,
               .gen = fm_calloc(room, sizeof *b.gen),
               .to = fm_calloc(room, sizeof *b.to),
               .embed = fm_calloc(room, sizeof *b.embed),
               .classify = fm_calloc(room, sizeof *b.classify)};
    fm_status rc = b.gen && b.to && b.embed && b.classify ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < jobs; i++)
        for (size_t k = 0;
             rc == FM_OK && job[i].aux && !job[i].broken && k < job[i].c->prompt_count; k++) {
            b.aux = job[i].aux + k * job[i].c->aux_count;
            rc = fmv_each_aux(job[i].c, gather_one, &b);
        }
    if (rc == FM_OK && b.embeds)
        rc = fm_embed_many(h->engine, b.embed, b.embeds);
    if (rc == FM_OK && b.classifies)
        rc = fm_classify_many(h->engine, b.classify, b.classifies);
    if (rc == FM_OK && b.gens)
        rc = fmv_generate_all(h->engine, b.gen, b.to, b.gens);
    fm_free(b.gen);
    fm_free(b.to);
    fm_free(b.embed);
    fm_free(b.classify);
    return rc;
}

/* Runs one batch. If it fails because one job cannot be asked, each job runs alone. */
static fm_status run_each(fmv_aux_models *h, fmv_job *job, size_t jobs)
{
    fm_status rc = run_batch(h, job, jobs);
    if (rc == FM_OK || rc == FM_ENOMEM)
        return rc;
    fm_error_clear();
    rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < jobs; i++) {
        if (job[i].broken || !job[i].aux)
            continue;
        rc = run_batch(h, &job[i], 1);
        if (rc < 0)
            rc = fmv_case_error(&job[i], rc);
    }
    return rc;
}

fm_status fmv_aux_ask_all(fmv_aux_models **out, fm_engine *e, const fm_result_cache *env,
                          fmv_job *job, size_t jobs)
{
    fm_status rc = FM_OK;
    *out = NULL;
    for (size_t i = 0; rc == FM_OK && i < jobs; i++) {
        fmv_job *j = &job[i];
        if (j->broken || !j->c->aux_count)
            continue;
        if (!*out && !(*out = fm_calloc(1, sizeof **out)))
            return FM_ENOMEM;
        (*out)->engine = e;
        (*out)->env = env;
        rc = ask_all(*out, j);
        if (rc < 0)
            rc = fmv_case_error(j, rc);
    }
    return rc == FM_OK && *out ? run_each(*out, job, jobs) : rc;
}
