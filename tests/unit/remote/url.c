/* url.c - the addresses of remotes: git's spellings, and what must never reach a shell or a
 * server. */
#include <string.h>

#include "remote/link/url.h"
#include "tests/testkit.h"

static void reads(const char *text, fmr_scheme scheme, const char *user, const char *host,
                  unsigned port, const char *path)
{
    fmr_url u;
    tk_ok(fmr_url_parse(&u, text));
    assert_int_equal(u.scheme, scheme);
    assert_string_equal(u.user ? u.user : "", user);
    assert_string_equal(u.host ? u.host : "", host);
    assert_int_equal(u.port, port);
    assert_string_equal(u.path ? u.path : "", path);
    fmr_url_release(&u);
}

static void refuses(const char *text, const char *why)
{
    fmr_url u;
    tk_fails(fmr_url_parse(&u, text), FM_EINVAL, why);
}

TEST(reads_gits_spellings)
{
    reads("/a/b", FMR_FOLDER, "", "", 0, "/a/b");
    reads("../b", FMR_FOLDER, "", "", 0, "../b");
    reads("./host:b", FMR_FOLDER, "", "", 0, "./host:b");
    reads("b", FMR_FOLDER, "", "", 0, "b");
    reads("file:///a/b", FMR_FOLDER, "", "", 0, "/a/b");
    reads("ssh://h/a/b", FMR_SSH, "", "h", 0, "/a/b");
    reads("ssh://me@h:2222/a/b", FMR_SSH, "me", "h", 2222, "/a/b");
    reads("ssh://me@[::1]:2222/a", FMR_SSH, "me", "::1", 2222, "/a");
    reads("ssh://h/~me/a", FMR_SSH, "", "h", 0, "~me/a");
    reads("h:a/b", FMR_SSH, "", "h", 0, "a/b");
    reads("me@h:/a", FMR_SSH, "me", "h", 0, "/a");
    reads("[::1]:a", FMR_SSH, "", "::1", 0, "a");
    reads("https://h/a/", FMR_HTTP, "", "h", 0, "/a/");
    reads("http://me@h:8080", FMR_HTTP, "me", "h", 8080, "");
    reads("s3://bucket/a/b/", FMR_S3, "", "bucket", 0, "a/b");
    reads("s3://bucket", FMR_S3, "", "bucket", 0, "");
    reads("git://h:9419/a/b.git", FMR_GIT, "", "h", 9419, "/a/b.git");
}

TEST(shows_no_user_of_http_and_no_slash_at_its_end)
{
    fmr_url u;
    tk_ok(fmr_url_parse(&u, "https://me@h:8/a/b//"));
    assert_string_equal(u.text, "https://h:8/a/b");
    fmr_url_release(&u);
    tk_ok(fmr_url_parse(&u, "http://h/"));
    assert_string_equal(u.text, "http://h");
    fmr_url_release(&u);
}

TEST(refuses_what_could_do_harm)
{
    char longest[3000];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    refuses("", "empty");
    refuses(longest, "longer than");
    refuses("a\nb", "control character");
    refuses("gopher://h/a", "none of file");
    refuses("ext::sh -c touch", "none of file");
    refuses("file://h/a", "file:///a/b");
    refuses("ssh://-oProxyCommand=x/a", "must not begin with '-'");
    refuses("-oProxyCommand=x:a", "must not begin with '-'");
    refuses("ssh://-x@h/a", "must not begin with '-'");
    refuses("@h:a", "must not begin with '-'");
    refuses("h:-a", "must not begin with '-'");
    refuses("ssh://me:secret@h/a", "password");
    refuses("https://me:secret@h/a", "password");
    refuses("git://me@h/a", "no users");
    refuses("git://-h/a", "must not begin with '-'");
    refuses("ssh://h", "no path");
    refuses("ssh:///a", "no host");
    refuses("ssh://h:0/a", "no port");
    refuses("ssh://h:99999/a", "no port");
    refuses("ssh://h:2x/a", "no port");
    refuses("https:///a", "no host");
    refuses("https://h/a?b", "no '?'");
    refuses("https://h/a#b", "no '?'");
    refuses("ssh://[good].evil/a", "after the ']'");
    refuses("https://[::1]evil/a", "after the ']'");
    refuses("s3:///a", "no bucket");
    assert_null(strstr(fm_error_text(), "secret"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_gits_spellings),
        cmocka_unit_test(shows_no_user_of_http_and_no_slash_at_its_end),
        cmocka_unit_test(refuses_what_could_do_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
