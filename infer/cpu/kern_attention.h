/* kern_attention.h - softmax attention over pages of 32 positions and its gradient; part of kern.c.
 *
 * Vectors run over positions for scores (keys lie transposed in their page) and over the head's
 * elements for sums over positions, so every sum is a chain of fmaf in ascending order. Two passes
 * with the true maximum, not an online softmax: a row's bits then cannot depend on where a tile or
 * a page begins. Several rows (query heads of one group, or consecutive rows) walk the keys
 * together, since one row alone is bound by the latency of its chains. */

#define SCORE_MAX_ROWS 4

/* score[r][page * 32 + i] = scale * sum over d of q[r][d] * k[page][d][i]; rows x pages <= 4. */
FMI_INLINE void score_tile(const uint32_t rows, const uint32_t pages, float *score, size_t ld,
                           const float *q, size_t q_stride, const float *const *kpage, uint32_t hd,
                           float scale)
{
    vf sum[SCORE_MAX_ROWS][SCORE_MAX_ROWS][2];

#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (uint32_t p = 0; p < pages; p++)
            sum[r][p][0] = sum[r][p][1] = vf_zero();
    for (uint32_t d = 0; d < hd; d++) {
#pragma GCC unroll 4
        for (uint32_t p = 0; p < pages; p++) {
            vf k0 = vf_load(kpage[p] + (size_t)d * FMI_PANEL);
            vf k1 = vf_load(kpage[p] + (size_t)d * FMI_PANEL + VF_LANES);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < rows; r++) {
                vf x = vf_set1(q[r * q_stride + d]);
                sum[r][p][0] = vf_fma(x, k0, sum[r][p][0]);
                sum[r][p][1] = vf_fma(x, k1, sum[r][p][1]);
            }
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (uint32_t p = 0; p < pages; p++) {
            float *out = score + r * ld + p * FMI_PANEL;
            vf_store(out, vf_mul(sum[r][p][0], vf_set1(scale)));
            vf_store(out + VF_LANES, vf_mul(sum[r][p][1], vf_set1(scale)));
        }
}

static void scores(float *score, size_t ld, const float *q, size_t q_stride, uint32_t rows,
                   const float *const *kpage, uint32_t pages, uint32_t hd, float scale)
{
    uint32_t p = 0;

    if (rows == 1)
        for (; p + 4 <= pages; p += 4)
            score_tile(1, 4, score + p * FMI_PANEL, ld, q, q_stride, kpage + p, hd, scale);
    if (rows == 2)
        for (; p + 2 <= pages; p += 2)
            score_tile(2, 2, score + p * FMI_PANEL, ld, q, q_stride, kpage + p, hd, scale);
    for (; p < pages; p++) {
        float *out = score + p * FMI_PANEL;
        if (rows == 1)
            score_tile(1, 1, out, ld, q, q_stride, kpage + p, hd, scale);
        else if (rows == 2)
            score_tile(2, 1, out, ld, q, q_stride, kpage + p, hd, scale);
        else if (rows == 3)
            score_tile(3, 1, out, ld, q, q_stride, kpage + p, hd, scale);
        else
            score_tile(4, 1, out, ld, q, q_stride, kpage + p, hd, scale);
    }
}

typedef struct mix {
    float *out; /* rows, out_stride apart */
    size_t out_stride;
    const float *w; /* weights of positions, rows ldw apart */
    size_t ldw;
    const float *const *vpage; /* [position / 32] -> rows, ldv apart */
    size_t ldv;
    uint32_t first, last, hd;
    bool divide; /* by the plain ascending sum of the row's weights */
} mix;

/* out[r][at .. at + 16 nvf) = sum over positions ascending of w[r][pos] * v[pos][..]. A single
 * vector may be partial. */
FMI_INLINE void mix_tile(const uint32_t rows, const uint32_t nvf, const mix *m, uint32_t at)
{
    vf sum[SCORE_MAX_ROWS][4];
    float total[SCORE_MAX_ROWS];

#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        total[r] = 0.0f;
#pragma GCC unroll 4
        for (uint32_t j = 0; j < nvf; j++)
            sum[r][j] = vf_zero();
    }
    for (uint32_t pos = m->first; pos <= m->last; pos++) {
        const float *v = m->vpage[pos / FMI_PANEL] + (size_t)(pos % FMI_PANEL) * m->ldv + at;
        vf x[4];
#pragma GCC unroll 4
        for (uint32_t j = 0; j < nvf; j++)
            x[j] = nvf == 1 ? vf_load_upto(v, m->hd - at) : vf_load(v + j * VF_LANES);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++) {
            float weight = m->w[r * m->ldw + pos];
            total[r] = total[r] + weight;
#pragma GCC unroll 4
            for (uint32_t j = 0; j < nvf; j++)
                sum[r][j] = vf_fma(vf_set1(weight), x[j], sum[r][j]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (uint32_t j = 0; j < nvf; j++) {
            float *o = m->out + r * m->out_stride + at + j * VF_LANES;
            vf y = m->divide ? vf_div(sum[r][j], vf_set1(total[r])) : sum[r][j];
            vf_store_upto(o, y, nvf == 1 ? m->hd - at : VF_LANES);
        }
}

FMI_INLINE void mix_rows(const uint32_t rows, const mix *m)
{
    uint32_t d = 0;

    for (; d + 4 * VF_LANES <= m->hd; d += 4 * VF_LANES)
        mix_tile(rows, 4, m, d);
    for (; d < m->hd; d += VF_LANES)
        mix_tile(rows, 1, m, d);
}

static void mix_run(uint32_t rows, const mix *m)
{
    if (rows == 1)
        mix_rows(1, m);
    else if (rows == 2)
        mix_rows(2, m);
    else if (rows == 3)
        mix_rows(3, m);
    else
        mix_rows(4, m);
}

static void exp_range(float *x, uint32_t first, uint32_t last, float shift)
{
    for (uint32_t i = first; i <= last; i += VF_LANES) {
        uint32_t n = last + 1 - i;
        vf_store_upto(x + i, vf_exp(vf_sub(vf_load_upto(x + i, n), vf_set1(shift))), n);
    }
}

static float plain_sum(const float *x, uint32_t first, uint32_t last)
{
    float sum = 0.0f;

    for (uint32_t i = first; i <= last; i++)
        sum = sum + x[i];
    return sum;
}

static void k_attention(const fmi_attn *job)
{
    uint32_t base = job->first / FMI_PANEL, pages = job->last / FMI_PANEL - base + 1;
    uint32_t first = job->first - base * FMI_PANEL, last = job->last - base * FMI_PANEL;
    size_t ld = fmi_attn_score_ld(job->first, job->last);

    for (uint32_t g = 0; g < job->g; g += SCORE_MAX_ROWS) {
        uint32_t rows = job->g - g < SCORE_MAX_ROWS ? job->g - g : SCORE_MAX_ROWS;
        mix m = {.out = job->out + g * job->out_stride,
                 .out_stride = job->out_stride,
                 .w = job->score,
                 .ldw = ld,
                 .vpage = job->vpage + base,
                 .ldv = job->ldv,
                 .first = first,
                 .last = last,
                 .hd = job->hd,
                 .divide = true};
        scores(job->score, ld, job->q + g * job->q_stride, job->q_stride, rows, job->kpage + base,
               pages, job->hd, job->scale);
        for (uint32_t r = 0; r < rows; r++) {
            float *s = job->score + r * ld;
            if (job->softcap > 0.0f)
                k_softcap(s + first, last - first + 1, job->softcap);
            float max = row_max(s + first, last - first + 1);
            exp_range(s, first, last, max);
            if (job->lse)
                job->lse[(g + r) * job->lse_stride] =
                    (float)((double)max + fm_log((double)plain_sum(s, first, last)));
        }
        mix_run(rows, &m);
    }
}

/* ---- gradient ---- */

typedef struct grad_block {
    const fmi_attn_grad *job;
    const float *const *ktp; /* keys and values, transposed in pages of [hd, 32] */
    const float *const *vtp;
    const float *const *kp; /* keys as they are, rows ldk apart */
    float *p, *ds;          /* [FMI_GRAD_ROWS, tp]: softmax and its gradient; 0 where masked */
    size_t tp;
    uint32_t row, rows;   /* of this block */
    uint32_t first, last; /* positions that any of its rows sees */
    uint32_t head;
} grad_block;

static uint32_t window_first(uint32_t row, uint32_t window)
{
    return window && row >= window ? row - window + 1 : 0;
}

/* p and ds of the rows of one block and one head; scores are computed again from q and k. */
static void grad_weights(const grad_block *b)
{
    const fmi_attn_grad *a = b->job;
    uint32_t base = b->first / FMI_PANEL, pages = b->last / FMI_PANEL - base + 1;
    size_t at = (size_t)base * FMI_PANEL, head = (size_t)b->head * a->hd;

    for (uint32_t r = 0; r < b->rows; r += SCORE_MAX_ROWS) {
        uint32_t n = b->rows - r < SCORE_MAX_ROWS ? b->rows - r : SCORE_MAX_ROWS;
        size_t row = (size_t)(b->row + r) * a->ldq + head;
        scores(b->p + r * b->tp + at, b->tp, a->q + row, a->ldq, n, b->ktp + base, pages, a->hd,
               a->scale);
        scores(b->ds + r * b->tp + at, b->tp, a->dout + row, a->ldq, n, b->vtp + base, pages, a->hd,
               1.0f);
    }
    for (uint32_t r = 0; r < b->rows; r++) {
        uint32_t i = b->row + r, first = window_first(i, a->window);
        const float *out = a->out + (size_t)i * a->ldq + head;
        vf mean = vf_set1(dot_lanes(a->dout + (size_t)i * a->ldq + head, out, a->hd));
        float *p = b->p + r * b->tp, *ds = b->ds + r * b->tp;
        exp_range(p, first, i, a->lse[(size_t)b->head * a->lse_stride + i]);
        for (uint32_t j = first; j <= i; j += VF_LANES) {
            uint32_t n = i + 1 - j;
            vf d = vf_sub(vf_load_upto(ds + j, n), mean);
            d = vf_mul(vf_mul(vf_load_upto(p + j, n), d), vf_set1(a->scale));
            vf_store_upto(ds + j, d, n);
        }
        memset(p + at, 0, (first - at) * sizeof *p);
        memset(ds + at, 0, (first - at) * sizeof *p);
        memset(p + i + 1, 0, (b->last - i) * sizeof *p);
        memset(ds + i + 1, 0, (b->last - i) * sizeof *p);
    }
}

/* dst[j][at ..] += sum over the block's rows ascending of w[r][j] * src[r][at ..] */
FMI_INLINE void spread_tile(const uint32_t nvf, const grad_block *b, const float *w, float *dst,
                            const float *src, uint32_t at)
{
    const fmi_attn_grad *a = b->job;
    uint32_t width = a->hd - at;

    for (uint32_t j = b->first; j <= b->last; j++) {
        float *out = dst + (size_t)j * a->ldk + at;
        vf sum[4];
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nvf; v++)
            sum[v] = nvf == 1 ? vf_load_upto(out, width) : vf_load(out + v * VF_LANES);
        for (uint32_t r = 0; r < b->rows; r++) {
            const float *x = src + (size_t)r * a->ldq + at;
            vf weight = vf_set1(w[r * b->tp + j]);
#pragma GCC unroll 4
            for (uint32_t v = 0; v < nvf; v++) {
                vf y = nvf == 1 ? vf_load_upto(x, width) : vf_load(x + v * VF_LANES);
                sum[v] = vf_fma(weight, y, sum[v]);
            }
        }
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nvf; v++)
            vf_store_upto(out + v * VF_LANES, sum[v], nvf == 1 ? width : VF_LANES);
    }
}

static void spread(const grad_block *b, const float *w, float *dst, const float *src)
{
    uint32_t d = 0;

    for (; d + 4 * VF_LANES <= b->job->hd; d += 4 * VF_LANES)
        spread_tile(4, b, w, dst, src, d);
    for (; d < b->job->hd; d += VF_LANES)
        spread_tile(1, b, w, dst, src, d);
}

/* One block of rows of one head: dq is set, dk and dv grow. */
static void grad_rows(grad_block *b)
{
    const fmi_attn_grad *a = b->job;
    size_t row = (size_t)b->row * a->ldq + (size_t)b->head * a->hd;

    b->first = window_first(b->row, a->window);
    b->last = b->row + b->rows - 1;
    grad_weights(b);
    for (uint32_t r = 0; r < b->rows; r += SCORE_MAX_ROWS) {
        uint32_t n = b->rows - r < SCORE_MAX_ROWS ? b->rows - r : SCORE_MAX_ROWS;
        mix m = {.out = a->dq + row + r * a->ldq,
                 .out_stride = a->ldq,
                 .w = b->ds + r * b->tp,
                 .ldw = b->tp,
                 .vpage = b->kp,
                 .ldv = a->ldk,
                 .first = b->first,
                 .last = b->last,
                 .hd = a->hd,
                 .divide = false};
        mix_run(n, &m);
    }
    spread(b, b->ds, a->dk, a->q + row);
    spread(b, b->p, a->dv, a->dout + row);
}

static void zero_rows(float *x, size_t ld, uint32_t from, uint32_t to, uint32_t n)
{
    for (uint32_t i = from; i < to; i++)
        memset(x + i * ld, 0, n * sizeof *x);
}

/* src rows as pages of [hd, 32]; positions beyond len are left 0. */
static void transpose_pages(float *dst, const float **page, const fmi_attn_grad *a,
                            const float *src, uint32_t pages)
{
    memset(dst, 0, (size_t)pages * FMI_PANEL * a->hd * sizeof *dst);
    for (uint32_t p = 0; p < pages; p++) {
        uint32_t left = a->len - p * FMI_PANEL, n = left < FMI_PANEL ? left : FMI_PANEL;
        page[p] = dst + (size_t)p * FMI_PANEL * a->hd;
        k_transpose(dst + (size_t)p * FMI_PANEL * a->hd, FMI_PANEL,
                    src + (size_t)p * FMI_PANEL * a->ldk, a->ldk, n, a->hd);
    }
}

static void k_attention_grad(const fmi_attn_grad *a)
{
    uint32_t pages = (a->len + FMI_PANEL - 1) / FMI_PANEL;
    size_t tp = (size_t)pages * FMI_PANEL;
    const float **ktp = a->page, **vtp = ktp + pages, **kp = vtp + pages;
    float *kt = a->scratch, *vt = kt + tp * a->hd;
    grad_block b = {.job = a, .ktp = ktp, .vtp = vtp, .kp = kp, .tp = tp, .p = vt + tp * a->hd};

    b.ds = b.p + FMI_GRAD_ROWS * tp;
    transpose_pages(kt, ktp, a, a->k, pages);
    transpose_pages(vt, vtp, a, a->v, pages);
    for (uint32_t p = 0; p < pages; p++)
        kp[p] = a->k + (size_t)p * FMI_PANEL * a->ldk;
    zero_rows(a->dk, a->ldk, 0, a->t, a->hd);
    zero_rows(a->dv, a->ldk, 0, a->t, a->hd);
    zero_rows(a->dq, a->ldq, a->len, a->t, a->g * a->hd);
    for (b.head = 0; b.head < a->g; b.head++)
        for (b.row = 0; b.row < a->len; b.row += FMI_GRAD_ROWS) {
            b.rows = a->len - b.row < FMI_GRAD_ROWS ? a->len - b.row : FMI_GRAD_ROWS;
            grad_rows(&b);
        }
}
