/* step_graph.c - records the passes of a step on the device (a CUDA graph) and replays them for
 * later steps that differ in the contents of memory alone.
 *
 * The arguments of a step's operations follow from the runs of rows (models, counts, places), the
 * stride of page tables and the addresses of workspace and caches; those numbers are its signature.
 * The first time that a signature is seen the step is run, and its lists of row numbers get memory
 * of their own. The second time all lists are there, so only operations are left, and the device
 * records them; from then on they are replayed. Residual streams that rows save go to pages whose
 * numbers change, so a recorded step puts them into buffers of the step first. Steps that read back
 * in the middle (hooks), or whose rows begin from such streams, are run without recording.
 *
 * Over ranks with a device's wire a recording holds the exchanges of the step, which all ranks have
 * to record and replay alike (comm.h). Each rank finds out what it could do before the plans of the
 * step are compared, and sends that with its plan. All ranks then decide the same: replay where all
 * have the step under one key, record where all have its lists, else run it directly. Where a rank
 * cannot record it all ranks run it directly from then on. */
#include "infer/engine/pipeline.h"

#include <string.h>

#include "store/base/mem.h"

#define REPLAYS 48u /* signatures that are remembered */

typedef struct fmi_step_graph {
    fm_digest sign;
    uint64_t used; /* fmi_step_graphs.clock at its last use; 0: free */
    uint64_t key;  /* on the device, 0: not recorded */
    fmi_lists lists;
    uint64_t gemm_groups, layer_rows; /* what one run adds to the engine's counters */
    bool refused;                     /* the device cannot record it */
    fm_script script;                 /* its exchanges with other ranks */
} fmi_step_graph;

/* How ranks run a step; in fmi_way: what one rank could do. */
enum { AS_IT_COMES, SEEN_FIRST, REFUSED, KEEP, AGAIN };

typedef struct fmi_step_graphs {
    fmi_step_graph of[REPLAYS];
    uint64_t clock, keys, age; /* age: fm_comm_age of the recordings */
    /* The current step, over ranks. */
    fm_digest sign;
    fmi_step_graph *now; /* NULL: not seen before, or not looked for */
    uint32_t does;
    uint64_t *word; /* [WORDS(max_rows)] the signature before it is hashed */
    size_t words;
} fmi_step_graphs;

#define WORDS(runs) (16u + FMI_STAGES + 9u * (size_t)(runs))

static void release(fmi_step *s, fmi_step_graph *r)
{
    fm_backend *be = s->e->be;
    if (r->key)
        be->forget(be, r->key);
    fm_script_release(&r->script);
    fmi_lists_release(s->e, &r->lists);
    memset(r, 0, sizeof(*r));
}

void fmi_step_graphs_free(fmi_step *s)
{
    fmi_step_graphs *all = s->replays;
    if (!all)
        return;
    for (size_t i = 0; i < REPLAYS; i++)
        release(s, &all->of[i]);
    fm_free(all->word);
    fm_free(all);
    s->replays = NULL;
}

/* ==== the signature ==== */

static bool can_come_again(const fmi_step *s)
{
    if (s->hooked_count || s->given || s->e->tap)
        return false;
    for (uint32_t i = 0; i < s->runs; i++)
        if (s->run[i].first)
            return false;
    return true;
}

static void add(fmi_step_graphs *all, uint64_t word)
{
    all->word[all->words++] = word;
}

static void add_address(fmi_step_graphs *all, const void *p)
{
    add(all, (uint64_t)(uintptr_t)p);
}

static fm_status sign(fmi_step_graphs *all, const fmi_step *s, uint32_t n, fm_digest *out)
{
    const fm_engine *e = s->e;
    const void *const address[] = {s->dev,
                                   s->table,
                                   s->act,
                                   s->logits,
                                   s->hidden,
                                   s->place,
                                   s->stage,
                                   s->shard,
                                   e->log ? fm_comm_room(e->comm) : NULL,
                                   e->log ? fm_comm_room(e->group) : NULL};
    all->words = 0;
    add(all, n);
    add(all, s->wanted);
    add(all, s->table_stride);
    add(all, s->ld);
    add(all, s->hidden_ld);
    for (size_t i = 0; i < FM_ARRAY_LEN(address); i++)
        add_address(all, address[i]);
    for (uint32_t i = 0; i < s->stages; i++)
        add(all, (uint64_t)s->stage_of[i].row0 << 32 | s->stage_of[i].layer);
    for (uint32_t i = 0; i < s->runs; i++) {
        const fmi_part *p = &s->run[i];
        const fmi_geom *g = fmi_priv(p->model)->geom;
        fm_kv_view kv = fmi_kv_view(g->pool);
        add(all, fmi_priv(p->model)->serial);
        add(all, p->begin);
        add(all, p->count);
        add(all, p->wanted);
        add(all, p->row0);
        add(all, g->seqs);
        add_address(all, kv.k);
        add_address(all, kv.v);
        add_address(all, g);
        if (g->full) {
            kv = fmi_kv_view(g->full);
            add_address(all, kv.k);
            add_address(all, kv.v);
        }
    }
    return fm_sha256(out, all->word, all->words * sizeof(uint64_t));
}

/* ==== entries ==== */

static fmi_step_graph *find(fmi_step_graphs *all, const fm_digest *sign)
{
    for (size_t i = 0; i < REPLAYS; i++)
        if (all->of[i].used && fm_digest_eq(&all->of[i].sign, sign))
            return &all->of[i];
    return NULL;
}

/* The least recently used entry, emptied. */
static fmi_step_graph *fresh(fmi_step *s, fmi_step_graphs *all)
{
    fmi_step_graph *r = &all->of[0];
    for (size_t i = 1; i < REPLAYS; i++)
        if (all->of[i].used < r->used)
            r = &all->of[i];
    release(s, r);
    return r;
}

static fmi_step_graphs *replays_of(fmi_step *s)
{
    if (!s->replays)
        s->replays = fm_calloc(1, sizeof(fmi_step_graphs));
    fmi_step_graphs *all = s->replays;
    if (all && !all->word)
        all->word = fm_calloc(WORDS(s->max_rows), sizeof(uint64_t));
    return all && all->word ? all : NULL;
}

/* ==== running ==== */

/* Calls all operations of a step, except downloads to the host. */
static fm_status operate(fmi_step *s, fmi_lists *lists, uint32_t n)
{
    s->lists = lists;
    fm_status rc = fmi_step_passes(s, n);
    FM_THEN(rc, fmi_pipe_deliver(s));
    if (rc == FM_OK && lists != &s->own && lists->count > 0)
        rc = fmi_list_room(s, s->max_rows + 1); /* so that the next run allocates nothing */
    s->lists = &s->own;
    return rc;
}

/* Runs a step whose signature is new: this makes its lists, and workspace may move, so the
 * signature is computed afterwards. */
static fm_status first_run(fmi_step *s, fmi_step_graphs *all, uint32_t n)
{
    fmi_step_graph *r = fresh(s, all);
    fm_status rc = operate(s, &r->lists, n);
    FM_THEN(rc, sign(all, s, n, &r->sign));
    if (rc == FM_OK)
        r->used = ++all->clock;
    else
        release(s, r);
    return rc;
}

/* Records the step under key without running it. FM_EUNSUPPORTED: it cannot be recorded. */
static fm_status capture(fmi_step *s, fmi_step_graph *r, uint64_t key, uint32_t n)
{
    fm_engine *e = s->e;
    fm_backend *be = e->be;
    uint64_t groups = e->gemm_groups, rows = e->layer_rows;
    fm_status rc = be->record(be, key);
    if (rc != FM_OK) /* the step can still be run without a recording */
        return fm_fail(FM_EUNSUPPORTED, "this step cannot be recorded");
    rc = operate(s, &r->lists, n);
    fm_status kept = be->recorded(be);
    r->gemm_groups = e->gemm_groups - groups;
    r->layer_rows = e->layer_rows - rows;
    e->gemm_groups = groups;
    e->layer_rows = rows;
    rc = rc == FM_OK ? kept : rc;
    if (rc == FM_OK)
        r->key = key;
    else
        be->forget(be, key);
    return rc;
}

static void count_replay(fm_engine *e, const fmi_step_graph *r, bool again)
{
    e->gemm_groups += r->gemm_groups;
    e->layer_rows += r->layer_rows;
    e->replayed += again;
}

static fm_status run_entry(fmi_step *s, fmi_step_graphs *all, fmi_step_graph *r, uint32_t n)
{
    bool again = r->key != 0;
    fm_status rc = again ? FM_OK : r->refused ? FM_EUNSUPPORTED : capture(s, r, ++all->keys, n);
    if (rc == FM_OK) {
        count_replay(s->e, r, again);
        return s->e->be->replay(s->e->be, r->key);
    }
    if (rc != FM_EUNSUPPORTED)
        return rc;
    if (!r->refused)
        fm_error_clear();
    r->refused = true;
    return operate(s, &s->own, n);
}

static fm_status run_signed(fmi_step *s, uint32_t n)
{
    fmi_step_graphs *all = replays_of(s);
    if (!all)
        return FM_ENOMEM;
    fm_digest d;
    FM_TRY(sign(all, s, n, &d));
    fmi_step_graph *r = find(all, &d);
    if (!r)
        return first_run(s, all, n);
    r->used = ++all->clock;
    return run_entry(s, all, r, n);
}

static bool keeps(const fmi_step *s)
{
    const fm_backend *be = s->e->be;
    return be->record && be->recorded && be->replay && be->forget && can_come_again(s);
}

fm_status fmi_step_graph_passes(fmi_step *s, uint32_t n)
{
    bool fits = keeps(s);
    fm_status rc = fits ? fmi_stage_plan(s, &fits) : FM_OK;
    FM_THEN(rc, fits ? run_signed(s, n) : operate(s, &s->own, n));
    if (rc == FM_OK)
        fmi_stage_empty(s);
    s->stages = 0;
    return rc;
}

/* ==== over ranks ==== */

/* Forgets all recordings if the wire was made anew since. */
static void grow_older(fmi_step *s, fmi_step_graphs *all)
{
    fm_backend *be = s->e->be;
    uint64_t age = fm_comm_age(s->e->comm);
    for (size_t i = 0; all->age != age && i < REPLAYS; i++) {
        fmi_step_graph *r = &all->of[i];
        if (r->key)
            be->forget(be, r->key);
        fm_script_release(&r->script);
        r->key = 0;
    }
    all->age = age;
}

fm_status fmi_step_graph_look(fmi_step *s, uint32_t n, fmi_way *out)
{
    bool fits = fm_comm_device_wire(s->e->comm) && keeps(s);
    *out = (fmi_way){AS_IT_COMES, 0};
    s->stages = 0;
    fmi_step_graphs *all = fits || s->replays ? replays_of(s) : NULL;
    if (!all)
        return fits ? FM_ENOMEM : FM_OK;
    all->now = NULL;
    all->does = AS_IT_COMES;
    out->keys = all->keys;
    grow_older(s, all);
    fm_status rc = fits ? fmi_stage_plan(s, &fits) : FM_OK;
    if (rc == FM_OK && fits)
        rc = sign(all, s, n, &all->sign);
    if (rc != FM_OK || !fits)
        return rc;
    fmi_step_graph *r = find(all, &all->sign);
    all->now = r;
    out->can = !r ? SEEN_FIRST : r->refused ? REFUSED : r->key ? AGAIN + r->key : KEEP;
    return FM_OK;
}

void fmi_step_graph_agree(fmi_step *s, const fmi_way *way, uint32_t ranks)
{
    fmi_step_graphs *all = s->replays;
    uint64_t least = way[0].can, keys = way[0].keys;
    bool same = true;
    for (uint32_t i = 1; i < ranks; i++) {
        least = FM_MIN(least, way[i].can);
        keys = FM_MAX(keys, way[i].keys);
        same = same && way[i].can == way[0].can;
    }
    if (!all)
        return;
    all->does = least < KEEP ? (uint32_t)least : same && least > AGAIN ? AGAIN : KEEP;
    all->keys = keys + (all->does == KEEP); /* a key means the same recording on all ranks */
}

/* Records the step as all other ranks do; fails where an address changes meanwhile. */
static fm_status capture_alike(fmi_step *s, fmi_step_graphs *all, uint32_t n)
{
    fm_engine *e = s->e;
    fmi_step_graph *r = all->now;
    fm_digest after;
    if (r->key) /* other ranks have this recording no more */
        e->be->forget(e->be, r->key);
    r->key = 0;
    fm_script_release(&r->script);
    fm_comm_record(e->comm, &r->script);
    fm_status rc = capture(s, r, all->keys, n);
    fm_comm_record(e->comm, NULL);
    FM_THEN(rc, sign(all, s, n, &after));
    if (rc == FM_OK && !fm_digest_eq(&after, &r->sign))
        rc = fm_fail(FM_EUNSUPPORTED, "a step cannot be recorded: its memory was moved meanwhile");
    return rc;
}

/* Records the step if all ranks can. */
static fm_status keep_together(fmi_step *s, fmi_step_graphs *all, uint32_t n, bool *kept)
{
    fm_engine *e = s->e;
    fmi_step_graph *r = all->now;
    uint8_t said[FM_COMM_MAX_RANKS], mine;
    *kept = capture_alike(s, all, n) == FM_OK;
    mine = *kept;
    fm_status rc = fm_comm_collect(e->comm, said, &mine, sizeof(mine));
    if (rc == FM_OK)
        fm_error_clear();
    for (uint32_t i = 0; i < fm_comm_size(e->comm); i++)
        *kept = *kept && rc == FM_OK && said[i];
    if (*kept)
        return FM_OK;
    if (r->key)
        e->be->forget(e->be, r->key);
    r->key = 0;
    r->refused = rc == FM_OK; /* a failed exchange would not mean that it cannot be recorded */
    return rc;
}

static fm_status run_together(fmi_step *s, fmi_step_graphs *all, uint32_t n)
{
    fm_engine *e = s->e;
    fmi_step_graph *r = all->now;
    bool kept = all->does == AGAIN;

    if (r)
        r->used = ++all->clock;
    if (all->does == SEEN_FIRST && !r)
        return first_run(s, all, n);
    if (all->does == KEEP)
        FM_TRY(keep_together(s, all, n, &kept));
    if (kept) {
        count_replay(e, r, all->does == AGAIN);
        return fm_comm_replay(e->comm, &r->script, r->key);
    }
    return operate(s, &s->own, n);
}

fm_status fmi_step_graph_together(fmi_step *s, uint32_t n)
{
    fmi_step_graphs *all = fm_comm_device_wire(s->e->comm) ? s->replays : NULL;
    fm_status rc = all ? run_together(s, all, n) : operate(s, &s->own, n);
    if (rc == FM_OK)
        fmi_stage_empty(s);
    s->stages = 0;
    return rc;
}
