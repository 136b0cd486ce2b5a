/* store_kit.h - what bench_store measures with: clocks, peers, codec counts, peaks of memory. */
#ifndef FM_BENCH_STORE_KIT_H
#define FM_BENCH_STORE_KIT_H

#include "store/store.h"
#include "tests/testkit.h"

/* Of the process, all threads: with the kernel's part, which on a virtual machine is mostly fresh
 * pages for files, and without it. */
typedef struct sk_cpu {
    double all_s, user_s;
} sk_cpu;
sk_cpu sk_cpu_now(void);
void sk_cpu_add(sk_cpu *sum, const sk_cpu *begun); /* the time since then */
double sk_wall_s(void);

void sk_print_limits(void); /* memcpy, SHA-256 and writing a file on one core, in this run */
void sk_same_file(const char *a, const char *b);

#define SK_PEERS_MAX 4
typedef struct sk_peers {
    char name[SK_PEERS_MAX][32];
    double percent[SK_PEERS_MAX]; /* of raw */
    size_t count;
    char skipped[256]; /* who is missing, and why; "" */
} sk_peers;
void sk_ask_peers(sk_peers *out, const char *child, const char *parent /* may be NULL */);

/* How many bytes of raw tensors each summary of codecs holds. */
#define SK_CODECS_MAX 32
typedef struct sk_codecs {
    char name[SK_CODECS_MAX][40];
    uint64_t raw[SK_CODECS_MAX], stored[SK_CODECS_MAX];
    size_t count;
} sk_codecs;
void sk_count_codecs(sk_codecs *k, fm_store *s, const fm_tree *tree);
void sk_print_codecs(const sk_codecs *k);

/* Peaks since sk_watch_begin, sampled: anonymous memory, and the highest resident size that the
 * kernel counted (VmHWM, which counts mapped files too). */
typedef struct sk_watch sk_watch;
sk_watch *sk_watch_begin(void);
void sk_watch_end(sk_watch *w, uint64_t *anon_bytes, uint64_t *hwm_bytes); /* frees */

/* A synthetic model of that size in, out, in again; in `dir` or a scratch folder. */
int sk_big(double gigabytes, const char *dir);

#endif
