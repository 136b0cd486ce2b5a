/* guard.c - the SIGBUS handler maps a page of zeros at the fault in a guarded mapping and returns.
 *
 * The handler reads the table, so its entries are atomic and never move. An entry is taken and
 * released under the mutex; `begin` is written last when taking and cleared first when
 * releasing. */
#include "store/base/os/guard.h"

#include "store/base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_GUARDED = 16384 };

static struct guarded {
    atomic_uintptr_t begin; /* 0: free */
    atomic_size_t len;
    atomic_bool failed, pinned;
    char *path;
} guarded[MAX_GUARDED];

static atomic_uint used; /* entries from here on were never taken */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct sigaction before;
static uintptr_t page_bytes;
static atomic_bool installed;

static struct guarded *find(uintptr_t at)
{
    const unsigned n = atomic_load(&used);

    for (unsigned i = 0; i < n; i++) {
        const uintptr_t begin = atomic_load(&guarded[i].begin);
        if (begin != 0 && at >= begin && at - begin < atomic_load(&guarded[i].len))
            return &guarded[i];
    }
    return NULL;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(SIGBUS, &plain, NULL); /* the instruction fails again and ends the process */
        if (info->si_code <= 0)          /* sent by a process: no instruction fails again */
            raise(SIGBUS);
    } else {
        before.sa_handler(number);
    }
}

static void on_bus(int number, siginfo_t *info, void *context)
{
    const int saved = errno;
    const uintptr_t at = (uintptr_t)info->si_addr;
    struct guarded *g = info->si_code > 0 ? find(at) : NULL;

    if (g && !atomic_load(&g->pinned)) {
        void *page = (void *)(at & ~(page_bytes - 1));
        if (mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
            page) {
            atomic_store(&g->failed, true);
            errno = saved;
            return;
        }
    }
    pass_on(number, info, context);
}

static void install(void)
{
    struct sigaction ours = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&ours.sa_mask);
    atomic_store(&installed, sigaction(SIGBUS, &ours, &before) == 0);
}

/* Errors will name the path, so without memory for its copy the mapping is not guarded. */
static fm_status guard(const fm_file_map *map, const char *path)
{
    char *copy = fm_strdup(path);
    unsigned i = 0;

    if (!copy)
        return FM_ENOMEM;
    pthread_mutex_lock(&mutex);
    while (i < MAX_GUARDED && atomic_load(&guarded[i].begin) != 0)
        i++;
    if (i < MAX_GUARDED) {
        struct guarded *g = &guarded[i];
        g->path = copy;
        copy = NULL;
        atomic_store(&g->len, map->len);
        atomic_store(&g->failed, false);
        atomic_store(&g->pinned, false);
        atomic_store(&g->begin, (uintptr_t)map->data);
        if (i >= atomic_load(&used))
            atomic_store(&used, i + 1);
    }
    pthread_mutex_unlock(&mutex);
    fm_free(copy);
    return FM_OK;
}

static fm_status guard_mapped(fm_file_map *out, const char *path, fm_status rc)
{
    if (rc < 0 || out->len == 0)
        return rc;
    pthread_once(&once, install);
    rc = atomic_load(&installed) ? guard(out, path) : FM_OK;
    if (rc < 0)
        fm_unmap_file(out);
    return rc;
}

fm_status fm_map_verified(fm_file_map *out, const char *path)
{
    return guard_mapped(out, path, fm_map_file(out, path));
}

fm_status fm_map_written(fm_file_map *out, const fm_writer *w, size_t len)
{
    return guard_mapped(out, fm_writer_temp(w), fm_writer_map(out, w, len));
}

void fm_unmap_verified(fm_file_map *map)
{
    struct guarded *g;
    char *path = NULL;

    if (!map)
        return;
    pthread_mutex_lock(&mutex);
    g = map->len > 0 ? find((uintptr_t)map->data) : NULL;
    if (g) {
        atomic_store(&g->begin, 0);
        path = g->path;
        g->path = NULL;
    }
    pthread_mutex_unlock(&mutex);
    fm_free(path);
    fm_unmap_file(map);
}

bool fm_map_pin(const void *at)
{
    struct guarded *g = find((uintptr_t)at);

    if (!g)
        return true;
    atomic_store(&g->pinned, true);
    return !atomic_load(&g->failed);
}

const char *fm_map_failed(const void *at)
{
    const struct guarded *g = find((uintptr_t)at);

    return g && atomic_load(&g->failed) ? g->path : NULL;
}
