/* recurrent.c - recurrences along sequences. A thread takes some channels through all rows, since a
 * row needs the state behind the row before it. */
#include "infer/cpu/cpu.h"

#define LANES 16u
#define MIN_ELEMS 8192u /* fewer are not worth waking a thread */

typedef struct conv_job {
    const fmi_kern *kern;
    const fm_convolve *c;
} conv_job;

static fm_status conv_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const conv_job *j = ctx;
    (void)worker;
    j->kern->convolve(j->c, (uint32_t)begin * LANES, FM_MIN((uint32_t)end * LANES, j->c->channels));
    return FM_OK;
}

void fmi_exact_convolve(fm_backend *be, const fm_convolve *c)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    conv_job j = {cpu->kern, c};
    fm_assert(c->kernel >= 1 && c->kernel <= FM_MAX_CONV_KERNEL);
    fmi_run(cpu, (c->channels + LANES - 1) / LANES, MIN_ELEMS / LANES / FM_MAX(c->rows.m, 1u) + 1,
            conv_part, &j);
}

typedef struct conv_grad_job {
    const fmi_kern *kern;
    const fm_convolve_grad *g;
} conv_grad_job;

static fm_status conv_grad_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const conv_grad_job *j = ctx;
    (void)worker;
    j->kern->convolve_grad(j->g, (uint32_t)begin * LANES,
                           FM_MIN((uint32_t)end * LANES, j->g->c.channels));
    return FM_OK;
}

void fmi_exact_convolve_grad(fm_backend *be, const fm_convolve_grad *g)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    conv_grad_job j = {cpu->kern, g};
    fm_assert(g->c.kernel >= 1 && g->c.kernel <= FM_MAX_CONV_KERNEL);
    fmi_run(cpu, (g->c.channels + LANES - 1) / LANES,
            MIN_ELEMS / LANES / FM_MAX(g->c.rows.m, 1u) + 1, conv_grad_part, &j);
}

typedef struct scan_job {
    const fmi_kern *kern;
    const fm_scan *s;
    const fm_delta *d;
} scan_job;

static fm_status scan_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const scan_job *j = ctx;
    (void)worker;
    if (j->s)
        j->kern->scan(j->s, (uint32_t)begin, (uint32_t)end);
    else
        j->kern->delta(j->d, (uint32_t)begin, (uint32_t)end);
    return FM_OK;
}

/* Blocks of LANES columns of n rows each, on `rows` rows. */
static void run_blocks(fm_backend *be, scan_job *j, uint32_t heads, uint32_t hd, uint32_t n,
                       uint32_t rows)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    size_t elems = (size_t)n * LANES * FM_MAX(rows, 1u);
    fm_assert(n >= 1 && n <= FM_MAX_STATE);
    j->kern = cpu->kern;
    fmi_run(cpu, (size_t)heads * ((hd + LANES - 1) / LANES), MIN_ELEMS / elems + 1, scan_part, j);
}

void fmi_exact_scan(fm_backend *be, const fm_scan *s)
{
    scan_job j = {.s = s};
    run_blocks(be, &j, s->heads, s->hd, s->n, s->rows.m);
}

typedef struct scan_grad_job {
    const fmi_kern *kern;
    const fm_scan_grad *g;
    uint32_t chunk;
} scan_grad_job;

static fm_status scan_states_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const scan_grad_job *j = ctx;
    (void)worker;
    j->kern->scan_states(j->g, (uint32_t)begin, (uint32_t)end);
    return FM_OK;
}

static fm_status scan_grad_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const scan_grad_job *j = ctx;
    (void)worker;
    j->kern->scan_grad(j->g, j->chunk, (uint32_t)begin, (uint32_t)end);
    return FM_OK;
}

static fm_status scan_sum_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const scan_grad_job *j = ctx;
    uint32_t first = j->chunk * FM_SCAN_CHUNK;
    (void)worker;
    j->kern->scan_grad_sum(j->g, first + (uint32_t)begin, first + (uint32_t)end);
    return FM_OK;
}

/* Chunk by chunk from the last, since units wait for each other where db and dc are summed. */
void fmi_exact_scan_grad(fm_backend *be, const fm_scan_grad *g)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    const fm_scan *s = &g->s;
    size_t units = fm_scan_units(s);
    size_t lanes = s->by_channel ? LANES : FM_MAX(s->hd, 1u), elems = lanes * s->n * FM_SCAN_CHUNK;
    scan_grad_job j = {cpu->kern, g, 0};
    fm_assert(s->n >= 1 && s->n <= FM_MAX_STATE && LANES == FM_SCAN_LANES);
    fmi_run(cpu, units, MIN_ELEMS / elems + 1, scan_states_part, &j);
    for (j.chunk = (uint32_t)fm_scan_chunks(s); j.chunk-- > 0;) {
        size_t rows = FM_MIN(s->rows.m - j.chunk * FM_SCAN_CHUNK, FM_SCAN_CHUNK);
        fmi_run(cpu, units, MIN_ELEMS / elems + 1, scan_grad_part, &j);
        fmi_run(cpu, rows, MIN_ELEMS / (units * s->n) + 1, scan_sum_part, &j);
    }
}

void fmi_exact_delta(fm_backend *be, const fm_delta *d)
{
    scan_job j = {.d = d};
    run_blocks(be, &j, d->hv, d->dv, d->dk, d->rows.m);
}

typedef struct delta_grad_job {
    const fmi_kern *kern;
    const fm_delta_grad *g;
    uint32_t chunk;
} delta_grad_job;

static fm_status delta_states_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const delta_grad_job *j = ctx;
    (void)worker;
    j->kern->delta_states(j->g, (uint32_t)begin, (uint32_t)end);
    return FM_OK;
}

static fm_status delta_grad_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const delta_grad_job *j = ctx;
    (void)worker;
    j->kern->delta_grad(j->g, j->chunk, (uint32_t)begin, (uint32_t)end);
    return FM_OK;
}

static fm_status delta_sum_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const delta_grad_job *j = ctx;
    uint32_t first = j->chunk * FM_SCAN_CHUNK;
    (void)worker;
    j->kern->delta_grad_sum(j->g, first + (uint32_t)begin, first + (uint32_t)end);
    return FM_OK;
}

/* As fmi_exact_scan_grad: heads wait for each other where dq and dk are summed. */
void fmi_exact_delta_grad(fm_backend *be, const fm_delta_grad *g)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    const fm_delta *d = &g->d;
    size_t elems = (size_t)d->dk * d->dv * FM_SCAN_CHUNK;
    delta_grad_job j = {cpu->kern, g, 0};
    fm_assert(d->dk >= 1 && d->dk <= FM_MAX_STATE && LANES == FM_SCAN_LANES);
    fmi_run(cpu, d->hv, MIN_ELEMS / elems + 1, delta_states_part, &j);
    for (j.chunk = (uint32_t)fm_delta_chunks(d); j.chunk-- > 0;) {
        size_t rows = FM_MIN(d->rows.m - j.chunk * FM_SCAN_CHUNK, FM_SCAN_CHUNK);
        fmi_run(cpu, d->hv, MIN_ELEMS / elems + 1, delta_grad_part, &j);
        fmi_run(cpu, rows, MIN_ELEMS / ((size_t)d->hv * d->dk) + 1, delta_sum_part, &j);
    }
}
