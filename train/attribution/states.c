/* states.c - how alike an example's hidden states are to those of the wrong answer.
 *
 * A text's vector at a layer is the mean of the residual stream over the tokens of its answer
 * and the one before (texts without an answer: all tokens). The score is the mean over three
 * layers (half, three quarters, the last before the final norm) of the cosine with the case's
 * vector, after the mean over all examples is taken off, since what all texts share says
 * nothing. */
#include "train/attribution/walk.h"

#include "store/base/mem.h"

#include <math.h>
#include <string.h>

enum { LAYERS = 3, ROWS = 512, STEP_ROWS = 64 };

typedef struct states {
    fm_engine *e;
    fm_model *model;
    uint32_t layer[LAYERS], layers, h;
    uint32_t step_rows;
    uint32_t most; /* tokens of a text that are looked at */
    double *sum;   /* [layers, h] of the text in hand */
    uint32_t first, row;
    fm_row rows[ROWS];
} states;

static void tap(void *ctx, uint32_t layer, const float *x, uint32_t n, uint32_t h)
{
    states *s = ctx;

    for (uint32_t l = 0; l < s->layers; l++) {
        if (s->layer[l] != layer)
            continue;
        for (uint32_t r = s->row < s->first ? FM_MIN(s->first - s->row, n) : 0; r < n; r++)
            for (uint32_t c = 0; c < h; c++)
                s->sum[(size_t)l * s->h + c] += (double)x[(size_t)r * h + c];
    }
}

static uint32_t first_row(const fm_example *e, uint32_t len)
{
    for (uint32_t i = 0; e->labels && i < len; i++)
        if (e->labels[i] != FMT_NO_LABEL)
            return i > 0 ? i - 1 : 0;
    return 0;
}

/* v [layers, h]: the mean of the first text of e. An encoder reads a text in one step, so of one
 * that is longer than a step its beginning is looked at. */
static fm_status vector_of(states *s, const fm_example *e, double *v)
{
    uint32_t len = FM_MIN(e->parts > 1 ? e->part_len[0] : e->len, s->most);
    fm_seq *seq = NULL;
    fm_status rc = fm_seq_open(&seq, s->model);

    s->sum = v;
    s->first = first_row(e, len);
    memset(v, 0, (size_t)s->layers * s->h * sizeof(*v));
    for (s->row = 0; rc == FM_OK && s->row < len;) {
        uint32_t n = FM_MIN(len - s->row, s->step_rows);
        for (uint32_t i = 0; i < n; i++)
            s->rows[i] = (fm_row){.seq = seq, .token = e->ids[s->row + i]};
        rc = fm_engine_step(s->e, s->rows, n);
        s->row += n;
    }
    fm_seq_close(seq);
    for (size_t i = 0; rc == FM_OK && len > s->first && i < (size_t)s->layers * s->h; i++)
        v[i] /= (double)(len - s->first);
    return rc;
}

static double cosine(const double *a, const double *b, const double *mean, size_t n)
{
    double ab = 0.0;
    double aa = 0.0;
    double bb = 0.0;

    for (size_t i = 0; i < n; i++) {
        double x = a[i] - mean[i];
        double y = b[i] - mean[i];
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    return aa > 0.0 && bb > 0.0 ? ab / sqrt(aa * bb) : 0.0;
}

static void choose_layers(states *s)
{
    const fm_arch *a = fm_model_arch(s->model);
    uint32_t want[LAYERS] = {a->layers / 2, a->layers * 3 / 4, a->layers > 1 ? a->layers - 1 : 1};

    s->h = a->hidden;
    s->step_rows = STEP_ROWS;
    s->most = UINT32_MAX;
    if (a->sw.encoder)
        s->step_rows = s->most = FM_MIN(a->max_positions, (uint32_t)ROWS);
    for (uint32_t i = 0; i < LAYERS; i++)
        if (s->layers == 0 || s->layer[s->layers - 1] < want[i])
            s->layer[s->layers++] = want[i];
}

/* v [n + 1, width]: the examples', then the case's. */
static void compare(double *score, const states *s, const double *v, double *mean, size_t n)
{
    size_t width = (size_t)s->layers * s->h;

    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < width; k++)
            mean[k] += v[i * width + k] / (double)n;
    for (size_t i = 0; i < n; i++) {
        score[i] = 0.0;
        for (uint32_t l = 0; l < s->layers; l++) {
            size_t at = (size_t)l * s->h;
            score[i] += cosine(v + i * width + at, v + n * width + at, mean + at, s->h) / s->layers;
        }
    }
}

fm_status fmt_attribution_states(const fm_attribution_in *in, double *score)
{
    const fm_dataset *data = in->job->data;
    size_t n = fm_dataset_count(data);
    states *s = fm_calloc(1, sizeof(*s));
    double *v = NULL;
    double *mean = NULL;
    fm_status rc = s ? fm_model_load(&s->model, in->e, in->child, in->p, in->job->name) : FM_ENOMEM;

    if (rc == FM_OK) {
        s->e = in->e;
        choose_layers(s);
        v = fm_calloc((n + 1) * s->layers * s->h, sizeof(*v));
        mean = fm_calloc((size_t)s->layers * s->h, sizeof(*mean));
        rc = v && mean ? FM_OK : FM_ENOMEM;
    }
    if (rc == FM_OK) {
        size_t width = (size_t)s->layers * s->h;
        fm_engine_tap(in->e, tap, s);
        for (size_t i = 0; i <= n && rc == FM_OK; i++)
            rc = vector_of(s, i < n ? fm_dataset_at(data, i) : in->wrong, v + i * width);
        fm_engine_tap(in->e, NULL, NULL);
    }
    if (rc == FM_OK)
        compare(score, s, v, mean, n);
    if (s)
        fm_model_close(s->model);
    fm_free(s);
    fm_free(v);
    fm_free(mean);
    return rc;
}
