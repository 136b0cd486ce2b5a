/* ptx.cpp - see simt_ptx.h. Fragments are laid out as the PTX ISA draws them: with g = lane / 4 and
 * t = lane % 4, and e = 2 elements of an operand in one 32-bit register,
 *   a: register r holds row g + 8 (r % 2), columns e t + 4 e (r / 2) ..;
 *   b: register r holds column g, rows e t + 4 e r ..;  d: register r row g + 8 (r / 2), column
 *   2 t + r % 2. */
#include "simt_ptx.h"

#include <vector>

/* ---- late copies ---- */

typedef struct copy16 {
    void *to;
    const void *from;
    bool valid;
} copy16;

static struct {
    std::vector<std::vector<copy16>> groups; /* the last one is open */
    unsigned long block;
} pending[SIMT_WORLDS][1024];

static std::vector<std::vector<copy16>> &groups_now(void)
{
    auto &p = pending[simt_world][simt_here->fiber];
    if (p.block != simt_blocks_run) {
        p.block = simt_blocks_run;
        p.groups.assign(1, {});
    }
    return p.groups;
}

void simt_copy16(void *shared, const void *global, bool valid)
{
    if ((uintptr_t)shared % 16 || (valid && (uintptr_t)global % 16)) {
        fprintf(stderr, "simt: cp.async from %p to %p: not 16-byte aligned\n", global, shared);
        abort();
    }
    groups_now().back().push_back({shared, global, valid});
}

void simt_copy_commit(void)
{
    groups_now().push_back({});
}

void simt_copy_wait(int left)
{
    auto &groups = groups_now();
    while ((int)groups.size() - 1 > left) {
        for (const copy16 &c : groups.front())
            if (c.valid)
                memcpy(c.to, c.from, 16);
            else
                memset(c.to, 0, 16);
        groups.erase(groups.begin());
    }
}

/* ---- matrices ---- */

void simt_load_matrix4(uint32_t r[4], const void *row, bool transposed)
{
    if ((uintptr_t)row % 16) {
        fprintf(stderr, "simt: ldmatrix at %p: not 16-byte aligned\n", row);
        abort();
    }
    const unsigned char *all = simt_exchange(0xffffffffu, row, 16);
    unsigned g = simt_lane() / 4, t = simt_lane() % 4;
    for (unsigned m = 0; m < 4; m++) {
        const unsigned char *at = all + (size_t)m * 8 * SIMT_LANE_BYTES;
        uint16_t pair[2];
        for (unsigned i = 0; i < 2; i++) {
            unsigned from = transposed ? 2 * t + i : g, element = transposed ? g : 2 * t + i;
            memcpy(&pair[i], at + from * SIMT_LANE_BYTES + 2 * element, 2);
        }
        r[m] = (uint32_t)pair[0] | (uint32_t)pair[1] << 16;
    }
}

typedef double (*decode)(uint32_t bits);

static double from_bf16(uint32_t bits)
{
    return (double)__uint_as_float(bits << 16);
}
static double from_f16(uint32_t bits)
{
    int e = (int)(bits >> 10 & 31u), m = (int)(bits & 1023u);
    double v = e == 31  ? (m ? (double)NAN : (double)INFINITY)
               : e == 0 ? ldexp(m, -24)
                        : ldexp(1024 + m, e - 25);
    return bits >> 15 & 1u ? -v : v;
}

/* ---- conversions ---- */

static uint32_t to_bf16(float f)
{
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fffu;
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
static uint32_t to_f16(float f)
{
    uint32_t sign = __float_as_uint(f) >> 16 & 0x8000u;
    double a = fabs((double)f);
    int e;
    if (isnan(f))
        return 0x7fffu;
    if (a >= 65520.0) /* half a step beyond the largest */
        return sign | 0x7c00u;
    (void)frexp(a, &e);
    e = a == 0.0 || e < -13 ? -13 : e; /* below 2^-14 steps are those of subnormals */
    double steps = nearbyint(ldexp(a, 11 - e));
    return sign | (uint32_t)((e + 13) * 1024 + (int)steps);
}

uint32_t fmc_pack_bf16(float low, float high)
{
    return to_bf16(low) | to_bf16(high) << 16;
}
uint32_t fmc_pack_f16(float low, float high)
{
    return to_f16(low) | to_f16(high) << 16;
}
uint32_t fmc_times_bf16(uint32_t a, uint32_t b)
{
    uint32_t low = to_bf16(__uint_as_float(a << 16) * __uint_as_float(b << 16));
    return low | to_bf16(__uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u)) << 16;
}
float fmc_from_f16(uint32_t h)
{
    return (float)from_f16(h & 0xffffu);
}

/* Lanes bring their elements decoded: most of a test's time is here. */
static void mma(float d[4], const uint32_t a[4], const uint32_t b[2], decode value)
{
    float mine[12];
    for (unsigned i = 0; i < 12; i++)
        mine[i] = (float)value((i < 8 ? a[i / 2] : b[i / 2 - 4]) >> (16 * (i % 2)) & 0xffffu);
    const unsigned char *all = simt_exchange(0xffffffffu, mine, sizeof mine);
    unsigned g = simt_lane() / 4, t = simt_lane() % 4;
    for (unsigned r = 0; r < 4; r++) {
        double sum = (double)d[r];
        for (unsigned k = 0; k < 16; k += 2) {
            unsigned high = k / 8, lane = k % 8 / 2;
            float x[2], y[2];
            memcpy(x, all + (g * 4 + lane) * SIMT_LANE_BYTES + 8 * (r / 2 + 2 * high), sizeof x);
            memcpy(y, all + ((2 * t + r % 2) * 4 + lane) * SIMT_LANE_BYTES + 8 * (4 + high),
                   sizeof y);
            sum += (double)x[0] * (double)y[0];
            sum += (double)x[1] * (double)y[1];
        }
        d[r] = (float)sum;
    }
}

void fmc_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    mma(d, a, b, from_bf16);
}
void fmc_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    mma(d, a, b, from_f16);
}

void fmc_mma_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2], int32_t start)
{
    int8_t mine[24];
    memcpy(mine, a, 16);
    memcpy(mine + 16, b, 8);
    const unsigned char *all = simt_exchange(0xffffffffu, mine, sizeof mine);
    unsigned g = simt_lane() / 4, t = simt_lane() % 4;
    for (unsigned r = 0; r < 4; r++) {
        int32_t sum = start;
        for (unsigned k = 0; k < 32; k += 4) {
            unsigned high = k / 16, lane = k % 16 / 4;
            int8_t x[4], y[4];
            memcpy(x, all + (g * 4 + lane) * SIMT_LANE_BYTES + 4 * (r / 2 + 2 * high), sizeof x);
            memcpy(y, all + ((2 * t + r % 2) * 4 + lane) * SIMT_LANE_BYTES + 16 + 4 * high,
                   sizeof y);
            for (unsigned i = 0; i < 4; i++)
                sum += x[i] * y[i];
        }
        d[r] = sum;
    }
}
