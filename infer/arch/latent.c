/* latent.c - the settings of attention whose keys and values come from one latent vector of a
 * position (DeepSeek). */
#include "infer/arch/table.h"

#include <math.h>
#include <string.h>

#include "store/base/math/detmath.h"

fm_status fmi_read_latent(fm_arch *a, const fm_json *c, const char *what)
{
    fm_switches *s = &a->sw;
    const fm_json *q = fm_json_get(c, "q_lora_rank");
    uint32_t turns = 0;
    FM_TRY(fmi_take_u32(&s->kv_rank, c, "kv_lora_rank", 512, 1, 1 << 16, what));
    if (!q || !fmi_absent(q)) /* null: queries have no latent vector */
        FM_TRY(fmi_take_u32(&s->q_rank, c, "q_lora_rank", 1536, 1, 1 << 16, what));
    FM_TRY(fmi_take_u32(&s->nope, c, "qk_nope_head_dim", 128, 0, FM_MAX_HEAD_DIM, what));
    FM_TRY(fmi_take_u32(&turns, c, "qk_rope_head_dim", 64, 2, FM_MAX_HEAD_DIM, what));
    FM_TRY(fmi_take_u32(&s->v_dim, c, "v_head_dim", 128, 1, FM_MAX_HEAD_DIM, what));
    a->head_dim = s->nope + turns;
    if (turns % 2 != 0 || a->head_dim > FM_MAX_HEAD_DIM || a->head_dim % 2 != 0)
        return fm_fail(FM_EINVAL,
                       "%s: qk_nope_head_dim %u and qk_rope_head_dim %u: their sum is at most %u "
                       "and both are even",
                       what, s->nope, turns, FM_MAX_HEAD_DIM);
    if (s->v_dim > a->head_dim)
        return fm_fail(FM_EUNSUPPORTED, "%s: v_head_dim %u is larger than the %u of keys", what,
                       s->v_dim, a->head_dim);
    if (a->kv_heads != a->heads)
        return fm_fail(FM_EUNSUPPORTED, "%s: %u key/value heads for %u heads are not supported",
                       what, a->kv_heads, a->heads);
    return FM_OK;
}

/* As transformers: behind a scaled rotation the scores are larger. */
fm_status fmi_latent_scale(fm_arch *a, const fm_json *r, const char *what)
{
    double all = 0, factor = 1.0, m = 1.0;
    const char *type = fm_json_cstr(fm_json_get(r, "rope_type"), NULL);
    type = type ? type : fm_json_cstr(fm_json_get(r, "type"), "default");
    if (strcmp(type, "default") == 0 || fm_json_real(fm_json_get(r, "mscale_all_dim"), 0) == 0)
        return FM_OK;
    FM_TRY(fmi_take_positive(&all, r, "mscale_all_dim", 1, what));
    FM_TRY(fmi_take_positive(&factor, r, "factor", 1, what));
    if (factor > 1.0)
        m = 0.1 * all * fm_log(factor) + 1.0;
    a->sw.attn_scale = (float)(1.0 / sqrt((double)a->head_dim) * m * m);
    return FM_OK;
}
