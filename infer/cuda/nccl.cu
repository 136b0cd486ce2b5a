/* nccl.cu - NCCL's calls for comm/wire_nccl.c, which has the part without CUDA.
 *
 * The library is opened at run time (libnccl.so.2, or what FMSTORE_NCCL names): the module runs on
 * machines without it. Types are those of comm/wire.h; where nccl.h is installed, the compiler
 * compares them. An exchange is limited by the links: it moves its bytes once over each, and
 * nothing is computed. */
#include "infer/cuda/cuda.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "infer/comm/wire.h"

#if defined(__CUDACC__) && defined(__has_include)
#if __has_include(<nccl.h>)
#include <nccl.h>
static_assert(sizeof(ncclUniqueId) == FMC_NCCL_ID_BYTES, "NCCL's id has another size");
static_assert((int)ncclInt8 == FMC_NCCL_INT8, "NCCL numbers its types otherwise");
static_assert((int)ncclSuccess == FMC_NCCL_SUCCESS, "NCCL numbers its results otherwise");
static_assert((int)ncclInProgress == FMC_NCCL_IN_PROGRESS, "NCCL numbers its results otherwise");
#endif
#endif

/* ---- the library ---- */

static fmc_nccl table;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool opened;

static fm_status open_library(void)
{
    const char *name = getenv("FMSTORE_NCCL");
    void *so = dlopen(name && *name ? name : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return fmc_fail(FM_EUNSUPPORTED, "NCCL is not installed: %s", dlerror());
    const struct {
        const char *name;
        void *to;
    } symbol[] = {{"ncclGetUniqueId", &table.get_unique_id},
                  {"ncclCommInitRank", &table.comm_init},
                  {"ncclSend", &table.send},
                  {"ncclRecv", &table.recv},
                  {"ncclGroupStart", &table.group_start},
                  {"ncclGroupEnd", &table.group_end},
                  {"ncclCommGetAsyncError", &table.async_error},
                  {"ncclCommAbort", &table.abort},
                  {"ncclCommDestroy", &table.destroy},
                  {"ncclGetErrorString", &table.error_string}};
    for (const auto &s : symbol) {
        void *found = dlsym(so, s.name);
        if (!found)
            return fmc_fail(FM_EUNSUPPORTED, "NCCL: the library lacks %s", s.name);
        memcpy(s.to, &found, sizeof found);
    }
    return FM_OK;
}

/* ---- marks: events of the stream's GPU ---- */

static int enter(uint32_t card)
{
    fmc_here = cudaSetDevice((int)card) == cudaSuccess ? (int)card : -1;
    return fmc_here == (int)card ? FMC_NCCL_SUCCESS : -1;
}

static int mark_new(void **mark)
{
    cudaEvent_t e = NULL;
    cudaError_t made = cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    *mark = e;
    return made == cudaSuccess ? 0 : -1;
}

static int mark(void *mark, void *stream)
{
    return cudaEventRecord((cudaEvent_t)mark, (cudaStream_t)stream) == cudaSuccess ? 0 : -1;
}

static int marked(void *mark)
{
    cudaError_t state = cudaEventQuery((cudaEvent_t)mark);
    if (state == cudaErrorNotReady)
        (void)cudaGetLastError(); /* "not ready" is an answer, not a failure */
    return state == cudaSuccess ? 1 : state == cudaErrorNotReady ? 0 : -1;
}

static void mark_free(void *mark)
{
    if (mark)
        (void)cudaEventDestroy((cudaEvent_t)mark);
}

static bool records(fm_backend *be)
{
    return fmc_of(be)->arena != NULL;
}

/* ---- GPUs ---- */

fm_status fmc_nccl_open(fm_backend *be, struct fmc_nccl_card *out)
{
    fmc_device *d = fmc_of(be);
    fm_status rc = FM_OK;
    pthread_mutex_lock(&lock);
    if (!opened)
        rc = open_library();
    opened = opened || rc == FM_OK;
    table.enter = enter;
    table.mark_new = mark_new;
    table.mark = mark;
    table.marked = marked;
    table.mark_free = mark_free;
    table.records = records;
    table.let_go = fmc_graphs_let_go;
    pthread_mutex_unlock(&lock);
    if (rc != FM_OK)
        return rc;
    fmc_enter_anew(d);
    rc = fmc_here == (int)d->ordinal ? FM_OK : fmc_fail(FM_EIO, "NCCL's GPU cannot be used");
    if (rc != FM_OK)
        return rc;
    out->table = &table;
    out->stream = (void *const *)&d->stream;
    out->card = d->ordinal;
    out->be = be;
    return FM_OK;
}
