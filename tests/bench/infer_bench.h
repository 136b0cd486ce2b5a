/* infer_bench.h - what the files of bench_infer share: one turn of each kind of work, ours and the
 * peer's. */
#ifndef FM_TESTS_INFER_BENCH_H
#define FM_TESTS_INFER_BENCH_H

#include "tests/bench/bench_kit.h"

#define BI_PREFILL 512u
#define BI_CONTEXT 64u /* tokens before decoding begins */
#define BI_DECODE 32u  /* steps of one turn */
#define BI_STREAMS 8u
#define BI_PROMPT 4096u /* beside which 7 streams decode */

typedef struct bi_opts {
    unsigned threads;
    uint32_t repeat;
    const char *only;    /* lines whose name holds it; NULL: all */
    const char *model;   /* as bk_model_file names it */
    const char *mode[4]; /* NULL-ended */
    bool json;
} bi_opts;

/* ==== ours: one turn, tokens a second ==== */
fm_status bi_prefill(fm_model *m, double *tok_s);
/* streams rows a step, row b of model m[b % models]. */
fm_status bi_decode(fm_model *const *m, uint32_t models, uint32_t streams, double *tok_s);

typedef struct bi_gaps {            /* milliseconds between tokens of 7 streams */
    double alone_median, alone_p99; /* over as many tokens as were made beside the prompt */
    double beside_median, beside_p99;
    double prompt_s; /* until the first token after the long prompt */
} bi_gaps;
fm_status bi_gaps_of(fm_model *m, bi_gaps *out);

/* ==== peers: one turn, tokens a second; 0 where the program or the file is missing, where the peer
 * does not read the file's types, and for those but llama.cpp with one thread ==== */
typedef enum bi_peer { BI_LLAMA, BI_IK, BI_OPENVINO, BI_PEERS } bi_peer;
extern const char *const bi_peer_name[BI_PEERS];
double bi_peer_prefill(bi_peer peer, const char *gguf, unsigned threads);
double bi_peer_decode(bi_peer peer, const char *gguf, unsigned threads, uint32_t streams);
/* llama.cpp alone. */
double bi_peer_lora(const char *gguf, unsigned threads, const char *ranks);

/* KL divergence and top-1 agreement of fast and of llama.cpp against exact. */
int bi_error(const bi_opts *o);

#endif
