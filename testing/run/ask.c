/* ask.c - turns the prompts and continuations of a case into tokens. */
#include <string.h>

#include "infer/prompt.h"
#include "store/base/mem.h"
#include "testing/run/run.h"

size_t fmv_works_of(const fmv_case *c)
{
    switch (c->scoring) {
    case FMV_SCORE_TEXT:
        return c->prompt_count * c->repeats;
    case FMV_SCORE_CHOICE:
        /* the choices after each prompt; then, once, the choices alone */
        return c->choice_count * (c->prompt_count + (c->normalize == FMV_LESS_ALONE));
    case FMV_SCORE_EMBED:
        return 2 + c->far_count;
    case FMV_SCORE_LOGPROB:
    case FMV_SCORE_ROLLING:
    case FMV_SCORE_CLASS:
        break;
    }
    return c->prompt_count;
}

/* The text that the model reads: as written, or through the model's chat template. */
static fm_status chat_text(fm_buf *out, const fm_model *m, const fm_json *messages)
{
    fm_json *extra = NULL;
    fm_status rc = fm_chat_extra_new(&extra, fm_model_tokenizer(m));
    FM_THEN(rc, fm_chat_render(out, fm_model_chat_template(m), messages, NULL, true, extra));
    fm_json_free(extra);
    return rc;
}

static fm_status user_message(fm_json **out, const fm_json *text)
{
    fm_json *one = fm_json_new_object();
    fm_status rc = one && (*out = fm_json_new_array()) ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_json_set(one, "role", fm_json_new_str("user")));
    FM_THEN(rc, fm_json_set(one, "content", fm_json_ref(text)));
    FM_THEN(rc, fm_json_push(*out, fm_json_ref(one)));
    fm_json_free(one);
    return rc;
}

static fm_status prompt_text(fm_buf *out, const fmv_case *c, size_t i, const fm_model *m)
{
    fm_span plain = fm_json_str(c->prompt[i]);
    fm_json *made = NULL;
    if (c->form == FMV_PROMPT_TEXT) {
        fm_buf_append(out, plain.data, plain.len);
        return fm_buf_ok(out);
    }
    if (c->form == FMV_PROMPT_MESSAGES)
        return chat_text(out, m, c->prompt[i]);
    fm_status rc = user_message(&made, c->prompt[i]);
    FM_THEN(rc, chat_text(out, m, made));
    fm_json_free(made);
    return rc;
}

static fm_status encode_prompt(fm_ids *ids, const fmv_case *c, size_t i, const fm_model *m)
{
    switch (c->form) {
    case FMV_PROMPT_TEXT:
        return fm_prompt_text(ids, m, fm_json_str(c->prompt[i]));
    case FMV_PROMPT_CHAT:
        return fm_prompt_user(ids, m, fm_json_str(c->prompt[i]));
    case FMV_PROMPT_MESSAGES:
        return fm_prompt_chat(ids, m, c->prompt[i], NULL);
    }
    return FM_OK;
}

fm_status fm_suite_case_prompt(fm_ids *out, const fm_suite *s, size_t i, const fm_model *m)
{
    fm_assert(i < s->count);
    return encode_prompt(out, &s->cases[i], 0, m);
}

fm_status fm_suite_case_answer(fm_ids *out, size_t *prompt, const fm_suite *s, size_t i,
                               const fm_model *m, const char *answer)
{
    const fm_arch *a = fm_model_arch(m);
    const fm_tokenizer *tok = fm_model_tokenizer(m);
    if (!tok)
        return fm_fail(FM_EUNSUPPORTED, "the version has no tokenizer");
    fm_status rc = fm_suite_case_prompt(out, s, i, m);
    *prompt = out->count;
    FM_THEN(rc, fm_tokenizer_encode(tok, fm_span_str(answer), false, out));
    if (rc == FM_OK && (*prompt == 0 || out->count == *prompt))
        rc = fm_fail(FM_EUNSUPPORTED, "the prompt or the answer has no tokens");
    for (size_t k = 0; rc == FM_OK && k < out->count; k++)
        if (out->id[k] < 0 || (uint32_t)out->id[k] >= a->vocab)
            rc = fm_fail(FM_EUNSUPPORTED, "token %d is beyond the model's vocabulary of %u",
                         out->id[k], a->vocab);
    if (rc == FM_OK && out->count > fm_arch_longest(a))
        rc = fm_fail(FM_EUNSUPPORTED, "prompt and answer are %zu tokens, the model takes %u",
                     out->count, fm_arch_longest(a));
    return rc;
}

static const char *continuation_of(const fmv_case *c, size_t k)
{
    if (c->scoring == FMV_SCORE_CHOICE)
        return c->choice[k % c->choice_count];
    return c->scoring == FMV_SCORE_LOGPROB ? c->continuation : NULL;
}

/* Encodes prompt and continuation as one text into ids, as a reader of the whole text sees it,
 * since tokens may reach over the seam ("of " + "Paris" is "of", " Paris"). The continuation begins
 * after the tokens that this encoding and that of the prompt share. So the space that ends a prompt
 * belongs to the continuation, as in lm-eval; unlike there, no token is lost. */
static fm_status encode_pair(fmv_work *w, const fmv_case *c, size_t prompt,
                             const char *continuation, const fm_model *m)
{
    fm_ids alone = {0};
    fm_buf text;
    if (fm_model_arch(m)->sw.cross) { /* two texts */
        FM_TRY(encode_prompt(&w->ids, c, prompt, m));
        w->prompt_len = w->ids.count;
        return fm_tokenizer_encode(fm_model_tokenizer(m), fm_span_str(continuation), false,
                                   &w->ids);
    }
    fm_buf_init(&text, 0);
    fm_status rc = encode_prompt(&alone, c, prompt, m);
    FM_THEN(rc, prompt_text(&text, c, prompt, m));
    fm_buf_str(&text, continuation);
    FM_THEN(rc, fm_buf_ok(&text));
    FM_THEN(rc, fm_tokenizer_encode(fm_model_tokenizer(m), fm_buf_span(&text),
                                    c->form == FMV_PROMPT_TEXT, &w->ids));
    while (w->prompt_len < FM_MIN(alone.count, w->ids.count) &&
           alone.id[w->prompt_len] == w->ids.id[w->prompt_len])
        w->prompt_len++;
    fm_ids_release(&alone);
    fm_buf_release(&text);
    return rc;
}

static fm_status check_vocabulary(const fm_ids *ids, const fm_arch *arch)
{
    for (size_t i = 0; i < ids->count; i++)
        if (ids->id[i] < 0 || (uint32_t)ids->id[i] >= arch->vocab)
            return fm_fail(FM_EINVAL, "token %d is beyond the model's vocabulary of %u", ids->id[i],
                           arch->vocab);
    return FM_OK;
}

fm_status fmv_check_ids(const fm_ids *ids, size_t answer, const fm_arch *arch)
{
    size_t need = arch->sw.cross ? FM_MAX(ids->count, answer) : ids->count + answer;

    FM_TRY(check_vocabulary(ids, arch));
    if (need > fm_arch_longest(arch))
        return fm_fail(FM_ELIMIT, "prompt and answer need %zu positions, the model has %u", need,
                       fm_arch_longest(arch));
    return FM_OK;
}

static fm_status room_for(fmv_work *w, size_t n)
{
    w->logprobs = fm_calloc(n, sizeof(float));
    return w->logprobs ? FM_OK : FM_ENOMEM;
}

static fm_status prepare_work(fmv_job *j, size_t k)
{
    const fmv_case *c = j->c;
    fmv_work *w = &j->work[k];
    size_t prompt = c->scoring == FMV_SCORE_CHOICE ? k / c->choice_count : k / c->repeats;
    const char *continuation = continuation_of(c, k);
    fm_status rc;
    if (continuation) {
        rc = encode_pair(w, c, prompt, continuation, j->model);
    } else {
        rc = encode_prompt(&w->ids, c, prompt, j->model);
        w->prompt_len = w->ids.count;
    }
    if (rc == FM_OK && w->prompt_len == 0)
        rc = fm_fail(FM_EINVAL, "the prompt has no token of its own before the answer");
    if (rc == FM_OK && continuation && w->ids.count == w->prompt_len)
        rc = fm_fail(FM_EINVAL, "the continuation '%.60s' has no tokens", continuation);
    FM_THEN(rc, fmv_check_ids(&w->ids, continuation ? 0 : c->max_tokens, fm_model_arch(j->model)));
    return rc == FM_OK && continuation ? room_for(w, w->ids.count) : rc;
}

/* All choices of a prompt begin after the same tokens, or their sums are of different events. */
static void share_prefix(fmv_work *work, size_t n)
{
    size_t least = SIZE_MAX;
    for (size_t k = 0; k < n; k++)
        least = FM_MIN(least, work[k].prompt_len);
    for (size_t k = 0; k < n; k++)
        work[k].prompt_len = least;
}

/* Encodes a text behind the token that begins texts (bos, else eos), as lm-eval does. */
static fm_status encode_alone(fmv_work *w, fm_span text, const fm_model *m)
{
    const fm_tokenizer *t = fm_model_tokenizer(m);
    if (!t)
        return fm_fail(FM_EUNSUPPORTED, "the version has no tokenizer");
    if (fm_model_arch(m)->sw.cross)
        return fm_fail(FM_EUNSUPPORTED, "%s scores an answer to a prompt, no text alone",
                       fm_model_arch(m)->family);
    int32_t first = fm_tokenizer_bos(t) >= 0 ? fm_tokenizer_bos(t) : fm_tokenizer_eos(t);
    if (first < 0)
        return fm_fail(FM_EUNSUPPORTED, "the tokenizer names neither bos nor eos to begin with");
    fm_status rc = fm_ids_push(&w->ids, first);
    FM_THEN(rc, fm_tokenizer_encode(t, text, false, &w->ids));
    w->prompt_len = 1;
    if (rc == FM_OK && w->ids.count < 2)
        rc = fm_fail(FM_EINVAL, "'%.60s' has no tokens", (const char *)text.data);
    return rc == FM_OK ? room_for(w, w->ids.count) : rc;
}

static fm_status prepare_choices(fmv_job *j)
{
    const fmv_case *c = j->c;
    size_t n = c->choice_count, after = n * c->prompt_count;

    for (size_t k = 0; k < after; k++)
        FM_TRY(prepare_work(j, k));
    for (size_t k = 0; k < after; k += n)
        share_prefix(j->work + k, n);
    for (size_t k = after; k < j->count; k++) {
        FM_TRY(encode_alone(&j->work[k], fm_span_str(c->choice[k - after]), j->model));
        FM_TRY(fmv_check_ids(&j->work[k].ids, 0, fm_model_arch(j->model)));
    }
    return FM_OK;
}

static fm_status prepare_rolling(fmv_job *j)
{
    FM_TRY(encode_alone(j->work, fm_json_str(j->c->prompt[0]), j->model));
    return check_vocabulary(&j->work->ids, fm_model_arch(j->model));
}

/* Encodes a text for a classifier or an embedder. */
static fm_status prepare_text(fmv_job *j, size_t k)
{
    const fmv_case *c = j->c;
    fmv_work *w = &j->work[k];
    bool classes = c->scoring == FMV_SCORE_CLASS;
    size_t width = classes ? fm_model_classes(j->model) : fm_model_arch(j->model)->hidden;
    fm_span text = classes || k == 0 ? fm_json_str(c->prompt[k])
                   : k == 1          ? fm_span_str(c->near_text)
                                     : fmv_text_at(c->far_texts, k - 2);
    if (!width)
        return fm_fail(FM_EUNSUPPORTED, "the version has no classification head");
    if (classes && fm_model_scores(j->model))
        return fm_fail(FM_EUNSUPPORTED, "the version's head gives a number, and no class");
    FM_TRY(fm_embed_encode(j->model, text, &w->ids));
    FM_TRY(fmv_check_ids(&w->ids, 0, fm_model_arch(j->model)));
    if (!w->ids.count)
        return fm_fail(FM_EINVAL, "'%.60s' has no tokens", (const char *)text.data);
    return room_for(w, width);
}

fm_status fmv_ask(fmv_job *j)
{
    fm_status rc = FM_OK;
    switch (j->c->scoring) {
    case FMV_SCORE_CHOICE:
        return prepare_choices(j);
    case FMV_SCORE_ROLLING:
        return prepare_rolling(j);
    case FMV_SCORE_CLASS:
    case FMV_SCORE_EMBED:
        for (size_t k = 0; k < j->count && rc == FM_OK; k++)
            rc = prepare_text(j, k);
        return rc;
    case FMV_SCORE_TEXT:
    case FMV_SCORE_LOGPROB:
        break;
    }
    for (size_t k = 0; k < j->count && rc == FM_OK; k++)
        rc = prepare_work(j, k);
    return rc;
}

fm_status fmv_question(fm_buf *out, const fmv_case *c, size_t prompt)
{
    const fm_json *v = c->prompt[prompt];
    if (c->form != FMV_PROMPT_MESSAGES)
        fm_buf_str(out, fm_json_cstr(v, ""));
    for (size_t i = 0; c->form == FMV_PROMPT_MESSAGES && i < fm_json_count(v); i++)
        fm_buf_printf(out, "%s%s: %s", i ? "\n" : "",
                      fm_json_cstr(fm_json_get(fm_json_at(v, i), "role"), ""),
                      fm_json_cstr(fm_json_get(fm_json_at(v, i), "content"), ""));
    return fm_buf_ok(out);
}

/* ---- windows ---- */

size_t fmv_reach(const fmv_job *j)
{
    size_t most = fm_model_arch(j->model)->max_positions;
    return j->c->window ? FM_MIN(most, (size_t)j->c->window) : most;
}

bool fmv_window(size_t count, size_t reach, size_t i, size_t *begin, size_t *from, size_t *end)
{
    size_t scored = i * reach; /* tokens of earlier windows, without the prefix */
    if (count < 2 || scored >= count - 1)
        return false;
    *end = FM_MIN(scored + reach, count - 1) + 1;
    *from = scored + 1;
    *begin = i ? *end - 1 - reach : 0;
    return true;
}
