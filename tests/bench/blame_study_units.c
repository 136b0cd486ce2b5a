/* blame_study_units.c - which tensors: minimal sets of a damaged step against what was damaged. */
#include "tests/bench/blame_bench.h"

#include <math.h>
#include <string.h>

typedef struct noisy_units {
    bb_units u;
    double flip;
    uint64_t seed;
    bool turned; /* take = set back; "fails" = the child passes */
    bool *keep;  /* scratch */
} noisy_units;

static uint64_t name_of(const bool *take, size_t n, uint32_t repeat)
{
    uint64_t h = 1469598103934665603u ^ repeat;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (take[i] ? 2u : 1u)) * 1099511628211u;
    return h;
}

static fm_status ask(void *ctx, const fm_mixture *m, size_t n, fm_mixture_reply *out)
{
    noisy_units *z = ctx;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        bb_outcome o = {FM_ERROR_CASE, 0};
        for (size_t k = 0; k < z->u.count; k++)
            z->keep[k] = m[i].take[k] != z->turned;
        rc = bb_mix_units(&z->u, z->keep, &o);
        const bool flip =
            fm_rng_uniform(z->seed, 7, name_of(z->keep, z->u.count, m[i].repeat)) < z->flip;
        const bool fails = (o.verdict == FM_FAIL) != flip;
        out[i] = (fm_mixture_reply){fails != z->turned, o.verdict == FM_ERROR_CASE, NAN};
    }
    return rc;
}

/* ==== rivals =============================================================================== */

static fm_status fails_with(noisy_units *z, const bool *take, bool *fails)
{
    const fm_mixture m = {take, 0};
    fm_mixture_reply r;
    fm_status rc = ask(z, &m, 1, &r);
    *fails = r.fails;
    return rc;
}

/* One unit by halving the list: the failing half is gone on with, else the other one. */
static fm_status halve(noisy_units *z, size_t *found, uint32_t *asked)
{
    size_t low = 0, high = z->u.count;
    fm_status rc = FM_OK;
    bool *take = fm_calloc(high + 1, sizeof *take), fails = false;
    if (!take)
        return FM_ENOMEM;
    *asked = 0;
    while (rc == FM_OK && high - low > 1) {
        const size_t mid = (low + high) / 2;
        for (size_t i = 0; i < z->u.count; i++)
            take[i] = i >= low && i < mid;
        rc = fails_with(z, take, &fails);
        ++*asked;
        if (fails)
            high = mid;
        else
            low = mid;
    }
    *found = low;
    fm_free(take);
    return rc;
}

/* ==== the study ============================================================================ */

typedef struct tally {
    bb_rate contains, small, halved, random;
    double size, asked, whole, halved_asked;
    size_t of;
} tally;

/* Is it true at all? The planted unit alone breaks the parent, and the child passes without it. */
static fm_status planted_alone(noisy_units *z, size_t planted, bool *enough, bool *needed)
{
    bb_outcome o;
    for (size_t k = 0; k < z->u.count; k++)
        z->keep[k] = k == planted;
    fm_status rc = bb_mix_units(&z->u, z->keep, &o);
    *enough = rc == FM_OK && o.verdict == FM_FAIL;
    for (size_t k = 0; k < z->u.count; k++)
        z->keep[k] = k != planted;
    if (rc == FM_OK)
        rc = bb_mix_units(&z->u, z->keep, &o);
    *needed = rc == FM_OK && o.verdict == FM_PASS;
    return rc;
}

static fm_status minimal(noisy_units *z, size_t planted, tally *t)
{
    const fm_blame_units units = {
        .count = z->u.count, .levels = 2, .group_of = {z->u.layer, z->u.block}};
    const fm_minimal_opts opts = {.flip_rate = z->flip, .confidence = z->u.b->confidence};
    fm_minimal_set set;
    fm_status rc = fm_blame_minimal(&set, &units, ask, z, &opts);
    if (rc != FM_OK)
        return rc;
    bb_count(&t->contains, set.take[planted]);
    bb_count(&t->small, set.size <= 3);
    if (!set.take[planted] || set.size > 3)
        fprintf(stderr, "    wrong: %s (%s) flip %.2f %s: %zu units%s, %u runs\n", z->u.f->id,
                z->u.f->what, z->flip, z->turned ? "to repair" : "to break", set.size,
                set.take[planted] ? "" : ", the damaged one is not among them", set.runs);
    t->size += (double)set.size;
    t->asked += set.runs;
    t->whole += (z->flip > 0.07 ? 5 : z->flip > 0 ? 3 : 1) * (double)(z->u.count + 2);
    t->of++;
    fm_free(set.take);
    return FM_OK;
}

static fm_status study_one(noisy_units *z, size_t planted, unsigned seeds, tally t[3][2])
{
    static const double flips[3] = {0, 0.05, 0.10};
    fm_status rc = FM_OK;
    for (size_t f = 0; rc == FM_OK && f < 3; f++)
        for (unsigned s = 0; rc == FM_OK && s < (f ? seeds : 1); s++) {
            size_t found = 0;
            uint32_t asked = 0;
            z->flip = flips[f];
            z->seed = fm_rng_u64(z->u.b->seed, 500 + s, planted);
            for (int turned = 0; rc == FM_OK && turned < 2; turned++) {
                z->turned = turned;
                rc = minimal(z, planted, &t[f][turned]);
            }
            z->turned = false;
            if (rc == FM_OK)
                rc = halve(z, &found, &asked);
            bb_count(&t[f][0].halved, found == planted);
            t[f][0].halved_asked += asked;
            bb_count(&t[f][0].random,
                     fm_rng_below(z->seed, 9, s, FM_MAX(z->u.count, (size_t)1)) == planted);
        }
    return rc;
}

static void print(tally t[3][2])
{
    printf("\n| set | flips %% | searches | holds the damaged %% | at most 3 units %% | units | "
           "runs | %% "
           "of all |\n|---|---|---|---|---|---|---|---|\n");
    for (size_t f = 0; f < 3; f++)
        for (int k = 0; k < 2; k++) {
            const tally *x = &t[f][k];
            const double n = (double)FM_MAX(x->of, (size_t)1);
            printf("| %s | %d | %zu | %s | %s | %.1f | %.1f | %.1f |\n",
                   k ? "to repair" : "to break", (int)(5 * f), x->of, bb_rate_text(&x->contains),
                   bb_rate_text(&x->small), x->size / n, x->asked / n,
                   x->whole > 0 ? 100 * x->asked / x->whole : 0);
        }
    for (size_t f = 0; f < 3; f++)
        printf("| rival: binary search | %d | %zu | %s | - | 1 | %.1f | |\n| rival: random | %d | "
               "%zu | %s | - | 1 | 0 | |\n",
               (int)(5 * f), t[f][0].halved.of, bb_rate_text(&t[f][0].halved),
               t[f][0].halved_asked / (double)FM_MAX(t[f][0].halved.of, (size_t)1), (int)(5 * f),
               t[f][0].random.of, bb_rate_text(&t[f][0].random));
    fflush(stdout);
}

fm_status bb_study_units(bench *b, unsigned seeds)
{
    tally t[3][2];
    size_t untrue = 0, counted = 0;
    fm_status rc = FM_OK;
    memset(t, 0, sizeof t);
    for (size_t i = 0; rc == FM_OK && i < b->count; i++) {
        bb_family *f = &b->family[i];
        const char *name = fm_json_cstr(fm_json_at(fm_json_get(f->plan, "planted"), 0), NULL);
        noisy_units z = {.flip = 0};
        fm_model *keep[2] = {NULL, NULL};
        bool enough = false, needed = false;
        if (f->discard || !name)
            continue;
        rc = bb_units_open(&z.u, b, f);
        z.keep = fm_calloc(z.u.count + 1, sizeof *z.keep);
        const size_t planted = bb_unit_find(&z.u, name);
        if (rc == FM_OK && (!z.keep || planted == SIZE_MAX))
            rc = z.keep ? fm_fail(FM_ENOTFOUND, "%s: no unit %s", f->id, name) : FM_ENOMEM;
        if (rc == FM_OK) /* resident, so that mixtures load nothing */
            rc = fm_ops_load_model(b->c, z.u.parent, "parent", &keep[0]);
        if (rc == FM_OK)
            rc = fm_ops_load_model(b->c, z.u.child, "child", &keep[1]);
        if (rc == FM_OK)
            rc = planted_alone(&z, planted, &enough, &needed);
        untrue += !(enough && needed);
        counted += enough && needed;
        if (rc == FM_OK && enough && needed)
            rc = study_one(&z, planted, seeds, t);
        fm_model_close(keep[0]);
        fm_model_close(keep[1]);
        fm_free(z.keep);
        bb_units_release(&z.u);
    }
    if (rc == FM_OK && counted) {
        printf("\ndamaged tensors: %zu steps counted; %zu left out, since the tensor alone does "
               "not break the parent, or "
               "its return not mend the child\n",
               counted, untrue);
        print(t);
    }
    return rc == FM_OK ? fm_result_flush(b->c->repo) : rc;
}
