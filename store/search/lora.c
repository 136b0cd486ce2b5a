/* lora.c - is the tensor the weight at its path merged with a stored adapter? */
#include <stdio.h>
#include <string.h>

#include "store/adapt/adapter_impl.h"
#include "store/base/mem.h"
#include "store/search/search_impl.h"

#define PAIRS_MAX 4u
#define FACTOR_MAX_BYTES (8u << 20)

typedef struct lora_pair {
    uint32_t a, b; /* sources */
    float scale;
    bool turned;
} lora_pair;

/* The module of "model.layers.0.mlp.up_proj.weight"; false: not a weight's name. */
static bool module_of(char *out, size_t out_bytes, const char *name)
{
    static const char suffix[] = ".weight";
    const size_t n = name ? strlen(name) : 0, m = sizeof suffix - 1;
    if (n <= m || n - m >= out_bytes || strcmp(name + n - m, suffix) != 0)
        return false;
    memcpy(out, name, n - m);
    out[n - m] = '\0';
    return true;
}

static const fm_entry *factor(const fm_tree *tree, const adp_place *place, const char *module,
                              const char *which)
{
    const fm_entry *e = NULL;
    char prefix[sizeof place->dir + 16];
    char *name = fm_asprintf("base_model.model.%s.%s.weight", module, which);
    fm_buf path;
    fm_buf_init(&path, 0);
    snprintf(prefix, sizeof prefix, "%s/tensors", place->dir);
    if (name && fm_tensor_path(&path, prefix, name) == FM_OK)
        e = fm_tree_find(tree, fm_buf_cstr(&path));
    fm_buf_release(&path);
    fm_free(name);
    return e && e->kind == FM_ENTRY_TENSOR ? e : NULL;
}

/* Opens the adapter's factors for the module. *found false: none, or an unknown config. */
static fm_status open_pair(fms_search *s, const fm_tree *tree, const adp_place *place,
                           const char *module, lora_pair *out, bool *found)
{
    const fm_entry *a = factor(tree, place, module, "lora_A");
    const fm_entry *b = factor(tree, place, module, "lora_B");
    fm_json *config = NULL;
    fm_lora_spec spec;
    if (!a || !b || adp_config(&config, tree, NULL, place) != FM_OK)
        return FM_OK;
    const bool known = fm_lora_spec_of(&spec, config, module) == FM_OK;
    out->turned = fm_json_bool(fm_json_get(config, "fan_in_fan_out"), false);
    fm_json_free(config);
    if (!known)
        return FM_OK;
    out->scale = spec.scale;
    fm_status rc = src_open(s, &a->id, &out->a);
    FM_THEN(rc, src_open(s, &b->id, &out->b));
    *found = rc == FM_OK && out->a != UINT32_MAX && out->b != UINT32_MAX;
    return rc;
}

/* ==== a window of a tree's merge ============================================================ */

typedef struct merge_inputs {
    fms_search *s;
    const fm_entry *e[3]; /* W, A, B */
    uint8_t *whole[3];    /* of the factors, which every window needs */
} merge_inputs;

static fm_status read_input(void *ctx, uint32_t k, uint64_t offset, void *dst, size_t bytes)
{
    const merge_inputs *m = ctx;
    if (!m->whole[k])
        return fm_store_read_range(m->s->env.store, &m->e[k]->id, offset, bytes, dst, 0);
    memcpy(dst, m->whole[k] + offset, bytes);
    return FM_OK;
}

static fm_status open_input(merge_inputs *m, uint32_t k, bool *usable)
{
    const fm_entry *e = m->e[k];
    FM_TRY(m->s->env.known(m->s->env.ctx, &e->id, usable));
    *usable = *usable && (k == 0 || e->bytes <= FACTOR_MAX_BYTES);
    if (!*usable || k == 0)
        return FM_OK;
    m->whole[k] = fm_malloc((size_t)e->bytes);
    if (!m->whole[k])
        return FM_ENOMEM;
    return fm_store_read(m->s->env.store, &e->id, m->whole[k], e->bytes);
}

static fm_status merge_window(merge_inputs *m, const fm_entry *e, const fms_recipe *r,
                              uint64_t offset, size_t bytes, uint8_t *dst, bool *made)
{
    fms_inputs in = {
        .child = {e->dtype, e->shape, e->bytes}, .count = 3, .ctx = m, .read = read_input};
    fm_status rc = FM_OK;
    bool usable = true;
    for (uint32_t k = 0; rc == FM_OK && usable && k < 3; k++) {
        in.input[k] = (fms_form){m->e[k]->dtype, m->e[k]->shape, m->e[k]->bytes};
        rc = open_input(m, k, &usable);
    }
    if (rc == FM_OK && usable) {
        rc = fms_recipe_check(r, &in);
        FM_THEN(rc, fms_recipe_range(r, &in, offset, bytes, dst));
        *made = rc == FM_OK;
    }
    for (uint32_t k = 0; k < 3; k++)
        fm_free(m->whole[k]);
    return rc;
}

fm_status src_lora_window(fms_search *s, const fm_tree *tree, size_t adapter, const fm_entry *e,
                          uint64_t offset, size_t bytes, uint8_t *dst, bool *there, bool *made)
{
    char module[FM_MAX_NAME_BYTES + 1];
    adp_place *place = NULL;
    size_t places = 0;
    fm_json *config = NULL;
    fm_lora_spec spec;
    merge_inputs m = {.s = s};
    uint8_t scale[4];
    uint32_t bits;
    *there = *made = false;
    if (!module_of(module, sizeof module, e->name) || adp_list(&place, &places, tree) != FM_OK)
        return FM_OK;
    *there = adapter < places;
    m.e[0] = fm_tree_find(tree, e->path);
    m.e[1] = *there ? factor(tree, &place[adapter], module, "lora_A") : NULL;
    m.e[2] = *there ? factor(tree, &place[adapter], module, "lora_B") : NULL;
    fm_status rc = FM_OK;
    if (m.e[0] && m.e[0]->kind == FM_ENTRY_TENSOR && m.e[1] && m.e[2] &&
        adp_config(&config, tree, NULL, &place[adapter]) == FM_OK &&
        fm_lora_spec_of(&spec, config, module) == FM_OK) {
        memcpy(&bits, &spec.scale, sizeof bits);
        fm_put_u32(scale, bits);
        const bool turned = fm_json_bool(fm_json_get(config, "fan_in_fan_out"), false);
        const fms_recipe r = {FMS_OP_LORA, turned ? FMS_LORA_TURNED : 0, fm_span_of(scale, 4)};
        rc = merge_window(&m, e, &r, offset, bytes, dst, made);
    }
    fm_json_free(config);
    fm_free(place);
    if (rc == FM_OK || src_passes_over(rc)) {
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

/* ==== pairs ================================================================================ */

static fm_status pairs_of(fms_search *s, const fm_tree *tree, const char *module, lora_pair *pair,
                          uint32_t *count)
{
    adp_place *place = NULL;
    size_t places = 0;
    if (adp_list(&place, &places, tree) != FM_OK)
        return FM_OK;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < places && *count < PAIRS_MAX; i++) {
        bool found = false;
        rc = open_pair(s, tree, &place[i], module, &pair[*count], &found);
        for (uint32_t k = 0; found && k < *count; k++)
            found = pair[k].a != pair[*count].a || pair[k].b != pair[*count].b;
        *count += found;
    }
    fm_free(place);
    return rc;
}

static fm_status try_pair(fms_search *s, uint32_t base, const lora_pair *p, unsigned rounding,
                          double *bits)
{
    const uint32_t source[3] = {base, p->a, p->b};
    uint8_t params[4];
    uint32_t scale;
    memcpy(&scale, &p->scale, sizeof scale);
    fm_put_u32(params, scale);
    const fms_recipe r = {FMS_OP_LORA,
                          (uint16_t)(rounding | (p->turned ? (unsigned)FMS_LORA_TURNED : 0u)),
                          fm_span_of(params, sizeof params)};
    return src_try(s, &r, source, 3, bits);
}

/* In a narrow dtype, programs differ in where they round. */
static fm_status try_roundings(fms_search *s, uint32_t base, const lora_pair *p)
{
    static const unsigned flags[] = {0, FMS_LORA_NARROW_BASE,
                                     FMS_LORA_NARROW_BASE | FMS_LORA_NARROW_FACTORS,
                                     FMS_LORA_NARROW_FACTORS};

    for (size_t f = 0; f < FM_ARRAY_LEN(flags); f++)
        for (unsigned m = FMS_LORA_F32; m <= FMS_LORA_STEPS; m++)
            if (s->best.bits >= SRC_EXACT)
                FM_TRY(try_pair(s, base, p, m | flags[f], NULL));
    return FM_OK;
}

fm_status src_lora(fms_search *s)
{
    char module[FM_MAX_NAME_BYTES + 1];
    lora_pair pair[PAIRS_MAX];
    uint32_t pairs = 0, base = 0, best = 0;
    double least = 1e9;
    const bool narrow = s->subject->form.dtype == FM_BF16 || s->subject->form.dtype == FM_F16;
    fm_status rc = FM_OK;
    if (!module_of(module, sizeof module, s->subject->name))
        return FM_OK;
    for (uint32_t t = 0; rc == FM_OK && t < s->trees && pairs < PAIRS_MAX; t++)
        rc = pairs_of(s, s->tree[t], module, pair, &pairs);
    for (uint32_t p = 0; rc == FM_OK && p < pairs; p++)
        for (uint32_t w = 0; rc == FM_OK && w < s->path_sources; w++) {
            double bits;
            rc = try_pair(s, w, &pair[p], FMS_LORA_F32, &bits);
            if (bits < least) {
                least = bits;
                base = w;
                best = p;
            }
        }
    return rc == FM_OK && least < 1e9 && narrow ? try_roundings(s, base, &pair[best]) : rc;
}
