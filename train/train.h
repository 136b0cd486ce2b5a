/* train.h - training of adapted models: LoRA, full fine-tune, pretraining and others; several
 * children of one parent in one call. attribution.h ranks training examples.
 *
 * Everything random is a function of the seed (counter RNG); every value that a result depends on
 * is in fm_train_config and in its canonical JSON, which goes into the recipe. In mode `exact` a
 * replay on any CPU with any number of threads gives the same bytes. */
#ifndef FM_TRAIN_TRAIN_H
#define FM_TRAIN_TRAIN_H

#include "infer/infer.h"
#include "infer/parallel_plan.h"

FM_BEGIN_DECLS

typedef enum fm_method {
    FM_METHOD_LORA, /* with `dora` set: DoRA */
    FM_METHOD_FULL,
    FM_METHOD_PRETRAIN,
    FM_METHOD_IA3,
    FM_METHOD_PREFIX, /* prefix tuning: keys and values of virtual positions */
    FM_METHOD_PROMPT, /* prompt tuning: embeddings of virtual tokens */
    FM_METHOD_BITFIT, /* the parent's biases alone */
    FM_METHOD_NORMS,  /* PEFT's LN tuning: the norms of `targets`, all where that is empty */
    /* targets change by a formula of small tensors, as PEFT's kinds of these names */
    FM_METHOD_LOHA,
    FM_METHOD_LOKR,
    FM_METHOD_OFT,
    FM_METHOD_BOFT,
    FM_METHOD_HRA,
    FM_METHOD_MISS,
    FM_METHOD_SHIRA,
    FM_METHOD_FOURIERFT,
    FM_METHOD_RANDLORA,
    FM_METHOD_VERA,
    FM_METHOD_ADALORA, /* at its first ranks: no budget, no orthogonality term in the loss */
} fm_method;
typedef enum fm_objective {
    FM_OBJECTIVE_NEXT_TOKEN,  /* cross entropy of the labelled tokens */
    FM_OBJECTIVE_CLASSIFY,    /* cross entropy of a class, by a head on one pooled state */
    FM_OBJECTIVE_CONTRASTIVE, /* anchor, positive (, negative): InfoNCE over the step's texts */
    FM_OBJECTIVE_DPO,         /* chosen over rejected, against the parent (Rafailov et al. 2023) */
    FM_OBJECTIVE_DISTILL,     /* towards the next-token distribution of a teacher */
} fm_objective;
typedef enum fm_schedule {
    FM_SCHEDULE_CONSTANT,
    FM_SCHEDULE_LINEAR, /* reaches 0 just after the last step */
    FM_SCHEDULE_COSINE,
} fm_schedule;

typedef struct fm_train_config {
    fm_method method;
    fm_objective objective;
    /* lora */
    uint32_t r;
    double alpha;
    bool rslora, dora;
    double dropout;    /* of a low-rank term's input: PEFT's lora_dropout */
    double loraplus;   /* LoRA+: B learns at lr times this; 1 = LoRA */
    char targets[256]; /* "q_proj,v_proj" or "all-linear"; ia3, ln_tuning: PEFT's target_modules */
    char exclude[128]; /* PEFT's exclude_modules: left out even if in targets */
    char feedforward[128];  /* ia3: PEFT's feedforward_modules */
    char rank_pattern[256]; /* "q_proj=4,v_proj=16" */
    char alpha_pattern[256];
    char layers[128]; /* "0-3,7": PEFT's layers_to_transform; full: other layers are frozen */
    char bias[16];    /* "none", "all", "lora_only" */
    char modules_to_save[128]; /* "" or "lm_head": matched by the ends of names, as PEFT does */
    char freeze[256];          /* full: modules that stay frozen, "embed_tokens,lm_head,norm" */
    uint32_t virtual_tokens;   /* prefix, prompt */
    /* PEFT's fields of other kinds, by its names; a recipe has them where the method reads them */
    bool decompose_both; /* lokr */
    int32_t decompose_factor;
    uint32_t oft_block_size; /* oft: 0 where r, the number of blocks, is given */
    bool coft, block_share, use_cayley_neumann;
    double coft_eps; /* PEFT's `eps` of oft */
    uint32_t num_cayley_neumann_terms;
    uint32_t boft_block_size, boft_block_num,
        boft_n_butterfly_factor; /* boft: one of the first two */
    bool apply_GS;               /* hra */
    char init_weights[8];        /* miss: "true", "bat", "mini"; fourierft: "true", "false" */
    uint32_t mini_r;             /* miss */
    uint32_t n_frequency;        /* fourierft */
    double scaling;
    uint32_t random_loc_seed;
    uint32_t projection_prng_key; /* vera */
    double d_initial;
    uint32_t init_r; /* adalora */
    /* objective */
    uint32_t classes;   /* classify: number of classes; 0 = as many as the data have */
    char pooling[16];   /* "auto", "mean", "cls", "last" */
    double temperature; /* contrastive, distill; 0 means 0.05 and 1 there */
    bool symmetric;     /* contrastive: each positive is also scored against all anchors */
    double dpo_beta;
    double distill_weight; /* share of the teacher's loss; the rest is next-token loss */
    /* optimisation */
    double lr, beta1, beta2, eps, weight_decay, clip; /* clip 0 = off */
    fm_schedule schedule;
    uint32_t warmup; /* step i of warmup uses lr * (i+1)/warmup */
    uint32_t steps;  /* 0: `epochs` decides */
    double epochs;
    uint32_t batch;      /* sequences of a micro-batch */
    uint32_t accumulate; /* micro-batches of a step */
    /* Parts that a micro-batch is cut into. The gradient of each part is summed on its own, then
     * these are added in ascending order; ranks take equal numbers of parts. Bits depend on this
     * number, not on the number of ranks. */
    uint32_t shards;
    uint32_t max_tokens; /* longer examples are cut; plain text is cut into blocks of this length */
    bool packing;        /* fill a micro-batch with examples up to batch * max_tokens tokens */
    uint32_t buckets;    /* length buckets: neighbours in the order have like lengths; 0 = off */
    uint64_t seed;
    /* Type of the stored tensors of a full result: F32 or BF16; NONE ("parent"): each tensor has
     * its parent's type where that is F32, BF16 or F16, else F32. Adapters are F32. */
    fm_dtype dtype;
    bool answers_only; /* loss on the assistant's turns alone (else on every token) */
} fm_train_config;
fm_train_config fm_train_defaults(fm_method method);
/* Sets key=value, as in --set and family files. FM_EINVAL: key, value and what is allowed. */
FM_CHECKED fm_status fm_train_config_set(fm_train_config *c, const char *key, const char *value);
fm_json *fm_train_config_json(const fm_train_config *c); /* every field, owned; NULL = ENOMEM */
FM_CHECKED fm_status fm_train_config_from_json(fm_train_config *c, const fm_json *v,
                                               const char *what);

/* ---- data ---- */
#define FM_EXAMPLE_PARTS 3u
typedef struct fm_example {
    int32_t *ids;    /* [len]: its parts one after another */
    int32_t *labels; /* [len]: ids[i] where it counts as a target, -100 where not */
    uint32_t len;
    uint32_t parts; /* texts: 1; dpo: 2 (chosen, rejected); contrastive: 2, 3 with a negative */
    uint32_t part_len[FM_EXAMPLE_PARTS];
    int32_t klass;    /* classify: from 0; else -1 */
    uint32_t file;    /* number of the example's file in the data set */
    uint32_t index;   /* number of the record in the file, from 0 */
    uint32_t lost;    /* tokens of the record beyond max_tokens, which are not trained on */
    fm_digest digest; /* SHA-256 of the record's canonical JSON (text: of its bytes) */
    char *preview;    /* first 120 bytes of prompt and answer, for people */
} fm_example;
typedef struct fm_dataset fm_dataset;
/* One file of examples. Its format is found by its name (.csv, .tsv), else by its content: a JSON
 * array, lines of JSON objects, a table whose header names known columns, else plain text, which is
 * cut into blocks of max_tokens. The fields of a record say what it is; see
 * docs/training-data.md. */
typedef struct fm_data_file {
    fm_span bytes;
    const char *what;     /* the file's name, for errors and the manifest */
    double weight;        /* how often an epoch takes an example, on average: 0.001 .. 1000 */
    const uint32_t *skip; /* [skip_count] record numbers left out */
    size_t skip_count;
    bool held_out;                        /* the whole file is for evaluation */
    const char *licence, *source, *split; /* for the manifest; NULL = not known */
} fm_data_file;

/* Opens a data set of one or more files. Conversations are rendered with the tokenizer's own
 * template (chat NULL: the fields of alpaca are joined by newlines). c->objective says what a
 * record must hold: next_token and distill a text with an answer, dpo an answer preferred to
 * another, contrastive texts that belong together, classify a text and its class. eval_share in [0,
 * 1): this share of the examples, chosen by seed and digest alone, is held out. FM_EINVAL names
 * file, record, field and remedy; no example left to train on is an error too. FM_ECORRUPT: broken
 * JSON or CSV, with the line. tok and chat are not used after return. */
FM_CHECKED fm_status fm_dataset_open_files(fm_dataset **out, const fm_data_file *file, size_t files,
                                           const fm_tokenizer *tok, const fm_chat_template *chat,
                                           const fm_train_config *c, double eval_share);
/* Opens a data set of one file, with weight 1 and no example held out. */
FM_CHECKED fm_status fm_dataset_open(fm_dataset **out, fm_span bytes, const char *what,
                                     const fm_tokenizer *tok, const fm_chat_template *chat,
                                     const fm_train_config *c, const uint32_t *skip,
                                     size_t skip_count);
void fm_dataset_close(fm_dataset *d);
size_t fm_dataset_count(const fm_dataset *d); /* examples to train on */
const fm_example *fm_dataset_at(const fm_dataset *d, size_t i);
size_t fm_dataset_held_out_count(const fm_dataset *d);
const fm_example *fm_dataset_held_out(const fm_dataset *d, size_t i);
double fm_dataset_weight(const fm_dataset *d, size_t i); /* weight of the file of example i */
/* classify: the number of classes (0 for other objectives) and their names, in the order of
 * fm_example.klass. Whole numbers are their own classes; words are sorted by their bytes. */
uint32_t fm_dataset_classes(const fm_dataset *d);
const char *fm_dataset_class_name(const fm_dataset *d, uint32_t klass);
size_t fm_dataset_files(const fm_dataset *d);
/* Manifest of one file, owned by the caller, NULL = ENOMEM:
 * {"name","sha256","format","kind","records","used","tokens","skipped":[...],
 * "without_target":[...]}, and where it applies "weight", "eval" (the share held out), "evaluation"
 * (the whole file is), "held_out":[...], "classes":[...], "licence", "source", "split".
 * without_target lists records without a counted token within max_tokens; they are not used. */
fm_json *fm_dataset_file_manifest(const fm_dataset *d, size_t file);
fm_json *fm_dataset_manifest(const fm_dataset *d); /* manifest of the first file */

/* ---- report on the data, before training ---- */
/* A text that tests the model and should not be in the training data. */
typedef struct fm_data_probe {
    const char *name; /* "suite/case" */
    fm_span text;
} fm_data_probe;
typedef struct fm_data_report {
    uint64_t tokens, counted; /* tokens to train on; how many of them are targets */
    uint64_t lost;            /* tokens beyond max_tokens, which are cut off */
    size_t examples, held_out, without_target;
    size_t truncated;    /* examples of which tokens were cut off */
    size_t no_stop;      /* answers that do not end with an end token of the model */
    size_t duplicates;   /* examples that repeat an earlier record */
    size_t conflicts;    /* examples whose prompt occurs earlier with another answer */
    size_t contaminated; /* examples that hold a probe's text */
    size_t errors;       /* findings that make training meaningless */
    fm_json *json;       /* the whole report, with the numbers of the records; owned */
    char *text;          /* the report as lines of text; owned */
} fm_data_report;
typedef struct fm_data_report_opts {
    const int32_t *end; /* [ends] end tokens of the model; ends 0: the end token of tok */
    size_t ends;
    const fm_data_probe *probe; /* [probes] */
    size_t probes;
} fm_data_report_opts;
/* tok and c must be the ones that d was opened with. */
FM_CHECKED fm_status fm_dataset_report(fm_data_report *out, const fm_dataset *d,
                                       const fm_tokenizer *tok, const fm_train_config *c,
                                       const fm_data_report_opts *opts);
void fm_data_report_release(fm_data_report *r);

/* ---- training ---- */
/* Mean loss over the held-out examples. A unit is a target (distill: of the text, not of the
 * teacher), a text, a pair, or an anchor in its micro-batch. accuracy: share of the texts, pairs or
 * anchors that come out right; -1 for targets, whose perplexity is e to the loss. */
typedef struct fm_evaluation {
    double loss, accuracy;
    uint64_t units;
} fm_evaluation;

typedef struct fm_train_progress {
    uint32_t child, step, steps;
    double loss;      /* mean over the counted tokens of the step */
    double grad_norm; /* before clipping */
    double lr, tokens_per_s;
    bool evaluated; /* held_out was measured after this step */
    fm_evaluation held_out;
} fm_train_progress;
/* Called after each step, with one p[i] for every child that still trains. Setting drop[i] ends
 * child p[i].child here (its result is its present state, marked dropped). true: stop all. */
typedef bool (*fm_train_fn)(void *ctx, const fm_train_progress *p, size_t n, bool *drop);

typedef struct fm_trained fm_trained;
/* What a child needs to resume: values, AdamW's moments, the log. */
typedef struct fm_train_state {
    fm_digest run; /* digest of everything that the run's bits depend on */
    uint32_t step; /* steps done */
    uint64_t tokens;
    fm_json *log;
    fm_trained *tensors; /* "p/NAME", "m/NAME", "v/NAME": F32 */
    size_t count;
} fm_train_state;
void fm_train_state_release(fm_train_state *s);
/* Callbacks that keep states. due: called after the progress callback at each step where a state
 * may be saved; false: not now (NULL: save at each). save: borrows s; the state is durable when it
 * returns. load: gives the newest state of this run, *found false where there is none; the caller
 * releases out. No bit of a result depends on when states are saved. */
typedef struct fm_train_checkpoints {
    void *ctx;
    bool (*due)(void *ctx, uint32_t child, uint32_t step);
    fm_status (*save)(void *ctx, uint32_t child, const fm_train_state *s);
    fm_status (*load)(void *ctx, uint32_t child, const fm_digest *run, fm_train_state *out,
                      bool *found);
} fm_train_checkpoints;

typedef struct fm_train_job {
    const char *name; /* for progress and errors */
    fm_train_config config;
    const fm_tree *parent; /* PRETRAIN: a tree that holds only model.json and tokenizer */
    const fm_dataset *data;
    /* Exact batches in place of data (for tests and replays): i32 [steps][accumulate *
     * batch][max_tokens]; label -100 = none, mask may be NULL, padding on the right. */
    const int32_t *batch_ids, *batch_labels, *batch_mask;
    /* Rows of one example, which are its texts in order; 0: 2 for dpo and contrastive, else 1.
     * classify: a row's first label is its class. */
    uint32_t batch_parts;
    /* classify: names of the classes, for the result's config; NULL: their numbers. */
    const char *const *class_name;
    uint32_t class_names;
    /* Held-out examples, borrowed. Their mean loss is measured every eval_every steps (0: never)
     * and after the last step. */
    const fm_example *const *held_out;
    size_t held_outs;
    uint32_t eval_every;
    /* Adapter tensors to start from (PEFT names) in place of the seeded init; may be NULL. Where
     * init holds an adapter_config.json, it says which modules and ranks train. */
    const fm_tree *init;
    const fm_provider *init_provider;
    const fm_tree *teacher; /* DISTILL: any model of the same vocabulary */
    const fm_provider *teacher_provider;
    const fm_train_checkpoints *checkpoints; /* NULL = no state is kept */
    uint32_t checkpoint_every;               /* in steps; 0: only when stopped and at the end */
    /* Keep only each layer's input and compute the rest again in the backward pass: same bits. */
    bool recompute;
} fm_train_job;

/* One trained tensor; the result owns its bytes. */
struct fm_trained {
    char *name; /* tensor name, or PEFT's key for adapters */
    fm_dtype dtype;
    fm_shape shape;
    uint8_t *data;
    uint64_t bytes;
};
typedef struct fm_train_result {
    fm_trained *tensors;
    size_t count;
    fm_json *adapter_config; /* PEFT's adapter_config.json for the method; NULL: full tensors */
    char *model_json; /* classify: the child's model.json, which names the classes; else NULL */
    /* [{"step","loss","grad_norm","lr"}], where measured also "eval_loss" and "eval_perplexity" or
     * "eval_accuracy" */
    fm_json *log;
    double seconds;
    uint64_t tokens;
    bool stopped;     /* the callback stopped the run: there is no result to commit */
    bool dropped;     /* the callback ended this child early: there is a result */
    fm_status failed; /* FM_OK, or why this child ended without a result: NaN or divergence */
    char *why;        /* where it failed: the step, the examples, the tensor that broke first */
} fm_train_result;

/* FM_EUNSUPPORTED, naming the setting, where c needs something that training over stages cannot do.
 * name: the job's, for the error text. */
FM_CHECKED fm_status fm_train_check_stages(const fm_train_config *c, const char *name);
/* Trains the children of one stem in shared passes. Parents may differ by adapters or by some
 * tensors; tensors of equal id are loaded once and computed once for the rows of all children.
 * PRETRAIN: one job. p reads the bytes of all parents. Each child's bytes are the same as when it
 * trains alone. A child that fails or is dropped does not disturb the others. Results are zeroed
 * first; the caller releases them. FM_EBASE: a target module that the parent lacks. */
FM_CHECKED fm_status fm_train_run(fm_engine *e, const fm_provider *p, const fm_train_job *jobs,
                                  size_t n, fm_train_result *results, fm_train_fn progress,
                                  void *ctx);
void fm_train_result_release(fm_train_result *r);

/* Which examples a step (from 0) of a run takes: [*count] positions in d, in the order of the
 * step's batches; a position may occur twice. *out: fm_free. FM_EINVAL: no such step. */
FM_CHECKED fm_status fm_train_step_examples(uint32_t **out, size_t *count, const fm_train_config *c,
                                            const fm_dataset *d, uint32_t step);

/* ---- what a run will take ---- */
typedef struct fm_plan {
    uint64_t stem_bytes;   /* frozen weights, each tensor once */
    uint64_t layout_bytes; /* product layouts of weights that train */
    uint64_t parameter_bytes, gradient_bytes, moment_bytes;
    uint64_t activation_bytes, logit_bytes;
    uint64_t other_bytes; /* the process once all was opened: data, program, files */
    uint64_t bytes;       /* sum of the above */
    /* Seconds of all steps and children. products: of layers; thin: low-rank; head: with loss. */
    double products_s, attention_s, thin_s, head_s, update_s, other_s, seconds;
    uint64_t tokens;
    uint32_t steps; /* steps of the child that has the most */
    uint32_t rows;  /* most rows of a pass */
    bool recompute;
    double probe_s; /* seconds that the plan itself took */
} fm_plan;
/* Opens everything as fm_train_run does, times one layer and the head for less than a second
 * (besides the time of opening), and trains nothing. Jobs need data. */
FM_CHECKED fm_status fm_train_plan(fm_engine *e, const fm_provider *p, const fm_train_job *jobs,
                                   size_t n, fm_plan *out);

/* What a rank of each stage holds in the same training over stages (params/stage.h). */
typedef struct fm_stage_plan {
    uint32_t begin, end;              /* layers begin .. end - 1 */
    uint64_t stem_bytes, state_bytes; /* state: values, gradients, moments, layouts, shards */
    uint64_t trains;                  /* floats that the rank updates */
    uint64_t activation_bytes;        /* with logits */
    uint32_t kept;                    /* most passes whose activations it keeps at a time */
} fm_stage_plan;
typedef struct fm_stages_plan {
    uint32_t stages, wide, passes; /* wide: ranks of a stage; passes: of one pipeline in a step */
    fm_stage_plan stage[FM_STAGE_PLANS];
} fm_stages_plan;
/* As fm_train_plan; also fills *of for `stages` stages of `ranks` ranks in all. of NULL: not
 * wanted. Opens whole models. */
FM_CHECKED fm_status fm_train_plan_stages(fm_engine *e, const fm_provider *p,
                                          const fm_train_job *jobs, size_t n, uint32_t ranks,
                                          uint32_t stages, fm_plan *out, fm_stages_plan *of);

/* Loss and all gradients of one batch, for tests against references: gradients of all parameters,
 * or of the adapters where the tree has any, as fm_trained in F32. */
FM_CHECKED fm_status fm_train_gradients(fm_engine *e, const fm_tree *tree, const fm_provider *p,
                                        const int32_t *ids, const int32_t *labels, uint32_t batch,
                                        uint32_t tokens, double *loss, fm_train_result *grads);

FM_END_DECLS
#endif
