/* fast.h - inside mode fast of the CPU backend: its weights and shared helpers. */
#ifndef FM_INFER_CPU_FAST_H
#define FM_INFER_CPU_FAST_H

#include "infer/cpu/cpu.h"
#include "infer/cpu/fast/kern_fast.h"

typedef struct fmi_fast {
    const fmi_fast_kern *kern;
    fm_backend exact; /* the slots of mode exact */
    fm_backend fast;  /* mode bf16: the slots of mode fast for its weights */
} fmi_fast;

/* The layout of a weight; KERNELS.md states each one. */
typedef enum fmi_fast_layout {
    FMI_LAYOUT_INT8, /* panels of 16 outputs; block says which type */
    FMI_LAYOUT_BF16, /* panels of 32 outputs, pairs of k innermost */
    FMI_LAYOUT_F16,  /* panels of 32 outputs, k-major; x stays f32 */
    FMI_LAYOUT_F32,  /* mode exact's */
    FMI_LAYOUT_FILE, /* rows as stored; widened to f32 inside the product */
    FMI_LAYOUT_DOWN, /* role LORA_A: bf16 rows, k padded to 32 */
    FMI_LAYOUT_UP,   /* role LORA_B: bf16 panels of 16 outputs, pairs of r innermost */
} fmi_fast_layout;

typedef struct fmi_fast_weight {
    fmi_cpu_weight base; /* first; panel is the image, panels counts those of the layout */
    fm_dtype dtype;
    fmi_fast_layout layout;
    fmi_fast_block block;
    uint32_t depth;          /* blocks of 32 k; pairs of k (of r); f16: k; LORA_A: k padded */
    const uint8_t *q;        /* the image */
    const uint8_t *scale;    /* FMI_LAYOUT_INT8: begin of the scales */
    size_t panel_q, panel_s; /* bytes of one panel there */
    size_t row_bytes;        /* FMI_LAYOUT_FILE */
    uint32_t quads;          /* FMI_LAYOUT_INT8: quads of x that share a scale, 8 or 4 */
    int32_t offset;          /* FMI_LAYOUT_INT8: weight = scale * (unsigned + offset) (+ min) */
} fmi_fast_weight;

static inline fmi_fast *fmi_fast_of(fm_backend *be)
{
    return fmi_cpu_of(be)->fast;
}
static inline const fmi_fast_weight *fmi_fast_weight_of(const fm_weight *w)
{
    return (const fmi_fast_weight *)(const void *)w;
}
static inline uint32_t fmi_panel_outputs(const fmi_fast_weight *w)
{
    return w->layout == FMI_LAYOUT_INT8 || w->layout == FMI_LAYOUT_UP ? FMI_OUTPUTS : FMI_WIDE;
}

/* Each file fills its own slots. */
void fmi_fast_weight_install(fm_backend *be);
void fmi_fast_product_install(fm_backend *be);
void fmi_fast_lora_install(fm_backend *be);
void fmi_fast_attention_install(fm_backend *be);
void fmi_fast_elem_install(fm_backend *be);

/* Opens mode exact, allocates mode fast's state and chooses its kernels. */
FM_CHECKED fm_status fmi_fast_begin(fm_backend **out, fm_pool *pool, const char *isa);
/* Mode bf16 (cpu/exact/bf16.c); isa as below. */
FM_CHECKED fm_status fmi_cpu_open_bf16(fm_backend **out, fm_pool *pool, const char *isa);
/* The backend in mode fast; isa is a kernel table's name ("generic", "avx2", "avx512",
 * "avx512vnni", "avx512bf16"), NULL picks the best. FM_EUNSUPPORTED as fmi_cpu_open_isa. */
FM_CHECKED fm_status fmi_cpu_open_fast(fm_backend **out, fm_pool *pool, const char *isa);

#endif
