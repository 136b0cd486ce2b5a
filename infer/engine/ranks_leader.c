/* ranks_leader.c - rank 0 tells what its engine is asked, the others do the same.
 *
 * Deeds between steps go into a log that travels with the next step (or model, or sequence whose
 * opening computes something). What an engine does is a function of what it was asked, never of
 * the clock (how many rows a step takes, which depends on measured times, is decided above
 * this), so the ranks keep the same pages and find the same blocks. Deeds inside of a step are
 * the step's.
 *
 * What a rank lacks the memory for is its alone. A sequence that it could not open is a number
 * without a sequence, whose deeds are nothing and whose steps fail; a step, and an opening that
 * computes, ends with a meeting of all. */
#include "infer/engine/pipeline.h"

#include <stdio.h>
#include <string.h>

#include "store/base/cursor.h"
#include "store/base/mem.h"

enum { SAY_DEED = 1, SAY_STEP, SAY_OPEN, SAY_MODEL, SAY_MODEL_CLOSE, SAY_END, SAY_HOOKS };
#define LOG_MAX ((size_t)512 << 20)
#define NUMBERS_MAX (1u << 20) /* of models and of sequences */
#define NO_NUMBER UINT32_MAX
#define HOOK_BYTES_MAX ((uint64_t)128 << 20)
#define LOG_ROOM                                                                                   \
    ((size_t)64 << 10) /* of a log from the beginning: what is lost cannot be told again */

struct fmi_mirror {
    fm_buf log;
    uint32_t depth; /* inside of something that was told */
    bool meets;     /* the outermost of it ends with a meeting */
    uint64_t plan;  /* of the step in hand: the same on all ranks */
    uint32_t opens; /* the number of the sequence that is being opened */
    struct {
        fm_seq *seq;
        void *memory;
    } * hooked; /* hooks of the next step, as rank 0 has them */
    size_t hookeds, hooked_cap;
    bool lacks_hooks;    /* there was no memory for them */
    void **model, **seq; /* by number; NULL: free */
    size_t models, seqs, model_cap, seq_cap;
};

static bool leads(const fm_engine *e)
{
    return e->mirror && fm_comm_rank(e->comm) == 0 && e->mirror->depth == 0;
}

/* ==== numbers ==== */

/* Room for the lowest free number. */
static fm_status free_number(void ***at, const size_t *count, size_t *cap, uint32_t *number)
{
    size_t i = 0;
    while (i < *count && (*at)[i])
        i++;
    *number = (uint32_t)i;
    return i < NUMBERS_MAX ? fm_grow(at, cap, i + 1, sizeof(void *))
                           : fm_fail(FM_ELIMIT, "more than %u at once over ranks", NUMBERS_MAX);
}

/* There is room for number. */
static void put_number(void **at, size_t *count, void *thing, uint32_t number)
{
    for (; *count <= number; (*count)++)
        at[*count] = NULL;
    at[number] = thing;
}

static fm_status room_for(void ***at, size_t *cap, uint32_t number)
{
    return number < NUMBERS_MAX ? fm_grow(at, cap, (size_t)number + 1, sizeof(void *))
                                : fm_fail(FM_ECORRUPT, "rank 0 speaks of number %u", number);
}

static void *known(void *const *at, size_t count, uint32_t number)
{
    return number < count ? at[number] : NULL;
}

/* ==== patience ==== */

/* For what may take any time: rank 0 has nothing to do, or a rank reads a model. Gives what it was.
 */
static double wait_gladly(const fm_engine *e)
{
    double was = fm_comm_patience_of(e->comm);
    if (e->opts.patience_s > 0.0)
        fm_comm_patience(e->comm, 0.0);
    return was;
}

/* ==== saying ==== */

static void say_u32(fm_buf *b, uint32_t x)
{
    uint8_t le[4];
    fm_put_u32(le, x);
    fm_buf_append(b, le, sizeof(le));
}

static void say_bytes(fm_buf *b, const void *x, size_t n)
{
    say_u32(b, (uint32_t)n);
    fm_buf_append(b, x, n);
}

static fm_status send_log(fm_engine *e)
{
    fmi_mirror *r = e->mirror;
    fm_status rc = fm_buf_ok(&r->log);
    if (rc != FM_OK) /* and so it stays: the others would do something else */
        return fm_error_prefix(rc, "what the other ranks must know");
    rc = fm_comm_tell_buf(e->comm, &r->log, 0);
    fm_buf_clear(&r->log);
    return rc;
}

void fmi_mirror_deed(fm_seq *s, fmi_deed deed, uint32_t a, int32_t b)
{
    fm_engine *e = s->model->engine;
    if (!leads(e) || s->mirror == NO_NUMBER)
        return;
    fm_buf *log = &e->mirror->log;
    say_u32(log, SAY_DEED);
    say_u32(log, s->mirror);
    say_u32(log, deed);
    say_u32(log, a);
    say_u32(log, (uint32_t)b);
    if (deed == FMI_DEED_CLOSE)
        e->mirror->seq[s->mirror] = NULL;
}

/* Hooks of the sequences of a step; where they are refused not a word of it is said. */
static fm_status say_hooks(fm_engine *e, const fm_row *rows, uint32_t n)
{
    fm_buf *log = &e->mirror->log;
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
        say_u32(log, SAY_HOOKS);
        say_u32(log, q->mirror);
        fmi_hooks_say(log, q, q->pending);
        q->pending = 0;
    }
    return FM_OK;
}

fm_status fmi_mirror_step(fm_engine *e, const fm_row *rows, uint32_t n)
{
    fm_status rc = FM_OK;
    bool hooks = false;
    for (uint32_t i = 0; i < n && leads(e); i++)
        hooks = hooks || rows[i].seq->hooks;
    if (hooks)
        rc = say_hooks(e, rows, n);
    if (rc == FM_OK && leads(e)) {
        fm_buf *log = &e->mirror->log;
        say_u32(log, SAY_STEP);
        say_u32(log, n);
        for (uint32_t i = 0; i < n; i++) {
            say_u32(log, rows[i].seq->mirror);
            say_u32(log, (uint32_t)rows[i].token);
            say_u32(log, rows[i].want_logits);
        }
        rc = send_log(e);
        e->mirror->meets = true;
    }
    if (e->mirror && rc == FM_OK)
        e->mirror->depth++;
    return rc;
}

/* What the passes of the step compute on every rank alike. */
static uint64_t plan_of(const fmi_step *s, uint32_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ s->pos[i]) * 0x100000001b3u;
    for (uint32_t i = 0; i < s->runs; i++) {
        h = (h ^ s->run[i].count) * 0x100000001b3u;
        h = (h ^ s->run[i].first) * 0x100000001b3u;
        h = (h ^ s->run[i].wanted) * 0x100000001b3u;
    }
    return h;
}

/* What ranks tell of a step that they have planned: what it is, and whether it may be replayed. */
typedef struct planned {
    uint64_t plan;
    fmi_way way;
} planned;

fm_status fmi_mirror_planned(fmi_step *s, uint32_t n, fm_status rc)
{
    fmi_mirror *r = s->e->mirror;
    fm_comm *c = s->e->comm;
    planned mine = {0}, all[FM_COMM_MAX_RANKS];
    fmi_way way[FM_COMM_MAX_RANKS];
    if (!r || rc != FM_OK)
        return rc;
    r->plan = mine.plan = plan_of(s, n);
    if (!fm_comm_compares(c))
        return FM_OK;
    rc = fmi_replay_look(s, n, &mine.way);
    if (rc == FM_OK)
        rc = fm_comm_collect(c, all, &mine, sizeof(mine));
    for (uint32_t i = 0; rc == FM_OK && i < fm_comm_size(c); i++) {
        way[i] = all[i].way;
        if (all[i].plan != all[0].plan)
            rc = fm_fail(FM_ECORRUPT, "rank %u planned another step than rank 0", i);
    }
    if (rc == FM_OK)
        fmi_replay_agree(s, way, fm_comm_size(c));
    return rc;
}

/* Of what was told; the outermost. */
static fm_status meet(fm_engine *e, fm_status rc)
{
    fmi_mirror *r = e->mirror;
    rc = fm_comm_meet(e->comm, rc, r->plan);
    r->plan = 0;
    r->meets = false;
    return rc;
}

/* A rank may have found, or kept, less than another. */
void fmi_mirror_undone(fm_engine *e)
{
    if (e->mirror)
        fmi_kv_drop_idle(e->kv);
}

fm_status fmi_mirror_end(fm_engine *e, fm_status rc)
{
    fmi_mirror *r = e->mirror;
    return r && --r->depth == 0 && r->meets ? meet(e, rc) : rc;
}

/* Whether opening a sequence computes something, on every rank. */
static bool computes(const fm_model *m)
{
    return m->virtual_len && !fmi_priv(m)->virtual_page;
}

fm_status fmi_mirror_open(fm_model *m)
{
    fm_engine *e = m->engine;
    fmi_mirror *r = e->mirror;
    fm_status rc = FM_OK;
    if (!r)
        return FM_OK;
    if (leads(e)) {
        rc = free_number(&r->seq, &r->seqs, &r->seq_cap, &r->opens);
        if (rc != FM_OK)
            return rc;
        say_u32(&r->log, SAY_OPEN);
        say_u32(&r->log, fmi_priv(m)->mirror);
        say_u32(&r->log, r->opens);
        say_u32(&r->log, computes(m));
        r->meets = computes(m);
        if (r->meets)
            rc = send_log(e);
    }
    r->depth += rc == FM_OK;
    return rc;
}

fm_status fmi_mirror_opened(fm_model *m, fm_seq **s, fm_status rc)
{
    fm_engine *e = m->engine;
    fmi_mirror *r = e->mirror;
    if (*s)
        (*s)->mirror = NO_NUMBER;
    if (!r)
        return rc;
    bool computed = r->depth == 1 && r->meets;
    rc = fmi_mirror_end(e, rc);
    if (*s && rc != FM_OK) {
        fm_seq_close(*s);
        *s = NULL;
    }
    if (computed && rc != FM_OK) /* another rank may not have them: all compute them again */
        fmi_virtual_drop(m);
    if (!leads(e))
        return rc;
    if (*s) {
        (*s)->mirror = r->opens;
        put_number(r->seq, &r->seqs, *s, r->opens);
        return rc;
    }
    say_u32(&r->log, SAY_DEED); /* where it opened, it closes again */
    say_u32(&r->log, r->opens);
    say_u32(&r->log, FMI_DEED_CLOSE);
    say_u32(&r->log, 0);
    say_u32(&r->log, 0);
    return rc;
}

/* ==== models ==== */

/* What a rank needs of a tree: not its text, its suites, its history. */
static bool is_of_model(const char *path)
{
    static const char *const not_wanted[] = {"tokenizer/",  "suites/",        "source/",  "data/",
                                             "recipe.json", "train_log.json", "README.md"};
    for (size_t i = 0; i < FM_ARRAY_LEN(not_wanted); i++)
        if (strncmp(path, not_wanted[i], strlen(not_wanted[i])) == 0)
            return false;
    return true;
}

fm_status fmi_mirror_prepare(fm_model *m, const fm_tree *tree, const char *what)
{
    fmi_model_priv *p = fmi_priv(m);
    fm_buf one;
    if (!m->engine->mirror || fm_comm_rank(m->engine->comm) != 0)
        return FM_OK;
    fm_buf_init(&p->told, LOG_MAX);
    fm_buf_init(&one, 0);
    say_bytes(&p->told, what, strlen(what) + 1);
    say_bytes(&p->told, m->digest.b, sizeof(m->digest.b));
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
        say_bytes(&p->told, e->path, strlen(e->path) + 1);
        say_bytes(&p->told, one.data, one.len);
    }
    fm_buf_release(&one);
    return rc == FM_OK ? fm_buf_ok(&p->told) : rc;
}

fm_status fmi_mirror_adopt(fm_model *m)
{
    fm_engine *e = m->engine;
    fmi_mirror *r = e->mirror;
    fmi_model_priv *p = fmi_priv(m);
    if (!leads(e))
        return FM_OK;
    fm_status rc = free_number(&r->model, &r->models, &r->model_cap, &p->mirror);
    if (rc != FM_OK)
        return rc;
    put_number(r->model, &r->models, m, p->mirror);
    say_u32(&r->log, SAY_MODEL);
    say_u32(&r->log, p->mirror);
    say_bytes(&r->log, p->told.data, p->told.len);
    rc = send_log(e);
    double patience_s = wait_gladly(e);
    if (rc == FM_OK)
        rc = fm_comm_meet(e->comm, FM_OK, 0);
    fm_comm_patience(e->comm, patience_s);
    if (rc != FM_OK)
        r->model[p->mirror] = NULL;
    return rc;
}

void fmi_mirror_close(fm_model *m)
{
    fm_engine *e = m->engine;
    fmi_model_priv *p = fmi_priv(m);
    if (!e->mirror)
        return;
    fm_buf_release(&p->told);
    if (!leads(e) || !p->adopted)
        return;
    e->mirror->model[p->mirror] = NULL;
    say_u32(&e->mirror->log, SAY_MODEL_CLOSE);
    say_u32(&e->mirror->log, p->mirror);
}

/* ==== following ==== */

static void drop_hooks(fmi_mirror *r)
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

static fm_status follow_deed(fm_engine *e, fm_cursor *c)
{
    fmi_mirror *r = e->mirror;
    uint32_t number = fm_cursor_u32(c);
    fm_seq *s = known(r->seq, r->seqs, number);
    uint32_t deed = fm_cursor_u32(c), a = fm_cursor_u32(c), b = fm_cursor_u32(c);
    if (c->failed || number >= NUMBERS_MAX)
        return fm_fail(FM_ECORRUPT, "rank 0 speaks of a sequence that is not there");
    if (!s)
        return FM_OK;
    switch ((fmi_deed)deed) {
    case FMI_DEED_EXPECT:
        if (a <= fmi_priv(s->model)->rope->positions)
            fm_ignore(fmi_seq_expect(s, a), "a step that needs it fails");
        return FM_OK;
    case FMI_DEED_TELL: /* what was not expected here, or not adopted, makes another plan */
        if (a >= s->len && a <= s->known && a < s->page_cap * FM_KV_PAGE)
            fmi_seq_tell(s, a, (int32_t)b);
        return FM_OK;
    case FMI_DEED_WANT:
        fmi_seq_want(s, a, b);
        return FM_OK;
    case FMI_DEED_ADOPT:
        fmi_seq_adopt(s);
        return FM_OK;
    case FMI_DEED_RESERVE:
        fm_ignore(fmi_seq_reserve(s, a), "a step that needs it fails");
        return FM_OK;
    case FMI_DEED_REWIND:
        fm_ignore(fm_seq_rewind(s, a), "likewise");
        return FM_OK;
    case FMI_DEED_UNCACHE:
        s->uncached = true;
        return FM_OK;
    case FMI_DEED_CLOSE:
        drop_hooks(r);
        fm_seq_close(s);
        r->seq[number] = NULL;
        return FM_OK;
    }
    return fm_fail(FM_ECORRUPT, "rank 0 says something that is not known here");
}

/* Rank 0 is in the step, or the opening: it waits for this rank, which cannot begin. */
static fm_status cannot(fm_engine *e, fm_status rc)
{
    fm_ignore(meet(e, rc), "rank 0 has the answer");
    fmi_mirror_undone(e);
    return fm_comm_state(e->comm);
}

/* Rows of a step. Each is a number, a token and whether its logits are wanted. */
static fm_status read_rows(const fmi_mirror *r, fm_cursor *c, fm_row *row, uint32_t n)
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

/* Of the step that follows. */
static fm_status follow_hooks(fm_engine *e, fm_cursor *c)
{
    fmi_mirror *r = e->mirror;
    fm_seq *s = known(r->seq, r->seqs, fm_cursor_u32(c));
    void *memory = NULL;
    fm_status rc = fm_grow(&r->hooked, &r->hooked_cap, r->hookeds + 1, sizeof(*r->hooked));
    bool room = rc == FM_OK;
    rc = fmi_hooks_hear(c, room ? s : NULL, &memory);
    r->lacks_hooks = r->lacks_hooks || !room || rc == FM_ENOMEM;
    if (rc == FM_OK && room && s) {
        r->hooked[r->hookeds].seq = s;
        r->hooked[r->hookeds++].memory = memory;
    }
    return rc == FM_ENOMEM ? FM_OK : rc;
}

/* What it returns is the comm's state: a step that fails has failed on all ranks. */
static fm_status follow_step(fm_engine *e, fm_cursor *c)
{
    fmi_mirror *r = e->mirror;
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
    if (rc == FM_OK)
        rc = fm_engine_step(e, row, n);
    fm_free(row);
    drop_hooks(r);
    if (rc != FM_OK && r->meets) /* before rank 0 was met */
        return cannot(e, rc);
    return fm_comm_state(e->comm);
}

static fm_status follow_open(fm_engine *e, fm_cursor *c)
{
    fmi_mirror *r = e->mirror;
    fm_model *m = known(r->model, r->models, fm_cursor_u32(c));
    uint32_t number = fm_cursor_u32(c);
    bool meets = fm_cursor_u32(c) != 0;
    if (c->failed || !m)
        return fm_fail(FM_ECORRUPT, "rank 0 opens a sequence of a model that is not there");
    fm_status rc = room_for(&r->seq, &r->seq_cap, number);
    if (rc == FM_ENOMEM) /* its steps fail */
        return meets ? cannot(e, rc) : FM_OK;
    if (rc != FM_OK)
        return rc;
    fm_seq *s = known(r->seq, r->seqs, number);
    drop_hooks(r);
    if (s) /* it did not open there */
        fm_seq_close(s);
    put_number(r->seq, &r->seqs, NULL, number);
    r->meets = meets;
    rc = fm_seq_open(&s, m);
    if (rc == FM_OK)
        put_number(r->seq, &r->seqs, s, number);
    return fm_comm_state(e->comm);
}

static fm_status read_tree(fm_tree **out, fm_cursor *c)
{
    fm_status rc = fm_tree_new(out);
    while (rc == FM_OK && fm_cursor_left(c) > 0 && !c->failed) {
        fm_span path = fm_cursor_bytes(c, fm_cursor_u32(c));
        fm_span bytes = fm_cursor_bytes(c, fm_cursor_u32(c));
        if (c->failed || path.len == 0 || path.data[path.len - 1] != '\0')
            return fm_fail(FM_ECORRUPT, "rank 0 tells of a tree that cannot be read");
        rc = fm_tree_put_encoded(*out, (const char *)path.data, bytes);
    }
    return rc;
}

static fm_status load_told(fm_model **out, fm_engine *e, fm_span told, const fm_provider *p)
{
    fm_cursor c;
    fm_tree *tree = NULL;
    *out = NULL;
    fm_cursor_init(&c, told);
    fm_span what = fm_cursor_bytes(&c, fm_cursor_u32(&c));
    fm_span digest = fm_cursor_bytes(&c, fm_cursor_u32(&c));
    fm_status rc = read_tree(&tree, &c);
    if (rc == FM_OK && (what.len == 0 || digest.len != FM_DIGEST_BYTES))
        rc = fm_fail(FM_ECORRUPT, "rank 0 tells of a model without a name");
    if (rc == FM_OK)
        rc = fm_model_load(out, e, tree, p, (const char *)what.data);
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
    fmi_mirror *r = e->mirror;
    fm_model *m = NULL;
    uint32_t number = fm_cursor_u32(c);
    fm_span told = fm_cursor_bytes(c, fm_cursor_u32(c));
    if (c->failed)
        return fm_fail(FM_ECORRUPT, "rank 0 tells of a model that cannot be read");
    fm_status rc = room_for(&r->model, &r->model_cap, number);
    if (rc == FM_OK && known(r->model, r->models, number))
        rc = fm_fail(FM_ECORRUPT, "rank 0 speaks of two models by one number");
    if (rc == FM_OK)
        rc = load_told(&m, e, told, p);
    double patience_s = wait_gladly(e);
    rc = fm_comm_meet(e->comm, rc, 0);
    fm_comm_patience(e->comm, patience_s);
    if (rc != FM_OK) {
        fm_model_close(m);
        return fm_comm_state(e->comm);
    }
    put_number(r->model, &r->models, m, number);
    return FM_OK;
}

static fm_status follow_close(fmi_mirror *r, uint32_t number)
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
    fmi_mirror *r = e->mirror;
    drop_hooks(r);
    for (size_t i = 0; i < r->seqs; i++)
        fm_seq_close(r->seq[i]);
    for (size_t i = 0; i < r->models; i++)
        fm_model_close(r->model[i]);
    r->seqs = r->models = 0;
}

static fm_status follow_message(fm_engine *e, const fm_provider *p, fm_cursor *c, bool *ended)
{
    fmi_mirror *r = e->mirror;
    fm_status rc = FM_OK;
    while (rc == FM_OK && !*ended && fm_cursor_left(c) > 0) {
        uint32_t what = fm_cursor_u32(c);
        if (what == SAY_DEED)
            rc = follow_deed(e, c);
        else if (what == SAY_STEP)
            rc = follow_step(e, c);
        else if (what == SAY_HOOKS)
            rc = follow_hooks(e, c);
        else if (what == SAY_OPEN)
            rc = follow_open(e, c);
        else if (what == SAY_MODEL)
            rc = follow_model(e, c, p);
        else if (what == SAY_MODEL_CLOSE)
            rc = follow_close(r, fm_cursor_u32(c));
        else {
            *ended = true;
            if (what != SAY_END)
                rc = fm_fail(FM_ECORRUPT, "rank 0 says something that is not known here");
        }
    }
    return rc == FM_OK ? fm_cursor_ok(c, "what rank 0 says", "a word") : rc;
}

fm_status fm_engine_follow(fm_engine *e, const fm_provider *p)
{
    bool ended = false;
    fm_buf message;
    if (fm_comm_rank(e->comm) == 0)
        return fm_fail(FM_EINVAL, "rank 0 leads, it does not follow");
    fm_buf_init(&message, LOG_MAX);
    fm_status rc = fm_buf_extend(&message, LOG_ROOM) ? FM_OK : FM_ENOMEM;
    while (rc == FM_OK && !ended) {
        fm_cursor c;
        double patience_s = wait_gladly(e);
        rc = fm_comm_tell_buf(e->comm, &message, 0);
        fm_comm_patience(e->comm, patience_s);
        fm_cursor_init(&c, fm_buf_span(&message));
        if (rc == FM_OK)
            rc = follow_message(e, p, &c, &ended);
        else if (fm_comm_meet(e->comm, rc, 0) != FM_OK) /* lost: it cannot be told again */
            rc = fm_error_prefix(rc, "what rank 0 said");
    }
    fm_error_state why;
    fm_error_save(&why);
    fm_buf_release(&message);
    end_all(e);
    fm_error_restore(&why);
    return rc;
}

/* ==== life ==== */

/* What must be equal on all ranks, so that their engines plan and answer alike. */
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

fm_status fmi_mirror_new(fm_engine *e)
{
    if (fm_comm_size(e->comm) <= 1)
        return FM_OK;
    fmi_mirror *r = fm_calloc(1, sizeof(*r));
    if (!r)
        return FM_ENOMEM;
    e->mirror = r;
    fm_buf_init(&r->log, LOG_MAX);
    if (!fm_buf_extend(&r->log, LOG_ROOM))
        return FM_ENOMEM;
    fm_buf_clear(&r->log);
    uint32_t split = fm_comm_size(e->comm) / e->stages;
    if (split > 1) /* stages cut no sum */
        (void)snprintf(e->kernel_class, sizeof(e->kernel_class), "%s/%u ranks", e->be->kernel_class,
                       split);
    fm_status rc = check_alike(e);
    if (rc == FM_OK)
        rc = fm_comm_attach_device(e->comm, e->be);
    return rc == FM_OK ? fmi_pipe_group(e) : rc;
}

void fmi_mirror_free(fm_engine *e)
{
    fmi_mirror *r = e->mirror;
    if (!r)
        return;
    if (leads(e)) {
        fm_error_state why; /* the engine may be closed for a reason */
        fm_error_save(&why);
        say_u32(&r->log, SAY_END);
        fm_ignore(send_log(e), "who does not hear it sees the connection end");
        fm_error_restore(&why);
    }
    fm_comm_detach(e->comm);
    fm_buf_release(&r->log);
    fm_free(r->hooked);
    fm_free(r->model);
    fm_free(r->seq);
    fm_free(r);
    e->mirror = NULL;
}
