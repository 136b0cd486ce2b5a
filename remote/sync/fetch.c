/* fetch.c - brings versions: git's objects first, whose pointers name what else is missing. */
#include <string.h>

#include "remote/sync/sync.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"

#define HAVES_MAX 1024u /* commits that the other side is told of */
#define FILE_BYTES_MAX ((uint64_t)16 << 20)
#define ROUNDS_MAX 4u /* a sender that repacks in between is asked again so often */

/* ---- git's objects ---- */

typedef struct git_packs {
    fm_repo *r;
    fm_git_intake *in; /* NULL between two packs */
} git_packs;

static fm_status end_git(git_packs *p)
{
    fm_status rc = p->in ? fm_git_intake_end(p->in, NULL) : FM_OK;
    fm_git_intake_close(p->in);
    p->in = NULL;
    return rc;
}

static fm_status take_git(void *ctx, const void *data, size_t len)
{
    git_packs *p = ctx;
    FM_TRY(fm_go_on());
    if (!data)
        return end_git(p);
    if (!p->in)
        FM_TRY(fm_git_intake_open(&p->in, p->r, 0));
    return fm_git_intake_bytes(p->in, data, len);
}

static fm_status bring_git(fm_remote *m, fm_repo *r, const fm_fetch *f)
{
    git_packs packs = {r, NULL};
    fm_oid *have = NULL;
    fm_exchange_ask ask = {f->want, NULL, f->wants, 0};
    fm_status rc = fm_exchange_haves(r, &have, &ask.haves, HAVES_MAX);
    ask.have = have;
    FM_THEN(rc, m->far->ops->git_get(m->far, &ask, take_git, &packs));
    FM_THEN(rc, end_git(&packs));
    fm_git_intake_close(packs.in);
    fm_free(have);
    return rc;
}

/* ---- the store's ---- */

typedef struct fetch {
    fm_remote *m;
    fm_repo *r;
    fm_store *store;
    fm_intake *intake; /* NULL in a dry run */
    fmr_list list;
    size_t *order;
    size_t order_count;
    uint64_t done, total; /* bytes as stored */
    fm_progress_fn progress;
    void *ctx;
    fm_travel *out;
} fetch;

static bool is_here(const fetch *x, const fm_digest *id)
{
    return x->intake ? fm_intake_has(x->intake, id) : fm_store_has(x->store, id);
}

static fm_status want(void *ctx, const fm_digest *id, bool is_tensor, uint64_t bytes)
{
    fetch *x = ctx;
    (void)is_tensor;
    (void)bytes;
    return is_here(x, id) ? FM_OK : fmr_list_add(&x->list, id);
}

/* Recipes, suites and tokenizers belong to the lineage; what is larger waits with the tensors. */
static fm_status want_file(void *ctx, const fm_digest *id, bool is_tensor, uint64_t bytes)
{
    return is_tensor || bytes > FILE_BYTES_MAX ? FM_OK : want(ctx, id, is_tensor, bytes);
}

/* Lists what the wanted versions name and the store lacks, once git's objects are here. Where the
 * commits are, as an earlier fetch brought them, so is most often all that they reach; gc may have
 * taken a part. */
static fm_status list_wanted(fetch *x, const fm_fetch *f)
{
    const fm_exchange_ask ask = {f->want, NULL, f->wants, 0};
    const fm_pointer_fn fn = f->lineage_only ? want_file : want;
    bool here = true;
    for (size_t i = 0; i < f->wants && here; i++)
        here = fm_exchange_has(x->r, &f->want[i]);
    if (here) {
        fm_status rc = fm_exchange_pointers(x->r, &ask, fn, x);
        if (rc != FM_ENOTFOUND)
            return rc;
        fm_error_clear();
    }
    FM_TRY(bring_git(x->m, x->r, f));
    return fm_exchange_pointers(x->r, &ask, fn, x);
}

/* Asks what the records are, and adds what they are coded against. */
static fm_status describe(fetch *x)
{
    fmr_list *l = &x->list;
    while (l->known < l->count) {
        const size_t from = l->known, end = l->count;
        FM_TRY(fmr_list_grow_info(l));
        FM_TRY(x->m->far->ops->info(x->m->far, l->id + from, end - from, l->info + from,
                                    l->there + from));
        l->known = end;
        for (size_t i = from; i < end; i++)
            for (uint32_t k = 0; l->there[i] && k < l->info[i].parent_count; k++)
                if (!is_here(x, &l->info[i].parent[k]))
                    FM_TRY(fmr_list_add(l, &l->info[i].parent[k]));
    }
    return FM_OK;
}

static size_t count_absent(const fetch *x, fm_digest *first)
{
    size_t n = 0;
    for (size_t i = 0; i < x->list.count; i++)
        if (!x->list.there[i] && n++ == 0)
            *first = x->list.id[i];
    return n;
}

static fm_status tell(fetch *x)
{
    if (x->progress && x->progress(x->ctx, x->done, x->total))
        return fm_fail(FM_ECANCELLED, "stopped; what has arrived is kept");
    return fm_go_on();
}

/* ---- records arrive ---- */

typedef struct turn {
    fetch *x;
    const fmr_ask_record *ask;
    const size_t *of; /* the list's index of each */
    size_t refused;   /* that the sender has coded anew */
} turn;

static fm_status begin(void *ctx, size_t i, bool there)
{
    turn *t = ctx;
    if (!there) {
        t->refused++;
        return FM_OK;
    }
    return fm_intake_begin(t->x->intake, &t->x->list.info[t->of[i]], t->ask[i].offset);
}

static fm_status bytes(void *ctx, const void *data, size_t len)
{
    turn *t = ctx;
    FM_TRY(fm_intake_bytes(t->x->intake, data, len));
    t->x->done += len;
    return tell(t->x);
}

static fm_status end(void *ctx)
{
    turn *t = ctx;
    return fm_intake_end(t->x->intake);
}

/* Asks for all records of the order that are not here. */
static fm_status get_missing(fetch *x, size_t *refused)
{
    fmr_ask_record *ask = fm_calloc(x->order_count + 1, sizeof *ask), cut;
    size_t *of = fm_calloc(x->order_count + 1, sizeof *of), n = 0;
    turn t = {x, ask, of, 0};
    const fmr_sink sink = {&t, begin, bytes, end};
    if (!ask || !of) {
        fm_free(ask);
        fm_free(of);
        return FM_ENOMEM;
    }
    const bool is_cut = fm_intake_cut(x->intake, &cut.id, &cut.head, &cut.offset);
    x->done = x->total = 0;
    for (size_t k = 0; k < x->order_count; k++) {
        const fm_record_info *info = &x->list.info[x->order[k]];
        if (fm_intake_has(x->intake, &info->id))
            continue;
        of[n] = x->order[k];
        ask[n] = (fmr_ask_record){info->id, info->head, 0};
        if (is_cut && fm_digest_eq(&cut.head, &info->head) && fm_digest_eq(&cut.id, &info->id))
            ask[n].offset = cut.offset;
        x->total += info->stored_bytes;
        x->done += ask[n++].offset;
    }
    fm_status rc = n ? tell(x) : FM_OK;
    if (rc == FM_OK && n)
        rc = x->m->far->ops->get(x->m->far, ask, n, &sink);
    *refused = t.refused;
    fm_free(ask);
    fm_free(of);
    return rc;
}

/* What the sender has coded anew since it described it is described again. */
static fm_status get_all(fetch *x)
{
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        size_t refused;
        fm_free(x->order);
        x->order = NULL;
        FM_TRY(fmr_list_order(&x->list, &x->order, &x->order_count));
        FM_TRY(get_missing(x, &refused));
        if (refused == 0)
            return FM_OK;
        x->list.known = 0;
        FM_TRY(describe(x));
    }
    return fm_fail(FM_ECONFLICT, "%s: is being repacked all the time; try again", x->m->url.text);
}

static void count_travel(fetch *x)
{
    for (size_t i = 0; i < x->list.count; i++) {
        x->out->objects += x->list.there[i];
        x->out->bytes += x->list.there[i] ? x->list.info[i].stored_bytes : 0;
    }
}

static fm_status publish(fetch *x)
{
    fm_intake_stats stats;
    return fm_intake_publish(x->intake, &stats);
}

static fm_status open_fetch(fetch *x, bool dry_run)
{
    x->m->far->repo = x->r;
    FM_TRY(fmr_list_init(&x->list));
    FM_TRY(fm_store_lease(x->store, true, "a fetch"));
    return dry_run ? FM_OK : fm_intake_open(&x->intake, x->store);
}

static void close_fetch(fetch *x)
{
    fm_intake_close(x->intake);
    fmr_list_release(&x->list);
    fm_free(x->order);
    x->m->far->ops->traffic(x->m->far, &x->out->wire_in, &x->out->wire_out);
}

fm_status fm_remote_bring(fm_remote *m, fm_repo *r, const fm_digest *id, size_t count,
                          fm_progress_fn progress, void *ctx, size_t *absent, fm_travel *out)
{
    fetch x = {.m = m, .r = r, .store = fm_repo_store(r), .progress = progress, .ctx = ctx};
    fm_digest first;
    x.out = out;
    memset(out, 0, sizeof *out);
    *absent = 0;
    fm_status rc = open_fetch(&x, false);
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        rc = want(&x, &id[i], true, 0);
    FM_THEN(rc, describe(&x));
    if (rc == FM_OK) {
        *absent = count_absent(&x, &first);
        count_travel(&x);
        rc = get_all(&x);
    }
    FM_THEN(rc, publish(&x));
    close_fetch(&x);
    return rc;
}

static fm_status need_all(const fetch *x)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest first;
    const size_t n = count_absent(x, &first);
    if (n == 0)
        return FM_OK;
    fm_digest_hex(&first, hex);
    if (x->m->packs)
        return fm_fail(FM_ENOTFOUND,
                       "%s: lacks %zu object%s that the versions of %s name, the first %.12s; push "
                       "these again from where they are whole",
                       x->m->packs, n, n == 1 ? "" : "s", x->m->url.text, hex);
    return fm_fail(FM_ENOTFOUND,
                   "%s: lacks %zu object%s that its versions name, the first %.12s; "
                   "'fmstore fsck' there says which versions are damaged",
                   x->m->url.text, n, n == 1 ? "" : "s", hex);
}

fm_status fm_remote_fetch(fm_remote *m, fm_repo *r, const fm_fetch *f, fm_travel *out)
{
    fetch x = {.m = m, .r = r, .store = fm_repo_store(r), .progress = f->progress, .ctx = f->ctx};
    x.out = out;
    memset(out, 0, sizeof *out);
    fm_status rc = open_fetch(&x, f->dry_run);
    FM_THEN(rc, list_wanted(&x, f));
    FM_THEN(rc, describe(&x));
    FM_THEN(rc, need_all(&x));
    if (rc == FM_OK)
        count_travel(&x);
    if (rc == FM_OK && !f->dry_run) {
        rc = get_all(&x);
        FM_THEN(rc, publish(&x));
    }
    close_fetch(&x);
    return rc;
}
