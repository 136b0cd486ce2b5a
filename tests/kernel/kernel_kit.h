/* kernel_kit.h - run one operation on any backend, with guarded outputs, and compare the runs.
 *
 * A case is a function that makes its inputs (the same numbers every time: they come from the
 * counter RNG), calls one operation and registers what it wrote. kk_check runs it on the oracle, on
 * every instruction set that this CPU has and on 1, 2 and 3 threads: the first is held to a
 * tolerance, the others to each other's bits. With KK_DEVICE=cuda it runs it on this CPU once and
 * on the GPU of FMSTORE_CUDA_MODULE (emulated or real) instead, and wants the CPU's bits. */
#ifndef FM_TESTS_KERNEL_KIT_H
#define FM_TESTS_KERNEL_KIT_H

#include "tests/testkit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infer/cpu/cpu.h"
#include "infer/device/module.h"
#include "store/base/math/rng.h"

#define KK_GUARD 64u
#define KK_GUARD_VALUE 12345.678f

typedef struct kk {
    fm_backend *be;
    uint64_t stream;
    void *ptr[64];
    size_t ptrs;
    struct {
        float *base; /* with KK_GUARD floats on both sides */
        size_t n;
    } out[8];
    size_t outs;
    float *result; /* every output, one after another */
    size_t result_n;
} kk;

typedef void (*kk_case)(kk *k, const uint32_t *dim);

/* Memory that the case and the operation both touch; a GPU's is pinned. */
static inline void *kk_alloc(kk *k, size_t bytes)
{
    void **ptr = &k->ptr[k->ptrs++];

    assert_true(k->ptrs <= FM_ARRAY_LEN(k->ptr));
    if (k->be && k->be->host_alloc)
        tk_ok(k->be->host_alloc(k->be, ptr, bytes));
    else
        *ptr = fm_malloc(bytes);
    assert_non_null(*ptr);
    return *ptr;
}

static inline void *kk_zeros(kk *k, size_t bytes)
{
    return memset(kk_alloc(k, bytes), 0, bytes);
}

static inline void kk_fill(kk *k, float *x, size_t n, double size)
{
    k->stream++;
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((2.0 * fm_rng_uniform(7, k->stream, i) - 1.0) * size);
}

/* n values in [-size, size). */
static inline float *kk_in(kk *k, size_t n, double size)
{
    float *x = kk_alloc(k, (n + 1) * sizeof *x);
    kk_fill(k, x, n, size);
    return x;
}

/* As kk_in, but written by the operation; guarded on both sides. */
static inline float *kk_out(kk *k, size_t n, double size)
{
    float *base = kk_alloc(k, (n + 2 * KK_GUARD) * sizeof *base);

    for (size_t i = 0; i < n + 2 * KK_GUARD; i++)
        base[i] = KK_GUARD_VALUE;
    kk_fill(k, base + KK_GUARD, n, size);
    assert_true(k->outs < FM_ARRAY_LEN(k->out));
    k->out[k->outs].base = base;
    k->out[k->outs++].n = n;
    return base + KK_GUARD;
}

/* 0 .. n-1 shuffled. */
static inline int32_t *kk_shuffled(kk *k, uint32_t n)
{
    int32_t *p = kk_alloc(k, (n + 1u) * sizeof *p);
    uint32_t *u = (uint32_t *)(void *)p;

    fm_rng_permutation(u, n, 11, ++k->stream);
    return p;
}

static inline fm_weight *kk_role(fm_backend *be, fm_role role, const float *w, uint32_t n,
                                 uint32_t kdim)
{
    fm_weight *out;
    tk_ok(be->weight_new(be, &out, role, FM_F32, n, kdim, w));
    return out;
}

static inline fm_weight *kk_weight(kk *k, const float *w, uint32_t n, uint32_t kdim)
{
    return kk_role(k->be, FM_ROLE_LINEAR, w, n, kdim);
}

/* A low-rank term from plain factors a [r, k], b [n, r]; kk_lora_free frees its factors. */
static inline fm_lora kk_lora(fm_backend *be, float *y, size_t ldy, const float *a, const float *b,
                              uint32_t n, uint32_t kdim, uint32_t r)
{
    return (fm_lora){.y = y,
                     .ldy = ldy,
                     .a = kk_role(be, FM_ROLE_LORA_A, a, r, kdim),
                     .b = kk_role(be, FM_ROLE_LORA_B, b, n, r),
                     .scale = 1.0f};
}

static inline void kk_lora_free(fm_backend *be, const fm_lora *l)
{
    union {
        const fm_weight *in;
        fm_weight *out;
    } a = {.in = l->a}, b = {.in = l->b};
    be->weight_free(be, a.out);
    be->weight_free(be, b.out);
}

static inline void kk_gather(kk *k)
{
    size_t at = 0;

    k->result_n = 0;
    for (size_t o = 0; o < k->outs; o++)
        k->result_n += k->out[o].n;
    k->result = fm_malloc((k->result_n + 1) * sizeof *k->result);
    assert_non_null(k->result);
    for (size_t o = 0; o < k->outs; o++) {
        const float *base = k->out[o].base;
        size_t n = k->out[o].n;
        for (size_t i = 0; i < KK_GUARD; i++)
            if (base[i] != KK_GUARD_VALUE || base[KK_GUARD + n + i] != KK_GUARD_VALUE)
                fail_msg("output %zu: wrote outside, guard %zu", o, i);
        memcpy(k->result + at, base + KK_GUARD, n * sizeof *base);
        at += n;
    }
    for (size_t i = 0; i < k->ptrs; i++)
        if (k->be && k->be->host_free)
            k->be->host_free(k->be, k->ptr[i]);
        else
            fm_free(k->ptr[i]);
}

/* The case's outputs on one backend; result is the caller's to fm_free. */
static inline kk kk_run(fm_backend *be, kk_case fn, const uint32_t *dim)
{
    kk k = {.be = be};

    fn(&k, dim);
    tk_ok(be->sync(be));
    kk_gather(&k);
    return k;
}

static const char *const kk_isas[] = {"generic", "avx2", "avx512"};

static inline void kk_same_bits(const kk *a, const kk *b, const char *what, const char *isa,
                                unsigned threads)
{
    assert_int_equal(a->result_n, b->result_n);
    for (size_t i = 0; i < a->result_n; i++)
        if (memcmp(&a->result[i], &b->result[i], sizeof(float)) != 0 &&
            !(isnan(a->result[i]) && isnan(b->result[i]))) /* which NaN is not specified */
            fail_msg("%s: %s with %u threads gives %a at %zu, expected %a", what, isa, threads,
                     (double)b->result[i], i, (double)a->result[i]);
}

static inline void kk_close(const kk *want, const kk *got, double tol, const char *what)
{
    double rel = tk_rel_norm(got->result, want->result, want->result_n);
    double norm = 0.0, worst = tk_max_abs_diff(got->result, want->result, want->result_n);

    for (size_t i = 0; i < want->result_n; i++)
        norm = fmax(norm, fabs((double)want->result[i]));
    if (!(rel <= tol) || !(worst <= 8.0 * tol * norm))
        fail_msg("%s: relative error %g, largest %g of %g, allowed %g", what, rel, worst, norm,
                 tol);
}

/* The GPU of KK_DEVICE=cuda, NULL without that. The module stays open. Where there is no GPU the
 * whole program is skipped. */
static inline fm_backend *kk_card(const char *mode)
{
    static const fm_module *module;
    const char *want = getenv("KK_DEVICE");
    fm_backend *be;

    if (!want || strcmp(want, "cuda") != 0)
        return NULL;
    if (!module) {
        uint32_t cards;
        tk_ok(fm_module_cuda(&module));
        fm_status rc = module->count(&cards);
        if (rc == FM_EUNSUPPORTED) {
            print_message("skipped: %s\n", fm_error_text());
            exit(77);
        }
        tk_ok(rc);
    }
    tk_ok(module->open(&be, 0, mode, NULL));
    return be;
}

/* For tests that open a backend themselves: the GPU of KK_DEVICE=cuda, else the CPU. Results are
 * there after sync; memory is kk_alloc's. */
static inline fm_backend *kk_open_exact(fm_pool *pool)
{
    fm_backend *be = kk_card("exact");

    if (!be)
        tk_ok(fm_backend_open(&be, "exact", pool));
    return be;
}

static inline fm_backend *kk_exact(void)
{
    return kk_open_exact(NULL);
}

/* At the top of a test of the CPU backend's own matters. */
static inline void kk_cpu_only(void)
{
    if (getenv("KK_DEVICE"))
        skip();
}

static inline void kk_check_card(const char *what, kk_case fn, const uint32_t *dim,
                                 fm_backend *card)
{
    fm_backend *cpu;

    tk_ok(fm_backend_open(&cpu, "exact", NULL));
    kk want = kk_run(cpu, fn, dim), got = kk_run(card, fn, dim);
    kk_same_bits(&want, &got, what, card->isa, 1);
    fm_free(want.result);
    fm_free(got.result);
    fm_backend_close(cpu);
    fm_backend_close(card);
}

/* Every variant and number of threads (or the GPU) against the first, bit for bit: the caller's to
 * free, empty for a GPU. */
static inline kk kk_check_bits(const char *what, kk_case fn, const uint32_t *dim)
{
    fm_backend *card = kk_card("exact");
    kk first = {0};

    if (card) {
        kk_check_card(what, fn, dim, card);
        return first;
    }
    for (unsigned threads = 1; threads <= 3; threads++) {
        fm_pool *pool;
        tk_ok(fm_pool_new(&pool, threads));
        for (size_t i = 0; i < FM_ARRAY_LEN(kk_isas); i++) {
            fm_backend *be;
            fm_status rc = fmi_cpu_open_isa(&be, pool, kk_isas[i]);
            if (rc == FM_EUNSUPPORTED)
                continue;
            assert_int_equal(rc, FM_OK);
            kk got = kk_run(be, fn, dim);
            if (first.result) {
                kk_same_bits(&first, &got, what, kk_isas[i], threads);
                fm_free(got.result);
            } else {
                first = got;
            }
            fm_backend_close(be);
        }
        fm_pool_free(pool);
    }
    return first;
}

/* kk_check_bits, and on a CPU the oracle within tol (norm-wise; single values within 8 tol of the
 * largest). */
static inline void kk_check(const char *what, kk_case fn, const uint32_t *dim, double tol)
{
    kk got = kk_check_bits(what, fn, dim);
    fm_backend *ref;

    if (!got.result)
        return;
    tk_ok(fm_backend_cpu_ref(&ref));
    kk want = kk_run(ref, fn, dim);
    kk_close(&want, &got, tol, what);
    fm_backend_close(ref);
    fm_free(got.result);
    fm_free(want.result);
}

#endif
