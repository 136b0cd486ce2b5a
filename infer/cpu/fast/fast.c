/* fast.c - opens mode fast: mode exact's context and element-wise operations, with weights and
 * products of its own. The instruction set is chosen here and nowhere else. */
#include "infer/cpu/fast/fast.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <string.h>

#include "store/base/mem.h"

typedef struct isa_choice {
    const fmi_fast_kern *kern;
    const char *exact; /* instruction set of mode exact's kernels to go with it; NULL: the best */
    bool present;
} isa_choice;

#if defined(__x86_64__)
/* Reads cpuid, because clang 14's __builtin_cpu_supports does not know f16c. F16C uses AVX's
 * registers, which the caller checks for. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

/* Best first. __builtin_cpu_supports also checks whether the system saves the registers. */
static isa_choice choose_kern(const char *isa)
{
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    bool bf16 = vnni && __builtin_cpu_supports("avx512bf16");
    const isa_choice choice[] = {{&fmi_fast_kern_avx512bf16, "avx512", bf16},
                                 {&fmi_fast_kern_avx512vnni, "avx512", vnni},
                                 {&fmi_fast_kern_avx512, "avx512", avx512},
                                 {&fmi_fast_kern_avx2, "avx2", avx2},
                                 {&fmi_fast_kern_generic, "generic", true}};
#else
    const isa_choice choice[] = {{&fmi_fast_kern_generic, NULL, true}};
#endif
    for (size_t i = 0; i < FM_ARRAY_LEN(choice); i++)
        if (choice[i].present && (!isa || strcmp(isa, choice[i].kern->isa) == 0))
            return choice[i];
    return (isa_choice){0};
}

static void fast_close(fm_backend *be)
{
    fmi_fast *fast = fmi_fast_of(be);
    void (*close)(fm_backend *) = fast->exact.close;

    fm_free(fast);
    close(be);
}

fm_status fmi_fast_begin(fm_backend **out, fm_pool *pool, const char *isa)
{
    const isa_choice choice = choose_kern(isa);
    fm_backend *be;

    *out = NULL;
    if (!choice.kern)
        return fm_fail(FM_EUNSUPPORTED, "this CPU or build has no %s kernels", isa);
    FM_TRY(fmi_cpu_open_isa(&be, pool, choice.exact));
    fmi_fast *fast = fm_calloc(1, sizeof *fast);
    if (!fast) {
        be->close(be);
        return FM_ENOMEM;
    }
    *fast = (fmi_fast){.kern = choice.kern, .exact = *be};
    fmi_cpu_of(be)->fast = fast;
    be->close = fast_close;
    be->keep_stored = NULL; /* these modes have layouts of their own */
    be->isa = choice.kern->isa;
    *out = be;
    return FM_OK;
}

fm_status fmi_cpu_open_fast(fm_backend **out, fm_pool *pool, const char *isa)
{
    FM_TRY(fmi_fast_begin(out, pool, isa));
    fm_backend *be = *out;

    be->mode = "fast";
    be->kernel_class = fmi_fast_of(be)->kern->kernel_class;
    be->layout = "fast-panel16-2";
    fm_backend_drop_training(be);
    fmi_fast_weight_install(be);
    fmi_fast_product_install(be);
    fmi_fast_lora_install(be);
    fmi_fast_attention_install(be);
    fmi_fast_elem_install(be);
    return FM_OK;
}
