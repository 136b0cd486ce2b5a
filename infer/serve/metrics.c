/* metrics.c - counters, and the Prometheus text made of them. There is one lock: a thread that
 * counts holds it for a few additions, a scrape while it formats into memory. */
#include "infer/serve/internal.h"

#include <inttypes.h>

static const double row_edges[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
static const double model_edges[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64};
static const double second_edges[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                      1,     2.5,  5,     10,   30,  60,   300};

fm_status fmi_metrics_init(fmi_metrics *m)
{
    m->step_rows.edge = row_edges;
    m->step_rows.edges = FM_ARRAY_LEN(row_edges);
    m->step_models.edge = model_edges;
    m->step_models.edges = FM_ARRAY_LEN(model_edges);
    m->first_token.edge = m->whole.edge = m->load.edge = second_edges;
    m->first_token.edges = m->whole.edges = m->load.edges = FM_ARRAY_LEN(second_edges);
    if (pthread_mutex_init(&m->lock, NULL) != 0)
        return fm_fail(FM_EIO, "server: cannot make a lock");
    return FM_OK;
}

void fmi_metrics_destroy(fmi_metrics *m)
{
    (void)pthread_mutex_destroy(&m->lock);
}

void fmi_metrics_code(fmi_metrics *m, unsigned code)
{
    (void)pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < FMI_MAX_CODES; i++) {
        if (m->by_code[i].code != code && m->by_code[i].code != 0)
            continue;
        m->by_code[i].code = code;
        m->by_code[i].count++;
        break;
    }
    (void)pthread_mutex_unlock(&m->lock);
}

void fmi_metrics_add(fmi_metrics *m, fmi_histogram *h, double value)
{
    size_t i = 0;
    (void)pthread_mutex_lock(&m->lock);
    while (i < h->edges && value > h->edge[i])
        i++;
    h->in[i]++;
    h->sum += value;
    h->count++;
    (void)pthread_mutex_unlock(&m->lock);
}

static void head(fm_buf *out, const char *name, const char *kind, const char *help)
{
    fm_buf_printf(out, "# HELP fmstore_%s %s\n# TYPE fmstore_%s %s\n", name, help, name, kind);
}

static void put_value(fm_buf *out, const char *name, const char *kind, const char *help,
                      uint64_t value)
{
    head(out, name, kind, help);
    fm_buf_printf(out, "fmstore_%s %" PRIu64 "\n", name, value);
}

static void put_histogram(fm_buf *out, const char *name, const char *help, const fmi_histogram *h)
{
    uint64_t so_far = 0;
    head(out, name, "histogram", help);
    for (size_t i = 0; i < h->edges; i++) {
        so_far += h->in[i];
        fm_buf_printf(out, "fmstore_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, h->edge[i], so_far);
    }
    fm_buf_printf(out, "fmstore_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, h->count);
    fm_buf_printf(out, "fmstore_%s_sum %.9g\nfmstore_%s_count %" PRIu64 "\n", name, h->sum, name,
                  h->count);
}

static void put_codes(fm_buf *out, const fmi_metrics *m)
{
    head(out, "requests_total", "counter", "HTTP answers by status code (499: the client left).");
    for (size_t i = 0; i < FMI_MAX_CODES && m->by_code[i].code; i++)
        fm_buf_printf(out, "fmstore_requests_total{code=\"%u\"} %" PRIu64 "\n", m->by_code[i].code,
                      m->by_code[i].count);
}

static void put_weights(fm_buf *out, const fm_engine_stats *e)
{
    put_value(out, "weight_bytes", "gauge", "Weights in memory, each tensor once.",
              e->weight_bytes);
    put_value(out, "weight_unshared_bytes", "gauge",
              "What the resident versions would take without sharing.", e->weight_bytes_unshared);
    put_value(out, "weight_shared_bytes", "gauge", "Weights held by two or more versions.",
              e->weight_bytes_shared);
    put_value(out, "weight_idle_bytes", "gauge", "Weights held by none, first to go.",
              e->weight_bytes_idle);
    put_value(out, "weight_mapped_bytes", "gauge", "Weights in files that are mapped.",
              e->weight_bytes_mapped);
    put_value(out, "weight_budget_bytes", "gauge", "Most bytes of weights, 0 = no budget.",
              e->weight_bytes_max);
    put_value(out, "weight_hits_total", "counter", "Tensors asked for that were in memory.",
              e->weight_hits);
    put_value(out, "weight_misses_total", "counter", "Tensors read.", e->weight_misses);
    put_value(out, "weight_evictions_total", "counter", "Tensors sent away for room.",
              e->weight_evictions);
    put_value(out, "packed_files_mapped_total", "counter", "Packed weights mapped from cache/.",
              e->packed_mapped);
    put_value(out, "packed_files_written_total", "counter", "Packed weights written to cache/.",
              e->packed_written);
    put_value(out, "packed_files_refused_total", "counter",
              "Files of cache/ that were damaged and made anew.", e->packed_refused);
}

void fmi_metrics_write(fmi_metrics *m, fm_buf *out)
{
    (void)pthread_mutex_lock(&m->lock);
    const fm_engine_stats *e = &m->engine;
    put_codes(out, m);
    put_value(out, "requests_cancelled_total", "counter",
              "Generations given up because their client left.", m->cancelled);
    put_value(out, "prompt_tokens_total", "counter", "Tokens of prompts.", m->tokens_in);
    put_value(out, "generation_tokens_total", "counter", "Tokens of answers.", m->tokens_out);
    put_value(out, "requests_running", "gauge", "Sequences in the batch.", m->running);
    put_value(out, "requests_waiting", "gauge", "Sequences waiting for room.", m->waiting);
    put_value(out, "models_running", "gauge", "Versions that the batch holds rows of.",
              m->models_running);
    put_value(out, "models_resident", "gauge", "Versions in memory.", m->resident);
    put_value(out, "models_loading", "gauge", "Versions on their way into memory.", m->loading);
    put_value(out, "model_loads_total", "counter", "Versions loaded.", m->loads);
    put_value(out, "model_load_failures_total", "counter", "Versions that could not be loaded.",
              m->load_failures);
    put_weights(out, e);
    put_value(out, "kv_bytes", "gauge", "Pages of the KV cache.", e->kv_bytes);
    put_value(out, "steps_total", "counter", "Steps of the engine.", e->steps);
    put_value(out, "rows_total", "counter", "Tokens that went through steps.", e->rows);
    put_value(out, "products_total", "counter", "Matrix products, one per group of rows.",
              e->gemm_groups);
    put_value(out, "layer_rows_total", "counter", "Rows that ran, summed over layers.",
              e->layer_rows);
    put_value(out, "prefix_cache_queries_total", "counter",
              "Tokens of whole blocks that were looked for in the prefix cache.",
              e->prefix_queries);
    put_value(out, "prefix_cache_hits_total", "counter",
              "Of those, tokens that needed no computation.", e->prefix_hits);
    put_value(out, "prefix_cache_bytes", "gauge", "Pages kept for texts to come (of kv_bytes).",
              e->prefix_bytes);
    put_value(out, "prefix_cache_evictions_total", "counter", "Pages that left for room.",
              e->prefix_evictions);
    put_histogram(out, "step_rows", "Rows of a step.", &m->step_rows);
    put_histogram(out, "step_models", "Versions whose sequences shared a step.", &m->step_models);
    put_histogram(out, "model_load_seconds", "From the start of a load to its end.", &m->load);
    put_histogram(out, "time_to_first_token_seconds", "From the request to its first token.",
                  &m->first_token);
    put_histogram(out, "request_seconds", "From the request to its last token.", &m->whole);
    (void)pthread_mutex_unlock(&m->lock);
}
