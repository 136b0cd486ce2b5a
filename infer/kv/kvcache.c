/* kvcache.c - see kvcache.h. Idle pages form a list by the time of their last release; the budget
 * counts the pages that were ever used, since a page that is given back keeps its memory for its
 * next use. A pool without holders is dropped whole when another one needs its memory.
 *
 * Where memory is taken at once, it is one piece for all pools of a lane (kvarena.h): a pool's page
 * lies at its number times k_bytes from the beginning of the piece, its values right behind its
 * keys, so numbers of pages with both are two apart. */
#include "infer/kv/kvcache.h"

#include "infer/kv/kvarena.h"
#include "store/base/mem.h"

#define MAX_RESERVED_BYTES (1ull << 40) /* of address space, one pool */

typedef struct page_state {
    uint32_t holders;
    bool kept;
    int32_t older, newer; /* idle neighbours, -1 = none */
} page_state;

struct fmi_kv_pool {
    fmi_kv *kv;
    fmi_kv_pool *next;
    uint32_t index, lane;
    uint32_t kv_heads, head_dim, hidden, floats; /* hidden: a pool of rows; floats: of states */
    size_t k_bytes, v_bytes;             /* of a page */
    uint64_t pages_max, used, in_use;    /* used: ever handed out; in_use: held */
    uint64_t idle, kept;                 /* kept: includes idle pages */
    fm_kv_view view;
    page_state *state;  /* [pages_max] */
    int32_t *free_page; /* stack of pages that are neither held nor idle, [pages_max] */
    uint64_t free_count;
    int32_t oldest, newest; /* list of idle pages */
    fmi_arena_pool room;    /* used where memory is taken at once */
};

struct fmi_kv {
    fm_backend *be;
    uint64_t *bytes, bytes_max; /* [lanes] taken; limit of each lane */
    uint32_t lanes, here;
    fmi_arena *arena; /* [lanes]; NULL: pools have memory of their own */
    void *piece;      /* the memory of lane `here`, which its arena splits */
    fmi_kv_pool *pools;
    uint32_t pool_count;
    fmi_kv_forget forget;
    void *forget_ctx;
};

/* ==== life ==== */

fm_status fmi_kv_new(fmi_kv **out, fm_backend *be, uint64_t bytes_max)
{
    *out = fm_calloc(1, sizeof(**out));
    if (!*out)
        return FM_ENOMEM;
    (*out)->be = be;
    (*out)->bytes_max = bytes_max;
    fm_status rc = fmi_kv_lanes(*out, 1, 0);
    if (rc != FM_OK) {
        fm_free(*out);
        *out = NULL;
    }
    return rc;
}

fm_status fmi_kv_lanes(fmi_kv *kv, uint32_t lanes, uint32_t here)
{
    fm_assert(!kv->pools && here < lanes);
    uint64_t *bytes = fm_calloc(lanes, sizeof(*bytes));
    if (!bytes)
        return FM_ENOMEM;
    fm_free(kv->bytes);
    kv->bytes = bytes;
    kv->lanes = lanes;
    kv->here = here;
    return FM_OK;
}

fm_status fmi_kv_at_once(fmi_kv *kv)
{
    fm_assert(!kv->pools && !kv->arena);
    kv->arena = fm_calloc(kv->lanes, sizeof(*kv->arena));
    for (uint32_t i = 0; kv->arena && i < kv->lanes; i++)
        fmi_arena_init(&kv->arena[i], FM_MIN(kv->bytes_max, MAX_RESERVED_BYTES));
    return kv->arena ? FM_OK : FM_ENOMEM;
}

static fmi_arena *arena_of(const fmi_kv_pool *p)
{
    return p->kv->arena ? &p->kv->arena[p->lane] : NULL;
}

bool fmi_kv_here(const fmi_kv_pool *p)
{
    return p->lane == p->kv->here;
}

void fmi_kv_on_forget(fmi_kv *kv, fmi_kv_forget forget, void *ctx)
{
    kv->forget = forget;
    kv->forget_ctx = ctx;
}

static void release_arrays(fmi_kv_pool *p)
{
    fm_backend *be = p->kv->be;
    if (p->view.k && !p->kv->arena)
        be->free(be, p->view.k);
    if (p->view.v && !p->kv->arena)
        be->free(be, p->view.v);
    fm_free(p->state);
    fm_free(p->free_page);
    p->view = (fm_kv_view){NULL, NULL};
    p->state = NULL;
    p->free_page = NULL;
}

/* Gives back the memory of a pool's pages, of which none is held or idle. */
static void drop_pool(fmi_kv_pool *p)
{
    fm_assert(p->in_use == 0 && p->idle == 0);
    release_arrays(p);
    if (p->kv->arena)
        fmi_arena_drop(arena_of(p), &p->room);
    p->kv->bytes[p->lane] -= p->used * fmi_kv_page_bytes(p);
    p->used = p->free_count = 0;
}

void fmi_kv_free(fmi_kv *kv)
{
    if (!kv)
        return;
    fmi_kv_pool *next;
    for (fmi_kv_pool *p = kv->pools; p; p = next) {
        next = p->next;
        fm_assert(p->in_use == 0); /* sequences and models are closed before their engine */
        release_arrays(p);
        fm_free(p);
    }
    if (kv->piece)
        kv->be->free(kv->be, kv->piece);
    fm_free(kv->arena);
    fm_free(kv->bytes);
    fm_free(kv);
}

uint64_t fmi_kv_bytes(const fmi_kv *kv)
{
    return kv->bytes[kv->here];
}

uint64_t fmi_kv_bytes_max(const fmi_kv *kv)
{
    return kv->bytes_max;
}

uint64_t fmi_kv_bytes_kept(const fmi_kv *kv)
{
    uint64_t bytes = 0;
    for (const fmi_kv_pool *p = kv->pools; p; p = p->next)
        bytes += fmi_kv_here(p) ? p->kept * fmi_kv_page_bytes(p) : 0;
    return bytes;
}

static fm_status pool_new(fmi_kv *kv, fmi_kv_pool **out, const fmi_kv_pool *want)
{
    for (fmi_kv_pool *p = kv->pools; p; p = p->next)
        if (p->lane == want->lane && p->kv_heads == want->kv_heads &&
            p->head_dim == want->head_dim && p->hidden == want->hidden &&
            p->floats == want->floats) {
            *out = p;
            return FM_OK;
        }
    fmi_kv_pool *p = fm_memdup(want, sizeof(*want));
    if (!p)
        return FM_ENOMEM;
    uint64_t bytes = kv->bytes_max / (p->hidden ? 8 : p->floats ? 2 : 1);
    p->kv = kv;
    p->oldest = p->newest = -1;
    p->pages_max = FM_MIN(bytes, MAX_RESERVED_BYTES) / fmi_kv_page_bytes(p);
    p->pages_max = FM_MIN(p->pages_max, (uint64_t)(INT32_MAX / FM_KV_PAGE));
    p->index = kv->pool_count++;
    p->room = (fmi_arena_pool){.number = (uint16_t)p->index,
                               .align = p->k_bytes,
                               .bytes = fmi_kv_page_bytes(p),
                               .limit = fmi_kv_numbers(p) * p->k_bytes};
    p->next = kv->pools;
    kv->pools = p;
    *out = p;
    return FM_OK;
}

fm_status fmi_kv_pool_of(fmi_kv *kv, fmi_kv_pool **out, uint32_t lane, uint32_t kv_heads,
                         uint32_t head_dim)
{
    size_t bytes = kv->be->kv_page_bytes(kv->be, kv_heads, head_dim);
    const fmi_kv_pool want = {.lane = lane,
                              .kv_heads = kv_heads,
                              .head_dim = head_dim,
                              .k_bytes = bytes,
                              .v_bytes = bytes};
    *out = NULL;
    fm_assert(lane < kv->lanes);
    return pool_new(kv, out, &want);
}

fm_status fmi_kv_rows_of(fmi_kv *kv, fmi_kv_pool **out, uint32_t lane, uint32_t hidden)
{
    const fmi_kv_pool want = {
        .lane = lane, .hidden = hidden, .k_bytes = (size_t)hidden * FM_KV_PAGE * sizeof(float)};
    *out = NULL;
    return pool_new(kv, out, &want);
}

fm_status fmi_kv_states_of(fmi_kv *kv, fmi_kv_pool **out, uint32_t lane, uint32_t floats)
{
    const fmi_kv_pool want = {
        .lane = lane, .floats = floats, .k_bytes = (size_t)floats * sizeof(float)};
    *out = NULL;
    return pool_new(kv, out, &want);
}

uint32_t fmi_kv_pool_index(const fmi_kv_pool *p)
{
    return p->index;
}

uint64_t fmi_kv_numbers(const fmi_kv_pool *p)
{
    const fmi_arena *a = arena_of(p);
    return a ? FM_MIN(a->bytes / p->k_bytes, (uint64_t)(INT32_MAX / FM_KV_PAGE)) : p->pages_max;
}

uint64_t fmi_kv_page_bytes(const fmi_kv_pool *p)
{
    return (uint64_t)p->k_bytes + p->v_bytes;
}

fm_kv_view fmi_kv_view(const fmi_kv_pool *p)
{
    return p->view;
}

/* ==== idle pages ==== */

static void unlink_idle(fmi_kv_pool *p, int32_t page)
{
    page_state *s = &p->state[page];
    *(s->older >= 0 ? &p->state[s->older].newer : &p->oldest) = s->newer;
    *(s->newer >= 0 ? &p->state[s->newer].older : &p->newest) = s->older;
    p->idle--;
}

static void link_idle(fmi_kv_pool *p, int32_t page)
{
    page_state *s = &p->state[page];
    s->older = p->newest;
    s->newer = -1;
    *(p->newest >= 0 ? &p->state[p->newest].newer : &p->oldest) = page;
    p->newest = page;
    p->idle++;
}

/* Makes the oldest idle page a free one. */
static bool forget_one(fmi_kv_pool *p)
{
    int32_t page = p->oldest;
    if (page < 0)
        return false;
    unlink_idle(p, page);
    p->state[page].kept = false;
    p->kept--;
    p->free_page[p->free_count++] = page;
    if (p->kv->forget)
        p->kv->forget(p->kv->forget_ctx, p, page);
    return true;
}

void fmi_kv_drop_idle(fmi_kv *kv)
{
    for (fmi_kv_pool *p = kv->pools; p; p = p->next)
        while (forget_one(p))
            ;
}

/* ==== taking ==== */

static bool by_page(const fmi_kv *kv)
{
    return kv->be->reserve && kv->be->commit && !kv->arena;
}

/* Reserves addresses for all pages. On a device without memory on first touch, pages get theirs
 * when they are first used (commit_page), or all at once. */
static fm_status reserve_bytes(const fmi_kv *kv, void **out, uint64_t bytes)
{
    fm_backend *be = kv->be;
    return by_page(kv) ? be->reserve(be, out, (size_t)bytes) : be->alloc(be, out, (size_t)bytes);
}

static fm_status commit_page(const fmi_kv_pool *p, uint64_t page)
{
    fm_backend *be = p->kv->be;
    if (!by_page(p->kv) || !fmi_kv_here(p))
        return FM_OK;
    FM_TRY(be->commit(be, p->view.k, (size_t)page * p->k_bytes, p->k_bytes));
    if (p->v_bytes)
        FM_TRY(be->commit(be, p->view.v, (size_t)page * p->v_bytes, p->v_bytes));
    return FM_OK;
}

/* Uses the piece that all pools share. A page's values lie directly behind its keys. */
static fm_status take_piece(fmi_kv_pool *p)
{
    fmi_kv *kv = p->kv;
    fm_backend *be = kv->be;
    fm_status rc = kv->piece ? FM_OK : be->alloc(be, &kv->piece, (size_t)kv->arena[kv->here].bytes);
    if (rc != FM_OK)
        return fm_error_prefix(rc, "KV cache: its %llu bytes, which ranks take at once",
                               (unsigned long long)kv->bytes_max);
    p->view.k = kv->piece;
    p->view.v = p->v_bytes ? (void *)((uint8_t *)kv->piece + p->k_bytes) : NULL;
    return FM_OK;
}

static fm_status reserve_arrays(fmi_kv_pool *p)
{
    void *k = NULL, *v = NULL;
    fm_status rc = FM_OK;
    p->state = fm_calloc((size_t)fmi_kv_numbers(p), sizeof(*p->state));
    p->free_page = fm_calloc((size_t)p->pages_max, sizeof(*p->free_page));
    if (!p->state || !p->free_page)
        rc = FM_ENOMEM;
    bool here = fmi_kv_here(p);
    if (p->kv->arena) {
        rc = rc == FM_OK && here ? take_piece(p) : rc;
        if (rc != FM_OK)
            release_arrays(p);
        return rc;
    }
    if (rc == FM_OK && here)
        rc = reserve_bytes(p->kv, &k, p->pages_max * p->k_bytes);
    p->view.k = k;
    if (rc == FM_OK && here && p->v_bytes)
        rc = reserve_bytes(p->kv, &v, p->pages_max * p->v_bytes);
    p->view.v = v;
    if (rc != FM_OK)
        release_arrays(p);
    return rc;
}

/* Whether o can be dropped so that p gets its memory: it is of p's lane, and no page is held. */
static bool droppable(const fmi_kv_pool *o, const fmi_kv_pool *p)
{
    return o != p && o->lane == p->lane && o->in_use == 0;
}

static uint64_t arena_growable(const fmi_kv_pool *p)
{
    bool gives[FMI_EXTENTS] = {false};
    for (const fmi_kv_pool *o = p->kv->pools; o; o = o->next)
        if (o->index < FMI_EXTENTS)
            gives[o->index] = droppable(o, p);
    return FM_MIN(fmi_arena_left(arena_of(p), &p->room, gives, FMI_EXTENTS),
                  p->pages_max - p->used);
}

/* Pages beyond `used` that the budget allows, other pools' droppable memory included. */
static uint64_t growable(const fmi_kv_pool *p)
{
    if (p->kv->arena)
        return arena_growable(p);
    uint64_t spare = p->kv->bytes_max;
    for (const fmi_kv_pool *o = p->kv->pools; o; o = o->next)
        if (o->lane == p->lane && !droppable(o, p))
            spare -= FM_MIN(spare, o->used * fmi_kv_page_bytes(o));
    return FM_MIN(spare / fmi_kv_page_bytes(p), p->pages_max - p->used);
}

/* Whether one more page fits into the budget. */
static bool fits(const fmi_kv_pool *p)
{
    const fmi_kv *kv = p->kv;
    return kv->arena ? fmi_arena_left(arena_of(p), &p->room, NULL, 0) > 0
                     : kv->bytes[p->lane] + fmi_kv_page_bytes(p) <= kv->bytes_max;
}

/* The number of the next page, for which there is space. */
static int32_t next_number(fmi_kv_pool *p)
{
    uint64_t at = 0;
    if (!p->kv->arena)
        return (int32_t)p->used;
    fm_assert(fmi_arena_take(arena_of(p), &p->room, &at));
    return (int32_t)(at / p->k_bytes);
}

static fm_status use_new_page(fmi_kv_pool *p, int32_t *page)
{
    fmi_kv *kv = p->kv;
    for (fmi_kv_pool *o = kv->pools; o && !fits(p); o = o->next)
        if (droppable(o, p)) {
            while (forget_one(o))
                ;
            drop_pool(o);
        }
    FM_TRY(p->state ? FM_OK : reserve_arrays(p));
    FM_TRY(commit_page(p, p->used));
    *page = next_number(p);
    p->used++;
    kv->bytes[p->lane] += fmi_kv_page_bytes(p);
    return FM_OK;
}

fm_status fmi_kv_take(fmi_kv_pool *p, int32_t *page)
{
    fmi_kv *kv = p->kv;
    *page = -1;
    if (p->free_count == 0 && (p->used == p->pages_max || !fits(p)))
        (void)forget_one(p);
    if (p->free_count > 0) {
        *page = p->free_page[--p->free_count];
    } else if (growable(p) > 0) {
        fm_status rc = use_new_page(p, page);
        if (rc == FM_ELIMIT && forget_one(p)) { /* the device is full before the budget is */
            fm_error_clear();
            *page = p->free_page[--p->free_count];
        } else if (rc != FM_OK) {
            return rc;
        }
    } else {
        return fm_fail(FM_ELIMIT, "KV cache (" FMI_KV_SETTING "): all of its %llu bytes are in use",
                       (unsigned long long)kv->bytes_max);
    }
    p->state[*page] = (page_state){.holders = 1, .older = -1, .newer = -1};
    p->in_use++;
    return FM_OK;
}

void fmi_kv_hold(fmi_kv_pool *p, int32_t page)
{
    page_state *s = &p->state[page];
    fm_assert(s->holders > 0 || s->kept);
    if (s->holders++ > 0)
        return;
    unlink_idle(p, page);
    p->in_use++;
}

void fmi_kv_give(fmi_kv_pool *p, int32_t page)
{
    page_state *s = &p->state[page];
    fm_assert(s->holders > 0);
    if (--s->holders > 0)
        return;
    p->in_use--;
    if (s->kept)
        link_idle(p, page);
    else
        p->free_page[p->free_count++] = page;
}

bool fmi_kv_shared(const fmi_kv_pool *p, int32_t page)
{
    return p->state[page].holders > 1 || p->state[page].kept;
}

fm_status fmi_kv_writable(fmi_kv_pool *p, int32_t *page)
{
    fm_backend *be = p->kv->be;
    int32_t fresh = -1;
    if (!fmi_kv_shared(p, *page))
        return FM_OK;
    FM_TRY(fmi_kv_take(p, &fresh));
    if (fmi_kv_here(p))
        be->kv_copy(be, p->view, fresh, *page, p->kv_heads, p->head_dim);
    fmi_kv_give(p, *page);
    *page = fresh;
    return FM_OK;
}

void fmi_kv_keep(fmi_kv_pool *p, int32_t page)
{
    fm_assert(p->state[page].holders > 0 && !p->state[page].kept);
    p->state[page].kept = true;
    p->kept++;
}

bool fmi_kv_kept(const fmi_kv_pool *p, int32_t page)
{
    return p->state[page].kept;
}

uint64_t fmi_kv_room(const fmi_kv_pool *p)
{
    return p->free_count + p->idle + growable(p);
}
