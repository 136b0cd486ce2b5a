/* url.c - reads the addresses of remotes. */
#include "remote/link/url.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/cursor.h"
#include "store/base/mem.h"

static fm_status copy(char **out, const char *text, size_t len)
{
    *out = fm_strndup(text, len);
    return *out ? FM_OK : FM_ENOMEM;
}

/* The digits of a port; what follows them must be the end. */
static fm_status read_port(unsigned *out, const char *text, size_t len)
{
    unsigned port = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9' || port > 65535)
            return fm_fail(FM_EINVAL, "URL: '%.*s' is no port", (int)FM_MIN(len, 20), text);
        port = port * 10 + (unsigned)(text[i] - '0');
    }
    if (port == 0 || port > 65535)
        return fm_fail(FM_EINVAL, "URL: '%.*s' is no port", (int)FM_MIN(len, 20), text);
    *out = port;
    return FM_OK;
}

/* The place of c, len where there is none. */
static size_t place_of(const char *text, size_t len, char c)
{
    size_t i = 0;
    while (i < len && text[i] != c)
        i++;
    return i;
}

/* "user@host:port"; an IPv6 address stands in brackets. */
static fm_status read_authority(fmr_url *u, const char *text, size_t len)
{
    size_t at = place_of(text, len, '@'), from = at < len ? at + 1 : 0, end = len;
    if (at < len) {
        if (place_of(text, at, ':') < at)
            return fm_fail(FM_EINVAL, "URL: a password does not belong into a URL; use a "
                                      "credential helper, or an ssh key");
        FM_TRY(copy(&u->user, text, at));
    }
    size_t bracket = from < len && text[from] == '[' ? place_of(text, len, ']') : len;
    size_t colon = bracket < len ? bracket : from;
    if (bracket + 1 < len && text[bracket + 1] != ':')
        return fm_fail(FM_EINVAL, "URL: after the ']' of a host comes a port or the path");
    colon += place_of(text + colon, len - colon, ':');
    if (colon < len) {
        FM_TRY(read_port(&u->port, text + colon + 1, len - colon - 1));
        end = colon;
    }
    if (bracket < len) { /* without the brackets */
        from++;
        end = bracket;
    }
    if (end <= from)
        return fm_fail(FM_EINVAL, "URL: there is no host in it");
    return copy(&u->host, text + from, end - from);
}

static fm_status check_ssh(const fmr_url *u)
{
    if (u->host[0] == '-' || (u->user && (u->user[0] == '-' || !u->user[0])) || u->path[0] == '-')
        return fm_fail(FM_EINVAL, "URL: host, user and path must not begin with '-'");
    if (!u->path[0])
        return fm_fail(FM_EINVAL, "URL: there is no path in it");
    return FM_OK;
}

/* "//authority/path" after the scheme's colon. */
static fm_status read_ssh(fmr_url *u, const char *rest)
{
    size_t len = strcspn(rest, "/");
    u->scheme = FMR_SSH;
    FM_TRY(read_authority(u, rest, len));
    const char *path = rest + len;
    if (fm_starts_with(path, "/~")) /* as in git: the home folder */
        path++;
    FM_TRY(copy(&u->path, path, strlen(path)));
    return check_ssh(u);
}

static fm_status read_scp(fmr_url *u, const char *text, const char *colon)
{
    u->scheme = FMR_SSH;
    FM_TRY(read_authority(u, text, (size_t)(colon - text)));
    FM_TRY(copy(&u->path, colon + 1, strlen(colon + 1)));
    return check_ssh(u);
}

static fm_status read_http(fmr_url *u, const char *text, const char *rest)
{
    u->scheme = FMR_HTTP;
    size_t len = strcspn(rest, "/?#");
    if (rest[len] == '?' || rest[len] == '#' || strpbrk(rest, "?#"))
        return fm_fail(FM_EINVAL, "URL: a remote's address has no '?' and no '#'");
    FM_TRY(read_authority(u, rest, len));
    FM_TRY(copy(&u->path, rest + len, strlen(rest + len)));
    size_t end = strlen(text);
    while (end > 0 && text[end - 1] == '/')
        end--;
    const char *at = u->user ? rest + strlen(u->user) + 1 : rest;
    const size_t scheme = (size_t)(rest - text), tail = end - (size_t)(at - text);
    fm_free(u->text);
    u->text = fm_malloc(scheme + tail + 1);
    if (!u->text)
        return FM_ENOMEM;
    memcpy(u->text, text, scheme);
    memcpy(u->text + scheme, at, tail);
    u->text[scheme + tail] = '\0';
    return FM_OK;
}

static fm_status read_git(fmr_url *u, const char *rest)
{
    FM_TRY(read_ssh(u, rest));
    u->scheme = FMR_GIT;
    return u->user ? fm_fail(FM_EINVAL, "URL: git:// knows no users") : FM_OK;
}

static fm_status read_s3(fmr_url *u, const char *rest)
{
    u->scheme = FMR_S3;
    size_t len = strcspn(rest, "/");
    if (len == 0)
        return fm_fail(FM_EINVAL, "URL: there is no bucket in it");
    FM_TRY(copy(&u->host, rest, len));
    const char *path = rest + len;
    while (*path == '/')
        path++;
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    return copy(&u->path, path, end);
}

/* The colon of "host:path": no '/' before it, and the text is no path of this machine. */
static const char *scp_colon(const char *text)
{
    const char *p = text;
    if (*p == '[') { /* an IPv6 address */
        p = strchr(p, ']');
        if (!p)
            return NULL;
    }
    p += strcspn(p, ":/");
    return *p == ':' && p > text ? p : NULL;
}

static fm_status parse(fmr_url *u, const char *text)
{
    const char *colon;
    FM_TRY(copy(&u->text, text, strlen(text)));
    if (fm_starts_with(text, "ssh://"))
        return read_ssh(u, text + 6);
    if (fm_starts_with(text, "git://"))
        return read_git(u, text + 6);
    if (fm_starts_with(text, "https://"))
        return read_http(u, text, text + 8);
    if (fm_starts_with(text, "http://"))
        return read_http(u, text, text + 7);
    if (fm_starts_with(text, "s3://"))
        return read_s3(u, text + 5);
    if (fm_starts_with(text, "file://")) {
        u->scheme = FMR_FOLDER;
        if (text[7] != '/')
            return fm_fail(FM_EINVAL, "URL: file:// wants an absolute path: file:///a/b");
        return copy(&u->path, text + 7, strlen(text + 7));
    }
    colon = scp_colon(text);
    if (strstr(text, "://") || (colon && colon[1] == ':')) /* git's helpers are not used */
        return fm_fail(FM_EINVAL, "URL: '%.*s' is none of file, ssh, http, https, git, s3",
                       (int)FM_MIN(strcspn(text, ":"), 40), text);
    if (colon)
        return read_scp(u, text, colon);
    u->scheme = FMR_FOLDER;
    return copy(&u->path, text, strlen(text));
}

fm_status fmr_url_parse(fmr_url *out, const char *text)
{
    memset(out, 0, sizeof *out);
    if (!text || !text[0])
        return fm_fail(FM_EINVAL, "URL: it is empty");
    if (strlen(text) > FMR_URL_MAX)
        return fm_fail(FM_EINVAL, "URL: longer than %u bytes", FMR_URL_MAX);
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return fm_fail(FM_EINVAL, "URL: it holds a control character");
    fm_status rc = parse(out, text);
    if (rc != FM_OK)
        fmr_url_release(out);
    return rc;
}

void fmr_url_release(fmr_url *u)
{
    fm_free(u->user);
    fm_free(u->host);
    fm_free(u->path);
    fm_free(u->text);
    memset(u, 0, sizeof *u);
}
