/* act.h - activations of feed-forward networks: what configs name and backends compute. */
#ifndef FM_INFER_ACT_H
#define FM_INFER_ACT_H

#define FM_ACT_LIMIT 7.0f
#define FM_ACT_ALPHA 1.702f

typedef enum fm_act {
    FM_ACT_SILU,      /* x / (1 + e^-x) */
    FM_ACT_GELU_TANH, /* x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
    FM_ACT_GELU,      /* x / 2 (1 + erf(x / sqrt 2)) */
    FM_ACT_RELU,
    FM_ACT_RELU2, /* relu(x)^2 */
    /* gpt-oss: g / (1 + e^(-1.702 g)) of g = min(x, 7), times 1 + up, up clamped to [-7, 7] */
    FM_ACT_CLAMPED,
    FM_ACT_SIGMOID, /* 1 / (1 + e^-x): a gate */
} fm_act;

#endif
