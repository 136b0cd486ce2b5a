/* train_bench.h - what the files of bench_train share: a case, its runs, its limit, its peer. */
#ifndef FM_TESTS_BENCH_TRAIN_BENCH_H
#define FM_TESTS_BENCH_TRAIN_BENCH_H

#include "tests/bench/bench_kit.h"
#include "train/train.h"

#define TB_ROWS 512u /* of an inference step: nothing here infers */

typedef struct tb_case {
    const char *name;
    const char *mode; /* of the engine */
    fm_method method;
    uint32_t children, batch, tokens; /* batch sequences of `tokens` for each child a step */
    double share;                  /* goal, of oneDNN's rate on the step's own products; 0: none */
    double solo;                   /* goal, of the children's runs one after another; 0: none */
    const char *peer, *peer_dtype; /* train_torch.py's case; a child's where there are several */
} tb_case;

typedef struct tb_bench {
    const char *model; /* SmolLM2's GGUF */
    fm_source *src;
    fm_arch arch;
    unsigned threads;
    uint32_t turns, steps; /* timed steps of a turn */
    const char *python;    /* FM_TORCH; NULL: no peer */
} tb_bench;

/* Best seconds of a step, all children together. One thread is timed by the process's own clock,
 * which a busy machine does not disturb; more by the wall's. */
typedef struct tb_run {
    double step;
    double loss; /* of the first child's first step */
} tb_run;

/* ==== train_cases.c: our side ==== */

/* Children first, first + 1, .. in one pass. Keeps the best in *out (zeroed: nothing yet). */
void tb_train(const tb_bench *b, fm_engine *e, const tb_case *c, uint32_t first, uint32_t children,
              bool recompute, uint32_t steps, tb_run *out);
/* In a process of its own: peak resident memory of two steps. 0 where it failed. */
double tb_peak_mb(const tb_bench *b, const tb_case *c, bool recompute);
/* What that process does: prints its JSON. */
int tb_peak_child(const tb_bench *b, const tb_case *c, bool recompute);
/* Best seconds from the command `fmstore derive` to the beginning of its first step, the model in a
 * store; 0 where the data is missing. */
double tb_command_s(const tb_bench *b);

/* ==== train_limits.c: what oneDNN needs for the products of one step ==== */

typedef struct tb_limit tb_limit;
/* rows of all children together. Frozen weights: y and the gradient of x; full: that of w too. */
tb_limit *tb_limit_open(const fm_arch *a, int kind, uint32_t rows, bool full);
void tb_limit_take(tb_limit *l); /* one more turn of each product */
double tb_limit_s(const tb_limit *l);
double tb_limit_flops(const tb_limit *l);
void tb_limit_close(tb_limit *l);
/* oneDNN's product of this kind runs on this CPU. */
bool tb_limit_has(int kind);

/* ==== train_peer.c: PyTorch + PEFT, a process a turn ==== */

typedef struct tb_peer {
    double step, loss, peak_mb, imports_mb, before_first_step; /* seconds, MB; 0: not run */
    char what[160];                                            /* versions, instructions */
} tb_peer;
/* Keeps the best in *out. false: it did not run. */
bool tb_peer_turn(const tb_bench *b, const char *name, const char *dtype, uint32_t steps,
                  tb_peer *out);

double tb_clock_s(const tb_bench *b);

#endif
