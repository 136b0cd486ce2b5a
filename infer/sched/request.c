/* request.c - see request.h. Text is handed out as soon as no stop string can begin in it any more:
 * the longest end of the text that is the beginning of a stop string is held back. */
#include "infer/sched/request.h"

#include "infer/model/model_bind.h"

#include <string.h>

#include "store/base/mem.h"

/* The decoder of two stacks has its first tokens for a prompt. */
static size_t start_len(const fm_arch *a)
{
    return a->start[1] >= 0 ? 2 : 1;
}

static fm_status check_prompt(const fm_gen_request *q)
{
    const fm_arch *a = fm_model_arch(q->model);
    const fm_model *longest = fm_model_for_length(q->model, UINT32_MAX);
    uint32_t positions = fmi_positions(longest);
    if (!q->prompt || q->prompt_len < 1)
        return fm_fail(FM_EINVAL, "request: 'prompt' is empty");
    if (a->sw.cross && positions <= start_len(a))
        return fm_fail(FM_EINVAL, "request: %s at most %u", fmi_positions_limit(longest),
                       positions);
    if (a->sw.cross) {
        fm_status rc = fmi_source_check(q->model, q->prompt, q->prompt_len);
        return rc == FM_OK ? rc : fm_error_prefix(rc, "request: 'prompt'");
    }
    if (q->prompt_len >= positions)
        return fm_fail(FM_EINVAL, "request: 'prompt' has %zu tokens, %s at most %u", q->prompt_len,
                       fmi_positions_limit(longest), positions ? positions - 1 : 0);
    for (size_t i = 0; i < q->prompt_len; i++)
        if (q->prompt[i] < 0 || (uint32_t)q->prompt[i] >= a->vocab)
            return fm_fail(FM_EINVAL, "request: 'prompt' token %zu is %d, the vocabulary has %u", i,
                           q->prompt[i], a->vocab);
    return FM_OK;
}

static fm_status check(const fm_gen_request *q)
{
    if (!q->model)
        return fm_fail(FM_EINVAL, "request: 'model' is missing");
    const fm_arch *a = fm_model_arch(q->model);
    if (a->sw.encoder)
        return fm_fail(FM_EUNSUPPORTED, "request: %s is an encoder; it gives embeddings, no text",
                       a->family);
    if (a->headless)
        return fm_fail(FM_EUNSUPPORTED,
                       "request: this version has no language head; a classifier's "
                       "classes come from classify, a base model's vectors from "
                       "embed");
    FM_TRY(check_prompt(q));
    if (q->max_new < 1)
        return fm_fail(FM_EINVAL, "request: 'max_new' must be at least 1");
    if (q->top_logprobs > FM_MIN(FMI_MAX_TOP_LOGPROBS, a->vocab))
        return fm_fail(FM_EINVAL, "request: 'top_logprobs' is %u, at most %u are given",
                       q->top_logprobs, FM_MIN(FMI_MAX_TOP_LOGPROBS, a->vocab));
    if (q->stop_count > FMI_MAX_STOPS)
        return fm_fail(FM_EINVAL, "request: 'stop' has %zu strings, at most %u are allowed",
                       q->stop_count, FMI_MAX_STOPS);
    if (q->stop_count && !fm_model_tokenizer(q->model))
        return fm_fail(FM_EINVAL, "request: 'stop' needs a tokenizer, the model has none");
    for (size_t i = 0; i < q->stop_count; i++)
        if (q->stop[i][0] == '\0' || strlen(q->stop[i]) > FMI_MAX_STOP_BYTES)
            return fm_fail(FM_EINVAL, "request: 'stop' string %zu must have 1 to %u bytes", i,
                           FMI_MAX_STOP_BYTES);
    return fm_sample_check(&q->sampling);
}

static fm_status fill_form(fmi_request *r, const fm_gen_request *ask)
{
    const fm_token_trie *trie;
    FM_TRY(fmi_text_trie(&trie, ask->model));
    size_t words = FM_MAX(fm_token_trie_words(trie), fm_model_arch(ask->model)->vocab / 64 + 1);
    r->allowed = fm_calloc(words, sizeof(uint64_t));
    if (!r->allowed)
        return FM_ENOMEM;
    return fm_grammar_state_new(&r->form, ask->grammar, trie);
}

static fm_status fill(fmi_request *r, const fm_gen_request *ask)
{
    uint32_t positions = fmi_positions(fm_model_for_length(ask->model, UINT32_MAX));
    const fm_arch *a = fm_model_arch(ask->model);
    const int32_t *prompt = a->sw.cross ? a->start : ask->prompt;
    size_t n = a->sw.cross ? start_len(a) : ask->prompt_len;
    r->ask.model = fm_model_for_length(ask->model, (uint32_t)n);
    r->prompt_len = r->count = n;
    r->room = n + FM_MIN((size_t)ask->max_new, positions - n);
    r->token = fm_malloc(r->room * sizeof(int32_t));
    if (!r->token)
        return FM_ENOMEM;
    memcpy(r->token, prompt, n * sizeof(int32_t));
    if (a->sw.cross) {
        r->source_len = ask->prompt_len;
        r->source = fm_memdup(ask->prompt, ask->prompt_len * sizeof(int32_t));
        if (!r->source)
            return FM_ENOMEM;
    }
    for (size_t i = 0; i < ask->stop_count; i++) {
        r->stop[i] = fm_strdup(ask->stop[i]);
        if (!r->stop[i])
            return FM_ENOMEM;
        r->stops++;
    }
    if (ask->top_logprobs) {
        r->top = fm_calloc(ask->top_logprobs, sizeof(fm_logprob));
        if (!r->top)
            return FM_ENOMEM;
    }
    const fm_tokenizer *tok = fm_model_tokenizer(ask->model);
    if (tok)
        fm_tok_stream_init(&r->stream, tok, true);
    return ask->grammar ? fill_form(r, ask) : FM_OK;
}

fm_status fmi_request_new(fmi_request **out, const fm_gen_request *ask, uint64_t id)
{
    *out = NULL;
    FM_TRY(check(ask));
    fmi_request *r = fm_calloc(1, sizeof(*r));
    if (!r)
        return FM_ENOMEM;
    r->id = id;
    r->pick = -1;
    r->ask = *ask;
    r->ask.prompt = NULL;
    r->ask.stop = NULL;
    fm_buf_init(&r->text, 0);
    fm_status rc = fill(r, ask);
    if (rc != FM_OK) {
        fmi_request_free(r);
        return rc;
    }
    *out = r;
    return FM_OK;
}

void fmi_request_free(fmi_request *r)
{
    if (!r)
        return;
    fm_seq_close(r->seq);
    if (r->seen)
        r->be->free(r->be, r->seen);
    for (size_t i = 0; i < r->stops; i++)
        fm_free(r->stop[i]);
    fm_buf_release(&r->text);
    fm_grammar_state_free(r->form);
    fm_free(r->allowed);
    fm_free(r->top);
    fm_free(r->token);
    fm_free(r->source);
    fm_free(r);
}

static void tell(fmi_request *r, const fm_gen_event *what)
{
    fm_gen_event ev = *what;
    ev.cached = r->cached;
    if (r->ask.on_event && !r->ask.on_event(r->ask.ctx, &ev))
        r->cancelled = true;
}

/* ==== stop strings ==== */

/* Bytes before the first stop string, or SIZE_MAX. */
static size_t find_stop(const fmi_request *r)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < r->stops; i++) {
        size_t n = strlen(r->stop[i]);
        for (size_t at = 0; at + n <= r->text.len && at < best; at++)
            if (memcmp(r->text.data + at, r->stop[i], n) == 0)
                best = at;
    }
    return best;
}

/* Bytes at the end of the text that may become a stop string. */
static size_t held_back(const fmi_request *r)
{
    size_t held = 0;
    for (size_t i = 0; i < r->stops; i++) {
        size_t n = FM_MIN(strlen(r->stop[i]) - 1, r->text.len);
        while (n > held && memcmp(r->text.data + r->text.len - n, r->stop[i], n) != 0)
            n--;
        held = FM_MAX(held, n);
    }
    return held;
}

static void drop_front(fm_buf *text, size_t n)
{
    if (n == 0)
        return;
    memmove(text->data, text->data + n, text->len - n);
    text->len -= n;
    text->data[text->len] = '\0';
}

/* ==== tokens ==== */

/* The i-th token that ends an answer, -1 behind the last. */
static int32_t eos_at(const fmi_request *r, uint32_t i)
{
    const fm_arch *a = fm_model_arch(r->ask.model);
    const fm_tokenizer *tok = fm_model_tokenizer(r->ask.model);
    if (r->ask.ignore_eos)
        return -1;
    if (i < a->eos_count)
        return a->eos[i];
    return a->eos_count == 0 && i == 0 && tok ? fm_tokenizer_eos(tok) : -1;
}

static bool is_eos(const fmi_request *r, int32_t token)
{
    for (uint32_t i = 0; eos_at(r, i) >= 0; i++)
        if (eos_at(r, i) == token)
            return true;
    return false;
}

fm_status fmi_request_allowed(fmi_request *r, const uint64_t **out)
{
    uint32_t vocab = fm_model_arch(r->ask.model)->vocab;
    *out = r->allowed;
    if (!r->form)
        return FM_OK;
    FM_TRY(fm_grammar_mask(r->form, r->allowed));
    for (uint32_t i = 0; fm_grammar_complete(r->form) && eos_at(r, i) >= 0; i++)
        if ((uint32_t)eos_at(r, i) < vocab)
            r->allowed[eos_at(r, i) / 64] |= (uint64_t)1 << (eos_at(r, i) % 64);
    return FM_OK;
}

/* Whether the form allows no more text and no end token can come (none, or ignored). */
static bool form_ended(const fmi_request *r)
{
    return r->form && eos_at(r, 0) < 0 && fm_grammar_ended(r->form);
}

void fmi_request_token(fmi_request *r, int32_t token, float logprob, uint32_t top_count)
{
    const fm_tokenizer *tok = fm_model_tokenizer(r->ask.model);
    bool eos = is_eos(r, token);
    if (r->count == r->prompt_len && r->seq)
        r->cached = r->seq->skipped;
    r->token[r->count++] = token;
    r->anew = 0;
    fm_status rc = FM_OK;
    if (r->form && !eos)
        rc = fm_grammar_accept(r->form, token);
    if (rc == FM_OK && tok && !eos)
        rc = fm_tok_stream_push(&r->stream, tok, token, &r->text);
    if (rc != FM_OK) {
        fmi_request_finish(r, "error", fm_error_text());
        return;
    }
    size_t stop = find_stop(r);
    size_t out = stop != SIZE_MAX ? stop : r->text.len - held_back(r);
    tell(r, &(fm_gen_event){.token = token,
                            .text = out ? (const char *)r->text.data : "",
                            .text_len = out,
                            .logprob = logprob,
                            .top = top_count ? r->top : NULL,
                            .top_count = top_count});
    drop_front(&r->text, out);
    if (stop != SIZE_MAX) { /* drops the stop string and what follows, also half a code point */
        r->text.len = 0;
        r->stopped = true;
    }
    if (r->cancelled)
        fmi_request_finish(r, "cancelled", NULL);
    else if (eos || stop != SIZE_MAX || form_ended(r))
        fmi_request_finish(r, "stop", NULL);
    else if (r->count == r->room)
        fmi_request_finish(r, "length", NULL);
}

void fmi_request_finish(fmi_request *r, const char *why, const char *error)
{
    if (r->done)
        return;
    r->done = true;
    char copy[512] = ""; /* error is often the thread's text, which later calls may change */
    if (error) {
        size_t n = FM_MIN(strlen(error), sizeof(copy) - 1);
        memcpy(copy, error, n);
    }
    const fm_tokenizer *tok = fm_model_tokenizer(r->ask.model);
    if (tok && !r->stopped && fm_tok_stream_finish(&r->stream, tok, &r->text) != FM_OK)
        r->text.len = 0;
    bool has = r->text.len > 0;
    tell(r, &(fm_gen_event){.token = -1,
                            .text = has ? (const char *)r->text.data : "",
                            .text_len = r->text.len,
                            .finish = why,
                            .error = error ? copy : NULL});
    fm_seq_close(r->seq);
    r->seq = NULL;
}
