/* train.h - making adapted models: LoRA, full fine-tune, pretraining; several children of one
 * parent in one call; and ranking training examples by gradient similarity.
 *
 * Everything random is a function of the seed (counter RNG); every value that a result depends on
 * is in fm_train_config and in its canonical JSON, which goes into the recipe. In mode `exact` a
 * replay on any CPU with any number of threads gives the same bytes. */
#ifndef FM_TRAIN_TRAIN_H
#define FM_TRAIN_TRAIN_H

#include "infer/infer.h"

FM_BEGIN_DECLS

typedef enum fm_method { FM_METHOD_LORA, FM_METHOD_FULL, FM_METHOD_PRETRAIN } fm_method;
typedef enum fm_schedule {
    FM_SCHEDULE_CONSTANT,
    FM_SCHEDULE_LINEAR, /* to 0 just after the last step */
    FM_SCHEDULE_COSINE,
} fm_schedule;

typedef struct fm_train_config {
    fm_method method;
    /* lora */
    uint32_t r;
    double alpha;
    bool rslora;
    char targets[256];         /* "q_proj,v_proj" or "all-linear" */
    char modules_to_save[128]; /* "" or "lm_head" */
    /* optimisation */
    double lr, beta1, beta2, eps, weight_decay, clip; /* clip 0 = off */
    fm_schedule schedule;
    uint32_t warmup; /* step i of warmup uses lr * (i+1)/warmup */
    uint32_t steps;  /* 0: epochs decide */
    double epochs;
    uint32_t batch;      /* sequences of a micro-batch */
    uint32_t accumulate; /* micro-batches of a step */
    uint32_t max_tokens; /* longer examples are cut, text is packed to this */
    uint64_t seed;
    fm_dtype dtype;    /* of a full result: F32, BF16; NONE ("parent"): each tensor as the
                                 parent's where that is F32, BF16 or F16, else F32. Adapters: F32 */
    bool answers_only; /* loss on the assistant's turns (else on every token) */
} fm_train_config;
fm_train_config fm_train_defaults(fm_method method);
/* key=value as --set and family files write them; FM_EINVAL names key, value, what is allowed. */
FM_CHECKED fm_status fm_train_config_set(fm_train_config *c, const char *key, const char *value);
fm_json *fm_train_config_json(const fm_train_config *c); /* every field, owned; NULL = ENOMEM */
FM_CHECKED fm_status fm_train_config_from_json(fm_train_config *c, const fm_json *v,
                                               const char *what);

/* ---- data ---- */
typedef struct fm_example {
    int32_t *ids;    /* [len] */
    int32_t *labels; /* [len]: ids[i] where it counts as a target, -100 where not */
    uint32_t len;
    uint32_t index;   /* place in the file: record number from 0 */
    fm_digest digest; /* SHA-256 of the record's canonical JSON (text: of its bytes) */
    char *preview;    /* first 120 bytes of prompt and answer, for people */
} fm_example;
typedef struct fm_dataset fm_dataset;
/* Detects by content: JSON array or JSONL of alpaca records (instruction, input, output), of chat
 * {"messages":[...]}, of {"prompt","completion"} or {"text"}; else plain text. Rendered with
 * the tokenizer's own template (chat NULL: alpaca's fields are joined by newlines). skip: record
 * numbers left out. FM_EINVAL: file, record, field; an empty file is an error.
 * FM_ECORRUPT: broken JSON, by line. */
FM_CHECKED fm_status fm_dataset_open(fm_dataset **out, fm_span bytes, const char *what,
                                     const fm_tokenizer *tok, const fm_chat_template *chat,
                                     const fm_train_config *c, const uint32_t *skip,
                                     size_t skip_count);
void fm_dataset_close(fm_dataset *d);
size_t fm_dataset_count(const fm_dataset *d);
const fm_example *fm_dataset_at(const fm_dataset *d, size_t i);
/* {"name","sha256","records","used","tokens","skipped":[...],"without_target":[...]}: owned. The
 * last: records of which nothing counts within max_tokens; they are not used. */
fm_json *fm_dataset_manifest(const fm_dataset *d);

/* ---- training ---- */
typedef struct fm_train_progress {
    uint32_t child, step, steps;
    double loss;      /* mean over the counted tokens of the step */
    double grad_norm; /* before clipping */
    double lr, tokens_per_s;
} fm_train_progress;
typedef bool (*fm_train_fn)(void *ctx, const fm_train_progress *p); /* true = stop */

typedef struct fm_train_job {
    const char *name; /* for progress and errors */
    fm_train_config config;
    const fm_tree *parent; /* PRETRAIN: a tree with model.json and tokenizer alone */
    const fm_dataset *data;
    /* Instead of data, exact batches (tests, replays): i32 [steps][accumulate * batch][max_tokens];
     * label -100 = none, mask may be NULL, padding on the right. */
    const int32_t *batch_ids, *batch_labels, *batch_mask;
    /* Adapter tensors to start from (PEFT names) instead of the seeded init; may be NULL. Where it
     * holds an adapter_config.json, that says which modules and ranks train, not the config. */
    const fm_tree *init;
    const fm_provider *init_provider;
    const char *checkpoint_dir; /* NULL = none; resume when it holds one of the same config */
    uint32_t checkpoint_every;  /* steps */
} fm_train_job;

/* One trained tensor; bytes owned by the result. */
typedef struct fm_trained {
    char *name; /* tensor name, or PEFT's key for adapters */
    fm_dtype dtype;
    fm_shape shape;
    uint8_t *data;
    uint64_t bytes;
} fm_trained;
typedef struct fm_train_result {
    fm_trained *tensors;
    size_t count;
    fm_json *adapter_config; /* LoRA: what PEFT writes; NULL else */
    fm_json *log;            /* [{"step","loss","grad_norm","lr"}] */
    double seconds;
    uint64_t tokens;
    bool stopped; /* by the callback: no result to commit */
} fm_train_result;

/* Children of one parent: jobs[i].parent must be the same tree for all (PRETRAIN: one job). p: the
 * bytes of parent. The stem's weights are loaded once. Results are zeroed first; the caller
 * releases them. FM_EBASE: targets that the parent lacks. */
FM_CHECKED fm_status fm_train_run(fm_engine *e, const fm_provider *p, const fm_train_job *jobs,
                                  size_t n, fm_train_result *results, fm_train_fn progress,
                                  void *ctx);
void fm_train_result_release(fm_train_result *r);

/* Loss and every gradient of one batch for all parameters (or the adapters' where the tree has
 * any): for tests against references and for influence. Gradients come as fm_trained, F32. */
FM_CHECKED fm_status fm_train_gradients(fm_engine *e, const fm_tree *tree, const fm_provider *p,
                                        const int32_t *ids, const int32_t *labels, uint32_t batch,
                                        uint32_t tokens, double *loss, fm_train_result *grads);

/* ---- influence: which examples pulled towards this answer ----
 * Cosine between each example's gradient and the target's (cross entropy of the wrong answer),
 * over the parameters that the step trained (adapter, or the last layers' full weights).
 * scores[i] for data example i; positive = training on it made the target answer likelier.
 * TracIn (Pruthi et al. 2020), the cosines averaged over points on the line from parent to child.
 * child: the trained version; parent: what a full fine-tune began from (not used for adapters,
 * whose way begins at B = 0). p: the bytes of both. */
FM_CHECKED fm_status fm_influence(fm_engine *e, const fm_tree *child, const fm_tree *parent,
                                  const fm_provider *p, const fm_dataset *data,
                                  const fm_example *target, double *scores);

FM_END_DECLS
#endif
