/* cpu.c - the CPU backend in mode `exact`: life cycle, memory, the choice of instruction set.
 *
 * Calls run at once and in order; a call that cannot get scratch memory leaves its failure for
 * sync, as backend.h requires. The instruction set is chosen here and nowhere else; the bits of a
 * result do not depend on it. */
#include "infer/cpu/cpu.h"

#include <string.h>

#include "store/base/mem.h"

fm_status fmi_exact_alloc(fm_backend *be, void **out, size_t bytes)
{
    (void)be;
    *out = fm_zeroed_alloc(bytes);
    return *out ? FM_OK : FM_ENOMEM;
}

void fmi_exact_free(fm_backend *be, void *ptr)
{
    (void)be;
    fm_zeroed_free(ptr);
}

fm_status fmi_exact_upload(fm_backend *be, void *dst, const void *src, size_t bytes)
{
    (void)be;
    if (bytes > 0)
        memcpy(dst, src, bytes);
    return FM_OK;
}

fm_status fmi_exact_sync(fm_backend *be)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    fm_status rc = cpu->failed;

    if (rc < 0)
        fm_error_restore(&cpu->error);
    cpu->failed = FM_OK;
    return rc;
}

fm_status fmi_exact_download(fm_backend *be, void *dst, const void *src, size_t bytes)
{
    FM_TRY(fmi_exact_sync(be));
    return fmi_exact_upload(be, dst, src, bytes);
}

static void cpu_close(fm_backend *be)
{
    fmi_cpu *cpu = fmi_cpu_of(be);

    for (unsigned i = 0; cpu->worker && i < cpu->threads; i++)
        fm_free(cpu->worker[i].bytes);
    fm_free(cpu->worker);
    fm_free(cpu->shared.bytes);
    fm_free(cpu);
}

typedef struct isa_choice {
    const fmi_kern *kern;
    bool present;
} isa_choice;

/* Best first. __builtin_cpu_supports also checks whether the system saves the registers. */
static const fmi_kern *choose_kern(const char *isa)
{
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    const isa_choice choice[] = {
        {&fmi_kern_avx512, avx512}, {&fmi_kern_avx2, avx2}, {&fmi_kern_generic, true}};
#elif defined(__aarch64__) /* NEON is part of the architecture */
    const isa_choice choice[] = {{&fmi_kern_neon, true}, {&fmi_kern_generic, true}};
#else
    const isa_choice choice[] = {{&fmi_kern_generic, true}};
#endif
    for (size_t i = 0; i < FM_ARRAY_LEN(choice); i++)
        if (choice[i].present && (!isa || strcmp(isa, choice[i].kern->isa) == 0))
            return choice[i].kern;
    return NULL;
}

fm_status fmi_cpu_open_isa(fm_backend **out, fm_pool *pool, const char *isa)
{
    const fmi_kern *kern = choose_kern(isa);
    fmi_cpu *cpu;

    *out = NULL;
    if (!kern)
        return fm_fail(FM_EUNSUPPORTED, "this CPU or build has no %s kernels", isa);
    cpu = fm_calloc(1, sizeof *cpu);
    if (!cpu)
        return FM_ENOMEM;
    cpu->pool = pool;
    cpu->kern = kern;
    cpu->threads = fm_pool_threads(pool);
    cpu->be =
        (fm_backend){.name = "cpu",
                     .mode = "exact",
                     .kernel_class = "exact-f32-1",
                     .layout = "f32-panel32-1",
                     .isa = kern->isa,
                     .host_visible = true,
                     .attends = FM_ATTENDS_SINK | FM_ATTENDS_FIRST | FM_ATTENDS_TRAIN_SINK |
                                FM_ATTENDS_BIAS | FM_ATTENDS_TRAIN_BIAS | FM_ATTENDS_TRAIN_WINDOW |
                                FM_ATTENDS_WIDE,
                     .ctx = cpu,
                     .close = cpu_close,
#define SLOT(op) .op = fmi_exact_##op,
                     FMI_EXACT_OPS(SLOT)
#undef SLOT
        };
    cpu->worker = fm_calloc(cpu->threads, sizeof *cpu->worker);
    if (!cpu->worker) {
        cpu_close(&cpu->be);
        return FM_ENOMEM;
    }
    *out = &cpu->be;
    return FM_OK;
}
