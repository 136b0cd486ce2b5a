/* gguf_names.c - names of tensors, GGUF's and Hugging Face's, both ways.
 *
 * Sources: llama.cpp's tensor_mapping.py and the conversion of each class. */
#include "store/import/gguf_canon.h"

#include <inttypes.h>
#include <string.h>

typedef const char *const pair[2];

/* ---- of a layer ---- */

static pair COMMON[] = {
    {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},       {NULL, NULL},
};
static pair NONE[] = {{NULL, NULL}};
static pair AFTER[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {NULL, NULL},
};
static pair SANDWICH[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {NULL, NULL},
};
static pair PHI3[] = {
    {"attn_qkv", "self_attn.qkv_proj"},
    {"ffn_up", "mlp.gate_up_proj"},
    {NULL, NULL},
};
static pair GLM[] = {
    {"ffn_up", "mlp.gate_up_proj"},
    {NULL, NULL},
};
static pair GLM4[] = {
    {"post_attention_norm", "post_self_attn_layernorm"},
    {"post_ffw_norm", "post_mlp_layernorm"},
    {"ffn_up", "mlp.gate_up_proj"},
    {NULL, NULL},
};
static pair HUNYUAN[] = {
    {"attn_q_norm", "self_attn.query_layernorm"},
    {"attn_k_norm", "self_attn.key_layernorm"},
    {NULL, NULL},
};
static pair PHI[] = {
    {"attn_output", "self_attn.dense"},
    {"ffn_up", "mlp.fc1"},
    {"ffn_down", "mlp.fc2"},
    {NULL, NULL},
};
static pair MIXTRAL[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate"},
    {"ffn_gate_exps", "block_sparse_moe.experts.%u.w1"},
    {"ffn_up_exps", "block_sparse_moe.experts.%u.w3"},
    {"ffn_down_exps", "block_sparse_moe.experts.%u.w2"},
    {NULL, NULL},
};
static pair QWEN_MOE[] = {
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.%u.gate_proj"},
    {"ffn_up_exps", "mlp.experts.%u.up_proj"},
    {"ffn_down_exps", "mlp.experts.%u.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    {NULL, NULL},
};
static pair STARCODER2[] = {
    {"ffn_up", "mlp.c_fc"},
    {"ffn_down", "mlp.c_proj"},
    {NULL, NULL},
};

static pair GPT[] = {
    {"attn_norm", "ln_1"}, {"attn_qkv", "attn.c_attn"}, {"attn_output", "attn.c_proj"},
    {"ffn_norm", "ln_2"},  {"ffn_up", "mlp.c_fc"},      {"ffn_down", "mlp.c_proj"},
    {NULL, NULL},
};
static pair NEOX[] = {
    {"attn_qkv", "attention.query_key_value"},
    {"attn_output", "attention.dense"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"},
    {NULL, NULL},
};
static pair FALCON[] = {
    {"attn_qkv", "self_attention.query_key_value"},
    {"attn_output", "self_attention.dense"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"},
    {NULL, NULL},
};
static pair FALCON_2[] = {
    {"attn_norm", "ln_mlp"},
    {"attn_norm_2", "ln_attn"},
    {"attn_qkv", "self_attention.query_key_value"},
    {"attn_output", "self_attention.dense"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"},
    {NULL, NULL},
};

static pair BERT[] = {
    {"attn_q", "attention.self.query"},
    {"attn_k", "attention.self.key"},
    {"attn_v", "attention.self.value"},
    {"attn_output", "attention.output.dense"},
    {"attn_output_norm", "attention.output.LayerNorm"},
    {"ffn_up", "intermediate.dense"},
    {"ffn_down", "output.dense"},
    {"layer_output_norm", "output.LayerNorm"},
    {NULL, NULL},
};
static pair DISTILBERT[] = {
    {"attn_q", "attention.q_lin"},
    {"attn_k", "attention.k_lin"},
    {"attn_v", "attention.v_lin"},
    {"attn_output", "attention.out_lin"},
    {"attn_output_norm", "sa_layer_norm"},
    {"ffn_up", "ffn.lin1"},
    {"ffn_down", "ffn.lin2"},
    {"layer_output_norm", "output_layer_norm"},
    {NULL, NULL},
};
static pair NOMIC[] = {
    {"attn_qkv", "attn.Wqkv"},      {"attn_output", "attn.out_proj"},
    {"attn_output_norm", "norm1"},  {"ffn_up", "mlp.fc11"},
    {"ffn_gate", "mlp.fc12"},       {"ffn_down", "mlp.fc2"},
    {"layer_output_norm", "norm2"}, {NULL, NULL},
};

/* ---- of the whole ---- */

static pair LLAMA_TOP[] = {
    {"token_embd", "embed_tokens"},
    {"output_norm", "norm"},
    {"output", "/lm_head"},
    {"output", "/language_model.lm_head"}, /* beside pictures */
    {NULL, NULL},
};
static pair PHI_TOP[] = {
    {"token_embd", "embed_tokens"},
    {"output_norm", "final_layernorm"},
    {"output", "/lm_head"},
    {NULL, NULL},
};

static pair GPT_TOP[] = {
    {"token_embd", "wte"},
    {"position_embd", "wpe"},
    {"output_norm", "ln_f"},
    {"output", "/lm_head"},
    {NULL, NULL},
};
static pair NEOX_TOP[] = {
    {"token_embd", "embed_in"},
    {"output_norm", "final_layer_norm"},
    {"output", "/embed_out"},
    {NULL, NULL},
};
static pair FALCON_TOP[] = {
    {"token_embd", "word_embeddings"},
    {"output_norm", "ln_f"},
    {"output", "/lm_head"},
    {NULL, NULL},
};

static pair BERT_TOP[] = {
    {"token_embd", "embeddings.word_embeddings"},
    {"position_embd", "embeddings.position_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_embd_norm", "embeddings.LayerNorm"},
    {NULL, NULL},
};
static pair NOMIC_TOP[] = {
    {"token_embd", "embeddings.word_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_embd_norm", "emb_ln"},
    {NULL, NULL},
};

static const char *const BERTS[] = {"", "bert.", "roberta.", "distilbert.", "nomic_bert.", NULL};
static const char *const TRANSFORMER[] = {"transformer.", "", NULL};
static const char *const GPT_NEOX[] = {"gpt_neox.", "", NULL};
/* Beside pictures the text has a prefix of its own, in a base model none. */
static const char *const MODEL[] = {"model.", "language_model.model.", "model.language_model.", "",
                                    NULL};

#define LLAMA_LIKE(own)                                                                            \
    {                                                                                              \
        MODEL, "layers.", LLAMA_TOP, own                                                           \
    }
const gguf_names gguf_names_llama = LLAMA_LIKE(NONE);
const gguf_names gguf_names_after = LLAMA_LIKE(AFTER);
const gguf_names gguf_names_sandwich = LLAMA_LIKE(SANDWICH);
const gguf_names gguf_names_phi3 = LLAMA_LIKE(PHI3);
const gguf_names gguf_names_glm = LLAMA_LIKE(GLM);
const gguf_names gguf_names_glm4 = LLAMA_LIKE(GLM4);
const gguf_names gguf_names_hunyuan = LLAMA_LIKE(HUNYUAN);
const gguf_names gguf_names_phi = {MODEL, "layers.", PHI_TOP, PHI};
const gguf_names gguf_names_mixtral = LLAMA_LIKE(MIXTRAL);
const gguf_names gguf_names_qwen_moe = LLAMA_LIKE(QWEN_MOE);
const gguf_names gguf_names_starcoder2 = LLAMA_LIKE(STARCODER2);
const gguf_names gguf_names_gpt = {TRANSFORMER, "h.", GPT_TOP, GPT};
const gguf_names gguf_names_neox = {GPT_NEOX, "layers.", NEOX_TOP, NEOX};
const gguf_names gguf_names_falcon = {TRANSFORMER, "h.", FALCON_TOP, FALCON};
const gguf_names gguf_names_bert = {BERTS, "encoder.layer.", BERT_TOP, BERT};
const gguf_names gguf_names_distilbert = {BERTS, "transformer.layer.", BERT_TOP, DISTILBERT};
const gguf_names gguf_names_nomic = {BERTS, "encoder.layers.", NOMIC_TOP, NOMIC};
const gguf_names gguf_names_falcon_2 = {TRANSFORMER, "h.", FALCON_TOP, FALCON_2};

/* ---- GGUF's to Hugging Face's ---- */

static const gguf_names *names_of(const gguf_arch *arch)
{
    return arch->names ? arch->names : &gguf_names_llama;
}

static const char *lookup(pair *table, const char *stem, size_t len)
{
    for (; (*table)[0]; table++)
        if (strlen((*table)[0]) == len && memcmp((*table)[0], stem, len) == 0)
            return (*table)[1];
    return NULL;
}

const char *gguf_words_of_stem(const gguf_arch *arch, bool in_layer, const char *stem, size_t len)
{
    const gguf_names *n = names_of(arch);

    if (!in_layer)
        return lookup(n->top, stem, len);
    const char *own = lookup(n->layer, stem, len);
    return own ? own : lookup(COMMON, stem, len);
}

void gguf_put_name(fm_buf *out, const gguf_arch *arch, const char *words, uint64_t layer,
                   uint32_t expert)
{
    const gguf_names *n = names_of(arch);
    const char *number = strstr(words, "%u");

    if (words[0] != '/')
        fm_buf_str(out, n->prefix[0]);
    if (layer != GGUF_NO_LAYER)
        fm_buf_printf(out, "%s%" PRIu64 ".", n->layers, layer);
    if (number)
        fm_buf_printf(out, "%.*s%" PRIu32 "%s", (int)(number - words), words, expert, number + 2);
    else
        fm_buf_str(out, words + (words[0] == '/'));
}

/* ---- Hugging Face's to GGUF's ---- */

/* Whether the words are the pattern's, whose "%u" stands for an expert's number. */
static bool fits(const char *pattern, const char *words, size_t len, uint32_t *expert)
{
    const char *number = strstr(pattern, "%u");
    const size_t head = number ? (size_t)(number - pattern) : strlen(pattern);
    size_t at = head;
    uint32_t v = 0;

    *expert = GGUF_NO_EXPERT;
    if (len < head || memcmp(words, pattern, head) != 0)
        return false;
    if (!number)
        return len == head;
    while (at < len && words[at] >= '0' && words[at] <= '9' && v < 100000)
        v = v * 10 + (uint32_t)(words[at++] - '0');
    *expert = v;
    return at > head && strlen(number + 2) == len - at &&
           memcmp(words + at, number + 2, len - at) == 0;
}

static const char *layer_stem(const gguf_names *n, const char *words, size_t len, uint32_t *expert)
{
    for (pair *p = n->layer; (*p)[0]; p++)
        if (fits((*p)[1], words, len, expert))
            return (*p)[0];
    for (pair *p = COMMON; (*p)[0]; p++)
        if (!lookup(n->layer, (*p)[0], strlen((*p)[0])) && fits((*p)[1], words, len, expert))
            return (*p)[0];
    return NULL;
}

static const char *top_stem(const gguf_names *n, const char *words, size_t len, bool whole)
{
    for (pair *p = n->top; (*p)[0]; p++) {
        const char *name = (*p)[1] + whole;
        if ((whole == ((*p)[1][0] == '/')) && strlen(name) == len && memcmp(name, words, len) == 0)
            return (*p)[0];
    }
    return NULL;
}

/* Reads a layer's number and the dot behind it; NULL: there is none. */
static const char *layer_number(const char *words, uint64_t *out)
{
    const char *p = words;

    for (*out = 0; *p >= '0' && *p <= '9' && *out < FM_GGUF_MAX_LAYERS; p++)
        *out = *out * 10 + (uint64_t)(*p - '0');
    return p > words && *p == '.' ? p + 1 : NULL;
}

/* The name below one of the prefixes. */
static bool name_below(fm_buf *out, gguf_part *part, const gguf_names *n, const char *words,
                       const char *dot)
{
    const size_t layers = strlen(n->layers);
    uint64_t layer = 0;
    const char *rest =
        strncmp(words, n->layers, layers) == 0 ? layer_number(words + layers, &layer) : NULL;

    part->stem = rest && rest < dot ? layer_stem(n, rest, (size_t)(dot - rest), &part->expert)
                                    : top_stem(n, words, (size_t)(dot - words), false);
    if (part->stem && rest)
        fm_buf_printf(out, "blk.%" PRIu64 ".", layer);
    if (part->stem)
        fm_buf_printf(out, "%s%s", part->stem, dot);
    return part->stem;
}

bool gguf_name_of(fm_buf *out, gguf_part *part, const gguf_arch *arch, const char *hf)
{
    const gguf_names *n = names_of(arch);
    const char *dot = strrchr(hf, '.');

    *part = (gguf_part){NULL, GGUF_NO_EXPERT};
    if (!dot || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0))
        return false;
    part->stem = top_stem(n, hf, (size_t)(dot - hf), true);
    if (part->stem) {
        fm_buf_printf(out, "%s%s", part->stem, dot);
        return true;
    }
    for (const char *const *p = n->prefix; *p; p++) {
        const size_t len = strlen(*p);
        if (strncmp(hf, *p, len) == 0 && hf + len < dot && name_below(out, part, n, hf + len, dot))
            return true;
    }
    return false;
}

static bool matches(const char *pattern, const char *name)
{
    const size_t n = strlen(pattern) - 1, k = strlen(name);

    return pattern[0] == '*' ? k >= n && strcmp(name + k - n, pattern + 1) == 0
                             : strncmp(name, pattern, n) == 0;
}

bool gguf_is_idle(const gguf_arch *arch, const char *hf)
{
    if (matches("*.rotary_emb.inv_freq", hf)) /* a buffer that old checkpoints hold */
        return true;
    for (const char *const *p = arch->idle; p && *p; p++)
        if (matches(*p, hf))
            return true;
    return false;
}
