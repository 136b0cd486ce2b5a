/* replay.c - steps that come again: the passes of a step are kept by the device (a CUDA graph) and
 * run again where nothing but the contents of memory is different.
 *
 * What a step's operations are given is settled by the runs of rows (models, counts, places), the
 * stride of page tables and the addresses of workspace and caches; those numbers are its signature.
 * The first time that a signature is seen the step is run, and its lists of row numbers get memory
 * of their own; the second time all lists are there, so operations alone are left, and the device
 * keeps them; from then on they are replayed. Residual streams that rows leave for others go to pages
 * by number, so a step that is kept leaves them on a stage first. Steps that read back in the middle
 * (hooks), or whose rows begin from such streams, are just run. */
#include "infer/step.h"

#include <string.h>

#include "store/base/mem.h"

#define REPLAYS 48u /* signatures that are remembered */

typedef struct fmi_replay {
    fm_digest sign;
    uint64_t used; /* by the clock below; 0: free */
    uint64_t key;  /* on the device, 0: not kept */
    fmi_lists lists;
    uint64_t gemm_groups, layer_rows; /* what the engine counts in one run */
    bool refused;                     /* the device cannot keep it */
} fmi_replay;

typedef struct fmi_replays {
    fmi_replay of[REPLAYS];
    uint64_t clock, keys;
    uint64_t *word; /* [WORDS(max_rows)] what is signed */
    size_t words;
} fmi_replays;

#define WORDS(runs) (13u + FMI_STAGES + 9u * (size_t)(runs))

static void release(fmi_step *s, fmi_replay *r)
{
    fm_backend *be = s->e->be;
    if (r->key)
        be->forget(be, r->key);
    fmi_lists_release(s->e, &r->lists);
    memset(r, 0, sizeof(*r));
}

void fmi_replays_free(fmi_step *s)
{
    fmi_replays *all = s->replays;
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

static void add(fmi_replays *all, uint64_t word)
{
    all->word[all->words++] = word;
}

static void add_address(fmi_replays *all, const void *p)
{
    add(all, (uint64_t)(uintptr_t)p);
}

static fm_status sign(fmi_replays *all, const fmi_step *s, uint32_t n, fm_digest *out)
{
    const void *const address[] = {s->dev,    s->table, s->act,  s->logits,
                                   s->hidden, s->place, s->stage};
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
    }
    return fm_sha256(out, all->word, all->words * sizeof(uint64_t));
}

/* ==== entries ==== */

static fmi_replay *find(fmi_replays *all, const fm_digest *sign)
{
    for (size_t i = 0; i < REPLAYS; i++)
        if (all->of[i].used && fm_digest_eq(&all->of[i].sign, sign))
            return &all->of[i];
    return NULL;
}

/* The longest unused entry, empty. */
static fmi_replay *fresh(fmi_step *s, fmi_replays *all)
{
    fmi_replay *r = &all->of[0];
    for (size_t i = 1; i < REPLAYS; i++)
        if (all->of[i].used < r->used)
            r = &all->of[i];
    release(s, r);
    return r;
}

static fmi_replays *replays_of(fmi_step *s)
{
    if (!s->replays)
        s->replays = fm_calloc(1, sizeof(fmi_replays));
    fmi_replays *all = s->replays;
    if (all && !all->word)
        all->word = fm_calloc(WORDS(s->max_rows), sizeof(uint64_t));
    return all && all->word ? all : NULL;
}

/* ==== running ==== */

/* The first time: lists are made, with room for those that the next run looks up. */
static fm_status first_run(fmi_step *s, fmi_replay *r, uint32_t n)
{
    s->lists = &r->lists;
    fmi_lists_clear(s->lists);
    fm_status rc = fmi_step_passes(s, n);
    if (rc == FM_OK && s->lists->count > 0)
        rc = fmi_list_room(s, s->max_rows + 1);
    s->lists = &s->own;
    return rc;
}

static fm_status keep(fmi_step *s, fmi_replay *r, uint64_t key, uint32_t n)
{
    fm_engine *e = s->e;
    fm_backend *be = e->be;
    uint64_t groups = e->gemm_groups, rows = e->layer_rows;
    fm_status rc = be->record(be, key);
    if (rc != FM_OK) /* no room to keep it is no reason not to run it */
        return fm_fail(FM_EUNSUPPORTED, "this step cannot be recorded");
    s->lists = &r->lists;
    rc = fmi_step_passes(s, n);
    s->lists = &s->own;
    fm_status kept = be->recorded(be);
    if (rc == FM_OK && kept == FM_OK)
        r->key = key;
    else
        be->forget(be, key);
    r->gemm_groups = e->gemm_groups - groups;
    r->layer_rows = e->layer_rows - rows;
    return rc == FM_OK ? kept : rc;
}

static fm_status run_entry(fmi_step *s, fmi_replays *all, fmi_replay *r, uint32_t n)
{
    fm_engine *e = s->e;
    if (r->key) {
        e->gemm_groups += r->gemm_groups;
        e->layer_rows += r->layer_rows;
        e->replayed++;
        return e->be->replay(e->be, r->key);
    }
    fm_status rc = r->refused ? FM_EUNSUPPORTED : keep(s, r, ++all->keys, n);
    if (rc != FM_EUNSUPPORTED)
        return rc;
    if (!r->refused) { /* counted, but not run */
        e->gemm_groups -= r->gemm_groups;
        e->layer_rows -= r->layer_rows;
        fm_error_clear();
    }
    r->refused = true;
    return fmi_step_passes(s, n);
}

static fm_status run_signed(fmi_step *s, uint32_t n)
{
    fmi_replays *all = replays_of(s);
    if (!all)
        return FM_ENOMEM;
    fm_digest d;
    fm_status rc = sign(all, s, n, &d);
    if (rc != FM_OK)
        return rc;
    fmi_replay *r = find(all, &d);
    if (r) {
        r->used = ++all->clock;
        return run_entry(s, all, r, n);
    }
    r = fresh(s, all);
    rc = first_run(s, r, n);
    if (rc == FM_OK)
        *r = (fmi_replay){.sign = d, .used = ++all->clock, .lists = r->lists};
    else
        release(s, r);
    return rc;
}

fm_status fmi_replay_passes(fmi_step *s, uint32_t n)
{
    fm_backend *be = s->e->be;
    bool fits = be->record && be->recorded && be->replay && be->forget && can_come_again(s);
    fm_status rc = fits ? fmi_stage_plan(s, &fits) : FM_OK;
    if (rc == FM_OK)
        rc = fits ? run_signed(s, n) : fmi_step_passes(s, n);
    if (rc == FM_OK)
        fmi_stage_empty(s);
    s->stages = 0;
    return rc;
}
