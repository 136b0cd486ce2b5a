/* ranks_follower.c - a rank other than 0: decodes the leader's log (ranks_leader.c) and repeats its
 * calls on its own engine, by the public functions. */
#include <string.h>

#include "infer/engine/ranks_log.h"
#include "store/base/cursor.h"
#include "store/base/mem.h"

static fm_status room_for(void ***at, size_t *cap, uint32_t number)
{
    return number < FMI_NUMBERS_MAX ? fm_grow(at, cap, (size_t)number + 1, sizeof(void *))
                                    : fm_fail(FM_ECORRUPT, "rank 0 speaks of number %u", number);
}

static void *known(void *const *at, size_t count, uint32_t number)
{
    return number < count ? at[number] : NULL;
}

static void drop_hooks(fmi_ranks *r)
{
    for (size_t i = 0; i < r->hookeds; i++) {
        fm_seq *s = r->hooked[i].seq;
        s->hook = NULL;
        s->hooks = 0;
        fm_free(r->hooked[i].memory);
    }
    r->hookeds = 0;
    r->lacks_hooks = false;
}

static fm_status follow_op(fm_engine *e, fm_cursor *c)
{
    fmi_ranks *r = e->ranks;
    uint32_t number = fm_cursor_u32(c);
    fm_seq *s = known(r->seq, r->seqs, number);
    uint32_t op = fm_cursor_u32(c), a = fm_cursor_u32(c), b = fm_cursor_u32(c);
    if (c->failed || number >= FMI_NUMBERS_MAX)
        return fm_fail(FM_ECORRUPT, "rank 0 speaks of a sequence that is not there");
    if (!s)
        return FM_OK;
    switch ((fmi_seq_op)op) {
    case FMI_OP_EXPECT:
        if (a <= fmi_priv(s->model)->rope->positions)
            fm_ignore(fmi_seq_expect(s, a), "a step that needs it fails");
        return FM_OK;
    case FMI_OP_TELL: /* a token out of range here is dropped: then the plans differ */
        if (a >= s->len && a <= s->known && a < s->page_cap * FM_KV_PAGE)
            fmi_seq_tell(s, a, (int32_t)b);
        return FM_OK;
    case FMI_OP_WANT:
        fmi_seq_want(s, a, b);
        return FM_OK;
    case FMI_OP_ADOPT:
        fmi_seq_adopt(s);
        return FM_OK;
    case FMI_OP_RESERVE:
        fm_ignore(fmi_seq_reserve(s, a), "a step that needs it fails");
        return FM_OK;
    case FMI_OP_REWIND:
        fm_ignore(fm_seq_rewind(s, a), "likewise");
        return FM_OK;
    case FMI_OP_UNCACHE:
        s->uncached = true;
        return FM_OK;
    case FMI_OP_CLOSE:
        drop_hooks(r);
        fm_seq_close(s);
        r->seq[number] = NULL;
        return FM_OK;
    }
    return fm_fail(FM_ECORRUPT, "rank 0 says something that is not known here");
}

/* Rank 0 is in the step, or the opening, and waits for this rank, which cannot begin. */
static fm_status cannot(fm_engine *e, fm_status rc)
{
    fm_ignore(fmi_ranks_meet(e, rc), "rank 0 has the answer");
    fmi_kv_drop_idle(e->kv); /* it may have found, or kept, less than another rank */
    return fm_comm_state(e->comm);
}

/* Reads the rows of a step: the number of a sequence, a token, whether its logits are wanted. */
static fm_status read_rows(const fmi_ranks *r, fm_cursor *c, fm_row *row, uint32_t n)
{
    bool good = true;
    for (uint32_t i = 0; i < n; i++) {
        row[i].seq = known(r->seq, r->seqs, fm_cursor_u32(c));
        row[i].token = (int32_t)fm_cursor_u32(c);
        row[i].want_logits = fm_cursor_u32(c) != 0;
        good = good && row[i].seq;
    }
    return good ? FM_OK : fm_fail(FM_ENOTFOUND, "a sequence of the step could not be opened");
}

/* Reads the hooks of the next step. */
static fm_status follow_hooks(fm_engine *e, fm_cursor *c)
{
    fmi_ranks *r = e->ranks;
    fm_seq *s = known(r->seq, r->seqs, fm_cursor_u32(c));
    void *memory = NULL;
    fm_status rc = fm_grow(&r->hooked, &r->hooked_cap, r->hookeds + 1, sizeof(*r->hooked));
    bool room = rc == FM_OK;
    rc = fmi_hooks_decode(c, room ? s : NULL, &memory);
    r->lacks_hooks = r->lacks_hooks || !room || rc == FM_ENOMEM;
    if (rc == FM_OK && room && s) {
        r->hooked[r->hookeds].seq = s;
        r->hooked[r->hookeds++].memory = memory;
    }
    return rc == FM_ENOMEM ? FM_OK : rc;
}

/* Returns the comm's state, not the step's status: a step that fails has failed on all ranks. */
static fm_status follow_step(fm_engine *e, fm_cursor *c)
{
    fmi_ranks *r = e->ranks;
    uint32_t n = fm_cursor_u32(c);
    if (n == 0 || n > e->opts.max_rows || fm_cursor_left(c) < 12 * (size_t)n)
        return fm_fail(FM_ECORRUPT, "rank 0 tells of a step of %u rows", n);
    fm_row *row = fm_calloc(n, sizeof(*row));
    if (!row) {
        fm_cursor_skip(c, 12 * (size_t)n);
        drop_hooks(r);
        return cannot(e, FM_ENOMEM);
    }
    fm_status rc = read_rows(r, c, row, n);
    r->meets = true;
    if (rc == FM_OK && r->lacks_hooks)
        rc = fm_fail(FM_ENOMEM, "out of memory for hidden states that are read or replaced");
    FM_THEN(rc, fm_engine_step(e, row, n));
    fm_free(row);
    drop_hooks(r);
    if (rc != FM_OK && r->meets) /* failed before the meeting */
        return cannot(e, rc);
    return fm_comm_state(e->comm);
}

static fm_status follow_open(fm_engine *e, fm_cursor *c)
{
    fmi_ranks *r = e->ranks;
    fm_model *m = known(r->model, r->models, fm_cursor_u32(c));
    uint32_t number = fm_cursor_u32(c);
    bool meets = fm_cursor_u32(c) != 0;
    if (c->failed || !m)
        return fm_fail(FM_ECORRUPT, "rank 0 opens a sequence of a model that is not there");
    fm_status rc = room_for(&r->seq, &r->seq_cap, number);
    if (rc == FM_ENOMEM) /* without the sequence: its steps fail */
        return meets ? cannot(e, rc) : FM_OK;
    if (rc != FM_OK)
        return rc;
    fm_seq *s = known(r->seq, r->seqs, number);
    drop_hooks(r);
    if (s) /* it did not open on all ranks */
        fm_seq_close(s);
    fmi_ranks_put(r->seq, &r->seqs, NULL, number);
    r->meets = meets;
    rc = fm_seq_open(&s, m);
    if (rc == FM_OK)
        fmi_ranks_put(r->seq, &r->seqs, s, number);
    return fm_comm_state(e->comm);
}

static fm_status read_tree(fm_tree **out, fm_cursor *c)
{
    FM_TRY(fm_tree_new(out));
    while (fm_cursor_left(c) > 0 && !c->failed) {
        fm_span path = fm_cursor_bytes(c, fm_cursor_u32(c));
        fm_span bytes = fm_cursor_bytes(c, fm_cursor_u32(c));
        if (c->failed || path.len == 0 || path.data[path.len - 1] != '\0')
            return fm_fail(FM_ECORRUPT, "rank 0 tells of a tree that cannot be read");
        FM_TRY(fm_tree_put_encoded(*out, (const char *)path.data, bytes));
    }
    return FM_OK;
}

static fm_status load_encoded(fm_model **out, fm_engine *e, fm_span encoded, const fm_provider *p)
{
    fm_cursor c;
    fm_tree *tree = NULL;
    *out = NULL;
    fm_cursor_init(&c, encoded);
    fm_span what = fm_cursor_bytes(&c, fm_cursor_u32(&c));
    fm_span digest = fm_cursor_bytes(&c, fm_cursor_u32(&c));
    fm_status rc = read_tree(&tree, &c);
    if (rc == FM_OK && (what.len == 0 || digest.len != FM_DIGEST_BYTES))
        rc = fm_fail(FM_ECORRUPT, "rank 0 tells of a model without a name");
    FM_THEN(rc, fm_model_load(out, e, tree, p, (const char *)what.data));
    if (rc == FM_OK && memcmp((*out)->digest.b, digest.data, digest.len) != 0) {
        fm_model_close(*out);
        *out = NULL;
        rc = fm_fail(FM_ECORRUPT, "%s is another model here than on rank 0",
                     (const char *)what.data);
    }
    fm_tree_free(tree);
    return rc;
}

static fm_status follow_model(fm_engine *e, fm_cursor *c, const fm_provider *p)
{
    fmi_ranks *r = e->ranks;
    fm_model *m = NULL;
    uint32_t number = fm_cursor_u32(c);
    fm_span encoded = fm_cursor_bytes(c, fm_cursor_u32(c));
    if (c->failed)
        return fm_fail(FM_ECORRUPT, "rank 0 tells of a model that cannot be read");
    fm_status rc = room_for(&r->model, &r->model_cap, number);
    if (rc == FM_OK && known(r->model, r->models, number))
        rc = fm_fail(FM_ECORRUPT, "rank 0 speaks of two models by one number");
    FM_THEN(rc, load_encoded(&m, e, encoded, p));
    double step_timeout_s = fmi_ranks_wait(e);
    rc = fm_comm_meet(e->comm, rc, 0);
    fm_comm_step_timeout(e->comm, step_timeout_s);
    if (rc != FM_OK) {
        fm_model_close(m);
        return fm_comm_state(e->comm);
    }
    fmi_ranks_put(r->model, &r->models, m, number);
    return FM_OK;
}

static fm_status follow_close(fmi_ranks *r, uint32_t number)
{
    fm_model *m = known(r->model, r->models, number);
    if (!m)
        return fm_fail(FM_ECORRUPT, "rank 0 closes a model that is not there");
    if (fmi_priv(m)->seqs > 0)
        return fm_fail(FM_ECORRUPT, "rank 0 closes a model before its sequences");
    fm_model_close(m);
    r->model[number] = NULL;
    return FM_OK;
}

static void end_all(fm_engine *e)
{
    fmi_ranks *r = e->ranks;
    drop_hooks(r);
    for (size_t i = 0; i < r->seqs; i++)
        fm_seq_close(r->seq[i]);
    for (size_t i = 0; i < r->models; i++)
        fm_model_close(r->model[i]);
    r->seqs = r->models = 0;
}

static fm_status follow_message(fm_engine *e, const fm_provider *p, fm_cursor *c, bool *ended)
{
    fmi_ranks *r = e->ranks;

    while (!*ended && fm_cursor_left(c) > 0) {
        uint32_t what = fm_cursor_u32(c);
        if (what == FMI_LOG_OP)
            FM_TRY(follow_op(e, c));
        else if (what == FMI_LOG_STEP)
            FM_TRY(follow_step(e, c));
        else if (what == FMI_LOG_HOOKS)
            FM_TRY(follow_hooks(e, c));
        else if (what == FMI_LOG_OPEN)
            FM_TRY(follow_open(e, c));
        else if (what == FMI_LOG_MODEL)
            FM_TRY(follow_model(e, c, p));
        else if (what == FMI_LOG_MODEL_CLOSE)
            FM_TRY(follow_close(r, fm_cursor_u32(c)));
        else {
            *ended = true;
            if (what != FMI_LOG_END)
                return fm_fail(FM_ECORRUPT, "rank 0 says something that is not known here");
        }
    }
    return fm_cursor_ok(c, "what rank 0 says", "a word");
}

fm_status fm_engine_follow(fm_engine *e, const fm_provider *p)
{
    bool ended = false;
    fm_buf message;
    if (fm_comm_rank(e->comm) == 0)
        return fm_fail(FM_EINVAL, "rank 0 leads, it does not follow");
    fm_buf_init(&message, FMI_LOG_MAX);
    fm_status rc = fm_buf_extend(&message, FMI_LOG_ROOM) ? FM_OK : FM_ENOMEM;
    while (rc == FM_OK && !ended) {
        fm_cursor c;
        double step_timeout_s = fmi_ranks_wait(e);
        rc = fm_comm_tell_buf(e->comm, &message, 0);
        fm_comm_step_timeout(e->comm, step_timeout_s);
        fm_cursor_init(&c, fm_buf_span(&message));
        if (rc == FM_OK)
            rc = follow_message(e, p, &c, &ended);
        else if (fm_comm_meet(e->comm, rc, 0) != FM_OK) /* the log cannot be sent again */
            rc = fm_error_prefix(rc, "what rank 0 said");
    }
    fm_error_state why;
    fm_error_save(&why);
    fm_buf_release(&message);
    end_all(e);
    fm_error_restore(&why);
    return rc;
}
