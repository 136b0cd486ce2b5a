/* ctest: cost=10 */
/* Eight processes at one repository for some seconds: importing, building on each other's versions,
 * deleting and moving branches, gc with no grace, repack; one is killed again and again. Two
 * readers all along. Nothing that a ref holds is lost, and readers are not kept waiting.
 *   FM_RACE_SECONDS=n (6), FM_RACE_SEED=n */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "store/base/math/rng.h"
#include "tests/kit/lineage_kit.h"

enum { NAMES = 6, TENSORS = 4, ELEMS = 3000, BUILDERS = 3, PROCESSES = 8 };

static uint64_t seed = 11;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what)
{
    fprintf(stderr, "race: pid %ld: %s: %s\n", (long)getpid(), what, fm_error_text());
    _exit(100);
}

static void need(fm_status rc, const char *what)
{
    if (rc != FM_OK)
        die(what);
}

/* Content comes from few variants, so that processes keep finding each other's objects stored. */
static void put_variant(fm_txn *t, fm_tree *tree, unsigned k, unsigned variant,
                        const fm_tree *before)
{
    static uint16_t w[ELEMS];
    fm_shape shape = {1, {ELEMS}};
    char name[64], path[64];
    fm_digest id;
    for (unsigned i = 0; i < ELEMS; i++)
        w[i] = (uint16_t)(0x3f00 + (fm_rng_u64(1, k, i) & 0xff));
    for (unsigned i = 0; i < variant * 20; i++)
        w[fm_rng_u64(2, variant, i) % ELEMS] ^= 3;
    snprintf(name, sizeof name, "layers.%u.weight", k);
    snprintf(path, sizeof path, "tensors/layers/%u.weight", k);
    const fm_entry *p = before ? fm_tree_find(before, path) : NULL;
    need(fm_txn_put_tensor(t, &id, FM_BF16, &shape, fm_span_of(w, sizeof w), p ? &p->id : NULL,
                           NULL),
         "put");
    need(fm_tree_put_tensor(tree, path, name, FM_BF16, &shape, &id), "tree");
}

/* As an import or a derivation does it: look up a parent, store, commit, wait a little, move a
 * ref. */
static void build(const char *dir, uint64_t stream, uint64_t n)
{
    fm_repo *r;
    fm_oid parent, oid;
    fm_tree *before = NULL, *tree;
    fm_txn *t;
    char ref[64], rev[16];
    need(fm_repo_open(&r, dir), "open");
    need(fm_store_lease(fm_repo_store(r), true, "race"), "lease");
    snprintf(rev, sizeof rev, "b%u", (unsigned)(fm_rng_u64(seed, stream, 4 * n) % NAMES));
    bool has = fm_rev_resolve(r, &parent, rev) == FM_OK;
    if (has)
        need(fm_version_tree(r, &before, &parent), "parent's tree");
    need(fm_tree_new(&tree), "tree");
    need(fm_txn_begin(&t, fm_repo_store(r)), "begin");
    for (unsigned k = 0; k < TENSORS; k++)
        put_variant(t, tree, k, (unsigned)(fm_rng_u64(seed, stream, 4 * n + 1) >> (8 * k)) % 5,
                    before);
    need(fm_txn_commit(t, NULL), "store");
    fm_txn_close(t);
    fm_commit_opts o = {.kind = has ? "finetune" : "import",
                        .message = rev,
                        .parent = &parent,
                        .parent_count = has,
                        .time = KIT_TIME + (int64_t)(n % 3)}; /* equal commits come up again */
    need(fm_version_commit(r, &oid, tree, &o), "commit");
    usleep((useconds_t)(fm_rng_u64(seed, stream, 4 * n + 2) % 20000));
    snprintf(ref, sizeof ref, "refs/heads/b%u",
             (unsigned)(fm_rng_u64(seed, stream, 4 * n + 3) % NAMES));
    fm_oid old;
    bool there = fm_ref_read(r, &old, ref) == FM_OK;
    fm_status rc = fm_ref_update(r, ref, &oid, there ? &old : NULL, "race");
    if (rc != FM_OK && rc != FM_ECONFLICT && rc != FM_EEXISTS)
        die("move");
    fm_tree_free(tree);
    fm_tree_free(before);
    fm_repo_close(r);
}

static fm_status drop_one(void *ctx, const char *name, const fm_oid *oid)
{
    fm_status rc = fm_ref_delete(ctx, name, oid);
    return rc == FM_ENOTFOUND || rc == FM_ECONFLICT ? FM_OK : rc;
}

static void delete_some(const char *dir, uint64_t n)
{
    fm_repo *r;
    char ref[64];
    need(fm_repo_open(&r, dir), "open");
    snprintf(ref, sizeof ref, "refs/heads/b%u", (unsigned)(fm_rng_u64(seed, 77, n) % NAMES));
    fm_status rc = fm_ref_delete(r, ref, NULL);
    if (rc != FM_OK && rc != FM_ENOTFOUND)
        die("delete");
    need(fm_ref_each(r, "refs/fmstore/lost/", drop_one, r), "delete the lost");
    fm_repo_close(r);
    usleep(15000);
}

static void collect(const char *dir, bool repack)
{
    fm_repo *r;
    fm_gc_report report;
    fm_gc_opts o = fm_gc_defaults();
    o.prune = o.reflog = "now";
    o.repack = o.repack_all = repack;
    o.depth = repack ? 1 : FM_GC_ANY_DEPTH;
    need(fm_repo_open(&r, dir), "open");
    need(fm_repo_gc(r, &o, &report), repack ? "repack" : "gc");
    if (report.bad_objects)
        die("gc met an object that does not decode");
    fm_gc_report_release(&report);
    fm_repo_close(r);
}

static fm_status read_one(void *ctx, const char *name, const fm_oid *oid)
{
    fm_repo *r = ctx;
    fm_tree *tree;
    fm_oid now;
    fm_provider p = fm_store_provider(fm_repo_store(r));
    fm_status rc = fm_version_tree(r, &tree, oid);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++) {
        fm_buf b;
        fm_buf_init(&b, 0);
        rc = fm_entry_read(&b, &p, fm_tree_at(tree, i));
        fm_buf_release(&b);
    }
    fm_tree_free(rc == FM_OK || tree ? tree : NULL);
    if (rc == FM_OK)
        return rc;
    fm_error_state kept;
    fm_error_save(&kept);
    /* A branch that was deleted or moved meanwhile may be gone; one that stands must be whole. */
    if (fm_ref_read(r, &now, name) != FM_OK || !fm_oid_eq(&now, oid))
        return FM_OK;
    fm_error_restore(&kept);
    return rc;
}

/* One handle for a long while, as a server has it; the longest look is kept. */
static void read_all(const char *dir, double until, double *longest)
{
    fm_repo *r;
    need(fm_repo_open(&r, dir), "open");
    while (now_s() < until) {
        double began = now_s();
        need(fm_ref_each(r, "refs/heads/", read_one, r), "read");
        *longest = *longest < now_s() - began ? now_s() - began : *longest;
        usleep(2000);
    }
    fm_repo_close(r);
}

static void work(const char *dir, unsigned id, double until, int report)
{
    double longest = 0;
    uint64_t n = 0;
    for (; now_s() < until; n++) {
        if (id < BUILDERS)
            build(dir, id + 1, n);
        else if (id == BUILDERS)
            delete_some(dir, n);
        else if (id == BUILDERS + 1)
            collect(dir, false);
        else if (id == BUILDERS + 2)
            collect(dir, true);
        else
            read_all(dir, until, &longest);
    }
    double out[2] = {(double)n, longest};
    if (write(report, out, sizeof out) != (ssize_t)sizeof out)
        _exit(101);
    _exit(0);
}

static void a_handle_that_is_killed(const char *dir, double until)
{
    for (uint64_t n = 0; now_s() < until; n++) {
        pid_t pid = fork();
        if (pid == 0) {
            for (uint64_t k = 0;; k++) {
                if (n % 3 == 0)
                    collect(dir, k % 2);
                else
                    build(dir, 1000 + n, k);
            }
        }
        usleep((useconds_t)(fm_rng_u64(seed, 5, n) % 60000));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

TEST(nothing_is_lost_among_eight)
{
    char *dir;
    const char *seconds = getenv("FM_RACE_SECONDS"), *given = getenv("FM_RACE_SEED");
    double longest = 0, until = now_s() + (seconds ? strtod(seconds, NULL) : 6);
    int pipes[PROCESSES][2];
    pid_t pid[PROCESSES];
    seed = given ? strtoull(given, NULL, 10) : seed;
    /* Made in a process of its own: libgit2 draws names of temporaries from a seed of its process,
     * and children of one that has started it would draw the same. */
    dir = tk_scratch();
    pid_t maker = fork();
    if (maker == 0)
        _exit(fm_repo_init(dir, true) == FM_OK ? 0 : 1);
    int made;
    assert_int_equal(waitpid(maker, &made, 0), maker);
    assert_int_equal(made, 0);
    setenv("GIT_AUTHOR_NAME", "Ada Test", 1); /* equal commits need equal authors */
    setenv("GIT_AUTHOR_EMAIL", "ada@example.org", 1);
    for (unsigned i = 0; i < PROCESSES; i++) {
        assert_int_equal(pipe(pipes[i]), 0);
        pid[i] = fork();
        if (pid[i] == 0)
            work(dir, i, until, pipes[i][1]);
    }
    a_handle_that_is_killed(dir, until);
    unsigned failed = 0;
    for (unsigned i = 0; i < PROCESSES; i++) {
        static const char *const role[] = {"build", "build",  "build", "delete",
                                           "gc",    "repack", "read",  "read"};
        double out[2] = {0, 0};
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            failed++;
            print_message("%s: status %x\n", role[i], (unsigned)status);
            continue;
        }
        assert_int_equal(read(pipes[i][0], out, sizeof out), sizeof out);
        print_message("%s: %.0f rounds\n", role[i], out[0]);
        longest = longest < out[1] ? out[1] : longest;
    }
    print_message("longest look of a reader at all branches: %.0f ms\n", longest * 1e3);
    assert_int_equal(kit_faults(dir), 0);
    assert_int_equal(failed, 0);
    collect(dir, true);
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_lost_among_eight)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
