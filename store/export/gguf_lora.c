/* gguf_lora.c - a version's LoRA adapters as llama.cpp's adapter files, a GGUF for each.
 *
 * Such a file has the factors under the base tensor's name and one alpha: llama.cpp adds
 * alpha / rank * (B A), with the rank of each B. So ranks may differ, and rsLoRA's scale is an
 * alpha of its own. An adapter that says more is refused by name, and so is one on a tensor that
 * the base's GGUF does not have. */
#include "store/export/gguf_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What goes into one file: the view's weights [begin, end). */
typedef struct part {
    size_t begin, end;
    double alpha;
    const char *first; /* the factor that alpha is of */
} part;

typedef struct writing {
    fm_view *v;
    ggw_model model;
    const adp_place *place; /* of the adapter that is read or written */
    fm_json *config;        /* its own */
    part *part;             /* its own */
} writing;

static fm_status refuse(const writing *w, const char *name, const char *why)
{
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: '%s' %s; export with --format gguf, which merges, or --format peft",
                   w->place->dir, name, why);
}

/* ---- one factor ---- */

/* The file has one alpha for all modules. */
static fm_status check_alpha(const writing *w, const fm_entry *e, const fm_lora_spec *spec)
{
    part *p = w->part;

    if (!p->first) {
        p->first = e->name;
        p->alpha = spec->alpha;
    }
    if ((float)spec->alpha == 0 || !isfinite((float)spec->alpha))
        return refuse(w, e->name, "has an alpha that a GGUF LoRA cannot say");
    if ((float)spec->alpha != (float)p->alpha)
        return fm_fail(
            FM_EUNSUPPORTED,
            "%s: '%s' is scaled by alpha %g, '%s' by %g (alpha_pattern, or rank_pattern "
            "with use_rslora), and a GGUF LoRA has one alpha; export with --format gguf, "
            "which merges, or --format peft",
            w->place->dir, e->name, spec->alpha, p->first, p->alpha);
    return FM_OK;
}

static fm_status check_fit(const writing *w, const fm_entry *e, const fm_entry *base, bool is_a,
                           uint32_t r)
{
    const fm_shape *s = &base->shape;

    if (!fm_dtype_get(e->dtype)->is_float)
        return refuse(w, e->name, "is of a type that is no float");
    if (s->rank != 2 || e->shape.rank != 2 || e->shape.dim[is_a ? 0 : 1] != r ||
        e->shape.dim[is_a ? 1 : 0] != s->dim[is_a ? 1 : 0])
        return fm_fail(FM_EBASE, "%s: '%s' does not fit '%s'", w->place->dir, e->name, base->name);
    return FM_OK;
}

/* Adds the factor to the view's weights, under its name in the file. */
static fm_status add_factor(const writing *w, const fm_entry *e, const adp_key *key)
{
    const bool is_a = key->role == ADP_LORA_A;
    char weight[FM_MAX_NAME_BYTES + 16];
    const fm_entry *base = NULL;
    fm_lora_spec spec;
    gguf_part named = {NULL, 0};
    fm_buf name;

    (void)snprintf(weight, sizeof weight, "%s.weight", key->module);
    FM_TRY(adp_check_pair(w->v->tree, e));
    FM_TRY(fm_lora_spec_of(&spec, w->config, key->module));
    FM_TRY(check_alpha(w, e, &spec));
    FM_TRY(adp_base_tensor(&base, w->v->tree, weight));
    if (!base)
        return fm_fail(FM_EBASE, "%s: '%s': the model has no '%s'", w->place->dir, e->name, weight);
    FM_TRY(check_fit(w, e, base, is_a, spec.r));
    if (strcmp(weight, "lm_head.weight") == 0 && ggw_is_tied(&w->model))
        return refuse(w, e->name, "is on a head that the base's GGUF shares with its embedding");
    fm_buf_init(&name, 0);
    fm_status rc = gguf_name_of(&name, &named, w->model.arch, weight)
                       ? FM_OK
                       : refuse(w, e->name, "has no name in a GGUF");
    if (rc == FM_OK && named.expert != GGUF_NO_EXPERT)
        rc = refuse(w, e->name, "is on one expert, and a GGUF has all of them in one tensor");
    fm_buf_str(&name, is_a ? ".lora_a" : ".lora_b");
    FM_THEN(rc, fm_buf_ok(&name));
    FM_THEN(rc, exp_plan_add(&w->v->plan, fm_buf_cstr(&name), e));
    if (rc == FM_OK) {
        exp_weight *one = &w->v->plan.weight[w->v->plan.count - 1];
        uint64_t heads = 0;
        if (!is_a)
            one->order = ggw_order_of(&w->model, named.stem, &heads);
        rc = ggw_check_rows(&w->model, one, heads);
    }
    fm_buf_release(&name);
    return rc;
}

/* ---- one adapter ---- */

static fm_status check_config(const writing *w)
{
    if (strcmp(w->place->kind, "lora") != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: a GGUF LoRA cannot hold an adapter of kind '%s'; export with --format "
                       "peft",
                       w->place->dir, w->place->kind);
    FM_TRY(fm_adapter_config_check(w->config, w->place->kind, w->place->dir));
    return fm_json_bool(fm_json_get(w->config, "fan_in_fan_out"), false)
               ? refuse(w, "fan_in_fan_out", "is set, which a GGUF LoRA cannot say")
               : FM_OK;
}

static fm_status find_factors(const writing *w)
{
    char prefix[96];
    size_t begin, end;

    (void)snprintf(prefix, sizeof prefix, "%s/tensors/", w->place->dir);
    fm_tree_range(w->v->tree, prefix, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(w->v->tree, i);
        adp_key key;
        FM_TRY(fm_entry_check_name(e));
        adp_parse_key(&key, e->name);
        if (e->kind != FM_ENTRY_TENSOR || (key.role != ADP_LORA_A && key.role != ADP_LORA_B))
            return refuse(w, e->name, "is no factor of a LoRA, and a GGUF LoRA holds nothing else");
        FM_TRY(add_factor(w, e, &key));
    }
    return begin < end ? FM_OK : fm_fail(FM_ECORRUPT, "%s holds no tensors", w->place->dir);
}

/* Finds an adapter's factors, and its alpha. */
static fm_status read_adapter(writing *w)
{
    w->part->begin = w->v->plan.count;
    fm_status rc = adp_config(&w->config, w->v->tree, w->v->p, w->place);
    FM_THEN(rc, check_config(w));
    FM_THEN(rc, find_factors(w));
    w->part->end = w->v->plan.count;
    fm_json_free(w->config);
    w->config = NULL;
    return rc;
}

/* ---- its file ---- */

static fm_status put_info(fm_buf *out, const exp_weight *one, uint64_t *at)
{
    const fm_shape *shape = &one->base->shape;
    const ggw_place p = {one->name, *shape, shape->rank, 1, one->dtype, one->bytes};
    return ggw_info(out, &p, at);
}

static fm_status add_head(const writing *w)
{
    const exp_weight *weight = w->v->plan.weight;
    ggw_fields f = {.count = 0};
    uint64_t at = 0;
    fm_buf out;

    fm_buf_init(&f.bytes, 0);
    ggw_general(&f, &w->model, "adapter");
    ggw_str(&f, "adapter.type", fm_span_str("lora"));
    ggw_f32(&f, "adapter.lora.alpha", w->part->alpha);
    ggw_u32(&f, "general.quantization_version", GGW_QUANT_VERSION);
    fm_status rc = fm_buf_ok(&f.bytes);
    ggw_begin(&out, w->part->end - w->part->begin, &f);
    for (size_t i = w->part->begin; rc == FM_OK && i < w->part->end; i++)
        rc = put_info(&out, &weight[i], &at);
    ggw_pad(&out);
    FM_THEN(rc, exp_add_text(w->v, &out));
    fm_buf_release(&out);
    fm_buf_release(&f.bytes);
    return rc;
}

static fm_status add_file(const writing *w)
{
    const exp_weight *weight = w->v->plan.weight;
    char name[96];

    (void)snprintf(name, sizeof name, "%s.gguf", fm_path_base(w->place->dir));
    FM_TRY(exp_add_file(w->v, name));
    FM_TRY(add_head(w));
    for (size_t i = w->part->begin; i < w->part->end; i++) {
        FM_TRY(exp_add_weight(w->v, &weight[i]));
        FM_TRY(exp_add_zeros(w->v, ggw_padded(weight[i].bytes) - weight[i].bytes));
    }
    return FM_OK;
}

fm_status exp_gguf_lora(fm_view *v, fm_dtype dtype)
{
    writing w = {.v = v};
    adp_place *place = NULL;
    part *parts = NULL;
    fm_json *model = NULL;
    size_t count = 0;
    fm_status rc = adp_list(&place, &count, v->tree);

    if (rc == FM_OK && count == 0)
        rc =
            fm_fail(FM_EUNSUPPORTED, "this version holds no adapter; export it with --format gguf");
    FM_THEN(rc, exp_model_json(&model, v->tree, v->p));
    FM_THEN(rc, ggw_read_model(&w.model, fm_json_get(model, "config")));
    parts = fm_calloc(count + 1, sizeof *parts);
    if (rc == FM_OK && !parts)
        rc = FM_ENOMEM;
    /* First all factors, since the files point into the list of weights. */
    for (size_t i = 0; rc == FM_OK && i < count; i++) {
        w.place = &place[i];
        w.part = &parts[i];
        rc = read_adapter(&w);
    }
    FM_THEN(rc, exp_plan_sizes(&v->plan, dtype));
    for (size_t i = 0; rc == FM_OK && i < count; i++) {
        w.place = &place[i];
        w.part = &parts[i];
        rc = add_file(&w);
    }
    v->single = count == 1;
    ggw_model_free(&w.model);
    fm_json_free(model);
    fm_free(parts);
    fm_free(place);
    return rc;
}
