/* kvcache.c - pools of pages of several sizes under one budget that is taken at once, as ranks do:
 * the device's memory stays within it, no page lies on another, and a pool without holders makes
 * room for the others. */
#include <stdlib.h>
#include <string.h>

#include "infer/kv/kvarena.h"
#include "infer/kv/kvcache.h"
#include "tests/testkit.h"

#define BUDGET (1u << 20)
#define POOLS 4u
#define MOST 600u

static fm_backend counted;
static uint64_t held;
static struct {
    void *ptr;
    size_t bytes;
} block[16];

static fm_status count_alloc(fm_backend *be, void **out, size_t bytes)
{
    (void)be;
    size_t i = 0;
    *out = malloc(bytes);
    while (i < FM_ARRAY_LEN(block) && block[i].ptr)
        i++;
    assert_true(i < FM_ARRAY_LEN(block) && *out);
    block[i].ptr = *out;
    block[i].bytes = bytes;
    held += bytes;
    return FM_OK;
}

static void count_free(fm_backend *be, void *ptr)
{
    size_t i = 0;
    (void)be;
    while (block[i].ptr != ptr)
        i++;
    held -= block[i].bytes;
    block[i].ptr = NULL;
    free(ptr);
}

static size_t page_bytes(const fm_backend *be, uint32_t kv_heads, uint32_t head_dim)
{
    (void)be;
    return (size_t)FM_KV_PAGE * kv_heads * head_dim * sizeof(float);
}

typedef struct world {
    fmi_kv *kv;
    fmi_kv_pool *pool[POOLS]; /* the last: of rows */
    struct {
        uint32_t pool;
        int32_t page;
    } got[MOST];
    uint32_t count;
} world;

static void world_open(world *w, bool at_once)
{
    memset(w, 0, sizeof(*w));
    counted = (fm_backend){.alloc = count_alloc,
                           .free = count_free,
                           .kv_page_bytes = page_bytes,
                           .host_visible = true};
    tk_ok(fmi_kv_new(&w->kv, &counted, BUDGET));
    if (at_once)
        tk_ok(fmi_kv_at_once(w->kv));
    for (uint32_t i = 0; i + 1 < POOLS; i++)
        tk_ok(fmi_kv_pool_of(w->kv, &w->pool[i], 0, i + 1, 8));
    tk_ok(fmi_kv_rows_of(w->kv, &w->pool[POOLS - 1], 0, 24));
}

static uint8_t pattern(uint32_t i)
{
    return (uint8_t)(i * 37 + 11);
}

/* The bytes of page i: each has its own, so that an overlap is seen. */
static void fill(const world *w, uint32_t i, bool check)
{
    const fmi_kv_pool *p = w->pool[w->got[i].pool];
    fm_kv_view v = fmi_kv_view(p);
    bool rows = w->got[i].pool == POOLS - 1;
    size_t bytes = (size_t)fmi_kv_page_bytes(p) / (rows ? 1 : 2);
    for (int half = 0; half < (rows ? 1 : 2); half++) {
        uint8_t *at =
            (uint8_t *)(half ? (void *)v.v : (void *)v.k) + (size_t)w->got[i].page * bytes;
        for (size_t b = 0; check && b < bytes; b++)
            if (at[b] != (uint8_t)(pattern(i) + half))
                fail_msg("page %d of pool %u was overwritten", w->got[i].page, w->got[i].pool);
        if (!check)
            memset(at, (uint8_t)(pattern(i) + half), bytes);
    }
}

static bool take(world *w, uint32_t pool)
{
    int32_t page = -1;
    uint64_t room = fmi_kv_room(w->pool[pool]);
    fm_status rc = fmi_kv_take(w->pool[pool], &page);
    if (rc != FM_OK) {
        assert_int_equal(rc, FM_ELIMIT);
        assert_int_equal(room, 0);
        return false;
    }
    assert_true(room > 0 && (uint64_t)page < fmi_kv_numbers(w->pool[pool]));
    assert_true(w->count < MOST);
    w->got[w->count].pool = pool;
    w->got[w->count].page = page;
    fill(w, w->count++, false);
    return true;
}

static void give_all(world *w, uint32_t pool)
{
    uint32_t keep = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        fill(w, i, true);
        if (w->got[i].pool == pool || pool == POOLS)
            fmi_kv_give(w->pool[w->got[i].pool], w->got[i].page);
    }
    for (uint32_t i = 0; i < w->count; i++)
        if (w->got[i].pool != pool && pool != POOLS)
            w->got[keep++] = w->got[i];
    w->count = keep;
    for (uint32_t i = 0; i < w->count; i++)
        fill(w, i, false);
}

TEST(one_piece_for_all_pools)
{
    world w;
    world_open(&w, true);
    assert_int_equal(held, 0);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 80; i++)
        assert_true(take(&w, i % POOLS));
    for (uint32_t i = 0; i < w.count; i++)
        bytes += fmi_kv_page_bytes(w.pool[w.got[i].pool]);
    assert_int_equal(held, BUDGET); /* four pools, one budget */
    assert_int_equal(fmi_kv_bytes(w.kv), bytes);
    for (uint32_t i = 0; i < POOLS; i++)
        while (take(&w, (i + 2) % POOLS))
            ;
    assert_int_equal(held, BUDGET);
    /* What borders lose is less than a page each. */
    assert_true(fmi_kv_bytes(w.kv) <= BUDGET && fmi_kv_bytes(w.kv) > BUDGET / 10 * 9);
    give_all(&w, 2); /* nobody holds it: its room is the others' */
    uint64_t room = fmi_kv_room(w.pool[1]), got = 0;
    while (take(&w, 1))
        got++;
    assert_int_equal(got, room);
    assert_true(got * fmi_kv_page_bytes(w.pool[1]) > BUDGET / 3);
    give_all(&w, POOLS);
    fmi_kv_free(w.kv);
    assert_int_equal(held, 0);
}

/* One size alone loses nothing, and rows have an eighth at most. */
TEST(a_pool_alone_has_the_budget)
{
    for (uint32_t pool = 0; pool < POOLS; pool++) {
        world w;
        world_open(&w, true);
        while (take(&w, pool))
            ;
        uint64_t most = pool + 1 == POOLS ? BUDGET / 8 : BUDGET;
        assert_int_equal(w.count, most / fmi_kv_page_bytes(w.pool[pool]));
        give_all(&w, POOLS);
        fmi_kv_free(w.kv);
    }
}

/* Without ranks pools have pieces of their own. */
TEST(apart_as_before)
{
    world w;
    world_open(&w, false);
    for (uint32_t i = 0; i < 80; i++)
        assert_true(take(&w, i % POOLS));
    assert_true(held > BUDGET); /* of addresses */
    give_all(&w, POOLS);
    fmi_kv_free(w.kv);
    assert_int_equal(held, 0);
}

TEST(small_budgets)
{
    for (uint64_t bytes = 0; bytes < 3000; bytes += 7) {
        fmi_arena a;
        fmi_arena_pool p = {.number = 3, .align = 64, .bytes = 128, .limit = bytes};
        uint64_t at = 0, last = 0, n = 0;
        fmi_arena_init(&a, bytes);
        uint64_t left = fmi_arena_left(&a, &p, NULL, 0);
        for (; fmi_arena_take(&a, &p, &at); n++) {
            assert_true(at % 64 == 0 && at + 128 <= bytes && (n == 0 || at >= last + 128));
            last = at;
        }
        assert_int_equal(n, left);
        assert_int_equal(n, bytes / 128);
        fmi_arena_drop(&a, &p);
        assert_int_equal(fmi_arena_left(&a, &p, NULL, 0), left);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_piece_for_all_pools),
        cmocka_unit_test(a_pool_alone_has_the_budget),
        cmocka_unit_test(apart_as_before),
        cmocka_unit_test(small_budgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
