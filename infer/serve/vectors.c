/* vectors.c - embeddings: the texts of a request become vectors, a piece at a time between the
 * steps of decoding streams, so that a long list delays them by one piece only. */
#include "infer/serve/internal.h"

#include <string.h>

#include "store/base/math/hash.h"
#include "store/base/mem.h"

#define PIECE_MAX 64u   /* texts of one piece */
#define PIECE_ROWS 512u /* tokens of one piece, unless it is one longer text */

/* ==== engine thread ==== */

/* The oldest job that wants vectors: new jobs are put in front of the list. */
static fmi_job *oldest(const fm_server *s)
{
    fmi_job *found = NULL;
    for (fmi_job *j = s->active; j; j = j->next_active)
        if (j->ask.kind == FMI_ASK_EMBED && j->left > 0)
            found = j;
    return found;
}

static fm_status compute(fm_server *s, fmi_job *j, size_t *count)
{
    fm_embed_request q[PIECE_MAX];
    const fm_model *m = j->res->model;
    size_t first = j->choices - j->left, rows = 0, n = 0;
    while (n < j->left && n < PIECE_MAX) {
        fmi_choice *c = &j->choice[first + n];
        rows += c->prompt_len;
        if (n > 0 && rows > PIECE_ROWS)
            break;
        if (!c->vector)
            c->vector = fm_calloc(fm_model_arch(m)->hidden, sizeof(float));
        if (!c->vector)
            return FM_ENOMEM;
        q[n++] = (fm_embed_request){j->res->model, c->prompt, c->prompt_len, c->vector};
    }
    *count = n;
    return fm_embed_many(s->engine, q, n);
}

void fmi_vectors_step(fm_server *s)
{
    fmi_job *j = oldest(s);
    size_t n = 0;
    if (!j)
        return;
    fm_status rc = compute(s, j, &n);
    for (int more = 0; rc < 0 && more < 2 && fm_engine_ranks(s->engine) > 1; more++)
        rc = compute(s, j, &n); /* a failure of another rank may be over */
    (void)pthread_mutex_lock(&j->lock);
    if (rc < 0) {
        fmi_job_fail(j, rc == FM_ELIMIT ? 400 : fmi_job_http_of(rc), "invalid_value", "input",
                     NULL);
        n = j->left;
    }
    j->left -= n;
    (void)pthread_mutex_unlock(&j->lock);
}

void fmi_vectors_cancel(fmi_job *j)
{
    (void)pthread_mutex_lock(&j->lock);
    if (j->left)
        fmi_job_fail_cancelled(j);
    j->left = 0;
    (void)pthread_mutex_unlock(&j->lock);
}

/* ==== HTTP side ==== */

static fm_json *as_base64(const float *v, size_t n)
{
    fm_buf raw, text;
    fm_buf_init(&raw, 0);
    fm_buf_init(&text, 0);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof(bits));
        fm_buf_u32(&raw, bits);
    }
    bool ok = fm_buf_ok(&raw) == FM_OK && fm_base64_encode(&text, fm_buf_span(&raw)) == FM_OK;
    fm_json *out = ok ? fm_json_new_strn(fm_buf_cstr(&text), text.len) : NULL;
    fm_buf_release(&raw);
    fm_buf_release(&text);
    return out;
}

static fm_json *as_numbers(const float *v, size_t n, fm_status *rc)
{
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < n; i++)
        fm_json_push_to(rc, list, fm_json_new_real((double)v[i]));
    return list;
}

static fm_status write_vector(fm_buf *out, const fmi_job *j, size_t i)
{
    fm_status rc = FM_OK;
    size_t hidden = fm_model_arch(j->res->model)->hidden;
    const float *v = j->choice[i].vector;
    fm_json *one = fm_json_new_object();
    fm_json_put(&rc, one, "object", fm_json_new_str("embedding"));
    fm_json_put(&rc, one, "index", fm_json_new_int((int64_t)i));
    fm_json_put(&rc, one, "embedding",
                j->ask.base64 ? as_base64(v, hidden) : as_numbers(v, hidden, &rc));
    fm_buf_str(out, i ? "," : "{\"object\":\"list\",\"data\":[");
    FM_THEN(rc, fm_json_write(out, one, FM_JSON_COMPACT));
    fm_json_free(one);
    return rc;
}

static fm_status write_end(fm_buf *out, const fmi_job *j)
{
    fm_status rc = FM_OK;
    size_t tokens = 0;
    fm_json *o = fm_json_new_object(), *usage = fm_json_new_object();
    for (size_t i = 0; i < j->choices; i++)
        tokens += j->choice[i].prompt_len;
    fm_json_put(&rc, o, "model", fm_json_new_str(j->ask.model));
    fm_json_put(&rc, o, "system_fingerprint", fm_json_new_str(j->res->version));
    fm_json_put(&rc, usage, "prompt_tokens", fm_json_new_int((int64_t)tokens));
    fm_json_put(&rc, usage, "total_tokens", fm_json_new_int((int64_t)tokens));
    fm_json_put(&rc, o, "usage", usage);
    size_t at = out->len;
    FM_THEN(rc, fm_json_write(out, o, FM_JSON_COMPACT));
    if (rc == FM_OK)
        out->data[at] = ','; /* replaces the brace: the list's object goes on */
    fm_json_free(o);
    return rc;
}

fm_status fmi_vectors_fill(fmi_job *j, size_t most)
{
    fm_status rc = FM_OK;
    while (rc == FM_OK && j->filled < j->choices && j->out.len < most)
        rc = write_vector(&j->out, j, j->filled++);
    if (rc < 0 || j->filled < j->choices)
        return rc;
    j->stream_over = true;
    fm_buf_char(&j->out, ']');
    return write_end(&j->out, j);
}
