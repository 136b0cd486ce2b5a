/* suite_case.c - reads one case: its prompt, its scoring, its expectation. Every key is known or
 * refused: a misspelt assertion that silently passes is the worst thing that a test can do. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/suite/internal.h"

#define MAX_TOKENS_LIMIT 4096
#define SEED_LIMIT 9007199254740992.0 /* 2^53: a double counts exactly up to it */

/* Reads an optional string: a value of another type is an error, never the default. */
static fm_status read_word(const char **out, const fm_json *obj, const char *key, const char *where)
{
    const fm_json *v = fm_json_get(obj, key);
    if (v && !fm_json_is(v, FM_JSON_STRING))
        return fm_fail(FM_EINVAL, "%s: '%s' must be a string", where, key);
    *out = fm_json_cstr(v, *out);
    return FM_OK;
}

static fm_status need_kind(fmv_case *c, const char *where)
{
    const char *kind = "MFT";
    FM_TRY(read_word(&kind, c->doc, "kind", where));
    if (strcmp(kind, "MFT") == 0)
        c->kind = FMV_MFT;
    else if (strcmp(kind, "INV") == 0)
        c->kind = FMV_INV;
    else if (strcmp(kind, "DIR") == 0)
        c->kind = FMV_DIR;
    else
        return fm_fail(FM_EINVAL, "%s: kind '%s' is not MFT, INV or DIR", where, kind);
    return FM_OK;
}

static fm_status check_messages(const fm_json *m, const char *where)
{
    if (!fm_json_is(m, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "%s: 'messages' wants a list of {role, content}", where);
    for (size_t i = 0; i < fm_json_count(m); i++) {
        const fm_json *one = fm_json_at(m, i);
        if (!fm_json_is(fm_json_get(one, "role"), FM_JSON_STRING) ||
            !fm_json_is(fm_json_get(one, "content"), FM_JSON_STRING))
            return fm_fail(FM_EINVAL, "%s: messages[%zu] wants 'role' and 'content' strings", where,
                           i);
    }
    return fm_json_count(m) ? FM_OK : fm_fail(FM_EINVAL, "%s: 'messages' is empty", where);
}

/* Reads prompts. prompt/chat: a string, for INV and DIR a list. messages: one conversation. */
static fm_status need_prompts(fmv_case *c, const char *where)
{
    static const char *const keys[] = {"prompt", "chat", "messages"};
    const fm_json *found = NULL;
    for (size_t i = 0; i < FM_ARRAY_LEN(keys); i++) {
        const fm_json *v = fm_json_get(c->doc, keys[i]);
        if (v && found)
            return fm_fail(FM_EINVAL, "%s: want one of 'prompt', 'chat', 'messages', not two",
                           where);
        if (v) {
            found = v;
            c->form = (fmv_prompt_form)i;
        }
    }
    if (!found)
        return fm_fail(FM_EINVAL, "%s: 'prompt', 'chat' or 'messages' is missing", where);
    bool several = c->form != FMV_PROMPT_MESSAGES && fm_json_is(found, FM_JSON_ARRAY);
    c->prompt_count = several ? fm_json_count(found) : 1;
    if (c->prompt_count > FMV_PROMPTS_MAX)
        return fm_fail(FM_ELIMIT, "%s: more than %u prompts", where, FMV_PROMPTS_MAX);
    for (size_t i = 0; i < c->prompt_count; i++) {
        c->prompt[i] = several ? fm_json_at(found, i) : found;
        if (c->form != FMV_PROMPT_MESSAGES && !fm_json_is(c->prompt[i], FM_JSON_STRING))
            return fm_fail(FM_EINVAL, "%s: '%s' must be a string", where, keys[c->form]);
    }
    if (c->form == FMV_PROMPT_MESSAGES) {
        FM_TRY(check_messages(found, where));
    }
    if (c->kind == FMV_MFT && c->prompt_count != 1)
        return fm_fail(FM_EINVAL, "%s: an MFT case has one prompt (INV and DIR have several)",
                       where);
    if (c->kind != FMV_MFT && c->prompt_count < 2)
        return fm_fail(FM_EINVAL, "%s: %s wants a list of at least two prompts", where,
                       c->kind == FMV_INV ? "INV" : "DIR");
    return FM_OK;
}

static fm_status read_whole(double *out, const fm_json *obj, const char *key, double low,
                            double high, const char *where)
{
    FM_TRY(fmv_read_number(out, obj, key, where));
    if (!(*out >= low && *out <= high && floor(*out) == *out))
        return fm_fail(FM_EINVAL, "%s: generate.%s wants a whole number, %.0f to %.0f", where, key,
                       low, high);
    return FM_OK;
}

static fm_status read_stops(fmv_case *c, const fm_json *stop, const char *where)
{
    if (fm_json_is(stop, FM_JSON_STRING) && *fm_json_cstr(stop, "")) {
        c->stop[0] = fm_json_cstr(stop, "");
        c->stop_count = 1;
        return FM_OK;
    }
    if (!fm_json_is(stop, FM_JSON_ARRAY) || fm_json_count(stop) > FM_ARRAY_LEN(c->stop))
        return fm_fail(FM_EINVAL, "%s: generate.stop wants text or a list of up to 8", where);
    c->stop_count = fm_json_count(stop);
    for (size_t i = 0; i < c->stop_count; i++) {
        c->stop[i] = fm_json_cstr(fm_json_at(stop, i), NULL);
        if (!c->stop[i] || !*c->stop[i])
            return fm_fail(FM_EINVAL, "%s: generate.stop[%zu] must be a non-empty string", where,
                           i);
    }
    return FM_OK;
}

/* Reads `generate`; called twice: for the suite's defaults, then for the case's own. */
static fm_status read_generate(fmv_case *c, const fm_json *g, const char *where)
{
    static const char *const known[] = {"max-tokens", "stop", "temperature",        "top-p",
                                        "top-k",      "seed", "repetition-penalty", "until",
                                        "repeats",    NULL};
    fm_sample_params *p = &c->sampling;
    double max_tokens = c->max_tokens, temperature = (double)p->temperature,
           top_p = (double)p->top_p, top_k = p->top_k, seed = (double)p->seed,
           penalty = (double)p->repetition_penalty, repeats = c->repeats;
    if (!g)
        return FM_OK;
    FM_TRY(fm_json_is(g, FM_JSON_OBJECT)
               ? fm_json_known_keys(g, known, where)
               : fm_fail(FM_EINVAL, "%s: 'generate' wants a mapping", where));
    FM_TRY(read_whole(&max_tokens, g, "max-tokens", 1, MAX_TOKENS_LIMIT, where));
    FM_TRY(fmv_read_number(&temperature, g, "temperature", where));
    FM_TRY(fmv_read_number(&top_p, g, "top-p", where));
    FM_TRY(read_whole(&top_k, g, "top-k", 0, 1e6, where));
    FM_TRY(read_whole(&seed, g, "seed", 0, SEED_LIMIT, where));
    FM_TRY(fmv_read_number(&penalty, g, "repetition-penalty", where));
    FM_TRY(read_whole(&repeats, g, "repeats", 1, FMV_REPEATS_MAX, where));
    if (fm_json_get(g, "until") && fm_json_get(g, "stop"))
        return fm_fail(FM_EINVAL, "%s: generate: 'until' is another word for 'stop': give one",
                       where);
    c->repeats = (uint32_t)repeats;
    c->max_tokens = (uint32_t)max_tokens;
    p->temperature = (float)FM_MIN(temperature, 1e30);
    p->top_p = (float)FM_MIN(top_p, 1e30);
    p->top_k = (uint32_t)top_k;
    p->repetition_penalty = (float)FM_MIN(penalty, 1e30);
    p->seed = (uint64_t)seed;
    fm_status rc = fm_sample_check(p);
    if (rc < 0)
        return fm_error_prefix(rc, "%s: generate", where);
    const fm_json *stop = fm_json_get(g, fm_json_get(g, "until") ? "until" : "stop");
    return stop ? read_stops(c, stop, where) : FM_OK;
}

fm_status fmv_check_generate(const fm_json *g, const char *where)
{
    fmv_case c = {.max_tokens = 1, .repeats = 1};
    fm_sample_defaults(&c.sampling);
    return read_generate(&c, g, where);
}

static fm_status read_choices(fmv_case *c, const char *where)
{
    const fm_json *choices = fm_json_get(c->doc, "choices");
    const char *answer = fm_json_cstr(fm_json_get(c->doc, "answer"), NULL);
    const char *normalize = "none";
    FM_TRY(read_word(&normalize, c->doc, "normalize", where));
    c->choice_count = fm_json_count(choices);
    if (!fm_json_is(choices, FM_JSON_ARRAY) || c->choice_count < 2 ||
        c->choice_count > FMV_CHOICES_MAX)
        return fm_fail(FM_EINVAL, "%s: 'choices' wants a list of 2 to %u strings", where,
                       FMV_CHOICES_MAX);
    c->answer = c->choice_count;
    for (size_t i = 0; i < c->choice_count; i++) {
        c->choice[i] = fm_json_cstr(fm_json_at(choices, i), NULL);
        if (!c->choice[i] || !*c->choice[i])
            return fm_fail(FM_EINVAL, "%s: choices[%zu] must be a non-empty string", where, i);
        for (size_t k = 0; k < i; k++)
            if (strcmp(c->choice[k], c->choice[i]) == 0)
                return fm_fail(FM_EINVAL, "%s: choices[%zu] is there twice", where, i);
        if (answer && strcmp(answer, c->choice[i]) == 0)
            c->answer = i;
    }
    if (c->answer == c->choice_count && (c->kind == FMV_MFT || fm_json_get(c->doc, "answer")))
        return fm_fail(FM_EINVAL, "%s: 'answer' must be one of the choices, letter for letter",
                       where);
    if (strcmp(normalize, "tokens") == 0)
        c->normalize = FMV_PER_TOKEN;
    else if (strcmp(normalize, "bytes") == 0)
        c->normalize = FMV_PER_BYTE;
    else if (strcmp(normalize, "characters") == 0)
        c->normalize = FMV_PER_CHARACTER;
    else if (strcmp(normalize, "mutual-info") == 0)
        c->normalize = FMV_LESS_ALONE;
    else if (strcmp(normalize, "none") != 0)
        return fm_fail(FM_EINVAL,
                       "%s: normalize '%s' is not none, tokens, bytes, characters or mutual-info",
                       where, normalize);
    return FM_OK;
}

static fm_status read_logprob(fmv_case *c, const char *where)
{
    const char *direction = fm_json_cstr(fm_json_get(c->doc, "direction"), NULL);
    c->continuation = fm_json_cstr(fm_json_get(c->doc, "continuation"), "");
    if (!*c->continuation)
        return fm_fail(FM_EINVAL, "%s: 'continuation' must be a non-empty string", where);
    FM_TRY(fmv_read_number(&c->above, c->doc, "logprob-above", where));
    FM_TRY(fmv_read_number(&c->below, c->doc, "logprob-below", where));
    FM_TRY(fmv_read_number(&c->margin, c->doc, "margin", where));
    if (c->margin < 0)
        return fm_fail(FM_EINVAL, "%s: 'margin' must not be negative", where);
    if (fm_json_get(c->doc, "pairs"))
        return FM_OK;
    if (c->kind == FMV_DIR) {
        if (!direction || (strcmp(direction, "increases") && strcmp(direction, "decreases")))
            return fm_fail(FM_EINVAL, "%s: DIR wants direction: increases or decreases", where);
        c->increases = strcmp(direction, "increases") == 0;
        return FM_OK;
    }
    if (c->kind == FMV_INV)
        return fm_json_get(c->doc, "margin")
                   ? FM_OK
                   : fm_fail(FM_EINVAL, "%s: INV with a continuation wants 'margin'", where);
    const fm_json *greedy = fm_json_get(c->doc, "greedy");
    if (greedy && !fm_json_is(greedy, FM_JSON_BOOL))
        return fm_fail(FM_EINVAL, "%s: 'greedy' must be true or false", where);
    c->greedy = greedy ? fm_json_bool(greedy, false) : -1;
    if (isnan(c->above) && isnan(c->below) && !greedy)
        return fm_fail(FM_EINVAL, "%s: want 'logprob-above' or 'logprob-below'", where);
    if (c->above >= c->below)
        return fm_fail(FM_EINVAL, "%s: nothing is above 'logprob-above' and below 'logprob-below'",
                       where);
    return FM_OK;
}

/* Refuses keys without effect in the case's kind of scoring, since the writer of such a key
 * believes that it tests something. */
static fm_status check_meaning(const fmv_case *c, const char *where)
{
    enum { TEXT = 1, CHOICE = 2, BOUND = 4, INV = 8, DIR = 16, CLASS = 32, OTHER = 64 };
    static const struct {
        const char *key;
        int with;
        const char *wants;
    } rule[] = {
        {"generate", TEXT, "'expect'"},
        {"ignore-case", TEXT, "'expect'"},
        {"filter", TEXT, "'expect'"},
        {"threshold", TEXT, "'expect'"},
        {"greedy", BOUND, "'continuation' and kind MFT"},
        {"probability-above", CLASS, "'class' and kind MFT"},
        {"probability-below", CLASS, "'class' and kind MFT"},
        {"answer", CHOICE, "'choices'"},
        {"normalize", CHOICE, "'choices'"},
        {"logprob-above", BOUND, "'continuation' and kind MFT"},
        {"logprob-below", BOUND, "'continuation' and kind MFT"},
        {"margin", INV | DIR, "'continuation' or 'class' and kind INV or DIR"},
        {"direction", DIR, "'continuation' or 'class' and kind DIR"},
    };
    int is = c->scoring == FMV_SCORE_CHOICE ? CHOICE : c->scoring == FMV_SCORE_TEXT ? TEXT : OTHER;
    if (c->scoring == FMV_SCORE_LOGPROB)
        is = c->kind == FMV_MFT ? BOUND : c->kind == FMV_INV ? INV : DIR;
    if (c->scoring == FMV_SCORE_CLASS)
        is = c->kind == FMV_MFT ? CLASS : c->kind == FMV_INV ? INV : DIR;
    for (size_t i = 0; i < FM_ARRAY_LEN(rule); i++)
        if (fm_json_get(c->doc, rule[i].key) && !(rule[i].with & is))
            return fm_fail(FM_EINVAL, "%s: '%s' says nothing here: it goes with %s", where,
                           rule[i].key, rule[i].wants);
    return FM_OK;
}

static fm_status read_scoring(fmv_case *c, const fm_json *defaults, const char *where)
{
    bool expect = fm_json_get(c->doc, "expect") != NULL;
    bool choices = fm_json_get(c->doc, "choices") != NULL;
    bool continuation = fm_json_get(c->doc, "continuation") != NULL;
    c->scoring = choices ? FMV_SCORE_CHOICE : continuation ? FMV_SCORE_LOGPROB : FMV_SCORE_TEXT;
    int others = fmv_scorings_of(c, &c->scoring);
    if (expect + choices + continuation + others > 1)
        return fm_fail(FM_EINVAL,
                       "%s: want one of 'expect', 'choices', 'continuation', 'perplexity', "
                       "'class', 'embedding'",
                       where);
    FM_TRY(check_meaning(c, where));
    if (others)
        return fmv_scoring_read(c, where);
    if (choices)
        return read_choices(c, where);
    if (continuation)
        return read_logprob(c, where);
    FM_TRY(read_generate(c, defaults, where));
    FM_TRY(read_generate(c, fm_json_get(c->doc, "generate"), where));
    FM_TRY(fmv_filters_read(c, where));
    return fmv_expect_read(c, where);
}

/* `generate` as resolved from defaults and case, so that equal settings have one digest. */
static fm_json *resolved_generate(const fmv_case *c)
{
    const fm_sample_params *p = &c->sampling;
    fm_json *o = fm_json_new_object(), *stop = fm_json_new_array();
    fm_status rc = o && stop ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < c->stop_count; i++)
        rc = fm_json_push(stop, fm_json_new_str(c->stop[i]));
    FM_THEN(rc, fm_json_set(o, "max-tokens", fm_json_new_int(c->max_tokens)));
    FM_THEN(rc, fm_json_set(o, "temperature", fm_json_new_real((double)p->temperature)));
    FM_THEN(rc, fm_json_set(o, "top-p", fm_json_new_real((double)p->top_p)));
    FM_THEN(rc, fm_json_set(o, "top-k", fm_json_new_int(p->top_k)));
    FM_THEN(rc, fm_json_set(o, "seed", fm_json_new_int((int64_t)p->seed)));
    FM_THEN(rc,
            fm_json_set(o, "repetition-penalty", fm_json_new_real((double)p->repetition_penalty)));
    FM_THEN(rc, fm_json_set(o, "stop", fm_json_ref(stop)));
    if (rc == FM_OK && c->repeats > 1)
        rc = fm_json_set(o, "repeats", fm_json_new_int(c->repeats));
    fm_json_free(stop);
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

/* Computes the digest, which covers what the verdict depends on: every key except the name, the
 * note and the classification, and `generate` as resolved; nothing of other cases. */
static fm_status take_digest(fmv_case *c)
{
    fm_buf text;
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;
    for (void *it = fm_json_iter(c->doc); rc == FM_OK && it; it = fm_json_next(c->doc, it)) {
        const char *key = fm_json_iter_key(it);
        if (strcmp(key, "name") && strcmp(key, "note") && strcmp(key, "generate") &&
            strcmp(key, "capability") && strcmp(key, "tags"))
            rc = fm_json_set(o, key, fm_json_ref(fm_json_iter_value(it)));
    }
    if (rc == FM_OK && c->scoring == FMV_SCORE_TEXT)
        rc = fm_json_set(o, "generate", resolved_generate(c));
    fm_buf_init(&text, 0);
    FM_THEN(rc, fm_json_write(&text, o, FM_JSON_CANONICAL));
    FM_THEN(rc, fm_sha256(&c->digest, text.data, text.len));
    fm_buf_release(&text);
    fm_json_free(o);
    return rc;
}

static bool one_line(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return false;
    return true;
}

static fm_status need_name(fmv_case *c, const char *what)
{
    const char *name = fm_json_cstr(fm_json_get(c->doc, "name"), "");
    if (!fm_json_is(c->doc, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: a case is a mapping", what);
    if (!*name || strlen(name) > FMV_CASE_NAME_MAX || !one_line(name))
        return fm_fail(FM_EINVAL, "%s: a case's 'name' must be one line of 1 to %u bytes", what,
                       FMV_CASE_NAME_MAX);
    c->name = fm_strdup(name);
    return c->name ? FM_OK : FM_ENOMEM;
}

static fm_status need_ignore_case(fmv_case *c, const char *where)
{
    const fm_json *v = fm_json_get(c->doc, "ignore-case");
    if (v && !fm_json_is(v, FM_JSON_BOOL))
        return fm_fail(FM_EINVAL, "%s: 'ignore-case' must be true or false", where);
    c->ignore_case = fm_json_bool(v, false);
    return FM_OK;
}

fm_status fmv_case_init(fmv_case *c, fm_json *doc, const fm_json *defaults, const char *what)
{
    static const char *const known[] = {"name",
                                        "kind",
                                        "prompt",
                                        "chat",
                                        "messages",
                                        "generate",
                                        "expect",
                                        "choices",
                                        "answer",
                                        "normalize",
                                        "continuation",
                                        "logprob-above",
                                        "margin",
                                        "direction",
                                        "logprob-below",
                                        "ignore-case",
                                        "note",
                                        "capability",
                                        "tags",
                                        "against",
                                        "pairs",
                                        "threshold",
                                        "filter",
                                        "greedy",
                                        "perplexity",
                                        "class",
                                        "embedding",
                                        "probability-above",
                                        "probability-below",
                                        NULL};
    char where[512];
    memset(c, 0, sizeof *c);
    c->doc = doc;
    c->max_tokens = 32;
    c->repeats = 1;
    c->greedy = -1;
    c->threshold = NAN;
    c->above = c->below = NAN;
    fm_sample_defaults(&c->sampling);
    fm_status rc = need_name(c, what);
    snprintf(where, sizeof where, "%.200s: case '%.200s'", what, rc == FM_OK ? c->name : "");
    FM_THEN(rc, fm_json_known_keys(doc, known, where));
    FM_THEN(rc, need_ignore_case(c, where));
    FM_THEN(rc, need_kind(c, where));
    FM_THEN(rc, need_prompts(c, where));
    FM_THEN(rc, read_scoring(c, defaults, where));
    FM_THEN(rc, fmv_form_read(c, where));
    FM_THEN(rc, take_digest(c));
    if (rc < 0)
        fmv_case_release(c);
    return rc;
}

void fmv_case_release(fmv_case *c)
{
    fmv_expect_release(c);
    fmv_filters_release(c);
    fm_free(c->name);
    fm_json_free(c->doc);
    memset(c, 0, sizeof *c);
}
