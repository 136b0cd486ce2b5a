/* prefetch.c - reads the tensors of a model on several threads, in the order of its parameters,
 * before binding asks for them one by one. The embedding comes first in that order and is the
 * largest, so taking one after another from a common counter splits the work evenly. */
#include <stdatomic.h>

#include "infer/model/shard.h"
#include "store/base/mem.h"

typedef struct ahead {
    fmi_binder *b;
    fmi_cached **got; /* [count], NULL: not read */
    size_t count;
    atomic_size_t next;
    atomic_bool failed;
} ahead;

static fm_status take(ahead *a, size_t i)
{
    fm_param p;
    const fm_entry *e = NULL;
    if (!fm_arch_param(&a->b->m->arch, (uint32_t)i, &p))
        return FM_ENOTFOUND;
    fm_status rc = fmi_find_entry(a->b, &e, p.name);
    if (rc == FM_OK && !fm_shape_eq(&e->shape, &p.shape))
        rc = FM_EBASE;
    const fm_model *m = a->b->m;
    const fmi_slice slice = fmi_slice_of_param(m, &p);
    if (rc == FM_OK && fmi_param_is_here(m, &p))
        rc = fmi_take_slice(m->engine->weights, &a->got[i], e, fmi_form_of(&m->arch, &p), a->b->p,
                            &slice);
    return rc;
}

static fm_status work(void *ctx, size_t begin, size_t end, unsigned worker)
{
    ahead *a = ctx;
    (void)begin;
    (void)end;
    (void)worker;
    while (!atomic_load(&a->failed)) {
        size_t i = atomic_fetch_add(&a->next, 1);
        if (i >= a->count)
            break;
        if (take(a, i) != FM_OK)
            atomic_store(&a->failed, true);
    }
    return FM_OK;
}

void fmi_read_ahead(fmi_binder *b)
{
    ahead a = {.b = b};
    fm_param p;
    while (fm_arch_param(&b->m->arch, (uint32_t)a.count, &p))
        a.count++;
    a.got = fm_calloc(a.count, sizeof(fmi_cached *));
    if (!a.got)
        return;
    fm_ignore(fm_pool_run(b->pool, fm_pool_threads(b->pool), 1, work, &a), "binding tries again");
    for (size_t i = 0; i < a.count; i++)
        if (a.got[i])
            fm_ignore(fmi_held(b->m, a.got[i]), "binding takes it again");
    fm_free(a.got);
}
