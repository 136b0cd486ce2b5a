/* adamw_op.c - the second moment and the weights of a checkpoint from those a step before. */
#include <string.h>

#include "store/recipe/adamw.h"
#include "store/base/mem.h"
#include "store/recipe/recipe_impl.h"

#define TILE 8192u

fm_status rcp_adamw_check(const fms_recipe *r, const fms_inputs *in)
{
    fms_adamw_scalars s;
    if ((r->mode & ~FMS_ADAMW_WEIGHTS) >= FMS_ADAMW_MODES)
        return fm_fail(FM_EVERSION, "recipe 'adamw', mode %u: needs a newer fmstore", r->mode);
    if (in->count != 3)
        return rcp_refuse(r, "wants three parents");
    for (uint32_t k = 0; k < 3; k++)
        if (in->child.dtype != FM_F32 || in->input[k].dtype != FM_F32 ||
            !fm_shape_eq(&in->child.shape, &in->input[k].shape))
            return rcp_refuse(r, "wants F32 of one shape");
    return fms_adamw_get(&s, r->params);
}

fm_status rcp_adamw(const fms_recipe *r, const fms_inputs *in, const rcp_part *p, uint8_t *dst)
{
    const fms_adamw_mode mode = (fms_adamw_mode)(r->mode & ~FMS_ADAMW_WEIGHTS);
    float *x[3] = {NULL, NULL, NULL};
    fms_adamw_scalars s;
    fm_status rc = fms_adamw_get(&s, r->params);

    for (uint32_t k = 0; rc == FM_OK && k < 3; k++) {
        x[k] = fm_malloc(TILE * sizeof(float));
        rc = x[k] ? FM_OK : FM_ENOMEM;
    }
    for (uint64_t at = 0; rc == FM_OK && at < p->count; at += TILE) {
        const size_t n = (size_t)FM_MIN(p->count - at, (uint64_t)TILE);
        for (uint32_t k = 0; rc == FM_OK && k < 3; k++)
            rc = in->read(in->ctx, k, (p->first + at) * 4, x[k], n * 4);
        if (rc != FM_OK)
            break;
        if (r->mode & FMS_ADAMW_WEIGHTS)
            fms_adamw_w(x[0], x[0], x[1], x[2], n, &s, mode);
        else
            fms_adamw_v(x[0], x[0], x[1], x[2], n, &s, mode);
        rcp_store(dst + at * 4, FM_F32, x[0], n);
    }
    for (uint32_t k = 0; k < 3; k++)
        fm_free(x[k]);
    return rc;
}
