/* inside.h - what the files of the device apart share. */
#ifndef FM_TESTS_APART_INSIDE_H
#define FM_TESTS_APART_INSIDE_H

#include <pthread.h>

#include "infer/sampler.h"
#include "tests/apart/apart.h"

typedef void (*run_fn)(fm_backend *in, const void *args);

typedef struct task {
    run_fn run;
    const char *name;
    uint64_t number;
    struct task *next;
    bool kept; /* by a record: not freed when it ran */
    _Alignas(16) uint8_t args[];
} task;

typedef struct range {
    uint8_t *begin;
    size_t bytes;
    bool live;
} range;

typedef struct record {
    uint64_t key;
    task *first;
    struct record *next;
    bool ran;
} record;

typedef struct floats { /* a low-rank factor that training reads: its copy in our memory */
    const fm_weight *w;
    float *copy;
} floats;

typedef struct apart {
    fm_backend be; /* first */
    fm_backend *in;
    apart_kind kind;
    uint8_t *base, *alias; /* what the host knows; what operations use */
    int fd;
    pthread_mutex_t mem; /* used, range, factor */
    size_t used;
    range *range; /* ascending */
    size_t ranges;
    floats *factor;
    size_t factors;
    pthread_mutex_t lock; /* the queue and its running */
    task *first, **last;
    uint64_t number;
    pthread_t capturing;
    bool captures;
    uint64_t capture_key;
    task *kept, **kept_last;
    record *records;
    fm_sampler *sampler;
    uint32_t sampler_vocab;
    uint64_t fail_in; /* 0: never */
    bool failed;
    apart_stats stats;
} apart;

static inline apart *apart_of(fm_backend *be)
{
    return be->ctx;
}

_Noreturn void apart_stop(const char *op, const char *what, const void *p);
/* Where operations find what the host calls p; NULL stays NULL. Stops the program where p is no
 * live memory of the device. */
void *apart_at(apart *a, const void *p, const char *op);
/* Names of operations begin with '=', of what a failed device does all the same with '~'. */
task *apart_task(run_fn run, const char *name, size_t bytes);
uint64_t apart_enqueue(apart *a, task *t);
void apart_push(apart *a, run_fn run, const char *name, const void *args, size_t bytes);
void apart_install_ops(apart *a);

#endif
