/* recipe.h - a tensor predicted from others by a named operation.
 *
 * A record may name, instead of a parent of its own dtype and shape, an operation, parameters and
 * up to 8 inputs of any dtype and shape. The operation predicts a tensor of the record's dtype and
 * shape, one leaf at a time from ranges of the inputs, and the record's leaves are coded against it
 * as against a parent's. So a wrong recipe costs bytes and never correctness; but the prediction
 * must have the same bits on every machine: each operation rounds as FORMAT.md section "Recipes"
 * says, every NaN that arithmetic makes is 0x7fc00000, and nothing depends on threads.
 *
 * Pure functions: no file, no store. Parameters and forms are untrusted: check them first. An
 * evaluation takes about 12 MiB at most, whatever the tensors' sizes. */
#ifndef FM_STORE_RECIPE_H
#define FM_STORE_RECIPE_H

#include "store/tensor.h"

FM_BEGIN_DECLS

#define FMS_PARENTS_MAX 8u
#define FMS_PARAMS_MAX 65536u
#define FMS_LORA_RANK_MAX 4096u

/* Values are in the files: never renumber. */
typedef enum fms_op {
    FMS_OP_NONE = 0,
    FMS_OP_CAST = 1,      /* one input's values in another dtype */
    FMS_OP_LINEAR = 2,    /* c0 x0 + c1 x1 + ... */
    FMS_OP_LORA = 3,      /* W + scale (B A); inputs W, A, B */
    FMS_OP_GATHER = 4,    /* pieces of the inputs' bytes, one after the other */
    FMS_OP_TRANSPOSE = 5, /* the last two dimensions changed places */
    FMS_OP_QUANT = 6,     /* quant/quantize.h */
    FMS_OP_ADAMW = 7,     /* adamw.h */
    FMS_OP_COUNT
} fms_op;

/* LINEAR: mode = form | FMS_LINEAR_NARROW | arithmetic << 8. Parameters: one f64 an input. */
enum {
    FMS_LINEAR_SUM = 0,     /* c0 x0, then + ck xk in order */
    FMS_LINEAR_SCALED = 1,  /* x0 + x1 + ..., then times c0 */
    FMS_LINEAR_DIVIDED = 2, /* x0 + x1 + ..., then divided by c0 */
    FMS_LINEAR_TASK = 3,    /* x0 + (c1 (x1 - x0) + c2 (x2 - x0) + ...) */
    FMS_LINEAR_FORMS,
    FMS_LINEAR_NARROW = 128 /* the inputs are first rounded to the result's dtype */
};
typedef enum fms_arithmetic {
    FMS_ARITH_F32 = 0,    /* each operation rounds to float32 */
    FMS_ARITH_FUSED = 1,  /* as F32, but a product and the addition after it round once */
    FMS_ARITH_F64 = 2,    /* each operation rounds to float64 */
    FMS_ARITH_STORED = 3, /* each operation rounds to float32 and then to the result's dtype */
    FMS_ARITH_COUNT
} fms_arithmetic;

/* LORA: mode = rounding | flags. Parameters: scale, f32. */
enum {
    FMS_LORA_F32 = 0,             /* one rounding to the result's dtype, at the end */
    FMS_LORA_DELTA = 1,           /* scale (B A) is rounded to the result's dtype too */
    FMS_LORA_STEPS = 2,           /* B A and scale (B A) are rounded to it too */
    FMS_LORA_TURNED = 16,         /* W is [in, out] (fan_in_fan_out) */
    FMS_LORA_NARROW_BASE = 32,    /* W is first rounded to the result's dtype */
    FMS_LORA_NARROW_FACTORS = 64, /* A and B are first rounded to it */
};

/* GATHER: the mode. Parameters of PIECES: per piece input u32 (0xffffffff: zeros), from u64, bytes
 * u64; of ROTARY and UNROTARY: heads u64. */
enum { FMS_GATHER_PIECES = 0, FMS_GATHER_ROTARY = 1, FMS_GATHER_UNROTARY = 2 };
#define FMS_PIECE_BYTES 20u
#define FMS_PIECE_ZEROS 0xffffffffu

/* ADAMW: mode = fms_adamw_mode | FMS_ADAMW_WEIGHTS. Parameters: fms_adamw_put's. Inputs: v and m of
 * the step before, m; for weights: w of the step before, m, v. */
#define FMS_ADAMW_WEIGHTS 16u

typedef struct fms_recipe {
    uint16_t op, mode; /* op FMS_OP_NONE: no recipe */
    fm_span params;
} fms_recipe;

typedef struct fms_form {
    fm_dtype dtype;
    fm_shape shape;
    uint64_t bytes;
} fms_form;

/* A recipe's result and inputs. read gives bytes [offset, offset + bytes) of an input, within
 * it. */
typedef struct fms_inputs {
    fms_form child;
    fms_form input[FMS_PARENTS_MAX];
    uint32_t count;
    void *ctx;
    fm_status (*read)(void *ctx, uint32_t input, uint64_t offset, void *dst, size_t bytes);
} fms_inputs;

const char *fms_op_name(uint16_t op); /* "cast", "linear", ...; "unknown" */

/* FM_ECORRUPT: these parameters and forms do not give such a tensor; FM_EVERSION: an unknown mode.
 * Does not call `read`. The functions below need a recipe that passed. */
FM_CHECKED fm_status fms_recipe_check(const fms_recipe *r, const fms_inputs *in);
/* The most leaves of input k that one leaf of the result needs. */
uint64_t fms_recipe_touches(const fms_recipe *r, const fms_inputs *in, uint32_t k);
/* Makes one leaf of the result. Errors: those of `read`, or FM_ENOMEM. */
FM_CHECKED fm_status fms_recipe_leaf(const fms_recipe *r, const fms_inputs *in, uint32_t leaf,
                                     uint8_t *dst);

/* The same for any part; for a plain dtype offset and bytes are multiples of an element's size. */
FM_CHECKED fm_status fms_recipe_range(const fms_recipe *r, const fms_inputs *in, uint64_t offset,
                                      size_t bytes, uint8_t *dst);

/* "linear 0.5 x0 + 0.5 x1", for people. */
void fms_recipe_text(const fms_recipe *r, uint32_t inputs, char *out, size_t out_bytes);

FM_END_DECLS
#endif
