/* perturb_case.c - `perturb` in a case, and perturbed forms of a case.
 *
 * The result is an ordinary INV or DIR case: runner and reports know no perturbations. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/assert/text_match.h"
#include "testing/cases/perturb.h"

#define ENTRIES_MAX 32
#define SEED_MAX 9007199254740992.0 /* 2^53 */

/* ==== what `perturb` says ==== */

typedef struct option_rule {
    const char *key;
    unsigned kinds; /* bits of fmv_perturb_kind */
} option_rule;
#define BIT(kind) (1u << (kind))
static const option_rule option_rules[] = {
    {"count", ~0u},
    {"seed", ~0u},
    {"n", BIT(FMV_TYPOS)},
    {"mode", BIT(FMV_CONTRACTIONS) | BIT(FMV_NEGATION) | BIT(FMV_PUNCTUATION)},
    {"to", BIT(FMV_CASING)},
    {"lexicon", BIT(FMV_NAMES) | BIT(FMV_LOCATIONS)},
    {"text", BIT(FMV_PREFIX) | BIT(FMV_SUFFIX)},
};

static const struct {
    const char *word;
    fmv_perturb_mode mode;
    unsigned kinds;
} mode_rules[] = {
    {"any", FMV_MODE_ANY, BIT(FMV_CONTRACTIONS) | BIT(FMV_NEGATION) | BIT(FMV_PUNCTUATION)},
    {"add", FMV_MODE_ADD, BIT(FMV_NEGATION) | BIT(FMV_PUNCTUATION)},
    {"remove", FMV_MODE_REMOVE, BIT(FMV_NEGATION)},
    {"strip", FMV_MODE_REMOVE, BIT(FMV_PUNCTUATION)},
    {"expand", FMV_MODE_EXPAND, BIT(FMV_CONTRACTIONS)},
    {"contract", FMV_MODE_CONTRACT, BIT(FMV_CONTRACTIONS)},
    {"upper", FMV_MODE_UPPER, BIT(FMV_CASING)},
    {"lower", FMV_MODE_LOWER, BIT(FMV_CASING)},
    {"title", FMV_MODE_TITLE, BIT(FMV_CASING)},
};

static fm_status read_mode(fmv_perturbation *p, const char *word, const char *where)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(mode_rules); i++)
        if (mode_rules[i].kinds & BIT(p->kind) && strcmp(mode_rules[i].word, word) == 0) {
            p->mode = mode_rules[i].mode;
            return FM_OK;
        }
    return fm_fail(FM_EINVAL, "%s: perturb.%s: '%.40s' is no way to do it (%s)", where,
                   fmv_perturb_words[p->kind], word,
                   p->kind == FMV_CASING         ? "upper, lower, title"
                   : p->kind == FMV_CONTRACTIONS ? "expand, contract, any"
                   : p->kind == FMV_NEGATION     ? "add, remove, any"
                                                 : "add, strip, any");
}

static fm_status read_count(double *out, const fm_json *v, const char *key, double low, double high,
                            const fmv_perturbation *p, const char *where)
{
    double x = fm_json_real(v, NAN);
    if (!v)
        return FM_OK;
    if (!(x >= low && x <= high && floor(x) == x))
        return fm_fail(FM_EINVAL, "%s: perturb.%s.%s wants a whole number, %.0f to %.0f", where,
                       fmv_perturb_words[p->kind], key, low, high);
    *out = x;
    return FM_OK;
}

static fm_status read_words(fmv_perturbation *p, const fm_json *v, const fm_json *lexicons,
                            const char *where)
{
    if (!fm_json_is(v, FM_JSON_STRING))
        return fm_fail(FM_EINVAL, "%s: perturb.%s wants a string", where,
                       fmv_perturb_words[p->kind]);
    const char *text = fm_json_cstr(v, "");
    if (p->kind == FMV_PREFIX || p->kind == FMV_SUFFIX)
        p->text = text;
    else if (p->kind == FMV_NAMES || p->kind == FMV_LOCATIONS)
        return fmv_words_find(&p->words, lexicons, text, where);
    else
        return read_mode(p, text, where);
    return FM_OK;
}

static fm_status read_options(fmv_perturbation *p, const fm_json *o, const fm_json *lexicons,
                              const char *where)
{
    double n = 1, count = 1, seed = 0;
    fm_status rc = FM_OK;
    for (void *it = fm_json_iter(o); it && rc == FM_OK; it = fm_json_next(o, it)) {
        const char *key = fm_json_iter_key(it);
        size_t i = 0;
        while (i < FM_ARRAY_LEN(option_rules) &&
               (strcmp(option_rules[i].key, key) != 0 || !(option_rules[i].kinds & BIT(p->kind))))
            i++;
        if (i == FM_ARRAY_LEN(option_rules))
            return fm_fail(FM_EINVAL, "%s: perturb.%s has no option '%.60s'", where,
                           fmv_perturb_words[p->kind], key);
        if (strcmp(key, "count") && strcmp(key, "seed") && strcmp(key, "n"))
            rc = read_words(p, fm_json_iter_value(it), lexicons, where);
    }
    FM_THEN(rc, read_count(&n, fm_json_get(o, "n"), "n", 1, 100, p, where));
    FM_THEN(rc,
            read_count(&count, fm_json_get(o, "count"), "count", 1, FMV_PROMPTS_MAX - 1, p, where));
    FM_THEN(rc, read_count(&seed, fm_json_get(o, "seed"), "seed", 0, SEED_MAX, p, where));
    p->n = (uint32_t)n;
    p->count = (uint32_t)count;
    p->seed = (uint64_t)seed;
    return rc;
}

/* Reads "typos", or {names: {count: 3}}, or {prefix: text}. */
static fm_status read_entry(fmv_perturbation *p, const fm_json *v, const fm_json *lexicons,
                            const char *where)
{
    bool mapping = fm_json_is(v, FM_JSON_OBJECT) && fm_json_count(v) == 1;
    void *it = mapping ? fm_json_iter(v) : NULL;
    const char *word = it ? fm_json_iter_key(it) : fm_json_cstr(v, NULL);
    const fm_json *options = it ? fm_json_iter_value(it) : NULL;
    *p = (fmv_perturbation){.n = 1, .count = 1};
    if (!word)
        return fm_fail(FM_EINVAL,
                       "%s: 'perturb' wants a list of names like typos, or mappings of "
                       "one name to its options",
                       where);
    size_t k = 0;
    while (k < FMV_PERTURBATIONS && strcmp(fmv_perturb_words[k], word) != 0)
        k++;
    if (k == FMV_PERTURBATIONS)
        return fm_fail(FM_EINVAL,
                       "%s: unknown perturbation '%.60s' (typos, contractions, names, locations, "
                       "numbers, negation, casing, punctuation, prefix, suffix, neutral, "
                       "whitespace)",
                       where, word);
    p->kind = (fmv_perturb_kind)k;
    p->mode = p->kind == FMV_CASING ? FMV_MODE_LOWER : FMV_MODE_ANY;

    if (fm_json_is(options, FM_JSON_OBJECT))
        FM_TRY(read_options(p, options, lexicons, where));
    else if (options)
        FM_TRY(read_words(p, options, lexicons, where));
    if ((p->kind == FMV_PREFIX || p->kind == FMV_SUFFIX) && (!p->text || !*p->text))
        return fm_fail(FM_EINVAL, "%s: perturb.%s wants its text", where, word);
    return FM_OK;
}

/* ==== the forms of a prompt ==== */

static bool in_list(const fm_json *list, fm_span text)
{
    for (size_t i = 0; i < fm_json_count(list); i++)
        if (fm_span_eq(fm_json_str(fm_json_at(list, i)), text))
            return true;
    return false;
}

/* Charges the steps of a perturbation: searching for words of a longer list costs more. */
static fm_status charge(fmv_expansion_room *room, const fmv_perturbation *p, fm_span prompt,
                        const char *where)
{
    size_t words = p->kind == FMV_NAMES || p->kind == FMV_LOCATIONS ? 80 : 0;
    if (p->words.own || p->words.builtin)
        words = fmv_words_count(&p->words);
    size_t cost = 1 + prompt.len / 128 * (1 + words / 4);
    if (room->steps < cost)
        return fm_fail(FM_ELIMIT,
                       "%s: the suite's templates and perturbations take more than %zu "
                       "steps",
                       where, FMV_EXPANSION_STEPS_MAX);
    room->steps -= cost;
    return FM_OK;
}

/* Pushes up to p->count forms that list does not yet hold. */
static fm_status push_forms(fm_json *list, const fmv_perturbation *p, fm_span prompt,
                            fmv_expansion_room *room, const char *where)
{
    fm_status rc = FM_OK;
    fm_buf b;
    fm_buf_init(&b, FMV_EXPANDED_BYTES_MAX);
    size_t want = fm_json_count(list) + p->count;
    for (uint64_t k = 0; rc == FM_OK && fm_json_count(list) < want && k < 8u * p->count; k++) {
        bool applies = false;
        fm_buf_clear(&b);
        rc = charge(room, p, prompt, where);
        FM_THEN(rc, fmv_perturb(&b, p, prompt, p->seed + k, &applies));
        if (rc == FM_OK && !applies)
            break;
        if (rc < 0 || in_list(list, fm_buf_span(&b)))
            continue;
        if (room->bytes < b.len)
            rc = fm_fail(FM_ELIMIT, "%s: the suite's perturbations write more than %zu bytes",
                         where, FMV_EXPANDED_BYTES_MAX);
        else
            room->bytes -= b.len;
        FM_THEN(rc, fm_json_push(list, fm_json_new_strn(fm_buf_cstr(&b), b.len)));
    }
    fm_buf_release(&b);
    return rc;
}

/* Pushes the original and its forms. */
static fm_status all_forms(fm_json *list, const fm_json *perturb, fm_span prompt,
                           fmv_expansion_room *room, bool every, const char *where)
{
    bool many = fm_json_is(perturb, FM_JSON_ARRAY);
    size_t n = many ? fm_json_count(perturb) : 1;
    if (n == 0 || n > ENTRIES_MAX)
        return fm_fail(FM_EINVAL, "%s: 'perturb' wants 1 to %d perturbations", where, ENTRIES_MAX);
    FM_TRY(fm_json_push(list, fm_json_new_strn((const char *)prompt.data, prompt.len)));
    for (size_t i = 0; i < n; i++) {
        fmv_perturbation p;
        size_t before = fm_json_count(list);
        FM_TRY(read_entry(&p, many ? fm_json_at(perturb, i) : perturb, room->lexicons, where));
        FM_TRY(push_forms(list, &p, prompt, room, where));
        if (every && fm_json_count(list) == before)
            return fm_fail(FM_EINVAL, "%s: perturb.%s finds nothing to change in this prompt",
                           where, fmv_perturb_words[p.kind]);
        if (fm_json_count(list) > FMV_PROMPTS_MAX)
            return fm_fail(FM_ELIMIT, "%s: perturb makes more than %u prompts", where,
                           FMV_PROMPTS_MAX);
    }
    return FM_OK;
}

static fm_status copy_but(fm_json *to, const fm_json *from, const char *a, const char *b)
{
    for (void *it = fm_json_iter(from); it; it = fm_json_next(from, it))
        if (strcmp(fm_json_iter_key(it), a) != 0 && strcmp(fm_json_iter_key(it), b) != 0)
            FM_TRY(fm_json_set(to, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it))));
    return FM_OK;
}

/* Makes `made` a copy of doc with the list in place of the prompt. */
static fm_status write_case(fm_json *made, const fm_json *doc, const char *key, fm_json *list,
                            const char *where)
{
    const char *kind = fm_json_cstr(fm_json_get(doc, "kind"), NULL);
    bool directed = fm_json_get(doc, "direction") || (kind && strcmp(kind, "DIR") == 0);
    FM_TRY(copy_but(made, doc, "perturb", key));
    if (kind && strcmp(kind, "MFT") == 0)
        return fm_fail(FM_EINVAL, "%s: 'perturb' makes several prompts: kind INV or DIR", where);
    if (!fm_json_get(doc, "kind"))
        FM_TRY(fm_json_set(made, "kind", fm_json_new_str(directed ? "DIR" : "INV")));
    if (directed && !fm_json_get(doc, "against"))
        FM_TRY(fm_json_set(made, "against", fm_json_new_str("first")));
    return fm_json_set(made, key, fm_json_ref(list));
}

fm_status fmv_perturb_case(fm_json **doc, fmv_expansion_room *room, bool every, const char *what)
{
    char where[512];
    const fm_json *perturb = fm_json_get(*doc, "perturb");
    if (!perturb)
        return FM_OK;
    snprintf(where, sizeof where, "%.200s: case '%.200s'", what,
             fm_json_cstr(fm_json_get(*doc, "name"), ""));
    const char *key = fm_json_get(*doc, "chat") ? "chat" : "prompt";
    fm_span prompt = fm_json_str(fm_json_get(*doc, key));
    fm_json *made = fm_json_new_object(), *list = fm_json_new_array();
    fm_status rc = made && list ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && !prompt.data)
        rc = fm_fail(FM_EINVAL, "%s: 'perturb' goes with one 'prompt' or 'chat', a string", where);
    FM_THEN(rc, all_forms(list, perturb, prompt, room, every, where));
    bool none = rc == FM_OK && fm_json_count(list) == 1;
    FM_THEN(rc, write_case(made, *doc, key, list, where));
    fm_json_free(*doc);
    fm_json_free(list);
    *doc = NULL;
    if (rc == FM_OK && !none)
        *doc = made;
    else
        fm_json_free(made);
    return rc;
}

/* ==== perturbed forms of a case ==== */

/* Perturbations in turn, gentlest first. All keep the meaning, so the expectation still holds. */
static const struct {
    fmv_perturb_kind kind;
    fmv_perturb_mode mode;
    bool chat_only; /* a bare prompt may end in "is" or "A:", which must stay its end */
} gentle[] = {
    {FMV_NEUTRAL, FMV_MODE_ANY, false},    {FMV_CONTRACTIONS, FMV_MODE_ANY, false},
    {FMV_PUNCTUATION, FMV_MODE_ANY, true}, {FMV_WHITESPACE, FMV_MODE_ANY, false},
    {FMV_CASING, FMV_MODE_LOWER, false},   {FMV_TYPOS, FMV_MODE_ANY, false},
};

static fm_status perturbed_text(fm_json **out, const fmv_perturbation *p, const fm_json *text,
                                bool *changed)
{
    fm_buf b;
    bool applies = false;
    fm_buf_init(&b, FMV_EXPANDED_BYTES_MAX);
    fm_status rc = fmv_perturb(&b, p, fm_json_str(text), p->seed, &applies);
    if (rc == FM_OK) {
        *out = applies ? fm_json_new_strn(fm_buf_cstr(&b), b.len) : fm_json_ref(text);
        *changed = *changed || applies;
        rc = *out ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&b);
    return rc;
}

/* The conversation with its last user message perturbed. */
static fm_status perturbed_messages(fm_json **out, const fmv_perturbation *p, const fm_json *list,
                                    bool *changed)
{
    fm_json *text = NULL, *one = NULL;
    size_t last = fm_json_count(list);
    fm_status rc = (*out = fm_json_new_array()) ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; i < fm_json_count(list); i++)
        if (strcmp(fm_json_cstr(fm_json_get(fm_json_at(list, i), "role"), ""), "user") == 0)
            last = i;
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(list); i++) {
        const fm_json *m = fm_json_at(list, i);
        one = i == last ? fm_json_new_object() : fm_json_ref(m);
        rc = one ? FM_OK : FM_ENOMEM;
        if (rc == FM_OK && i == last)
            rc = perturbed_text(&text, p, fm_json_get(m, "content"), changed);
        if (rc == FM_OK && i == last)
            rc = copy_but(one, m, "content", "");
        if (rc == FM_OK && i == last)
            rc = fm_json_set(one, "content", fm_json_ref(text));
        FM_THEN(rc, fm_json_push(*out, fm_json_ref(one)));
        fm_json_free(one);
        fm_json_free(text);
        text = NULL;
    }
    return rc;
}

/* The perturbed value of prompt, chat or messages; *changed: some of it is changed. */
static fm_status perturbed_prompt(fm_json **out, fmv_perturbation *p, const fmv_case *c,
                                  bool *changed)
{
    fm_json *one = NULL;
    *out = NULL;
    if (c->form == FMV_PROMPT_MESSAGES)
        return perturbed_messages(out, p, c->prompt[0], changed);
    p->salt = fm_json_str(c->prompt[0]);
    if (c->prompt_count == 1)
        return perturbed_text(out, p, c->prompt[0], changed);
    FM_TRY((*out = fm_json_new_array()) ? FM_OK : FM_ENOMEM);
    for (size_t i = 0; i < c->prompt_count; i++) {
        FM_TRY(perturbed_text(&one, p, c->prompt[i], changed));
        FM_TRY(fm_json_push(*out, one));
    }
    return FM_OK;
}

static bool prompt_among(const fm_json *cases, const char *key, const fm_json *prompt)
{
    for (size_t i = 0; i < fm_json_count(cases); i++)
        if (fm_json_equal(fm_json_get(fm_json_at(cases, i), key), prompt))
            return true;
    return false;
}

static fm_status push_form(fm_json *cases, const fmv_case *c, const char *key, fmv_perturbation *p,
                           uint64_t number)
{
    char name[FMV_CASE_NAME_MAX + 1];
    fm_json *prompt = NULL, *one = NULL;
    bool changed = false;
    fm_status rc = perturbed_prompt(&prompt, p, c, &changed);
    if (rc == FM_OK && changed && !prompt_among(cases, key, prompt)) {
        fm_span base = fmv_clip(fm_span_str(c->name), 160);
        snprintf(name, sizeof name, "%.*s~%s-%llu", (int)base.len, (const char *)base.data,
                 fmv_perturb_words[p->kind], (unsigned long long)number);
        one = fm_json_new_object();
        rc = one ? copy_but(one, c->doc, "name", key) : FM_ENOMEM;
        FM_THEN(rc, fm_json_set(one, "name", fm_json_new_str(name)));
        FM_THEN(rc, fm_json_set(one, key, fm_json_ref(prompt)));
        FM_THEN(rc, fm_json_push(cases, fm_json_ref(one)));
    }
    fm_json_free(one);
    fm_json_free(prompt);
    return rc;
}

fm_status fmv_perturbed_forms(fm_json *cases, const fmv_case *c, uint64_t seed, size_t n)
{
    static const char *const keys[] = {"prompt", "chat", "messages"};

    for (uint64_t round = 0; round < n + 4 && fm_json_count(cases) < n; round++)
        for (size_t k = 0; k < FM_ARRAY_LEN(gentle); k++) {
            fmv_perturbation p = {.kind = gentle[k].kind,
                                  .mode = gentle[k].mode,
                                  .n = 1,
                                  .count = 1,
                                  .seed = seed + round};
            if (fm_json_count(cases) < n && !(gentle[k].chat_only && c->form == FMV_PROMPT_TEXT))
                FM_TRY(push_form(cases, c, keys[c->form], &p, round + 1));
        }
    return FM_OK;
}
