/* ctest: plain again=FM_FAULT_EACH=2 cost=40 */
/* Every call by which a command changes files fails in turn, libgit2's and SQLite's too. Whatever
 * the failure: the repository opens, fsck is clean, every version reads with the bytes it had,
 * exit code 0 means that the work is there, and the command done again succeeds. A short or
 * interrupted write is nobody's error, nor is any interrupted call of ours; libgit2 and SQLite do
 * not try open and fsync again, which no local file system interrupts: there it may be a clean
 * failure.
 *   FM_FAULT_ALL=1: each call in each way; else one error in turn at the first call of each sort
 * (what
 *   is done to which sort of file) and at each FM_FAULT_EACH-th (12); FM_FAULT_SEED=n says which.
 *   FM_FAULT_ONLY=pattern of the tests to run ("*tag*"). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fault/kit/fault_kit.h"

typedef struct way {
    const char *how;
    bool forever;
} way;

static const way errors[] = {{"ENOSPC", false}, {"EIO", false}, {"ENOSPC", true},
                             {"EDQUOT", false}, {"EIO", true},  {"EDQUOT", true}};
static bool all;
static unsigned long seed, each;
static fk_world world;
static unsigned points, refused, failures;

static void failed(const fk_command *c, const fk_fate *f, const char *what, const char *why)
{
    failures++;
    if (failures <= 20)
        print_error("%s: call %llu (%c) %s%s: %s: %s\n  it said: %s\n", c->name,
                    (unsigned long long)f->at, (char)c->kind[f->at - 1], f->how,
                    f->forever ? " for ever" : "", what, why, fk_said());
}

/* In the middle of many writes one is like the next: libgit2 makes two for each object. */
static bool worth(const fk_command *c, uint64_t at)
{
    bool inside = at > 1 && at < c->calls && c->kind[at - 2] == REC_WRITE &&
                  c->kind[at - 1] == REC_WRITE && c->kind[at] == REC_WRITE;
    return all || c->first[at - 1] || (at + seed) % (inside ? 4 * each : each) == 0;
}

/* The command again, undisturbed: exit 0, or 128 where its work has landed already. */
static void again(const fk_command *c, const fk_fate *f)
{
    fk_refs now;
    fk_refs_of(&now, world.work);
    bool landed = fk_refs_equal(&now, &c->after);
    fk_age(world.work);
    int code = fk_run(&world, c, NULL);
    if (code != 0 && !landed)
        failed(c, f, "the second run fails", fk_said());
    const char *wrong = fk_wrong(world.work, &world.before, &c->after, code == 0);
    if (*wrong)
        failed(c, f, "after the second run", wrong);
}

static void one(const fk_command *c, const fk_fate *f, bool survives)
{
    fk_reset(&world);
    int code = fk_run(&world, c, f);
    points++;
    refused += code != 0;
    if (code < 0)
        failed(c, f, "ended by a signal", fk_said());
    else if (code != 0 && survives)
        failed(c, f, "should have been survived", fk_said());
    else if (code != 0 && !strstr(fk_said(), "fmstore: "))
        failed(c, f, "no word of the failure", fk_said());
    const char *wrong = fk_wrong(world.work, &world.before, &c->after, code == 0);
    if (*wrong)
        failed(c, f, "afterwards", wrong);
    if (all || (points + seed) % 6 == 0)
        again(c, f);
}

static void each_way(const fk_command *c, uint64_t at)
{
    uint32_t kind = c->kind[at - 1];
    for (size_t k = 0; k < FM_ARRAY_LEN(errors); k++)
        if (all || k == (at + seed) % FM_ARRAY_LEN(errors))
            one(c, &(fk_fate){.at = at, .how = errors[k].how, .forever = errors[k].forever}, false);
    if (kind == REC_WRITE && c->len[at - 1] > 1 && (all || (at + seed) % 4 == 0))
        one(c, &(fk_fate){.at = at, .how = "SHORT"}, true);
    bool ours = !c->foreign[at - 1];
    if ((kind == REC_WRITE || kind == REC_CREATE || kind == REC_SYNC || kind == REC_TRUNC ||
         kind == REC_CLOSE) &&
        (all || (at + seed) % 4 == 1))
        one(c, &(fk_fate){.at = at, .how = "EINTR"}, ours || kind == REC_WRITE);
}

static void run_command(const char *name)
{
    for (size_t i = 0; i < world.commands; i++) {
        fk_command *c = &world.command[i];
        if (strcmp(c->name, name) != 0)
            continue;
        unsigned was = points;
        fk_learn(&world, c);
        assert_true(c->calls > 4);
        for (uint64_t at = 1; at <= c->calls; at++)
            if (worth(c, at))
                each_way(c, at);
        print_message("%s: %zu calls, %u failures made, %u told\n", name, c->calls, points - was,
                      refused);
        assert_true(refused > 0);
        assert_int_equal(failures, 0);
        return;
    }
    print_message("the program has no command '%s'\n", name);
    skip();
}

#define EACH(fn, name)                                                                             \
    static void fn(void **state)                                                                   \
    {                                                                                              \
        (void)state;                                                                               \
        failures = refused = 0;                                                                    \
        run_command(name);                                                                         \
    }
EACH(import_survives, "import")
EACH(import_of_a_child_survives, "import --parent")
EACH(suite_add_survives, "suite add")
EACH(tag_survives, "tag")
EACH(branch_survives, "branch")
EACH(branch_deletion_survives, "branch -d")
EACH(test_survives, "test")
EACH(derive_survives, "derive")
EACH(gc_survives, "gc")
EACH(repack_survives, "repack")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(import_survives),    cmocka_unit_test(import_of_a_child_survives),
        cmocka_unit_test(suite_add_survives), cmocka_unit_test(tag_survives),
        cmocka_unit_test(branch_survives),    cmocka_unit_test(branch_deletion_survives),
        cmocka_unit_test(test_survives),      cmocka_unit_test(derive_survives),
        cmocka_unit_test(gc_survives),        cmocka_unit_test(repack_survives),
    };
    if (!fk_available())
        return TK_SKIP;
    all = getenv("FM_FAULT_ALL") != NULL;
    seed = getenv("FM_FAULT_SEED") ? strtoul(getenv("FM_FAULT_SEED"), NULL, 10) : 1;
    each = getenv("FM_FAULT_EACH") ? strtoul(getenv("FM_FAULT_EACH"), NULL, 10) : 12;
    if (getenv("FM_FAULT_ONLY"))
        cmocka_set_test_filter(getenv("FM_FAULT_ONLY"));
    fk_world_make(&world);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    fk_world_free(&world);
    return rc;
}
