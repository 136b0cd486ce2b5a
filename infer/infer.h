/* infer.h - the inference engine: engines, models, timelines, steps, generation, scoring.
 *
 * - engine: one backend, one thread pool, one cache of weights keyed by tensor id. Two models that
 *   hold the same tensor hold it once in memory, and their rows go through one product.
 * - model: one version bound to an engine: architecture, weights, adapters, tokenizer, template.
 * - seq: one timeline: the tokens seen so far and their pages of the KV cache.
 * - step: a flat list of rows, each the next token of a seq of any model. Rows are grouped by
 *   weight layer by layer; nothing is padded to a common rank of adapters.
 *
 * A row's bits never depend on the other rows of its step, on threads, or on how a prompt was cut.
 * One thread at a time uses an engine with its models and seqs, except for fm_model_prepare. */
#ifndef FM_INFER_INFER_H
#define FM_INFER_INFER_H

#include "infer/arch.h"
#include "infer/chat.h"
#include "infer/grammar.h"
#include "infer/sampler.h"
#include "infer/tokenizer.h"
#include "store/tree.h"

FM_BEGIN_DECLS

typedef struct fm_engine fm_engine;
typedef struct fm_model fm_model;
typedef struct fm_seq fm_seq;

typedef struct fm_engine_opts {
    unsigned threads; /* 0 = all CPUs of the process */
    const char *mode; /* "exact", "fast", "bf16"; others FM_EUNSUPPORTED */
    /* "cpu" (NULL), "cuda", "cuda:N", "auto": fm_backend_open_on. Mode and kernel class decide
     * what a result is, not the device. */
    const char *device;
    /* Weights stay in the type that they are stored in (mode exact; FM_EUNSUPPORTED in modes with
     * layouts of their own): a quantized stem takes its quantized size. The same bits, in more
     * time. */
    bool keep_stored;
    uint32_t max_rows; /* of one step; longer prompts take several steps (512) */
    /* KV pages are taken as needed (on a GPU at once) up to this (1 GiB), cached ones included. */
    uint64_t kv_bytes_max;
    bool prefix_cache; /* keep blocks of past texts for texts that begin alike (true) */
    /* Most bytes of weights (0 = no budget). With a budget, a weight that no open model holds stays
     * until its memory is needed; without one, it leaves with its last model. */
    uint64_t weight_bytes_max;
    /* A folder where packed weights are kept in files, found again by later runs and shared by
     * processes; made when needed, deletable at any time. NULL: none. Copied. */
    const char *cache_dir;
    uint64_t cache_bytes_max; /* of those files; the longest unused go (4 GiB; 0 = no bound) */
    uint64_t cache_min_bytes; /* smaller weights are not kept in files (256 KiB) */
    /* Ranks over which every model is split (comm.h, model/shard.h); borrowed, used by this engine
     * alone until it is freed. Rank 0's engine is used as any other; other ranks make their engines
     * with the same options at the same time and follow it: fm_engine_follow. NULL: one rank. */
    struct fm_comm *comm;
    /* A model's layers are split over this many stages (1). A stage is ranks / stages neighbouring
     * ranks, which split its layers. kv_bytes_max and weight_bytes_max are those of one rank. A
     * step's rows go through the stages in micro-batches of micro_rows, so that stages work at the
     * same time (0: as suits the device). Bits and class are those of ranks / stages ranks. */
    uint32_t stages, micro_rows;
    /* Instead of models, batches are split: every rank runs the training with its share of the
     * examples (train.h), and no rank follows. The engine holds whole models; with stages it holds
     * its stage's layers alone and cannot answer (fm_seq_open). */
    bool comm_splits_batches;
    /* Seconds that a step may take (0: any). A rank that waits longer for another fails as if that
     * rank were lost, and a longer exchange between GPUs is given up. A device that hangs while its
     * process lives is reported a little later: fm_engine_hung. Not for training. */
    double step_timeout_s;
} fm_engine_opts;
/* Called once for a step that does not end, on a thread of its own, while the engine's thread is in
 * that step and cannot leave it. It may wait for other ranks and end the process. text: device,
 * rank. */
typedef void (*fm_hung_fn)(void *ctx, const char *text);
fm_engine_opts fm_engine_defaults(void);
FM_CHECKED fm_status fm_engine_new(fm_engine **out, const fm_engine_opts *opts);
void fm_engine_free(fm_engine *e);                             /* after its models and seqs */
void fm_engine_hung(fm_engine *e, fm_hung_fn hung, void *ctx); /* NULL: not reported */
/* Whether the ranks that share its models are all there: what a server asks while it is idle. */
FM_CHECKED fm_status fm_engine_check(const fm_engine *e);
uint32_t fm_engine_ranks(const fm_engine *e); /* over which its models are split; 1: they are not */
struct fm_comm *fm_engine_batch_ranks(const fm_engine *e); /* NULL: batches are not split */
/* The stages over which training splits a model's layers on those ranks; 1: each holds all. */
uint32_t fm_engine_batch_stages(const fm_engine *e);
/* On every rank but 0: does what rank 0's engine does, until rank 0 frees it. Models come from p,
 * which knows their tensors by id. Fails where a rank is lost; the error stays with the comm. */
FM_CHECKED fm_status fm_engine_follow(fm_engine *e, const fm_provider *p);
const char *fm_engine_mode(const fm_engine *e);
const char *fm_engine_isa(const fm_engine *e);    /* "avx512": for people */
const char *fm_engine_device(const fm_engine *e); /* "cpu", "cuda" */
/* FM_EINVAL where `device` is no name of a device; NULL is valid. */
FM_CHECKED fm_status fm_device_check(const char *device);
/* How many GPUs there are; FM_EUNSUPPORTED says why there is none. */
FM_CHECKED fm_status fm_device_count(uint32_t *out);
/* A line for people about one GPU: name, memory, compute capability. */
FM_CHECKED fm_status fm_device_describe(char *text, size_t cap, uint32_t device);
/* The file of the CUDA module that is in use, "" if none is. */
const char *fm_device_module(void);
unsigned fm_engine_threads(const fm_engine *e);
const char *fm_engine_kernel_class(const fm_engine *e); /* part of every result's key */
typedef struct fm_engine_stats {
    uint64_t weights, weight_bytes; /* distinct tensors resident, or being read */
    uint64_t weight_bytes_unshared; /* what the open models would take without sharing */
    uint64_t weight_bytes_shared;   /* of weight_bytes: held by two or more models */
    uint64_t weight_bytes_idle;     /* of weight_bytes: held by none, first to go */
    uint64_t weight_bytes_mapped;   /* of weight_bytes: files that are mapped, not memory */
    uint64_t weight_bytes_max;      /* the budget, 0 = none */
    /* Since the beginning: tensors that were found resident, read, and evicted. */
    uint64_t weight_hits, weight_misses, weight_evictions;
    /* Files of cache_dir: mapped, written, and refused because they were damaged. */
    uint64_t packed_mapped, packed_written, packed_refused;
    uint64_t kv_bytes, steps, rows, models;
    uint64_t gemm_groups; /* products run, to show sharing */
    uint64_t layer_rows;  /* rows that ran, summed over layers */
    /* Tokens of whole blocks that were looked for in the prefix cache, and those of them that
     * needed no computation at all; bytes that the cache keeps (of kv_bytes), pages evicted. */
    uint64_t prefix_queries, prefix_hits, prefix_bytes, prefix_evictions;
} fm_engine_stats;
fm_engine_stats fm_engine_stats_of(const fm_engine *e);
/* Blocks whose K and V of this layer were found in the prefix cache. */
uint64_t fm_engine_layer_hits(const fm_engine *e, uint32_t layer);

/* Reads config, weights and adapters of tree from p, which is not called after return. Where p has
 * view, the model computes with the bytes that p showed, so their owner must outlive the model.
 * `what` names the model in errors. FM_EUNSUPPORTED: an architecture or adapter kind that this
 * build lacks. A tree without tokenizer/ loads; fm_model_tokenizer is then NULL. */
FM_CHECKED fm_status fm_model_load(fm_model **out, fm_engine *e, const fm_tree *tree,
                                   const fm_provider *p, const char *what);
/* What fm_model_load checks before it reads a tensor: the architecture of model.json, each
 * parameter there with its shape, no tensor left over, adapters' configs. Needs no engine. */
FM_CHECKED fm_status fm_model_check(const fm_tree *tree, const fm_provider *p, const char *what);
/* The two halves of fm_model_load. Prepare reads, decodes and packs, and may run on any thread
 * while the engine steps; the provider must allow that. threads: how many it may use (1: only the
 * caller's). Adopt is short and belongs to the engine's thread; before it the model may only be
 * adopted or closed (closed on any thread). After a failed adopt the caller still closes the model.
 * FM_ELIMIT from prepare: the budget for weights is held by other models. */
FM_CHECKED fm_status fm_model_prepare(fm_model **out, fm_engine *e, const fm_tree *tree,
                                      const fm_provider *p, const char *what, unsigned threads);
FM_CHECKED fm_status fm_model_adopt(fm_model *m);
void fm_model_close(fm_model *m);
const fm_arch *fm_model_arch(const fm_model *m);
const fm_tokenizer *fm_model_tokenizer(const fm_model *m);         /* NULL if the tree has none */
const fm_chat_template *fm_model_chat_template(const fm_model *m); /* NULL if the tree has none */
/* Digest of everything that an output depends on: config, weights, adapters (not the tokenizer). */
fm_digest fm_model_digest(const fm_model *m);
/* Digest of what the answers to one kind of question depend on. Two models with the same digest
 * give the same bits, so a child that differs in something else has its parent's digest. The digest
 * of embeddings and of classes includes every adapter, even one on the head of tokens. */
typedef enum fm_ask_kind {
    FM_ASK_TEXT,  /* generation and scores of tokens: all but a classification head */
    FM_ASK_EMBED, /* vectors: all but heads, and how states are pooled */
    FM_ASK_CLASS, /* classes: all but the head of tokens, and the classes' names */
    FM_ASK_KINDS
} fm_ask_kind;
fm_digest fm_model_digest_for(const fm_model *m, fm_ask_kind kind);
/* Digest of everything under tokenizer/: what turns text into tokens and back. */
fm_digest fm_model_text_digest(const fm_model *m);
fm_engine *fm_model_engine(const fm_model *m);
/* The model that computes texts of len tokens as m's family does: m itself, or the one beside it
 * whose rotary positions are those of longer texts (longrope), where m has one. m owns it, and it
 * shares m's weights. A text that grows past m's max_positions is computed anew with it. Over
 * several ranks there is none. */
fm_model *fm_model_for_length(fm_model *m, uint32_t len);

FM_CHECKED fm_status fm_seq_open(fm_seq **out, fm_model *m);
void fm_seq_close(fm_seq *s); /* gives its pages back */
uint32_t fm_seq_len(const fm_seq *s);
/* The text from which an encoder-decoder (fm_arch.sw.cross) makes its own: the encoder runs over it
 * now. Comes once, before the first token, which is fm_arch.start. FM_ELIMIT: it is longer than a
 * step's rows, or no KV page is left. */
FM_CHECKED fm_status fm_seq_source(fm_seq *s, const int32_t *ids, size_t n);
/* Forgets all beyond len tokens. A model with recurrent layers may have to run a step for it, which
 * computes tokens before len again; where that fails, fewer tokens are left. */
FM_CHECKED fm_status fm_seq_rewind(fm_seq *s, uint32_t len);

typedef struct fm_row {
    fm_seq *seq;
    int32_t token;
    bool want_logits;
} fm_row;
/* Rows of one seq are consecutive tokens in list order. n <= max_rows. FM_ELIMIT: no KV page left
 * or the model's positions are used up (nothing was changed). After FM_OK, fm_engine_logits(e, i)
 * is row i's [vocab] f32, NULL where not wanted; valid until the next step. */
FM_CHECKED fm_status fm_engine_step(fm_engine *e, const fm_row *rows, uint32_t n);
const float *fm_engine_logits(const fm_engine *e, uint32_t i);
/* The state from which row i's logits are made: [hidden] f32, after the final norm. An encoder has
 * no logits and takes a whole text in one step. */
const float *fm_engine_hidden(const fm_engine *e, uint32_t i);

/* ---- hidden states, for tests against references ----
 * tap(ctx, layer, x, n, h): the residual stream [n, h] after layer 0..layers (0 = embeddings; the
 * last is after the final norm, as HF's hidden_states). NULL switches it off. */
typedef void (*fm_tap_fn)(void *ctx, uint32_t layer, const float *x, uint32_t n, uint32_t h);
void fm_engine_tap(fm_engine *e, fm_tap_fn tap, void *ctx);

/* ---- continuous batching: requests of any models, added at any time ---- */
typedef struct fm_gen_event {
    int32_t token;    /* -1 in the final event that carries only text or the finish */
    const char *text; /* UTF-8 that became complete, stop strings held back; may be empty */
    size_t text_len;
    float logprob;         /* of token, from the raw logits, if asked for */
    const fm_logprob *top; /* top_count best, if asked for */
    uint32_t top_count;
    uint32_t cached;    /* tokens of the prompt that the prefix cache saved computing */
    const char *finish; /* NULL, "stop" (eos or stop string), "length", "cancelled", "error" */
    const char *error;  /* text when finish is "error" */
} fm_gen_event;
typedef bool (*fm_gen_fn)(void *ctx, const fm_gen_event *ev); /* false = cancel this request */

typedef struct fm_gen_request {
    fm_model *model;
    const int32_t *prompt; /* copied; of an encoder-decoder: the source */
    size_t prompt_len;     /* >= 1 */
    uint32_t max_new;
    fm_sample_params sampling;
    const char *const *stop; /* copied */
    size_t stop_count;
    bool ignore_eos;
    fm_grammar *grammar; /* the form of the answer, NULL: any; borrowed until the last event */
    bool want_logprobs;
    uint32_t top_logprobs;
    fm_gen_fn on_event;
    void *ctx;
} fm_gen_request;

typedef struct fm_scheduler fm_scheduler;
FM_CHECKED fm_status fm_scheduler_new(fm_scheduler **out, fm_engine *e, uint32_t max_running);
void fm_scheduler_free(fm_scheduler *s); /* running requests end "cancelled" */
/* FM_EINVAL names the field. A request starts when fewer than max_running run and pages are there:
 * requests of the model that was served least go first, and among them the oldest. */
FM_CHECKED fm_status fm_scheduler_add(fm_scheduler *s, const fm_gen_request *req, uint64_t *id_out);
/* Frees its pages at once; its last event comes with the next step. False: no such request. */
bool fm_scheduler_cancel(fm_scheduler *s, uint64_t id);
/* One step over everything that runs: decode rows, then as many rows of prompts as keep the step
 * below 1.6 times its time without them; where nothing decodes, all that fit. *busy: more to do. */
FM_CHECKED fm_status fm_scheduler_step(fm_scheduler *s, bool *busy);
uint32_t fm_scheduler_running(const fm_scheduler *s);
uint32_t fm_scheduler_waiting(const fm_scheduler *s);

/* ---- whole answers ---- */
typedef struct fm_gen_result {
    fm_buf text;
    int32_t *tokens;
    float *logprobs; /* NULL unless asked */
    size_t count;
    uint32_t cached; /* tokens of the prompt that the prefix cache saved computing */
    char finish[12];
} fm_gen_result;
/* Runs all requests in one batch (on_event is ignored). Results are released by the caller. A
 * request that failed alone has finish "error" and the error's text in text; FM_OK is returned. */
FM_CHECKED fm_status fm_generate(fm_engine *e, const fm_gen_request *req, size_t n,
                                 fm_gen_result *out);
void fm_gen_result_release(fm_gen_result *r);

/* logprobs[i] = log p(ids[i] | ids[..i)), logprobs[0] = 0 and meaningless. top (may be NULL):
 * [n, top_k] best of each position, for the token after position i. */
FM_CHECKED fm_status fm_score(fm_model *m, const int32_t *ids, size_t n, float *logprobs,
                              fm_logprob *top, uint32_t top_k);
/* Many scorings of any models of one engine in shared steps. Texts that begin alike share the
 * blocks of the prefix cache before position `from`, and only later positions have logits. */
typedef struct fm_score_request {
    fm_model *model;
    const int32_t *ids;
    size_t n;
    float *logprobs; /* [n] */
    size_t from;     /* 0 or 1: all; logprobs[1..from) stay as they are. Of an encoder-decoder: the
                      * tokens before it are the source, of which there must be some */
} fm_score_request;
FM_CHECKED fm_status fm_score_many(fm_engine *e, const fm_score_request *req, size_t n);

/* ---- embeddings ----
 * One vector of a text: an encoder's states averaged and normalised, or a decoder's state of the
 * last token; or as the modules.json of the sentence-transformers folder says that was imported.
 * FM_EUNSUPPORTED: a pooling that this build lacks. An encoder's text has at most max_rows
 * tokens. */
typedef struct fm_embed_request {
    fm_model *model;
    const int32_t *ids;
    size_t n;   /* 1 to the model's positions */
    float *out; /* [hidden] */
} fm_embed_request;
FM_CHECKED fm_status fm_embed_many(fm_engine *e, const fm_embed_request *req, size_t n);
/* A text's tokens with the tokenizer's special tokens around them, cut to fm_embed_tokens_max. */
FM_CHECKED fm_status fm_embed_encode(const fm_model *m, fm_span text, fm_ids *out);
uint32_t fm_embed_tokens_max(const fm_model *m);

/* ---- classes of texts ----
 * A version with a classification head (transformers' ...ForSequenceClassification, or PEFT's
 * SEQ_CLS adapters) gives log-probabilities of its classes. Texts are encoded as for embeddings. */
uint32_t fm_model_classes(const fm_model *m); /* 0: it has no such head */
/* A head of one output (a reranker, a regression): the output itself takes the place of a class's
 * log-probability. */
bool fm_model_scores(const fm_model *m);
/* config's id2label, else "LABEL_<i>"; NULL where i is no class. */
const char *fm_model_label(const fm_model *m, uint32_t i);
typedef struct fm_classify_request {
    fm_model *model;
    const int32_t *ids;
    size_t n;        /* 1 to the model's positions */
    float *logprobs; /* [fm_model_classes] */
} fm_classify_request;
/* FM_EUNSUPPORTED: no head, or a head whose output is no choice of one class. */
FM_CHECKED fm_status fm_classify_many(fm_engine *e, const fm_classify_request *req, size_t n);

FM_END_DECLS
#endif
