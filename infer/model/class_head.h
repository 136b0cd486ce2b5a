/* class_head.h - a head that names a class of a whole text; inside of infer, and for train.
 *
 * As transformers' ...ForSequenceClassification: decoders score the state of the last token that is
 * no padding (`score.weight`, no bias); BERT turns the first token's state by its pooler and tanh
 * (`pooler.dense`), RoBERTa by `classifier.dense`, and a linear layer follows. ModernBERT's state
 * may be the mean of all; behind `head.dense` an activation and a norm follow. */
#ifndef FM_INFER_CLASS_HEAD_H
#define FM_INFER_CLASS_HEAD_H

#include "infer/model.h"

FM_BEGIN_DECLS

/* Modules of the head that a family has, whether or not the model has one. */
typedef struct fmi_class_names {
    char dense[64]; /* before the tanh; empty: there is none */
    char out[64];   /* empty: no head of this family is known here */
    bool bias;      /* of both */
    bool relu;      /* behind dense, in place of the tanh */
    char norm[64];  /* behind dense and the config's activation; empty: none. Dense has a bias only
                     * where the file has it. It runs, and does not train here */
} fmi_class_names;
void fmi_class_names_of(fmi_class_names *out, const fm_arch *a);
/* The token whose state is classified: an encoder's first, else the last that is not pad (-1: no
 * token is padding). n >= 1. Training uses it too, so that both classify the same state. */
size_t fmi_class_token(const int32_t *ids, size_t n, bool encoder, int32_t pad);

/* The classification head of a model. */
typedef struct fmi_class_head {
    fm_linear dense, out; /* w NULL: none */
    bool relu;            /* behind dense, in place of the tanh */
    const float *norm, *norm_b; /* gain and bias behind act, which is behind dense; NULL: none */
    fm_act act;
    float eps;
    bool mean;            /* of all tokens' states */
    uint32_t classes;     /* 0: the model has no head */
    char **label;         /* [classes] */
    bool scores;          /* one output: it is a number, and names no class */
    char refused[160];    /* why its output is no choice of a class; empty: it is one */
} fmi_class_head;
void fmi_class_head_release(fmi_class_head *h);
const fmi_class_head *fmi_model_class_head(const fm_model *m); /* borrowed; NULL: it has none */

FM_END_DECLS
#endif
