/* attention.h - softmax attention over pages of 32 positions and its gradient; part of kern.c.
 *
 * Vectors run over positions for scores (keys lie transposed in their page) and over the head's
 * elements for sums over positions, so every sum is a chain of fmaf in ascending order. Two passes
 * with the true maximum, not an online softmax: a row's bits then cannot depend on where a tile or
 * a page begins. Several rows (query heads of one group, or consecutive rows) walk the keys
 * together, since one row alone is bound by the latency of its chains. */

#define SCORE_MAX_ROWS 4u
/* Sums of one register tile, in vectors of sixteen; a vector of AVX2 is two registers. */
#if defined(FMI_ISA_AVX512)
#define ATTN_SUMS 16u
#else
#define ATTN_SUMS 4u
#endif

/* score[r][16 v ..] = scale * sum over d of q[r][d] * k[d][16 v ..], vectors at .. at + vecs - 1 of
 * the pages. */
FMI_INLINE void score_tile(const uint32_t rows, const uint32_t vecs, float *score, size_t ld,
                           const float *q, size_t q_stride, const float *const *kpage, uint32_t at,
                           uint32_t hd, float scale)
{
    vf sum[SCORE_MAX_ROWS][8];
    const float *k[8];

#pragma GCC unroll 8
    for (uint32_t v = 0; v < vecs; v++)
        k[v] = kpage[(at + v) / 2] + (at + v) % 2 * VF_LANES;
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (uint32_t v = 0; v < vecs; v++)
            sum[r][v] = vf_zero();
    for (uint32_t d = 0; d < hd; d++) {
        vf x[8];
#pragma GCC unroll 8
        for (uint32_t v = 0; v < vecs; v++)
            x[v] = vf_load(k[v] + (size_t)d * FMI_PANEL);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++) {
            vf w = vf_set1(q[r * q_stride + d]);
#pragma GCC unroll 8
            for (uint32_t v = 0; v < vecs; v++)
                sum[r][v] = vf_fma(w, x[v], sum[r][v]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (uint32_t v = 0; v < vecs; v++)
            vf_store(score + r * ld + (size_t)(at + v) * VF_LANES,
                     vf_mul(sum[r][v], vf_set1(scale)));
}

FMI_INLINE void score_rows(const uint32_t rows, const uint32_t vecs, float *score, size_t ld,
                           const float *q, size_t q_stride, const float *const *kpage,
                           uint32_t count, uint32_t hd, float scale)
{
    uint32_t at = 0;

    for (; at + vecs <= count; at += vecs)
        score_tile(rows, vecs, score, ld, q, q_stride, kpage, at, hd, scale);
    for (; at < count; at++)
        score_tile(rows, 1, score, ld, q, q_stride, kpage, at, hd, scale);
}

/* Scores of `count` vectors of sixteen positions from the first page on. */
static void scores(float *score, size_t ld, const float *q, size_t q_stride, uint32_t rows,
                   const float *const *kpage, uint32_t count, uint32_t hd, float scale)
{
    if (rows == 1)
        score_rows(1, ATTN_SUMS > 8 ? 8 : ATTN_SUMS, score, ld, q, q_stride, kpage, count, hd,
                   scale);
    else if (rows == 2)
        score_rows(2, ATTN_SUMS / 2, score, ld, q, q_stride, kpage, count, hd, scale);
    else if (rows == 3)
        score_rows(3, ATTN_SUMS / 4, score, ld, q, q_stride, kpage, count, hd, scale);
    else
        score_rows(4, ATTN_SUMS / 4, score, ld, q, q_stride, kpage, count, hd, scale);
}

typedef struct mix {
    float *out; /* rows, out_stride apart */
    size_t out_stride;
    const float *w; /* weights of positions, rows ldw apart */
    size_t ldw;
    const float *const *vpage; /* [position / 32] -> rows, ldv apart */
    size_t ldv;
    uint32_t first, last, hd;
    bool divide;                 /* divide by the plain ascending sum of the row's weights, which */
    float begin[SCORE_MAX_ROWS]; /* begins with this: the weight of a sink, or 0 */
} mix;

/* out[r][at .. at + 16 nvf) = sum over positions ascending of w[r][pos] * v[pos][..]. A single
 * vector may be partial. */
FMI_INLINE void mix_tile(const uint32_t rows, const uint32_t nvf, const mix *m, uint32_t at)
{
    vf sum[SCORE_MAX_ROWS][4];
    float total[SCORE_MAX_ROWS];

#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        total[r] = m->begin[r];
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

FMI_INLINE void mix_rows(const uint32_t rows, const uint32_t nvf, const mix *m)
{
    uint32_t d = 0;

    for (; d + nvf * VF_LANES <= m->hd; d += nvf * VF_LANES)
        mix_tile(rows, nvf, m, d);
    for (; d < m->hd; d += VF_LANES)
        mix_tile(rows, 1, m, d);
}

static void mix_run(uint32_t rows, const mix *m)
{
    if (rows == 1)
        mix_rows(1, 4, m);
    else if (rows == 2)
        mix_rows(2, ATTN_SUMS == 4 ? 2 : 4, m);
    else if (rows == 3)
        mix_rows(3, ATTN_SUMS / 4, m);
    else
        mix_rows(4, ATTN_SUMS / 4, m);
}

static void exp_range(float *x, uint32_t first, uint32_t last, float shift)
{
    for (uint32_t i = first; i <= last; i += VF_LANES) {
        uint32_t n = last + 1 - i;
        vf_store_upto(x + i, vf_exp(vf_sub(vf_load_upto(x + i, n), vf_set1(shift))), n);
    }
}

static void add_range(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += VF_LANES)
        vf_store_upto(x + i, vf_add(vf_load_upto(x + i, n - i), vf_load_upto(y + i, n - i)), n - i);
}

static float plain_exp(float x)
{
    float out[VF_LANES];

    vf_store(out, vf_exp(vf_set1(x)));
    return out[0];
}

static float plain_sum(float sum, const float *x, uint32_t first, uint32_t last)
{
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
               2 * pages, job->hd, job->scale);
        for (uint32_t r = 0; r < rows; r++) {
            float *s = job->score + r * ld;
            if (job->softcap > 0.0f)
                k_softcap(s + first, last - first + 1, job->softcap);
            if (job->bias)
                add_range(s + first, job->bias + (g + r) * job->bias_ld, last - first + 1);
            float max = row_max(s + first, last - first + 1);
            if (job->sink) {
                max = job->sink[g + r] > max ? job->sink[g + r] : max;
                m.begin[r] = plain_exp(job->sink[g + r] - max);
            }
            exp_range(s, first, last, max);
            if (job->lse)
                job->lse[(g + r) * job->lse_stride] =
                    (float)((double)max + fm_log((double)plain_sum(m.begin[r], s, first, last)));
        }
        mix_run(rows, &m);
    }
}

/* ---- whole sequences: several rows of one head, and their gradient ---- */

/* Positions in src that up to four rows see: row r sees first[r] .. end[r] - 1, all [lo, hi). */
typedef struct row_span {
    const float *src; /* values or keys, ld apart */
    size_t ld;
    const float *w; /* weights of the first row, rows ldw apart */
    uint32_t first[SCORE_MAX_ROWS], end[SCORE_MAX_ROWS], lo, hi;
} row_span;

static uint32_t own_first(const fmi_attn_seq *s, uint32_t row)
{
    return s->window && row >= s->window ? row - s->window + 1 : 0;
}
static uint32_t own_end(const fmi_attn_seq *s, uint32_t row)
{
    uint32_t end = s->window && s->window < s->len - row ? row + s->window : s->len;

    return s->encoder ? end : row + 1;
}

/* The biases of a row of a head from virtual position 0 on, or from the sequence's position 0. */
static const float *virtual_bias(const fmi_attn_seq *s, uint32_t head, uint32_t row)
{
    return s->bias ? s->bias + head * s->bias_ld + (s->bias_zero - s->virt - row) : NULL;
}
static const float *own_bias(const fmi_attn_seq *s, uint32_t head, uint32_t row)
{
    return s->bias ? s->bias + head * s->bias_ld + (s->bias_zero - row) : NULL;
}

/* The virtual positions (all rows see them) and those of the sequence; w: of the first row. */
static void make_spans(row_span *span, const fmi_attn_seq *s, const float *w, uint32_t row,
                       uint32_t rows, const float *virtual_src, const float *src)
{
    row_span *v = &span[0], *o = &span[1];
    *v = (row_span){.src = virtual_src, .ld = s->ldvirt, .w = w, .hi = s->virt};
    *o = (row_span){.src = src, .ld = s->ldk, .w = w + fmi_attn_padded(s->virt), .hi = UINT32_MAX};
    for (uint32_t r = 0; r < rows; r++) {
        v->end[r] = s->virt;
        o->first[r] = own_first(s, row + r);
        o->end[r] = own_end(s, row + r);
        o->lo = o->first[r] > o->lo ? o->first[r] : o->lo;
        o->hi = o->end[r] < o->hi ? o->end[r] : o->hi;
    }
    if (o->lo >= o->hi) /* no position in common: each row is done alone */
        o->lo = o->hi = UINT32_MAX;
}

FMI_INLINE uint32_t less(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* total[r] += the row's weights, one by one, ascending. */
static void span_totals(float *total, const row_span *span, size_t ldw, uint32_t rows)
{
    float sum[SCORE_MAX_ROWS];

    memcpy(sum, total, rows * sizeof *total);
    for (uint32_t k = 0; k < 2; k++) {
        const row_span *p = &span[k];
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t j = p->first[r], to = less(p->lo, p->end[r]); j < to; j++)
                sum[r] = sum[r] + p->w[r * ldw + j];
        if (rows == SCORE_MAX_ROWS) /* four chains at once */
            for (uint32_t j = p->lo; j < p->hi; j++)
#pragma GCC unroll 4
                for (uint32_t r = 0; r < SCORE_MAX_ROWS; r++)
                    sum[r] = sum[r] + p->w[r * ldw + j];
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t j = rows == SCORE_MAX_ROWS ? p->hi : p->lo; j < p->end[r]; j++)
                sum[r] = sum[r] + p->w[r * ldw + j];
    }
    memcpy(total, sum, rows * sizeof *total);
}

typedef struct gather {
    row_span span[2];
    size_t ldw;
    float *out; /* rows ldo apart */
    size_t ldo;
    uint32_t hd;
    const float *total; /* what each row is divided by, or NULL */
} gather;

FMI_INLINE void gather_row(vf *sum, const uint32_t nvf, const row_span *p, const float *w,
                           uint32_t from, uint32_t to, uint32_t at, uint32_t width)
{
    for (uint32_t j = from; j < to; j++) {
        const float *x = p->src + (size_t)j * p->ld + at;
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nvf; v++)
            sum[v] = vf_fma(vf_set1(w[j]),
                            nvf == 1 ? vf_load_upto(x, width) : vf_load(x + v * VF_LANES), sum[v]);
    }
}

/* out[r][at ..] = chain of fmaf(w[r][j], src[j][at ..], .) from +0 over what row r sees. */
FMI_INLINE void gather_tile(const uint32_t rows, const uint32_t nvf, const gather *g, uint32_t at)
{
    vf sum[SCORE_MAX_ROWS][4];
    uint32_t width = g->hd - at;

#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nvf; v++)
            sum[r][v] = vf_zero();
    for (uint32_t k = 0; k < 2; k++) {
        const row_span *p = &g->span[k];
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++)
            gather_row(sum[r], nvf, p, p->w + r * g->ldw, p->first[r], less(p->lo, p->end[r]), at,
                       width);
        for (uint32_t j = p->lo; j < p->hi; j++) {
            const float *src = p->src + (size_t)j * p->ld + at;
            vf x[4];
#pragma GCC unroll 4
            for (uint32_t v = 0; v < nvf; v++)
                x[v] = nvf == 1 ? vf_load_upto(src, width) : vf_load(src + v * VF_LANES);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < rows; r++) {
                vf w = vf_set1(p->w[r * g->ldw + j]);
#pragma GCC unroll 4
                for (uint32_t v = 0; v < nvf; v++)
                    sum[r][v] = vf_fma(w, x[v], sum[r][v]);
            }
        }
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++)
            gather_row(sum[r], nvf, p, p->w + r * g->ldw, p->hi, p->end[r], at, width);
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nvf; v++) {
            vf y = g->total ? vf_div(sum[r][v], vf_set1(g->total[r])) : sum[r][v];
            vf_store_upto(g->out + r * g->ldo + at + v * VF_LANES, y, nvf == 1 ? width : VF_LANES);
        }
}

FMI_INLINE void gather_rows(const uint32_t rows, const uint32_t nvf, const gather *g)
{
    uint32_t d = 0;

    for (; d + nvf * VF_LANES <= g->hd; d += nvf * VF_LANES)
        gather_tile(rows, nvf, g, d);
    for (; d < g->hd; d += VF_LANES)
        gather_tile(rows, 1, g, d);
}

/* Fewer than four rows occur only at the end of a sequence; they are done one by one. */
static void gather_run(uint32_t rows, const gather *g)
{
    gather one = *g;

    if (rows == SCORE_MAX_ROWS) {
        gather_rows(4, ATTN_SUMS / 4, g);
        return;
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t k = 0; k < 2; k++) {
            row_span *p = &one.span[k];
            p->first[0] = g->span[k].first[r];
            p->end[0] = g->span[k].end[r];
            p->w = g->span[k].w + r * g->ldw;
        }
        one.out = g->out + r * g->ldo;
        one.total = g->total ? g->total + r : NULL;
        gather_rows(1, 4, &one);
    }
}

static float span_max(const row_span *span, uint32_t row, size_t ldw)
{
    float max = -INFINITY;

    for (uint32_t k = 0; k < 2; k++) {
        const row_span *p = &span[k];
        if (p->first[row] == p->end[row])
            continue;
        float m = row_max(p->w + row * ldw + p->first[row], p->end[row] - p->first[row]);
        max = m > max ? m : max;
    }
    return max;
}

/* Scores of rows of one head over the positions that they see: q (or dout) against the pages of
 * keys (or values). */
static void span_scores(const fmi_attn_seq *s, float *score, size_t ld, const float *x, size_t ldx,
                        uint32_t row, uint32_t rows, const float *const *page, float scale)
{
    uint32_t skip = (uint32_t)(fmi_attn_padded(s->virt) / FMI_PANEL);
    uint32_t base = own_first(s, row) / FMI_PANEL;
    uint32_t count = (own_end(s, row + rows - 1) + VF_LANES - 1) / VF_LANES - 2 * base;

    if (skip)
        scores(score, ld, x, ldx, rows, page, (s->virt + VF_LANES - 1) / VF_LANES, s->hd, scale);
    scores(score + (size_t)(skip + base) * FMI_PANEL, ld, x, ldx, rows, page + skip + base, count,
           s->hd, scale);
}

/* Computes out and lse of at most four rows of one head. */
static void k_attn_rows(const fmi_attn_seq *s, uint32_t head, uint32_t row, uint32_t rows,
                        float *score)
{
    size_t ld = fmi_attn_padded(s->virt) + fmi_attn_padded(s->len), at = (size_t)head * s->hd;
    float total[SCORE_MAX_ROWS] = {0}, max[SCORE_MAX_ROWS];
    gather g = {.ldw = ld, .out = s->out + row * s->ldo + at, .ldo = s->ldo, .hd = s->hd};

    make_spans(g.span, s, score, row, rows, s->vv, s->v);
    span_scores(s, score, ld, s->q + row * s->ldq + at, s->ldq, row, rows, s->kpage, s->scale);
    for (uint32_t r = 0; r < rows; r++) {
        float *w = score + r * ld, *own = w + fmi_attn_padded(s->virt);
        uint32_t first = own_first(s, row + r), end = own_end(s, row + r);
        if (s->softcap > 0.0f) {
            k_softcap(w, s->virt, s->softcap);
            k_softcap(own + first, end - first, s->softcap);
        }
        if (s->bias) {
            add_range(w, virtual_bias(s, head, row + r), s->virt);
            add_range(own + first, own_bias(s, head, row + r) + first, end - first);
        }
        max[r] = span_max(g.span, r, ld);
        if (s->sink) {
            max[r] = s->sink[head] > max[r] ? s->sink[head] : max[r];
            total[r] = plain_exp(s->sink[head] - max[r]);
        }
        if (s->virt)
            exp_range(w, 0, s->virt - 1, max[r]);
        exp_range(own, first, end - 1, max[r]);
    }
    span_totals(total, g.span, ld, rows);
    for (uint32_t r = 0; r < rows; r++)
        s->lse[(size_t)head * s->len + row + r] =
            (float)((double)max[r] + fm_log((double)total[r]));
    g.total = total;
    gather_run(rows, &g);
}

/* p = exp(s - lse), ds = (p (dp - own)) scale, times the cap's slope; in place of scores and dp.
 * bias: of position 0, or NULL. */
static void grad_range(const fmi_attn_seq *s, float *p, float *ds, const float *bias, uint32_t from,
                       uint32_t to, float lse, float own)
{
    const vf one = vf_set1(1.0f), shift = vf_set1(lse), mean = vf_set1(own);

    if (s->softcap > 0.0f && to > from)
        k_softcap(p + from, to - from, s->softcap);
    for (uint32_t j = from; j < to; j += VF_LANES) {
        uint32_t n = to - j;
        vf score = vf_load_upto(p + j, n);
        vf sum = bias ? vf_add(score, vf_load_upto(bias + j, n)) : score;
        vf e = vf_exp(vf_sub(sum, shift));
        vf d = vf_mul(e, vf_sub(vf_load_upto(ds + j, n), mean));
        d = vf_mul(d, vf_set1(s->scale));
        if (s->softcap > 0.0f) {
            vf t = vf_div(score, vf_set1(s->softcap));
            d = vf_mul(d, vf_fma(vf_sub(vf_zero(), t), t, one));
        }
        vf_store_upto(p + j, e, n);
        vf_store_upto(ds + j, d, n);
    }
}

static void clear(float *x, uint32_t from, uint32_t to)
{
    if (to > from)
        memset(x + from, 0, (to - from) * sizeof *x);
}

/* Computes dq of at most FMI_GRAD_ROWS rows of one head, and p and ds, which are 0 at positions
 * that another of these rows sees and this one does not. */
static void k_attn_grad_rows(const fmi_attn_seq *s, uint32_t head, uint32_t row, uint32_t rows,
                             float *p, float *ds)
{
    size_t pad = fmi_attn_padded(s->virt), ld = pad + fmi_attn_padded(s->len);
    size_t at = (size_t)head * s->hd;
    uint32_t lowest = own_first(s, row), highest = own_end(s, row + rows - 1);

    for (uint32_t i = 0; i < rows; i += SCORE_MAX_ROWS) {
        uint32_t n = less(rows - i, SCORE_MAX_ROWS), first = row + i;
        float *pi = p + i * ld, *di = ds + i * ld;
        gather g = {.ldw = ld, .out = s->dq + first * s->ldq + at, .ldo = s->ldq, .hd = s->hd};
        span_scores(s, pi, ld, s->q + first * s->ldq + at, s->ldq, first, n, s->kpage, s->scale);
        span_scores(s, di, ld, s->dout + first * s->ldo + at, s->ldo, first, n, s->vpage, 1.0f);
        for (uint32_t r = 0; r < n; r++) {
            size_t o = (first + r) * s->ldo + at;
            float own = dot_lanes(s->dout + o, s->out + o, s->hd);
            float lse = s->lse[(size_t)head * s->len + first + r];
            uint32_t from = own_first(s, first + r), to = own_end(s, first + r);
            float *pr = pi + r * ld, *dr = di + r * ld;
            grad_range(s, pr, dr, virtual_bias(s, head, first + r), 0, s->virt, lse, own);
            grad_range(s, pr + pad, dr + pad, own_bias(s, head, first + r), from, to, lse, own);
            clear(pr + pad, lowest, from);
            clear(dr + pad, lowest, from);
            clear(pr + pad, to, highest);
            clear(dr + pad, to, highest);
        }
        make_spans(g.span, s, di, first, n, s->vk, s->k);
        gather_run(n, &g);
    }
}

typedef struct spread {
    float *dst; /* at position 0; rows ld apart */
    size_t ld;
    const float *w; /* at position 0; rows ldw apart */
    size_t ldw;
    const float *src; /* rows ldx apart */
    size_t ldx;
    uint32_t rows, hd;
} spread;

/* dst[j .. j + keys)[at ..] += sum over rows ascending of w[r][j] * src[r][at ..] */
FMI_INLINE void spread_tile(const uint32_t keys, const uint32_t nvf, const spread *p, uint32_t j,
                            uint32_t at)
{
    uint32_t width = p->hd - at;
    float *dst = p->dst + j * p->ld + at;
    vf sum[4][4];

#pragma GCC unroll 4
    for (uint32_t k = 0; k < keys; k++)
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nvf; v++)
            sum[k][v] = nvf == 1 ? vf_load_upto(dst + k * p->ld, width)
                                 : vf_load(dst + k * p->ld + v * VF_LANES);
    for (uint32_t r = 0; r < p->rows; r++) {
        const float *src = p->src + r * p->ldx + at, *w = p->w + r * p->ldw + j;
        vf x[4];
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nvf; v++)
            x[v] = nvf == 1 ? vf_load_upto(src, width) : vf_load(src + v * VF_LANES);
#pragma GCC unroll 4
        for (uint32_t k = 0; k < keys; k++) {
            vf weight = vf_set1(w[k]);
#pragma GCC unroll 4
            for (uint32_t v = 0; v < nvf; v++)
                sum[k][v] = vf_fma(weight, x[v], sum[k][v]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t k = 0; k < keys; k++)
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nvf; v++)
            vf_store_upto(dst + k * p->ld + v * VF_LANES, sum[k][v], nvf == 1 ? width : VF_LANES);
}

FMI_INLINE void spread_keys(const uint32_t keys, const uint32_t nvf, const spread *p, uint32_t j)
{
    uint32_t d = 0;

    for (; d + nvf * VF_LANES <= p->hd; d += nvf * VF_LANES)
        spread_tile(keys, nvf, p, j, d);
    for (; d < p->hd; d += VF_LANES)
        spread_tile(keys, 1, p, j, d);
}

static void spread_range(const spread *p, uint32_t from, uint32_t to)
{
    for (; from + 4 <= to; from += 4)
        spread_keys(4, ATTN_SUMS / 4, p, from);
    for (; from < to; from++)
        spread_keys(1, 4, p, from);
}

static void k_attn_spread(const fmi_attn_seq *s, uint32_t head, uint32_t row, uint32_t rows,
                          const float *p, const float *ds, uint32_t from, uint32_t to)
{
    uint32_t pad = (uint32_t)fmi_attn_padded(s->virt);
    size_t ld = pad + fmi_attn_padded(s->len), at = (size_t)head * s->hd;
    uint32_t lowest = own_first(s, row), highest = own_end(s, row + rows - 1);
    spread k = {.w = ds, .ldw = ld, .src = s->q + row * s->ldq + at, .ldx = s->ldq};
    spread v = {.w = p, .ldw = ld, .src = s->dout + row * s->ldo + at, .ldx = s->ldo};

    k.rows = v.rows = rows;
    k.hd = v.hd = s->hd;
    k.ld = v.ld = s->hd;
    if (s->dvk && from < s->virt) {
        k.dst = s->dvk;
        v.dst = s->dvv;
        spread_range(&k, from, less(to, s->virt));
        spread_range(&v, from, less(to, s->virt));
    }
    if (to <= pad)
        return;
    uint32_t first = from > pad ? from - pad : 0, end = less(to - pad, highest);
    first = first > lowest ? first : lowest;
    k.dst = s->dk;
    v.dst = s->dv;
    k.w += pad;
    v.w += pad;
    k.ld = v.ld = s->ldk;
    spread_range(&k, first, end);
    spread_range(&v, first, end);
}

/* Packs n rows as pages of [hd, 32]; the rest of the last page is never used. */
static void k_attn_pages(float *dst, const float *src, size_t ld, uint32_t n, uint32_t hd)
{
    for (; n > 0; src += FMI_PANEL * ld, dst += (size_t)FMI_PANEL * hd) {
        uint32_t some = less(n, FMI_PANEL);
        k_transpose(dst, FMI_PANEL, src, ld, some, hd);
        n -= some;
    }
}
