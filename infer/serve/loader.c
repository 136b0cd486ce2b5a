/* loader.c - the thread that reads models while the engine's thread steps, one model after another:
 * two at once would share the same disk and CPUs, hold twice the memory half loaded, and could each
 * hold memory that the other lacks. While sequences run a load takes one thread, at a lower
 * priority than the steps have; else as many as the engine has. */
#include <string.h>
#include <sys/resource.h>

#include "infer/serve/internal.h"
#include "store/base/mem.h"

#define NICENESS 5 /* a third of a step's share of CPU time where every CPU is busy */

/* Reads through the catalog's provider; the end of the server ends a load between two tensors. */
static fm_status read_unless_over(void *ctx, const fm_entry *e, void *dst)
{
    fm_server *s = ctx;
    const fm_provider *p = &s->opts.catalog.provider;
    if (atomic_load(&s->no_loads))
        return fm_fail(FM_ECANCELLED, "the server is shutting down");
    return p->read(p->ctx, e, dst);
}

static fm_status view_through(void *ctx, const fm_entry *e, fm_span *out)
{
    const fm_provider *p = &((fm_server *)ctx)->opts.catalog.provider;
    return p->view(p->ctx, e, out);
}

void fmi_load(fm_server *s, fmi_resident *r, unsigned threads)
{
    fm_server_catalog *k = &s->opts.catalog;
    fm_provider p = {.ctx = s, .read = read_unless_over};
    if (k->provider.view)
        p.view = view_through;
    fm_tree *tree = NULL;
    double begun = fm_now_s();
    r->model = NULL;
    r->rc = k->tree(k->ctx, r->version, &tree);
    FM_THEN(r->rc, fm_model_prepare(&r->model, s->engine, tree, &p, r->name, threads));
    if (r->rc < 0)
        fm_error_save(&r->error);
    fm_tree_free(tree);
    r->seconds = fm_now_s() - begun;
}

static void *loader_main(void *arg)
{
    fm_server *s = arg;
    (void)setpriority(PRIO_PROCESS, 0, NICENESS); /* Linux: this thread and those it starts */
    (void)pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->to_load && !atomic_load(&s->no_loads))
            (void)pthread_cond_wait(&s->load, &s->lock);
        fmi_resident *r = s->to_load;
        if (atomic_load(&s->no_loads))
            break;
        s->to_load = r->next_load;
        if (!s->to_load)
            s->to_load_end = &s->to_load;
        (void)pthread_mutex_unlock(&s->lock);
        fmi_load(s, r, atomic_load(&s->working) ? 1 : fm_engine_threads(s->engine));
        (void)pthread_mutex_lock(&s->lock);
        r->next_load = NULL;
        *s->loaded_end = r;
        s->loaded_end = &r->next_load;
        (void)pthread_cond_signal(&s->wake);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

fm_status fmi_loader_start(fm_server *s)
{
    s->has_loader = pthread_create(&s->loader, NULL, loader_main, s) == 0;
    return s->has_loader ? FM_OK : fm_fail(FM_EIO, "server: cannot start the loading thread");
}

void fmi_loader_stop(fm_server *s)
{
    (void)pthread_mutex_lock(&s->lock);
    atomic_store(&s->no_loads, true);
    (void)pthread_cond_signal(&s->load);
    (void)pthread_mutex_unlock(&s->lock);
    if (s->has_loader)
        (void)pthread_join(s->loader, NULL);
    s->has_loader = false;
}

void fmi_loader_put(fm_server *s, fmi_resident *r)
{
    (void)pthread_mutex_lock(&s->lock);
    r->next_load = NULL;
    *s->to_load_end = r;
    s->to_load_end = &r->next_load;
    (void)pthread_cond_signal(&s->load);
    (void)pthread_mutex_unlock(&s->lock);
}

fmi_resident *fmi_loader_take(fm_server *s)
{
    (void)pthread_mutex_lock(&s->lock);
    fmi_resident *r = s->loaded;
    if (r)
        s->loaded = r->next_load;
    if (!s->loaded)
        s->loaded_end = &s->loaded;
    (void)pthread_mutex_unlock(&s->lock);
    return r;
}
