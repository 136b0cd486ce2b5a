/* blame through history: made-up graphs, each asked by the search and by brute force. */
#include <math.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "testing/blame.h"
#include "tests/testkit.h"

#define MAX_NODES 16

/* What each version truly says: P = pass, F = fail with answer 1, G, H = fail with answers 2 and
 * 3, E = cannot be asked; node 0 first. */
typedef struct history {
    const char *says;
    unsigned asked[MAX_NODES];
    size_t fail_at; /* the evaluation of this node is refused; SIZE_MAX: of none */
    double flip;    /* chance that a reply is turned round */
    uint64_t seed, draws;
} history;

static fm_status ask(void *ctx, const fm_blame_ask *a, size_t n, fm_blame_reply *out)
{
    history *h = ctx;
    for (size_t i = 0; i < n; i++) {
        char c = h->says[a[i].node];
        assert_int_equal(a[i].repeat, h->asked[a[i].node]);
        h->asked[a[i].node]++;
        if (a[i].node == h->fail_at)
            return fm_fail(FM_EIO, "disk");
        bool fails = c != 'P', flips = fm_rng_uniform(h->seed, 1, h->draws++) < h->flip;
        out[i] = (fm_blame_reply){fails ? FM_FAIL : FM_PASS, fails ? (uint64_t)(c - 'F' + 1) : 99,
                                  (double)NAN};
        if (c == 'E')
            out[i].verdict = FM_ERROR_CASE;
        else if (flips)
            out[i] = (fm_blame_reply){fails ? FM_PASS : FM_FAIL, 77 + h->draws, (double)NAN};
    }
    return FM_OK;
}

static void expect_with(const fm_blame_node *nodes, const char *says, bool all, fm_blame_class want,
                        size_t culprit, bool uncertain)
{
    history h = {.says = says, .fail_at = SIZE_MAX};
    fm_blame_history out;
    const fm_blame_oracle oracle = {.ctx = &h, .ask = ask};
    const fm_blame_opts opts = {.all_versions = all};
    size_t count = strlen(says), asked = 0;
    tk_ok(fm_blame_search(&out, nodes, count, &oracle, &opts));
    if (out.verdict != want || out.uncertain != uncertain ||
        (want != FM_BLAME_PASSES && culprit != SIZE_MAX && out.culprit != culprit))
        fail_msg("%s%s: %s (%s) at %zu, posterior %.3f%s %s", says, all ? " (all)" : "",
                 fm_blame_class_word(out.verdict), fm_blame_class_word(out.likely), out.culprit,
                 out.posterior, out.uncertain ? ", uncertain" : "", out.note);
    for (size_t i = 0; i < count; i++) {
        assert_true(h.asked[i] <= 1 && h.asked[i] == out.asks[i] && (h.asked[i] || !all));
        asked += h.asked[i];
        if (h.asked[i])
            assert_int_equal(out.at[i], says[i] == 'P'   ? FM_PASS
                                        : says[i] == 'E' ? FM_ERROR_CASE
                                                         : FM_FAIL);
    }
    assert_int_equal(asked, out.runs);
    assert_int_equal(asked, out.evidence_count);
    fm_blame_history_release(&out);
}

/* Asked of everything, and asked of as few as decide. */
static void expect_history(const fm_blame_node *nodes, const char *says, fm_blame_class want,
                           size_t culprit, bool uncertain)
{
    expect_with(nodes, says, true, want, culprit, uncertain);
    expect_with(nodes, says, false, want, culprit, uncertain);
}

/* Node i has the parent i + 1. */
static const size_t next[MAX_NODES] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static void make_chain(fm_blame_node *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        nodes[i] = (fm_blame_node){&next[i], i + 1 < count, 0};
}

static void expect_chain(const char *says, fm_blame_class want, size_t culprit, bool uncertain)
{
    fm_blame_node nodes[MAX_NODES];
    make_chain(nodes, strlen(says));
    expect_history(nodes, says, want, culprit, uncertain);
}

TEST(chains_are_told_apart)
{
    expect_chain("PPP", FM_BLAME_PASSES, 0, false);
    expect_chain("PFF", FM_BLAME_PASSES, 0, false);
    expect_chain("F", FM_BLAME_INHERITED, 0, false);
    expect_chain("FFF", FM_BLAME_INHERITED, 2, false);
    expect_chain("FP", FM_BLAME_INTRODUCED, 0, false);
    expect_chain("FFFPP", FM_BLAME_INTRODUCED, 2, false);
    expect_chain("FFPF", FM_BLAME_EXPOSED, 1, false);
    expect_chain("FFPG", FM_BLAME_REINTRODUCED, 1, false);
    expect_chain("FGPPG", FM_BLAME_EXPOSED, 1, false); /* the culprit's answer counts */
    expect_with((const fm_blame_node[]){{&next[0], 1, 0},
                                        {&next[1], 1, 0},
                                        {&next[2], 1, 0},
                                        {&next[3], 1, 0},
                                        {&next[4], 1, 0},
                                        {&next[5], 1, 0},
                                        {&next[6], 1, 0},
                                        {NULL, 0, 0}},
                "FFPPPGPP", true, FM_BLAME_REINTRODUCED, 1, false);
}

TEST(unaskable_versions_are_looked_through_and_admitted)
{
    expect_chain("FEP", FM_BLAME_CANNOT_TELL, SIZE_MAX, true); /* 0 or 1 */
    expect_chain("FFEEPP", FM_BLAME_CANNOT_TELL, SIZE_MAX, true);
    expect_chain("FE", FM_BLAME_CANNOT_TELL, SIZE_MAX, true);
}

static const size_t both[] = {1, 2}, base[] = {3};

TEST(merges_pass_the_blame_to_their_failing_side)
{
    /* 0 merges 1 and 2; both come from 3. */
    const fm_blame_node diamond[] = {{both, 2, 0}, {base, 1, 0}, {base, 1, 0}, {NULL, 0, 0}};
    expect_history(diamond, "FPPP", FM_BLAME_INTERACTION, 0, false);
    expect_history(diamond, "FPFP", FM_BLAME_INTRODUCED, 2, false);
    expect_history(diamond, "FFPP", FM_BLAME_INTRODUCED, 1, false);
    expect_history(diamond, "FFFP", FM_BLAME_INTRODUCED, 1, false);
    expect_history(diamond, "FFFF", FM_BLAME_INHERITED, 3, false);
    /* Two mends in one history are rare: they are seen where all is asked. */
    expect_with(diamond, "FPPF", true, FM_BLAME_EXPOSED, 0, false);        /* both hid it */
    expect_with(diamond, "FPPG", true, FM_BLAME_REINTRODUCED, 0, false);   /* both mended it */
    expect_history(diamond, "FPFF", FM_BLAME_REINTRODUCED, 0, false);      /* one had mended it */
    expect_history(diamond, "FPEP", FM_BLAME_CANNOT_TELL, SIZE_MAX, true); /* 0 or 2 */
    /* Two roots: the failing one always failed, the other knows nothing of it. */
    const fm_blame_node roots[] = {{both, 2, 0}, {NULL, 0, 0}, {NULL, 0, 0}};
    expect_history(roots, "FPF", FM_BLAME_INHERITED, 2, false);
    expect_history(roots, "FPP", FM_BLAME_INTERACTION, 0, false);
}

TEST(a_start_that_cannot_run_is_an_error_and_errors_come_through)
{
    fm_blame_node nodes[] = {{&next[0], 1, 0}, {NULL, 0, 0}};
    fm_blame_history out;
    history h = {.says = "EP", .fail_at = SIZE_MAX}, broken = {.says = "FP", .fail_at = 1};
    const fm_blame_oracle bad = {.ctx = &h, .ask = ask}, refusing = {.ctx = &broken, .ask = ask};
    const fm_blame_opts opts = {0}, wrong = {.flip_rate = 0.6}, sure = {.confidence = 1};
    tk_fails(fm_blame_search(&out, nodes, 2, &bad, &opts), FM_EUNSUPPORTED, "cannot be run");
    assert_null(out.at);
    assert_int_equal(h.asked[1], 0);
    tk_fails(fm_blame_search(&out, nodes, 2, &refusing, &opts), FM_EIO, "disk");
    assert_null(out.at);
    tk_fails(fm_blame_search(&out, nodes, 2, &bad, &wrong), FM_EINVAL, "flip rate");
    tk_fails(fm_blame_search(&out, nodes, 2, &bad, &sure), FM_EINVAL, "confidence");
}

/* ---- random graphs ---- */

typedef struct graph {
    fm_blame_node node[MAX_NODES];
    size_t parent[MAX_NODES][2], count;
    char says[MAX_NODES + 1];
} graph;

static uint64_t below(uint64_t round, uint64_t *draw, uint64_t n)
{
    return fm_rng_below(7, round, (*draw)++, n);
}

/* A graph all of whose versions lead to node 0, one in three of them a merge. */
static void random_graph(graph *g, uint64_t round, uint64_t *draw)
{
    g->count = 3 + below(round, draw, MAX_NODES - 3);
    memset(g->says, 0, sizeof g->says);
    for (size_t i = 0; i < g->count; i++) {
        size_t *p = g->parent[i], n = 0, later = g->count - 1 - i;
        if (later) {
            p[n++] = i + 1; /* so that none is left out */
            if (later > 1 && below(round, draw, 3) == 0)
                p[n++] = i + 2 + below(round, draw, later - 1);
        }
        if (n == 2 && below(round, draw, 2)) {
            size_t t = p[0];
            p[0] = p[1];
            p[1] = t;
        }
        g->node[i] = (fm_blame_node){p, n, 0};
    }
}

/* One version breaks (or the root fails); a merge of a failing and a passing line fails or not. */
static void plant_one(graph *g, uint64_t round, uint64_t *draw)
{
    for (bool again = true; again;) {
        size_t culprit = below(round, draw, g->count);
        for (size_t i = g->count; i-- > 0;) {
            size_t failing = 0;
            for (size_t p = 0; p < g->node[i].parent_count; p++)
                failing += g->says[g->node[i].parent[p]] == 'F';
            bool fails = i == culprit || (failing && failing == g->node[i].parent_count) ||
                         (failing && below(round, draw, 2));
            g->says[i] = fails ? 'F' : 'P';
        }
        again = g->says[0] != 'F';
    }
}

static fm_blame_history searched(const graph *g, history *h, fm_blame_opts opts)
{
    fm_blame_history out;
    const fm_blame_oracle oracle = {.ctx = h, .ask = ask};
    h->says = g->says;
    h->fail_at = SIZE_MAX;
    memset(h->asked, 0, sizeof h->asked);
    tk_ok(fm_blame_search(&out, g->node, g->count, &oracle, &opts));
    return out;
}

/* Without noise, the few asks say what all asks say. */
TEST(few_asks_say_what_all_say)
{
    uint64_t few = 0, all = 0, wrong = 0;
    for (uint64_t round = 0; round < 400; round++) {
        graph g;
        uint64_t draw = 0;
        history h = {0};
        random_graph(&g, round, &draw);
        plant_one(&g, round, &draw);
        fm_blame_history a = searched(&g, &h, (fm_blame_opts){.all_versions = true});
        fm_blame_history b = searched(&g, &h, (fm_blame_opts){0});
        assert_true(a.posterior == 1);
        if (a.verdict != b.verdict || a.culprit != b.culprit) {
            wrong++;
            print_message("%s: %s at %zu, but %s at %zu (%.3f)\n", g.says,
                          fm_blame_class_word(a.verdict), a.culprit, fm_blame_class_word(b.verdict),
                          b.culprit, b.posterior);
        }
        few += b.runs;
        all += a.runs;
        fm_blame_history_release(&a);
        fm_blame_history_release(&b);
    }
    print_message("%llu asks instead of %llu, %llu of 400 differ\n", (unsigned long long)few,
                  (unsigned long long)all, (unsigned long long)wrong);
    assert_true(wrong == 0 && few * 4 < all * 3);
}

/* With noise, the stated confidence is kept, over few asks. */
TEST(noise_is_borne)
{
    for (double flip = 0.05; flip < 0.11; flip += 0.05) {
        unsigned right = 0, rounds = 60;
        uint64_t runs = 0;
        for (uint64_t round = 0; round < rounds; round++) {
            graph g;
            uint64_t draw = 0;
            history h = {.flip = flip, .seed = round};
            random_graph(&g, round, &draw);
            plant_one(&g, round, &draw);
            history still = {0};
            fm_blame_history a = searched(&g, &still, (fm_blame_opts){.all_versions = true});
            fm_blame_history b = searched(&g, &h, (fm_blame_opts){.flip_rate = flip});
            right += a.verdict == b.verdict && a.culprit == b.culprit;
            runs += b.runs;
            fm_blame_history_release(&a);
            fm_blame_history_release(&b);
        }
        print_message("flip %.2f: %u of %u right, %.1f asks\n", flip, right, rounds,
                      (double)runs / rounds);
        assert_true(right >= rounds * 95 / 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_start_that_cannot_run_is_an_error_and_errors_come_through),
        cmocka_unit_test(chains_are_told_apart),
        cmocka_unit_test(unaskable_versions_are_looked_through_and_admitted),
        cmocka_unit_test(merges_pass_the_blame_to_their_failing_side),
        cmocka_unit_test(few_asks_say_what_all_say),
        cmocka_unit_test(noise_is_borne),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
