/* ptx90.cpp - see simt_ptx90.h. */
#include "simt_ptx90.h"

#include <vector>

__attribute__((format(printf, 1, 2))) static void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    simt_die(fmt, ap);
}

/* ---- barriers and bulk copies ---- */

typedef struct barrier {
    uint16_t count, missing; /* arrivals of a phase; those that have not come */
    int32_t bytes : 31;      /* announced and not there */
    uint32_t parity : 1;     /* of the phase that is under way */
} barrier;
static_assert(sizeof(barrier) == sizeof(uint64_t), "a barrier is eight bytes");

typedef struct bulk {
    void *to;
    const void *from;
    unsigned bytes;
    uint64_t *bar;
} bulk;

/* To the block that runs, and to those that wait for their turn. */
static std::vector<bulk> coming_to[SIMT_WORLDS];
#define coming coming_to[simt_world]

static barrier load(const uint64_t *bar)
{
    barrier b;
    memcpy(&b, bar, sizeof b);
    return b;
}

static void store(uint64_t *bar, barrier b)
{
    if (b.missing == 0 && b.bytes == 0) {
        b.missing = b.count;
        b.parity = !b.parity;
    }
    memcpy(bar, &b, sizeof b);
}

void fmc_barrier_init(uint64_t *bar, unsigned count)
{
    if (count < 1 || count > 0xffffu || (uintptr_t)bar % 8)
        die("a barrier at %p for %u arrivals", (void *)bar, count);
    barrier b = {(uint16_t)count, (uint16_t)count, 0, 0};
    memcpy(bar, &b, sizeof b);
}

static void arrive(uint64_t *bar, unsigned bytes)
{
    barrier b = load(bar);
    if (b.missing == 0)
        die("more arrivals at a barrier than its %u", b.count);
    b.missing--;
    b.bytes += (int32_t)bytes;
    store(bar, b);
}

void fmc_barrier_arrive(uint64_t *bar)
{
    arrive(bar, 0);
}
void fmc_barrier_expect(uint64_t *bar, unsigned bytes)
{
    arrive(bar, bytes);
}

static void deliver(const bulk &c)
{
    barrier b = load(c.bar);
    memcpy(c.to, c.from, c.bytes);
    b.bytes -= (int32_t)c.bytes;
    store(c.bar, b);
}

static void copy_later(const bulk &c)
{
    const char *when = getenv("SIMT_BULK");
    if ((uintptr_t)c.to % 16 || (uintptr_t)c.from % 16 || c.bytes % 16 || c.bytes == 0)
        die("a bulk copy of %u bytes from %p to %p: 16 divides all of them", c.bytes, c.from, c.to);
    if (when && strcmp(when, "soon") == 0)
        deliver(c);
    else
        coming.push_back(c);
}

void simt_block_ends(void)
{
    if (!coming.empty())
        die("a block has left while %zu bulk copies to it were on their way", coming.size());
}

void fmc_bulk_copy(void *shared, const void *global, unsigned bytes, uint64_t *bar)
{
    copy_later({shared, global, bytes, bar});
}

void fmc_bulk_copy_all(void *shared, const void *global, unsigned bytes, uint64_t *bar)
{
    for (unsigned i = 0; i < simt_cluster_blocks(); i++)
        copy_later({simt_of_rank(shared, i), global, bytes, (uint64_t *)simt_of_rank(bar, i)});
}

unsigned fmc_cluster_rank(void)
{
    return simt_here->rank;
}
void fmc_cluster_sync(void)
{
    simt_cluster_barrier();
}
void fmc_barrier_arrive_at(uint64_t *bar, unsigned rank)
{
    arrive((uint64_t *)simt_of_rank(bar, rank), 0);
}

typedef struct wait {
    uint64_t *bar;
    unsigned parity;
} wait;

/* Those that a phase waits for come in their order, and only while it is under way. */
static bool ended(void *arg)
{
    const wait *w = (const wait *)arg;
    size_t i = 0;
    while (i < coming.size() && load(w->bar).parity == w->parity)
        if (coming[i].bar == w->bar) {
            deliver(coming[i]);
            coming.erase(coming.begin() + (ptrdiff_t)i);
        } else {
            i++;
        }
    return load(w->bar).parity != w->parity;
}

void fmc_barrier_wait(uint64_t *bar, unsigned parity)
{
    wait w = {bar, parity};
    if (parity > 1)
        die("a phase has parity 0 or 1, not %u", parity);
    simt_wait_until(ended, &w);
}

/* ---- products ---- */

uint64_t fmc_matrix(const void *shared, unsigned along_k, unsigned along_n)
{
    size_t at = simt_shared_offset(shared);
    if (at % 16 || along_k % 16 || along_n % 16 || along_k >= 1u << 18 || along_n >= 1u << 18)
        die("a matrix at %zu of shared memory, cores %u and %u apart", at, along_k, along_n);
    return (uint64_t)(at >> 4) | (uint64_t)(along_k >> 4) << 16 | (uint64_t)(along_n >> 4) << 32;
}

typedef struct seen {
    const unsigned char *at;
    unsigned char core[128];
} seen;

/* d while its products are under way: of floats, or whole numbers. */
typedef struct kept {
    void *d;
    unsigned long group; /* the last that adds to it */
    std::vector<uint32_t> sum;
} kept;

static struct {
    unsigned long block, group, done; /* the group that is open; those before this are done */
    bool fenced;                      /* since the group before was committed */
    std::vector<kept> sums;
    std::vector<std::pair<unsigned long, seen>> operands;
} mine[SIMT_WORLDS][1024];

/* SIMT_WIDE=other: sums round after 8 of 16 k too, as on no GPU of mma's bits; halves of an int8
 * operand lie the other way round. */
static bool other;

/* Once for each block that multiplies. */
static void note_block(void)
{
    static unsigned long block;
    const char *how = getenv("SIMT_WIDE"), *log = getenv("SIMT_WIDE_LOG");
    if (block == simt_blocks_run)
        return;
    block = simt_blocks_run;
    other = how && strcmp(how, "other") == 0;
    FILE *f = log ? fopen(log, "a") : NULL;
    if (f) {
        fprintf(f, "block\n");
        fclose(f);
    }
}

static decltype(mine[0][0]) &now(void)
{
    auto &m = mine[simt_world][simt_here->fiber];
    if (m.block != simt_blocks_run) {
        note_block();
        m.block = simt_blocks_run;
        m.group = m.done = 0;
        m.fenced = false;
        m.sums.clear();
        m.operands.clear();
    }
    return m;
}

static const unsigned char *core_of(uint64_t matrix, unsigned k8, unsigned n8)
{
    size_t at = (size_t)(matrix & 0x3fffu) << 4;
    at += k8 * ((size_t)(matrix >> 16 & 0x3fffu) << 4);
    at += n8 * ((size_t)(matrix >> 32 & 0x3fffu) << 4);
    return simt_shared_at(at, 128);
}

static float element(const unsigned char *core, unsigned line, unsigned i, bool f16)
{
    uint16_t bits;
    memcpy(&bits, core + 16 * line + 2 * i, 2);
    return f16 ? fmc_from_f16(bits) : __uint_as_float((unsigned)bits << 16);
}

/* Rows g and g + 8 of the warp's sixteen, 16 k each. */
static void first_operand(float row[2][16], bool f16, const uint32_t *a, uint64_t a_matrix)
{
    unsigned g = simt_lane() / 4, warp = simt_here->linear / 32 % 4;
    const unsigned char *all = simt_exchange(0xffffffffu, a, a ? 16 : 0);
    for (unsigned half = 0; half < 2; half++)
        for (unsigned k = 0; k < 16; k++) {
            if (!a) {
                row[half][k] = element(core_of(a_matrix, k / 8, 2 * warp + half), g, k % 8, f16);
                continue;
            }
            uint32_t word;
            memcpy(&word, all + (4 * g + k % 8 / 2) * SIMT_LANE_BYTES + 4 * (half + k / 8 * 2), 4);
            uint32_t bits = word >> (16 * (k % 2)) & 0xffffu;
            row[half][k] = f16 ? fmc_from_f16(bits) : __uint_as_float(bits << 16);
        }
}

#define POISON 0xffffffffu /* a float that is no number, no sum of whole ones that start as ours */

static uint32_t word_at(const void *d, size_t i)
{
    uint32_t word;
    memcpy(&word, (const char *)d + 4 * i, 4);
    return word;
}

static kept &kept_of(void *d, int n)
{
    auto &m = now();
    size_t count = (size_t)n / 2;
    for (kept &s : m.sums)
        if (s.d == d) {
            for (size_t i = 0; i < count; i++)
                if (word_at(d, i) != POISON)
                    die("d[%zu] of a product that is under way was written", i);
            return s;
        }
    m.sums.push_back({d, 0, std::vector<uint32_t>(count)});
    memcpy(m.sums.back().sum.data(), d, 4 * count);
    memset(d, 0xff, 4 * count);
    return m.sums.back();
}

static void note_cores(const unsigned char *const core[2])
{
    auto &m = now();
    for (unsigned k8 = 0; simt_lane() == 0 && k8 < 2; k8++) {
        seen s = {core[k8], {}};
        memcpy(s.core, core[k8], sizeof s.core);
        m.operands.push_back({m.group, s});
    }
}

void simt_wide(float *d, int n, bool f16, bool turned, const uint32_t *a, uint64_t a_matrix,
               uint64_t b_matrix)
{
    auto &m = now();
    float row[2][16], column[16];
    unsigned t = simt_lane() % 4;
    first_operand(row, f16, a, a_matrix);
    if (!m.fenced)
        die("no fence between registers that were written and a product of them");
    kept &sums = kept_of(d, n);
    sums.group = m.group;
    for (int n8 = 0; n8 < n / 8; n8++) {
        const unsigned char *core[2] = {core_of(b_matrix, 0, (unsigned)n8),
                                        core_of(b_matrix, 1, (unsigned)n8)};
        for (unsigned i = 0; i < 2; i++) {
            unsigned at = 2 * t + i;
            for (unsigned k = 0; k < 16; k++)
                column[k] = turned ? element(core[k / 8], k % 8, at, f16)
                                   : element(core[k / 8], at, k % 8, f16);
            for (unsigned half = 0; half < 2; half++) {
                uint32_t *sum = &sums.sum[(size_t)(4 * n8) + 2 * half + i];
                double s = (double)__uint_as_float(*sum);
                for (unsigned k = 0; k < 16; k++) {
                    s += (double)row[half][k] * (double)column[k];
                    if (other && k == 7)
                        s = (double)(float)s;
                }
                *sum = __float_as_uint((float)s);
            }
        }
        note_cores(core);
    }
}

/* Elements of an int8 operand are a warp's words: lane 4 g + t has k 4 t .. of row g. */
void simt_wide_s8(int32_t *d, int n, const uint32_t *a, uint64_t b_matrix)
{
    auto &m = now();
    int8_t row[2][32];
    unsigned g = simt_lane() / 4, t = simt_lane() % 4;
    const unsigned char *all = simt_exchange(0xffffffffu, a, 16);
    for (unsigned half = 0; half < 2; half++)
        for (unsigned k = 0; k < 32; k += 4)
            memcpy(&row[half][k],
                   all + (4 * g + k % 16 / 4) * SIMT_LANE_BYTES + 4 * (half + k / 16 * 2), 4);
    kept &sums = kept_of(d, n);
    sums.group = m.group;
    for (int n8 = 0; n8 < n / 8; n8++) {
        const unsigned char *core[2] = {core_of(b_matrix, 0, (unsigned)n8),
                                        core_of(b_matrix, 1, (unsigned)n8)};
        for (unsigned i = 0; i < 4; i++) {
            int32_t dot = 0;
            for (unsigned k = 0; k < 32; k++)
                dot +=
                    row[i / 2][k] * (int8_t)core[(k / 16) ^ other][16 * (2 * t + i % 2) + k % 16];
            sums.sum[(size_t)(4 * n8) + i] += (uint32_t)dot;
        }
        note_cores(core);
    }
}

void fmc_sm90_fence(void)
{
    now().fenced = true;
}
void fmc_sm90_commit(void)
{
    now().group++;
    now().fenced = false;
}

void simt_wide_wait(int left)
{
    auto &m = now();
    if (m.group < (unsigned long)left)
        return;
    m.done = m.group - (unsigned long)left;
    for (size_t i = 0; i < m.operands.size();) {
        if (m.operands[i].first >= m.done) {
            i++;
            continue;
        }
        const seen &s = m.operands[i].second;
        if (memcmp(s.at, s.core, sizeof s.core) != 0)
            die("an operand in shared memory has changed under a product");
        m.operands.erase(m.operands.begin() + (ptrdiff_t)i);
    }
    for (size_t i = 0; i < m.sums.size();) {
        kept &s = m.sums[i];
        if (s.group >= m.done) {
            i++;
            continue;
        }
        for (size_t e = 0; e < s.sum.size(); e++)
            if (word_at(s.d, e) != POISON)
                die("d[%zu] of a product that is under way was written", e);
        memcpy(s.d, s.sum.data(), 4 * s.sum.size());
        m.sums.erase(m.sums.begin() + (ptrdiff_t)i);
    }
}
