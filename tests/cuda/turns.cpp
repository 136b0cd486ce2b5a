/* turns.cpp - kernels that begin before the one before them has ended, on the emulator: that a
 * block of theirs does, what a kernel that does not wait for its turn reads, and that one which
 * reads what never changes is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "infer/cuda/ptx.h"

#define N 96u
#define BLOCK 32u

extern "C" unsigned long simt_early(void);

__global__ void k_add_one(float *y)
{
    fmc_take_turn();
    y[fmc_index()] = y[fmc_index()] + 1.0f;
}

/* w never changes: it is brought to shared memory before the turn. */
__global__ void k_scaled(float *y, const float *x, const float *w)
{
    FMC_SHARED(float, own, [BLOCK]);
    fmc_let_next();
    fmc_copy16(own + threadIdx.x / 4 * 4, w + fmc_index() / 4 * 4, true);
    fmc_copy_commit();
    fmc_copy_wait<0>();
    __syncthreads();
    fmc_wait_for_turn();
    y[fmc_index()] = x[fmc_index()] * own[threadIdx.x];
}

/* Wrong: x is read before the turn. */
__global__ void k_hasty(float *y, const float *x)
{
    fmc_let_next();
    float v = x[fmc_index()];
    fmc_wait_for_turn();
    y[fmc_index()] = v;
}

/* Wrong: a copy that has begun reads its source at any time before it is waited for. */
__global__ void k_hasty_copy(float *y, const float *x)
{
    FMC_SHARED(float, own, [BLOCK]);
    fmc_let_next();
    fmc_copy16(own + threadIdx.x / 4 * 4, x + fmc_index() / 4 * 4, true);
    fmc_copy_commit();
    fmc_copy_wait<0>();
    fmc_wait_for_turn();
    __syncthreads();
    y[fmc_index()] = own[threadIdx.x];
}

/* Does not let the next begin. */
__global__ void k_last(float *y, const float *x)
{
    fmc_wait_for_turn();
    y[fmc_index()] = x[fmc_index()];
}

typedef struct room {
    cudaStream_t s;
    float *x, *y, *w;
} room;

static room open(float w)
{
    room r;
    float host[N];
    assert_int_equal(cudaStreamCreateWithFlags(&r.s, cudaStreamNonBlocking), cudaSuccess);
    for (float **p : {&r.x, &r.y, &r.w})
        assert_int_equal(cudaMalloc((void **)p, N * sizeof(float)), cudaSuccess);
    for (unsigned i = 0; i < N; i++)
        host[i] = w * (float)(i + 1);
    (void)cudaMemcpyAsync(r.w, host, sizeof host, cudaMemcpyHostToDevice, r.s);
    (void)cudaMemsetAsync(r.x, 0, sizeof host, r.s);
    (void)cudaMemsetAsync(r.y, 0, sizeof host, r.s);
    (void)cudaStreamSynchronize(r.s);
    return r;
}

/* Elements of p that are other than want. */
static unsigned differ(const room *r, const float *p, float (*want)(unsigned i))
{
    float host[N];
    unsigned n = 0;
    (void)cudaMemcpyAsync(host, p, sizeof host, cudaMemcpyDeviceToHost, r->s);
    (void)cudaStreamSynchronize(r->s);
    for (unsigned i = 0; i < N; i++)
        n += host[i] != want(i);
    return n;
}

static void close(room *r)
{
    for (float *p : {r->x, r->y, r->w})
        (void)cudaFree(p);
    (void)cudaStreamDestroy(r->s);
}

#define SOON(r, kernel, ...) FMC_LAUNCH_PDL(kernel, N / BLOCK, BLOCK, 0, (r).s, __VA_ARGS__)
#define PLAIN(r, kernel, ...) FMC_LAUNCH(kernel, N / BLOCK, BLOCK, 0, (r).s, __VA_ARGS__)

static void those_that_wait_are_right(void **)
{
    room r = open(2);
    unsigned long before = simt_early();
    for (int i = 0; i < 5; i++) {
        SOON(r, k_add_one, r.x);
        SOON(r, k_add_one, r.x);
        SOON(r, k_scaled, r.y, r.x, r.w);
        SOON(r, k_scaled, r.x, r.y, r.w); /* the same kernel twice: its shared memory is its own */
        SOON(r, k_scaled, r.x, r.y, r.w);
    }
    SOON(r, k_scaled, r.y, r.w, r.w);
    assert_int_equal(differ(&r, r.y, [](unsigned i) { return 4.0f * (float)((i + 1) * (i + 1)); }),
                     0);
    assert_in_range(simt_early() - before, 20, 25); /* all but the first */
    close(&r);
}

/* A block of it has read what stood there before. */
static void one_that_reads_before_its_turn_is_found(void **)
{
    room r = open(1);
    PLAIN(r, k_add_one, r.x);
    SOON(r, k_hasty, r.y, r.x);
    assert_int_equal(differ(&r, r.y, [](unsigned) { return 1.0f; }), BLOCK);
    PLAIN(r, k_add_one, r.x);
    SOON(r, k_hasty_copy, r.y, r.x);
    assert_int_equal(differ(&r, r.y, [](unsigned) { return 2.0f; }), BLOCK);
    PLAIN(r, k_add_one, r.x);
    PLAIN(r, k_hasty, r.y, r.x); /* a launch that waits for the kernels before it */
    assert_int_equal(differ(&r, r.y, [](unsigned) { return 3.0f; }), 0);
    close(&r);
}

/* Two kernels on, one that waits stands in between. */
static void it_is_found_behind_one_that_waits(void **)
{
    room r = open(1);
    PLAIN(r, k_add_one, r.x);
    SOON(r, k_add_one, r.w);
    SOON(r, k_hasty, r.y, r.x);
    assert_int_equal(differ(&r, r.y, [](unsigned) { return 1.0f; }), BLOCK);
    close(&r);
}

/* A kernel that does not let the next begin lets it by ending: what it wrote is there after the
 * wait alone, as the CUDA guide has it. Behind a launch in its turn all is there. */
static void who_does_not_let_the_next_begin_is_waited_for_too(void **)
{
    room r = open(1);
    PLAIN(r, k_last, r.x, r.w);
    SOON(r, k_hasty, r.y, r.x);
    assert_int_equal(differ(&r, r.y, [](unsigned i) { return (float)(i + 1); }), BLOCK);
    PLAIN(r, k_add_one, r.x);
    PLAIN(r, k_last, r.w, r.x);
    SOON(r, k_hasty, r.y, r.x);
    assert_int_equal(differ(&r, r.y, [](unsigned i) { return (float)(i + 2); }), 0);
    close(&r);
}

/* In a graph likewise, each time that it runs. */
static void graphs_keep_it(void **)
{
    room r = open(1);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_int_equal(cudaStreamBeginCapture(r.s, cudaStreamCaptureModeRelaxed), cudaSuccess);
    SOON(r, k_add_one, r.x);
    SOON(r, k_hasty, r.y, r.x);
    assert_int_equal(cudaStreamEndCapture(r.s, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(cudaGraphLaunch(exec, r.s), cudaSuccess);
        assert_true(differ(
                        &r, r.y,
                        i == 1   ? [](unsigned) { return 1.0f; }
                        : i == 2 ? [](unsigned) { return 2.0f; }
                                 : [](unsigned) { return 3.0f; }) >= BLOCK);
    }
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_that_wait_are_right),
        cmocka_unit_test(one_that_reads_before_its_turn_is_found),
        cmocka_unit_test(it_is_found_behind_one_that_waits),
        cmocka_unit_test(who_does_not_let_the_next_begin_is_waited_for_too),
        cmocka_unit_test(graphs_keep_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
