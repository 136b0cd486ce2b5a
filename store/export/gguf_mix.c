/* gguf_mix.c - which block type llama-quantize gives to which tensor, by the name of its mix.
 *
 * A mix has one type for most matrices and others for those that suffer most (values of attention,
 * the last of the feed-forward, embedding and head), by the layer, the number of experts and of
 * heads for a key. The rules are those of llama.cpp's src/llama-quant.cpp, in the order of its
 * tests, for the file is to be the same byte for byte. */
#include "store/export/gguf_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef enum mix_id {
    MIX_Q4_0,
    MIX_Q4_1,
    MIX_Q5_0,
    MIX_Q5_1,
    MIX_Q8_0,
    MIX_Q2_K,
    MIX_Q2_K_S,
    MIX_Q3_K_S,
    MIX_Q3_K_M,
    MIX_Q3_K_L,
    MIX_Q4_K_S,
    MIX_Q4_K_M,
    MIX_Q5_K_S,
    MIX_Q5_K_M,
    MIX_Q6_K,
    MIX_IQ4_NL,
    MIX_IQ4_XS,
} mix_id;

struct ggw_mix {
    const char *name;
    mix_id id;
    fm_dtype most;
    uint32_t file_type; /* llama.cpp's number */
};

const ggw_mix *ggw_mix_find(const char *name)
{
    static const ggw_mix all[] = {
        {"Q4_0", MIX_Q4_0, FM_Q4_0, 2},
        {"Q4_1", MIX_Q4_1, FM_Q4_1, 3},
        {"Q5_0", MIX_Q5_0, FM_Q5_0, 8},
        {"Q5_1", MIX_Q5_1, FM_Q5_1, 9},
        {"Q8_0", MIX_Q8_0, FM_Q8_0, 7},
        {"Q2_K", MIX_Q2_K, FM_Q2_K, 10},
        {"Q2_K_S", MIX_Q2_K_S, FM_Q2_K, 21},
        {"Q3_K_S", MIX_Q3_K_S, FM_Q3_K, 11},
        {"Q3_K_M", MIX_Q3_K_M, FM_Q3_K, 12},
        {"Q3_K_L", MIX_Q3_K_L, FM_Q3_K, 13},
        {"Q4_K_S", MIX_Q4_K_S, FM_Q4_K, 14},
        {"Q4_K_M", MIX_Q4_K_M, FM_Q4_K, 15},
        {"Q5_K_S", MIX_Q5_K_S, FM_Q5_K, 16},
        {"Q5_K_M", MIX_Q5_K_M, FM_Q5_K, 17},
        {"Q6_K", MIX_Q6_K, FM_Q6_K, 18},
        {"IQ4_NL", MIX_IQ4_NL, FM_IQ4_NL, 25},
        {"IQ4_XS", MIX_IQ4_XS, FM_IQ4_XS, 30},
        /* llama-quantize's other names */
        {"Q3_K", MIX_Q3_K_M, FM_Q3_K, 12},
        {"Q4_K", MIX_Q4_K_M, FM_Q4_K, 15},
        {"Q5_K", MIX_Q5_K_M, FM_Q5_K, 17},
    };
    for (size_t i = 0; name && i < FM_ARRAY_LEN(all); i++)
        if (strcmp(all[i].name, name) == 0)
            return &all[i];
    return NULL;
}

bool fm_gguf_mix_known(const char *name)
{
    return ggw_mix_find(name) != NULL;
}

uint32_t ggw_mix_file_type(const ggw_mix *m)
{
    return m->file_type;
}

/* ==== what a name says ====================================================================== */

typedef enum part { HEAD, EMBEDDING, QKV, KV_B, VALUE, KEY, ATTENTION_OUT, FFN_DOWN, OTHER } part;

static part part_of(const char *name)
{
    static const struct {
        const char *text;
        part part;
    } has[] = {
        {"attn_qkv.weight", QKV}, {"attn_kv_b.weight", KV_B}, {"attn_v.weight", VALUE},
        {"attn_k.weight", KEY},   {"attn_q.weight", OTHER},   {"attn_output.weight", ATTENTION_OUT},
        {"ffn_up", OTHER},        {"ffn_gate", OTHER},        {"ffn_down", FFN_DOWN},
    };
    if (strcmp(name, "output.weight") == 0)
        return HEAD;
    if (strcmp(name, "token_embd.weight") == 0 || strcmp(name, "per_layer_token_embd.weight") == 0)
        return EMBEDDING;
    for (size_t i = 0; i < FM_ARRAY_LEN(has); i++)
        if (strstr(name, has[i].text))
            return has[i].part;
    return OTHER;
}

static bool is_values(part p)
{
    return p == VALUE || p == QKV || p == KV_B;
}

uint32_t ggw_mix_dims(const fm_shape *s, uint32_t parts)
{
    uint32_t first = 0;

    if (parts > 1)
        return s->rank + 1;
    while (first + 1 < s->rank && s->dim[first] == 1)
        first++;
    return s->rank - first;
}

static uint64_t row_of(const ggw_mix_tensor *t)
{
    return t->shape->dim[t->shape->rank - 1];
}

/* Norms, routers, positions, convolutions, small or touchy matrices stay float32. */
static bool is_quantized(const ggw_mix_tensor *t)
{
    static const char *const kept[] = {
        "_norm.weight",
        "ffn_gate_inp.weight",
        "ffn_gate_tid2eid.weight",
        "altup",
        "laurel",
        "per_layer_model_proj",
        "ssm_conv1d",
        "shortconv.conv.weight",
        "indexer.k_proj.weight",
        "indexer.q_proj.weight",
        "time_mix_first.weight",
        "time_mix_w0.weight",
        "time_mix_w1.weight",
        "time_mix_w2.weight",
        "time_mix_v0.weight",
        "time_mix_v1.weight",
        "time_mix_v2.weight",
        "time_mix_a0.weight",
        "time_mix_a1.weight",
        "time_mix_a2.weight",
        "time_mix_g1.weight",
        "time_mix_g2.weight",
        "time_mix_decay_w1.weight",
        "time_mix_decay_w2.weight",
        "time_mix_lerp_fused.weight",
        "attn_rel_b.weight",
        ".position_embd",
        ".rel_pos",
        ".patch_embd",
        ".patch_merger",
    };
    const size_t n = strlen(t->name);

    if (ggw_mix_dims(t->shape, t->parts) < 2 || n < 6 || strcmp(t->name + n - 6, "weight") != 0 ||
        strcmp(t->name, "position_embd.weight") == 0 || strcmp(t->name, "token_types.weight") == 0)
        return false;
    for (size_t i = 0; i < FM_ARRAY_LEN(kept); i++)
        if (strstr(t->name, kept[i]))
            return false;
    return true;
}

/* The layer of "blk.7.", or -1. */
static int64_t layer_of(const char *name)
{
    return strncmp(name, "blk.", 4) == 0 && name[4] >= '0' && name[4] <= '9'
               ? (int64_t)strtoull(name + 4, NULL, 10)
               : -1;
}

int ggw_mix_order(const char *a, const char *b)
{
    const int64_t la = layer_of(a), lb = layer_of(b);
    return la != lb ? (la < lb ? -1 : 1) : strcmp(a, b);
}

/* ==== types ================================================================================= */

/* What the rules look at, and how many of a part came before. */
typedef struct choice {
    mix_id mix;
    bool falcon, seventy, tied, weighted;
    uint64_t experts, group, layers; /* group: heads for a key */
    uint64_t value, values, down;
} choice;

/* LLaMA 2 70B and its like, whose values are an eighth of the queries. */
static bool is_seventy(const ggw_model *m)
{
    const char *arch = m->arch->prefix;

    if (strcmp(arch, "llama") == 0)
        return m->layers == 80 && m->heads != m->kv_heads;
    if (strcmp(arch, "qwen2") == 0 || strcmp(arch, "deci") == 0 || strcmp(arch, "olmo") == 0)
        return m->layers == 80;
    return strcmp(arch, "jais2") == 0 && m->layers == 68;
}

/* The first eighth of the layers, the last, and every third between. */
static bool deserves_more(uint64_t i, uint64_t n)
{
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

static fm_dtype head_type(const choice *c, const ggw_mix_tensor *t, fm_dtype most)
{
    if (c->falcon || row_of(t) % fm_dtype_get(most)->block_elems != 0)
        return FM_Q8_0;
    return most == FM_Q8_0 ? FM_Q8_0 : FM_Q6_K;
}

static fm_dtype value_type(choice *c, fm_dtype most)
{
    const uint64_t i = c->value++;
    const bool grouped = c->group >= 4;
    fm_dtype type = most;

    if (c->mix == MIX_Q2_K)
        type = grouped ? FM_Q4_K : FM_Q3_K;
    else if (c->mix == MIX_Q2_K_S && grouped)
        type = FM_Q4_K;
    else if (c->mix == MIX_Q3_K_M)
        type = i < 2 ? FM_Q5_K : FM_Q4_K;
    else if (c->mix == MIX_Q3_K_L || ((c->mix == MIX_IQ4_NL || c->mix == MIX_IQ4_XS) && grouped))
        type = FM_Q5_K;
    else if ((c->mix == MIX_Q4_K_M || c->mix == MIX_Q5_K_M) && deserves_more(i, c->values))
        type = FM_Q6_K;
    else if (c->mix == MIX_Q4_K_S && i < 4)
        type = FM_Q5_K;
    if (c->seventy && (type == FM_Q3_K || type == FM_Q4_K))
        type = FM_Q5_K;
    return c->experts == 8 ? FM_Q8_0 : type;
}

/* Of models with experts the layer is the name's, of others the tensors that came before. */
static fm_dtype down_type(choice *c, const char *name, fm_dtype most)
{
    const uint64_t before = c->down++, n = c->layers;
    const uint64_t i = c->experts > 1 ? (uint64_t)layer_of(name) : before;

    switch (c->mix) {
    case MIX_Q2_K:
        return FM_Q3_K;
    case MIX_Q2_K_S:
        return i < n / 8 ? FM_Q4_K : most;
    case MIX_Q3_K_M:
        if (i < n / 16)
            return FM_Q5_K;
        return !c->falcon || deserves_more(i, n) ? FM_Q4_K : FM_Q3_K;
    case MIX_Q3_K_L:
        return c->falcon ? FM_Q4_K : FM_Q5_K;
    case MIX_Q4_K_M:
        if (c->falcon)
            return i < n / 16 ? FM_Q6_K : deserves_more(i, n) ? FM_Q5_K : FM_Q4_K;
        return deserves_more(i, n) ? FM_Q6_K : most;
    case MIX_Q5_K_M:
        return deserves_more(i, n) ? FM_Q6_K : most;
    case MIX_IQ4_NL:
    case MIX_IQ4_XS:
        return i < n / 8 && !c->weighted ? FM_Q5_K : most;
    case MIX_Q4_K_S:
        return i < n / 8 && !c->falcon ? FM_Q5_K : most;
    case MIX_Q4_0:
        return i < n / 8 && c->weighted ? FM_Q4_1 : most;
    case MIX_Q5_0:
        return i < n / 8 && c->weighted ? FM_Q5_1 : most;
    case MIX_Q4_1:
    case MIX_Q5_1:
    case MIX_Q8_0:
    case MIX_Q3_K_S:
    case MIX_Q5_K_S:
    case MIX_Q6_K:
        break;
    }
    return most;
}

static fm_dtype attention_out_type(const choice *c, fm_dtype most)
{
    const mix_id m = c->mix;

    if (c->falcon)
        return m == MIX_Q3_K_L ? FM_Q4_K : most;
    if (c->experts == 8)
        return m == MIX_Q2_K || m == MIX_Q3_K_S || m == MIX_Q3_K_M || m == MIX_IQ4_NL ||
                       m == MIX_Q4_K_S || m == MIX_Q4_K_M || m == MIX_IQ4_XS
                   ? FM_Q5_K
                   : most;
    return m == MIX_Q2_K ? FM_Q3_K : m == MIX_Q3_K_M ? FM_Q4_K : m == MIX_Q3_K_L ? FM_Q5_K : most;
}

/* A type whose blocks divide the rows: of 256 elements, else of 32, else F16. */
static fm_dtype fitting(fm_dtype type, uint64_t row)
{
    if (row % fm_dtype_get(type)->block_elems == 0)
        return type;
    if (type == FM_IQ4_XS)
        type = FM_IQ4_NL;
    else if (type == FM_Q2_K || type == FM_Q3_K)
        type = FM_Q4_0;
    else if (type == FM_Q4_K)
        type = FM_Q5_0;
    else if (type == FM_Q5_K)
        type = FM_Q5_1;
    else if (type == FM_Q6_K)
        type = FM_Q8_0;
    return row % fm_dtype_get(type)->block_elems == 0 ? type : FM_F16;
}

static fm_dtype type_of(choice *c, const ggw_mix_tensor *t, fm_dtype most)
{
    const part p = part_of(t->name);
    fm_dtype type = most;

    if (p == HEAD || (p == EMBEDDING && c->tied))
        type = head_type(c, t, most);
    else if (is_values(p))
        type = value_type(c, most);
    else if (p == KEY && c->experts == 8)
        type = FM_Q8_0;
    else if (p == FFN_DOWN)
        type = down_type(c, t->name, most);
    else if (p == ATTENTION_OUT)
        type = attention_out_type(c, most);
    return fitting(type, row_of(t));
}

bool ggw_mix_wants_importance(const ggw_mix *mix, const char *name, fm_dtype dtype)
{
    const part p = part_of(name);
    return mix->id == MIX_Q2_K_S && dtype == FM_Q2_K && p != HEAD && p != EMBEDDING;
}

static fm_status check_layer(const ggw_mix_tensor *t, const ggw_model *m)
{
    if (part_of(t->name) != FFN_DOWN || m->experts <= 1 ||
        (layer_of(t->name) >= 0 && (uint64_t)layer_of(t->name) < m->layers))
        return FM_OK;
    return fm_fail(FM_EUNSUPPORTED,
                   "tensor '%s' of the GGUF is of no layer; export with --format hf", t->name);
}

fm_status ggw_mix_types(const ggw_mix *mix, const ggw_model *m, bool weighted, ggw_mix_tensor *t,
                        size_t count)
{
    choice c = {.mix = mix->id,
                .falcon = strcmp(m->arch->prefix, "falcon") == 0,
                .seventy = is_seventy(m),
                .tied = true,
                .weighted = weighted,
                .experts = m->experts,
                .group = m->kv_heads > 0 ? m->heads / m->kv_heads : 0,
                .layers = m->layers};

    for (size_t i = 0; i < count; i++) {
        c.tied = c.tied && part_of(t[i].name) != HEAD;
        c.values += is_values(part_of(t[i].name));
        FM_TRY(check_layer(&t[i], m));
    }
    for (size_t i = 0; i < count; i++)
        t[i].dtype = is_quantized(&t[i]) ? type_of(&c, &t[i], mix->most) : FM_F32;
    return FM_OK;
}

void ggw_imatrix_fields(ggw_fields *f, const fm_imatrix *m, const char *path)
{
    const fm_span file = fm_span_str(path);
    const size_t len = FM_MIN(file.len, (size_t)FM_IMATRIX_TEXT_BYTES);

    ggw_str(f, "quantize.imatrix.file", fm_span_of(file.data, len));
    if (fm_imatrix_dataset(m))
        ggw_str(f, "quantize.imatrix.dataset", fm_span_str(fm_imatrix_dataset(m)));
    ggw_u32(f, "quantize.imatrix.entries_count", fm_imatrix_count(m));
    if (fm_imatrix_chunks(m) > 0)
        ggw_u32(f, "quantize.imatrix.chunks_count", fm_imatrix_chunks(m));
}
