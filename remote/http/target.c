/* target.c - URLs of requests and redirects, by libcurl's own reader of URLs: what it would take
 * for the host is what is compared. */
#include "remote/http/target.h"

#include <string.h>
#include <strings.h>

#include "remote/http/curl.h"
#include "remote/http/http.h"
#include "store/base/mem.h"

typedef struct place {
    char *scheme, *host, *port;
} place;

static void place_release(place *p)
{
    curl_free(p->scheme);
    curl_free(p->host);
    curl_free(p->port);
    *p = (place){NULL, NULL, NULL};
}

static bool place_of(place *out, CURLU *u)
{
    *out = (place){NULL, NULL, NULL};
    return curl_url_get(u, CURLUPART_SCHEME, &out->scheme, 0) == CURLUE_OK &&
           curl_url_get(u, CURLUPART_HOST, &out->host, 0) == CURLUE_OK && out->host[0] &&
           curl_url_get(u, CURLUPART_PORT, &out->port, CURLU_DEFAULT_PORT) == CURLUE_OK;
}

static bool is_web(const place *p)
{
    return p->scheme && (strcmp(p->scheme, "http") == 0 || strcmp(p->scheme, "https") == 0);
}

static fm_status copy_of(char **out, char *by_curl)
{
    *out = by_curl ? fm_strdup(by_curl) : NULL;
    fm_status rc = by_curl && !*out ? FM_ENOMEM : FM_OK;
    curl_free(by_curl);
    return rc;
}

static fm_status part_of(char **out, CURLU *u, CURLUPart part, unsigned flags)
{
    char *text = NULL;
    if (curl_url_get(u, part, &text, flags) != CURLUE_OK)
        text = NULL;
    return copy_of(out, text);
}

static fm_status url_without_user(char **out, CURLU *u)
{
    (void)curl_url_set(u, CURLUPART_USER, NULL, 0);
    (void)curl_url_set(u, CURLUPART_PASSWORD, NULL, 0);
    (void)curl_url_set(u, CURLUPART_FRAGMENT, NULL, 0);
    FM_TRY(part_of(out, u, CURLUPART_URL, 0));
    return *out ? FM_OK : FM_ENOMEM;
}

bool fmr_has_control(const char *text)
{
    for (; text && *text; text++)
        if ((uint8_t)*text < 0x20 || *text == 0x7f)
            return true;
    return false;
}

static fm_status no_memory(void)
{
    return fm_fail(FM_ENOMEM, "http: out of memory");
}

/* The failure of a URL that was asked for or redirected from. */
static fm_status fail(fm_status rc, const char *url, const char *why, const char *word)
{
    fm_buf shown;
    fm_buf_init(&shown, 0);
    fmr_url_shown(&shown, url);
    (void)fm_fail(rc, "%s: %s%.20s%s", fm_buf_cstr(&shown), why, word,
                  word[0] ? ": URL; only http and https are followed" : "");
    fm_buf_release(&shown);
    return rc;
}

fm_status fmr_target_read(char **url, char **user, char **password, const char *text)
{
    place p = {NULL, NULL, NULL};
    CURLU *u = curl_url();
    *url = *user = *password = NULL;
    if (!u)
        return no_memory();
    fm_status rc = FM_OK;
    if (curl_url_set(u, CURLUPART_URL, text, CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK ||
        !place_of(&p, u) || !is_web(&p))
        rc = fail(FM_EINVAL, text, "is no http:// or https:// URL", "");
    FM_THEN(rc, part_of(user, u, CURLUPART_USER, CURLU_URLDECODE));
    FM_THEN(rc, part_of(password, u, CURLUPART_PASSWORD, CURLU_URLDECODE));
    FM_THEN(rc, url_without_user(url, u));
    place_release(&p);
    curl_url_cleanup(u);
    return rc;
}

/* Sets u to where `location`, which may be relative, leads from `here`. */
static fm_status resolve(CURLU *u, fm_span location, const char *here)
{
    char *text = fm_strndup((const char *)location.data, location.len);
    if (!text)
        return FM_ENOMEM;
    const bool well = !fmr_has_control(text) && strlen(text) == location.len &&
                      curl_url_set(u, CURLUPART_URL, here, 0) == CURLUE_OK &&
                      curl_url_set(u, CURLUPART_URL, text,
                                   CURLU_URLENCODE | CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK;
    fm_free(text);
    return well ? FM_OK : fail(FM_EIO, here, "redirects to something that is no URL", "");
}

static fm_status check_scheme(const place *to, const char *here)
{
    if (!to->scheme)
        return fail(FM_EIO, here, "redirects to something that is no URL", "");
    if (!is_web(to))
        return fail(FM_EIO, here, "redirects to a ", to->scheme);
    if (strncmp(here, "https:", 6) == 0 && strcmp(to->scheme, "https") != 0)
        return fail(FM_EIO, here,
                    "redirects from https to http, which would be open to anyone's eyes", "");
    return to->port ? FM_OK : fail(FM_EIO, here, "redirects to a URL without a host", "");
}

static bool is_same(const place *a, const place *b)
{
    return strcmp(a->scheme, b->scheme) == 0 && strcasecmp(a->host, b->host) == 0 &&
           strcmp(a->port, b->port) == 0;
}

fm_status fmr_target_redirect(char **out, bool *same, fm_span location, const char *here,
                              const char *home)
{
    place mine = {NULL, NULL, NULL}, to = {NULL, NULL, NULL};
    CURLU *first = curl_url(), *next = curl_url();
    *out = NULL;
    fm_status rc = first && next ? FM_OK : no_memory();
    if (rc == FM_OK &&
        (curl_url_set(first, CURLUPART_URL, home, 0) != CURLUE_OK || !place_of(&mine, first)))
        rc = no_memory();
    FM_THEN(rc, resolve(next, location, here));
    if (rc == FM_OK) {
        (void)place_of(&to, next);
        rc = check_scheme(&to, here);
    }
    if (rc == FM_OK) {
        *same = is_same(&mine, &to);
        rc = url_without_user(out, next);
    }
    place_release(&mine);
    place_release(&to);
    curl_url_cleanup(first);
    curl_url_cleanup(next);
    return rc;
}
