/* plain.h - what the view of store/scaled.h and the forms of quantized weights share.
 *
 * A form finds the tensors of a weight (GPTQ: X.qweight, X.qzeros, X.scales, X.g_idx) and makes
 * rows of the weight from their bytes. The view (plain.c) knows no form, only this table of calls;
 * quant_config.c chooses the form by the config. */
#ifndef FM_STORE_QUANT_PLAIN_H
#define FM_STORE_QUANT_PLAIN_H

#include "store/scaled.h"

FM_BEGIN_DECLS

#define FMS_PARTS 6u /* tensors of one weight, at most */
#define FMS_INDEX 3u /* the part that names each column's group */

struct fms_quant_form;

/* What makes a number of a ternary weight. */
typedef enum fms_ternary {
    FMS_TERNARY_NOT,
    FMS_TERNARY_DIVIDED, /* by its scale */
    FMS_TERNARY_TIMES,   /* times its scale */
    FMS_TERNARY_ONLINE,  /* of floats, by their mean absolute value */
} fms_ternary;

/* The linear_class of bitnet that a view's model.json has: the weights are made, and what they are
 * multiplied with is still rounded. */
#define FMS_QUANT_MADE "fmstore-plain"

/* quantization_config, as far as it decides values. */
typedef struct fms_quant {
    const struct fms_quant_form *form; /* NULL: nothing is quantized */
    fm_dtype dtype;                    /* what the config computes in: BF16, F16, F32 */
    const char *suffix;                /* of an F8 weight's scale, in place of ".weight" */
    uint32_t rows, cols; /* size of an F8 weight's block of one scale; 0: by the scale */
    uint32_t bits;       /* of a code */
    uint64_t group;      /* columns that share a scale; 0: all of a row */
    bool plus_1;         /* GPTQ's first format: a zero is stored less one */
    bool asymmetric;     /* compressed-tensors: there are zeros */
    bool words;          /* several codes lie in a word or byte */
    bool rounds;         /* bitnet: inputs are rounded to integers when the model runs */
    fms_ternary ternary; /* bitnet */
} fms_quant;

typedef struct fms_scan {
    const fm_tree *tree;
    const fm_provider *p;
    const fms_quant *q;
    fm_plain_as as;
} fms_scan;

/* A weight [n, k] of the view. */
typedef struct fms_made {
    const struct fms_quant_form *form;
    const fm_entry *part[FMS_PARTS]; /* of the underlying tree; NULL: absent */
    char name[FM_MAX_NAME_BYTES + 1];
    fm_shape shape;      /* rank 2, or more: rows of the last dimension */
    uint64_t n, k;       /* rows, columns */
    fm_dtype dtype;      /* of the view's tensor */
    fm_dtype rounded;    /* what the library rounds a value to */
    uint64_t rows, cols; /* of an F8 block */
    uint64_t group;      /* columns of a scale; 0: part FMS_INDEX says each column's group */
    uint64_t groups;     /* scales of a row */
    uint32_t bits;
    uint8_t kind; /* codes.h */
    bool plus_1, words;
    fms_ternary ternary;
    uint64_t block, nested_block; /* bitsandbytes: codes of one absmax, absmaxes of one scale */
    float nested_offset;
} fms_made;

typedef enum fms_role {
    FMS_OTHER, /* not of a quantized weight: stays as it is */
    FMS_HEAD,  /* a weight is made for it */
    FMS_PART   /* of a weight, found from its head */
} fms_role;

typedef struct fms_quant_form {
    const char *name;
    fm_status (*role)(fms_role *out, const fms_scan *s, const fm_entry *e);
    /* Fills *out (form, part[0] = e and rounded are set) for a head; checks shapes. */
    fm_status (*take)(fms_made *out, const fms_scan *s, const fm_entry *e);
    /* The id of the made tensor; NULL: of name, sizes and the parts' ids. */
    fm_status (*id)(fm_digest *out, const fms_made *m);
    /* Rows [first, first + rows) in m's dtype; flags as in fm_provider.range. */
    fm_status (*make)(uint8_t *dst, const fms_made *m, const fm_provider *p, uint64_t first,
                      uint64_t rows, unsigned flags);
} fms_quant_form;

extern const fms_quant_form fms_quant_form_f8, fms_quant_form_gptq, fms_quant_form_awq,
    fms_quant_form_bnb, fms_quant_form_ct, fms_quant_form_mxfp4, fms_quant_form_torchao,
    fms_quant_form_bitnet;

/* quant_config.c: reads quantization_config of a config.json; names what it does not know. */
FM_CHECKED fm_status fms_quant_of(fms_quant *out, const fm_json *config, const char *what);
/* scaled.c: the part of it for F8 weights. */
FM_CHECKED fm_status fms_quant_f8(fms_quant *out, const fm_json *q, const char *method,
                                  const char *what);
/* compressed.c: the part of it for compressed-tensors. */
FM_CHECKED fm_status fms_quant_ct(fms_quant *out, const fm_json *q, const char *what);
/* torchao.c: the part of it for torchao. */
FM_CHECKED fm_status fms_quant_torchao(fms_quant *out, const fm_json *q, const char *what);
/* bitnet.c: the part of it for bitnet. */
FM_CHECKED fm_status fms_quant_bitnet(fms_quant *out, const fm_json *q, const char *what);
/* FM_EUNSUPPORTED: "<what>: config field 'quantization_config' has <field> <value>, ..." */
fm_status fms_quant_refuse(const char *what, const char *field, const char *value);
/* Every key of o must be in known (NULL-terminated), or stand for nothing in off: null, false, an
 * empty list or object. */
FM_CHECKED fm_status fms_quant_keys(const fm_json *o, const char *const *known,
                                    const char *const *off, const char *what);

/* ---- names ---- */
/* The tensor whose name is e's with `tail` in place of its last strlen(own) bytes; NULL: absent. */
FM_CHECKED fm_status fms_beside(const fm_entry **out, const fms_scan *s, const fm_entry *e,
                                const char *own, const char *tail);
/* Whether e's name ends with one of tails and `head` stands beside it. */
FM_CHECKED fm_status fms_is_part(bool *out, const fms_scan *s, const fm_entry *e,
                                 const char *const *tails, const char *const *heads);
/* FM_EBASE unless e is there, of this dtype and shape. tail: what is missing where e is NULL. */
FM_CHECKED fm_status fms_expect(const fms_made *m, const fm_entry *e, const char *tail,
                                fm_dtype dtype, fm_shape shape);
/* The same of a tensor of floats: F16, BF16 or F32. */
FM_CHECKED fm_status fms_expect_floats(const fms_made *m, const fm_entry *e, const char *tail,
                                       fm_shape shape);
/* Scales of activations and of cached keys and values. */
bool fms_of_activations(const char *name);

/* ---- bytes; all results are freed by fm_free ---- */
FM_CHECKED fm_status fms_part_bytes(uint8_t **out, const fm_provider *p, const fm_entry *e);
FM_CHECKED fm_status fms_part_floats(float **out, const fm_provider *p, const fm_entry *e);

uint64_t fms_parts(uint64_t n, uint64_t of); /* n / of, rounded up */

/* ---- grid.c: weights that are codes with scales ---- */

typedef struct fms_grid {
    const fms_made *m;
    uint8_t *raw;    /* the tensor of codes */
    float *scale;    /* [n, groups] */
    uint8_t *zero;   /* [n, groups]; NULL: zero_all */
    float *add;      /* [n, groups], of kind ADD; else NULL */
    uint32_t *index; /* [k] group of a column; NULL: column / m->group */
    uint8_t zero_all;
    /* The codes of a row, one a byte. */
    void (*codes)(uint8_t *out, const struct fms_grid *g, uint64_t row);
} fms_grid;

/* Reads scales and zeros of g->m. */
typedef fm_status (*fms_grid_fill)(fms_grid *g, const fm_provider *p);

/* Checks part FMS_INDEX, where it is there, and chooses m's dtype for the view (fm_plain_as): a
 * layout of codes or integers where a row is blocks of one group, else the type that values are
 * rounded to. m->group becomes 0 where the index has groups' columns apart. */
FM_CHECKED fm_status fms_grid_layout(fms_made *m, const fms_scan *s, fms_grid_fill fill);
/* Writes rows of the grid in m's dtype; reads the index from p where it is needed. */
FM_CHECKED fm_status fms_grid_rows(uint8_t *dst, fms_grid *g, const fm_provider *p, uint64_t first,
                                   uint64_t rows);
void fms_grid_release(fms_grid *g);

FM_END_DECLS
#endif
