/* train_kit.h - what the training tests share: jobs on reference models and comparisons by name. */
#ifndef FM_TESTS_MODEL_TRAIN_KIT_H
#define FM_TESTS_MODEL_TRAIN_KIT_H

#include "tests/model/infer_kit.h"
#include "train/train.h"

/* The reference's name of a result's tensor: PEFT's own parameters carry ".default" there. */
static inline void kit_ref_name(char *out, size_t room, const char *prefix, const char *name)
{
    size_t n = strlen(name);
    bool weight = n > 7 && strcmp(name + n - 7, ".weight") == 0;
    int head = (int)(weight ? n - 7 : n);

    if (strcmp(name, "prompt_embeddings") == 0)
        (void)snprintf(out, room, "%sprompt_encoder.default.embedding.weight", prefix);
    else if (strstr(name, ".ia3_l"))
        (void)snprintf(out, room, "%s%s.default", prefix, name);
    else if (strstr(name, ".lora_")) /* ...lora_A.weight -> ...lora_A.default.weight */
        (void)snprintf(out, room, "%s%.*s.default.weight", prefix, head, name);
    else if (strncmp(name, "base_model.model.", 17) == 0)
        (void)snprintf(out, room, "%s%.*s.modules_to_save.default.weight", prefix, head, name);
    else
        (void)snprintf(out, room, "%s%s", prefix, name);
}

/* transformers 5 keeps Mixtral's experts as one tensor: the reference of `name`, a tensor of n
 * floats. gate_up_proj holds w1 over w3 of each expert. */
static inline float *kit_ref_expert(const ik_ref *ref, const char *prefix, const char *name,
                                    size_t n)
{
    char path[400];
    const char *moe = strstr(name, ".block_sparse_moe.");
    const char *expert = moe ? strstr(moe, ".experts.") : NULL;

    if (!moe)
        return NULL;
    if (!expert) { /* the router */
        (void)snprintf(path, sizeof(path), "%s%.*s.mlp%s", prefix, (int)(moe - name), name,
                       moe + strlen(".block_sparse_moe"));
        return ik_ref_get(ref, path, NULL);
    }
    size_t number = (size_t)(expert[strlen(".experts.")] - '0'),
           which = (size_t)(strstr(expert, ".w")[2] - '1');
    (void)snprintf(path, sizeof(path), "%s%.*s.mlp.experts.%s", prefix, (int)(moe - name), name,
                   which == 1 ? "down_proj" : "gate_up_proj");
    float *all = ik_ref_get(ref, path, NULL), *one;
    one = fm_memdup(all + (which == 1 ? number : 2 * number + which / 2) * n, n * sizeof(float));
    assert_non_null(one);
    fm_free(all);
    return one;
}

/* Where the first gradient is rounding noise, so is AdamW's step, which divides it by itself: such
 * elements (below 1e-6 of the tensor's largest) are the same in neither of two correct programs. */
static inline size_t kit_drop_noise(float *have, const float *want, const float *grad, size_t n)
{
    float largest = 0.0f;
    size_t dropped = 0;

    for (size_t i = 0; i < n; i++) {
        float g = grad[i] < 0 ? -grad[i] : grad[i];
        largest = g > largest ? g : largest;
    }
    for (size_t i = 0; i < n; i++) {
        float g = grad[i] < 0 ? -grad[i] : grad[i];
        if (g >= 1e-6f * largest ||
            !(g > 0.0f)) /* none at all: rows of tokens that are not there */
            continue;
        have[i] = want[i];
        dropped++;
    }
    return dropped;
}

static inline bool kit_ref_has(const ik_ref *ref, const char *name)
{
    fm_buf path;

    fm_buf_init(&path, 0);
    tk_ok(fm_tensor_path(&path, "tensors", name));
    bool has = fm_tree_find(fm_source_tree(ref->src), fm_buf_cstr(&path)) != NULL;
    fm_buf_release(&path);
    return has;
}

/* References of our own carry the keys of adapter files. */
static inline void kit_ref_find(char *out, size_t room, const ik_ref *ref, const char *prefix,
                                const char *name)
{
    (void)snprintf(out, room, "%s%s", prefix, name);
    if (!kit_ref_has(ref, out))
        kit_ref_name(out, room, prefix, name);
}

/* Every tensor against reference `<prefix><name>`, norm-wise. Returns the worst. noise: elements of
 * which the reference's gradient is noise are left out (at most one in a hundred). */
/* What an adapter stores without training it. */
static inline bool kit_fixed(const char *name)
{
    static const char *const names[] = {"vera_A", "vera_B", "randlora_A", "randlora_B",
                                        "shira_indices"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        if (strstr(name, names[i]))
            return true;
    return false;
}

static inline double kit_compare(const fm_train_result *r, const ik_ref *ref, const char *prefix,
                                 double limit, bool noise)
{
    double worst = 0.0;

    assert_true(r->count > 0);
    for (size_t i = 0; i < r->count; i++) {
        char name[400];
        size_t n = 0;
        if (kit_fixed(r->tensors[i].name))
            continue;
        kit_ref_find(name, sizeof(name), ref, prefix, r->tensors[i].name);
        n = (size_t)r->tensors[i].bytes / sizeof(float);
        float *want = kit_ref_has(ref, name) ? ik_ref_get(ref, name, &n)
                                             : kit_ref_expert(ref, prefix, r->tensors[i].name, n);
        assert_non_null(want);
        assert_int_equal(n * sizeof(float), r->tensors[i].bytes);
        float *have = fm_memdup(r->tensors[i].data, (size_t)r->tensors[i].bytes);
        if (noise) {
            kit_ref_find(name, sizeof(name), ref, "grad.", r->tensors[i].name);
            float *grad = ik_ref_get(ref, name, NULL);
            /* a bias of GPT-2's keys moves all scores of a row alike: it has no gradient at all */
            bool keys = strstr(r->tensors[i].name, "c_attn") && strstr(name, ".bias");
            double most = 1.0 + (double)n / (keys ? 3.0 : 100.0);
            tk_assert_le((double)kit_drop_noise(have, want, grad, n), most,
                         "elements with a gradient of noise");
            fm_free(grad);
        }
        double diff = tk_rel_norm(have, want, n);
        tk_assert_le(diff, limit, name);
        worst = diff > worst ? diff : worst;
        fm_free(have);
        fm_free(want);
    }
    return worst;
}

/* The references repeat one batch. */
static inline int32_t *kit_repeat(const int32_t *one, size_t n, size_t times)
{
    int32_t *all = fm_malloc(n * times * sizeof(int32_t));

    assert_non_null(all);
    for (size_t i = 0; i < times; i++)
        memcpy(all + i * n, one, n * sizeof(int32_t));
    return all;
}

static inline void kit_same_bits(const fm_train_result *a, const fm_train_result *b)
{
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        assert_string_equal(a->tensors[i].name, b->tensors[i].name);
        assert_int_equal(a->tensors[i].bytes, b->tensors[i].bytes);
        if (memcmp(a->tensors[i].data, b->tensors[i].data, (size_t)a->tensors[i].bytes) != 0)
            fail_msg("%s differs", a->tensors[i].name);
    }
}

static inline double kit_log(const fm_train_result *r, size_t step, const char *key)
{
    return fm_json_real(fm_json_get(fm_json_at(r->log, step), key), -1.0);
}

#endif
