/* cpu_util.c - what every operation of the CPU's backends leans on: scratch memory, the pool, the
 * failure that sticks until sync. */
#include "infer/cpu/cpu.h"
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

void fmi_run_queue(fmi_queue *q, fmi_cpu *cpu, size_t count, bool parallel, fm_pool_fn fn,
                   void *ctx)
{
    q->cpu = cpu;
    q->count = count;
    atomic_init(&q->next, 0);
    fmi_run(cpu, parallel ? FM_MIN(count, (size_t)cpu->threads) : 1, 1, fn, ctx);
}
