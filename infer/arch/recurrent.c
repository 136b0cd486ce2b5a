/* recurrent.c - which layers have a recurrent block, and its sizes. */
#include "infer/arch/table.h"

#include <math.h>
#include <string.h>

#include "infer/recurrent.h"

/* Layers of this type (also: its older name) get a recurrent block in the place of attention. */
static fm_status layers_by_types(fm_arch *a, const fm_json *types, const char *type,
                                 const char *also, const char *what)
{
    if (!fm_json_is(types, FM_JSON_ARRAY) || fm_json_count(types) != a->layers)
        return fm_fail(FM_EINVAL, "%s: layer_types must list %u layers", what, a->layers);
    for (size_t i = 0; i < a->layers; i++)
        if (strcmp(fm_json_cstr(fm_json_at(types, i), ""), type) == 0 ||
            strcmp(fm_json_cstr(fm_json_at(types, i), ""), also) == 0)
            a->sw.layer[i] |= FM_LAYER_RECURS | FM_LAYER_NO_ATTENTION;
    return FM_OK;
}

/* All layers get one but those that the list `key` names. Without the list: none. */
static fm_status layers_but(fm_arch *a, const fm_json *c, const char *key, const char *what)
{
    const fm_json *list = fm_json_get(c, key);
    if (fmi_absent(list))
        return FM_OK;
    if (!fm_json_is(list, FM_JSON_ARRAY) || fm_json_count(list) > a->layers)
        return fm_fail(FM_EINVAL, "%s: %s must be a list of layers", what, key);
    for (size_t i = 0; i < a->layers; i++)
        a->sw.layer[i] |= FM_LAYER_RECURS | FM_LAYER_NO_ATTENTION;
    for (size_t i = 0; i < fm_json_count(list); i++) {
        int64_t l = fm_json_int(fm_json_at(list, i), -1);
        if (l < 0 || l >= a->layers)
            return fm_fail(FM_EINVAL, "%s: %s must be a list of layers", what, key);
        a->sw.layer[l] &= (uint8_t) ~(FM_LAYER_RECURS | FM_LAYER_NO_ATTENTION);
    }
    return FM_OK;
}

/* The width of the feed-forward branch: two thirds of the setting, times a factor, rounded up. */
static fm_status lfm2_inter(fm_arch *a, const fm_json *c, const char *what)
{
    bool adjust = true;
    double factor = 1;
    uint32_t multiple = 256;
    FM_TRY(fmi_take_bool(&adjust, c, "block_auto_adjust_ff_dim", true, what));
    FM_TRY(fmi_take_positive(&factor, c, "block_ffn_dim_multiplier", 1, what));
    FM_TRY(fmi_take_u32(&multiple, c, "block_multiple_of", 256, 1, 1 << 20, what));
    if (!adjust)
        return FM_OK;
    double inter = (double)(uint32_t)((double)(2 * a->inter) / 3.0);
    if (!fm_json_get(c, "block_ffn_dim_multiplier") ||
        !fmi_absent(fm_json_get(c, "block_ffn_dim_multiplier"))) {
        inter = (double)(uint64_t)(factor * inter);
        inter = (double)(((uint64_t)inter + multiple - 1) / multiple * multiple);
    }
    if (inter < 1 || inter > (double)(4u << 20))
        return fm_fail(FM_EINVAL, "%s: block_ffn_dim_multiplier gives a width of %.0f", what,
                       inter);
    a->inter = (uint32_t)inter;
    return FM_OK;
}

static fm_status read_lfm2(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_recurrence *r = &a->sw.rec;
    const fm_json *types = fm_json_get(c, "layer_types");
    if (!(f->has & F_LFM2_MOE))
        FM_TRY(lfm2_inter(a, c, what));
    FM_TRY(fmi_absent(types) ? layers_but(a, c, "full_attn_idxs", what)
                             : layers_by_types(a, types, "conv", "conv", what));
    FM_TRY(fmi_take_bool(&r->bias, c, "conv_bias", false, what));
    FM_TRY(fmi_take_u32(&r->kernel, c, "conv_L_cache", 3, 1, FM_MAX_CONV_KERNEL, what));
    r->kind = FM_RECURS_CONV;
    r->conv_bias = r->bias;
    r->channels = r->inner = a->hidden;
    r->in = 3 * a->hidden;
    return FM_OK;
}

/* Two numbers, of which the second may be infinite. */
static fm_status take_limits(fm_recurrence *r, const fm_json *c, const char *what)
{
    const fm_json *v = fm_json_get(c, "time_step_limit");
    r->dt_min = 0.0f;
    r->dt_max = INFINITY;
    if (fmi_absent(v))
        return FM_OK;
    const fm_json *low = fm_json_at(v, 0), *high = fm_json_at(v, 1);
    const char *word = fm_json_cstr(fm_json_get(high, "__float__"), fm_json_cstr(high, ""));
    bool infinite = strcmp(word, "Infinity") == 0 || strcmp(word, "inf") == 0;
    double min = fm_json_real(low, -1.0), max = infinite ? HUGE_VAL : fm_json_real(high, -1.0);
    if (!fm_json_is(v, FM_JSON_ARRAY) || fm_json_count(v) != 2 || min < 0.0 || max < min)
        return fm_fail(FM_EINVAL, "%s: time_step_limit must be two ascending numbers from 0 on",
                       what);
    r->dt_min = (float)min;
    r->dt_max = (float)max;
    return FM_OK;
}

/* The widths that follow from heads, groups and the size of a state. expand 0: any width. */
static fm_status mamba2_sizes(fm_arch *a, uint32_t expand, const char *what)
{
    fm_recurrence *r = &a->sw.rec;
    r->kind = FM_RECURS_MAMBA2;
    r->inner = r->heads * r->hd;
    r->channels = r->inner + 2 * r->groups * r->n;
    r->in = r->inner + r->channels + r->heads;
    if (r->heads % r->groups != 0)
        return fm_fail(FM_EINVAL, "%s: %u heads cannot be split into %u groups", what, r->heads,
                       r->groups);
    if (expand && (uint64_t)expand * a->hidden != r->inner)
        return fm_fail(FM_EINVAL,
                       "%s: %u heads of %u in %u groups do not make %u times the hidden size", what,
                       r->heads, r->hd, r->groups, expand);
    return FM_OK;
}

static fm_status read_mamba2(fm_arch *a, const fm_json *c, const char *what)
{
    fm_recurrence *r = &a->sw.rec;
    uint32_t expand = 2;
    FM_TRY(fmi_take_u32(&expand, c, "expand", 2, 1, 64, what));
    FM_TRY(fmi_take_u32(&r->heads, c, "num_heads", 128, 1, 65536, what));
    FM_TRY(fmi_take_u32(&r->hd, c, "head_dim", 64, 1, FM_MAX_HEAD_DIM, what));
    FM_TRY(fmi_take_u32(&r->n, c, "state_size", 128, 1, FM_MAX_STATE, what));
    FM_TRY(fmi_take_u32(&r->groups, c, "n_groups", 8, 1, 65536, what));
    FM_TRY(mamba2_sizes(a, expand, what));
    return take_limits(r, c, what);
}

static fm_status read_mamba1(fm_arch *a, const fm_json *c, const char *what)
{
    fm_recurrence *r = &a->sw.rec;
    const fm_json *rank = fm_json_get(c, "time_step_rank");
    uint32_t expand = 2, usual = (a->hidden + 15) / 16;
    FM_TRY(fmi_take_u32(&expand, c, "expand", 2, 1, 64, what));
    FM_TRY(fmi_take_u32(&r->inner, c, "intermediate_size", (int64_t)expand * a->hidden, 1, 1 << 22,
                        what));
    FM_TRY(fmi_take_u32(&r->n, c, "state_size", 16, 1, FM_MAX_STATE, what));
    r->rank = usual;
    if (strcmp(fm_json_cstr(rank, ""), "auto") != 0)
        FM_TRY(fmi_take_u32(&r->rank, c, "time_step_rank", usual, 1, 1 << 16, what));
    if ((uint64_t)expand * a->hidden != r->inner)
        return fm_fail(FM_EINVAL, "%s: intermediate_size is %u, expand makes it %u times %u", what,
                       r->inner, expand, a->hidden);
    r->kind = FM_RECURS_MAMBA;
    r->heads = r->groups = 1; /* of one head, with rates for each channel */
    r->hd = r->channels = r->inner;
    r->in = 2 * r->inner;
    r->dt_max = INFINITY;
    return FM_OK;
}

/* ==== layers of one block each ==== */

/* Bits of each kind of layer, its letter in hybrid_override_pattern and its two names. */
static const struct {
    char letter;
    const char *name, *also;
    uint8_t bits;
} blocks[] = {
    {'M', "linear_attention", "mamba", FM_LAYER_RECURS | FM_LAYER_NO_ATTENTION | FM_LAYER_NO_MLP},
    {'*', "full_attention", "attention", FM_LAYER_NO_MLP},
    {'-', "mlp", "mlp", FM_LAYER_NO_ATTENTION},
    {'E', "moe", "moe", FM_LAYER_NO_ATTENTION | FM_LAYER_SPARSE},
};

/* The layer's kind by its name, or where that is NULL by its letter. */
static fm_status take_block(fm_arch *a, size_t layer, const char *name, char letter,
                            const char *what)
{
    size_t i = 0;
    while (i < FM_ARRAY_LEN(blocks) &&
           !(name ? strcmp(name, blocks[i].name) == 0 || strcmp(name, blocks[i].also) == 0
                  : letter == blocks[i].letter))
        i++;
    if (i == FM_ARRAY_LEN(blocks))
        return fm_fail(FM_EUNSUPPORTED, "%s: a layer of kind '%.40s' is not supported", what,
                       name ? name : (char[2]){letter, '\0'});
    a->sw.layer[layer] = blocks[i].bits;
    return FM_OK;
}

fm_status fmi_read_blocks(fm_arch *a, const fm_json *c, const char *what)
{
    const fm_json *list = fm_json_get(c, "layers_block_type");
    const char *pattern = fm_json_cstr(fm_json_get(c, "hybrid_override_pattern"), "ME*-");
    if (fmi_absent(list))
        list = fm_json_get(c, "layer_types");
    bool named = !fmi_absent(list);
    size_t n = named ? fm_json_count(list) : strlen(pattern);
    if ((named && !fm_json_is(list, FM_JSON_ARRAY)) || n < 1 || n > FM_MAX_LAYERS)
        return fm_fail(FM_EINVAL,
                       "%s: layers_block_type or hybrid_override_pattern must list 1 to %u layers",
                       what, FM_MAX_LAYERS);
    a->layers = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        FM_TRY(take_block(a, i, named ? fm_json_cstr(fm_json_at(list, i), "") : NULL,
                          named ? '\0' : pattern[i], what));
    return FM_OK;
}

/* Nemotron-H. As in transformers, time_step_min limits steps from below. */
static fm_status read_one_block(fm_arch *a, const fm_json *c, const char *what)
{
    fm_recurrence *r = &a->sw.rec;
    double least = 0.001;
    FM_TRY(fmi_take_u32(&r->heads, c, "mamba_num_heads", 128, 1, 65536, what));
    FM_TRY(fmi_take_u32(&r->hd, c, "mamba_head_dim", 64, 1, FM_MAX_HEAD_DIM, what));
    FM_TRY(fmi_take_u32(&r->n, c, "ssm_state_size", 128, 1, FM_MAX_STATE, what));
    FM_TRY(fmi_take_u32(&r->groups, c, "n_groups", 8, 1, 65536, what));
    FM_TRY(fmi_take_u32(&r->kernel, c, "conv_kernel", 4, 1, FM_MAX_CONV_KERNEL, what));
    FM_TRY(fmi_take_bool(&r->bias, c, "use_bias", false, what));
    FM_TRY(fmi_take_bool(&r->conv_bias, c, "use_conv_bias", true, what));
    if (fm_json_real(fm_json_get(c, "time_step_min"), least) == 0)
        least = 0;
    else
        FM_TRY(fmi_take_positive(&least, c, "time_step_min", least, what));
    r->dt_min = (float)least;
    r->dt_max = INFINITY;
    const char *act = fm_json_cstr(fm_json_get(c, "mamba_hidden_act"), "silu");
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: mamba_hidden_act '%.40s' is not supported, silu is",
                       what, act);
    return mamba2_sizes(a, 0, what);
}

/* Every layer is a recurrent block alone. */
static fm_status read_mamba(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_recurrence *r = &a->sw.rec;
    FM_TRY(f->sw.rec.kind == FM_RECURS_MAMBA2 ? read_mamba2(a, c, what) : read_mamba1(a, c, what));
    FM_TRY(fmi_take_bool(&r->bias, c, "use_bias", false, what));
    FM_TRY(fmi_take_bool(&r->conv_bias, c, "use_conv_bias", true, what));
    FM_TRY(fmi_take_u32(&r->kernel, c, "conv_kernel", 4, 1, FM_MAX_CONV_KERNEL, what));
    if (a->sw.act != FM_ACT_SILU)
        return fm_fail(FM_EUNSUPPORTED, "%s: hidden_act other than silu is not supported", what);
    for (uint32_t i = 0; i < a->layers; i++)
        a->sw.layer[i] |= FM_LAYER_RECURS | FM_LAYER_NO_ATTENTION | FM_LAYER_NO_MLP;
    return FM_OK;
}

/* Without a list of types every n-th layer attends. */
static fm_status layers_by_interval(fm_arch *a, const fm_json *c, const char *what)
{
    uint32_t n = 4;
    FM_TRY(fmi_take_u32(&n, c, "full_attention_interval", 4, 1, FM_MAX_LAYERS, what));
    for (uint32_t i = 0; i < a->layers; i++)
        if ((i + 1) % n != 0)
            a->sw.layer[i] |= FM_LAYER_RECURS | FM_LAYER_NO_ATTENTION;
    return FM_OK;
}

static fm_status read_delta(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_recurrence *r = &a->sw.rec;
    const fm_json *types = fm_json_get(c, "layer_types");
    FM_TRY(fmi_absent(types)
               ? layers_by_interval(a, c, what)
               : layers_by_types(a, types, "linear_attention", "linear_attention", what));
    FM_TRY(fmi_take_u32(&r->groups, c, "linear_num_key_heads", 16, 1, 4096, what));
    FM_TRY(fmi_take_u32(&r->heads, c, "linear_num_value_heads", 32, 1, 4096, what));
    FM_TRY(fmi_take_u32(&r->n, c, "linear_key_head_dim", 128, 1, FM_MAX_STATE, what));
    FM_TRY(fmi_take_u32(&r->hd, c, "linear_value_head_dim", 128, 1, 4096, what));
    FM_TRY(fmi_take_u32(&r->kernel, c, "linear_conv_kernel_dim", 4, 1, FM_MAX_CONV_KERNEL, what));
    if (r->heads % r->groups != 0 || a->sw.act != FM_ACT_SILU)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %u heads of values cannot share %u of keys, or hidden_act is not silu",
                       what, r->heads, r->groups);
    r->kind = FM_RECURS_DELTA;
    r->by_groups = f->sw.rec.by_groups;
    r->inner = r->heads * r->hd;
    r->channels = 2 * r->groups * r->n + r->inner;
    r->in = r->channels + (r->by_groups ? r->inner : 0);
    return FM_OK;
}

/* Bamba lists the layers that attend, Granite the types of all. */
static fm_status hybrid_layers(fm_arch *a, const fm_json *c, const char *what)
{
    const fm_json *types = fm_json_get(c, "layer_types");
    if (!fmi_absent(types))
        return layers_by_types(a, types, "linear_attention", "mamba", what);
    if (!fmi_absent(fm_json_get(c, "attn_layer_indices")))
        return layers_but(a, c, "attn_layer_indices", what);
    for (uint32_t i = 0; i < a->layers; i++)
        a->sw.layer[i] |= FM_LAYER_RECURS | FM_LAYER_NO_ATTENTION;
    return FM_OK;
}

/* Granite turns queries and keys only where the config says so. */
static fm_status granite_turns(fm_arch *a, const fm_json *c, const char *what)
{
    const char *turns = fm_json_cstr(fm_json_get(c, "position_embedding_type"), "nope");
    if (strcmp(turns, "nope") != 0 && strcmp(turns, "rope") != 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: position_embedding_type '%.40s' is not supported",
                       what, turns);
    for (uint32_t i = 0; strcmp(turns, "nope") == 0 && i < a->layers; i++)
        a->sw.layer[i] |= FM_LAYER_NO_ROPE;
    return FM_OK;
}

/* ==== beside attention ==== */

/* Settings that are lists of numbers; null: all are 1. */
static fm_status take_numbers(float *out, size_t n, const fm_json *c, const char *key,
                              const char *what)
{
    const fm_json *list = fm_json_get(c, key);
    for (size_t i = 0; i < n; i++)
        out[i] = 1.0f;
    if (fmi_absent(list))
        return FM_OK;
    for (size_t i = 0; i < n; i++) {
        double x = fm_json_real(fm_json_at(list, i), 0);
        if (!fm_json_is(list, FM_JSON_ARRAY) || fm_json_count(list) != n || !isfinite(x) || x == 0)
            return fm_fail(FM_EINVAL, "%s: %s must be %zu numbers other than 0", what, key, n);
        out[i] = (float)x;
    }
    return FM_OK;
}

static fm_status take_number(float *out, const fm_json *c, const char *key, const char *what)
{
    double x = 1;
    FM_TRY(fmi_take_positive(&x, c, key, 1, what));
    *out = (float)x;
    return FM_OK;
}

/* Falcon-H1: every layer recurs and attends; what multiplies products. */
static fm_status read_beside(fm_arch *a, const fm_json *c, const char *what)
{
    fm_multipliers *y = &a->sw.by;
    fm_recurrence *r = &a->sw.rec;
    bool norms = false, first = true;
    float embed = 1, head = 1, mlp[2];
    FM_TRY(take_number(&embed, c, "embedding_multiplier", what));
    FM_TRY(take_number(&head, c, "lm_head_multiplier", what));
    FM_TRY(take_number(&y->attn_in, c, "attention_in_multiplier", what));
    FM_TRY(take_number(&y->attn_out, c, "attention_out_multiplier", what));
    FM_TRY(take_number(&y->key, c, "key_multiplier", what));
    FM_TRY(take_number(&y->ssm_in, c, "ssm_in_multiplier", what));
    FM_TRY(take_number(&y->ssm_out, c, "ssm_out_multiplier", what));
    FM_TRY(take_numbers(y->ssm, FM_ARRAY_LEN(y->ssm), c, "ssm_multipliers", what));
    FM_TRY(take_numbers(mlp, FM_ARRAY_LEN(mlp), c, "mlp_multipliers", what));
    FM_TRY(fmi_take_bool(&r->out_bias, c, "projectors_bias", false, what));
    FM_TRY(fmi_take_bool(&norms, c, "mamba_rms_norm", false, what));
    FM_TRY(fmi_take_bool(&first, c, "mamba_norm_before_gate", true, what));
    a->sw.embed_scale = embed;
    a->sw.logit_divisor = 1.0f / head;
    y->gate = mlp[0];
    y->down = mlp[1];
    r->bare = !norms;
    r->norm_first = norms && first;
    a->sw.beside = true;
    for (uint32_t i = 0; i < a->layers; i++)
        a->sw.layer[i] |= FM_LAYER_RECURS;
    return FM_OK;
}

/* Falcon-H1 has a width of its own, from which a head's follows. */
static fm_status hybrid_width(fm_arch *a, const fmi_family *f, const fm_json *c, uint32_t *expand,
                              const char *what)
{
    fm_recurrence *r = &a->sw.rec;
    uint32_t wide = 0;
    const fm_json *own = fm_json_get(c, "mamba_d_ssm");
    FM_TRY(fmi_take_u32(expand, c, "mamba_expand", 2, 1, 64, what));
    wide = *expand * a->hidden;
    if ((f->has & F_BESIDE) && (!own || !fmi_absent(own))) {
        FM_TRY(fmi_take_u32(&wide, c, "mamba_d_ssm", 1024, 1, 1 << 22, what));
        *expand = 0;
    }
    FM_TRY(fmi_take_u32(&r->heads, c, "mamba_n_heads", 128, 1, 65536, what));
    r->hd = wide / r->heads;
    if (*expand == 0 && wide % r->heads != 0)
        return fm_fail(FM_EINVAL, "%s: mamba_d_ssm is %u, which %u heads cannot share", what, wide,
                       r->heads);
    return FM_OK;
}

static fm_status read_hybrid(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_recurrence *r = &a->sw.rec;
    uint32_t expand = 0;
    FM_TRY(hybrid_width(a, f, c, &expand, what));
    const uint32_t usual = r->hd;
    if (strcmp(fm_json_cstr(fm_json_get(c, "mamba_d_head"), ""), "auto") != 0)
        FM_TRY(fmi_take_u32(&r->hd, c, "mamba_d_head", r->hd, 1, 4096, what));
    FM_TRY(fmi_take_u32(&r->n, c, "mamba_d_state", 256, 1, FM_MAX_STATE, what));
    FM_TRY(fmi_take_u32(&r->groups, c, "mamba_n_groups", 1, 1, 65536, what));
    FM_TRY(fmi_take_u32(&r->kernel, c, "mamba_d_conv", 4, 1, FM_MAX_CONV_KERNEL, what));
    FM_TRY(fmi_take_bool(&r->bias, c, "mamba_proj_bias", false, what));
    FM_TRY(fmi_take_bool(&r->conv_bias, c, "mamba_conv_bias", true, what));
    FM_TRY(mamba2_sizes(a, expand, what));
    FM_TRY(take_limits(r, c, what));
    if (r->hd != usual)
        return fm_fail(FM_EINVAL, "%s: mamba_d_head is %u, the %u heads have %u", what, r->hd,
                       r->heads, usual);
    if (f->has & F_BESIDE)
        return read_beside(a, c, what);
    if (f->has & F_GRANITE)
        FM_TRY(granite_turns(a, c, what));
    return hybrid_layers(a, c, what);
}

fm_status fmi_read_recurrence(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    bool any = false;
    if (f->has & F_LFM2)
        FM_TRY(read_lfm2(a, f, c, what));
    if (f->has & F_DELTA)
        FM_TRY(read_delta(a, f, c, what));
    if (f->has & F_HYBRID)
        FM_TRY(read_hybrid(a, f, c, what));
    if (f->has & F_ONE_BLOCK)
        FM_TRY(read_one_block(a, c, what));
    if (f->has & F_MAMBA)
        FM_TRY(read_mamba(a, f, c, what));
    for (uint32_t i = 0; i < a->layers; i++)
        any = any || fm_layer_recurs(&a->sw, i);
    if (!any)
        memset(&a->sw.rec, 0, sizeof(a->sw.rec));
    return FM_OK;
}
