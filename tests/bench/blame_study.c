/* blame_study.c - where in history: blame's search and its rivals over recorded outcomes, with some
 * of them flipped. */
#include "tests/bench/blame_bench.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "testing/stats.h"

/* ==== figures ============================================================================== */

void bb_count(bb_rate *r, bool hit)
{
    r->hit += hit;
    r->of++;
}

const char *bb_rate_text(const bb_rate *r)
{
    static char slot[8][48];
    static unsigned next;
    char *s = slot[next++ % 8];
    const fm_interval w = fm_wilson(r->hit, r->of, 0.95);
    snprintf(s, sizeof slot[0], r->of ? "%.1f [%.1f, %.1f]" : "-",
             100.0 * (double)r->hit / (double)FM_MAX(r->of, (size_t)1), 100 * w.low, 100 * w.high);
    return s;
}

double bb_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ==== noise ================================================================================ */

enum { STREAM_CASE = 100, STREAM_FORM, STREAM_MIX, STREAM_RANDOM };

typedef struct noisy {
    bench *b;
    bb_family *f;
    double flip;
    uint64_t seed;
    uint32_t asked; /* cases, forms and mixtures alike */
} noisy;

/* A flipped outcome: right where it was wrong, or wrong in a way of its own. */
static fm_blame_reply heard(const noisy *n, bb_outcome o, uint64_t stream, uint64_t index)
{
    fm_blame_reply r = {o.verdict, o.answer, NAN};
    if (o.verdict == FM_ERROR_CASE || fm_rng_uniform(n->seed, stream, index) >= n->flip)
        return r;
    r.verdict = o.verdict == FM_PASS ? FM_FAIL : FM_PASS;
    r.answer = fm_rng_u64(n->seed, stream + 50, index) | 1;
    return r;
}

/* Of a sampled case each seed of the study begins at another of the recorded repeats. */
static fm_blame_reply ask_one(noisy *n, size_t node, uint32_t repeat)
{
    const bb_family *f = n->f;
    const size_t again = f->repeats ? (size_t)((n->seed + repeat) % f->repeats) : 0;
    n->asked++;
    return heard(n, f->repeats ? f->again[node * f->repeats + again] : f->at[node], STREAM_CASE,
                 (uint64_t)node << 32 | repeat);
}

static fm_status ask(void *ctx, const fm_blame_ask *q, size_t n, fm_blame_reply *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = ask_one(ctx, q[i].node, q[i].repeat);
    return FM_OK;
}

static fm_status forms(void *ctx, const size_t *node, size_t n, uint64_t wrong, fm_blame_forms *out)
{
    noisy *z = ctx;
    for (size_t i = 0; i < n; i++) {
        out[i] = (fm_blame_forms){.asked = (uint32_t)z->f->forms, .chance = 0.02};
        for (size_t k = 0; k < z->f->forms; k++) {
            const size_t at = node[i] * z->f->forms + k;
            z->asked++;
            out[i].same += heard(z, z->f->form[at], STREAM_FORM, at).answer == wrong;
        }
    }
    return FM_OK;
}

static fm_status mix(void *ctx, const fm_blame_mix *m, size_t n, fm_blame_reply *out)
{
    noisy *z = ctx;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        bb_outcome o = {FM_ERROR_CASE, 0};
        uint64_t which = m[i].repeat;
        for (size_t k = 0; k < m[i].count; k++)
            which = which * 131 + m[i].step[k] + 1;
        rc = bb_mix_steps(z->b, z->f, m[i].step, m[i].count, &o);
        z->asked++;
        out[i] = heard(z, o, STREAM_MIX, which);
    }
    return rc;
}

/* ==== rivals =============================================================================== */

typedef struct accused {
    size_t culprit;
    fm_blame_class verdict;
    uint32_t asked;
} accused;

/* git bisect along first parents: the tip is bad, the root good, each version is asked once. */
static accused bisect(noisy *n)
{
    const bb_family *f = n->f;
    size_t line[256], count = 0, at = 0;
    accused a = {0, FM_BLAME_PASSES, 0};
    n->asked = 0;
    for (; count < FM_ARRAY_LEN(line); at = f->node[at].parent[0]) {
        line[count++] = at;
        if (!f->node[at].parent_count)
            break;
    }
    size_t bad = 0, good = count - 1;
    const bool tip_fails = ask_one(n, line[bad], 0).verdict == FM_FAIL;
    if (tip_fails && ask_one(n, line[good], 0).verdict == FM_FAIL)
        a = (accused){line[good], FM_BLAME_INHERITED, 0};
    else if (tip_fails) {
        while (good - bad > 1) {
            const size_t mid = (bad + good) / 2;
            if (ask_one(n, line[mid], 0).verdict == FM_FAIL)
                bad = mid;
            else
                good = mid;
        }
        a = (accused){line[bad], FM_BLAME_INTRODUCED, 0};
    }
    a.asked = n->asked;
    return a;
}

/* Any version, and the verdict that planted faults mostly have. */
static accused at_random(const noisy *n)
{
    return (accused){(size_t)fm_rng_below(n->seed, STREAM_RANDOM, 0, n->f->count),
                     FM_BLAME_INTRODUCED, 0};
}

/* ==== the study ============================================================================ */

typedef struct tally {
    bb_rate commit, verdict;
    double asked, whole, cpu; /* whole: of an exhaustive search */
    size_t cannot;
} tally;

enum { BLAME, BISECT, RANDOM, HOWS };
static const char *const how_name[HOWS] = {"blame", "binary search", "random"};
static const double flips[] = {0, 0.05, 0.10};
enum { FLIPS = 3, KINDS = 5 };
static const char kinds[KINDS + 1] = "abcde";

/* Everything that could be asked, each often enough that a majority is wrong less than once in 100:
 * the case and its forms at every version, and every step alone on the root. */
static double exhaustive(const bb_family *f, double flip)
{
    const double often = flip > 0.07 ? 5 : flip > 0 ? 3 : 1;
    const double steps = (double)f->count - 1;
    if (f->repeats)
        return (double)(f->count * f->repeats);
    return often * ((double)f->count * (double)(1 + f->forms) + steps);
}

static void add(tally *t, const bb_family *f, const accused *a, double flip)
{
    const bool guilty = f->truth != FM_BLAME_PASSES && f->truth != FM_BLAME_FLAKY;
    if (guilty)
        bb_count(&t->commit, a->culprit == f->culprit && a->verdict != FM_BLAME_PASSES);
    bb_count(&t->verdict, a->verdict == f->truth);
    t->cannot += a->verdict == FM_BLAME_CANNOT_TELL;
    t->asked += a->asked;
    t->whole += exhaustive(f, flip);
}

/* Prints each wrong answer, so that it can be looked into. */
static void tell(const bb_family *f, const accused *a, double flip, uint64_t seed, const char *note)
{
    const bool guilty = f->truth != FM_BLAME_PASSES && f->truth != FM_BLAME_FLAKY;
    if (a->verdict == f->truth && (!guilty || a->culprit == f->culprit))
        return;
    fprintf(stderr,
            "    wrong: %s (%s) flip %.2f seed %llu: %s at %zu, planted %s at %zu of %zu; %s\n",
            f->id, f->what, flip, (unsigned long long)seed, fm_blame_class_word(a->verdict),
            a->culprit, fm_blame_class_word(f->truth), f->culprit, f->count, note);
}

static fm_status search_one(noisy *n, accused *a)
{
    const fm_blame_oracle oracle = {n, ask, n->f->forms ? forms : NULL, mix};
    /* What samples is known to; then the rate is measured. */
    const fm_blame_opts opts = {.flip_rate = n->f->repeats ? FM_BLAME_MEASURE : n->flip,
                                .confidence = n->b->confidence};
    fm_blame_history h;
    n->asked = 0;
    fm_status rc = fm_blame_search(&h, n->f->node, n->f->count, &oracle, &opts);
    if (rc != FM_OK)
        return rc;
    *a = (accused){h.culprit, h.verdict, n->asked};
    tell(n->f, a, n->flip, n->seed, h.note);
    fm_blame_history_release(&h);
    return FM_OK;
}

static fm_status study_family(bench *b, bb_family *f, unsigned seeds, size_t flip,
                              tally t[KINDS + 1][HOWS])
{
    const size_t kind = (size_t)(strchr(kinds, f->kind) - kinds);
    fm_status rc = FM_OK;
    for (unsigned s = 0; rc == FM_OK && s < (flip ? seeds : 1); s++) {
        noisy n = {b, f, flips[flip], fm_rng_u64(b->seed, (uint64_t)(f - b->family), s), 0};
        accused a[HOWS] = {{0}};
        const double begun = bb_cpu_s();
        rc = search_one(&n, &a[BLAME]);
        const double took = bb_cpu_s() - begun;
        a[BISECT] = bisect(&n);
        a[RANDOM] = at_random(&n);
        for (int h = 0; rc == FM_OK && h < HOWS; h++) {
            add(&t[kind][h], f, &a[h], flips[flip]);
            add(&t[KINDS][h], f, &a[h], flips[flip]);
        }
        t[kind][BLAME].cpu += took;
        t[KINDS][BLAME].cpu += took;
    }
    return rc;
}

static void print_tally(const char *kind, double flip, const char *how, const tally *t)
{
    if (!t->verdict.of)
        return;
    printf("| %s | %.0f | %s | %zu | %s | %s | %zu | %.1f | %.1f |\n", kind, 100 * flip, how,
           t->verdict.of, bb_rate_text(&t->commit), bb_rate_text(&t->verdict), t->cannot,
           t->asked / (double)t->verdict.of, 100 * t->asked / t->whole);
}

fm_status bb_study_history(bench *b, unsigned seeds)
{
    fm_status rc = FM_OK;
    printf(
        "\n| kind | flips %% | how | searches | commit right %% | verdict right %% | cannot tell | "
        "asks | %% of all |\n|---|---|---|---|---|---|---|---|---|\n");
    for (size_t flip = 0; rc == FM_OK && flip < FLIPS; flip++) {
        tally t[KINDS + 1][HOWS];
        memset(t, 0, sizeof t);
        for (size_t i = 0; rc == FM_OK && i < b->count; i++)
            if (!b->family[i].discard)
                rc = study_family(b, &b->family[i], seeds, flip, t);
        for (size_t k = 0; k < KINDS; k++)
            print_tally((char[]){kinds[k], 0}, flips[flip], how_name[BLAME], &t[k][BLAME]);
        for (int h = 0; h < HOWS; h++)
            print_tally("all", flips[flip], how_name[h], &t[KINDS][h]);
        fflush(stdout);
    }
    return rc;
}
