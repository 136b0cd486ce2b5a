/* stacks.c - families with two stacks: a decoder whose layers attend to what an encoder makes of
 * another text, the source. The struct describes the decoder; fm_arch_source gives the encoder. */
#include "infer/arch/table.h"

#include <math.h>
#include <string.h>

void fm_arch_source(fm_arch *out, const fm_arch *a)
{
    memcpy(out, a, sizeof(*out)); /* with padding: shapes are compared bytewise */
    out->of_source = true;
    out->layers = a->source_layers;
    out->heads = out->kv_heads = a->source_heads;
    out->inter = a->source_inter;
    out->source_layers = out->source_heads = out->source_inter = 0;
    if (a->heads != a->source_heads) { /* of the same width together */
        out->head_dim = a->hidden / a->source_heads;
        out->sw.rotary_dim = out->head_dim;
        out->sw.attn_scale = (float)(1.0 / sqrt((double)out->head_dim));
    }
    out->sw.encoder = true;
    out->sw.cross = false;
    out->sw.logit_divisor = 1.0f;
    out->tied = out->head_bias = out->headless = false;
    memset(out->head_name, 0, sizeof(out->head_name));
}

const char *fmi_t5_act(const char *projection, bool *gated)
{
    static const char gate[] = "gated-";
    *gated = strncmp(projection, gate, sizeof(gate) - 1) == 0;
    if (strcmp(projection, "gated-gelu") == 0)
        return "gelu_new";
    return *gated ? projection + sizeof(gate) - 1 : projection;
}

/* What transformers writes beside feed_forward_proj must say the same. */
static fm_status check_t5_act(const fm_arch *a, const fm_json *c, const char *what)
{
    bool gated = false, says = !a->sw.plain_mlp;
    const char *usual = fmi_family_of(a)->act;
    const char *act = fmi_t5_act(fm_json_cstr(fm_json_get(c, "feed_forward_proj"), usual), &gated);
    FM_TRY(fmi_take_bool(&says, c, "is_gated_act", says, what));
    if (says != gated || strcmp(fm_json_cstr(fm_json_get(c, "dense_act_fn"), act), act) != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: dense_act_fn or is_gated_act says other than feed_forward_proj", what);
    return FM_OK;
}

static fm_status read_t5(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    bool scaled = true;
    fm_switches *s = &a->sw;
    a->source_layers = a->layers;
    a->source_heads = a->heads;
    a->source_inter = a->inter;
    FM_TRY(check_t5_act(a, c, what));
    FM_TRY(fmi_take_u32(&a->layers, c, "num_decoder_layers", a->layers, 1, FM_MAX_LAYERS, what));
    FM_TRY(fmi_take_u32(&s->buckets, c, "relative_attention_num_buckets", 32, 4, 4096, what));
    FM_TRY(fmi_take_u32(&s->bucket_far, c, "relative_attention_max_distance", 128,
                        s->buckets / 2 + 1, 1 << 20, what));
    FM_TRY(fmi_take_bool(&scaled, c, "tie_word_embeddings", true, what));
    FM_TRY(fmi_take_bool(&scaled, c, "scale_decoder_outputs", scaled, what));
    s->attn_scale = 1.0f;
    if (scaled && !(f->more & M_MT5))
        s->logit_divisor = (float)sqrt((double)a->hidden);
    if (a->pad < 0 && !fm_json_get(c, "pad_token_id"))
        a->pad = 0;
    if (a->eos_count == 0 && !fm_json_get(c, "eos_token_id") && a->vocab > 1)
        a->eos[a->eos_count++] = 1;
    return FM_OK;
}

/* An id where the config says nothing. */
static void default_id(int32_t *id, const fm_arch *a, const fm_json *c, const char *key,
                       int32_t dflt)
{
    if (*id < 0 && !fm_json_get(c, key) && (uint32_t)dflt < a->vocab)
        *id = dflt;
}

static fm_status read_bart(fm_arch *a, const fm_json *c, const char *what)
{
    bool scaled = false;
    FM_TRY(fmi_take_u32(&a->source_layers, c, "encoder_layers", 12, 1, FM_MAX_LAYERS, what));
    FM_TRY(fmi_take_u32(&a->source_heads, c, "encoder_attention_heads", 16, 1, 4096, what));
    FM_TRY(fmi_take_u32(&a->source_inter, c, "encoder_ffn_dim", 4096, 1, 4 << 20, what));
    FM_TRY(fmi_take_bool(&scaled, c, "scale_embedding", false, what));
    if (a->hidden % a->source_heads != 0 || a->hidden / a->source_heads < 2 ||
        a->hidden / a->source_heads > FM_MAX_HEAD_DIM)
        return fm_fail(FM_EINVAL, "%s: %u elements cannot be split over %u attention heads", what,
                       a->hidden, a->source_heads);
    if (scaled)
        a->sw.embed_scale = (float)sqrt((double)a->hidden);
    default_id(&a->pad, a, c, "pad_token_id", 1);
    default_id(&a->bos, a, c, "bos_token_id", 0);
    if (a->eos_count == 0 && !fm_json_get(c, "eos_token_id") && a->vocab > 2)
        a->eos[a->eos_count++] = 2;
    return FM_OK;
}

/* A token that generation_config or the config names; dflt < 0: there may be none. */
static fm_status take_token(int32_t *out, const fm_arch *a, const fm_json *c, const fm_json *g,
                            const char *key, int64_t dflt, const char *what)
{
    uint32_t id = 0;
    const fm_json *from = fmi_absent(fm_json_get(g, key)) ? c : g;
    *out = -1;
    if (fmi_absent(fm_json_get(from, key)) && dflt < 0)
        return FM_OK;
    FM_TRY(fmi_take_u32(&id, from, key, dflt, 0, (int64_t)a->vocab - 1, what));
    *out = (int32_t)id;
    return FM_OK;
}

fm_status fmi_read_stacks(fm_arch *a, const fmi_family *f, const fm_json *c, const fm_json *g,
                          const char *what)
{
    if (!f->source)
        return FM_OK;
    bool t5 = f->more & M_T5;
    FM_TRY(t5 ? read_t5(a, f, c, what) : read_bart(a, c, what));
    int64_t start = t5 ? a->pad : a->sw.order == FM_BLOCK_POST ? 2 : a->bos; /* mBART's: bos */
    a->tied = true; /* where the tree has no head: fm_arch_of_tree */
    FM_TRY(take_token(&a->start[0], a, c, g, "decoder_start_token_id", start, what));
    FM_TRY(take_token(&a->start[1], a, c, g, "forced_bos_token_id", -1, what));
    if (a->start[0] < 0)
        return fm_fail(FM_EINVAL, "%s: config field 'decoder_start_token_id' is missing", what);
    return FM_OK;
}
