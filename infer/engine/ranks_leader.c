/* ranks_leader.c - rank 0 logs the calls to its engine; the other ranks repeat them
 * (ranks_follower.c).
 *
 * Calls between steps go into a log that is sent with the next step (or model, or sequence whose
 * opening computes something). An engine's state is a function of these calls, never of the clock
 * (the scheduler above decides how many rows a step takes, which depends on measured times), so the
 * ranks keep the same pages and find the same blocks. Calls inside of a step are not logged: the
 * step repeats them.
 *
 * A rank that lacks memory for a call fails alone. A sequence that it could not open is a number
 * without a sequence: its ops do nothing and its steps fail. A step, and an opening that computes,
 * ends with a meeting of all ranks. */
#include "infer/engine/ranks_log.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

#define NO_NUMBER UINT32_MAX
#define HOOK_BYTES_MAX ((uint64_t)128 << 20)

static bool leads(const fm_engine *e)
{
    return fm_comm_rank(e->comm) == 0 && e->ranks->depth == 0;
}

/* ==== numbers ==== */

/* Finds the lowest free number and grows the list for it. */
static fm_status free_number(void ***at, const size_t *count, size_t *cap, uint32_t *number)
{
    size_t i = 0;
    while (i < *count && (*at)[i])
        i++;
    *number = (uint32_t)i;
    return i < FMI_NUMBERS_MAX
               ? fm_grow(at, cap, i + 1, sizeof(void *))
               : fm_fail(FM_ELIMIT, "more than %u at once over ranks", FMI_NUMBERS_MAX);
}

void fmi_ranks_put(void **at, size_t *count, void *thing, uint32_t number)
{
    for (; *count <= number; (*count)++)
        at[*count] = NULL;
    at[number] = thing;
}

/* ==== waiting ==== */

double fmi_ranks_wait(const fm_engine *e)
{
    double was = fm_comm_step_timeout_of(e->comm);
    if (e->opts.step_timeout_s > 0.0)
        fm_comm_step_timeout(e->comm, 0.0);
    return was;
}

/* ==== encoding ==== */

static void encode_bytes(fm_buf *b, const void *x, size_t n)
{
    fm_buf_u32(b, (uint32_t)n);
    fm_buf_append(b, x, n);
}

static fm_status send_log(fm_engine *e)
{
    fmi_ranks *r = e->ranks;
    fm_status rc = fm_buf_ok(&r->log);
    if (rc != FM_OK) /* for good: without the lost entry the other ranks would do something else */
        return fm_error_prefix(rc, "what the other ranks must know");
    rc = fm_comm_tell_buf(e->comm, &r->log, 0);
    fm_buf_clear(&r->log);
    return rc;
}

static void log_op(fm_seq *s, fmi_seq_op op, uint32_t a, int32_t b)
{
    fm_engine *e = s->model->engine;
    if (!leads(e) || s->log_number == NO_NUMBER)
        return;
    fm_buf *log = &e->ranks->log;
    fm_buf_u32(log, FMI_LOG_OP);
    fm_buf_u32(log, s->log_number);
    fm_buf_u32(log, op);
    fm_buf_u32(log, a);
    fm_buf_u32(log, (uint32_t)b);
    if (op == FMI_OP_CLOSE)
        e->ranks->seq[s->log_number] = NULL;
}

/* Encodes the hooks of a step's sequences; where they are refused it encodes nothing. */
static fm_status encode_hooks(fm_engine *e, const fm_row *rows, uint32_t n)
{
    fm_buf *log = &e->ranks->log;
    uint64_t stamp = ++e->stamp, bytes = 0;
    size_t was = log->len;
    for (uint32_t i = 0; i < n; i++) {
        fm_seq *q = rows[i].seq;
        q->pending = q->stamp == stamp ? q->pending + 1 : 1;
        q->stamp = stamp;
    }
    for (uint32_t i = 0; i < n; i++) {
        fm_seq *q = rows[i].seq;
        if (!q->hooks || q->pending == 0)
            continue;
        bytes += fmi_hooks_size(q, q->pending);
        if (bytes > HOOK_BYTES_MAX) {
            log->len = was;
            return fm_fail(FM_ELIMIT,
                           "hidden states of more than %u MiB are to be replaced in one step over "
                           "ranks; take fewer tokens or sequences",
                           (unsigned)(HOOK_BYTES_MAX >> 20));
        }
        fm_buf_u32(log, FMI_LOG_HOOKS);
        fm_buf_u32(log, q->log_number);
        fmi_hooks_encode(log, q, q->pending);
        q->pending = 0;
    }
    return FM_OK;
}

static fm_status log_step(fm_engine *e, const fm_row *rows, uint32_t n)
{
    fm_status rc = FM_OK;
    bool hooks = false;
    for (uint32_t i = 0; i < n && leads(e); i++)
        hooks = hooks || rows[i].seq->hooks;
    if (hooks)
        rc = encode_hooks(e, rows, n);
    if (rc == FM_OK && leads(e)) {
        fm_buf *log = &e->ranks->log;
        fm_buf_u32(log, FMI_LOG_STEP);
        fm_buf_u32(log, n);
        for (uint32_t i = 0; i < n; i++) {
            fm_buf_u32(log, rows[i].seq->log_number);
            fm_buf_u32(log, (uint32_t)rows[i].token);
            fm_buf_u32(log, rows[i].want_logits);
        }
        rc = send_log(e);
        e->ranks->meets = true;
    }
    e->ranks->depth += rc == FM_OK;
    return rc;
}

fm_status fmi_ranks_meet(fm_engine *e, fm_status rc)
{
    fmi_ranks *r = e->ranks;
    rc = fm_comm_meet(e->comm, rc, r->plan);
    r->plan = 0;
    r->meets = false;
    return rc;
}

static void log_planned(fm_engine *e, uint64_t plan)
{
    e->ranks->plan = plan;
}

static fm_status log_end(fm_engine *e, fm_status rc)
{
    fmi_ranks *r = e->ranks;
    return --r->depth == 0 && r->meets ? fmi_ranks_meet(e, rc) : rc;
}

/* Whether opening a sequence computes something, on every rank. */
static bool computes(const fm_model *m)
{
    return m->virtual_len && !fmi_priv(m)->virtual_page;
}

static fm_status log_open(fm_model *m)
{
    fm_engine *e = m->engine;
    fmi_ranks *r = e->ranks;
    fm_status rc = FM_OK;
    if (leads(e)) {
        rc = free_number(&r->seq, &r->seqs, &r->seq_cap, &r->opens);
        if (rc != FM_OK)
            return rc;
        fm_buf_u32(&r->log, FMI_LOG_OPEN);
        fm_buf_u32(&r->log, fmi_priv(m)->log_number);
        fm_buf_u32(&r->log, r->opens);
        fm_buf_u32(&r->log, computes(m));
        r->meets = computes(m);
        if (r->meets)
            rc = send_log(e);
    }
    r->depth += rc == FM_OK;
    return rc;
}

static fm_status log_opened(fm_model *m, fm_seq *s, fm_status rc, bool *met)
{
    fm_engine *e = m->engine;
    fmi_ranks *r = e->ranks;
    if (s)
        s->log_number = NO_NUMBER;
    *met = r->depth == 1 && r->meets;
    rc = log_end(e, rc);
    if (!leads(e))
        return rc;
    if (rc == FM_OK) {
        s->log_number = r->opens;
        fmi_ranks_put(r->seq, &r->seqs, s, r->opens);
        return rc;
    }
    fm_buf_u32(&r->log, FMI_LOG_OP); /* ranks that opened the sequence close it again */
    fm_buf_u32(&r->log, r->opens);
    fm_buf_u32(&r->log, FMI_OP_CLOSE);
    fm_buf_u32(&r->log, 0);
    fm_buf_u32(&r->log, 0);
    return rc;
}

/* ==== models ==== */

/* Whether a rank needs this part of a tree: not the tokenizer, suites or history. */
static bool is_of_model(const char *path)
{
    static const char *const not_wanted[] = {"tokenizer/",  "suites/",        "source/",  "data/",
                                             "recipe.json", "train_log.json", "README.md"};
    for (size_t i = 0; i < FM_ARRAY_LEN(not_wanted); i++)
        if (strncmp(path, not_wanted[i], strlen(not_wanted[i])) == 0)
            return false;
    return true;
}

static fm_status log_prepare(fm_model *m, const fm_tree *tree, const char *what)
{
    fmi_model_priv *p = fmi_priv(m);
    fm_buf one;
    if (fm_comm_rank(m->engine->comm) != 0)
        return FM_OK;
    fm_buf_init(&p->encoded, FMI_LOG_MAX);
    fm_buf_init(&one, 0);
    encode_bytes(&p->encoded, what, strlen(what) + 1);
    encode_bytes(&p->encoded, m->digest.b, sizeof(m->digest.b));
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (!is_of_model(e->path))
            continue;
        fm_buf_clear(&one);
        if (e->kind == FM_ENTRY_FILE)
            fm_buf_append(&one, e->data, (size_t)e->bytes);
        else
            rc = fm_entry_encode(&one, e);
        encode_bytes(&p->encoded, e->path, strlen(e->path) + 1);
        encode_bytes(&p->encoded, one.data, one.len);
    }
    fm_buf_release(&one);
    return rc == FM_OK ? fm_buf_ok(&p->encoded) : rc;
}

static fm_status log_adopt(fm_model *m)
{
    fm_engine *e = m->engine;
    fmi_ranks *r = e->ranks;
    fmi_model_priv *p = fmi_priv(m);
    if (!leads(e))
        return FM_OK;
    FM_TRY(free_number(&r->model, &r->models, &r->model_cap, &p->log_number));
    fmi_ranks_put(r->model, &r->models, m, p->log_number);
    fm_buf_u32(&r->log, FMI_LOG_MODEL);
    fm_buf_u32(&r->log, p->log_number);
    encode_bytes(&r->log, p->encoded.data, p->encoded.len);
    fm_status rc = send_log(e);
    double step_timeout_s = fmi_ranks_wait(e);
    FM_THEN(rc, fm_comm_meet(e->comm, FM_OK, 0));
    fm_comm_step_timeout(e->comm, step_timeout_s);
    if (rc != FM_OK)
        r->model[p->log_number] = NULL;
    return rc;
}

static void log_close(fm_model *m)
{
    fm_engine *e = m->engine;
    fmi_model_priv *p = fmi_priv(m);
    fm_buf_release(&p->encoded);
    if (!leads(e) || !p->adopted)
        return;
    e->ranks->model[p->log_number] = NULL;
    fm_buf_u32(&e->ranks->log, FMI_LOG_MODEL_CLOSE);
    fm_buf_u32(&e->ranks->log, p->log_number);
}

/* ==== life ==== */

/* The settings that must be equal on all ranks, so that their engines plan and answer alike. */
typedef struct made {
    char mode[16], kernel_class[48];
    uint64_t kv_bytes, weight_bytes;
    uint32_t max_rows, prefix_cache, stages, micro_rows;
} made;

static void describe(char *out, size_t room, const made *m)
{
    (void)snprintf(out, room,
                   "mode %s, kernel class %s, %u rows, %u stages, %u rows of a micro-batch, %llu "
                   "bytes of keys and values, %llu of weights, %s prefix cache",
                   m->mode, m->kernel_class, m->max_rows, m->stages, m->micro_rows,
                   (unsigned long long)m->kv_bytes, (unsigned long long)m->weight_bytes,
                   m->prefix_cache ? "a" : "no");
}

static fm_status check_alike(fm_engine *e)
{
    made mine = {.kv_bytes = e->opts.kv_bytes_max,
                 .weight_bytes = e->opts.weight_bytes_max,
                 .max_rows = e->opts.max_rows,
                 .prefix_cache = e->opts.prefix_cache,
                 .stages = e->stages,
                 .micro_rows = e->opts.micro_rows};
    uint32_t size = fm_comm_size(e->comm), i = 0;
    char his[256], ours[256];
    (void)snprintf(mine.mode, sizeof(mine.mode), "%s", e->be->mode);
    (void)snprintf(mine.kernel_class, sizeof(mine.kernel_class), "%s", e->be->kernel_class);
    made *all = fm_calloc(size, sizeof(*all));
    fm_status rc = all ? fm_comm_collect(e->comm, all, &mine, sizeof(mine)) : FM_ENOMEM;
    while (rc == FM_OK && i < size && memcmp(&all[i], &all[0], sizeof(mine)) == 0)
        i++;
    if (rc == FM_OK && i < size) {
        describe(his, sizeof(his), &all[i]);
        describe(ours, sizeof(ours), &all[0]);
        rc = fm_fail(FM_EINVAL, "rank %u has an engine of another kind than rank 0: %s; rank 0: %s",
                     i, his, ours);
    }
    fm_free(all);
    return rc;
}

static void log_free(fm_engine *e)
{
    fmi_ranks *r = e->ranks;
    if (leads(e)) {
        fm_error_state why; /* the error for which the engine may be closed stays */
        fm_error_save(&why);
        fm_buf_u32(&r->log, FMI_LOG_END);
        fm_ignore(send_log(e), "who does not hear it sees the connection end");
        fm_error_restore(&why);
    }
    fm_comm_detach(e->comm);
    fm_buf_release(&r->log);
    fm_free(r->hooked);
    fm_free(r->model);
    fm_free(r->seq);
    fm_free(r);
    e->ranks = NULL;
    e->log = NULL;
}

static const fmi_engine_log leader = {
    .prepare = log_prepare,
    .adopt = log_adopt,
    .close = log_close,
    .step = log_step,
    .planned = log_planned,
    .end = log_end,
    .open = log_open,
    .opened = log_opened,
    .op = log_op,
    .free = log_free,
};

fm_status fmi_log_new(fm_engine *e)
{
    if (fm_comm_size(e->comm) <= 1)
        return FM_OK;
    fmi_ranks *r = fm_calloc(1, sizeof(*r));
    if (!r)
        return FM_ENOMEM;
    e->ranks = r;
    e->log = &leader;
    fm_buf_init(&r->log, FMI_LOG_MAX);
    if (!fm_buf_extend(&r->log, FMI_LOG_ROOM))
        return FM_ENOMEM;
    fm_buf_clear(&r->log);
    uint32_t split = fm_comm_size(e->comm) / e->stages;
    if (split > 1) /* stages alone cut no sum */
        (void)snprintf(e->kernel_class, sizeof(e->kernel_class), "%s/%u ranks", e->be->kernel_class,
                       split);
    FM_TRY(check_alike(e));
    return fm_comm_attach_device(e->comm, e->be);
}
