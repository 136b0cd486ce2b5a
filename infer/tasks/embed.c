/* embed.c - a text as one vector: states of its tokens, pooled and normalised.
 *
 * What a folder of sentence-transformers says is followed: modules.json, the pooling's config.json,
 * sentence_bert_config.json. Silent folders get what their kind is used with: an encoder the
 * normalised mean over its tokens (as MiniLM documents), a decoder its last token's state. Sums are
 * in double over ascending tokens, on the host, rounded once. */
#include "infer/tasks/embed.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "infer/model/model_bind.h"
#include "store/base/mem.h"

#define MAX_SETTINGS_BYTES (1u << 20)
#define MAX_MODULES 16u

/* ==== settings ==== */

typedef struct from {
    const fm_tree *tree;
    const fm_provider *p;
    const char *what;
} from;

/* source/files/<name> of the tree as JSON; *out NULL where there is none. */
static fm_status read_settings(fm_json **out, const from *b, const char *name)
{
    char path[256];
    *out = NULL;
    int n = snprintf(path, sizeof(path), "source/files/%s", name);
    const fm_entry *e = n > 0 && (size_t)n < sizeof(path) ? fm_tree_find(b->tree, path) : NULL;
    if (!e || e->kind == FM_ENTRY_TENSOR)
        return FM_OK;
    fm_buf text;
    fm_buf_init(&text, MAX_SETTINGS_BYTES);
    fm_status rc = fm_entry_read(&text, b->p, e);
    if (rc == FM_OK)
        rc = fm_json_parse(out, fm_buf_span(&text), name);
    fm_buf_release(&text);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", b->what);
}

static FM_PRINTF(2, 3) void refuse(fmi_pooling *p, const char *format, ...)
{
    va_list args;
    if (p->refused[0])
        return;
    va_start(args, format);
    (void)vsnprintf(p->refused, sizeof(p->refused), format, args);
    va_end(args);
}

static void read_pooling(fmi_pooling *p, const fm_json *c)
{
    static const struct {
        const char *key, *name;
        fmi_pool_mode mode;
    } known[] = {{"pooling_mode_mean_tokens", "mean", FMI_POOL_MEAN},
                 {"pooling_mode_cls_token", "cls", FMI_POOL_FIRST},
                 {"pooling_mode_lasttoken", "lasttoken", FMI_POOL_LAST}};
    uint32_t on = 0;
    const char *name = fm_json_cstr(fm_json_get(c, "pooling_mode"), NULL);
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (name ? strcmp(name, known[i].name) == 0
                 : fm_json_bool(fm_json_get(c, known[i].key), false)) {
            p->mode = known[i].mode;
            on++;
        }
    for (void *it = fm_json_iter(c); it; it = fm_json_next(c, it)) {
        const char *key = fm_json_iter_key(it);
        bool is_known = strncmp(key, "pooling_mode_", 13) != 0;
        for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
            is_known = is_known || strcmp(known[i].key, key) == 0;
        if (!is_known && fm_json_bool(fm_json_iter_value(it), false))
            refuse(p, "%s is not supported; mean_tokens, cls_token, lasttoken are", key);
    }
    if (on != 1)
        refuse(p, "the pooling must be one of mean_tokens, cls_token, lasttoken");
}

/* "sentence_transformers.models.Pooling" is "Pooling". */
static const char *class_of(const fm_json *module)
{
    const char *type = fm_json_cstr(fm_json_get(module, "type"), "");
    const char *dot = strrchr(type, '.');
    return dot ? dot + 1 : type;
}

static fm_status read_module(fmi_pooling *p, const from *b, const fm_json *module)
{
    const char *type = class_of(module), *path = fm_json_cstr(fm_json_get(module, "path"), "");
    fm_json *c = NULL;
    char file[200];
    if (strcmp(type, "Transformer") == 0)
        return FM_OK;
    if (strcmp(type, "Normalize") == 0) {
        p->normalise = true;
        return FM_OK;
    }
    if (strcmp(type, "Pooling") != 0) {
        refuse(p, "modules.json: a module of type '%.60s' is not supported", type);
        return FM_OK;
    }
    (void)snprintf(file, sizeof(file), "%.150s/config.json", path);
    fm_status rc = read_settings(&c, b, file);
    if (rc == FM_OK && fm_json_is(c, FM_JSON_OBJECT))
        read_pooling(p, c);
    else
        refuse(p, "modules.json names '%.100s', which the version lacks", file);
    fm_json_free(c);
    return rc;
}

static fm_status read_modules(fmi_pooling *p, const from *b)
{
    fm_json *all = NULL;
    fm_status rc = read_settings(&all, b, "modules.json");
    size_t n = fm_json_is(all, FM_JSON_ARRAY) ? fm_json_count(all) : 0;
    if (n > MAX_MODULES)
        refuse(p, "modules.json lists too many modules");
    if (n)
        p->normalise = false;
    for (size_t i = 0; rc == FM_OK && i < FM_MIN(n, (size_t)MAX_MODULES); i++)
        rc = read_module(p, b, fm_json_at(all, i));
    fm_json_free(all);
    return rc;
}

fm_status fmi_pooling_read(fmi_pooling *out, const fm_tree *tree, const fm_provider *p,
                           const fm_arch *a, const char *what)
{
    const from b = {tree, p, what};
    bool encoder = a->sw.encoder;
    fm_json *c = NULL;
    *out = (fmi_pooling){.mode = encoder ? FMI_POOL_MEAN : FMI_POOL_LAST,
                         .normalise = encoder,
                         .tokens_max = a->max_positions};
    fm_status rc = read_modules(out, &b);
    if (rc == FM_OK)
        rc = read_settings(&c, &b, "sentence_bert_config.json");
    int64_t most = fm_json_int(fm_json_get(c, "max_seq_length"), 0);
    if (most > 0 && most < out->tokens_max)
        out->tokens_max = (uint32_t)most;
    if (fm_json_bool(fm_json_get(c, "do_lower_case"), false))
        refuse(out, "sentence_bert_config.json: do_lower_case is not supported");
    fm_json_free(c);
    return rc;
}

fm_status fmi_pooling_bind(fmi_binder *b)
{
    return fmi_pooling_read(&fmi_priv(b->m)->pooling, b->tree, b->p, &b->m->arch, b->what);
}

/* ==== texts ==== */

uint32_t fm_embed_tokens_max(const fm_model *m)
{
    return fmi_priv(m)->pooling.tokens_max;
}

/* Tokens that the tokenizer puts behind every text: the end of what it makes of none. */
static fm_status tail_of(const fm_tokenizer *tok, const fm_ids *ids, size_t *tail)
{
    fm_ids none = {0};
    fm_status rc = fm_tokenizer_encode(tok, fm_span_str(""), true, &none);
    *tail = 0;
    while (rc == FM_OK && *tail < none.count && *tail < ids->count &&
           none.id[none.count - 1 - *tail] == ids->id[ids->count - 1 - *tail])
        (*tail)++;
    fm_ids_release(&none);
    return rc;
}

fm_status fm_embed_encode(const fm_model *m, fm_span text, fm_ids *out)
{
    const fm_tokenizer *tok = m->tokenizer;
    size_t most = fm_embed_tokens_max(m), tail = 0, first = out->count;
    if (!tok)
        return fm_fail(FM_EUNSUPPORTED, "embed: this version has no tokenizer; give ids");
    fm_status rc = fm_tokenizer_encode(tok, text, true, out);
    if (rc == FM_OK)
        rc = tail_of(tok, out, &tail);
    size_t n = out->count - first;
    if (rc != FM_OK || n <= most)
        return rc;
    tail = FM_MIN(tail, most);
    memmove(out->id + first + most - tail, out->id + first + n - tail, tail * sizeof(out->id[0]));
    out->count = first + most;
    return FM_OK;
}

/* ==== running ==== */

static fm_status check(const fmi_states_request *q, uint32_t max_rows)
{
    const fm_arch *a = &q->model->arch;
    if (q->n < 1)
        return fm_fail(FM_EINVAL, "%s: no tokens", q->what);
    if (q->n > a->max_positions || q->n > fmi_positions(q->model))
        return fm_fail(FM_EINVAL, "%s: %zu tokens, the model takes at most %u", q->what, q->n,
                       FM_MIN(a->max_positions, fmi_positions(q->model)));
    if (a->sw.encoder && q->n > max_rows)
        return fm_fail(FM_ELIMIT,
                       "%s: %zu tokens; an encoder takes a text in one step, and a step of "
                       "this engine has at most %u rows",
                       q->what, q->n, max_rows);
    for (size_t i = 0; i < q->n; i++)
        if (q->ids[i] < 0 || (uint32_t)q->ids[i] >= a->vocab)
            return fm_fail(FM_EINVAL, "%s: token %zu is %d, the vocabulary has %u", q->what, i,
                           q->ids[i], a->vocab);
    return FM_OK;
}

typedef struct job {
    const fmi_states_request *q;
    fm_seq *seq;
    size_t done; /* tokens */
} job;

/* One step: of each of n jobs the next tokens, as many as fit. The jobs before the last are run to
 * their end. */
static fm_status step(fm_engine *e, job *j, size_t n, fm_row *row)
{
    uint32_t rows = 0, most = e->opts.max_rows, at = 0;
    for (size_t k = 0; k < n; k++) {
        const fmi_states_request *q = j[k].q;
        size_t took = FM_MIN(q->n - j[k].done, (size_t)(most - rows));
        for (size_t i = j[k].done; i < j[k].done + took; i++)
            row[rows++] = (fm_row){j[k].seq, q->ids[i], i >= q->first && i <= q->last};
    }
    fm_status rc = fm_engine_step(e, row, rows);
    for (size_t k = 0; rc == FM_OK && k < n; k++) {
        size_t took = FM_MIN(j[k].q->n - j[k].done, (size_t)(most - at));
        for (size_t i = 0; i < took; i++, at++) {
            const float *x = fm_engine_hidden(e, at);
            for (size_t c = 0; x && c < j[k].q->model->arch.hidden; c++)
                j[k].q->sum[c] += (double)x[c];
        }
        j[k].done += took;
    }
    return rc;
}

/* How many requests from req on go together: whole ones up to max_rows, or one alone. */
static size_t together(const fmi_states_request *req, size_t n, uint32_t max_rows)
{
    size_t count = 1, rows = req[0].n;
    while (count < n && rows + req[count].n <= max_rows)
        rows += req[count++].n;
    return count;
}

fm_status fmi_states_many(fm_engine *e, const fmi_states_request *req, size_t n)
{
    uint32_t most = e->opts.max_rows;
    fm_row *row = fm_calloc(most, sizeof(*row));
    job *j = fm_calloc(most, sizeof(*j));
    fm_status rc = row && j ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = check(&req[i], most);
    for (size_t at = 0, k; rc == FM_OK && at < n; at += k) {
        k = together(req + at, n - at, most);
        for (size_t i = 0; i < k; i++)
            j[i] = (job){.q = &req[at + i]};
        for (size_t i = 0; rc == FM_OK && i < k; i++)
            rc = fm_seq_open(&j[i].seq, j[i].q->model);
        while (rc == FM_OK && j[k - 1].done < j[k - 1].q->n)
            rc = step(e, j, k, row);
        for (size_t i = 0; i < k; i++)
            fm_seq_close(j[i].seq);
    }
    fm_free(row);
    fm_free(j);
    return rc;
}

/* ==== embeddings ==== */

static fmi_states_request pooled(const fm_embed_request *q, double *sum)
{
    fmi_pool_mode mode = fmi_priv(q->model)->pooling.mode;
    return (fmi_states_request){.model = q->model,
                                .ids = q->ids,
                                .n = q->n,
                                .first = mode == FMI_POOL_LAST && q->n ? q->n - 1 : 0,
                                .last = mode == FMI_POOL_FIRST || !q->n ? 0 : q->n - 1,
                                .sum = sum,
                                .what = "embed"};
}

static void finish(const fm_embed_request *q, double *sum)
{
    const fmi_pooling *p = &fmi_priv(q->model)->pooling;
    size_t h = q->model->arch.hidden;
    double count = p->mode == FMI_POOL_MEAN ? (double)q->n : 1.0, squares = 0.0, by = 1.0;
    for (size_t i = 0; i < h; i++) {
        sum[i] /= count;
        squares += sum[i] * sum[i];
    }
    if (p->normalise)
        by = FM_MAX(sqrt(squares), 1e-12); /* as torch's normalize */
    for (size_t i = 0; i < h; i++)
        q->out[i] = (float)(sum[i] / by);
}

fm_status fm_embed_many(fm_engine *e, const fm_embed_request *req, size_t n)
{
    size_t wide = 1;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const char *refused = fmi_priv(req[i].model)->pooling.refused;
        wide = FM_MAX(wide, (size_t)req[i].model->arch.hidden);
        if (refused[0])
            rc = fm_fail(FM_EUNSUPPORTED, "embed: %s", refused);
    }
    fmi_states_request *q = fm_calloc(n + 1, sizeof(*q));
    double *sum = fm_calloc(n * wide + 1, sizeof(*sum));
    if (rc == FM_OK && (!q || !sum))
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        q[i] = pooled(&req[i], sum + i * wide);
    if (rc == FM_OK)
        rc = fmi_states_many(e, q, n);
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        finish(&req[i], sum + i * wide);
    fm_free(q);
    fm_free(sum);
    return rc;
}
