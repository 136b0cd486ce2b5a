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

/* The widths that follow from heads, groups and the size of a state. */
static fm_status mamba2_sizes(fm_arch *a, uint32_t expand, const char *what)
{
    fm_recurrence *r = &a->sw.rec;
    r->kind = FM_RECURS_MAMBA2;
    r->inner = r->heads * r->hd;
    r->channels = r->inner + 2 * r->groups * r->n;
    r->in = r->inner + r->channels + r->heads;
    if ((uint64_t)expand * a->hidden != r->inner || r->heads % r->groups != 0)
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

static fm_status read_hybrid(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_recurrence *r = &a->sw.rec;
    uint32_t expand = 2;
    FM_TRY(fmi_take_u32(&expand, c, "mamba_expand", 2, 1, 64, what));
    FM_TRY(fmi_take_u32(&r->heads, c, "mamba_n_heads", 128, 1, 65536, what));
    r->hd = expand * a->hidden / r->heads;
    if (strcmp(fm_json_cstr(fm_json_get(c, "mamba_d_head"), ""), "auto") != 0)
        FM_TRY(fmi_take_u32(&r->hd, c, "mamba_d_head", r->hd, 1, 4096, what));
    FM_TRY(fmi_take_u32(&r->n, c, "mamba_d_state", 256, 1, FM_MAX_STATE, what));
    FM_TRY(fmi_take_u32(&r->groups, c, "mamba_n_groups", 1, 1, 65536, what));
    FM_TRY(fmi_take_u32(&r->kernel, c, "mamba_d_conv", 4, 1, FM_MAX_CONV_KERNEL, what));
    FM_TRY(fmi_take_bool(&r->bias, c, "mamba_proj_bias", false, what));
    FM_TRY(fmi_take_bool(&r->conv_bias, c, "mamba_conv_bias", true, what));
    FM_TRY(mamba2_sizes(a, expand, what));
    FM_TRY(take_limits(r, c, what));
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
    if (f->has & F_MAMBA)
        FM_TRY(read_mamba(a, f, c, what));
    for (uint32_t i = 0; i < a->layers; i++)
        any = any || fm_layer_recurs(&a->sw, i);
    if (!any)
        memset(&a->sw.rec, 0, sizeof(a->sw.rec));
    return FM_OK;
}
