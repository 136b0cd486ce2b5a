/* torch_random.c - the numbers that torch's generator on the CPU gives after manual_seed: an
 * adapter may keep a seed in the place of the values that it drew. The generator is the Mersenne
 * Twister of Matsumoto and Nishimura (1998), 32 bits, period 2^19937 - 1. */
#include "store/adapt/adapt_impl.h"
#include "store/base/mem.h"

void adt_twister_seed(adt_twister *t, uint64_t seed)
{
    t->word[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < FM_ARRAY_LEN(t->word); i++)
        t->word[i] = 1812433253u * (t->word[i - 1] ^ t->word[i - 1] >> 30) + i;
    t->at = FM_ARRAY_LEN(t->word);
}

static void refill(adt_twister *t)
{
    const uint32_t n = FM_ARRAY_LEN(t->word);

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t x = (t->word[i] & 0x80000000u) | (t->word[(i + 1) % n] & 0x7fffffffu);
        t->word[i] = t->word[(i + 397) % n] ^ x >> 1 ^ (x & 1 ? 0x9908b0dfu : 0);
    }
    t->at = 0;
}

uint32_t adt_twister_next(adt_twister *t)
{
    if (t->at == FM_ARRAY_LEN(t->word))
        refill(t);
    uint32_t x = t->word[t->at++];
    x ^= x >> 11;
    x ^= x << 7 & 0x9d2c5680u;
    x ^= x << 15 & 0xefc60000u;
    return x ^ x >> 18;
}

/* Beyond this torch shuffles with 64-bit numbers. */
#define MOST_PLACES (UINT32_MAX / 20)

/* A shuffle of 0 to n - 1 whose first values are final after so many swaps: only places that were
 * swapped are kept, in a map. */
fm_status adt_torch_places(int64_t *out, size_t count, uint64_t n, uint64_t seed)
{
    adt_twister t;
    fm_map *moved = NULL;
    fm_status rc = n < MOST_PLACES ? fm_map_new(&moved)
                                   : fm_fail(FM_EUNSUPPORTED,
                                             "places drawn among %llu elements are not computed "
                                             "here; below %u are",
                                             (unsigned long long)n, (unsigned)MOST_PLACES);

    adt_twister_seed(&t, seed);
    for (uint64_t i = 0; rc == FM_OK && i < count; i++) {
        /* torch makes no swap for the last one */
        const uint64_t to = i + 1 < n ? i + adt_twister_next(&t) % (n - i) : i;
        const uint64_t at_to = (uintptr_t)fm_map_get(moved, &to, sizeof to);
        const uint64_t at_i = (uintptr_t)fm_map_get(moved, &i, sizeof i);
        out[i] = (int64_t)(at_to ? at_to - 1 : to); /* the map holds value + 1; NULL: as it was */
        union {
            uintptr_t number;
            void *pointer;
        } value = {.number = (uintptr_t)(at_i ? at_i : i + 1)};
        rc = fm_map_put(moved, &to, sizeof to, value.pointer, NULL);
    }
    fm_map_free(moved);
    return rc;
}
