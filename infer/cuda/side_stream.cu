/* side_stream.cu - a second stream of operations, for exchanges of gradients that the backward pass
 * does not wait for.
 *
 * The streams wait for each other by events: aside(true) makes the second wait for what the first
 * one has by then, join the first for the second. The ring and the scratch memory belong to the
 * first stream, so only operations without lists and scratch may be queued in the second. */
#include "infer/cuda/cuda.h"

struct fmc_side_stream {
    cudaStream_t stream;
    cudaEvent_t turn, back; /* events in the first stream, in the second */
    bool used;              /* since the last join */
};

static fmc_side_stream *open_aside(fmc_device *d)
{
    fmc_side_stream *a = d->second ? d->second : (fmc_side_stream *)fmc_take(sizeof *a);
    cudaError_t e = cudaSuccess;
    if (!a) {
        fmc_stick(d, FM_ENOMEM, "out of memory");
        return NULL;
    }
    d->second = a;
    if (!a->stream)
        e = cudaStreamCreateWithFlags(&a->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess && !a->turn)
        e = cudaEventCreateWithFlags(&a->turn, cudaEventDisableTiming);
    if (e == cudaSuccess && !a->back)
        e = cudaEventCreateWithFlags(&a->back, cudaEventDisableTiming);
    if (e == cudaSuccess)
        return a;
    fmc_stick(d, FM_EIO, "a second line of operations cannot be opened");
    return NULL;
}

/* Makes `to` wait for what is queued in `from` now. */
static void behind(fmc_device *d, cudaStream_t to, cudaStream_t from, cudaEvent_t event)
{
    cudaError_t e = cudaEventRecord(event, from);
    if (e == cudaSuccess)
        e = cudaStreamWaitEvent(to, event, 0);
    if (e != cudaSuccess)
        fmc_stick(d, FM_EIO, "the turn of a line of operations");
}

void fmc_op_aside(fm_backend *be, bool on)
{
    fmc_device *d = fmc_of(be);
    fmc_enter(d);
    if (d->arena) { /* recorded returns the failure */
        fmc_stick(d, FM_EUNSUPPORTED, "a second line of operations stands in it");
        return;
    }
    fmc_side_stream *a = on && d->failed == FM_OK ? open_aside(d) : NULL;
    d->stream = d->line;
    if (!a)
        return;
    behind(d, a->stream, d->line, a->turn);
    a->used = true;
    d->stream = a->stream;
}

void fmc_op_join(fm_backend *be)
{
    fmc_device *d = fmc_of(be);
    fmc_enter(d);
    if (d->second && d->second->used)
        behind(d, d->line, d->second->stream, d->second->back);
    if (d->second)
        d->second->used = false;
}

void fmc_side_stream_close(fmc_device *d)
{
    if (!d->second)
        return;
    if (d->second->stream) {
        (void)cudaStreamSynchronize(d->second->stream);
        (void)cudaStreamDestroy(d->second->stream);
    }
    if (d->second->turn)
        (void)cudaEventDestroy(d->second->turn);
    if (d->second->back)
        (void)cudaEventDestroy(d->second->back);
    fmc_release(d->second);
    d->second = NULL;
}
