/* experts.c - the settings of a config about experts: how many there are and in which layers, how a
 * router chooses among them, and the expert that every row goes through. */
#include "infer/arch/table.h"

#include <string.h>

static fm_status sparse_layers(fm_arch *a, const fm_json *c, const char *what)
{
    uint32_t step = 1;
    fm_status rc = fmi_take_u32(&step, c, "decoder_sparse_step", 1, 1, 1 << 20, what);
    for (uint32_t i = 0; rc == FM_OK && i < a->layers; i++)
        if ((i + 1) % step == 0)
            a->sw.layer[i] |= FM_LAYER_SPARSE;
    const fm_json *only = fm_json_get(c, "mlp_only_layers");
    if (rc != FM_OK || fmi_absent(only))
        return rc;
    if (!fm_json_is(only, FM_JSON_ARRAY) || fm_json_count(only) > FM_MAX_LAYERS)
        return fm_fail(FM_EINVAL, "%s: mlp_only_layers must be a list of layers", what);
    for (size_t i = 0; i < fm_json_count(only); i++) {
        int64_t l = fm_json_int(fm_json_at(only, i), -1);
        if (l < 0)
            return fm_fail(FM_EINVAL, "%s: mlp_only_layers must be a list of layers", what);
        if (l < a->layers)
            a->sw.layer[l] &= (uint8_t)~FM_LAYER_SPARSE;
    }
    return FM_OK;
}

static void sparse_from(fm_arch *a, uint32_t first)
{
    for (uint32_t i = first; i < a->layers; i++)
        a->sw.layer[i] |= FM_LAYER_SPARSE;
}

/* The number of experts and how many of them a row gets. */
static fm_status take_counts(fm_arch *a, const fm_json *c, const char *count, const char *chosen,
                             int64_t counts, int64_t choices, const char *what)
{
    fm_switches *s = &a->sw;
    FM_TRY(fmi_take_u32(&s->experts, c, count, counts, 1, FM_MAX_EXPERTS, what));
    FM_TRY(fmi_take_u32(&s->chosen, c, chosen, choices, 1, 64, what));
    if (s->chosen > s->experts)
        return fm_fail(FM_EINVAL, "%s: %s is %u of %u experts", what, chosen, s->chosen,
                       s->experts);
    if (s->experts * a->layers > FM_MAX_EXPERT_PARTS)
        return fm_fail(FM_ELIMIT, "%s: %u experts in each of %u layers, at most %u together", what,
                       s->experts, a->layers, FM_MAX_EXPERT_PARTS);
    return FM_OK;
}

/* Several shared experts are one, as wide as all of them. */
static fm_status take_shared(fm_arch *a, const fm_json *c, const char *key, int64_t dflt,
                             const char *what)
{
    uint32_t count = 0;
    FM_TRY(fmi_take_u32(&count, c, key, dflt, 0, 64, what));
    a->sw.shared_expert = a->sw.shared_plain = count > 0;
    a->sw.shared_inter = count * a->sw.expert_inter;
    return FM_OK;
}

static fm_status take_groups(fm_arch *a, const fm_json *c, uint32_t count, uint32_t keep,
                             const char *what)
{
    fm_switches *s = &a->sw;
    uint32_t groups = 1, kept = 1;
    FM_TRY(fmi_take_u32(&groups, c, "n_group", count, 1, FM_MAX_EXPERTS, what));
    FM_TRY(fmi_take_u32(&kept, c, "topk_group", keep, 1, FM_MAX_EXPERTS, what));
    if (s->experts % groups != 0 || kept > groups || s->chosen > kept * (s->experts / groups) ||
        (groups > 1 && s->experts / groups < 2 && !s->router_groups_best))
        return fm_fail(FM_EINVAL,
                       "%s: %u experts in n_group %u, of which topk_group %u are kept, cannot give "
                       "%u experts",
                       what, s->experts, groups, kept, s->chosen);
    if (groups > 1) {
        s->router_groups = groups;
        s->router_groups_kept = kept;
    }
    return FM_OK;
}

/* Values where the config has none; -1: required. */
typedef struct deep_defaults {
    uint64_t has;
    int64_t experts, chosen, shared, inter, dense;
    uint32_t groups, kept;
    bool renormalise;
    double scale;
} deep_defaults;

static const deep_defaults deep[] = {
    {F_GLM_EXPERTS, 128, 8, 1, 1408, 1, 1, 1, true, 1.0},
    {F_DEEPSEEK_2, 64, -1, 2, 1407, 0, 1, 1, false, 1.0},
    {F_DEEPSEEK_3, 256, 8, 1, 2048, 3, 8, 4, true, 2.5},
    {F_DEEP_EXPERTS, -1, -1, -1, 1408, 0, 1, 1, false, 1.0},
};

/* DeepSeek-V2 has groups where topk_method says so; in transformers it never renormalises. */
static fm_status deepseek_2(fm_arch *a, const fm_json *c, const char *what)
{
    const char *method = fm_json_cstr(fm_json_get(c, "topk_method"), "greedy");
    bool groups = strcmp(method, "group_limited_greedy") == 0;
    if (!groups && strcmp(method, "greedy") != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: topk_method '%.40s' is not supported; greedy and group_limited_greedy "
                       "are",
                       what, method);
    if (a->sw.renormalise)
        return fm_fail(FM_EUNSUPPORTED, "%s: norm_topk_prob is not supported for deepseek_v2",
                       what);
    a->sw.router_groups_best = groups;
    return groups ? take_groups(a, c, 1, 1, what) : FM_OK;
}

/* DeepSeek-V3's settings: shares are sigmoids, a bias and groups steer the choice. */
static fm_status deep_experts(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_switches *s = &a->sw;
    const deep_defaults *d = deep;
    uint32_t dense = 0;
    while (!(f->has & d->has))
        d++;
    double scale = d->scale;
    FM_TRY(
        take_counts(a, c, "n_routed_experts", "num_experts_per_tok", d->experts, d->chosen, what));
    FM_TRY(fmi_take_u32(&s->expert_inter, c, "moe_intermediate_size", d->inter, 1, 1 << 20, what));
    FM_TRY(take_shared(a, c, "n_shared_experts", d->shared, what));
    FM_TRY(fmi_take_bool(&s->renormalise, c, "norm_topk_prob", d->renormalise, what));
    FM_TRY(f->has & F_DEEPSEEK_2 ? deepseek_2(a, c, what)
                                 : take_groups(a, c, d->groups, d->kept, what));
    FM_TRY(fmi_take_positive(&scale, c, "routed_scaling_factor", d->scale, what));
    FM_TRY(fmi_take_u32(&dense, c, "first_k_dense_replace", d->dense, 0, 1 << 20, what));
    s->router_scale = scale != 1.0 ? (float)scale : 0.0f;
    s->router_least = s->renormalise ? 1e-20 : 0.0;
    sparse_from(a, dense);
    return FM_OK;
}

/* ERNIE 4.5: shares of a softmax, and a bias that steers the choice. */
static fm_status ernie_experts(fm_arch *a, const fm_json *c, const char *what)
{
    uint32_t start = 0, end = a->layers - 1, step = 0;
    bool bias = false;
    FM_TRY(take_counts(a, c, "moe_num_experts", "moe_k", 64, 6, what));
    FM_TRY(fmi_take_u32(&a->sw.expert_inter, c, "moe_intermediate_size", 1536, 1, 1 << 20, what));
    FM_TRY(take_shared(a, c, "moe_num_shared_experts", 2, what));
    FM_TRY(fmi_take_u32(&start, c, "moe_layer_start_index", 1, 0, 1 << 20, what));
    FM_TRY(fmi_take_u32(&step, c, "moe_layer_interval", 1, 1, 1 << 20, what));
    if (fm_json_int(fm_json_get(c, "moe_layer_end_index"), -1) != -1)
        FM_TRY(fmi_take_u32(&end, c, "moe_layer_end_index", -1, 0, 1 << 20, what));
    FM_TRY(fmi_take_positive(&a->sw.router_least, c, "moe_norm_min", 1e-12, what));
    FM_TRY(fmi_take_bool(&bias, c, "use_bias", false, what));
    if (bias)
        return fm_fail(FM_EUNSUPPORTED, "%s: use_bias of a model with experts is not supported",
                       what);
    for (uint32_t i = start; i <= end && i < a->layers; i++)
        if ((i + 1) % step == 0)
            a->sw.layer[i] |= FM_LAYER_SPARSE;
    return FM_OK;
}

/* Nemotron-H's: as DeepSeek-V3's, without gates, in a width of their own where it has one. */
static fm_status one_block_experts(fm_arch *a, const fm_json *c, const char *what)
{
    fm_switches *s = &a->sw;
    double scale = 1;
    uint32_t shared = 1;
    bool any = false;
    for (uint32_t i = 0; i < a->layers; i++)
        any = any || (s->layer[i] & FM_LAYER_SPARSE);
    s->router_sigmoid = s->router_bias = s->shared_expert = s->shared_plain = any;
    if (!any)
        return FM_OK;
    FM_TRY(take_counts(a, c, "n_routed_experts", "num_experts_per_tok", 8, 2, what));
    FM_TRY(fmi_take_u32(&s->expert_inter, c, "moe_intermediate_size", 7688, 1, 1 << 20, what));
    FM_TRY(fmi_take_u32(&s->shared_inter, c, "moe_shared_expert_intermediate_size", 7688, 1,
                        1 << 20, what));
    if (!fmi_absent(fm_json_get(c, "moe_latent_size")))
        FM_TRY(fmi_take_u32(&s->expert_in, c, "moe_latent_size", -1, 1, 1 << 20, what));
    FM_TRY(fmi_take_u32(&shared, c, "n_shared_experts", 1, 0, 64, what));
    FM_TRY(fmi_take_bool(&s->renormalise, c, "norm_topk_prob", true, what));
    FM_TRY(take_groups(a, c, 1, 1, what));
    FM_TRY(fmi_take_positive(&scale, c, "routed_scaling_factor", 1, what));
    s->router_scale = scale != 1.0 ? (float)scale : 0.0f;
    s->router_least = s->renormalise ? 1e-20 : 0.0;
    if (shared != 1 || a->mlp_bias)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: n_shared_experts %u or mlp_bias with experts is not "
                       "supported; 1 without biases is",
                       what, shared);
    return FM_OK;
}

/* LFM2's: shares are sigmoids, a bias may steer the choice, and the first layers have none. */
static fm_status lfm2_experts(fm_arch *a, const fm_json *c, const char *what)
{
    fm_switches *s = &a->sw;
    uint32_t dense = 0;
    double scale = 1;
    FM_TRY(take_counts(a, c, "num_experts", "num_experts_per_tok", 32, 4, what));
    FM_TRY(fmi_take_u32(&s->expert_inter, c, "moe_intermediate_size", 1792, 1, 1 << 20, what));
    FM_TRY(fmi_take_u32(&dense, c, "num_dense_layers", 2, 0, 1 << 20, what));
    FM_TRY(fmi_take_bool(&s->router_bias, c, "use_expert_bias", true, what));
    FM_TRY(fmi_take_bool(&s->renormalise, c, "norm_topk_prob", true, what));
    FM_TRY(fmi_take_positive(&scale, c, "routed_scaling_factor", scale, what));
    s->router_sigmoid = true;
    s->router_more = s->renormalise ? 1e-6 : 0.0;
    s->router_scale = scale != 1.0 ? (float)scale : 0.0f;
    sparse_from(a, dense);
    return FM_OK;
}

/* Qwen's and Mixtral's settings. */
static fm_status plain_experts(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_switches *s = &a->sw;
    bool old = !fmi_absent(fm_json_get(c, "num_experts")); /* transformers 4 */
    FM_TRY(take_counts(a, c, old ? "num_experts" : "num_local_experts", "num_experts_per_tok",
                       f->experts ? (int64_t)f->experts : -1, f->chosen ? (int64_t)f->chosen : -1,
                       what));
    s->expert_inter = a->inter;
    FM_TRY(fmi_take_bool(&s->renormalise, c, "norm_topk_prob", s->renormalise, what));
    if (f->has & F_PHIMOE) {
        double jitter = 0.01;
        FM_TRY(fmi_take_bool(&a->head_bias, c, "lm_head_bias", false, what));
        FM_TRY(fmi_take_positive(&jitter, c, "router_jitter_noise", jitter, what));
        s->router_jitter = (float)jitter;
        if (s->chosen != 2 || s->experts < 2)
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: %s chooses 2 experts for a token; num_experts_per_tok is %u", what,
                           f->name, s->chosen);
    }
    if (!(f->has & F_QWEN_EXPERTS)) {
        sparse_from(a, 0);
        if (f->has & F_SHARED_SIZE)
            FM_TRY(
                fmi_take_u32(&s->shared_inter, c, "shared_intermediate_size", 0, 0, 1 << 20, what));
        s->shared_expert = s->shared_plain = s->shared_inter > 0;
        return FM_OK;
    }
    FM_TRY(fmi_take_u32(&s->expert_inter, c, "moe_intermediate_size", -1, 1, 1 << 20, what));
    if (s->shared_expert)
        FM_TRY(fmi_take_u32(&s->shared_inter, c, "shared_expert_intermediate_size", -1, 1, 1 << 20,
                            what));
    return sparse_layers(a, c, what);
}

/* Llama 4's: the layers of moe_layers have experts, which read the row times the sigmoid of its
 * score, and every row goes through a shared one of their size. */
static fm_status llama4_experts(fm_arch *a, const fm_json *c, const char *what)
{
    const fm_json *list = fm_json_get(c, "moe_layers");
    uint32_t step = 1;
    FM_TRY(take_counts(a, c, "num_local_experts", "num_experts_per_tok", 16, 1, what));
    FM_TRY(fmi_take_u32(&a->sw.expert_inter, c, "intermediate_size", 8192, 1, 1 << 20, what));
    FM_TRY(fmi_take_u32(&step, c, "interleave_moe_layer_step", 1, 1, 1 << 20, what));
    a->sw.shared_inter = a->sw.expert_inter;
    for (uint32_t i = step - 1; fmi_absent(list) && i < a->layers; i += step)
        a->sw.layer[i] |= FM_LAYER_SPARSE;
    if (fmi_absent(list))
        return FM_OK;
    if (!fm_json_is(list, FM_JSON_ARRAY) || fm_json_count(list) > FM_MAX_LAYERS)
        return fm_fail(FM_EINVAL, "%s: moe_layers must be a list of layers", what);
    for (size_t i = 0; i < fm_json_count(list); i++) {
        int64_t l = fm_json_int(fm_json_at(list, i), -1);
        if (l < 0)
            return fm_fail(FM_EINVAL, "%s: moe_layers must be a list of layers", what);
        if (l < a->layers)
            a->sw.layer[l] |= FM_LAYER_SPARSE;
    }
    return FM_OK;
}

/* Granite 4's: without experts the shared one is the feed-forward branch. */
static fm_status may_experts(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_switches *s = &a->sw;
    uint32_t experts = 0, shared = 0;
    FM_TRY(fmi_take_u32(&experts, c, "num_local_experts", f->experts, 0, FM_MAX_EXPERTS, what));
    FM_TRY(fmi_take_u32(&shared, c, "shared_intermediate_size", 1024, 1, 1 << 20, what));
    if (experts > 0) {
        FM_TRY(plain_experts(a, f, c, what));
        s->shared_expert = s->shared_plain = true;
        s->shared_inter = shared;
        return FM_OK;
    }
    a->inter = shared;
    s->renormalise = false;
    return FM_OK;
}

/* Gemma 4's: where they are, every layer has them beside its feed-forward branch. */
static fm_status gemma4_experts(fm_arch *a, const fm_json *c, const char *what)
{
    fm_switches *s = &a->sw;
    FM_TRY(fmi_take_bool(&s->mlp_too, c, "enable_moe_block", false, what));
    if (!s->mlp_too)
        return FM_OK;
    FM_TRY(take_counts(a, c, "num_experts", "top_k_experts", -1, -1, what));
    FM_TRY(fmi_take_u32(&s->expert_inter, c, "moe_intermediate_size", -1, 1, 1 << 20, what));
    s->renormalise = true;
    sparse_from(a, 0);
    return FM_OK;
}

fm_status fmi_read_experts(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    if (f->more & M_GEMMA4)
        return gemma4_experts(a, c, what);
    if (f->has & F_DEEP_EXPERTS)
        return deep_experts(a, f, c, what);
    if (f->has & F_ONE_BLOCK)
        return one_block_experts(a, c, what);
    if (f->has & F_LFM2_MOE)
        return lfm2_experts(a, c, what);
    if (f->has & F_ERNIE_EXPERTS)
        return ernie_experts(a, c, what);
    if (f->has & F_LLAMA_4)
        return llama4_experts(a, c, what);
    if (f->has & F_MAY_EXPERTS)
        return may_experts(a, f, c, what);
    return f->has & (F_QWEN_EXPERTS | F_MIXTRAL_EXPERTS) ? plain_experts(a, f, c, what) : FM_OK;
}
