/* credential.c - runs `git credential` and `git config`: what git was told about a host holds here
 * too. */
#include "remote/link/credential.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "remote/link/process.h"
#include "store/base/mem.h"

#define ANSWER_MAX ((size_t)64 << 10)

/* FM_ENOTFOUND: git is not there, or said no. */
static fm_status run_git(char *const argv[], const fm_buf *say, fm_buf *answer)
{
    fmr_git_run g = {.argv = argv, .say = fm_buf_span(say), .answer = answer};
    const fm_status rc = fmr_git(&g);
    if (rc == FM_OK && g.code != 0)
        return fm_fail(FM_ENOTFOUND, "git %s says no", argv[1]);
    return rc == FM_EUNSUPPORTED ? FM_ENOTFOUND : rc;
}

/* ==== credentials ==== */

static void wipe(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    fm_free(text);
}

static void wipe_buf(fm_buf *b)
{
    if (b->data)
        explicit_bzero(b->data, b->len);
    fm_buf_release(b);
}

/* A URL has no line breaks (url.h), so nothing in it can pass for a further line. */
static void describe(fm_buf *b, const fmr_url *url)
{
    const bool tls = strncmp(url->text, "https:", 6) == 0;
    const bool v6 = strchr(url->host, ':') != NULL;
    fm_buf_printf(b, "protocol=%s\nhost=%s%s%s", tls ? "https" : "http", v6 ? "[" : "", url->host,
                  v6 ? "]" : "");
    if (url->port)
        fm_buf_printf(b, ":%u", url->port);
    fm_buf_char(b, '\n');
    const char *path = url->path + strspn(url->path, "/");
    if (*path)
        fm_buf_printf(b, "path=%s\n", path);
    if (url->user)
        fm_buf_printf(b, "username=%s\n", url->user);
}

/* The value of a line "name=value"; NULL: there is none. */
static char *line_of(const fm_buf *b, const char *name)
{
    const char *at = (const char *)b->data, *end = at + b->len;
    while (at && at < end) {
        const char *eol = memchr(at, '\n', (size_t)(end - at));
        const size_t len = (size_t)((eol ? eol : end) - at), n = strlen(name);
        if (len > n && strncmp(at, name, n) == 0 && at[n] == '=')
            return fm_strndup(at + n + 1, len - n - 1);
        at = eol ? eol + 1 : end;
    }
    return NULL;
}

fm_status fmr_credential_fill(fmr_credential *out, const fmr_url *url)
{
    char git[] = "git", credential[] = "credential", fill[] = "fill";
    char *const argv[] = {git, credential, fill, NULL};
    fm_buf say, answer;
    *out = (fmr_credential){NULL, NULL};
    fm_buf_init(&say, 4 * FMR_URL_MAX);
    fm_buf_init(&answer, ANSWER_MAX);
    describe(&say, url);
    fm_status rc = fm_buf_ok(&say);
    FM_THEN(rc, run_git(argv, &say, &answer));
    if (rc == FM_OK) {
        out->user = line_of(&answer, "username");
        out->password = line_of(&answer, "password");
        if (!out->password)
            rc = fm_fail(FM_ENOTFOUND, "git's credential helpers know no password");
    }
    wipe_buf(&say);
    wipe_buf(&answer);
    if (rc != FM_OK)
        fmr_credential_release(out);
    return rc;
}

void fmr_credential_tell(const fmr_credential *c, const fmr_url *url, bool worked)
{
    char git[] = "git", credential[] = "credential", approve[] = "approve", reject[] = "reject";
    char *const argv[] = {git, credential, worked ? approve : reject, NULL};
    fm_buf say, answer;
    fm_error_state text;
    fm_error_save(&text);
    fm_buf_init(&say, ANSWER_MAX);
    fm_buf_init(&answer, ANSWER_MAX);
    describe(&say, url);
    if (c->user && !url->user)
        fm_buf_printf(&say, "username=%s\n", c->user);
    fm_buf_printf(&say, "password=%s\n", c->password);
    if (fm_buf_ok(&say) == FM_OK)
        fm_ignore(run_git(argv, &say, &answer), "the helper asks again next time");
    wipe_buf(&say);
    wipe_buf(&answer);
    fm_error_restore(&text);
}

void fmr_credential_release(fmr_credential *c)
{
    fm_free(c->user);
    wipe(c->password);
    *c = (fmr_credential){NULL, NULL};
}

/* ==== settings ==== */

char *fmr_git_setting(const char *key, const fmr_url *url)
{
    char git[] = "git", config[] = "config", match[] = "--get-urlmatch", kind[] = "--path";
    char *k = fm_strdup(key), *value = NULL;
    char *const argv[] = {git, config, kind, match, k, url->text, NULL};
    fm_buf none, answer;
    fm_error_state text;
    fm_error_save(&text);
    fm_buf_init(&none, 1);
    fm_buf_init(&answer, ANSWER_MAX);
    if (k && run_git(argv, &none, &answer) == FM_OK && answer.len)
        value = fm_strndup((const char *)answer.data, strcspn(fm_buf_cstr(&answer), "\n"));
    fm_free(k);
    fm_buf_release(&none);
    fm_buf_release(&answer);
    fm_error_restore(&text);
    if (value && !*value) {
        fm_free(value);
        value = NULL;
    }
    return value;
}

char *fmr_ca_file(const fmr_url *url, const char *given)
{
    const char *file = getenv("GIT_SSL_CAINFO");
    if (strncmp(url->text, "https:", 6) != 0)
        return NULL;
    if (!file || !*file)
        file = given;
    return file && *file ? fm_strdup(file) : fmr_git_setting("http.sslCAInfo", url);
}
