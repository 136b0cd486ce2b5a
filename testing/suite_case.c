/* suite_case.c - one case: what it asks, how it is scored, what it expects. Every key is known or
 * refused: a misspelt assertion that silently passes is the worst thing that a test can do. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/internal.h"

#define MAX_TOKENS_LIMIT 4096

static fm_status need_kind(fmi_case *c, const char *where)
{
    const char *kind = fm_json_cstr(fm_json_get(c->doc, "kind"), "MFT");
    if (strcmp(kind, "MFT") == 0)
        c->kind = FMI_MFT;
    else if (strcmp(kind, "INV") == 0)
        c->kind = FMI_INV;
    else if (strcmp(kind, "DIR") == 0)
        c->kind = FMI_DIR;
    else
        return fm_fail(FM_EINVAL, "%s: kind '%s' is not MFT, INV or DIR", where, kind);
    return FM_OK;
}

static fm_status check_messages(const fm_json *m, const char *where)
{
    for (size_t i = 0; i < fm_json_count(m); i++) {
        const fm_json *one = fm_json_at(m, i);
        if (!fm_json_is(fm_json_get(one, "role"), FM_JSON_STRING) ||
            !fm_json_is(fm_json_get(one, "content"), FM_JSON_STRING))
            return fm_fail(FM_EINVAL, "%s: messages[%zu] wants 'role' and 'content' strings", where,
                           i);
    }
    return fm_json_count(m) ? FM_OK : fm_fail(FM_EINVAL, "%s: 'messages' is empty", where);
}

/* prompt/chat: a string, or for INV and DIR a list of them. messages: one conversation. */
static fm_status need_prompts(fmi_case *c, const char *where)
{
    static const char *const keys[] = {"prompt", "chat", "messages"};
    const fm_json *found = NULL;
    for (size_t i = 0; i < FM_ARRAY_LEN(keys); i++) {
        const fm_json *v = fm_json_get(c->doc, keys[i]);
        if (v && found)
            return fm_fail(FM_EINVAL, "%s: want one of 'prompt', 'chat', 'messages', not two", where);
        if (v) {
            found = v;
            c->form = (fmi_prompt_form)i;
        }
    }
    if (!found)
        return fm_fail(FM_EINVAL, "%s: 'prompt', 'chat' or 'messages' is missing", where);
    bool several = c->form != FMI_PROMPT_MESSAGES && fm_json_is(found, FM_JSON_ARRAY);
    c->prompt_count = several ? fm_json_count(found) : 1;
    if (c->prompt_count > FMI_PROMPTS_MAX)
        return fm_fail(FM_ELIMIT, "%s: more than %u prompts", where, FMI_PROMPTS_MAX);
    for (size_t i = 0; i < c->prompt_count; i++) {
        c->prompt[i] = several ? fm_json_at(found, i) : found;
        if (c->form != FMI_PROMPT_MESSAGES && !fm_json_is(c->prompt[i], FM_JSON_STRING))
            return fm_fail(FM_EINVAL, "%s: '%s' must be a string", where, keys[c->form]);
    }
    if (c->form == FMI_PROMPT_MESSAGES) {
        fm_status rc = check_messages(found, where);
        if (rc < 0)
            return rc;
    }
    if (c->kind == FMI_MFT && c->prompt_count != 1)
        return fm_fail(FM_EINVAL, "%s: an MFT case has one prompt (INV and DIR have several)", where);
    if (c->kind != FMI_MFT && c->prompt_count < 2)
        return fm_fail(FM_EINVAL, "%s: %s wants a list of at least two prompts", where,
                       c->kind == FMI_INV ? "INV" : "DIR");
    return FM_OK;
}

static fm_status read_number(double *out, const fm_json *obj, const char *key, const char *where)
{
    const fm_json *v = fm_json_get(obj, key);
    if (!v)
        return FM_OK;
    if (!fm_json_is(v, FM_JSON_INT) && !fm_json_is(v, FM_JSON_REAL))
        return fm_fail(FM_EINVAL, "%s: '%s' must be a number", where, key);
    *out = fm_json_real(v, 0);
    return FM_OK;
}

static fm_status read_stops(fmi_case *c, const fm_json *stop, const char *where)
{
    if (fm_json_is(stop, FM_JSON_STRING)) {
        c->stop[0] = fm_json_cstr(stop, "");
        c->stop_count = 1;
        return FM_OK;
    }
    if (stop && (!fm_json_is(stop, FM_JSON_ARRAY) || fm_json_count(stop) > FM_ARRAY_LEN(c->stop)))
        return fm_fail(FM_EINVAL, "%s: generate.stop wants a string or a list of up to 8", where);
    c->stop_count = fm_json_count(stop);
    for (size_t i = 0; i < c->stop_count; i++) {
        c->stop[i] = fm_json_cstr(fm_json_at(stop, i), NULL);
        if (!c->stop[i] || !*c->stop[i])
            return fm_fail(FM_EINVAL, "%s: generate.stop[%zu] must be a non-empty string", where, i);
    }
    return FM_OK;
}

/* Applied twice: the suite's defaults, then the case's own. */
static fm_status read_generate(fmi_case *c, const fm_json *g, const char *where)
{
    static const char *const known[] = {"max-tokens", "stop", "temperature", "top-p", "top-k",
                                        "seed", "repetition-penalty", NULL};
    double max_tokens = c->max_tokens, temperature = (double)c->sampling.temperature,
           top_p = (double)c->sampling.top_p, top_k = c->sampling.top_k, seed = 0,
           penalty = (double)c->sampling.repetition_penalty;
    if (!g)
        return FM_OK;
    fm_status rc = fmi_known_keys(g, known, where);
    if (rc == FM_OK)
        rc = read_number(&max_tokens, g, "max-tokens", where);
    if (rc == FM_OK)
        rc = read_number(&temperature, g, "temperature", where);
    if (rc == FM_OK)
        rc = read_number(&top_p, g, "top-p", where);
    if (rc == FM_OK)
        rc = read_number(&top_k, g, "top-k", where);
    if (rc == FM_OK)
        rc = read_number(&seed, g, "seed", where);
    if (rc == FM_OK)
        rc = read_number(&penalty, g, "repetition-penalty", where);
    if (rc == FM_OK && !(max_tokens >= 1 && max_tokens <= MAX_TOKENS_LIMIT))
        rc = fm_fail(FM_EINVAL, "%s: generate.max-tokens wants 1 to %d", where, MAX_TOKENS_LIMIT);
    if (rc == FM_OK && !(top_k >= 0 && top_k <= 1e6 && seed >= 0 && seed <= 9e15))
        rc = fm_fail(FM_EINVAL, "%s: generate.top-k or generate.seed is out of range", where);
    if (rc < 0)
        return rc;
    c->max_tokens = (uint32_t)max_tokens;
    c->sampling.temperature = (float)temperature;
    c->sampling.top_p = (float)top_p;
    c->sampling.top_k = (uint32_t)top_k;
    c->sampling.repetition_penalty = (float)penalty;
    if (fm_json_get(g, "seed"))
        c->sampling.seed = (uint64_t)seed;
    rc = fm_sample_check(&c->sampling);
    if (rc < 0)
        return fm_error_prefix(rc, "%s: generate", where);
    return fm_json_get(g, "stop") ? read_stops(c, fm_json_get(g, "stop"), where) : FM_OK;
}

static const struct {
    const char *word;
    fmi_assert_kind kind;
    bool negated;
} assert_words[] = {
    {"equals", FMI_EQUALS, false},           {"not-equals", FMI_EQUALS, true},
    {"contains", FMI_CONTAINS, false},       {"not-contains", FMI_CONTAINS, true},
    {"starts-with", FMI_STARTS_WITH, false}, {"not-starts-with", FMI_STARTS_WITH, true},
    {"regex", FMI_REGEX, false},             {"not-regex", FMI_REGEX, true},
    {"one-of", FMI_ONE_OF, false},           {"not-one-of", FMI_ONE_OF, true},
    {"json", FMI_JSON, false},               {"not-json", FMI_JSON, true},
};

static fm_status read_assertion(fmi_case *c, const char *word, const fm_json *value,
                                const char *where)
{
    size_t i = 0;
    while (i < FM_ARRAY_LEN(assert_words) && strcmp(assert_words[i].word, word) != 0)
        i++;
    if (i == FM_ARRAY_LEN(assert_words))
        return fm_fail(FM_EINVAL, "%s: expect: unknown assertion '%s' (equals, contains, "
                                  "starts-with, regex, one-of, json, each also with not-)",
                       where, word);
    fmi_assertion *all = fm_realloc(c->assertion, (c->assertion_count + 1) * sizeof *all);
    if (!all)
        return FM_ENOMEM;
    c->assertion = all;
    fmi_assertion *a = &all[c->assertion_count++];
    *a = (fmi_assertion){assert_words[i].kind, assert_words[i].negated, value, NULL};
    bool list = fm_json_is(value, FM_JSON_ARRAY) && fm_json_count(value);
    if (a->kind == FMI_JSON)
        return FM_OK;
    if (a->kind == FMI_ONE_OF ? !list : !fm_json_is(value, FM_JSON_STRING))
        return fm_fail(FM_EINVAL, "%s: expect.%s wants a %s", where, word,
                       a->kind == FMI_ONE_OF ? "list of strings" : "string (quote numbers)");
    if (a->kind == FMI_REGEX)
        return fmi_pattern_compile(&a->regex, fm_json_cstr(value, ""), c->ignore_case, where);
    return FM_OK;
}

static fm_status read_expect(fmi_case *c, const char *where)
{
    const fm_json *expect = fm_json_get(c->doc, "expect");
    bool list = fm_json_is(expect, FM_JSON_ARRAY);
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < (list ? fm_json_count(expect) : 1); i++) {
        const fm_json *one = list ? fm_json_at(expect, i) : expect;
        if (one && !fm_json_is(one, FM_JSON_OBJECT))
            return fm_fail(FM_EINVAL, "%s: 'expect' wants assertions like {contains: text}", where);
        for (void *it = fm_json_iter(one); rc == FM_OK && it; it = fm_json_next(one, it))
            rc = read_assertion(c, fm_json_iter_key(it), fm_json_iter_value(it), where);
    }
    if (rc == FM_OK && c->assertion_count == 0 && c->kind == FMI_MFT)
        rc = fm_fail(FM_EINVAL, "%s: 'expect' is missing: the case could not fail", where);
    if (rc == FM_OK && c->kind == FMI_DIR)
        rc = fm_fail(FM_EINVAL, "%s: DIR compares log-probabilities: give 'continuation'", where);
    return rc;
}

static fm_status read_choices(fmi_case *c, const char *where)
{
    const fm_json *choices = fm_json_get(c->doc, "choices");
    const char *answer = fm_json_cstr(fm_json_get(c->doc, "answer"), NULL);
    const char *normalize = fm_json_cstr(fm_json_get(c->doc, "normalize"), "none");
    c->choice_count = fm_json_count(choices);
    if (!fm_json_is(choices, FM_JSON_ARRAY) || c->choice_count < 2 ||
        c->choice_count > FMI_CHOICES_MAX)
        return fm_fail(FM_EINVAL, "%s: 'choices' wants a list of 2 to %u strings", where,
                       FMI_CHOICES_MAX);
    if (c->kind != FMI_MFT)
        return fm_fail(FM_EINVAL, "%s: 'choices' goes with kind MFT", where);
    c->answer = c->choice_count;
    for (size_t i = 0; i < c->choice_count; i++) {
        c->choice[i] = fm_json_cstr(fm_json_at(choices, i), NULL);
        if (!c->choice[i] || !*c->choice[i])
            return fm_fail(FM_EINVAL, "%s: choices[%zu] must be a non-empty string", where, i);
        if (answer && strcmp(answer, c->choice[i]) == 0)
            c->answer = i;
    }
    if (c->answer == c->choice_count)
        return fm_fail(FM_EINVAL, "%s: 'answer' must be one of the choices, letter for letter", where);
    c->per_token = strcmp(normalize, "tokens") == 0;
    if (!c->per_token && strcmp(normalize, "none") != 0)
        return fm_fail(FM_EINVAL, "%s: normalize '%s' is not none or tokens", where, normalize);
    return FM_OK;
}

static fm_status read_logprob(fmi_case *c, const char *where)
{
    const char *direction = fm_json_cstr(fm_json_get(c->doc, "direction"), NULL);
    c->continuation = fm_json_cstr(fm_json_get(c->doc, "continuation"), "");
    if (!*c->continuation)
        return fm_fail(FM_EINVAL, "%s: 'continuation' must be a non-empty string", where);
    fm_status rc = read_number(&c->above, c->doc, "logprob-above", where);
    if (rc == FM_OK)
        rc = read_number(&c->below, c->doc, "logprob-below", where);
    if (rc == FM_OK)
        rc = read_number(&c->margin, c->doc, "margin", where);
    if (rc < 0)
        return rc;
    if (c->kind == FMI_DIR) {
        if (!direction || (strcmp(direction, "increases") && strcmp(direction, "decreases")))
            return fm_fail(FM_EINVAL, "%s: DIR wants direction: increases or decreases", where);
        c->increases = strcmp(direction, "increases") == 0;
        return FM_OK;
    }
    if (c->kind == FMI_INV)
        return fm_json_get(c->doc, "margin")
                   ? FM_OK
                   : fm_fail(FM_EINVAL, "%s: INV with a continuation wants 'margin'", where);
    if (isnan(c->above) && isnan(c->below))
        return fm_fail(FM_EINVAL, "%s: want 'logprob-above' or 'logprob-below'", where);
    return FM_OK;
}

static fm_status read_scoring(fmi_case *c, const fm_json *defaults, const char *where)
{
    bool expect = fm_json_get(c->doc, "expect") != NULL;
    bool choices = fm_json_get(c->doc, "choices") != NULL;
    bool continuation = fm_json_get(c->doc, "continuation") != NULL;
    if (expect + choices + continuation > 1)
        return fm_fail(FM_EINVAL, "%s: want one of 'expect', 'choices', 'continuation'", where);
    if (choices) {
        c->scoring = FMI_SCORE_CHOICE;
        return read_choices(c, where);
    }
    if (continuation) {
        c->scoring = FMI_SCORE_LOGPROB;
        return read_logprob(c, where);
    }
    c->scoring = FMI_SCORE_TEXT;
    fm_status rc = read_generate(c, defaults, where);
    if (rc == FM_OK)
        rc = read_generate(c, fm_json_get(c->doc, "generate"), where);
    return rc == FM_OK ? read_expect(c, where) : rc;
}

/* The digest covers the case and the defaults that reach it, not its neighbours. */
static fm_status take_digest(fmi_case *c, const fm_json *defaults)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = fm_json_write(&text, c->doc, FM_JSON_CANONICAL);
    if (rc == FM_OK && defaults && c->scoring == FMI_SCORE_TEXT)
        rc = fm_json_write(&text, defaults, FM_JSON_CANONICAL);
    if (rc == FM_OK)
        rc = fm_sha256(&c->digest, text.data, text.len);
    fm_buf_release(&text);
    return rc;
}

fm_status fmi_case_init(fmi_case *c, fm_json *doc, const fm_json *defaults, const char *what)
{
    static const char *const known[] = {
        "name",   "kind",      "prompt",       "chat",          "messages",      "generate",
        "expect", "choices",   "answer",       "normalize",     "continuation",  "logprob-above",
        "margin", "direction", "logprob-below", "ignore-case",  "note",          NULL};
    char where[512];
    memset(c, 0, sizeof *c);
    c->doc = doc;
    c->max_tokens = 32;
    c->above = c->below = NAN;
    fm_sample_defaults(&c->sampling);
    const char *name = fm_json_cstr(fm_json_get(doc, "name"), "");
    snprintf(where, sizeof where, "%.200s: case '%.200s'", what, name);
    fm_status rc = fm_json_is(doc, FM_JSON_OBJECT)
                       ? FM_OK
                       : fm_fail(FM_EINVAL, "%s: a case is a mapping", what);
    if (rc == FM_OK && (!*name || strlen(name) > FMI_CASE_NAME_MAX || strchr(name, '\n')))
        rc = fm_fail(FM_EINVAL, "%s: a case's 'name' must be one line of 1 to %u bytes", what,
                     FMI_CASE_NAME_MAX);
    if (rc == FM_OK)
        rc = fmi_known_keys(doc, known, where);
    if (rc == FM_OK && !(c->name = fm_strdup(name)))
        rc = FM_ENOMEM;
    c->ignore_case = fm_json_bool(fm_json_get(doc, "ignore-case"), false);
    if (rc == FM_OK)
        rc = need_kind(c, where);
    if (rc == FM_OK)
        rc = need_prompts(c, where);
    if (rc == FM_OK)
        rc = read_scoring(c, defaults, where);
    if (rc == FM_OK)
        rc = take_digest(c, defaults);
    if (rc < 0)
        fmi_case_release(c);
    return rc;
}

void fmi_case_release(fmi_case *c)
{
    for (size_t i = 0; i < c->assertion_count; i++)
        fmi_pattern_free(c->assertion[i].regex);
    fm_free(c->assertion);
    fm_free(c->name);
    fm_json_free(c->doc);
    memset(c, 0, sizeof *c);
}
