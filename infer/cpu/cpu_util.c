/* cpu_util.c - helpers of every operation of the CPU backends: scratch memory, the thread pool, the
 * failure that is kept until sync. */
#include "infer/cpu/cpu.h"

#include <stdatomic.h>

#include "store/base/mem.h"

void *fmi_scratch_get(fmi_scratch *s, size_t bytes)
{
    if (bytes > s->cap_bytes || !s->bytes) {
        fm_free(s->bytes);
        s->cap_bytes = 0;
        s->bytes = fm_aligned_alloc(64, bytes + bytes / 4 + 64);
        if (s->bytes)
            s->cap_bytes = bytes + bytes / 4 + 64;
    }
    return s->bytes;
}

void fmi_stick(fmi_cpu *cpu, fm_status rc)
{
    if (rc < 0 && cpu->failed == FM_OK) {
        cpu->failed = rc;
        fm_error_save(&cpu->error);
    }
}

void fmi_run(fmi_cpu *cpu, size_t count, size_t min_chunk, fm_pool_fn fn, void *ctx)
{
    if (cpu->failed == FM_OK && count > 0)
        fmi_stick(cpu, fm_pool_run(cpu->pool, count, min_chunk, fn, ctx));
}

typedef struct unit_queue {
    fmi_cpu *cpu;
    atomic_size_t next;
    size_t count;
    fmi_unit_fn fn;
    void *ctx;
} unit_queue;

static fm_status unit_worker(void *ctx, size_t begin, size_t end, unsigned worker)
{
    unit_queue *q = ctx;
    fm_status rc = FM_OK;

    (void)begin;
    (void)end;
    while (rc == FM_OK) {
        size_t unit = atomic_fetch_add_explicit(&q->next, 1, memory_order_relaxed);
        if (unit >= q->count)
            break;
        rc = q->fn(q->ctx, unit, &q->cpu->worker[worker]);
    }
    return rc;
}

void fmi_run_units(fmi_cpu *cpu, size_t count, bool parallel, fmi_unit_fn fn, void *ctx)
{
    unit_queue q = {.cpu = cpu, .count = count, .fn = fn, .ctx = ctx};

    fmi_run(cpu, parallel ? FM_MIN(count, (size_t)cpu->threads) : 1, 1, unit_worker, &q);
}
