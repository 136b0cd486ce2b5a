/* loss.h - distillation: a row of logits towards a teacher's; part of kern.c. */

/* Sum of e^((x - max) * by) in the lane order; lanes beyond n add +0. */
static float scaled_exp_sum(const float *x, uint32_t n, float max, float by)
{
    vf sum = vf_zero(), shift = vf_set1(max), scale = vf_set1(by);
    uint32_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        sum = vf_add(sum, vf_exp(vf_mul(vf_sub(vf_load(x + i), shift), scale)));
    if (i < n) {
        float tail[VF_LANES] = {0};
        vf e = vf_exp(vf_mul(vf_sub(vf_load_n(x + i, n - i), shift), scale));
        vf_store_n(tail, e, n - i);
        sum = vf_add(sum, vf_load(tail));
    }
    return vf_fold_add(sum);
}

typedef struct distill_row {
    const fmi_distill *d;
    float zmax, tmax, c; /* c: log of the teacher's sum over the student's */
    float own, q, p;     /* factors of the exponentials */
} distill_row;

/* Sixteen logits: z becomes the gradient; returns the teacher's probability and p log(p / q). */
FMI_INLINE vf distill_lanes(float *z, const float *t, uint32_t n, const distill_row *r, vf kl)
{
    vf by = vf_set1(r->d->inv_t), zs = vf_sub(vf_load_upto(z, n), vf_set1(r->zmax));
    vf a = vf_mul(vf_sub(vf_load_upto(t, n), vf_set1(r->tmax)), by), b = vf_mul(zs, by);
    vf p = vf_mul(vf_exp(a), vf_set1(r->p)), eb = vf_exp(b);
    vf q = vf_mul(eb, vf_set1(r->q));
    vf one = r->d->inv_t == 1.0f ? eb : vf_exp(zs);
    vf far = vf_sub(vf_sub(a, b), vf_set1(r->c));

    vf_store_upto(z, vf_fma(vf_sub(q, p), vf_set1(r->d->taught), vf_mul(one, vf_set1(r->own))), n);
    if (n < VF_LANES) {
        float tail[VF_LANES] = {0};
        vf_store_n(tail, p, n);
        p = vf_load(tail);
        memset(tail, 0, sizeof tail);
        vf_store_n(tail, far, n);
        far = vf_load(tail);
    }
    return vf_fma(p, far, kl);
}

static float distill_row_grad(float *z, const float *t, int32_t label, uint32_t v,
                              const fmi_distill *d)
{
    distill_row r = {.d = d, .zmax = row_max(z, v), .tmax = row_max(t, v)};
    float taught = scaled_exp_sum(t, v, r.tmax, d->inv_t);
    float soft = scaled_exp_sum(z, v, r.zmax, d->inv_t);
    float plain = d->inv_t == 1.0f ? soft : row_exp_sum(NULL, z, v, r.zmax);
    double own = (double)r.zmax + fm_log((double)plain) - (double)z[label];
    vf kl = vf_zero();

    r.c = (float)(fm_log((double)taught) - fm_log((double)soft));
    r.own = d->own / plain;
    r.q = 1.0f / soft;
    r.p = 1.0f / taught;
    for (uint32_t i = 0; i < v; i += VF_LANES)
        kl = distill_lanes(z + i, t + i, v - i < VF_LANES ? v - i : VF_LANES, &r, kl);
    z[label] = z[label] - d->own;
    return (float)(d->own_loss * own + d->taught_loss * (double)vf_fold_add(kl));
}

static void k_distill(float *loss, float *logits, size_t ld, const float *teacher, size_t ldt,
                      const int32_t *label, uint32_t m, uint32_t v, const fmi_distill *d)
{
    for (uint32_t row = 0; row < m; row++) {
        float *z = logits + row * ld;
        loss[row] = 0.0f;
        if (label[row] < 0)
            memset(z, 0, v * sizeof *z);
        else
            loss[row] = distill_row_grad(z, teacher + row * ldt, label[row], v, d);
    }
}
