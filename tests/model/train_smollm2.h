/* train_smollm2.h - a LoRA on SmolLM2 from PEFT's own beginning and batches, step by step against
 * what PEFT logged. */
#ifndef FM_TESTS_MODEL_TRAIN_SMOLLM2_H
#define FM_TESTS_MODEL_TRAIN_SMOLLM2_H

#include "tests/model/train_kit.h"

typedef struct smol {
    fm_source *src, *init;
    ik_ref batches, final;
    fm_json *log; /* of the reference */
    double worst_loss, worst_norm;
} smol;

static inline bool smol_open(smol *t)
{
    char *gguf = tk_smollm2_gguf();
    char *train = tk_shared("smollm2-lora/train.json");

    memset(t, 0, sizeof(*t));
    if (gguf && train) {
        tk_ok(fm_source_open(&t->src, gguf));
        t->init = ik_source("smollm2-lora/init.safetensors");
        assert_true(ik_ref_open(&t->batches, "smollm2-lora/batches.safetensors"));
        assert_true(ik_ref_open(&t->final, "smollm2-lora/adapter_model.safetensors"));
        tk_ok(fm_json_parse_file(&t->log, train, (size_t)1 << 20));
    }
    fm_free(gguf);
    fm_free(train);
    return t->src != NULL;
}

static inline void smol_close(smol *t)
{
    fm_json_free(t->log);
    fm_source_close(t->batches.src);
    fm_source_close(t->final.src);
    fm_source_close(t->init);
    fm_source_close(t->src);
}

static inline fm_train_config smol_config(void)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);

    c.r = 8;
    c.alpha = 16;
    c.lr = 2e-4;
    c.weight_decay = 0.01;
    c.clip = 0.4;
    c.schedule = FM_SCHEDULE_CONSTANT;
    c.warmup = 5;
    c.steps = 40;
    c.batch = 4;
    c.max_tokens = 160;
    return c;
}

static inline void smol_worst(double *worst, double have, double want, bool relative)
{
    double d = have > want ? have - want : want - have;

    if (relative)
        d /= want;
    if (!(d <= *worst))
        *worst = d;
}

/* Trains `steps` of the 40 (the schedule is constant, so that a shorter run takes the same
 * steps); tolerances: another order of sums gives 5e-7, a wrong beta2 8e-4. */
static inline void smol_train(smol *t, uint32_t steps, fm_train_result *r)
{
    fm_engine *e = ik_engine(0, 64);
    fm_provider p = fm_source_provider(t->src);
    fm_provider init = fm_source_provider(t->init);
    int32_t *ids = ik_ref_get(&t->batches, "input_ids", NULL);
    int32_t *labels = ik_ref_get(&t->batches, "labels", NULL);
    int32_t *mask = ik_ref_get(&t->batches, "attention_mask", NULL);
    fm_train_job j = {.name = "smollm2",
                      .config = smol_config(),
                      .parent = fm_source_tree(t->src),
                      .batch_ids = ids,
                      .batch_labels = labels,
                      .batch_mask = mask,
                      .init = fm_source_tree(t->init),
                      .init_provider = &init};

    j.config.steps = steps;
    tk_ok(fm_train_run(e, &p, &j, 1, r, NULL, NULL));
    for (size_t s = 0; s < steps; s++) {
        const fm_json *want = fm_json_at(fm_json_get(t->log, "log"), s);
        smol_worst(&t->worst_loss, kit_log(r, s, "loss"),
                   fm_json_real(fm_json_get(want, "loss"), -1), false);
        smol_worst(&t->worst_norm, kit_log(r, s, "grad_norm"),
                   fm_json_real(fm_json_get(want, "grad_norm"), -1), true);
    }
    print_message("%u steps, %.1f tokens/s: worst loss %.2g, worst gradient norm %.2g relative\n",
                  steps, (double)r->tokens / r->seconds, t->worst_loss, t->worst_norm);
    tk_assert_le(t->worst_loss, 1e-4, "loss of a step");
    tk_assert_le(t->worst_norm, 2e-4, "gradient norm of a step");
    fm_free(ids);
    fm_free(labels);
    fm_free(mask);
    fm_engine_free(e);
}

#endif
