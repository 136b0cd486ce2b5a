/* recurrent.h - recurrences along sequences, some channels over all rows; part of kern.c. */

/* The weights of up to VF_LANES channels, [kernel, VF_LANES]. */
FMI_INLINE void conv_weights(vf *w, const float *weight, uint32_t kernel, uint32_t n)
{
    for (uint32_t j = 0; j < kernel; j++) {
        float one[VF_LANES] = {0};
        for (uint32_t i = 0; i < n; i++)
            one[i] = weight[(size_t)i * kernel + j];
        w[j] = vf_load(one);
    }
}

/* The state before entry i of the list; where it goes on, the rows stay as they are. */
FMI_INLINE void conv_begin(vf *past, const fm_convolve *c, uint32_t i, uint32_t at, uint32_t n)
{
    int32_t from = c->rows.from[i];
    if (from == FM_STATE_ON)
        return;
    const float *state = c->rows.pages + (size_t)(from > 0 ? from : 0) * c->rows.page_floats + at;
    for (uint32_t j = 0; j + 1 < c->kernel; j++)
        past[j] = from < 0 ? vf_zero() : vf_load_upto(state + (size_t)j * c->channels, n);
}

FMI_INLINE void conv_end(const vf *past, const fm_convolve *c, uint32_t i, uint32_t at, uint32_t n)
{
    if (c->rows.to[i] < 0)
        return;
    float *state = c->rows.pages + (size_t)c->rows.to[i] * c->rows.page_floats + at;
    for (uint32_t j = 0; j + 1 < c->kernel; j++)
        vf_store_upto(state + (size_t)j * c->channels, past[j], n);
}

static void k_convolve(const fm_convolve *c, uint32_t begin, uint32_t end)
{
    vf w[FM_MAX_CONV_KERNEL], past[FM_MAX_CONV_KERNEL];
    uint32_t last = c->kernel - 1;
    for (uint32_t at = begin; at < end; at += VF_LANES) {
        uint32_t n = end - at < VF_LANES ? end - at : VF_LANES;
        conv_weights(w, c->weight + (size_t)at * c->kernel, c->kernel, n);
        for (uint32_t j = 0; j < FM_MAX_CONV_KERNEL; j++)
            past[j] = vf_zero();
        for (uint32_t i = 0; i < c->rows.m; i++) {
            size_t row = (size_t)c->rows.row[i], in = row * c->ldx + at;
            vf u = vf_load_upto(c->x + in, n);
            conv_begin(past, c, i, at, n);
            if (c->before)
                u = vf_mul(vf_load_upto(c->before + in, n), u);
            past[last] = u;
            vf y = vf_mul(w[0], past[0]);
            for (uint32_t j = 1; j < c->kernel; j++)
                y = vf_fma(w[j], past[j], y);
            for (uint32_t j = 0; j < last; j++)
                past[j] = past[j + 1];
            if (c->bias)
                y = vf_add(y, vf_load_upto(c->bias + at, n));
            if (c->silu)
                y = act_of(FM_ACT_SILU, y);
            if (c->after)
                y = vf_mul(vf_load_upto(c->after + in, n), y);
            vf_store_upto(c->y + row * c->ldy + at, y, n);
            conv_end(past, c, i, at, n);
        }
    }
}
