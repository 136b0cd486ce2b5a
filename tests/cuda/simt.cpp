/* simt.cpp - see simt.h. Blocks are run by one host thread at a time. */
#include "simt_ptx90.h"

#include <sys/mman.h>

#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define SIMT_MAX_THREADS 1024u
#define SIMT_STACK (128u * 1024u)
#define SIMT_SHARED_MAX (227u * 1024u)
#define SIMT_CLUSTER_MAX 2u

/* ---- fibers ---- */

#if defined(__x86_64__)
extern "C" void simt_switch(void **save, void *load);
/* Saves what a call must keep, changes stacks, restores it. */
asm(".text\n.globl simt_switch\n.hidden simt_switch\n.type simt_switch, @function\nsimt_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size simt_switch, . - simt_switch\n");
typedef void *context;
static void context_make(context *c, char *stack, size_t bytes, void (*entry)(void))
{
    void **top = (void **)(stack + bytes) - 1; /* entry sees rsp = 8 mod 16, as after a call */
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    *c = top;
}
static void context_switch(context *save, context *load)
{
    simt_switch(save, *load);
}
#else
#include <ucontext.h>
typedef ucontext_t context;
static void context_make(context *c, char *stack, size_t bytes, void (*entry)(void))
{
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = bytes;
    c->uc_link = NULL;
    makecontext(c, entry, 0);
}
static void context_switch(context *save, context *load)
{
    swapcontext(save, load);
}
#endif

enum fiber_state { READY, AT_BARRIER, IN_WARP, WAITING, DONE };

typedef struct fiber {
    context ctx;
    char *stack;
    void *fake_stack; /* AddressSanitizer's */
    fiber_state state;
    bool (*ready)(void *arg); /* WAITING: until this is true of arg */
    void *arg;
    simt_place place;
} fiber;

#define SIMT_SLOTS 64u /* exchanges of one warp that may be unread at a time */

/* Lanes that meet: disjoint masks may meet at the same time. */
typedef struct meeting {
    unsigned mask, arrived;
    unsigned char *slot;
} meeting;

typedef struct warp {
    unsigned live, slots_used;
    meeting meet[32]; /* mask 0: free */
    unsigned char slot[SIMT_SLOTS][32 * SIMT_LANE_BYTES];
} warp;

const simt_place *simt_here;
unsigned long simt_blocks_run;
size_t simt_static_bytes;

static fiber fibers[SIMT_MAX_THREADS];
static warp warps[SIMT_MAX_THREADS / 32];
static context scheduler;
#if defined(__SANITIZE_ADDRESS__)
static void *scheduler_fake;
static const void *scheduler_stack;
static size_t scheduler_bytes;
#endif
static fiber *now;
static unsigned threads; /* of a block */
static unsigned width;   /* blocks of a cluster */
static struct {
    unsigned live, waiting;
} blocks[SIMT_CLUSTER_MAX];
static unsigned cluster_waiting, cluster_phase;
static const std::function<void()> *body;
static const char *kernel_name;
static char shared[SIMT_CLUSTER_MAX][SIMT_SHARED_MAX] __attribute__((aligned(1024)));
static size_t shared_used;

void simt_die(const char *fmt, va_list ap)
{
    fprintf(stderr, "simt: kernel %s: ", kernel_name ? kernel_name : "none");
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

__attribute__((format(printf, 1, 2))) static void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    simt_die(fmt, ap);
}

static void give_way(void)
{
    fiber *f = now;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(f->state == DONE ? NULL : &f->fake_stack, scheduler_stack,
                                   scheduler_bytes);
#endif
    context_switch(&f->ctx, &scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->fake_stack, &scheduler_stack, &scheduler_bytes);
#endif
}

static void release_block(unsigned rank)
{
    blocks[rank].waiting = 0;
    for (unsigned i = rank * threads; i < (rank + 1) * threads; i++)
        if (fibers[i].state == AT_BARRIER)
            fibers[i].state = READY;
}

static meeting *meeting_of(warp *w, unsigned want)
{
    meeting *unused = NULL;
    for (unsigned i = 0; i < 32; i++) {
        meeting *m = &w->meet[i];
        if (m->mask == want)
            return m;
        if (m->mask & want)
            die("lanes of one warp meet with the masks %08x and %08x", m->mask, want);
        if (m->mask == 0)
            unused = m;
    }
    unused->mask = want;
    unused->arrived = 0;
    unused->slot = w->slot[w->slots_used++ % SIMT_SLOTS];
    return unused;
}

static void release_warp(meeting *m, unsigned first)
{
    for (unsigned i = 0; i < 32 && first + i < width * threads; i++)
        if ((m->mask >> i & 1u) && fibers[first + i].state == IN_WARP)
            fibers[first + i].state = READY;
    m->mask = 0;
}

void simt_barrier(void)
{
    unsigned rank = now->place.rank, live = blocks[rank].live;
    if (live != threads)
        die("__syncthreads after %u of %u threads have left", threads - live, threads);
    if (++blocks[rank].waiting == live) {
        release_block(rank);
        return;
    }
    now->state = AT_BARRIER;
    give_way();
}

static bool cluster_released(void *arg)
{
    return *(unsigned *)arg != cluster_phase;
}

void simt_cluster_barrier(void)
{
    unsigned phase = cluster_phase;
    if (++cluster_waiting == width * threads) {
        cluster_waiting = 0;
        cluster_phase++;
        return;
    }
    simt_wait_until(cluster_released, &phase);
}

unsigned simt_cluster_blocks(void)
{
    return width;
}

unsigned simt_lane(void)
{
    return now->place.linear % 32u;
}

const unsigned char *simt_exchange(unsigned mask, const void *bring, size_t bytes)
{
    unsigned lane = simt_lane(), first = now->place.fiber - lane;
    unsigned left = threads - (now->place.linear - lane);
    unsigned in_block = left >= 32 ? 0xffffffffu : (1u << left) - 1u;
    warp *w = &warps[first / 32];
    unsigned want = mask & in_block;

    if (!(want >> lane & 1u))
        die("lane %u calls a warp operation whose mask %08x leaves it out", lane, mask);
    if ((want & w->live) != want)
        die("a warp operation waits for lanes %08x, which have left", want & ~w->live);
    if (bytes > SIMT_LANE_BYTES)
        die("%zu bytes a lane", bytes);
    meeting *m = meeting_of(w, want);
    const unsigned char *all = m->slot;
    if (bytes)
        memcpy(m->slot + (size_t)lane * SIMT_LANE_BYTES, bring, bytes);
    m->arrived |= 1u << lane;
    if (m->arrived == want) {
        release_warp(m, first);
        return all;
    }
    now->state = IN_WARP;
    give_way();
    return all;
}

unsigned simt_ballot(unsigned mask, bool yes)
{
    unsigned char mine = yes;
    unsigned first = now->place.linear & ~31u, r = 0;
    const unsigned char *all = simt_exchange(mask, &mine, 1);
    for (unsigned i = 0; i < 32 && first + i < threads; i++)
        if (mask >> i & 1u)
            r |= (unsigned)all[(size_t)i * SIMT_LANE_BYTES] << i;
    return r;
}

static char *dynamic_of(unsigned rank)
{
    return shared[rank] + SIMT_SHARED_MAX - (shared_used + 1023) / 1024 * 1024;
}

void *simt_dynamic_shared(void)
{
    return dynamic_of(now->place.rank);
}

size_t simt_shared_offset(const void *p)
{
    const char *mine = shared[now->place.rank];
    size_t at = (size_t)((const char *)p - mine);
    if ((const char *)p < mine || at >= SIMT_SHARED_MAX)
        die("%p is not dynamic shared memory of this block", p);
    return at;
}

const unsigned char *simt_shared_at(size_t offset, size_t bytes)
{
    const char *p = shared[now->place.rank] + offset;
    if (p < (const char *)simt_dynamic_shared() || offset + bytes > SIMT_SHARED_MAX)
        die("%zu bytes at %zu are not the block's dynamic shared memory", bytes, offset);
    return (const unsigned char *)p;
}

void *simt_of_rank(void *p, unsigned rank)
{
    size_t at = simt_shared_offset(p);
    if (rank >= width)
        die("block %u of a cluster of %u", rank, width);
    if (blocks[rank].live == 0)
        die("block %u of the cluster has left", rank);
    return shared[rank] + at;
}

void simt_wait_until(bool (*ready)(void *arg), void *arg)
{
    if (ready(arg))
        return;
    now->ready = ready;
    now->arg = arg;
    now->state = WAITING;
    give_way();
}

static void fiber_entry(void)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_bytes);
#endif
    (*body)();
    now->state = DONE;
    blocks[now->place.rank].live--;
    warps[now->place.fiber / 32].live &= ~(1u << simt_lane());
    give_way();
    die("a fiber was resumed after its end");
}

static void run_fiber(fiber *f)
{
    now = f;
    simt_here = &f->place;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&scheduler_fake, f->stack, SIMT_STACK);
#endif
    context_switch(&scheduler, &f->ctx);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake, NULL, NULL);
#endif
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    x ^= x >> 27;
    x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

static const char *order_name; /* SIMT_ORDER, NULL: forward */

/* The order in which threads are resumed in this round. */
static void order_threads(unsigned *order, uint64_t round)
{
    static uint64_t rounds;
    bool reverse = order_name && strcmp(order_name, "reverse") == 0;
    unsigned all = width * threads;
    for (unsigned i = 0; i < all; i++)
        order[i] = reverse ? all - 1 - i : i;
    if (!order_name || reverse)
        return;
    uint64_t seed = strtoull(order_name, NULL, 10) ^ mix(++rounds * 977 + round);
    for (unsigned i = all; i > 1; i--) {
        unsigned j = (unsigned)(mix(seed + i) % i), t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
}

static void make_block(dim3 grid, dim3 block, uint3 at, unsigned rank)
{
    blocks[rank].live = threads;
    blocks[rank].waiting = 0;
    memset(dynamic_of(rank), 0xff, shared_used);
    for (unsigned i = 0; i < threads; i++) {
        fiber *f = &fibers[rank * threads + i];
        if (!f->stack) {
            f->stack = (char *)mmap(NULL, SIMT_STACK, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (f->stack == MAP_FAILED)
                die("no memory for stacks");
        }
        context_make(&f->ctx, f->stack, SIMT_STACK, fiber_entry);
        f->state = READY;
        f->fake_stack = NULL;
        f->place.thread = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
        f->place.block = at;
        f->place.block_dim = block;
        f->place.grid_dim = grid;
        f->place.linear = i;
        f->place.rank = rank;
        f->place.fiber = rank * threads + i;
    }
    for (unsigned w = 0; w * 32 < threads; w++) {
        warp *to = &warps[rank * threads / 32 + w];
        memset(to->meet, 0, sizeof to->meet);
        to->live = threads - w * 32 >= 32 ? 0xffffffffu : (1u << (threads - w * 32)) - 1u;
    }
}

static unsigned all_live(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < width; i++)
        n += blocks[i].live;
    return n;
}

/* The block at `at`, or the cluster that it begins. */
static void run_block(dim3 grid, dim3 block, uint3 at)
{
    static unsigned order[SIMT_MAX_THREADS];
    simt_blocks_run++;
    simt_static_bytes = 0;
    cluster_waiting = 0;
    threads = block.x * block.y * block.z;
    for (unsigned i = 0; i < width; i++)
        make_block(grid, block, {at.x + i, at.y, at.z}, i);
    for (uint64_t round = 0; all_live() > 0; round++) {
        bool moved = false;
        if (round == 0 || order_name)
            order_threads(order, round);
        for (unsigned i = 0; i < width * threads; i++) {
            fiber *f = &fibers[order[i]];
            if (f->state == WAITING && f->ready(f->arg))
                f->state = READY;
            if (f->state == READY) {
                run_fiber(f);
                moved = true;
            }
        }
        if (!moved)
            die("block (%u, %u, %u) stands still: %u of %u threads wait at a barrier, %u have left",
                at.x, at.y, at.z, blocks[0].waiting, threads, threads - blocks[0].live);
    }
    now = NULL;
    simt_here = NULL;
    simt_block_ends();
    if (width > 1 && simt_static_bytes > 0)
        die("static shared memory in a cluster");
}

unsigned simt_shared_max(void)
{
    const char *most = getenv("SIMT_SHARED");
    return most ? (unsigned)strtoul(most, NULL, 10) : SIMT_SHARED_MAX;
}

/* A card refuses such a launch; here it has run already, which is as good for a test. */
static void check_shared(size_t dynamic, size_t granted)
{
    size_t fixed = dynamic ? (simt_static_bytes + 1023) / 1024 * 1024 : simt_static_bytes;
    if (fixed + dynamic > simt_shared_max())
        die("%zu bytes of shared memory, %zu of them static", fixed + dynamic, fixed);
    if (fixed + dynamic > 48u * 1024u && dynamic > granted)
        die("%zu bytes of shared memory without asking for them (cudaFuncSetAttribute)",
            fixed + dynamic);
}

void simt_run_kernel(const char *name, dim3 grid, dim3 block, size_t shared_bytes, size_t granted,
                     unsigned cluster, const std::function<void()> &thread)
{
    unsigned each = block.x * block.y * block.z;
    order_name = getenv("SIMT_ORDER");
    if (order_name && strcmp(order_name, "forward") == 0)
        order_name = NULL;
    kernel_name = name;
    body = &thread;
    shared_used = shared_bytes;
    width = cluster;
    if (width > 1 && (width > SIMT_CLUSTER_MAX || width * each > SIMT_MAX_THREADS || each % 32 ||
                      grid.x % width))
        die("%u threads, %u blocks in clusters of %u", each, grid.x, width);
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x += width) {
                run_block(grid, block, {x, y, z});
                check_shared(shared_bytes, granted);
            }
    kernel_name = NULL;
}

bool simt_fits(dim3 grid, dim3 block, size_t shared_bytes)
{
    uint64_t n = (uint64_t)block.x * block.y * block.z;
    return n >= 1 && n <= SIMT_MAX_THREADS && block.z <= 64 && grid.x >= 1 && grid.y >= 1 &&
           grid.z >= 1 && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535 &&
           shared_bytes <= simt_shared_max();
}
