/* bench_search.c - how often blame's searches are right, and what they ask for it, on made-up
 * histories.
 *
 *   bench_search [TRIALS]
 *
 * Histories: chains, and graphs with one merge in three versions. What is planted: one break
 * (introduced, inherited, interaction), an old fault that was hidden and comes back (exposed), a
 * coin at every version (flaky), nothing (passes). Outcomes are flipped by a seeded counter
 * generator. Beside it: plain bisection along first parents, the same with the majority of
 * three, and every version asked often enough that its majority is right 99 times in 100. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/base/math/rng.h"
#include "testing/blame.h"

#define MOST 64

typedef enum planted { BREAK, EXPOSED, COIN, NOTHING, PLANTED } planted;
static const char *const planted_word[PLANTED] = {"one break", "exposed", "flaky", "nothing"};

typedef struct history {
    fm_blame_node node[MOST];
    size_t parent[MOST][2], count;
    bool fails[MOST];
    bool coin;
    double flip;
    uint64_t seed, draws;
    uint32_t asks;
} history;

typedef struct draw {
    uint64_t round, at;
} draw;

static uint64_t below(draw *d, uint64_t n)
{
    return fm_rng_below(17, d->round, d->at++, n);
}

static bool heard(history *h, size_t node)
{
    double rate = h->coin ? 0.5 : h->fails[node] ? 1 - h->flip : h->flip;
    h->asks++;
    return fm_rng_uniform(h->seed, 9, h->draws++) < rate;
}

static fm_status ask(void *ctx, const fm_blame_ask *a, size_t n, fm_blame_reply *out)
{
    history *h = ctx;
    for (size_t i = 0; i < n; i++) {
        bool fails = heard(h, a[i].node);
        /* An outcome that was flipped comes with an answer of its own. */
        out[i] = (fm_blame_reply){fails ? FM_FAIL : FM_PASS,
                                  fails && h->fails[a[i].node] ? 1 : 100 + h->draws, (double)NAN};
    }
    return FM_OK;
}

/* ---- planting ---- */

static void make_graph(history *h, size_t count, bool merges, draw *d)
{
    h->count = count;
    for (size_t i = 0; i < count; i++) {
        size_t n = 0, later = count - 1 - i;
        if (later)
            h->parent[i][n++] = i + 1;
        if (merges && later > 1 && below(d, 3) == 0)
            h->parent[i][n++] = i + 2 + below(d, later - 1);
        h->node[i] = (fm_blame_node){h->parent[i], n, 0};
    }
}

static bool plant_once(history *h, planted what, draw *d)
{
    size_t breaks = below(d, h->count), mends = SIZE_MAX;
    if (what == EXPOSED &&
        h->count >= 3) { /* the root fails, a step hides it, a later one shows it */
        mends = 1 + below(d, h->count - 2);
        breaks = below(d, mends);
    }
    for (size_t i = h->count; i-- > 0;) {
        size_t failing = 0;
        for (size_t p = 0; p < h->node[i].parent_count; p++)
            failing += h->fails[h->node[i].parent[p]];
        bool mixed = failing && failing < h->node[i].parent_count;
        h->fails[i] = mixed ? below(d, 2) : failing > 0;
        if (what == BREAK || what == EXPOSED)
            h->fails[i] =
                (h->fails[i] || i == breaks || (what == EXPOSED && !h->node[i].parent_count)) &&
                i != mends;
        else
            h->fails[i] = false;
    }
    return what == COIN || h->fails[0] == (what != NOTHING);
}

/* ---- rivals ---- */

static bool majority(history *h, size_t node, unsigned of)
{
    unsigned fails = 0;
    for (unsigned i = 0; i < of; i++)
        fails += heard(h, node);
    return 2 * fails > of;
}

/* Down the first parents, as if they were all there is; the root is taken to pass. */
static size_t bisected(history *h, unsigned of)
{
    size_t line[MOST], n = 0;
    for (size_t at = 0;; at = h->node[at].parent[0]) {
        line[n++] = at;
        if (!h->node[at].parent_count)
            break;
    }
    size_t lo = 0, hi = n - 1; /* line[lo] fails, line[hi] passes */
    while (hi > lo + 1) {
        size_t mid = (lo + hi) / 2;
        if (majority(h, line[mid], of))
            lo = mid;
        else
            hi = mid;
    }
    return line[lo];
}

static unsigned repeats_for(double flip)
{
    for (unsigned of = 1;; of += 2) {
        double wrong = 0;
        for (unsigned k = of / 2 + 1; k <= of; k++)
            wrong += exp(lgamma(of + 1.0) - lgamma(k + 1.0) - lgamma(of - k + 1.0) +
                         k * log(flip + 1e-300) + (of - k) * log1p(-flip));
        if (wrong <= 0.01)
            return of;
    }
}

/* ---- the table ---- */

typedef struct row {
    unsigned commit, verdict, told, plain, thrice;
    uint64_t asks, plain_asks, thrice_asks;
    double posterior, rounds;
} row;

static fm_blame_class truth_of(const history *h, planted what, size_t *culprit)
{
    history still = *h;
    fm_blame_history out;
    const fm_blame_oracle oracle = {.ctx = &still, .ask = ask};
    const fm_blame_opts opts = {.all_versions = true};
    still.flip = 0;
    *culprit = 0;
    if (what == COIN)
        return FM_BLAME_FLAKY;
    if (fm_blame_search(&out, h->node, h->count, &oracle, &opts) < 0)
        exit(1);
    fm_blame_class class = out.verdict;
    *culprit = out.culprit;
    fm_blame_history_release(&out);
    return class;
}

static void try_one(row *r, size_t count, bool merges, planted what, double flip, uint64_t round)
{
    draw d = {round * 64 + count * 2 + merges, 0};
    history h = {.flip = flip, .seed = round, .coin = what == COIN};
    fm_blame_history out;
    const fm_blame_oracle oracle = {.ctx = &h, .ask = ask};
    const fm_blame_opts opts = {.flip_rate = flip};
    size_t culprit;
    make_graph(&h, count, merges, &d);
    while (!plant_once(&h, what, &d))
        continue;
    fm_blame_class truth = truth_of(&h, what, &culprit);
    if (fm_blame_search(&out, h.node, h.count, &oracle, &opts) < 0)
        exit(1);
    bool blank = truth == FM_BLAME_FLAKY || truth == FM_BLAME_PASSES;
    r->verdict += out.verdict == truth && (blank || out.culprit == culprit);
    r->commit += blank ? out.verdict == truth : out.culprit == culprit;
    r->told += out.verdict != FM_BLAME_CANNOT_TELL;
    r->posterior += out.posterior;
    r->asks += h.asks;
    r->rounds += out.rounds;
    fm_blame_history_release(&out);
    h.asks = 0;
    r->plain += bisected(&h, 1) == culprit;
    r->plain_asks += h.asks;
    h.asks = 0;
    r->thrice += bisected(&h, 3) == culprit;
    r->thrice_asks += h.asks;
}

static void print_row(size_t count, bool merges, planted what, double flip, unsigned trials)
{
    row r = {0};
    unsigned of = repeats_for(flip);
    for (uint64_t round = 0; round < trials; round++)
        try_one(&r, count, merges, what, flip, round);
    printf("| %s %zu | %s | %.2f | %.1f | %.1f | %.1f | %.3f | %.1f | %.1f | %.0f %% |",
           merges ? "graph" : "chain", count, planted_word[what], flip, 100.0 * r.commit / trials,
           100.0 * r.verdict / trials, 100.0 * r.told / trials, r.posterior / trials,
           (double)r.asks / trials, r.rounds / trials,
           100.0 * (double)r.asks / trials / (double)(count * of));
    if (what == BREAK && !merges)
        printf(" %.1f in %.1f, %.1f in %.1f |\n", 100.0 * r.plain / trials,
               (double)r.plain_asks / trials, 100.0 * r.thrice / trials,
               (double)r.thrice_asks / trials);
    else
        printf(" |\n");
}

int main(int argc, char **argv)
{
    static const size_t counts[] = {8, 13};
    static const double flips[] = {0, 0.05, 0.1};
    unsigned trials = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 300;
    printf("%u histories a row; flaky needs a flip rate\n\n", trials);
    printf("| history | planted | flip | commit %% | verdict %% | told %% | posterior | asks | "
           "rounds | "
           "of asking all | plain bisection, of three: right %% in asks |\n");
    printf("|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t k = 0; k < FM_ARRAY_LEN(counts); k++)
        for (int merges = 0; merges < 2; merges++)
            for (int what = BREAK; what < PLANTED; what++)
                for (size_t f = 0; f < FM_ARRAY_LEN(flips); f++)
                    if (what != COIN || flips[f] > 0)
                        print_row(counts[k], merges, (planted)what, flips[f], trials);
    return 0;
}
