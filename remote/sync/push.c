/* push.c - sends versions: tensors and files first, git's objects, then the refs move. */
#include <string.h>

#include "remote/sync/sync.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"

typedef struct push {
    fm_remote *m;
    fm_repo *r;
    fm_store *store;
    fm_push *p;
    fmr_list list;
    fm_oid *want, *have;
    fm_exchange_ask ask; /* for git's objects: without the settled ones, which come last in want */
    size_t wants;        /* with those */
    uint64_t done, total;
    fm_travel *out;
} push;

/* The wanted tips, and those of the remote's that are here, which it has. */
static fm_status make_ask(push *x)
{
    x->want = fm_calloc(x->p->count + 1, sizeof *x->want);
    x->have = fm_calloc(x->p->their_count + 1, sizeof *x->have);
    if (!x->want || !x->have)
        return FM_ENOMEM;
    static const fm_oid none;
    for (size_t i = 0; i < x->p->count; i++) {
        if (fm_oid_eq(&x->p->wish[i].new_oid, &none))
            continue;
        x->want[x->wants++] = x->p->wish[i].new_oid;
        x->ask.wants += i < x->p->count - x->p->settled;
    }
    for (size_t i = 0; i < x->p->their_count; i++)
        if (fm_exchange_has(x->r, &x->p->theirs[i]))
            x->have[x->ask.haves++] = x->p->theirs[i];
    x->ask.want = x->want;
    x->ask.have = x->have;
    return FM_OK;
}

static fm_status name_it(void *ctx, const fm_digest *id, bool is_tensor, uint64_t bytes)
{
    push *x = ctx;
    (void)is_tensor;
    (void)bytes;
    return fmr_list_add(&x->list, id);
}

/* Asks which of the objects the other side lacks; what those are coded against is asked next. */
static fm_status find_missing(push *x)
{
    fmr_list *l = &x->list;
    while (l->known < l->count) {
        const size_t from = l->known, end = l->count;
        FM_TRY(fmr_list_grow_info(l));
        FM_TRY(x->m->far->ops->has(x->m->far, l->id + from, end - from, l->there + from));
        l->known = end;
        for (size_t i = from; i < end; i++) {
            l->there[i] = !l->there[i]; /* from here on: it travels */
            if (!l->there[i])
                continue;
            FM_TRY(fm_record_info_of(x->store, &l->info[i], &l->id[i]));
            x->out->objects++;
            x->out->bytes += l->info[i].stored_bytes;
            for (uint32_t k = 0; k < l->info[i].parent_count; k++)
                FM_TRY(fmr_list_add(l, &l->info[i].parent[k]));
        }
    }
    return FM_OK;
}

static fm_status sent(void *ctx, const void *data, size_t len)
{
    push *x = ctx;
    (void)data;
    x->done += len;
    if (x->p->progress && x->p->progress(x->p->ctx, x->done, x->total))
        return fm_fail(FM_ECANCELLED, "stopped; what the remote has received is kept there");
    return fm_go_on();
}

static fm_status put_records(push *x)
{
    fm_record_info *info = NULL;
    uint64_t *offset = NULL;
    fmr_ask_record cut;
    size_t *order = NULL, n = 0;
    bool is_cut = false;
    fm_status rc = fmr_list_order(&x->list, &order, &n);
    info = fm_calloc(n + 1, sizeof *info);
    offset = fm_calloc(n + 1, sizeof *offset);
    if (rc == FM_OK && (!info || !offset))
        rc = FM_ENOMEM;
    if (rc == FM_OK && n)
        rc = x->m->far->ops->cut(x->m->far, &cut, &is_cut);
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        info[i] = x->list.info[order[i]];
        if (is_cut && fm_digest_eq(&cut.head, &info[i].head) && fm_digest_eq(&cut.id, &info[i].id))
            offset[i] = cut.offset;
        x->total += info[i].stored_bytes;
        x->done += offset[i];
    }
    const fmr_load load = {x->store, info, offset, n, sent, x};
    if (rc == FM_OK && n)
        rc = x->m->far->ops->put(x->m->far, &load);
    fm_free(order);
    fm_free(info);
    fm_free(offset);
    return rc;
}

static fm_status send_all(push *x)
{
    FM_TRY(put_records(x));
    if (x->ask.wants)
        FM_TRY(x->m->far->ops->git_put(x->m->far, x->r, &x->ask));
    /* a move is what makes records that travelled known; settled ones are tried along then */
    const size_t moves = x->p->count - (x->out->objects ? 0 : x->p->settled);
    return moves ? x->m->far->ops->move(x->m->far, x->p->wish, moves) : FM_OK;
}

fm_status fm_remote_push(fm_remote *m, fm_repo *r, fm_push *p, fm_travel *out)
{
    push x = {.m = m, .r = r, .store = fm_repo_store(r), .p = p};
    x.out = out;
    m->far->repo = r;
    memset(out, 0, sizeof *out);
    fm_status rc = fmr_list_init(&x.list);
    FM_THEN(rc, make_ask(&x));
    const fm_exchange_ask all = {x.want, NULL, x.wants, 0};
    const fm_exchange_ask *ask = m->far->unkept ? &all : &x.ask;
    if (rc == FM_OK && ask->wants)
        rc = fm_exchange_pointers(r, ask, name_it, &x);
    FM_THEN(rc, find_missing(&x));
    if (rc == FM_OK && !p->dry_run)
        rc = send_all(&x);
    fmr_list_release(&x.list);
    fm_free(x.want);
    fm_free(x.have);
    m->far->ops->traffic(m->far, &out->wire_in, &out->wire_out);
    return rc;
}
