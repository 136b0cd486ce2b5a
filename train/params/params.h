/* params.h - what trains, as flat buffers; tensors of trees by name. */
#ifndef FM_TRAIN_PARAMS_H
#define FM_TRAIN_PARAMS_H

#include "infer/model.h"
#include "store/source.h"
#include "train/train.h"

FM_BEGIN_DECLS

/* Flat device buffers, so that clipping and AdamW are one call each. */
typedef struct fmt_param {
    char *name; /* as the result names it */
    fm_shape shape;
    uint64_t n;
    uint64_t at;       /* first float in p, g, m, v; a multiple of 16 */
    fm_weight *weight; /* own product layout, NULL where none is needed */
    float lr_scale;    /* of the learning rate: LoRA+; 1 */
    /* Not 0: [cols / turned][rows][turned] in the buffers, of shape [rows, cols]. */
    uint32_t turned;
    /* Over stages (params/stage.h) `at` is where its part here begins, floats skip .. skip + here -
     * 1 of it; else here is n. whole_at: first float in the buffers that one process has. */
    uint64_t whole_at, skip, here;
    uint32_t stage;     /* that updates it */
    uint64_t per_layer; /* not 0: it is cut by layers, so many floats of each */
} fmt_param;

#define FMT_ZERO_FLOATS ((uint64_t)1 << 13)

typedef struct fmt_params {
    fm_backend *be;
    fmt_param *item;
    size_t count, cap;
    uint64_t total; /* floats of each buffer, padding included (which stays 0) */
    float *p, *g, *m, *v;
    float *zero; /* [FMT_ZERO_FLOATS] zeros to copy from */
    double *sum; /* device: fmt_params_sums */
    /* Of several ranks (params/zero.h) this one updates its stripes and has their moments alone,
     * one stripe behind the other: m, v [own]. comm NULL: one stripe, which is all that is here. */
    struct fm_comm *comm;
    uint64_t stripe, own, piece; /* piece: floats of a stripe that travel at once */
    /* Of several stages: total counts what this one updates, comm its ranks; behind total in p and g
     * lie `guest` floats of a tied embedding, whose head is here and which the first stage updates. */
    struct fmt_stage *stage; /* NULL: all layers are here */
    struct fmt_edges *edges; /* how blocks of the norm lie to the ranks */
    uint64_t whole, guest;   /* floats of one process's buffers */
    int32_t tied;            /* the parameter that the first and the last stage share; -1 */
} fmt_params;

FM_CHECKED fm_status fmt_params_add(fmt_params *ps, int32_t *index, const char *name,
                                    const fm_shape *shape);
/* After the last add. moments: m and v too. */
FM_CHECKED fm_status fmt_params_alloc(fmt_params *ps, fm_backend *be, bool moments);
FM_CHECKED fm_status fmt_params_put(fmt_params *ps, int32_t index, const float *host);
/* which: ps->p, g, m or v; host has total floats. */
FM_CHECKED fm_status fmt_params_get_all(const fmt_params *ps, const float *which, float *host);
FM_CHECKED fm_status fmt_params_put_all(const fmt_params *ps, float *which, const float *host);
void fmt_params_zero_grad(fmt_params *ps);
void fmt_params_put_zeros(const fmt_params *ps, float *x, uint64_t floats);
/* The gradient's norm in two halves: sums of squares are added to sums (device, fmt_params_sums of
 * them, zero before), queued; once they are on the host the norm follows, over all ranks. */
size_t fmt_params_sums(const fmt_params *ps);
void fmt_params_squares(const fmt_params *ps, double *sums);
FM_CHECKED fm_status fmt_params_norm(const fmt_params *ps, const double *sums, double *norm);
/* Both at once, and the wait between them. */
FM_CHECKED fm_status fmt_params_grad_norm(fmt_params *ps, double *norm);
/* One AdamW step number `step` (from 1), of all ranks. The net's fmt_net_refresh follows. */
FM_CHECKED fm_status fmt_params_step(fmt_params *ps, const fm_train_config *c, double lr,
                                     uint64_t step, float g_scale);
/* Values (or gradients) as a result's tensors in dtype; FM_DTYPE_NONE: as parent's tensors of the
 * same names where those are F32, BF16 or F16, else F32. */
FM_CHECKED fm_status fmt_params_result(const fmt_params *ps, const float *which, fm_dtype dtype,
                                       const fm_tree *parent, fm_train_result *out);
void fmt_params_release(fmt_params *ps);

/* Values of same-named tensors of tree below prefix. need_all: FM_EBASE where one is missing. */
FM_CHECKED fm_status fmt_params_load(fmt_params *ps, const fm_tree *tree, const fm_provider *p,
                                     const char *prefix, bool need_all);

/* ---- tensors.c ---- */
/* One tensor of the tree as float32 on the host (fm_free). */
FM_CHECKED fm_status fmt_read_f32(float **out, const fm_provider *p, const fm_entry *e);
const fm_entry *fmt_find_tensor(const fm_tree *tree, const char *name);
/* First 64 bits of SHA-256 over "<purpose>\n<name>": the RNG stream of a tensor. */
FM_CHECKED fm_status fmt_stream(uint64_t *out, const char *purpose, const char *name);

FM_END_DECLS
#endif
