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
    for (uint32_t j = 0; j + 1 < c->kernel; j++)
        past[j] = from < 0 ? vf_zero()
                           : vf_load_upto(c->rows.pages + (size_t)from * c->rows.page_floats + at +
                                              (size_t)j * c->channels,
                                          n);
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

/* What the rows of a sequence that reach entry i have: u, and du as far as it is summed. */
typedef struct conv_window {
    vf u[FM_MAX_CONV_KERNEL], du[FM_MAX_CONV_KERNEL];
} conv_window;

/* dx, dbefore of entry i, all of whose du is known. */
FMI_INLINE void conv_grad_put(const fm_convolve_grad *g, uint32_t i, uint32_t at, uint32_t n, vf du)
{
    const fm_convolve *c = &g->c;
    size_t row = (size_t)c->rows.row[i], in = row * c->ldx + at, out = row * g->lddx + at;
    if (c->before) {
        vf_store_upto(g->dbefore + out, vf_mul(du, vf_load_upto(c->x + in, n)), n);
        du = vf_mul(du, vf_load_upto(c->before + in, n));
    }
    vf_store_upto(g->dx + out, du, n);
}

/* dz of entry i, whose u is the window's last; sets dafter. */
FMI_INLINE vf conv_grad_row(const fm_convolve_grad *g, const conv_window *t, const vf *w,
                            uint32_t i, uint32_t at, uint32_t n)
{
    const fm_convolve *c = &g->c;
    size_t row = (size_t)c->rows.row[i], in = row * c->ldx + at;
    vf d = vf_load_upto(g->dy + row * g->lddy + at, n), z = vf_mul(w[0], t->u[0]);
    act_slope s = {z, vf_set1(1.0f)};
    for (uint32_t j = 1; j < c->kernel; j++)
        z = vf_fma(w[j], t->u[j], z);
    if (c->bias)
        z = vf_add(z, vf_load_upto(c->bias + at, n));
    s.y = z;
    if (c->silu)
        s = silu_slope(z);
    if (c->after) {
        vf_store_upto(g->dafter + row * g->lddx + at, vf_mul(d, s.y), n);
        d = vf_mul(d, vf_load_upto(c->after + in, n));
    }
    return c->silu ? vf_mul(d, s.slope) : d;
}

/* dweight += w, dbias += b; dweight is [channels, kernel]. */
static void conv_grad_add(const fm_convolve_grad *g, uint32_t at, uint32_t n, const vf *w, vf b)
{
    for (uint32_t j = 0; g->dweight && j < g->c.kernel; j++) {
        float one[VF_LANES];
        vf_store(one, w[j]);
        for (uint32_t i = 0; i < n; i++)
            g->dweight[(size_t)(at + i) * g->c.kernel + j] += one[i];
    }
    if (g->dbias)
        vf_store_upto(g->dbias + at, vf_add(vf_load_upto(g->dbias + at, n), b), n);
}

static void conv_grad_channels(const fm_convolve_grad *g, uint32_t at, uint32_t n)
{
    const fm_convolve *c = &g->c;
    vf w[FM_MAX_CONV_KERNEL], dw[FM_MAX_CONV_KERNEL], db = vf_zero();
    uint32_t last = c->kernel - 1, first = 0;
    conv_window t;

    conv_weights(w, c->weight + (size_t)at * c->kernel, c->kernel, n);
    for (uint32_t j = 0; j < FM_MAX_CONV_KERNEL; j++)
        dw[j] = t.u[j] = t.du[j] = vf_zero();
    for (uint32_t i = 0; i < c->rows.m; i++) {
        bool ends = i + 1 == c->rows.m || c->rows.from[i + 1] != FM_STATE_ON;
        size_t in = (size_t)c->rows.row[i] * c->ldx + at;
        vf u = vf_load_upto(c->x + in, n);
        if (c->rows.from[i] != FM_STATE_ON)
            first = i;
        for (uint32_t j = 0; first == i && j <= last; j++)
            t.u[j] = t.du[j] = vf_zero();
        t.u[last] = c->before ? vf_mul(vf_load_upto(c->before + in, n), u) : u;
        t.du[last] = vf_zero();
        vf dz = conv_grad_row(g, &t, w, i, at, n);
        db = vf_add(db, dz);
        for (uint32_t j = 0; j <= last; j++) {
            dw[j] = vf_fma(dz, t.u[j], dw[j]);
            t.du[j] = vf_fma(w[j], dz, t.du[j]);
        }
        for (uint32_t j = 0; j <= (ends ? last : 0); j++)
            if (i + j >= first + last)
                conv_grad_put(g, i + j - last, at, n, t.du[j]);
        for (uint32_t j = 0; j < last; j++) {
            t.u[j] = t.u[j + 1];
            t.du[j] = t.du[j + 1];
        }
    }
    conv_grad_add(g, at, n, dw, db);
}

static void k_convolve_grad(const fm_convolve_grad *g, uint32_t begin, uint32_t end)
{
    for (uint32_t at = begin; at < end; at += VF_LANES)
        conv_grad_channels(g, at, end - at < VF_LANES ? end - at : VF_LANES);
}

/* ---- states of heads: [n, VF_LANES] here, rows of hd in their pages ---- */

static void state_load(float *s, const fm_state_rows *r, uint32_t i, size_t at, uint32_t n,
                       uint32_t hd, uint32_t lanes)
{
    const float *page = r->pages + (size_t)(r->from[i] > 0 ? r->from[i] : 0) * r->page_floats + at;

    if (r->from[i] == FM_STATE_ON)
        return;
    for (uint32_t j = 0; j < n; j++)
        vf_store(s + j * VF_LANES,
                 r->from[i] < 0 ? vf_zero() : vf_load_upto(page + (size_t)j * hd, lanes));
}

static void state_store(const float *s, const fm_state_rows *r, uint32_t i, size_t at, uint32_t n,
                        uint32_t hd, uint32_t lanes)
{
    if (r->to[i] < 0)
        return;
    float *page = r->pages + (size_t)r->to[i] * r->page_floats + at;
    for (uint32_t j = 0; j < n; j++)
        vf_store_upto(page + (size_t)j * hd, vf_load(s + j * VF_LANES), lanes);
}

/* log(1 + e^x) in double, rounded once; x itself above 20, as PyTorch. */
static float softplus_of(float x)
{
    if (!(x <= 20.0f))
        return x;
    double e = fm_exp((double)x);
    return (float)(e < 1e-5 ? e - 0.5 * e * e : fm_log(1.0 + e));
}

static float softplus_slope(float x)
{
    if (!(x <= 20.0f))
        return 1.0f;
    double e = fm_exp((double)x);
    return (float)(e / (1.0 + e));
}

/* ---- selective scan ---- */

FMI_INLINE float step_of(const fm_scan *s, const float *dt, uint32_t at)
{
    float t = softplus_of(dt[at] + s->dt_bias[at]);
    t = t < s->dt_min ? s->dt_min : t;
    return t > s->dt_max ? s->dt_max : t;
}

/* A of each of these channels and j, [n, VF_LANES]; one for all j where it is by head. */
static void scan_rates(float *a, const fm_scan *s, uint32_t head, uint32_t c0, uint32_t lanes)
{
    if (!s->by_channel) {
        vf_store(a, vf_sub(vf_zero(), vf_exp(vf_set1(s->a_log[head]))));
        return;
    }
    for (uint32_t j = 0; j < s->n; j++) {
        float one[VF_LANES] = {0};
        for (uint32_t i = 0; i < lanes; i++)
            one[i] = s->a_log[(size_t)(c0 + i) * s->n + j];
        vf_store(a + j * VF_LANES, vf_sub(vf_zero(), vf_exp(vf_load(one))));
    }
}

/* dt of these channels in a row. */
FMI_INLINE vf scan_step(const fm_scan *s, size_t row, uint32_t head, uint32_t c0, uint32_t lanes)
{
    const float *dt = s->dt + row * s->lddt;
    float one[VF_LANES] = {0};

    if (!s->by_channel)
        return vf_set1(step_of(s, dt, head));
    for (uint32_t i = 0; i < lanes; i++)
        one[i] = step_of(s, dt, c0 + i);
    return vf_load(one);
}

static void scan_block(const fm_scan *s, uint32_t head, uint32_t off)
{
    float state[FM_MAX_STATE * VF_LANES], a[FM_MAX_STATE * VF_LANES];
    uint32_t lanes = s->hd - off < VF_LANES ? s->hd - off : VF_LANES, c0 = head * s->hd + off;
    size_t group = (size_t)(head / (s->heads / s->groups)) * s->n;
    size_t at = (size_t)head * s->n * s->hd + off;
    vf d = s->by_channel ? vf_load_upto(s->d + c0, lanes) : vf_set1(s->d[head]);

    scan_rates(a, s, head, c0, lanes);
    for (uint32_t i = 0; i < s->rows.m; i++) {
        size_t row = (size_t)s->rows.row[i];
        const float *b = s->b + row * s->ldb + group, *c = s->c + row * s->ldb + group;
        vf x = vf_load_upto(s->x + row * s->ldx + c0, lanes);
        vf dt = scan_step(s, row, head, c0, lanes), add = vf_mul(dt, x), y = vf_zero();
        vf decay = vf_exp(vf_mul(dt, vf_load(a)));
        state_load(state, &s->rows, i, at, s->n, s->hd, lanes);
        for (uint32_t j = 0; j < s->n; j++) {
            if (s->by_channel && j > 0)
                decay = vf_exp(vf_mul(dt, vf_load(a + j * VF_LANES)));
            vf t = vf_fma(vf_load(state + j * VF_LANES), decay, vf_mul(add, vf_set1(b[j])));
            vf_store(state + j * VF_LANES, t);
            y = j ? vf_fma(t, vf_set1(c[j]), y) : vf_mul(t, vf_set1(c[j]));
        }
        vf_store_upto(s->y + row * s->ldy + c0, vf_fma(d, x, y), lanes);
        state_store(state, &s->rows, i, at, s->n, s->hd, lanes);
    }
}

static void k_scan(const fm_scan *s, uint32_t begin, uint32_t end)
{
    uint32_t blocks = (s->hd + VF_LANES - 1) / VF_LANES;
    for (uint32_t u = begin; u < end; u++)
        scan_block(s, u / blocks, u % blocks * VF_LANES);
}

/* ---- gradient of a selective scan ---- */

/* Entries begin .. end - 1 of the list, and what their rows have of one block of channels. */
typedef struct scan_chunk {
    uint32_t begin, end, head, off, lanes;
    float slope[FM_SCAN_CHUNK * VF_LANES]; /* of softplus and the limits */
    vf dt[FM_SCAN_CHUNK], decay[FM_SCAN_CHUNK], s[FM_SCAN_CHUNK + 1];
    vf add[FM_SCAN_CHUNK]; /* gradient of dt * x */
    vf log[FM_SCAN_CHUNK]; /* gradient of dt by the decays */
} scan_chunk;

/* [n, VF_LANES] of a block: the states before a chunk, or (chunk = number of chunks) the gradient
 * of the states before the chunk that was taken last. */
FMI_INLINE float *scan_states_at(const fm_scan_grad *g, size_t chunk, size_t block)
{
    return g->work + (chunk * fm_scan_blocks(&g->s) + block) * g->s.n * VF_LANES;
}

/* A unit's share of db (dc: which 1) of entry i of a chunk, [n]. */
FMI_INLINE float *scan_share(const fm_scan_grad *g, size_t unit, uint32_t i, uint32_t which)
{
    float *shares = scan_states_at(g, fm_scan_chunks(&g->s) + 1, 0);
    return shares + ((unit * FM_SCAN_CHUNK + i) * 2 + which) * g->s.n;
}

FMI_INLINE float step_slope(const fm_scan *s, const float *dt, uint32_t at)
{
    float x = dt[at] + s->dt_bias[at], t = softplus_of(x);
    return t < s->dt_min || t > s->dt_max ? 0.0f : softplus_slope(x);
}

FMI_INLINE bool goes_on(const fm_state_rows *r, uint32_t i)
{
    return i < r->m && r->from[i] == FM_STATE_ON;
}

static void scan_states_of(const fm_scan_grad *g, uint32_t head, uint32_t off)
{
    const fm_scan *s = &g->s;
    float state[FM_MAX_STATE * VF_LANES], a[FM_MAX_STATE * VF_LANES];
    uint32_t lanes = s->hd - off < VF_LANES ? s->hd - off : VF_LANES, c0 = head * s->hd + off;
    size_t group = (size_t)(head / (s->heads / s->groups)) * s->n;
    size_t block = (size_t)head * ((s->hd + VF_LANES - 1) / VF_LANES) + off / VF_LANES;

    scan_rates(a, s, head, c0, lanes);
    for (uint32_t i = 0; i < s->rows.m; i++) {
        size_t row = (size_t)s->rows.row[i];
        const float *b = s->b + row * s->ldb + group;
        vf dt = scan_step(s, row, head, c0, lanes);
        vf add = vf_mul(dt, vf_load_upto(s->x + row * s->ldx + c0, lanes));
        vf decay = vf_exp(vf_mul(dt, vf_load(a)));
        for (uint32_t j = 0; j < s->n && !goes_on(&s->rows, i); j++)
            vf_store(state + j * VF_LANES, vf_zero());
        if (i % FM_SCAN_CHUNK == 0)
            memcpy(scan_states_at(g, i / FM_SCAN_CHUNK, block), state,
                   (size_t)s->n * VF_LANES * sizeof(float));
        for (uint32_t j = 0; j < s->n; j++) {
            if (s->by_channel && j > 0)
                decay = vf_exp(vf_mul(dt, vf_load(a + j * VF_LANES)));
            vf t = vf_fma(vf_load(state + j * VF_LANES), decay, vf_mul(add, vf_set1(b[j])));
            vf_store(state + j * VF_LANES, t);
        }
    }
}

/* dt, its slope, and a decay that all rows of the state share. */
static void scan_chunk_begin(scan_chunk *t, const fm_scan *s, vf a)
{
    uint32_t c0 = t->head * s->hd + t->off;
    for (uint32_t i = t->begin; i < t->end; i++) {
        size_t row = (size_t)s->rows.row[i];
        const float *dt = s->dt + row * s->lddt;
        float *slope = t->slope + (size_t)(i - t->begin) * VF_LANES;
        uint32_t k = i - t->begin;
        t->dt[k] = scan_step(s, row, t->head, c0, t->lanes);
        t->decay[k] = vf_exp(vf_mul(t->dt[k], a));
        t->add[k] = t->log[k] = vf_zero();
        for (uint32_t l = 0; l < (s->by_channel ? t->lanes : 1); l++)
            slope[l] = step_slope(s, dt, s->by_channel ? c0 + l : t->head);
    }
}

/* Row j of the block's states through the chunk, forward, then its gradient backward. Returns the
 * sum of dt * the gradient of dt by this row's decays, of each channel. */
static vf scan_chunk_row(scan_chunk *t, const fm_scan_grad *g, const float *from, float *carry,
                         uint32_t unit, uint32_t j, vf a)
{
    const fm_scan *s = &g->s;
    size_t group = (size_t)(t->head / (s->heads / s->groups)) * s->n + j;
    uint32_t c0 = t->head * s->hd + t->off, m = t->end - t->begin;
    bool more = !s->by_channel && t->off > 0; /* the head's block before this one has a share */
    vf da = vf_zero(), ds = vf_load(carry);

    t->s[0] = vf_load(from);
    for (uint32_t k = 0; k < m; k++) {
        size_t row = (size_t)s->rows.row[t->begin + k];
        vf x = vf_load_upto(s->x + row * s->ldx + c0, t->lanes);
        if (!goes_on(&s->rows, t->begin + k))
            t->s[k] = vf_zero();
        if (s->by_channel)
            t->decay[k] = vf_exp(vf_mul(t->dt[k], a));
        t->s[k + 1] = vf_fma(t->s[k], t->decay[k],
                             vf_mul(vf_mul(t->dt[k], x), vf_set1(s->b[row * s->ldb + group])));
        float *share = scan_share(g, unit, k, 1) + j;
        float one =
            vf_fold_add(vf_mul(vf_load_upto(g->dy + row * g->lddy + c0, t->lanes), t->s[k + 1]));
        *share = more ? *share + one : one;
    }
    for (uint32_t k = m; k-- > 0;) {
        size_t row = (size_t)s->rows.row[t->begin + k];
        vf add = vf_mul(t->dt[k], vf_load_upto(s->x + row * s->ldx + c0, t->lanes));
        vf dy = vf_load_upto(g->dy + row * g->lddy + c0, t->lanes);
        if (!goes_on(&s->rows, t->begin + k + 1))
            ds = vf_zero();
        ds = vf_fma(dy, vf_set1(s->c[row * s->ldb + group]), ds);
        float *share = scan_share(g, unit, k, 0) + j, one = vf_fold_add(vf_mul(ds, add));
        *share = more ? *share + one : one;
        t->add[k] = vf_fma(ds, vf_set1(s->b[row * s->ldb + group]), t->add[k]);
        ds = vf_mul(ds, t->decay[k]);
        if (goes_on(&s->rows, t->begin + k)) {
            vf log = vf_mul(vf_mul(ds, t->s[k]), a);
            t->log[k] = vf_add(t->log[k], log);
            da = vf_fma(log, t->dt[k], da);
        }
    }
    vf_store(carry, ds);
    return da;
}

/* What a chunk gives to a unit's d, dt's bias and (by head) a_log. */
typedef struct scan_sums {
    vf skip, bias, rate;
} scan_sums;

/* dx and ddt of a block that has gone through all rows of its states. */
static void scan_chunk_end(const scan_chunk *t, const fm_scan_grad *g, scan_sums *sum)
{
    const fm_scan *s = &g->s;
    uint32_t c0 = t->head * s->hd + t->off;
    vf d = s->by_channel ? vf_load_upto(s->d + c0, t->lanes) : vf_set1(s->d[t->head]);

    for (uint32_t i = t->end; i-- > t->begin;) {
        size_t row = (size_t)s->rows.row[i];
        uint32_t k = i - t->begin;
        vf x = vf_load_upto(s->x + row * s->ldx + c0, t->lanes);
        vf dy = vf_load_upto(g->dy + row * g->lddy + c0, t->lanes);
        vf ddt = vf_fma(t->add[k], x, t->log[k]);
        vf_store_upto(g->dx + row * g->lddx + c0, vf_fma(t->add[k], t->dt[k], vf_mul(dy, d)),
                      t->lanes);
        sum->skip = vf_fma(dy, x, sum->skip);
        if (s->by_channel) {
            float slope[VF_LANES] = {0};
            memcpy(slope, t->slope + (size_t)k * VF_LANES, t->lanes * sizeof(float));
            ddt = vf_mul(ddt, vf_load(slope));
            vf_store_upto(g->ddt + row * g->ldddt + c0, ddt, t->lanes);
            sum->bias = vf_add(sum->bias, ddt);
        } else {
            float *to = g->ddt + row * g->ldddt + t->head;
            float one = vf_fold_add(ddt) * t->slope[(size_t)k * VF_LANES];
            *to = t->off > 0 ? *to + one : one;
            sum->bias = vf_add(sum->bias, vf_mul(ddt, vf_set1(t->slope[(size_t)k * VF_LANES])));
        }
    }
}

/* to[at ..] += v, channel by channel, or the sum of v to the head's. */
FMI_INLINE void scan_sum_add(float *to, const fm_scan *s, uint32_t head, uint32_t c0,
                             uint32_t lanes, vf v)
{
    if (to && s->by_channel)
        vf_store_upto(to + c0, vf_add(vf_load_upto(to + c0, lanes), v), lanes);
    else if (to)
        to[head] += vf_fold_add(v);
}

static void scan_grad_block(scan_chunk *t, const fm_scan_grad *g, uint32_t chunk, uint32_t unit)
{
    const fm_scan *s = &g->s;
    float a[FM_MAX_STATE * VF_LANES];
    uint32_t c0 = t->head * s->hd + t->off;
    size_t block = (size_t)t->head * ((s->hd + VF_LANES - 1) / VF_LANES) + t->off / VF_LANES;
    float *carry = scan_states_at(g, fm_scan_chunks(s), block);
    const float *from = scan_states_at(g, chunk, block);
    scan_sums sum = {vf_zero(), vf_zero(), vf_zero()};

    t->lanes = s->hd - t->off < VF_LANES ? s->hd - t->off : VF_LANES;
    scan_rates(a, s, t->head, c0, t->lanes);
    scan_chunk_begin(t, s, vf_load(a));
    for (uint32_t j = 0; j < s->n; j++) {
        float one[VF_LANES];
        vf rate = vf_load(a + (s->by_channel ? j * VF_LANES : 0));
        vf da = scan_chunk_row(t, g, from + j * VF_LANES, carry + j * VF_LANES, unit, j, rate);
        sum.rate = vf_add(sum.rate, da);
        vf_store(one, da);
        for (uint32_t l = 0; s->by_channel && g->da_log && l < t->lanes; l++)
            g->da_log[(size_t)(c0 + l) * s->n + j] += one[l];
    }
    scan_chunk_end(t, g, &sum);
    scan_sum_add(g->dd, s, t->head, c0, t->lanes, sum.skip);
    scan_sum_add(g->ddt_bias, s, t->head, c0, t->lanes, sum.bias);
    if (!s->by_channel)
        scan_sum_add(g->da_log, s, t->head, c0, t->lanes, sum.rate);
}

static void k_scan_states(const fm_scan_grad *g, uint32_t begin, uint32_t end)
{
    const fm_scan *s = &g->s;
    uint32_t blocks = (s->hd + VF_LANES - 1) / VF_LANES, each = s->by_channel ? 1 : blocks;
    for (uint32_t b = begin * each; b < end * each; b++)
        scan_states_of(g, b / blocks, b % blocks * VF_LANES);
}

static void k_scan_grad(const fm_scan_grad *g, uint32_t chunk, uint32_t begin, uint32_t end)
{
    const fm_scan *s = &g->s;
    uint32_t blocks = (s->hd + VF_LANES - 1) / VF_LANES, each = s->by_channel ? 1 : blocks;
    scan_chunk t = {.begin = chunk * FM_SCAN_CHUNK};
    t.end = s->rows.m - t.begin < FM_SCAN_CHUNK ? s->rows.m : t.begin + FM_SCAN_CHUNK;
    for (uint32_t b = begin * each; b < end * each; b++) {
        t.head = b / blocks;
        t.off = b % blocks * VF_LANES;
        scan_grad_block(&t, g, chunk, b / each);
    }
}

static void k_scan_grad_sum(const fm_scan_grad *g, uint32_t begin, uint32_t end)
{
    const fm_scan *s = &g->s;
    uint32_t units = (uint32_t)fm_scan_units(s) / s->groups;
    for (uint32_t i = begin; i < end; i++)
        for (uint32_t at = 0; at < 2 * s->groups; at++) {
            size_t group = at / 2, row = (size_t)s->rows.row[i];
            float *to = (at % 2 ? g->dc : g->db) + row * g->lddb + group * s->n;
            for (uint32_t j = 0; j < s->n; j += VF_LANES) {
                vf sum = vf_zero();
                for (uint32_t u = 0; u < units; u++) {
                    const float *one =
                        scan_share(g, group * units + u, i % FM_SCAN_CHUNK, at % 2) + j;
                    sum = vf_add(sum, vf_load_upto(one, s->n - j));
                }
                vf_store_upto(to + j, sum, s->n - j);
            }
        }
}

/* ---- gated delta rule ---- */

/* y = x / sqrt(sum of squares + 1e-6), the sum in the lane order. */
static void unit_vector(float *y, const float *x, uint32_t n, float scale)
{
    vf sum = vf_zero();
    for (uint32_t i = 0; i < n; i += VF_LANES) {
        vf v = vf_load_upto(x + i, n - i);
        sum = vf_fma(v, v, sum);
    }
    vf r = vf_set1(1.0f / sqrtf(vf_fold_add(sum) + 1e-6f));
    for (uint32_t i = 0; i < n; i += VF_LANES)
        vf_store_upto(y + i, vf_mul(vf_mul(vf_load_upto(x + i, n - i), r), vf_set1(scale)), n - i);
}

static void delta_block(const fm_delta *d, uint32_t head, uint32_t off)
{
    float state[FM_MAX_STATE * VF_LANES], q[FM_MAX_STATE], k[FM_MAX_STATE];
    uint32_t lanes = d->dv - off < VF_LANES ? d->dv - off : VF_LANES;
    size_t from = (size_t)(head / (d->hv / d->hk)) * d->dk, c0 = (size_t)head * d->dv + off;
    size_t at = (size_t)head * d->dk * d->dv + off;
    float scale = 1.0f / sqrtf((float)d->dk);
    vf rate = vf_sub(vf_zero(), vf_exp(vf_set1(d->a_log[head])));

    for (uint32_t i = 0; i < d->rows.m; i++) {
        size_t row = (size_t)d->rows.row[i];
        float a = d->a[row * d->lda + head] + d->dt_bias[head];
        vf decay = vf_exp(vf_mul(rate, vf_set1(softplus_of(a))));
        vf beta = vf_sigmoid(vf_set1(d->b[row * d->lda + head]));
        vf seen = vf_zero(), y = vf_zero();
        unit_vector(q, d->q + row * d->ldx + from, d->dk, scale);
        unit_vector(k, d->k + row * d->ldx + from, d->dk, 1.0f);
        state_load(state, &d->rows, i, at, d->dk, d->dv, lanes);
        for (uint32_t j = 0; j < d->dk; j++) {
            vf t = vf_mul(vf_load(state + j * VF_LANES), decay);
            vf_store(state + j * VF_LANES, t);
            seen = vf_fma(vf_set1(k[j]), t, seen);
        }
        vf u = vf_mul(vf_sub(vf_load_upto(d->v + row * d->ldx + c0, lanes), seen), beta);
        for (uint32_t j = 0; j < d->dk; j++) {
            vf t = vf_fma(vf_set1(k[j]), u, vf_load(state + j * VF_LANES));
            vf_store(state + j * VF_LANES, t);
            y = vf_fma(vf_set1(q[j]), t, y);
        }
        vf_store_upto(d->y + row * d->ldy + c0, y, lanes);
        state_store(state, &d->rows, i, at, d->dk, d->dv, lanes);
    }
}

static void k_delta(const fm_delta *d, uint32_t begin, uint32_t end)
{
    uint32_t blocks = (d->dv + VF_LANES - 1) / VF_LANES;
    for (uint32_t u = begin; u < end; u++)
        delta_block(d, u / blocks, u % blocks * VF_LANES);
}

/* ---- gradient of a gated delta rule ---- */

FMI_INLINE float *delta_states_at(const fm_delta_grad *g, size_t chunk, size_t block)
{
    return g->work + (chunk * fm_delta_blocks(&g->d) + block) * g->d.dk * VF_LANES;
}

/* A head's states of one block behind entry i of a chunk, [dk, VF_LANES]. */
FMI_INLINE float *delta_chunk_state(const fm_delta_grad *g, size_t head, uint32_t i)
{
    return delta_states_at(g, fm_delta_chunks(&g->d) + 1, 0) +
           (head * FM_SCAN_CHUNK + i) * g->d.dk * VF_LANES;
}

/* A head's share of dq (dk: which 1) of entry i of a chunk, [dk]. */
FMI_INLINE float *delta_share(const fm_delta_grad *g, size_t head, uint32_t i, uint32_t which)
{
    return delta_chunk_state(g, g->d.hv, 0) + ((head * FM_SCAN_CHUNK + i) * 2 + which) * g->d.dk;
}

/* A block of columns of a head. */
typedef struct delta_columns {
    uint32_t head, off, lanes;
    size_t from, c0, block; /* the head's q and k, its columns in v and y */
    vf rate;
} delta_columns;

static delta_columns delta_columns_of(const fm_delta *d, uint32_t head, uint32_t off)
{
    return (delta_columns){.head = head,
                           .off = off,
                           .lanes = d->dv - off < VF_LANES ? d->dv - off : VF_LANES,
                           .from = (size_t)(head / (d->hv / d->hk)) * d->dk,
                           .c0 = (size_t)head * d->dv + off,
                           .block =
                               (size_t)head * ((d->dv + VF_LANES - 1) / VF_LANES) + off / VF_LANES,
                           .rate = vf_sub(vf_zero(), vf_exp(vf_set1(d->a_log[head])))};
}

/* What a row does to the state: s = s * decay + k * u. */
typedef struct delta_row {
    vf decay, beta, miss, u; /* u = miss * beta */
} delta_row;

/* From the state before entry i (NULL: zeros) to the one behind it, as delta_block; to may be it.
 * k: the row's, of length 1. */
static delta_row delta_step(const fm_delta *d, const delta_columns *c, uint32_t i, const float *k,
                            float *to, const float *before)
{
    size_t row = (size_t)d->rows.row[i];
    float a = d->a[row * d->lda + c->head] + d->dt_bias[c->head];
    delta_row r = {.decay = vf_exp(vf_mul(c->rate, vf_set1(softplus_of(a)))),
                   .beta = vf_sigmoid(vf_set1(d->b[row * d->lda + c->head]))};
    vf seen = vf_zero();

    for (uint32_t j = 0; j < d->dk; j++) {
        vf t = before ? vf_mul(vf_load(before + j * VF_LANES), r.decay) : vf_zero();
        vf_store(to + j * VF_LANES, t);
        seen = vf_fma(vf_set1(k[j]), t, seen);
    }
    r.miss = vf_sub(vf_load_upto(d->v + row * d->ldx + c->c0, c->lanes), seen);
    r.u = vf_mul(r.miss, r.beta);
    for (uint32_t j = 0; j < d->dk; j++)
        vf_store(to + j * VF_LANES, vf_fma(vf_set1(k[j]), r.u, vf_load(to + j * VF_LANES)));
    return r;
}

static void delta_states_of(const fm_delta_grad *g, const delta_columns *c)
{
    const fm_delta *d = &g->d;
    float state[FM_MAX_STATE * VF_LANES], k[FM_MAX_STATE];

    for (uint32_t i = 0; i < d->rows.m; i++) {
        unit_vector(k, d->k + (size_t)d->rows.row[i] * d->ldx + c->from, d->dk, 1.0f);
        for (uint32_t j = 0; j < d->dk && !goes_on(&d->rows, i); j++)
            vf_store(state + j * VF_LANES, vf_zero());
        if (i % FM_SCAN_CHUNK == 0)
            memcpy(delta_states_at(g, i / FM_SCAN_CHUNK, c->block), state,
                   (size_t)d->dk * VF_LANES * sizeof(float));
        (void)delta_step(d, c, i, k, state, state);
    }
}

/* What a head's rows of a chunk give to a and b. */
typedef struct delta_chunk {
    uint32_t begin, m;
    float log[FM_SCAN_CHUNK], beta[FM_SCAN_CHUNK]; /* gradients of log(decay) and of beta */
    delta_row row[FM_SCAN_CHUNK];
} delta_chunk;

/* to = one, or where the head's block before this one has a share += one. */
FMI_INLINE void delta_add(float *to, const delta_columns *c, float one)
{
    *to = c->off > 0 ? *to + one : one;
}

/* Entry k of the chunk; ds: the gradient of the state behind it, then of the one before it. */
static void delta_row_grad(delta_chunk *t, const fm_delta_grad *g, const delta_columns *c,
                           uint32_t k, const float *before, float *ds)
{
    const fm_delta *d = &g->d;
    float q[FM_MAX_STATE], key[FM_MAX_STATE];
    size_t row = (size_t)d->rows.row[t->begin + k];
    const delta_row *r = &t->row[k];
    const float *state = delta_chunk_state(g, c->head, k);
    vf dy = vf_load_upto(g->dy + row * g->lddy + c->c0, c->lanes), du = vf_zero(), log = vf_zero();
    bool on = goes_on(&d->rows, t->begin + k);

    unit_vector(q, d->q + row * d->ldx + c->from, d->dk, 1.0f / sqrtf((float)d->dk));
    unit_vector(key, d->k + row * d->ldx + c->from, d->dk, 1.0f);
    for (uint32_t j = 0; j < d->dk; j++) {
        vf at = vf_fma(vf_set1(q[j]), dy, vf_load(ds + j * VF_LANES));
        vf_store(ds + j * VF_LANES, at);
        du = vf_fma(vf_set1(key[j]), at, du);
        delta_add(delta_share(g, c->head, k, 0) + j, c,
                  vf_fold_add(vf_mul(vf_load(state + j * VF_LANES), dy)));
    }
    vf dv = vf_mul(du, r->beta), dseen = vf_sub(vf_zero(), dv);
    vf_store_upto(g->dv + row * g->lddx + c->c0, dv, c->lanes);
    delta_add(&t->beta[k], c, vf_fold_add(vf_mul(du, r->miss)));
    for (uint32_t j = 0; j < d->dk; j++) {
        vf at = vf_load(ds + j * VF_LANES);
        vf old = on ? vf_mul(vf_load(before + j * VF_LANES), r->decay) : vf_zero();
        delta_add(delta_share(g, c->head, k, 1) + j, c,
                  vf_fold_add(vf_fma(at, r->u, vf_mul(old, dseen))));
        at = vf_fma(vf_set1(key[j]), dseen, at);
        log = vf_fma(at, old, log);
        vf_store(ds + j * VF_LANES, vf_mul(at, r->decay));
    }
    delta_add(&t->log[k], c, vf_fold_add(log));
}

static void delta_grad_block(delta_chunk *t, const fm_delta_grad *g, uint32_t chunk,
                             const delta_columns *c)
{
    const fm_delta *d = &g->d;
    float *ds = delta_states_at(g, fm_delta_chunks(d), c->block), key[FM_MAX_STATE];
    const float *first = delta_states_at(g, chunk, c->block);

    for (uint32_t k = 0; k < t->m; k++) {
        const float *before = k ? delta_chunk_state(g, c->head, k - 1) : first;
        unit_vector(key, d->k + (size_t)d->rows.row[t->begin + k] * d->ldx + c->from, d->dk, 1.0f);
        t->row[k] = delta_step(d, c, t->begin + k, key, delta_chunk_state(g, c->head, k),
                               goes_on(&d->rows, t->begin + k) ? before : NULL);
    }
    for (uint32_t k = t->m; k-- > 0;) {
        for (uint32_t j = 0; j < d->dk && !goes_on(&d->rows, t->begin + k + 1); j++)
            vf_store(ds + j * VF_LANES, vf_zero());
        delta_row_grad(t, g, c, k, k ? delta_chunk_state(g, c->head, k - 1) : first, ds);
    }
}

/* da, db and the sums of a head, whose blocks are all done. */
static void delta_chunk_end(const delta_chunk *t, const fm_delta_grad *g, uint32_t head)
{
    const fm_delta *d = &g->d;
    const delta_columns c = delta_columns_of(d, head, 0);
    float rate[VF_LANES], beta[VF_LANES], dlog = 0.0f, dbias = 0.0f;

    vf_store(rate, c.rate);
    for (uint32_t k = t->m; k-- > 0;) {
        size_t row = (size_t)d->rows.row[t->begin + k];
        float x = d->a[row * d->lda + head] + d->dt_bias[head];
        float da = t->log[k] * rate[0] * softplus_slope(x);
        vf_store(beta, t->row[k].beta);
        g->da[row * g->ldda + head] = da;
        g->db[row * g->ldda + head] = t->beta[k] * (beta[0] * (1.0f - beta[0]));
        dbias += da;
        dlog += t->log[k] * (rate[0] * softplus_of(x));
    }
    if (g->da_log)
        g->da_log[head] += dlog;
    if (g->ddt_bias)
        g->ddt_bias[head] += dbias;
}

static void k_delta_states(const fm_delta_grad *g, uint32_t begin, uint32_t end)
{
    for (uint32_t head = begin; head < end; head++)
        for (uint32_t off = 0; off < g->d.dv; off += VF_LANES) {
            const delta_columns c = delta_columns_of(&g->d, head, off);
            delta_states_of(g, &c);
        }
}

static void k_delta_grad(const fm_delta_grad *g, uint32_t chunk, uint32_t begin, uint32_t end)
{
    const fm_delta *d = &g->d;
    delta_chunk t = {.begin = chunk * FM_SCAN_CHUNK};
    t.m = d->rows.m - t.begin < FM_SCAN_CHUNK ? d->rows.m - t.begin : FM_SCAN_CHUNK;
    for (uint32_t head = begin; head < end; head++) {
        for (uint32_t off = 0; off < d->dv; off += VF_LANES) {
            const delta_columns c = delta_columns_of(d, head, off);
            delta_grad_block(&t, g, chunk, &c);
        }
        delta_chunk_end(&t, g, head);
    }
}

/* dx from du, where u = x / sqrt(sum of squares + 1e-6) * scale. */
static void unit_vector_grad(float *dx, const float *du, const float *x, uint32_t n, float scale)
{
    vf sum = vf_zero(), dot = vf_zero();
    for (uint32_t i = 0; i < n; i += VF_LANES) {
        vf v = vf_load_upto(x + i, n - i);
        sum = vf_fma(v, v, sum);
        dot = vf_fma(v, vf_load_upto(du + i, n - i), dot);
    }
    float r = 1.0f / sqrtf(vf_fold_add(sum) + 1e-6f), back = vf_fold_add(dot) * r * r;
    for (uint32_t i = 0; i < n; i += VF_LANES) {
        vf one = vf_mul(vf_load_upto(x + i, n - i), vf_set1(back));
        one = vf_mul(vf_sub(vf_load_upto(du + i, n - i), one), vf_set1(r * scale));
        vf_store_upto(dx + i, one, n - i);
    }
}

static void k_delta_grad_sum(const fm_delta_grad *g, uint32_t begin, uint32_t end)
{
    const fm_delta *d = &g->d;
    uint32_t share = d->hv / d->hk, n = d->dk;
    float sum[FM_MAX_STATE], scale = 1.0f / sqrtf((float)n);
    for (uint32_t i = begin; i < end; i++)
        for (uint32_t at = 0; at < 2 * d->hk; at++) {
            size_t from = (size_t)(at / 2) * n, row = (size_t)d->rows.row[i];
            for (uint32_t j = 0; j < n; j += VF_LANES) {
                vf all = vf_zero();
                for (uint32_t h = at / 2 * share; h < (at / 2 + 1) * share; h++) {
                    const float *one = delta_share(g, h, i % FM_SCAN_CHUNK, at % 2) + j;
                    all = vf_add(all, vf_load_upto(one, n - j));
                }
                vf_store_upto(sum + j, all, n - j);
            }
            unit_vector_grad((at % 2 ? g->dk : g->dq) + row * g->lddx + from, sum,
                             (at % 2 ? d->k : d->q) + row * d->ldx + from, n,
                             at % 2 ? 1.0f : scale);
        }
}
