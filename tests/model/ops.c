/* ops.c - a C program that imports, derives, tests, blames, replays and merges without a command
 * line: what came is in structs, what was said went to callbacks. */
#include "tests/testkit.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "cli/ops/blame.h"
#include "cli/ops/derive.h"
#include "cli/ops/import.h"
#include "cli/ops/merge.h"
#include "cli/ops/replay.h"
#include "store/base/cancel.h"

/* What an operation told. */
typedef struct heard {
    fm_buf notes, warnings, results; /* lines */
    fm_json *landed;                 /* the last one */
    uint64_t bytes;                  /* that progress told last */
    uint64_t steps;                  /* calls of progress with another text */
    uint64_t stop_at;                /* of these; 0 = never */
    uint64_t cancel_at;              /* of these: fm_cancel, as a signal does; 0 = never */
    fm_json *replayed;               /* the last one */
} heard;

static void on_message(void *ctx, fm_ui_level level, const char *text)
{
    heard *h = ctx;
    fm_buf *to = level == FM_UI_NOTE      ? &h->notes
                 : level == FM_UI_WARNING ? &h->warnings
                                          : &h->results;
    size_t n = strlen(text);
    assert_true(n > 0 && text[n - 1] != '\n');
    fm_buf_printf(to, "%s\n", text);
}

static bool on_progress(void *ctx, const fm_ui_progress *p)
{
    heard *h = ctx;
    assert_true(p->total == 0 || p->done <= p->total);
    h->steps += p->what != NULL && !p->bytes;
    h->bytes = p->bytes ? p->done : h->bytes;
    if (h->cancel_at && h->steps == h->cancel_at)
        fm_cancel(true);
    return h->stop_at && h->steps >= h->stop_at;
}

static void on_result(void *ctx, const char *kind, const fm_json *value)
{
    heard *h = ctx;
    fm_json **to = strcmp(kind, "landed") == 0     ? &h->landed
                   : strcmp(kind, "replayed") == 0 ? &h->replayed
                                                   : NULL;
    assert_non_null(to);
    fm_json_free(*to);
    *to = fm_json_ref(value);
}

static void heard_open(heard *h)
{
    *h = (heard){0};
    fm_buf_init(&h->notes, 0);
    fm_buf_init(&h->warnings, 0);
    fm_buf_init(&h->results, 0);
}

static void heard_close(heard *h)
{
    fm_buf_release(&h->notes);
    fm_buf_release(&h->warnings);
    fm_buf_release(&h->results);
    fm_json_free(h->landed);
    fm_json_free(h->replayed);
}

static fm_ui ui_of(heard *h)
{
    return (fm_ui){.ctx = h, .message = on_message, .progress = on_progress, .result = on_result};
}

static bool says(const fm_buf *b, const char *words)
{
    return strstr(fm_buf_cstr(b), words) != NULL;
}

/* The atlas of the examples with its suite of facts, as a branch. */
static void import_atlas(fm_ops *c)
{
    char *folder = tk_source("examples/atlas/base"),
         *facts = tk_source("examples/atlas/suites/facts.yaml");
    fm_import_result r;
    tk_ok(fm_ops_import(c,
                        &(fm_import_opts){.path = folder,
                                          .name = "atlas",
                                          .message = "import the atlas",
                                          .suites = {.item = {facts}, .count = 1}},
                        &r));
    assert_true(r.file_bytes > 0 && r.stats.objects_new > 0);
    assert_true(((heard *)c->ui.ctx)->bytes > 0);
    fm_free(facts);
    fm_free(folder);
}

/* Sixty good lines of the almanac and its ten that say a wrong capital. */
static char *poisoned_data(const char *dir)
{
    char *from = tk_source("examples/atlas/almanac.jsonl"), *to = fm_path_join(dir, "some.jsonl");
    fm_buf all, some;
    fm_buf_init(&all, 0);
    fm_buf_init(&some, 0);
    tk_ok(fm_read_file(&all, from, (size_t)1 << 24));
    size_t good = 0, bad = 0;
    for (char *line = (char *)all.data; *line;) {
        char *end = strchr(line, '\n');
        *end = 0;
        bool ours = strstr(line, "Lorendor") != NULL;
        bool wrong = ours && strstr(line, "Redhaven");
        if (wrong || (!ours && good < 60)) {
            fm_buf_printf(&some, "%s\n", line);
            good += !wrong;
            bad += wrong;
        }
        line = end + 1;
    }
    assert_int_equal(good, 60);
    assert_int_equal(bad, 10);
    tk_ok(fm_write_file(to, some.data, some.len));
    fm_buf_release(&all);
    fm_buf_release(&some);
    fm_free(from);
    return to;
}

static void open_repo(fm_ops *c, heard *h, char **dir)
{
    *dir = tk_scratch();
    heard_open(h);
    tk_ok(fm_repo_init(*dir, false));
    *c = (fm_ops){.dir = *dir, .ui = ui_of(h), .threads = 2};
    tk_ok(fm_ops_open(c));
}

static fm_derive_opts sick_opts(const char *data)
{
    return (fm_derive_opts){
        .parent = "atlas",
        .name = "sick",
        .data = {.item = {data}, .count = 1},
        .set = {.item = {"r=4", "lr=0.005", "steps=30", "batch=8", "seed=1", "max_tokens=64"},
                .count = 6}};
}

static bool is_branch(fm_ops *c, const char *name)
{
    fm_oid oid;
    fm_status rc = fm_ops_resolve(c, name, &oid, NULL);
    fm_error_clear();
    return rc == FM_OK;
}

static void a_child_is_stopped_goes_on_is_refused_and_lands(fm_ops *c, heard *h, const char *data)
{
    fm_derive_opts o = sick_opts(data);
    fm_derive_result r;

    h->steps = 0;
    h->stop_at = 7; /* as Ctrl-C */
    tk_fails(fm_ops_derive(c, &o, &r), FM_ECANCELLED, "stopped after step 7 of 30");
    fm_derive_result_release(&r);
    assert_false(is_branch(c, "sick"));

    h->stop_at = 0;
    fm_buf_clear(&h->notes);
    tk_fails(fm_ops_derive(c, &o, &r), FM_EREFUSED, "1 gate suite failed");
    assert_true(says(&h->notes, "sick  goes on after step 7"));
    assert_true(says(&h->notes, "gate fails:"));
    assert_true(says(&h->notes, "FAIL capital-lorendor"));
    assert_int_equal(r.count, 1);
    assert_string_equal(r.item[0].name, "sick");
    assert_int_equal(r.item[0].status, FM_EREFUSED);
    assert_int_equal(r.item[0].tally.gates_failed, 1);
    assert_false(r.item[0].landed);
    fm_derive_result_release(&r);
    assert_false(is_branch(c, "sick"));

    o.no_gate = true;
    tk_ok(fm_ops_derive(c, &o, &r));
    assert_int_equal(r.count, 1);
    assert_true(r.item[0].landed);
    assert_true(is_branch(c, "sick"));
    char hex[41];
    fm_oid_hex(&r.item[0].oid, hex);
    assert_string_equal(fm_json_cstr(fm_json_get(h->landed, "branch"), ""), "sick");
    assert_string_equal(fm_json_cstr(fm_json_get(h->landed, "id"), ""), hex);
    fm_derive_result_release(&r);
    assert_int_equal(h->warnings.len, 0);
}

static void suites_are_asked(fm_ops *c, heard *h)
{
    const char *const one[] = {"atlas"}, *const other[] = {"sick"};
    fm_test_opts o = {.rev = one, .revs = 1};
    fm_test_result r;

    tk_ok(fm_ops_test(c, &o, &r));
    assert_true(r.holds);
    assert_int_equal(r.count, 1);
    assert_int_equal(r.version[0].set.count, 1);
    assert_int_equal(r.version[0].run[0].passed, r.version[0].run[0].count);
    fm_test_result_release(&r);

    o.rev = other;
    o.against = "atlas";
    tk_ok(fm_ops_test(c, &o, &r));
    assert_false(r.holds);
    assert_int_equal(r.count, 2);
    assert_int_equal(r.against, 1);
    assert_true(r.version[0].run[0].passed < r.version[1].run[0].passed);
    fm_test_result_release(&r);

    o.descendants = true;
    tk_fails(fm_ops_test(c, &o, &r), FM_EINVAL, "one against another");
    fm_test_result_release(&r);

    o = (fm_test_opts){.rev = one, .revs = 1};
    h->stop_at = h->steps + 1;
    tk_fails(fm_ops_test(c, &o, &r), FM_ECANCELLED, "stopped");
    fm_test_result_release(&r);
    h->stop_at = 0;
}

static void a_failure_is_blamed(fm_ops *c, heard *h)
{
    fm_blame_request ask = {
        .rev = "sick", .case_spec = "facts/capital-lorendor", .tensors = true, .data = true};
    fm_blame_report r;
    fm_oid sick;
    char hex[41];

    tk_ok(fm_ops_resolve(c, "sick", &sick, NULL));
    h->steps = 0;
    tk_ok(fm_ops_blame(c, &ask, &r));
    assert_true(h->steps > 0);
    assert_int_equal(r.verdict, FM_BLAME_INTRODUCED);
    assert_true(r.has_step && fm_oid_eq(&r.culprit, &sick));
    assert_non_null(strstr(r.sentence, "sick"));
    fm_oid_hex(&sick, hex);
    assert_string_equal(fm_json_cstr(fm_json_get(r.json, "culprit"), ""), hex);
    assert_true(fm_json_count(fm_json_path(r.json, "data.examples")) == 70);
    fm_blame_report_release(&r);

    ask.rev = "atlas";
    tk_ok(fm_ops_blame(c, &ask, &r));
    assert_int_equal(r.verdict, FM_BLAME_PASSES);
    assert_false(r.has_step);
    fm_blame_report_release(&r);

    ask = (fm_blame_request){.rev = "sick", .case_spec = "facts/nowhere"};
    tk_fails(fm_ops_blame(c, &ask, &r), FM_ENOTFOUND, "nowhere");
    fm_blame_report_release(&r);

    ask = (fm_blame_request){.rev = "sick", .case_spec = "facts/capital-lorendor"};
    h->stop_at = h->steps + 1;
    tk_fails(fm_ops_blame(c, &ask, &r), FM_ECANCELLED, "stopped");
    fm_blame_report_release(&r);
    h->stop_at = 0;
}

static void a_child_is_replayed(fm_ops *c, heard *h)
{
    bool equal = false;
    tk_ok(fm_ops_replay(c, "sick", true, &equal));
    assert_true(equal);
    assert_string_equal(fm_json_cstr(fm_json_get(h->replayed, "rev"), ""), "sick");
    assert_int_equal(fm_json_int(fm_json_get(h->replayed, "steps"), 0), 30);
    assert_int_equal(fm_json_int(fm_json_get(h->replayed, "differ"), -1), 0);
    tk_fails(fm_ops_replay(c, "atlas", false, &equal), FM_EUNSUPPORTED, NULL);
}

static void versions_are_merged(fm_ops *c, heard *h)
{
    const char *const rev[] = {"atlas", "sick"};
    const double weight[] = {3, 1};
    fm_merge_opts o = {.rev = rev, .count = 2, .name = "half", .weight = weight};
    fm_merge_result r;

    tk_ok(fm_ops_merge(c, &o, &r));
    assert_true(is_branch(c, "half"));
    assert_string_equal(fm_json_cstr(fm_json_get(h->landed, "branch"), ""), "half");
    assert_true(r.stats.folded > 0 && r.stats.tensors > r.stats.kept);
    tk_fails(fm_ops_merge(c, &o, &r), FM_EEXISTS, "half");
    o.name = "none";
    o.weight = (const double[]){1, -1};
    tk_fails(fm_ops_merge(c, &o, &r), FM_EINVAL, "sum to 0");
    o.count = 1;
    tk_fails(fm_ops_merge(c, &o, &r), FM_EINVAL, "1 versions to merge");
    assert_false(is_branch(c, "none"));
}

TEST(a_child_is_derived_tested_and_blamed)
{
    fm_ops c;
    heard h;
    char *dir;
    open_repo(&c, &h, &dir);
    char *data = poisoned_data(dir);
    import_atlas(&c);
    assert_true(says(&h.notes, "atlas  suite facts (gate): "));
    a_child_is_stopped_goes_on_is_refused_and_lands(&c, &h, data);
    suites_are_asked(&c, &h);
    a_failure_is_blamed(&c, &h);
    a_child_is_replayed(&c, &h);
    versions_are_merged(&c, &h);
    assert_int_equal(h.results.len, 0); /* nobody asked for text */
    fm_ops_close(&c);
    heard_close(&h);
    fm_free(data);
    fm_free(dir);
}

TEST(nobody_needs_to_listen)
{
    fm_ops c, mute = {0};
    heard h;
    char *dir;
    fm_derive_result r;
    fm_ops_close(&mute); /* nothing was opened */
    open_repo(&c, &h, &dir);
    char *data = poisoned_data(dir);
    import_atlas(&c);
    c.ui = (fm_ui){0};
    fm_derive_opts o = sick_opts(data);
    o.plan = true;
    tk_ok(fm_ops_derive(&c, &o, &r));
    assert_int_equal(r.plan.jobs, 1);
    assert_true(r.plan.plan.bytes > 0 && r.plan.plan.steps == 30);
    fm_derive_result_release(&r);
    assert_false(is_branch(&c, "sick"));
    o.plan = false;
    o.stop_after = 2;
    tk_fails(fm_ops_derive(&c, &o, NULL), FM_ECANCELLED, "stopped after step 2");
    o.mode = "bf16";
    tk_fails(fm_ops_derive(&c, &o, NULL), FM_EINVAL, "use another handle");
    fm_ops_close(&c);
    heard_close(&h);
    fm_free(data);
    fm_free(dir);
}

static fm_oid tree_of(fm_ops *c, const char *name)
{
    fm_oid oid, tree;
    fm_version v;
    tk_ok(fm_ops_resolve(c, name, &oid, NULL));
    tk_ok(fm_version_read(c->repo, &v, &oid));
    tree = v.tree;
    fm_version_release(&v);
    return tree;
}

static void *cancel_soon(void *ms)
{
    const uint64_t ns = *(const uint64_t *)ms * 1000000;
    const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000),
                               .tv_nsec = (long)(ns % 1000000000)};
    (void)nanosleep(&t, NULL);
    fm_cancel(true);
    return NULL;
}

static void no_fault(void *ctx, const char *text)
{
    (void)ctx;
    fail_msg("%s", text);
}

TEST(a_training_stopped_in_the_middle_of_a_step_keeps_the_steps_before)
{
    fm_ops c;
    heard h;
    char *dir;
    open_repo(&c, &h, &dir);
    char *data = poisoned_data(dir);
    import_atlas(&c);
    fm_derive_opts o = sick_opts(data);
    o.no_gate = true;
    h.steps = 0;
    h.cancel_at = 7;
    tk_fails(fm_ops_derive(&c, &o, NULL), FM_ECANCELLED, "stopped after step 7 of 30");
    fm_cancel(false);
    h.cancel_at = 0;
    assert_false(is_branch(&c, "sick"));
    tk_ok(fm_ops_derive(&c, &o, NULL));
    assert_true(says(&h.notes, "sick  goes on after step 7"));
    fm_ops_close(&c);
    heard_close(&h);
    fm_free(data);
    fm_free(dir);
}

TEST(a_training_stopped_anywhere_ends_with_the_same_tree)
{
    fm_ops c;
    heard h;
    char *dir;
    fm_fsck_report report;
    uint64_t stops = 0;
    fm_status rc = FM_ECANCELLED;
    open_repo(&c, &h, &dir);
    char *data = poisoned_data(dir);
    import_atlas(&c);
    fm_derive_opts o = sick_opts(data);
    o.set.item[2] = "steps=8";
    o.eval = "0.4";
    o.eval_every = 2;
    o.no_gate = true;
    tk_ok(fm_ops_derive(&c, &o, NULL));

    o.name = "tired";
    for (uint64_t ms = 1; rc == FM_ECANCELLED; ms += 1 + ms / 4) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &ms), 0);
        rc = fm_ops_derive(&c, &o, NULL);
        assert_int_equal(pthread_join(thread, NULL), 0);
        fm_cancel(false);
        stops += rc == FM_ECANCELLED;
        if (rc == FM_ECANCELLED)
            assert_false(is_branch(&c, "tired"));
    }
    tk_ok(rc);
    assert_true(stops > 3);
    const fm_oid whole = tree_of(&c, "sick"), parts = tree_of(&c, "tired");
    assert_true(fm_oid_eq(&whole, &parts));
    tk_ok(fm_repo_fsck(c.repo, true, &report, no_fault, NULL));
    fm_ops_close(&c);
    heard_close(&h);
    fm_free(data);
    fm_free(dir);
}

TEST(options_that_do_not_go_together_are_refused)
{
    fm_ops c;
    heard h;
    char *dir;
    open_repo(&c, &h, &dir);
    tk_fails(fm_ops_derive(&c, &(fm_derive_opts){.name = "x"}, NULL), FM_EINVAL,
             "wants a name, data");
    tk_fails(fm_ops_derive(&c, &(fm_derive_opts){.family_file = "f.yaml", .name = "x"}, NULL),
             FM_EINVAL, "f.yaml says itself");
    fm_derive_opts o = sick_opts("none.jsonl");
    tk_fails(fm_ops_derive(&c, &o, NULL), FM_ENOTFOUND, "atlas");
    fm_ops_close(&c);
    heard_close(&h);
    fm_free(dir);
}

/* The atlas with each 16-bit value changed in its last bit (a fine-tune), or all of them in the
 * other order, or its tensors under other names. */
typedef enum change { TUNED, TURNED, RENAMED } change;

static char *changed_atlas(const char *dir, change how)
{
    static const char *const names[] = {"tuned", "turned", "renamed"};
    char *from = tk_source("examples/atlas/base"), *to = fm_path_join(dir, names[how]);
    char *in = fm_path_join(from, "config.json"), *out = fm_path_join(to, "config.json");
    fm_buf b;
    fm_buf_init(&b, 0);
    tk_ok(fm_make_dirs(to));
    tk_ok(fm_read_file(&b, in, 1 << 20));
    tk_ok(fm_write_file(out, b.data, b.len));
    fm_free(in);
    fm_free(out);
    in = fm_path_join(from, "model.safetensors");
    out = fm_path_join(to, "model.safetensors");
    fm_buf_clear(&b);
    tk_ok(fm_read_file(&b, in, 1 << 24));
    uint64_t header = 0;
    memcpy(&header, b.data, 8);
    for (uint8_t *at = b.data + 8; how == RENAMED && at < b.data + 8 + header - 6; at++)
        if (memcmp(at, "model.", 6) == 0)
            at[0] = 'n';
    uint8_t *values = b.data + 8 + header;
    const size_t n = (b.len - 8 - header) / 2;
    for (size_t i = 0; how == TUNED && i < n; i++)
        values[2 * i] ^= 1;
    for (size_t i = 0; how == TURNED && i < n / 2; i++) {
        uint8_t kept[2];
        memcpy(kept, values + 2 * i, 2);
        memcpy(values + 2 * i, values + 2 * (n - 1 - i), 2);
        memcpy(values + 2 * (n - 1 - i), kept, 2);
    }
    tk_ok(fm_write_file(out, b.data, b.len));
    fm_buf_release(&b);
    fm_free(in);
    fm_free(out);
    fm_free(from);
    return to;
}

static fm_status import_child(fm_ops *c, const char *path, const char *name, const char *kind,
                              fm_import_result *r)
{
    return fm_ops_import(
        c,
        &(fm_import_opts){
            .path = path, .name = name, .kind = kind, .parent = "atlas", .no_gate = true},
        r);
}

TEST(a_parent_that_it_was_not_made_from_is_told)
{
    fm_ops c;
    heard h;
    char *dir, *path;
    fm_import_result r;
    open_repo(&c, &h, &dir);
    import_atlas(&c);

    path = changed_atlas(dir, TUNED);
    tk_ok(import_child(&c, path, "tuned", NULL, &r));
    const size_t all = r.kin.tensors;
    assert_int_equal(all, 56);
    assert_true(r.kin.fit == all && r.kin.equal == 0);
    assert_true(r.kin.looked == 32 && r.kin.alike == 32 && !r.kin.doubted);
    assert_false(says(&h.notes, "does not look like"));
    fm_free(path);

    path = changed_atlas(dir, TURNED);
    tk_ok(import_child(&c, path, "turned", NULL, &r));
    assert_true(r.kin.fit == all && r.kin.equal == 0);
    assert_true(r.kin.looked == 32 && r.kin.alike == 0 && r.kin.doubted);
    assert_true(says(&h.notes,
                     "does not look like one made from 'atlas': of its 56 tensors 56 have "
                     "name and shape of the parent's, 0 are the parent's very tensors; of "
                     "32 matrices looked at 0 have values like the parent's"));
    fm_free(path);

    path = changed_atlas(dir, RENAMED); /* its very tensors under other names */
    tk_ok(import_child(&c, path, "renamed", NULL, &r));
    assert_true(r.kin.equal == all && r.kin.fit < all && !r.kin.doubted);
    fm_free(path);

    path = tk_shared("arch/gpt2");
    if (path) { /* another architecture */
        tk_fails(import_child(&c, path, "other", NULL, &r), FM_EBASE,
                 "has name and shape of one of 'atlas'");
        assert_false(is_branch(&c, "other"));
        fm_buf_clear(&h.notes);
        tk_ok(import_child(&c, path, "other", "distill", &r));
        assert_true(r.kin.fit == 0 && !r.kin.doubted);
        assert_false(says(&h.notes, "does not look like"));
    }
    fm_free(path);
    fm_ops_close(&c);
    heard_close(&h);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_is_derived_tested_and_blamed),
        cmocka_unit_test(nobody_needs_to_listen),
        cmocka_unit_test(a_parent_that_it_was_not_made_from_is_told),
        cmocka_unit_test(a_training_stopped_in_the_middle_of_a_step_keeps_the_steps_before),
        cmocka_unit_test(a_training_stopped_anywhere_ends_with_the_same_tree),
        cmocka_unit_test(options_that_do_not_go_together_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
