/* ask.c - what a model is asked for a case: prompts and continuations as tokens. */
#include <string.h>

#include "infer/prompt.h"
#include "store/base/mem.h"
#include "testing/run.h"

size_t fmi_works_of(const fmi_case *c)
{
    return c->prompt_count * (c->scoring == FMI_SCORE_CHOICE ? c->choice_count : 1);
}

/* The text that the model reads: as written, or through the model's chat template. */
static fm_status chat_text(fm_buf *out, const fm_model *m, const fm_json *messages)
{
    fm_json *extra = NULL;
    fm_status rc = fm_chat_extra_new(&extra, fm_model_tokenizer(m));
    if (rc == FM_OK)
        rc = fm_chat_render(out, fm_model_chat_template(m), messages, NULL, true, extra);
    fm_json_free(extra);
    return rc;
}

static fm_status user_message(fm_json **out, const fm_json *text)
{
    fm_json *one = fm_json_new_object();
    fm_status rc = one && (*out = fm_json_new_array()) ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK)
        rc = fm_json_set(one, "role", fm_json_new_str("user"));
    if (rc == FM_OK)
        rc = fm_json_set(one, "content", fm_json_ref(text));
    if (rc == FM_OK)
        rc = fm_json_push(*out, fm_json_ref(one));
    fm_json_free(one);
    return rc;
}

static fm_status prompt_text(fm_buf *out, const fmi_case *c, size_t i, const fm_model *m)
{
    fm_span plain = fm_json_str(c->prompt[i]);
    fm_json *made = NULL;
    if (c->form == FMI_PROMPT_TEXT) {
        fm_buf_append(out, plain.data, plain.len);
        return fm_buf_ok(out);
    }
    if (c->form == FMI_PROMPT_MESSAGES)
        return chat_text(out, m, c->prompt[i]);
    fm_status rc = user_message(&made, c->prompt[i]);
    if (rc == FM_OK)
        rc = chat_text(out, m, made);
    fm_json_free(made);
    return rc;
}

static fm_status encode_prompt(fm_ids *ids, const fmi_case *c, size_t i, const fm_model *m)
{
    switch (c->form) {
    case FMI_PROMPT_TEXT:
        return fm_prompt_text(ids, m, fm_json_str(c->prompt[i]));
    case FMI_PROMPT_CHAT:
        return fm_prompt_user(ids, m, fm_json_str(c->prompt[i]));
    case FMI_PROMPT_MESSAGES:
        return fm_prompt_chat(ids, m, c->prompt[i], NULL);
    }
    return FM_OK;
}

fm_status fm_suite_case_prompt(fm_ids *out, const fm_suite *s, size_t i, const fm_model *m)
{
    fm_assert(i < s->count);
    return encode_prompt(out, &s->cases[i], 0, m);
}

static const char *continuation_of(const fmi_case *c, size_t k)
{
    if (c->scoring == FMI_SCORE_CHOICE)
        return c->choice[k % c->choice_count];
    return c->scoring == FMI_SCORE_LOGPROB ? c->continuation : NULL;
}

/* ids = prompt and continuation encoded as one text, as a reader of the whole would see it, since
 * tokens may reach over the seam ("of " + "Paris" is "of", " Paris"). The continuation is what
 * comes after the tokens that both encodings share. So the space that ends a prompt goes with the
 * continuation, as in lm-eval; unlike there, a seam inside a token costs no token. */
static fm_status encode_pair(fmi_work *w, const fmi_case *c, size_t prompt,
                             const char *continuation, const fm_model *m)
{
    fm_ids alone = {0};
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = encode_prompt(&alone, c, prompt, m);
    if (rc == FM_OK)
        rc = prompt_text(&text, c, prompt, m);
    fm_buf_str(&text, continuation);
    if (rc == FM_OK)
        rc = fm_buf_ok(&text);
    if (rc == FM_OK)
        rc = fm_tokenizer_encode(fm_model_tokenizer(m), fm_buf_span(&text),
                                 c->form == FMI_PROMPT_TEXT, &w->ids);
    while (w->prompt_len < FM_MIN(alone.count, w->ids.count) &&
           alone.id[w->prompt_len] == w->ids.id[w->prompt_len])
        w->prompt_len++;
    fm_ids_release(&alone);
    fm_buf_release(&text);
    return rc;
}

static fm_status check_ids(const fm_ids *ids, size_t answer, const fm_arch *arch)
{
    for (size_t i = 0; i < ids->count; i++)
        if (ids->id[i] < 0 || (uint32_t)ids->id[i] >= arch->vocab)
            return fm_fail(FM_EINVAL, "token %d is beyond the model's vocabulary of %u", ids->id[i],
                           arch->vocab);
    if (ids->count + answer > arch->max_positions)
        return fm_fail(FM_ELIMIT, "prompt and answer need %zu positions, the model has %u",
                       ids->count + answer, arch->max_positions);
    return FM_OK;
}

static fm_status prepare_work(fmi_job *j, size_t k)
{
    const fmi_case *c = j->c;
    fmi_work *w = &j->work[k];
    size_t prompt = c->scoring == FMI_SCORE_CHOICE ? k / c->choice_count : k;
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
    if (rc == FM_OK)
        rc = check_ids(&w->ids, continuation ? 0 : c->max_tokens, fm_model_arch(j->model));
    if (rc == FM_OK && continuation && !(w->logprobs = fm_calloc(w->ids.count, sizeof(float))))
        rc = FM_ENOMEM;
    return rc;
}

/* All choices of a prompt are scored after the same tokens, or their sums would be of different
 * events. */
static void share_prefix(fmi_work *work, size_t n)
{
    size_t least = SIZE_MAX;
    for (size_t k = 0; k < n; k++)
        least = FM_MIN(least, work[k].prompt_len);
    for (size_t k = 0; k < n; k++)
        work[k].prompt_len = least;
}

fm_status fmi_ask(fmi_job *j)
{
    fm_status rc = FM_OK;
    for (size_t k = 0; k < j->count && rc == FM_OK; k++)
        rc = prepare_work(j, k);
    for (size_t k = 0; rc == FM_OK && k < j->count && j->c->scoring == FMI_SCORE_CHOICE;
         k += j->c->choice_count)
        share_prefix(j->work + k, j->c->choice_count);
    return rc;
}
