/* gemma.c - settings of Gemma 4: full layers have heads of other sizes than those that slide, the
 * last layers share keys and values, and each layer has embeddings of its own. */
#include "infer/arch/table.h"

#include <string.h>

/* Takes the sizes that every entry of per_layer_config must have. */
static fm_status sizes_of_layers(fm_arch *a, const fm_json *by, uint32_t *hd, uint32_t *kv,
                                 const char *what)
{
    bool first = true;
    *hd = a->head_dim;
    *kv = a->kv_heads;
    if (!fm_json_is(by, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: per_layer_config must be an object", what);
    for (void *it = fm_json_iter(by); it; it = fm_json_next(by, it), first = false) {
        const fm_json *one = fm_json_iter_value(it);
        uint32_t own_hd = 0, own_kv = 0;
        for (void *at = fm_json_is(one, FM_JSON_OBJECT) ? fm_json_iter(one) : NULL; at;
             at = fm_json_next(one, at))
            if (strcmp(fm_json_iter_key(at), "head_dim") != 0 &&
                strcmp(fm_json_iter_key(at), "num_key_value_heads") != 0)
                return fm_fail(FM_EUNSUPPORTED, "%s: per_layer_config: '%s' is not understood",
                               what, fm_json_iter_key(at));
        FM_TRY(fmi_take_u32(&own_hd, one, "head_dim", a->head_dim, 2, FM_MAX_HEAD_DIM, what));
        FM_TRY(fmi_take_u32(&own_kv, one, "num_key_value_heads", a->kv_heads, 1, 4096, what));
        if (!first && (own_hd != *hd || own_kv != *kv))
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: per_layer_config with several sizes of heads is not supported",
                           what);
        *hd = own_hd;
        *kv = own_kv;
    }
    return FM_OK;
}

/* Reads the sizes of full layers' heads. */
static fm_status read_heads(fm_arch *a, const fm_json *c, const char *what)
{
    fm_switches *s = &a->sw;
    const fm_json *by = fm_json_get(c, "per_layer_config");
    uint32_t hd = 0, kv = a->kv_heads;
    FM_TRY(fmi_take_bool(&s->full_k_is_v, c, "attention_k_eq_v", false, what));
    if (!fmi_absent(by)) {
        FM_TRY(sizes_of_layers(a, by, &hd, &kv, what));
    } else {
        FM_TRY(fmi_take_u32(&hd, c, "global_head_dim", 512, 2, FM_MAX_HEAD_DIM, what));
        if (s->full_k_is_v)
            FM_TRY(fmi_take_u32(&kv, c, "num_global_key_value_heads", kv, 1, 4096, what));
    }
    if (hd % 2 != 0 || a->head_dim % 2 != 0)
        return fm_fail(FM_EINVAL, "%s: rotary positions need heads of an even size", what);
    if (a->heads % kv != 0)
        return fm_fail(FM_EINVAL, "%s: %u attention heads cannot share %u key/value heads", what,
                       a->heads, kv);
    s->full_head_dim = hd != a->head_dim ? hd : 0;
    s->full_kv_heads = kv != a->kv_heads ? kv : 0;
    return FM_OK;
}

fm_status fmi_read_gemma4(fm_arch *a, const fm_json *c, const char *what)
{
    fm_switches *s = &a->sw;
    const fm_json *both = fm_json_get(c, "use_bidirectional_attention");
    /* "vision": only rows of pictures see what follows them. */
    if (!fmi_absent(both) && strcmp(fm_json_cstr(both, ""), "vision") != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: use_bidirectional_attention other than null and \"vision\" is not "
                       "supported",
                       what);
    FM_TRY(read_heads(a, c, what));
    FM_TRY(fmi_take_u32(&s->per_layer, c, "hidden_size_per_layer_input", 256, 0, 65536, what));
    if (s->per_layer)
        FM_TRY(fmi_take_u32(&s->per_layer_vocab, c, "vocab_size_per_layer_input", 262144, 1,
                            FM_MAX_VOCAB, what));
    if (s->per_layer && s->per_layer_vocab < a->vocab)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: vocab_size_per_layer_input (%u) below vocab_size (%u) is not supported",
                       what, s->per_layer_vocab, a->vocab);
    s->attn_scale = 1.0f;
    return FM_OK;
}

/* The layer that a key of per_layer_config names, which may begin with zeros; layers: none. */
static uint32_t layer_of_key(const fm_arch *a, const char *key)
{
    uint32_t l = 0;
    if (!*key)
        return a->layers;
    for (; *key; key++) {
        if (*key < '0' || *key > '9' || l >= a->layers)
            return a->layers;
        l = 10 * l + (uint32_t)(*key - '0');
    }
    return FM_MIN(l, a->layers);
}

/* Checks that per_layer_config has the full layers and no others. */
static fm_status check_entries(const fm_arch *a, const fm_json *by, const char *what)
{
    bool differs = a->sw.full_head_dim || a->sw.full_kv_heads, seen[FM_MAX_LAYERS] = {false};
    if (fmi_absent(by))
        return FM_OK;
    for (void *it = fm_json_iter(by); it; it = fm_json_next(by, it)) {
        uint32_t l = layer_of_key(a, fm_json_iter_key(it));
        if (l == a->layers || seen[l])
            return fm_fail(FM_EINVAL, "%s: per_layer_config: '%.20s' is no layer of its own", what,
                           fm_json_iter_key(it));
        seen[l] = true;
    }
    for (uint32_t l = 0; differs && l < a->layers; l++)
        if (seen[l] != fm_layer_is_full(&a->sw, l))
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: per_layer_config for other layers than those of full attention is "
                           "not supported (layer %u)",
                           what, l);
    return FM_OK;
}

fm_status fmi_read_gemma4_layers(fm_arch *a, const fm_json *c, const char *what)
{
    fm_switches *s = &a->sw;
    s->layer[a->layers - 1] &= (uint8_t)~FM_LAYER_SLIDES; /* whatever layer_types says */
    FM_TRY(check_entries(a, fm_json_get(c, "per_layer_config"), what));
    FM_TRY(fmi_take_u32(&s->kv_shared, c, "num_kv_shared_layers", 0, 0, a->layers - 1, what));
    FM_TRY(fmi_take_bool(&s->wide_shared, c, "use_double_wide_mlp", false, what));
    s->wide_shared = s->wide_shared && s->kv_shared;
    uint32_t first = a->layers - s->kv_shared;
    for (uint32_t l = first; l < a->layers; l++) {
        uint32_t k = first;
        while (k > 0 && fm_layer_is_full(s, k - 1) != fm_layer_is_full(s, l))
            k--;
        if (k == 0)
            return fm_fail(FM_EINVAL,
                           "%s: num_kv_shared_layers is %u, and layer %u has no layer of its kind "
                           "before these",
                           what, s->kv_shared, l);
        s->layer[l] |= FM_LAYER_SHARES_KV;
    }
    return FM_OK;
}
