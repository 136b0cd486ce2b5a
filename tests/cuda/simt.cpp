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

enum fiber_state { READY, AT_BARRIER, IN_WARP, WAITING, IN_LINE, DONE };

typedef struct fiber {
    context ctx;
    char *stack;
    void *fake_stack; /* AddressSanitizer's */
    fiber_state state;
    bool in_line;             /* has waited for the kernels before its own */
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
unsigned simt_world;

/* FMC_SHARED of a block, while another block runs that may use the same. */
typedef struct kept_static {
    void *at;
    unsigned long *of;
    std::vector<char> bytes;
} kept_static;

/* A block (or cluster) that has begun and has not ended. There may be several: one that runs, and
 * those of kernels that began before the one before them had ended (simt_begin_kernel). */
typedef struct world {
    fiber fibers[SIMT_MAX_THREADS];
    warp warps[SIMT_MAX_THREADS / 32];
    context scheduler;
#if defined(__SANITIZE_ADDRESS__)
    void *scheduler_fake;
    const void *scheduler_stack;
    size_t scheduler_bytes;
#endif
    fiber *now;
    unsigned threads; /* of a block */
    unsigned width;   /* blocks of a cluster */
    struct {
        unsigned live, waiting;
    } blocks[SIMT_CLUSTER_MAX];
    unsigned cluster_waiting, cluster_phase;
    const simt_kernel *kernel;
    const std::function<void()> *body;
    const char *kernel_name;
    size_t shared_used;
    unsigned order[SIMT_MAX_THREADS];
    uint64_t round;
    unsigned long number; /* simt_blocks_run, while it runs */
    size_t static_bytes;
    std::vector<kept_static> statics;
    bool let; /* it has let the next kernel begin */
    bool early, taken;
} world;

static world worlds[SIMT_WORLDS];
static world *u = worlds; /* whose block runs */
static char shared_of[SIMT_WORLDS][SIMT_CLUSTER_MAX][SIMT_SHARED_MAX]
    __attribute__((aligned(1024)));
static unsigned long blocks_made;

void simt_die(const char *fmt, va_list ap)
{
    fprintf(stderr, "simt: kernel %s: ", u->kernel_name ? u->kernel_name : "none");
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
    fiber *f = u->now;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(f->state == DONE ? NULL : &f->fake_stack, u->scheduler_stack,
                                   u->scheduler_bytes);
#endif
    context_switch(&f->ctx, &u->scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->fake_stack, &u->scheduler_stack, &u->scheduler_bytes);
#endif
}

static void release_block(unsigned rank)
{
    u->blocks[rank].waiting = 0;
    for (unsigned i = rank * u->threads; i < (rank + 1) * u->threads; i++)
        if (u->fibers[i].state == AT_BARRIER)
            u->fibers[i].state = READY;
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
    for (unsigned i = 0; i < 32 && first + i < u->width * u->threads; i++)
        if ((m->mask >> i & 1u) && u->fibers[first + i].state == IN_WARP)
            u->fibers[first + i].state = READY;
    m->mask = 0;
}

void simt_barrier(void)
{
    unsigned rank = u->now->place.rank, live = u->blocks[rank].live;
    if (live != u->threads)
        die("__syncthreads after %u of %u threads have left", u->threads - live, u->threads);
    if (++u->blocks[rank].waiting == live) {
        release_block(rank);
        return;
    }
    u->now->state = AT_BARRIER;
    give_way();
}

static bool cluster_released(void *arg)
{
    return *(unsigned *)arg != u->cluster_phase;
}

void simt_cluster_barrier(void)
{
    unsigned phase = u->cluster_phase;
    if (++u->cluster_waiting == u->width * u->threads) {
        u->cluster_waiting = 0;
        u->cluster_phase++;
        return;
    }
    simt_wait_until(cluster_released, &phase);
}

unsigned simt_cluster_blocks(void)
{
    return u->width;
}

unsigned simt_lane(void)
{
    return u->now->place.linear % 32u;
}

const unsigned char *simt_exchange(unsigned mask, const void *bring, size_t bytes)
{
    unsigned lane = simt_lane(), first = u->now->place.fiber - lane;
    unsigned left = u->threads - (u->now->place.linear - lane);
    unsigned in_block = left >= 32 ? 0xffffffffu : (1u << left) - 1u;
    warp *w = &u->warps[first / 32];
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
    u->now->state = IN_WARP;
    give_way();
    return all;
}

unsigned simt_ballot(unsigned mask, bool yes)
{
    unsigned char mine = yes;
    unsigned first = u->now->place.linear & ~31u, r = 0;
    const unsigned char *all = simt_exchange(mask, &mine, 1);
    for (unsigned i = 0; i < 32 && first + i < u->threads; i++)
        if (mask >> i & 1u)
            r |= (unsigned)all[(size_t)i * SIMT_LANE_BYTES] << i;
    return r;
}

static char *dynamic_of(unsigned rank)
{
    return shared_of[u - worlds][rank] + SIMT_SHARED_MAX - (u->shared_used + 1023) / 1024 * 1024;
}

void *simt_dynamic_shared(void)
{
    return dynamic_of(u->now->place.rank);
}

size_t simt_shared_offset(const void *p)
{
    const char *mine = shared_of[u - worlds][u->now->place.rank];
    size_t at = (size_t)((const char *)p - mine);
    if ((const char *)p < mine || at >= SIMT_SHARED_MAX)
        die("%p is not dynamic shared memory of this block", p);
    return at;
}

const unsigned char *simt_shared_at(size_t offset, size_t bytes)
{
    const char *p = shared_of[u - worlds][u->now->place.rank] + offset;
    if (p < (const char *)simt_dynamic_shared() || offset + bytes > SIMT_SHARED_MAX)
        die("%zu bytes at %zu are not the block's dynamic shared memory", bytes, offset);
    return (const unsigned char *)p;
}

void *simt_of_rank(void *p, unsigned rank)
{
    size_t at = simt_shared_offset(p);
    if (rank >= u->width)
        die("block %u of a cluster of %u", rank, u->width);
    if (u->blocks[rank].live == 0)
        die("block %u of the cluster has left", rank);
    return shared_of[u - worlds][rank] + at;
}

void simt_wait_until(bool (*ready)(void *arg), void *arg)
{
    if (ready(arg))
        return;
    u->now->ready = ready;
    u->now->arg = arg;
    u->now->state = WAITING;
    give_way();
}

static void fiber_entry(void)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &u->scheduler_stack, &u->scheduler_bytes);
#endif
    (*u->body)();
    if (u->kernel->soon && !u->now->in_line)
        die("a thread of a kernel that may begin before its turn left without fmc_wait_for_turn");
    u->now->state = DONE;
    u->blocks[u->now->place.rank].live--;
    u->warps[u->now->place.fiber / 32].live &= ~(1u << simt_lane());
    give_way();
    die("a fiber was resumed after its end");
}

static void run_fiber(fiber *f)
{
    u->now = f;
    simt_here = &f->place;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&u->scheduler_fake, f->stack, SIMT_STACK);
#endif
    context_switch(&u->scheduler, &f->ctx);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(u->scheduler_fake, NULL, NULL);
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
static void order_threads(void)
{
    static uint64_t rounds;
    bool reverse = order_name && strcmp(order_name, "reverse") == 0;
    unsigned all = u->width * u->threads, *order = u->order;
    for (unsigned i = 0; i < all; i++)
        order[i] = reverse ? all - 1 - i : i;
    if (!order_name || reverse)
        return;
    uint64_t seed = strtoull(order_name, NULL, 10) ^ mix(++rounds * 977 + u->round);
    for (unsigned i = all; i > 1; i--) {
        unsigned j = (unsigned)(mix(seed + i) % i), t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
}

static void make_block(dim3 grid, dim3 block, uint3 at, unsigned rank)
{
    u->blocks[rank].live = u->threads;
    u->blocks[rank].waiting = 0;
    memset(dynamic_of(rank), 0xff, u->shared_used);
    for (unsigned i = 0; i < u->threads; i++) {
        fiber *f = &u->fibers[rank * u->threads + i];
        if (!f->stack) {
            f->stack = (char *)mmap(NULL, SIMT_STACK, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (f->stack == MAP_FAILED)
                die("no memory for stacks");
        }
        context_make(&f->ctx, f->stack, SIMT_STACK, fiber_entry);
        f->state = READY;
        f->in_line = false;
        f->fake_stack = NULL;
        f->place.thread = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
        f->place.block = at;
        f->place.block_dim = block;
        f->place.grid_dim = grid;
        f->place.linear = i;
        f->place.rank = rank;
        f->place.fiber = rank * u->threads + i;
    }
    for (unsigned w = 0; w * 32 < u->threads; w++) {
        warp *to = &u->warps[rank * u->threads / 32 + w];
        memset(to->meet, 0, sizeof to->meet);
        to->live = u->threads - w * 32 >= 32 ? 0xffffffffu : (1u << (u->threads - w * 32)) - 1u;
    }
}

static unsigned all_live(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < u->width; i++)
        n += u->blocks[i].live;
    return n;
}

void simt_static_used(void *at, size_t bytes, unsigned long *of)
{
    *of = simt_blocks_run;
    memset(at, 0xff, bytes);
    simt_static_bytes += bytes;
    u->statics.push_back({at, of, {}});
    u->statics.back().bytes.resize(bytes);
}

/* Another world's block runs from here on: what both may use is kept, and is there again. */
static void turn_to(world *other)
{
    for (kept_static &k : u->statics)
        memcpy(k.bytes.data(), k.at, k.bytes.size());
    u->number = simt_blocks_run;
    u->static_bytes = simt_static_bytes;
    u = other;
    simt_world = (unsigned)(u - worlds);
    simt_blocks_run = u->number;
    simt_static_bytes = u->static_bytes;
    for (kept_static &k : u->statics) {
        memcpy(k.at, k.bytes.data(), k.bytes.size());
        *k.of = u->number;
    }
    simt_here = u->now ? &u->now->place : NULL;
}

/* The block at `at` of the world's kernel, or the cluster that it begins; nothing of it runs. */
static void open_block(uint3 at)
{
    const simt_kernel *k = u->kernel;
    simt_blocks_run = ++blocks_made;
    simt_static_bytes = 0;
    u->statics.clear();
    u->cluster_waiting = 0;
    u->round = 0;
    u->let = false;
    u->threads = k->block.x * k->block.y * k->block.z;
    for (unsigned i = 0; i < u->width; i++)
        make_block(k->grid, k->block, {at.x + i, at.y, at.z}, i);
}

/* Until all threads have left; while the world is early, until all that go on wait for their turn:
 * false. */
static bool run_threads(void)
{
    for (; all_live() > 0; u->round++) {
        bool moved = false, waits = false;
        if (u->round == 0 || order_name)
            order_threads();
        for (unsigned i = 0; i < u->width * u->threads; i++) {
            fiber *f = &u->fibers[u->order[i]];
            if ((f->state == WAITING && f->ready(f->arg)) || (f->state == IN_LINE && !u->early))
                f->state = READY;
            waits = waits || f->state == IN_LINE;
            if (f->state == READY) {
                run_fiber(f);
                moved = true;
            }
        }
        if (!moved && u->early && waits)
            return false;
        if (!moved)
            die("a block stands still: %u of %u threads wait at a barrier, %u have left",
                u->blocks[0].waiting, u->threads, u->threads - u->blocks[0].live);
    }
    return true;
}

static void close_block(void)
{
    u->now = NULL;
    simt_here = NULL;
    simt_block_ends();
    if (u->width > 1 && simt_static_bytes > 0)
        die("static shared memory in a cluster");
}

void simt_wait_for_turn(void)
{
    u->now->in_line = true;
    if (!u->early)
        return;
    u->now->state = IN_LINE;
    give_way();
}

void simt_let_next(void)
{
    bool first = !u->let; /* of the block's threads, whichever it is */
    u->let = true;
    if (first)
        simt_next_may_begin();
}

unsigned simt_shared_max(void)
{
    const char *most = getenv("SIMT_SHARED");
    return most ? (unsigned)strtoul(most, NULL, 10) : SIMT_SHARED_MAX;
}

/* A GPU refuses such a launch; here it has run already, which is as good for a test. */
static void check_shared(size_t dynamic, size_t granted)
{
    size_t fixed = dynamic ? (simt_static_bytes + 1023) / 1024 * 1024 : simt_static_bytes;
    if (fixed + dynamic > simt_shared_max())
        die("%zu bytes of shared memory, %zu of them static", fixed + dynamic, fixed);
    if (fixed + dynamic > 48u * 1024u && dynamic > granted)
        die("%zu bytes of shared memory without asking for them (cudaFuncSetAttribute)",
            fixed + dynamic);
}

static world *take_world(const simt_kernel *k)
{
    const unsigned each = k->block.x * k->block.y * k->block.z;
    world *w = worlds;
    while (w < worlds + SIMT_WORLDS && w->taken)
        w++;
    if (w == worlds + SIMT_WORLDS)
        return NULL;
    w->taken = true;
    w->kernel = k;
    w->kernel_name = k->name;
    w->body = &k->thread;
    w->shared_used = k->shared_bytes;
    w->width = k->cluster;
    w->early = false;
    w->now = NULL;
    w->statics.clear();
    if (w->width > 1 && (w->width > SIMT_CLUSTER_MAX || w->width * each > SIMT_MAX_THREADS ||
                         each % 32 || k->grid.x % w->width))
        die("%u threads, %u blocks in clusters of %u", each, k->grid.x, w->width);
    return w;
}

static uint3 place_of(const simt_kernel *k, uint64_t number)
{
    const unsigned wide = k->grid.x / k->cluster;
    return {(unsigned)(number % wide) * k->cluster, (unsigned)(number / wide % k->grid.y),
            (unsigned)(number / wide / k->grid.y)};
}

static uint64_t places(const simt_kernel *k)
{
    return (uint64_t)(k->grid.x / k->cluster) * k->grid.y * k->grid.z;
}

void simt_begin_kernel(simt_kernel *k)
{
    static uint64_t begun;
    world *before = u, *w = k->begun ? NULL : take_world(k);
    if (!w)
        return;
    k->begun = w;
    k->first = mix(++begun) % places(k);
    w->early = true;
    turn_to(w);
    open_block(place_of(k, k->first));
    (void)run_threads();
    w->early = false;
    turn_to(before);
}

void simt_run_kernel(simt_kernel *k)
{
    order_name = getenv("SIMT_ORDER");
    if (order_name && strcmp(order_name, "forward") == 0)
        order_name = NULL;
    world *before = u, *begun = (world *)k->begun, *w = begun ? begun : take_world(k);
    if (!w)
        die("no room for a block of %s", k->name);
    simt_next_may_begin(); /* by ending, a kernel lets it too; what it wrote may come later */
    turn_to(w);
    for (uint64_t i = 0, all = places(k); i < all; i++) {
        uint64_t number = begun ? (i == 0 ? k->first : i <= k->first ? i - 1 : i) : i;
        if (!begun || i > 0)
            open_block(place_of(k, number));
        (void)run_threads();
        close_block();
        check_shared(k->shared_bytes, k->granted);
    }
    w->statics.clear();
    w->taken = false;
    w->kernel_name = NULL;
    turn_to(before);
}

bool simt_fits(dim3 grid, dim3 block, size_t shared_bytes)
{
    uint64_t n = (uint64_t)block.x * block.y * block.z;
    return n >= 1 && n <= SIMT_MAX_THREADS && block.z <= 64 && grid.x >= 1 && grid.y >= 1 &&
           grid.z >= 1 && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535 &&
           shared_bytes <= simt_shared_max();
}
