/* gguf_pre.c - the rules behind `tokenizer.ggml.pre`.
 *
 * A GGUF only names its pre-tokenizer. Each name here gives the pre_tokenizer of the tokenizer.json
 * that such files are made from; an unknown name is refused: a similar rule would tokenize most
 * texts right and some wrong. */
#include "store/import/gguf_canon.h"

#include <string.h>

#define LLAMA3                                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"                      \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2                                                                                      \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"                           \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Words with at most one change of case (Mistral Nemo), with contractions and thousands
 * (GPT-4o). */
#define TEKKEN_WORD                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
#define TEKKEN_UPPER                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define TAIL " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SEED_CODER                                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}|"                        \
    " ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DEEPSEEK_V3                                                                                \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"                                       \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|"                      \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define BLOOM                                                                                      \
    " ?[^(\\s|.,!?\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81\xe0\xa5\xa4\xdb\x94\xd8\x8c)]+"

#define QWEN35                                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"                   \
    " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define BAILING                                                                                    \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"   \
    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define CHINESE "[\xe4\xb8\x80-\xe9\xbe\xa5\xe0\xa0\x80-\xe4\xb8\x80\xea\xb0\x80-\xed\x9f\xbf]+"

/* DeepSeek LLM lists the letters of European scripts, and punctuation in two widths. */
#define DEEPSEEK_LLM_LETTERS                                                                       \
    "\\s?[A-Za-z\xc2\xb5\xc3\x80-\xc3\x96\xc3\x98-\xc3\xb6\xc3\xb8-\xc6\xba\xc6\xbc-"              \
    "\xc6\xbf\xc7\x84-\xca\x93\xca\x95-\xca\xaf\xcd\xb0-\xcd\xb3\xcd\xb6\xcd\xb7\xcd\xbb-"         \
    "\xcd\xbd\xcd\xbf\xce\x86\xce\x88-\xce\x8a\xce\x8c\xce\x8e-\xce\xa1\xce\xa3-\xcf\xb5\xcf\xb7-" \
    "\xd2\x81\xd2\x8a-\xd4\xaf\xd4\xb1-\xd5\x96\xe1\x82\xa0-\xe1\x83\x85\xe1\x8e\xa0-"             \
    "\xe1\x8f\xb5\xe1\x8f\xb8-\xe1\x8f\xbd\xe1\xb2\x90-\xe1\xb2\xba\xe1\xb2\xbd-"                  \
    "\xe1\xb2\xbf\xe1\xb4\x80-\xe1\xb4\xab\xe1\xb5\xab-\xe1\xb5\xb7\xe1\xb5\xb9-"                  \
    "\xe1\xb6\x9a\xe1\xb8\x80-\xe1\xbc\x95\xe1\xbc\x98-\xe1\xbc\x9d\xe1\xbc\xa0-"                  \
    "\xe1\xbd\x85\xe1\xbd\x88-\xe1\xbd\x8d\xe1\xbd\x90-"                                           \
    "\xe1\xbd\x97\xe1\xbd\x99\xe1\xbd\x9b\xe1\xbd\x9d\xe1\xbd\x9f-\xe1\xbd\xbd\xe1\xbe\x80-"       \
    "\xe1\xbe\xb4\xe1\xbe\xb6-\xe1\xbe\xbc\xe1\xbe\xbe\xe1\xbf\x82-\xe1\xbf\x84\xe1\xbf\x86-"      \
    "\xe1\xbf\x8c\xe1\xbf\x90-\xe1\xbf\x93\xe1\xbf\x96-\xe1\xbf\x9b\xe1\xbf\xa0-"                  \
    "\xe1\xbf\xac\xe1\xbf\xb2-\xe1\xbf\xb4\xe1\xbf\xb6-"                                           \
    "\xe1\xbf\xbc\xe2\x84\x82\xe2\x84\x87\xe2\x84\x8a-\xe2\x84\x93\xe2\x84\x95\xe2\x84\x99-"       \
    "\xe2\x84\x9d\xe2\x84\xa4\xe2\x84\xa6\xe2\x84\xa8\xe2\x84\xaa-\xe2\x84\xad\xe2\x84\xaf-"       \
    "\xe2\x84\xb4\xe2\x84\xb9\xe2\x84\xbc-\xe2\x84\xbf\xe2\x85\x85-"                               \
    "\xe2\x85\x89\xe2\x85\x8e\xe2\x86\x83\xe2\x86\x84\xe2\xb0\x80-\xe2\xb1\xbb\xe2\xb1\xbe-"       \
    "\xe2\xb3\xa4\xe2\xb3\xab-\xe2\xb3\xae\xe2\xb3\xb2\xe2\xb3\xb3\xea\x99\x80-"                   \
    "\xea\x99\xad\xea\x9a\x80-\xea\x9a\x9b\xea\x9c\xa2-\xea\x9d\xaf\xea\x9d\xb1-"                  \
    "\xea\x9e\x87\xea\x9e\x8b-\xea\x9e\x8e\xea\xad\xb0-\xea\xae\xbf\xef\xac\x80-"                  \
    "\xef\xac\x86\xef\xac\x93-\xef\xac\x97\xef\xbc\xa1-\xef\xbc\xba\xef\xbd\x81-"                  \
    "\xef\xbd\x9a\xf0\x90\x90\x80-\xf0\x90\x91\x8f\xf0\x90\x92\xb0-"                               \
    "\xf0\x90\x93\x93\xf0\x90\x93\x98-\xf0\x90\x93\xbb\xf0\x90\xb2\x80-"                           \
    "\xf0\x90\xb2\xb2\xf0\x90\xb3\x80-\xf0\x90\xb3\xb2\xf0\x91\xa2\xa0-"                           \
    "\xf0\x91\xa3\x9f\xf0\x9e\xa4\x80-\xf0\x9e\xa5\x83]+"
#define DEEPSEEK_LLM_PUNCTUATION                                                                   \
    "\\s?[!-/:-~\xef\xbc\x81-\xef\xbc\x8f\xef\xbc\x9a-\xef\xbd\x9e\xe2\x80\x98-"                   \
    "\xe2\x80\x9f\xe3\x80\x80-\xe3\x80\x82]+"

#define MAX_SPLITS 6u

typedef struct pre_rule {
    const char *name;
    const char *split[MAX_SPLITS]; /* Splits in order, then ByteLevel without its own regex */
    bool digits;                   /* single Digits, then ByteLevel with its own regex */
    bool nfc;
    bool ignore_merges; /* a word in the vocabulary needs no merges */
} pre_rule;

/* "default": as llama.cpp treats a file that names no other. */
static const pre_rule RULES[] = {
    {"default",
     {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"},
     false,
     false,
     false},
    {"gpt-2", {NULL}, false, false, false},
    {"gpt2", {NULL}, false, false, false},
    {"smollm", {NULL}, true, false, false},
    {"starcoder", {NULL}, true, false, false},
    {"refact", {NULL}, true, false, false},
    {"codeshell", {NULL}, true, false, false},
    {"llama-bpe", {LLAMA3}, false, false, true},
    {"llama3", {LLAMA3}, false, false, true},
    {"llama-v3", {LLAMA3}, false, false, true},
    {"phi-2", {NULL}, false, false, false},
    {"jais", {NULL}, false, false, false},
    {"trillion", {NULL}, false, false, false},
    {"minerva-7b", {NULL}, true, false, false},
    {"falcon3", {LLAMA3}, false, false, true},
    {"pixtral", {LLAMA3}, false, false, true},
    {"midm-2.0", {LLAMA3}, false, false, true},
    {"tekken", {TEKKEN_WORD "|" TEKKEN_UPPER "|\\p{N}|" TAIL}, false, false, true},
    {"gpt-4o",
     {TEKKEN_WORD CONTRACTION "|" TEKKEN_UPPER CONTRACTION "|\\p{N}{1,3}|" TAIL},
     false,
     false,
     false},
    {"seed-coder", {SEED_CODER}, false, false, false},
    {"deepseek-coder",
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CHINESE, "\\p{N}"},
     false,
     false,
     false},
    {"deepseek-v3",
     {"\\p{N}{1,3}",
      "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+",
      DEEPSEEK_V3},
     false,
     false,
     false},
    {"bloom", {BLOOM}, false, false, false},
    {"poro-chat", {BLOOM}, false, false, false},
    {"gpt3-finnish", {BLOOM}, false, false, false},
    {"viking", {BLOOM, "\\p{N}"}, false, false, false},
    {"qwen2", {QWEN2}, false, true, false},
    {"deepseek-r1-qwen", {QWEN2}, false, true, false},
    {"command-r", {NULL}, true, false, false},
    {"exaone", {NULL}, true, false, false},
    {"mellum2", {NULL}, true, false, false},
    {"mpt", {NULL}, false, false, false},
    {"olmo", {NULL}, false, false, false},
    {"granite-docling", {NULL}, false, false, false},
    {"exaone4", {NULL}, false, false, false},
    {"gigachat", {NULL}, false, false, false},
    {"mellum", {NULL}, false, false, false},
    {"a.x-4.0", {NULL}, false, false, false},
    {"dbrx", {LLAMA3}, false, false, false},
    {"smaug-bpe", {LLAMA3}, false, false, false},
    {"chatglm-bpe", {LLAMA3}, false, false, false},
    {"glm4", {LLAMA3}, false, false, true},
    {"glm5", {LLAMA3}, false, false, true},
    {"falcon-h1", {LLAMA3}, false, false, true},
    {"lfm2", {LLAMA3}, false, false, true},
    {"llama4",
     {TEKKEN_WORD CONTRACTION "|" TEKKEN_UPPER CONTRACTION "|\\p{N}{1,3}|" TAIL},
     false,
     false,
     false},
    {"kanana2",
     {TEKKEN_WORD CONTRACTION "|" TEKKEN_UPPER CONTRACTION "|\\p{N}{1,3}|" TAIL},
     false,
     false,
     false},
    {"minimax-m2",
     {TEKKEN_WORD CONTRACTION "|" TEKKEN_UPPER CONTRACTION "|\\p{N}{1,3}|" TAIL},
     false,
     false,
     false},
    {"hunyuan-dense",
     {"\\p{N}{1,3}",
      "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+",
      DEEPSEEK_V3},
     false,
     false,
     false},
    {"joyai-llm",
     {"\\p{N}{1,3}",
      "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+",
      DEEPSEEK_V3},
     false,
     false,
     false},
    {"stablelm2", {QWEN2}, false, false, false},
    {"hunyuan", {QWEN2}, false, false, false},
    {"solar-open", {QWEN2}, false, false, false},
    {"megrez", {QWEN2}, false, false, false},
    {"kormo", {QWEN2}, false, false, false},
    {"qwen35", {QWEN35}, false, false, false},
    {"bailingmoe", {BAILING}, false, false, false},
    {"bailingmoe2", {BAILING}, false, false, false},
    {"llada-moe", {BAILING}, false, false, false},
    {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}, false, false, false},
    {"deepseek-llm",
     {"[\\r\\n]", DEEPSEEK_LLM_LETTERS, DEEPSEEK_LLM_PUNCTUATION, "\\s+(?![\\s\\S])", CHINESE,
      "\\p{N}+"},
     false,
     false,
     false},
};

static fm_status byte_level(fm_json **out, bool use_regex)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? fm_json_set(o, "type", fm_json_new_str("ByteLevel")) : FM_ENOMEM;

    *out = o;
    FM_THEN(rc, fm_json_set(o, "add_prefix_space", fm_json_new_bool(false)));
    FM_THEN(rc, fm_json_set(o, "trim_offsets", fm_json_new_bool(true)));
    FM_THEN(rc, fm_json_set(o, "use_regex", fm_json_new_bool(use_regex)));
    return rc;
}

static fm_status digits(fm_json **out)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? fm_json_set(o, "type", fm_json_new_str("Digits")) : FM_ENOMEM;

    *out = o;
    FM_THEN(rc, fm_json_set(o, "individual_digits", fm_json_new_bool(true)));
    return rc;
}

static fm_status split(fm_json **out, const char *regex)
{
    fm_json *o = fm_json_new_object(), *pattern = fm_json_new_object();
    fm_status rc = o && pattern ? FM_OK : FM_ENOMEM;

    *out = o;
    FM_THEN(rc, fm_json_set(pattern, "Regex", fm_json_new_str(regex)));
    FM_THEN(rc, fm_json_set(o, "type", fm_json_new_str("Split")));
    FM_THEN(rc, fm_json_set(o, "pattern", fm_json_ref(pattern)));
    FM_THEN(rc, fm_json_set(o, "behavior", fm_json_new_str("Isolated")));
    FM_THEN(rc, fm_json_set(o, "invert", fm_json_new_bool(false)));
    fm_json_free(pattern);
    return rc;
}

/* Appends item and takes ownership of it, unless rc is a failure; item NULL: out of memory. */
static fm_status add_step(fm_json *list, fm_json *item, fm_status rc)
{
    if (rc == FM_OK)
        return fm_json_push(list, item);
    fm_json_free(item);
    return rc;
}

/* Appends the steps of a rule to the list of a Sequence. */
static fm_status steps_of(fm_json *list, const pre_rule *rule)
{
    fm_json *item = NULL;
    fm_status rc = FM_OK;

    if (rule->digits) {
        rc = digits(&item);
        rc = add_step(list, item, rc);
    }
    for (size_t i = 0; rc == FM_OK && i < MAX_SPLITS && rule->split[i]; i++) {
        rc = split(&item, rule->split[i]);
        rc = add_step(list, item, rc);
    }
    if (rc == FM_OK) {
        rc = byte_level(&item, rule->split[0] == NULL);
        rc = add_step(list, item, rc);
    }
    return rc;
}

static fm_status build(fm_json **pre, const pre_rule *rule)
{
    fm_json *list = fm_json_new_array(), *o = NULL;
    fm_status rc = list ? steps_of(list, rule) : FM_ENOMEM;

    if (rc == FM_OK && fm_json_count(list) == 1) {
        *pre = fm_json_ref(fm_json_at(list, 0));
        fm_json_free(list);
        return FM_OK;
    }
    o = fm_json_new_object();
    if (rc == FM_OK && !o)
        rc = FM_ENOMEM;
    FM_THEN(rc, fm_json_set(o, "type", fm_json_new_str("Sequence")));
    FM_THEN(rc, fm_json_set(o, "pretokenizers", fm_json_ref(list)));
    fm_json_free(list);
    *pre = o;
    return rc;
}

fm_status gguf_pre_tokenizer(fm_json **pre, fm_json **normalizer, bool *ignore_merges,
                             const char *name, const char *what)
{
    const pre_rule *rule = NULL;

    *pre = *normalizer = NULL;
    for (size_t i = 0; i < FM_ARRAY_LEN(RULES) && !rule; i++)
        if (strcmp(RULES[i].name, name) == 0)
            rule = &RULES[i];
    if (!rule)
        return fm_fail(FM_EUNSUPPORTED, "%s: field 'tokenizer.ggml.pre': '%s' is not known", what,
                       name);
    *ignore_merges = rule->ignore_merges;
    FM_TRY(build(pre, rule));
    if (rule->nfc) {
        *normalizer = fm_json_new_object();
        FM_TRY(*normalizer ? fm_json_set(*normalizer, "type", fm_json_new_str("NFC")) : FM_ENOMEM);
    }
    return FM_OK;
}

/* ---- the inverse ---- */

static bool is_type(const fm_json *step, const char *type)
{
    return strcmp(fm_json_cstr(fm_json_get(step, "type"), ""), type) == 0;
}

/* A Split that keeps what fits its regex as one piece; that what lies between is kept ("Isolated")
 * or dropped ("Removed", inverted) is the same where the regex leaves nothing between. */
static bool is_split(const fm_json *step, const char *regex)
{
    const char *behavior = fm_json_cstr(fm_json_get(step, "behavior"), "");
    const bool invert = fm_json_bool(fm_json_get(step, "invert"), false);

    return is_type(step, "Split") &&
           strcmp(fm_json_cstr(fm_json_path(step, "pattern.Regex"), ""), regex) == 0 &&
           strcmp(behavior, invert ? "Removed" : "Isolated") == 0;
}

static bool is_byte_level(const fm_json *step, bool use_regex)
{
    return is_type(step, "ByteLevel") &&
           !fm_json_bool(fm_json_get(step, "add_prefix_space"), true) &&
           fm_json_bool(fm_json_get(step, "use_regex"), true) == use_regex;
}

static bool is_rule(const pre_rule *rule, const fm_json *pre)
{
    const fm_json *list = fm_json_get(pre, "pretokenizers");
    const size_t count = list ? fm_json_count(list) : 1;
    size_t at = 0;
#define STEP(i) (list ? fm_json_at(list, i) : pre)

    if (rule->digits && !(at < count && is_type(STEP(at), "Digits") &&
                          fm_json_bool(fm_json_get(STEP(at), "individual_digits"), false)))
        return false;
    at += rule->digits;
    for (size_t i = 0; i < MAX_SPLITS && rule->split[i]; i++, at++)
        if (at >= count || !is_split(STEP(at), rule->split[i]))
            return false;
    return at + 1 == count && is_byte_level(STEP(at), rule->split[0] == NULL);
#undef STEP
}

const char *gguf_pre_name(const fm_json *pre, const fm_json *normalizer, bool ignore_merges)
{
    const bool nfc = is_type(normalizer, "NFC");

    if (fm_json_is(normalizer, FM_JSON_OBJECT) && !nfc)
        return NULL;
    for (size_t i = 0; i < FM_ARRAY_LEN(RULES); i++)
        if (RULES[i].nfc == nfc && RULES[i].ignore_merges == ignore_merges &&
            is_rule(&RULES[i], pre))
            return RULES[i].name;
    return NULL;
}
