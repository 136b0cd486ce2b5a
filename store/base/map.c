/* map.c - hash map in insertion order: entries in an array, and an open-addressed table of their
 * numbers. SipHash-1-3 with a random key per map, since keys come from files: without a secret, a
 * file could put all its names into one bucket. */
#include "store/base/map.h"

#include "store/base/mem.h"

#include <string.h>
#include <sys/random.h>

#define FIRST_SLOTS 16
#define NO_ENTRY SIZE_MAX

struct entry {
    const char *key; /* in the arena */
    size_t key_len;
    uint64_t hash;
    void *value;
};

struct fm_map {
    fm_arena *arena;
    struct entry *entry; /* [count] in insertion order */
    size_t count;
    size_t cap;
    size_t *slot; /* [slots]: index into entry, or NO_ENTRY; slots is a power of two */
    size_t slots;
    uint64_t seed[2];
};

static inline uint64_t rotl(uint64_t v, int n)
{
    return v << n | v >> (64 - n);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[0] = rotl(v[0], 32);
    v[2] += v[3];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[2] = rotl(v[2], 32);
}

/* SipHash-1-3 (Aumasson, Bernstein 2012). */
static uint64_t hash_of(const fm_map *m, const uint8_t *p, size_t len)
{
    uint64_t v[4] = {m->seed[0] ^ 0x736f6d6570736575u, m->seed[1] ^ 0x646f72616e646f6du,
                     m->seed[0] ^ 0x6c7967656e657261u, m->seed[1] ^ 0x7465646279746573u};
    uint64_t last = (uint64_t)len << 56;

    for (size_t i = 0; i + 8 <= len; i += 8) {
        uint64_t word = fm_get_u64(p + i);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    for (size_t i = len & ~(size_t)7; i < len; i++)
        last |= (uint64_t)p[i] << (8 * (i & 7));
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

fm_status fm_map_new(fm_map **out)
{
    *out = NULL;
    fm_map *m = fm_calloc(1, sizeof(*m));
    if (!m)
        return FM_ENOMEM;
    /* Where the kernel has no entropy yet the key is zero: lookups may be slower, never wrong. */
    if (getrandom(m->seed, sizeof(m->seed), GRND_NONBLOCK) < 0)
        memset(m->seed, 0, sizeof(m->seed));
    if (fm_arena_new(&m->arena) < 0) {
        fm_map_free(m);
        return FM_ENOMEM;
    }
    *out = m;
    return FM_OK;
}

void fm_map_free(fm_map *m)
{
    if (!m)
        return;
    fm_arena_free(m->arena);
    fm_free(m->entry);
    fm_free(m->slot);
    fm_free(m);
}

/* The slot that holds the key, or the empty slot where it would go: slots > count always. */
static size_t find_slot(const fm_map *m, const void *key, size_t len, uint64_t hash)
{
    size_t i = hash & (m->slots - 1);

    for (;; i = (i + 1) & (m->slots - 1)) {
        if (m->slot[i] == NO_ENTRY)
            return i;
        const struct entry *e = &m->entry[m->slot[i]];
        if (e->hash == hash && e->key_len == len && (len == 0 || memcmp(e->key, key, len) == 0))
            return i;
    }
}

static const struct entry *find(const fm_map *m, const void *key, size_t len)
{
    if (!m || m->count == 0)
        return NULL;
    size_t i = find_slot(m, key, len, hash_of(m, key, len));
    return m->slot[i] == NO_ENTRY ? NULL : &m->entry[m->slot[i]];
}

/* Keeps the table at most half full. */
static fm_status grow_slots(fm_map *m)
{
    if (m->slots / 2 > m->count)
        return FM_OK;
    size_t slots = m->slots ? m->slots * 2 : FIRST_SLOTS;
    if (slots > SIZE_MAX / sizeof(size_t) / 2)
        return fm_fail(FM_ENOMEM, "out of memory for a map of %zu keys", m->count);
    size_t *slot = fm_malloc(slots * sizeof(*slot));
    if (!slot)
        return FM_ENOMEM;
    for (size_t i = 0; i < slots; i++)
        slot[i] = NO_ENTRY;
    for (size_t e = 0; e < m->count; e++) {
        size_t i = m->entry[e].hash & (slots - 1);
        while (slot[i] != NO_ENTRY)
            i = (i + 1) & (slots - 1);
        slot[i] = e;
    }
    fm_free(m->slot);
    m->slot = slot;
    m->slots = slots;
    return FM_OK;
}

fm_status fm_map_put(fm_map *m, const void *key, size_t key_len, void *value, void **old)
{
    if (old)
        *old = NULL;
    FM_TRY(grow_slots(m));
    uint64_t hash = hash_of(m, key, key_len);
    size_t i = find_slot(m, key, key_len, hash);
    if (m->slot[i] != NO_ENTRY) {
        struct entry *e = &m->entry[m->slot[i]];
        if (old)
            *old = e->value;
        e->value = value;
        return FM_OK;
    }
    FM_TRY(fm_grow(&m->entry, &m->cap, m->count + 1, sizeof(*m->entry)));
    const char *copy = fm_arena_strndup(m->arena, key, key_len);
    if (!copy)
        return FM_ENOMEM;
    m->entry[m->count] = (struct entry){copy, key_len, hash, value};
    m->slot[i] = m->count++;
    return FM_OK;
}

void *fm_map_get(const fm_map *m, const void *key, size_t key_len)
{
    const struct entry *e = find(m, key, key_len);
    return e ? e->value : NULL;
}

bool fm_map_has(const fm_map *m, const void *key, size_t key_len)
{
    return find(m, key, key_len) != NULL;
}

size_t fm_map_count(const fm_map *m)
{
    return m ? m->count : 0;
}

fm_span fm_map_key_at(const fm_map *m, size_t i)
{
    fm_assert(i < m->count);
    return fm_span_of(m->entry[i].key, m->entry[i].key_len);
}

void *fm_map_value_at(const fm_map *m, size_t i)
{
    fm_assert(i < m->count);
    return m->entry[i].value;
}
