/* crash.c - a command dies: nothing that was there before is lost. */
#include <signal.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "tests/fault/kit/fault_kit.h"

typedef struct point {
    const fk_command *c;
    fk_fate fate; /* at 0: at a time */
    uint64_t us;
    uint64_t n;
    bool on_top, again;
} point;

static point point_of(const fk_world *w, uint64_t seed, uint64_t n)
{
    point p = {.n = n};
    p.c = &w->command[fm_rng_below(seed, 1, n, w->commands)];
    p.on_top = fm_rng_below(seed, 2, n, 2) == 0;
    p.again = fm_rng_below(seed, 3, n, 8) == 0;
    p.us = fm_rng_below(seed, 4, n, p.c->us);
    if (fm_rng_below(seed, 5, n, 4) != 0) {
        p.fate.at = 1 + fm_rng_below(seed, 6, n, p.c->calls);
        bool write = p.c->kind[p.fate.at - 1] == REC_WRITE;
        p.fate.how = write && fm_rng_below(seed, 7, n, 2) == 0 ? "TORN" : "KILL";
    }
    return p;
}

static void fail_point(fk_crashes *out, const point *p, const char *what, const char *why)
{
    if (++out->failures <= 20)
        print_error("point %llu: %s, %s %llu%s: %s: %s\n", (unsigned long long)p->n, p->c->name,
                    p->fate.at ? p->fate.how : "after us",
                    (unsigned long long)(p->fate.at ? p->fate.at : p->us),
                    p->on_top ? " on top of the point before" : "", what, why);
}

static void again(fk_world *w, fk_crashes *out, const point *p)
{
    fk_refs now;
    fk_refs_of(&now, w->work);
    bool landed = fk_refs_equal(&now, &p->c->after);
    fk_age(w->work);
    int code = fk_run(w, p->c, NULL);
    if (code != 0 && !landed)
        fail_point(out, p, "cannot be done again", fk_said());
    const char *wrong = fk_wrong(w->work, &w->before, &p->c->after, code == 0);
    if (*wrong)
        fail_point(out, p, "done again", wrong);
    out->done_again++;
}

/* True when the next point may come on top. */
static bool crash_one(fk_world *w, fk_crashes *out, const point *p)
{
    int code = p->fate.at ? fk_run(w, p->c, &p->fate) : fk_run_until(w, p->c, p->us);
    out->points++;
    out->killed += code == -SIGKILL;
    if (code != 0 && code != -SIGKILL)
        fail_point(out, p, "fails", fk_said());
    const char *wrong = fk_wrong(w->work, &w->before, &p->c->after, code == 0);
    if (*wrong)
        fail_point(out, p, "afterwards", wrong);
    if (p->again) {
        again(w, out, p);
        return false;
    }
    fk_refs now;
    fk_refs_of(&now, w->work);
    bool moved = !fk_refs_equal(&now, &w->before);
    out->landed += moved;
    return !moved && !*wrong;
}

void fk_crash(fk_world *w, uint64_t seed, uint64_t first, unsigned n, fk_crashes *out)
{
    bool may_stay = false;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < w->commands; i++)
        if (!w->command[i].kind)
            fk_learn(w, &w->command[i]);
    for (uint64_t i = first; i < first + n; i++) {
        point p = point_of(w, seed, i);
        p.on_top = p.on_top && may_stay;
        if (p.on_top)
            fk_age(w->work); /* a lock of a dead process is waited for while it is young */
        else
            fk_reset(w);
        may_stay = crash_one(w, out, &p);
    }
    print_message("seed %llu: %u crash points, %u killed, %u had landed, %u done again; "
                  "%u with anything lost\n",
                  (unsigned long long)seed, out->points, out->killed, out->landed, out->done_again,
                  out->failures);
}
