/* githost.c - what git prints of a host: refs that travel, what became of a push; and how git is
 * run. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "remote/githost/answers.h"
#include "remote/link/process.h"
#include "store/base/cancel.h"
#include "tests/testkit.h"

#define A "1234567890123456789012345678901234567890"
#define B "abcdefabcdefabcdefabcdefabcdefabcdefabcd"

static void expect_hex(const fm_oid *oid, const char *want)
{
    char hex[41];
    fm_oid_hex(oid, hex);
    assert_string_equal(hex, want);
}

TEST(refs_of_a_host)
{
    static const char text[] =
        A "\tHEAD\n" A "\trefs/heads/main\n" A "\trefs/pull/1/head\n" B "\trefs/tags/v1\n" A
          "\trefs/tags/v1^{}\n" B "\trefs/fmstore/kept/" B "\n" A "\trefs/fmstore/kept/" B "\n" A
          "\trefs/fmstore/results\n" A "\trefs/heads/../evil\n" A "\trefs/heads/a b\n" A
          "\trefs/tags/other^{}";
    fmr_host_refs r;
    tk_ok(fmr_host_refs_parse(&r, fm_span_str(text), "host"));
    assert_int_equal(r.count, 3);
    assert_string_equal(r.ref[1].name, "refs/tags/v1");
    expect_hex(&r.ref[1].oid, B);
    expect_hex(&r.ref[1].peeled, A);
    expect_hex(&r.ref[0].peeled, "0000000000000000000000000000000000000000");
    assert_int_equal(r.kept_count, 1); /* the other one has a name that is not its own */
    expect_hex(&r.kept[0], B);
    assert_non_null(fmr_host_refs_find(&r, "refs/fmstore/results"));
    assert_null(fmr_host_refs_find(&r, "refs/heads/evil"));
    fmr_host_refs_release(&r);
}

static void refuses(const char *text, fm_status status, const char *why)
{
    fmr_host_refs r;
    tk_fails(fmr_host_refs_parse(&r, fm_span_str(text), "host"), status, why);
}

TEST(what_is_no_list_of_refs)
{
    refuses(A "\trefs/heads/x\n<html>\n", FM_ECORRUPT, "host: git lists");
    refuses("\n", FM_ECORRUPT, "host: git lists");
    refuses(A "0\trefs/heads/x\n", FM_ECORRUPT, "host: git lists");
    refuses("123456789012345678901234567890123456789G\trefs/heads/x\n", FM_ECORRUPT, "git lists");
    refuses(A "123456789012345678901234\trefs/heads/x\n", FM_EUNSUPPORTED, "SHA-256");
}

typedef struct seen {
    char text[1000];
} seen;

static void note(void *ctx, const char *name, bool moved, const char *why)
{
    seen *s = ctx;
    const size_t had = strlen(s->text);
    (void)snprintf(s->text + had, sizeof s->text - had, "%s %d %s;", name, moved, why);
}

TEST(outcomes_of_a_push)
{
    static const char text[] =
        "To host\n \t" A ":refs/heads/x\t1..2\n*\t" A ":refs/heads/new\t[new branch]\n"
        "-\t:refs/heads/old\t[deleted]\n=\t" A ":refs/heads/same\t[up to date]\n"
        "!\t(delete):refs/heads/z\t[rejected] (stale info)\n"
        "!\t" A ":refs/heads/y\t[remote rejected] (hook \033[1m declined)\n"
        "!\t" A ":refs/heads/w\t[remote failure]\n"
        "error\n?\ta:b\tc\n!\tno colon\tx\nDone\n";
    seen s = {""};
    fmr_push_report(fm_span_str(text), note, &s);
    assert_string_equal(s.text, "refs/heads/x 1 ;refs/heads/new 1 ;refs/heads/old 1 ;"
                                "refs/heads/same 1 ;refs/heads/z 0 stale info;"
                                "refs/heads/y 0 hook  [1m declined;"
                                "refs/heads/w 0 [remote failure];");
}

/* ---- git as a process ---- */

static fm_status run_alias(fmr_git_run *g, const char *line, size_t room, fm_buf *answer)
{
    char git[] = "git", dir[] = "--git-dir=/dev/null", c[] = "-c", x[] = "x", alias[500];
    char *const argv[] = {git, dir, c, alias, x, NULL};
    (void)snprintf(alias, sizeof alias, "alias.x=!%s", line);
    fm_buf_init(answer, room);
    g->argv = argv;
    g->answer = answer;
    g->listen = true;
    const fm_status rc = fmr_git(g);
    g->argv = NULL;
    return rc;
}

static void need_git(void)
{
    if (system("command -v git >/dev/null 2>&1") != 0) /* NOLINT(cert-env33-c) */
        skip();
}

TEST(git_is_given_its_input_and_gives_answer_words_and_status)
{
    fmr_git_run g = {.say = fm_span_str("hello")};
    fm_buf answer;
    need_git();
    setenv("GIT_DIR", "/nowhere", 1);
    setenv("GIT_OBJECT_DIRECTORY", "/nowhere", 1);
    tk_ok(run_alias(&g, "cat; printf 'a\\033b\\nc' >&2; printenv GIT_OBJECT_DIRECTORY; exit 7", 100,
                    &answer));
    unsetenv("GIT_DIR");
    unsetenv("GIT_OBJECT_DIRECTORY");
    assert_string_equal(fm_buf_cstr(&answer), "hello");
    assert_string_equal(g.words, "a b\nc");
    assert_int_equal(g.code, 7);
    fm_buf_release(&answer);
}

TEST(an_endless_answer_and_endless_words_take_no_more_than_their_room)
{
    fmr_git_run g = {.say = fm_span_str("x")}; /* which nobody reads */
    fm_buf answer;
    need_git();
    tk_fails(run_alias(&g, "yes", 1 << 20, &answer), FM_ELIMIT, "");
    fm_buf_release(&answer);
    tk_ok(run_alias(&g, "yes 0123456789 | head -c 500000 >&2; printf end >&2", 100, &answer));
    assert_int_equal(strlen(g.words), FMR_GIT_WORDS_MAX - 1);
    assert_string_equal(g.words + FMR_GIT_WORDS_MAX - 4, "end");
    fm_buf_release(&answer);
}

TEST(a_file_beyond_the_limit_ends_it)
{
    fmr_git_run g = {.say = fm_span_str("go\n"), .file_bytes = 1 << 20};
    char path[] = "/tmp/fm-githost-XXXXXX", line[200];
    fm_buf answer;
    need_git();
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)snprintf(line, sizeof line, "read x; exec head -c 8388608 /dev/zero >%s; true", path);
    tk_ok(run_alias(&g, line, 100, &answer));
    assert_true(g.code != 0);
    assert_int_equal(lseek(fd, 0, SEEK_END), 1 << 20);
    close(fd);
    unlink(path);
    fm_buf_release(&answer);
}

static void stop(int signal)
{
    (void)signal;
    fm_cancel(true);
}

TEST(more_memory_than_the_limit_is_not_had)
{
    fmr_git_run g = {.memory_bytes = (uint64_t)64 << 20};
    fm_buf answer;
    need_git();
    tk_ok(run_alias(&g, "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}", 100, &answer));
    assert_true(g.code != 0);
    assert_int_equal(answer.len, 0);
    g.memory_bytes = (uint64_t)2 << 30;
    fm_buf_release(&answer);
    tk_ok(run_alias(&g, "x=$(head -c 2000000 /dev/zero | tr '\\0' x); echo ${#x}", 100, &answer));
    assert_string_equal(fm_buf_cstr(&answer), "2000000\n");
    fm_buf_release(&answer);
}

TEST(a_request_to_stop_ends_git)
{
    fmr_git_run g = {0};
    fm_buf answer;
    need_git();
    (void)signal(SIGALRM, stop);
    (void)alarm(1);
    assert_int_equal(run_alias(&g, "exec sleep 600", 100, &answer), FM_ECANCELLED);
    fm_cancel(false);
    fm_buf_release(&answer);
}

TEST(a_missing_git_is_named)
{
    fmr_git_run g = {0}, limited = {.memory_bytes = (uint64_t)1 << 30};
    fm_buf answer;
    char *path = getenv("PATH"), kept[4096];
    (void)snprintf(kept, sizeof kept, "%s", path ? path : "");
    setenv("PATH", "/nowhere", 1);
    assert_int_equal(run_alias(&g, "true", 100, &answer), FM_EUNSUPPORTED);
    fm_buf_release(&answer);
    assert_int_equal(run_alias(&limited, "true", 100, &answer), FM_EUNSUPPORTED);
    setenv("PATH", kept, 1);
    assert_non_null(strstr(fm_error_text(), "apt-get install git"));
    fm_buf_release(&answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refs_of_a_host),
        cmocka_unit_test(what_is_no_list_of_refs),
        cmocka_unit_test(outcomes_of_a_push),
        cmocka_unit_test(git_is_given_its_input_and_gives_answer_words_and_status),
        cmocka_unit_test(an_endless_answer_and_endless_words_take_no_more_than_their_room),
        cmocka_unit_test(a_file_beyond_the_limit_ends_it),
        cmocka_unit_test(more_memory_than_the_limit_is_not_had),
        cmocka_unit_test(a_request_to_stop_ends_git),
        cmocka_unit_test(a_missing_git_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
