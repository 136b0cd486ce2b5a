/* params.h - the parameters that train, as flat device buffers; tensors of trees by name. */
#ifndef FM_TRAIN_PARAMS_H
#define FM_TRAIN_PARAMS_H

#include "infer/model.h"
#include "store/source.h"
#include "train/train.h"

FM_BEGIN_DECLS

/* A parameter. Values, gradients and moments of all parameters are flat device buffers, so that
 * clipping and AdamW are one call each. */
typedef struct fmt_param {
    char *name; /* name of the tensor in the result */
    fm_shape shape;
    uint64_t n;
    uint64_t at;       /* first float in p, g, m, v; a multiple of 16 */
    fm_weight *weight; /* a product layout of its own; NULL where none is needed */
    float lr_scale;    /* factor of the learning rate: LoRA+, else 1 */
    /* If not 0, the buffers hold [cols / turned][rows][turned] of a tensor [rows, cols]. */
    uint32_t turned;
    /* Over stages (params/stage.h) this process holds floats skip .. skip + here - 1 of the
     * parameter, and `at` is where they begin; without stages here is n. whole_at: its first float
     * in the buffers of one process that holds everything. */
    uint64_t whole_at, skip, here;
    uint32_t stage;     /* the stage that updates it */
    uint64_t per_layer; /* if not 0: floats of each layer that stages cut it into */
} fmt_param;

/* A tensor of an adapter that is drawn once and stored with what trains. */
typedef struct fmt_fixed {
    char *name;
    fm_dtype dtype; /* F32, or I32 of whole numbers */
    fm_shape shape;
    float *value; /* host */
} fmt_fixed;

#define FMT_ZERO_FLOATS ((uint64_t)1 << 13)

typedef struct fmt_params {
    fm_backend *be;
    fmt_param *item;
    size_t count, cap;
    fmt_fixed *fixed;
    size_t fixed_count, fixed_cap;
    uint64_t total; /* floats of each buffer with padding, which stays 0 */
    float *p, *g, *m, *v;
    float *zero; /* [FMT_ZERO_FLOATS] zeros to copy from */
    double *sum; /* device: [fmt_params_sums] */
    /* With several ranks (params/zero.h) this rank updates its stripes and holds the moments of
     * these stripes alone, one after another: m, v [own]. comm NULL: one stripe, all of it. */
    struct fm_comm *comm;
    uint64_t stripe, own, piece; /* piece: floats of a stripe in one exchange */
    /* With several stages `total` counts the floats that this stage updates, and comm has the ranks
     * of this stage. On the last stage `guest` floats of a tied embedding, which the first stage
     * updates, lie behind total in p and g. */
    struct fmt_stage *stage; /* NULL: all layers are here */
    struct fmt_edges *edges; /* which rank holds which block of the norm */
    uint64_t whole, guest;   /* whole: floats of the buffers of one process that holds everything */
    int32_t tied;            /* the parameter that the first and the last stage share; -1 */
} fmt_params;

FM_CHECKED fm_status fmt_params_add(fmt_params *ps, int32_t *index, const char *name,
                                    const fm_shape *shape);
/* Adds a fixed tensor with room for its values, or finds the one of this name: *fresh false. */
FM_CHECKED fm_status fmt_params_fix(fmt_params *ps, int32_t *index, const char *name,
                                    fm_dtype dtype, const fm_shape *shape, bool *fresh);
/* Allocates the buffers, after the last fmt_params_add. moments: m and v too. */
FM_CHECKED fm_status fmt_params_alloc(fmt_params *ps, fm_backend *be, bool moments);
FM_CHECKED fm_status fmt_params_put(fmt_params *ps, int32_t index, const float *host);
/* Copies a whole buffer: which is ps->p, g, m or v; host has total floats. */
FM_CHECKED fm_status fmt_params_get_all(const fmt_params *ps, const float *which, float *host);
FM_CHECKED fm_status fmt_params_put_all(const fmt_params *ps, float *which, const float *host);
void fmt_params_zero_grad(fmt_params *ps);
void fmt_params_put_zeros(const fmt_params *ps, float *x, uint64_t floats);
/* The gradient's norm in two halves. fmt_params_squares queues the addition of sums of squares to
 * sums (on the device, fmt_params_sums of them, zero before). Once they are on the host,
 * fmt_params_norm gives the norm over all ranks. */
size_t fmt_params_sums(const fmt_params *ps);
void fmt_params_squares(const fmt_params *ps, double *sums);
FM_CHECKED fm_status fmt_params_norm(const fmt_params *ps, const double *sums, double *norm);
/* Does both, and waits for the device between them. */
FM_CHECKED fm_status fmt_params_grad_norm(fmt_params *ps, double *norm);
/* AdamW step number `step` (from 1) over all ranks. The caller must call fmt_net_refresh next. */
FM_CHECKED fm_status fmt_params_step(fmt_params *ps, const fm_train_config *c, double lr,
                                     uint64_t step, float g_scale);
/* Values (or gradients) as the tensors of a result, in dtype. FM_DTYPE_NONE: in the type of the
 * parent's tensor of the same name where that is F32, BF16 or F16, else F32. */
FM_CHECKED fm_status fmt_params_result(const fmt_params *ps, const float *which, fm_dtype dtype,
                                       const fm_tree *parent, fm_train_result *out);
void fmt_params_release(fmt_params *ps);

/* Sets values from tensors of the same names below prefix. need_all: FM_EBASE if one lacks. */
FM_CHECKED fm_status fmt_params_load(fmt_params *ps, const fm_tree *tree, const fm_provider *p,
                                     const char *prefix, bool need_all);

/* ---- tensors.c ---- */
/* One tensor of the tree as float32 on the host (fm_free). */
FM_CHECKED fm_status fmt_read_f32(float **out, const fm_provider *p, const fm_entry *e);
const fm_entry *fmt_find_tensor(const fm_tree *tree, const char *name);
/* The number of a tensor's random stream: the first 64 bits of SHA-256 over "<purpose>\n<name>". */
FM_CHECKED fm_status fmt_stream(uint64_t *out, const char *purpose, const char *name);

FM_END_DECLS
#endif
