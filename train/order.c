/* order.c - which examples a step takes. */
#include "train/order.h"

#include "store/base/mem.h"
#include "store/base/rng.h"
#include "train/internal.h"

#include <math.h>

struct fmi_order {
    const fm_train_config *c;
    const fm_dataset *data;
    uint32_t steps;
    uint64_t examples; /* to be seen in all; 0 = steps decide */
    uint32_t *order;   /* of the epoch in hand */
    uint64_t epoch, stream;
    bool known;
    uint32_t *example; /* [batch * accumulate] of the step in hand */
    uint32_t *ends;    /* [accumulate] */
};

fm_status fmi_order_new(fmi_order **out, const fm_train_config *c, const fm_dataset *d)
{
    fmi_order *o = fm_calloc(1, sizeof(*o));
    uint64_t n = fm_dataset_count(d);
    fm_status rc = o ? fmi_stream(&o->stream, "order", "") : FM_ENOMEM;

    *out = NULL;
    if (rc == FM_OK) {
        o->c = c;
        o->data = d;
        o->steps = fmi_schedule_steps(c, n);
        if (c->steps == 0)
            o->examples = (uint64_t)ceil(c->epochs * (double)n);
        o->order = fm_calloc(n, sizeof(*o->order));
        o->example = fm_calloc((size_t)c->batch * c->accumulate, sizeof(*o->example));
        o->ends = fm_calloc(c->accumulate, sizeof(*o->ends));
        rc = o->order && o->example && o->ends ? FM_OK : FM_ENOMEM;
    }
    if (rc < 0) {
        fmi_order_free(o);
        return rc;
    }
    *out = o;
    return FM_OK;
}

void fmi_order_free(fmi_order *o)
{
    if (!o)
        return;
    fm_free(o->order);
    fm_free(o->example);
    fm_free(o->ends);
    fm_free(o);
}

uint32_t fmi_order_steps(const fmi_order *o)
{
    return o->steps;
}

static void seek_epoch(fmi_order *o, uint64_t epoch)
{
    if (o->known && o->epoch == epoch)
        return;
    o->known = true;
    o->epoch = epoch;
    fm_rng_permutation(o->order, (uint32_t)fm_dataset_count(o->data), o->c->seed,
                       o->stream + epoch);
}

fm_status fmi_order_step(fmi_order *o, uint32_t step, const uint32_t **example, size_t *count,
                         const uint32_t **ends, size_t *micros)
{
    uint64_t n = fm_dataset_count(o->data);
    uint64_t per_step = (uint64_t)o->c->batch * o->c->accumulate;
    uint64_t begin = step * per_step;
    uint64_t end = begin + per_step;

    if (o->examples > 0 && end > o->examples) /* the last step of the run may be short */
        end = o->examples;
    *count = 0;
    *micros = 0;
    for (uint64_t i = begin; i < end; i++) {
        seek_epoch(o, i / n);
        o->example[(*count)++] = o->order[i % n];
        if (*count % o->c->batch == 0 || i + 1 == end)
            o->ends[(*micros)++] = (uint32_t)*count;
    }
    *example = o->example;
    *ends = o->ends;
    return FM_OK;
}
