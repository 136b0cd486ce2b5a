/* cpu.h - inside the CPU backend: its context, its weights and the helpers that its files share. */
#ifndef FM_INFER_CPU_CPU_H
#define FM_INFER_CPU_CPU_H

#include "infer/backend.h"
#include "infer/cpu/kern/kern.h"

/* Memory that one worker reuses from call to call; grows, never shrinks, dies with the backend. */
typedef struct fmi_scratch {
    void *bytes;
    size_t cap_bytes;
} fmi_scratch;

typedef struct fmi_cpu {
    fm_backend be; /* first: the backend is this object */
    fm_pool *pool; /* borrowed */
    const fmi_kern *kern;
    unsigned threads;
    fmi_scratch *worker; /* [threads] */
    fmi_scratch shared;  /* of the calling thread, used between parallel parts */
    fm_status failed;    /* the first failure since the last sync, with its text */
    fm_error_state error;
    bool keep_stored;      /* weights stay in the type that they are stored in */
    struct fmi_fast *fast; /* state of mode fast (cpu/fast/fast.h), NULL in mode exact */
} fmi_cpu;

/* Mode exact, role LINEAR: [n, k] as panels of 32 outputs x k, k-major inside a panel; a partial
 * last panel is padded with zeros. A panel's block of 512 k is one contiguous 64 KiB. With `stored`
 * set: n rows in the stored type. Roles LORA_*: f32 [n, k] row-major, panels 0. */
typedef struct fmi_cpu_weight {
    fm_role role;
    uint32_t n, k, panels;
    fm_dtype dtype; /* type of the bytes that the weight was made from */
    bool stored;    /* panel points to rows of dtype, row_bytes each */
    size_t row_bytes;
    float *panel;             /* the image */
    bool own;                 /* the image is freed with the weight */
    struct fmi_dx_layout *dx; /* NULL until weight_for_dx; freed with the weight */
} fmi_cpu_weight;
/* The object behind backend.h's handle; a slot that takes the handle const only reads it. */
static inline fmi_cpu_weight *fmi_cpu_weight_of(const fm_weight *w)
{
    return (fmi_cpu_weight *)(uintptr_t)w;
}

/* Such panels of W^T [k, n]. Their memory is reserved by weight_for_dx and filled by the second
 * product that uses them, so that a training run of one step, and the first step of any run, do not
 * wait for the second layout. */
typedef struct fmi_dx_layout {
    void *panels;
    uint64_t bytes;
    uint32_t products; /* products that ran before the panels were made */
    bool made;
} fmi_dx_layout;
typedef struct fmi_turn { /* context of filling them; an item is a panel of W^T */
    fmi_cpu *cpu;
    const fmi_cpu_weight *w;
} fmi_turn;
fm_status fmi_dx_reserve(fmi_cpu_weight *w, uint64_t bytes);
void fmi_dx_free(fmi_cpu_weight *w);
/* The panels that a product uses; NULL: use the first layout. */
const void *fmi_dx_use(fmi_cpu *cpu, const fmi_cpu_weight *w, size_t units, fm_pool_fn turn);
const float *fmi_dx_panels(fmi_cpu *cpu, const fmi_cpu_weight *w); /* the same in mode exact */
/* The panels that weight_update must fill as well; NULL: none are made yet. */
static inline void *fmi_dx_made(const fmi_cpu_weight *w)
{
    return w->dx && w->dx->made ? w->dx->panels : NULL;
}

static inline uint32_t fmi_panels_of(uint32_t n)
{
    return (n + FMI_PANEL - 1) / FMI_PANEL;
}
/* Rows k0..k0+kc and columns n0..n0+n (at most 32) of W, from its panels, k-major in dst [kc, 32].
 * depth: the weight's k. */
void fmi_turn_panel(const struct fmi_kern *kern, float *dst, const float *panels, uint32_t depth,
                    uint32_t k0, uint32_t kc, uint32_t n0, uint32_t n);
/* The same of a stored weight; row: scratch, 32 * kc + FMI_STORED_BLOCK floats. */
#define FMI_STORED_BLOCK 256u /* elements of the longest block of any type */
void fmi_stored_turned(const fmi_cpu_weight *w, float *dst, float *row, uint32_t k0, uint32_t kc,
                       uint32_t n0, uint32_t n);
/* A stored weight's outputs n0..n0+n as a panel [kc, 32]. rows: scratch, 32 * kc floats. */
void fmi_stored_panel(const struct fmi_kern *kern, const fmi_cpu_weight *w, float *dst, float *rows,
                      uint32_t k0, uint32_t kc, uint32_t n0, uint32_t n);

static inline fmi_cpu *fmi_cpu_of(fm_backend *be)
{
    return be->ctx;
}
/* NULL after fm_fail. 64-byte aligned; growing loses the contents. */
void *fmi_scratch_get(fmi_scratch *s, size_t bytes);
/* Runs fn over [0, count) on the pool; a failure is kept until sync, and nothing runs after it. */
void fmi_run(fmi_cpu *cpu, size_t count, size_t min_chunk, fm_pool_fn fn, void *ctx);
void fmi_stick(fmi_cpu *cpu, fm_status rc);

/* Runs fn on work items 0 .. count - 1, which threads take from a counter because items differ in
 * length; parallel false: the calling thread takes all. scratch: the thread's own. A failure ends
 * the work of its thread. */
typedef fm_status (*fmi_unit_fn)(void *ctx, size_t unit, fmi_scratch *scratch);
void fmi_run_units(fmi_cpu *cpu, size_t count, bool parallel, fmi_unit_fn fn, void *ctx);

/* Number of rows of a list entry: that of its segment, whose bounds are in memory (from, to; *rows
 * is moved to its first row), or m where from is NULL. */
static inline uint32_t fmi_segment(const int32_t *from, const int32_t *to, const int32_t **rows,
                                   uint32_t m)
{
    if (!from)
        return m;
    fm_assert(*from <= *to && (uint32_t)(*to - *from) <= m);
    *rows += *from;
    return (uint32_t)(*to - *from);
}
#define FMI_SETTLE(p) ((p)->m = fmi_segment((p)->from, (p)->to, &(p)->rows, (p)->m))
#define FMI_SETTLED 64u /* entries of a list that are settled at a time */
/* Calls run on the terms that have rows, their m and rows set. */
typedef void (*fmi_terms_fn)(fm_backend *be, const float *x, size_t ldx, uint32_t k,
                             const fm_lora *term, uint32_t terms);
void fmi_settle_terms(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                      uint32_t terms, fmi_terms_fn run);

/* The operations of mode exact, fmi_exact_<op>, each in the file of its family. */
#define FMI_EXACT_OPS(X)                                                                           \
    FM_BACKEND_FORWARD(X)                                                                          \
    FM_BACKEND_TRAINING(X)                                                                         \
    FM_BACKEND_RECURRENT(X)                                                                        \
    FM_BACKEND_RECURRENT_TRAINING(X)                                                               \
    X(weight_image) X(weight_map) X(weight_floats) X(weight_for_dx) X(keep_stored)
#define FMI_DECLARE(op) FM_BACKEND_FN(op, fmi_exact_##op);
FMI_EXACT_OPS(FMI_DECLARE)
#undef FMI_DECLARE

/* For tests: the backend on a given instruction set ("generic", "avx2", "avx512", "neon"); NULL
 * picks the best. FM_EUNSUPPORTED where this CPU or build lacks it. */
FM_CHECKED fm_status fmi_cpu_open_isa(fm_backend **out, fm_pool *pool, const char *isa);

#endif
