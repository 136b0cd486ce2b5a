/* step_examples.c - which examples a step of a run took (fm_train_step_examples). */
#include "train/data/order.h"

#include "store/base/mem.h"

#include <string.h>

fm_status fm_train_step_examples(uint32_t **out, size_t *count, const fm_train_config *c,
                                 const fm_dataset *d, uint32_t step)
{
    fmt_order *order = NULL;
    const uint32_t *example = NULL;
    const uint32_t *ends = NULL;
    size_t micros = 0;

    *out = NULL;
    *count = 0;
    fm_status rc = fmt_order_new(&order, c, d);
    if (rc == FM_OK && step >= fmt_order_steps(order))
        rc =
            fm_fail(FM_EINVAL, "there is no step %u, the run has %u", step, fmt_order_steps(order));
    FM_THEN(rc, fmt_order_step(order, step, &example, count, &ends, &micros));
    if (rc == FM_OK) {
        *out = fm_calloc(*count, sizeof(**out));
        rc = *out ? FM_OK : FM_ENOMEM;
    }
    if (rc == FM_OK)
        memcpy(*out, example, *count * sizeof(**out));
    fmt_order_free(order);
    return rc;
}
