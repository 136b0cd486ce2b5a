/* verify.c - a GGUF beside the version that it was written of.
 *
 * Three models are run over the same tokens, one after another: the version, which also chooses
 * the answers; the version rounded to the file's types; the file. The second says how far rounding
 * alone leads away, so that the limits follow from the types and not from a table of them. */
#include "cli/ops/export.h"

#include <math.h>
#include <string.h>

#include "cli/ops/base/say.h"
#include "cli/ops/version/turns.h"
#include "cli/ops/version/written.h"
#include "infer/prompt.h"
#include "store/base/math/detmath.h"
#include "store/base/mem.h"

/* Each is asked, and continued as a plain text. */
static const char *const TEXTS[] = {
    "What is the capital of France, and which river runs through it?",
    "def fibonacci(n):\n    \"\"\"The first n numbers.\"\"\"\n    ",
    "12 + 30 = 42, 7 * 8 = 56, 144 / 12 =",
    "Das M\u00e4dchen sagte: \u201eIch habe gestern",
};
/* Tokens are compared on these too. */
static const char *const ODD_TEXTS[] = {
    "",
    "  two  spaces\n\n\tand a tab ",
    "\xe4\xbd\xa0\xe5\xa5\xbd, \xf0\x9f\x98\x80! 1234567 don't",
};
/* The texts at which llama.cpp ends an answer, whatever the file says. */
static const char *const ENDS[] = {
    "<|eot_id|>",    "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "<|endoftext|>", "</s>",       "<eos>",   "<|eom_id|>", "<EOT>",    "<|end_of_text|>",
};
enum { ANSWER = 16, ASKED = 2 * FM_ARRAY_LEN(TEXTS), PLAIN_IDS = 12 };

typedef struct text {
    fm_ids ids; /* the prompt, and the version's answer */
    size_t prompt;
    float *logits; /* the version's, [ids.count - 1, vocab]: after each token but the last */
} text;

/* What turns texts into tokens and back; NULL: it has none. */
typedef struct words {
    const fm_tokenizer *tokenizer;
    const fm_chat_template *chat;
} words;

typedef struct verifying {
    fm_ops *c;
    const fm_tree *tree;
    const char *what, *path;
    fm_verify_report *out;
    fm_arch arch; /* the version's; nothing but its numbers is used */
    uint32_t vocab;
    text text[ASKED];
    size_t texts, done; /* done: by all models */
} verifying;

/* Tells how far it is, and ends it where that is wished. */
static fm_status tick(verifying *v)
{
    (void)fmo_ui_progress(v->c, v->done++, 3 * v->texts, "verifying");
    return fmo_ui_go_on(v->c);
}

static fm_status differs(const verifying *v, const char *how)
{
    return fm_fail(FM_EREFUSED, "%s: is not '%s': %s", v->path, v->what, how);
}

/* ---- the version ---- */

/* Logits after each of n tokens of a sequence: to, or where to is NULL the last row's through
 * *last. */
static fm_status step(fm_engine *e, fm_seq *seq, const int32_t *id, size_t n, uint32_t vocab,
                      float *to, const float **last)
{
    enum { ROWS = 64 };
    fm_row rows[ROWS];

    for (size_t at = 0; at < n; at += ROWS) {
        const size_t now = FM_MIN(n - at, (size_t)ROWS);
        for (size_t i = 0; i < now; i++)
            rows[i] = (fm_row){seq, id[at + i], true};
        FM_TRY(fm_engine_step(e, rows, (uint32_t)now));
        for (size_t i = 0; to && i < now; i++)
            memcpy(to + (at + i) * vocab, fm_engine_logits(e, (uint32_t)i), vocab * sizeof *to);
        if (last)
            *last = fm_engine_logits(e, (uint32_t)now - 1);
    }
    return FM_OK;
}

static int32_t best_of(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

static bool ends(const fm_arch *a, int32_t id)
{
    for (size_t i = 0; i < a->eos_count; i++)
        if (a->eos[i] == id)
            return true;
    return false;
}

/* Lets the version answer, and keeps its logits. */
static fm_status answer(verifying *v, fm_model *m, text *t)
{
    const fm_arch *a = fm_model_arch(m);
    const size_t room = FM_MIN((size_t)a->max_positions, t->ids.count + ANSWER);
    const float *last = NULL;
    fm_seq *seq = NULL;

    t->prompt = t->ids.count;
    t->logits = fm_calloc(room * v->vocab, sizeof *t->logits);
    fm_status rc = t->logits ? fm_seq_open(&seq, m) : FM_ENOMEM;
    FM_THEN(rc, step(v->c->engine, seq, t->ids.id, t->prompt, v->vocab, t->logits, &last));
    while (rc == FM_OK && t->ids.count < room) {
        const int32_t next = best_of(last, v->vocab);
        rc = fm_ids_push(&t->ids, next);
        if (rc != FM_OK || ends(a, next) || t->ids.count == room)
            break;
        rc = step(v->c->engine, seq, &next, 1, v->vocab, t->logits + (t->ids.count - 1) * v->vocab,
                  &last);
    }
    v->out->positions += t->ids.count - 1;
    fm_seq_close(seq);
    return rc;
}

static fm_status encode(fm_ids *out, const fm_model *m, size_t i)
{
    const fm_span s = fm_span_str(TEXTS[i / 2]);

    return i % 2 == 0 ? fm_prompt_text(out, m, s) : fm_prompt_user(out, m, s);
}

/* The prompts' tokens; of a version without a tokenizer, any. */
static fm_status make_texts(verifying *v, const fm_model *m)
{
    for (size_t i = 0; i < ASKED; i++) {
        fm_ids *ids = &v->text[v->texts].ids;
        if (i % 2 == 1 && !fm_model_chat_template(m))
            continue;
        v->texts++;
        for (size_t k = 0; !fm_model_tokenizer(m) && k < PLAIN_IDS; k++)
            FM_TRY(fm_ids_push(ids, (int32_t)((i * 7919 + k * 104729 + 3) % v->vocab)));
        if (fm_model_tokenizer(m))
            FM_TRY(encode(ids, m, i));
        ids->count = FM_MIN(ids->count, (size_t)fm_model_arch(m)->max_positions / 2);
    }
    v->out->texts = v->texts;
    return FM_OK;
}

static fm_status run_version(verifying *v)
{
    fm_model *m = NULL;
    FM_TRY(fm_ops_load_model(v->c, v->tree, v->what, &m));

    v->arch = *fm_model_arch(m);
    v->vocab = v->arch.vocab;
    fm_status rc = make_texts(v, m);
    for (size_t i = 0; rc == FM_OK && i < v->texts; i++) {
        rc = tick(v);
        FM_THEN(rc, answer(v, m, &v->text[i]));
    }
    fm_model_close(m);
    return rc;
}

/* ---- another model over the same tokens ---- */

static double log_sum(const float *x, uint32_t n)
{
    const double most = (double)x[best_of(x, n)];
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += fm_exp((double)x[i] - most);
    return most + fm_log(sum);
}

static double divergence(const float *p, const float *q, uint32_t n)
{
    const double lp = log_sum(p, n), lq = log_sum(q, n);
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        const double a = (double)p[i] - lp, b = (double)q[i] - lq;
        sum += fm_exp(a) * (a - b);
    }
    return isfinite(sum) ? FM_MAX(sum, 0.0) : (double)INFINITY;
}

static fm_status compare_text(const verifying *v, fm_model *m, const text *t, fm_verify_figures *f)
{
    const size_t n = t->ids.count - 1;
    float *logits = fm_calloc(n * v->vocab, sizeof *logits);
    fm_seq *seq = NULL;
    bool same = true;
    fm_status rc = logits ? fm_seq_open(&seq, m) : FM_ENOMEM;

    FM_THEN(rc, step(v->c->engine, seq, t->ids.id, n, v->vocab, logits, NULL));
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const float *mine = t->logits + i * v->vocab, *other = logits + i * v->vocab;
        const double kl = divergence(mine, other, v->vocab);
        const bool best = best_of(mine, v->vocab) == best_of(other, v->vocab);
        f->kl += kl / (double)v->out->positions;
        f->kl_most = FM_MAX(f->kl_most, kl);
        f->best += best;
        same = same && (best || i + 1 < t->prompt);
    }
    f->answers += same;
    fm_seq_close(seq);
    fm_free(logits);
    return rc;
}

static fm_status compare(verifying *v, fm_model *m, fm_verify_figures *f)
{
    if (fm_model_arch(m)->vocab != v->vocab)
        return differs(v, "its vocabulary has another size");
    for (size_t i = 0; i < v->texts; i++) {
        FM_TRY(tick(v));
        FM_TRY(compare_text(v, m, &v->text[i], f));
    }
    return FM_OK;
}

/* ---- tokens, template, stop tokens ---- */

static bool same_ids(const fm_ids *a, const fm_ids *b)
{
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->id, b->id, a->count * sizeof *a->id) == 0);
}

static fm_status same_text(const verifying *v, const words *mine, const words *other, fm_span s)
{
    fm_ids a = {NULL, 0, 0}, b = {NULL, 0, 0};
    fm_status rc = fm_tokenizer_encode(mine->tokenizer, s, true, &a);

    FM_THEN(rc, fm_tokenizer_encode(other->tokenizer, s, true, &b));
    if (rc == FM_OK && !same_ids(&a, &b))
        rc = differs(v, "a text has other tokens");
    fm_ids_release(&a);
    fm_ids_release(&b);
    return rc;
}

static fm_status check_tokens(const verifying *v, const words *mine, const words *other)
{
    if (!mine->tokenizer != !other->tokenizer)
        return differs(v, "one of them has no tokenizer");
    if (!mine->tokenizer)
        return FM_OK;
    for (size_t i = 0; i < FM_ARRAY_LEN(TEXTS); i++)
        FM_TRY(same_text(v, mine, other, fm_span_str(TEXTS[i])));
    for (size_t i = 0; i < FM_ARRAY_LEN(ODD_TEXTS); i++)
        FM_TRY(same_text(v, mine, other, fm_span_str(ODD_TEXTS[i])));
    return FM_OK;
}

/* A conversation's text, or where the template refuses it the status alone. */
static fm_status render(fm_buf *out, const words *w, const fm_json *messages, fm_status *said)
{
    fm_json *extra = NULL;
    FM_TRY(fm_chat_extra_new(&extra, w->tokenizer));

    *said = fm_chat_render(out, w->chat, messages, NULL, true, extra);
    fm_json_free(extra);
    return *said == FM_ENOMEM ? *said : FM_OK;
}

static fm_status same_chat(const verifying *v, const words *mine, const words *other,
                           const char *json)
{
    fm_status a_said = FM_OK, b_said = FM_OK;
    fm_json *messages = NULL;
    fm_buf a, b;

    fm_buf_init(&a, 0);
    fm_buf_init(&b, 0);
    fm_status rc = fm_json_parse(&messages, fm_span_str(json), "messages");
    FM_THEN(rc, render(&a, mine, messages, &a_said));
    FM_THEN(rc, render(&b, other, messages, &b_said));
    if (rc == FM_OK)
        fm_error_clear(); /* a refusal that both make */
    if (rc == FM_OK &&
        (a_said != b_said || a.len != b.len || (a.len > 0 && memcmp(a.data, b.data, a.len) != 0)))
        rc = differs(v, "its chat template makes another text of a conversation");
    fm_json_free(messages);
    fm_buf_release(&a);
    fm_buf_release(&b);
    return rc;
}

#define MESSAGE(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"

static fm_status check_chat(const verifying *v, const words *mine, const words *other)
{
    static const char *const talks[] = {
        "[" MESSAGE("user", "How are you?") "]",
        "[" MESSAGE("system", "Be brief.") ", " MESSAGE("user", " Why? ") "]",
        "[" MESSAGE("user", "Hello") ", " MESSAGE("assistant", "Hi.") ", " MESSAGE("user",
                                                                                   "Bye") "]",
    };
    if (!mine->chat != !other->chat)
        return differs(v, "one of them has no chat template");
    for (size_t i = 0; mine->chat && i < FM_ARRAY_LEN(talks); i++)
        FM_TRY(same_chat(v, mine, other, talks[i]));
    return FM_OK;
}

static bool ends_by_text(const fm_tokenizer *t, int32_t id)
{
    for (size_t i = 0; t && i < FM_ARRAY_LEN(ENDS); i++)
        if (fm_span_eq_str(fm_tokenizer_token_text(t, id), ENDS[i]))
            return true;
    return false;
}

static fm_status check_stops(const verifying *v, const fm_arch *b, const fm_tokenizer *t)
{
    const fm_arch *a = &v->arch;

    for (size_t i = 0; i < b->eos_count; i++)
        if (!ends(a, b->eos[i]) && !(t && fm_tokenizer_eos(t) == b->eos[i]))
            return fm_fail(
                FM_EREFUSED,
                "%s: is not '%s': it ends answers at token %d, which the version does not", v->path,
                v->what, (int)b->eos[i]);
    for (size_t i = 0; i < a->eos_count; i++)
        if (!ends(b, a->eos[i]) && !ends_by_text(t, a->eos[i]))
            return fm_fail(
                FM_EREFUSED,
                "%s: is not '%s': the version ends answers at token %d, the file does not", v->path,
                v->what, (int)a->eos[i]);
    return FM_OK;
}

/* The version's own words are opened without its weights. */
static fm_status check_words(const verifying *v, const fm_model *file)
{
    const words other = {fm_model_tokenizer(file), fm_model_chat_template(file)};
    fm_tokenizer *tokenizer = NULL;
    fm_chat_template *chat = NULL;
    fm_status rc = fm_ops_open_tokenizer(v->c, v->tree, v->what, &tokenizer);

    if (rc == FM_EUNSUPPORTED) { /* it loaded, so it has none */
        fm_error_clear();
        rc = FM_OK;
    }
    if (rc == FM_OK && tokenizer)
        rc = fmo_chat_open(v->c, v->tree, tokenizer, &chat);
    const words mine = {tokenizer, chat};
    FM_THEN(rc, check_tokens(v, &mine, &other));
    FM_THEN(rc, check_chat(v, &mine, &other));
    FM_THEN(rc, check_stops(v, fm_model_arch(file), tokenizer));
    fm_chat_template_close(chat);
    fm_tokenizer_close(tokenizer);
    return rc;
}

/* ---- the verdict ---- */

static fm_status judge(const verifying *v)
{
    fm_verify_report *r = v->out;
    const fm_verify_figures *f = &r->file, *own = &r->rounding;
    const char *what = NULL;

    r->compared = true;
    r->kl_limit = own->kl * 1.25 + 1e-7;
    r->kl_most_limit = own->kl_most * 2 + 1e-5;
    if (!(f->kl <= r->kl_limit))
        what = "its mean KL is above the limit";
    else if (!(f->kl_most <= r->kl_most_limit))
        what = "its largest KL is above the limit";
    else if (f->answers < own->answers)
        what = "it answers otherwise";
    else if (f->best + r->positions / 100 < own->best)
        what = "it finds other tokens the most likely";
    return what ? differs(v, what) : FM_OK;
}

/* ---- the three models ---- */

static fm_status run_rounded(verifying *v, const fmo_written *w)
{
    const fm_provider stored = fm_store_provider(fm_repo_store(v->c->repo));
    fm_rounded *r = NULL;
    fm_model *m = NULL;
    fm_status rc = fm_rounded_open(&r, v->tree, &stored, fmo_written_tree(w));

    if (rc == FM_OK) {
        const fm_provider p = fm_rounded_provider(r);
        rc = fm_model_load(&m, v->c->engine, fm_rounded_tree(r), &p, v->what);
    }
    FM_THEN(rc, compare(v, m, &v->out->rounding));
    fm_model_close(m);
    fm_rounded_close(r);
    return rc;
}

static fm_status run_file(verifying *v, fmo_written *w)
{
    const fm_provider p = fmo_written_provider(w);
    fm_model *m = NULL;
    fm_status rc = fm_model_load(&m, v->c->engine, fmo_written_tree(w), &p, v->path);

    if (rc < 0 && rc != FM_ENOMEM && rc != FM_ECANCELLED)
        rc = fm_fail(FM_EREFUSED, "%s: does not load: %s", v->path, fm_error_text());
    FM_THEN(rc, check_words(v, m));
    FM_THEN(rc, compare(v, m, &v->out->file));
    fm_model_close(m);
    return rc;
}

fm_status fm_ops_verify(fm_ops *c, const fm_tree *tree, const char *what, const char *path,
                        fm_verify_report *out)
{
    verifying *v = fm_calloc(1, sizeof *v);
    fmo_written w = {.source = NULL};

    memset(out, 0, sizeof *out);
    c->stopped = false;
    if (!v)
        return FM_ENOMEM;
    *v = (verifying){.c = c, .tree = tree, .what = what, .path = path, .out = out};
    fm_status rc = fmo_written_open(&w, c, tree, path);
    FM_THEN(rc, run_version(v));
    FM_THEN(rc, run_rounded(v, &w));
    FM_THEN(rc, run_file(v, &w));
    FM_THEN(rc, judge(v));
    fmo_ui_progress_end(c);
    for (size_t i = 0; i < v->texts; i++) {
        fm_ids_release(&v->text[i].ids);
        fm_free(v->text[i].logits);
    }
    fmo_written_close(&w);
    fm_free(v);
    return rc;
}
