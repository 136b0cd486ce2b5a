/* address.c - reads "hf:org/name@rev/file" and URLs, and the environment of Hugging Face's
 * tools. */
#include "remote/hub/address.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "remote/http/http.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

#define TOKEN_MAX_BYTES 4096u

static const char forms[] = "it is hf:org/name, hf:org/name@revision, hf:org/name@revision/file or "
                            "https://host/file.gguf";

/* ==== addresses ==== */

static bool is_control(char c)
{
    return (uint8_t)c < 0x20 || c == 0x7f;
}

bool fmr_hub_path_is_safe(const char *path)
{
    if (strlen(path) > FMR_HUB_PATH_MAX)
        return false;
    for (const char *p = path; *p; p++)
        if (is_control(*p) || *p == '\\')
            return false;
    for (;;) {
        const size_t n = strcspn(path, "/");
        if (n == 0 || n > 255 || (n == 1 && path[0] == '.') || (n == 2 && !strncmp(path, "..", 2)))
            return false;
        if (!path[n])
            return true;
        path += n + 1;
    }
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

/* The length of an owner's or a model's name at p; 0: it is none. */
static size_t word_len(const char *p)
{
    size_t n = 0;
    while (is_word(p[n]))
        n++;
    return n <= FMR_HUB_NAME_MAX / 2 && p[0] != '.' && p[0] != '-' ? n : 0;
}

/* A copy with %XX as bytes. */
static fm_status unescaped(char **out, const char *text, size_t len)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    fmr_url_unescape(&b, text, len, false);
    fm_status rc = fm_buf_ok(&b);
    if (rc == FM_OK) {
        *out = fm_strdup(fm_buf_cstr(&b)); /* ends at a NUL byte */
        rc = *out ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&b);
    return rc;
}

/* A revision ends at the next '/', but for the Hub's own refs: "refs/pr/3",
 * "refs/convert/parquet". */
static size_t revision_len(const char *p)
{
    size_t n = strcspn(p, "/");
    if (n == 4 && strncmp(p, "refs/", 5) == 0)
        for (int i = 0; i < 2 && p[n] == '/'; i++)
            n += 1 + strcspn(p + n + 1, "/");
    return n;
}

static bool is_revision(const char *r)
{
    for (const char *p = r; *p; p++)
        if (is_control(*p) || strchr(" ~^:?*[\\", *p))
            return false;
    return *r && *r != '-' && *r != '/' && strlen(r) <= 255 && !strstr(r, "..");
}

/* rest: "@rev/file", "/file", "". */
static fm_status read_rest(fmr_address *a, const char *rest, const char *src)
{
    fm_status rc = FM_OK;
    if (*rest == '@') {
        const size_t n = revision_len(++rest);
        rc = unescaped(&a->revision, rest, n);
        rest += n;
    } else {
        a->revision = fm_strdup("main");
        rc = a->revision ? FM_OK : FM_ENOMEM;
    }
    if (rc == FM_OK && !is_revision(a->revision))
        return fm_fail(FM_EINVAL, "%s: '%s' is no revision; %s", src, a->revision, forms);
    if (rc == FM_OK && *rest == '/' && rest[1]) {
        a->file = fm_strdup(rest + 1);
        rc = a->file ? FM_OK : FM_ENOMEM;
        if (rc == FM_OK && !fmr_hub_path_is_safe(a->file))
            return fm_fail(FM_EINVAL, "%s: '%s' is no path inside a model; %s", src, a->file,
                           forms);
    }
    return rc;
}

static fm_status read_hf(fmr_address *a, const char *text, const char *src)
{
    size_t n = word_len(text), m = n > 0 && text[n] == '/' ? word_len(text + n + 1) : 0;
    const size_t len = m > 0 ? n + 1 + m : n;
    const char end = text[len];
    if (n == 0 || (end && end != '@' && end != '/'))
        return fm_fail(FM_EINVAL, "%s: no model's name; %s", src, forms);
    a->repo = fm_strndup(text, len);
    return a->repo ? read_rest(a, text + len, src) : FM_ENOMEM;
}

/* An address of the Hub's pages: org/name, org/name/tree/rev, org/name/blob/rev/file and
 * org/name/resolve/rev/file. False: it is no such page. */
static fm_status read_page(fmr_address *a, const char *page, const char *src, bool *yes)
{
    static const char *const verbs[] = {"/tree/", "/blob/", "/resolve/"};
    const size_t n = word_len(page), m = n > 0 && page[n] == '/' ? word_len(page + n + 1) : 0;
    const char *rest = page + n + 1 + m;
    *yes = false;
    if (m == 0)
        return FM_OK;
    fm_status rc = FM_OK;
    char *path = NULL, *text = NULL;
    const size_t len = strcspn(rest, "?#");
    if (len == 0) {
        text = fm_asprintf("@main");
        *yes = true;
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(verbs) && !*yes; i++)
        if (strncmp(rest, verbs[i], strlen(verbs[i])) == 0) {
            rest += strlen(verbs[i]);
            const size_t rev = FM_MIN(revision_len(rest), strcspn(rest, "?#"));
            rc = unescaped(&path, rest + rev, strcspn(rest + rev, "?#"));
            text = rc == FM_OK ? fm_asprintf("@%.*s%s", (int)rev, rest, path) : NULL;
            *yes = true;
        }
    if (*yes) {
        a->repo = fm_strndup(page, n + 1 + m);
        rc = a->repo && text ? read_rest(a, text, src) : FM_ENOMEM;
    }
    fm_free(path);
    fm_free(text);
    return rc;
}

static fm_status read_url(fmr_address *a, const char *src, const char *endpoint)
{
    const size_t n = strlen(endpoint);
    bool page = false;
    if (strncmp(src, endpoint, n) == 0 && src[n] == '/')
        FM_TRY(read_page(a, src + n + 1, src, &page));
    if (page)
        return FM_OK;
    const char *path = strstr(src, "://") + 3;
    const size_t end = strcspn(path, "?#");
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (begin == 0 || begin == end)
        return fm_fail(FM_EINVAL, "the URL names no file; %s", forms);
    FM_TRY(unescaped(&a->file, path + begin, end - begin));
    if (strchr(a->file, '/') || !fmr_hub_path_is_safe(a->file))
        return fm_fail(FM_EINVAL, "the URL names no file; %s", forms);
    a->url = fm_strdup(src);
    return a->url ? FM_OK : FM_ENOMEM;
}

fm_status fmr_address_parse(fmr_address *out, const char *src, const char *endpoint)
{
    *out = (fmr_address){NULL, NULL, NULL, NULL};
    fm_status rc =
        strncmp(src, "hf:", 3) == 0 ? read_hf(out, src + 3, src) : read_url(out, src, endpoint);
    if (rc != FM_OK)
        fmr_address_release(out);
    return rc;
}

void fmr_address_release(fmr_address *a)
{
    fm_free(a->repo);
    fm_free(a->revision);
    fm_free(a->file);
    fm_free(a->url);
    *a = (fmr_address){NULL, NULL, NULL, NULL};
}

/* ==== the environment ==== */

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool is_yes(const char *value)
{
    return value && (strcmp(value, "1") == 0 || strcasecmp(value, "true") == 0 ||
                     strcasecmp(value, "yes") == 0 || strcasecmp(value, "on") == 0);
}

/* "~/x" with the home folder in place of '~'. */
static char *expanded(const char *path)
{
    const char *home = env("HOME");
    if (path[0] == '~' && path[1] == '/' && home)
        return fm_asprintf("%s%s", home, path + 1);
    return fm_strdup(path);
}

/* Hugging Face's folder; *out NULL: there is no home. */
static fm_status find_home(char **out)
{
    *out = NULL;
    if (env("HF_HOME"))
        *out = expanded(env("HF_HOME"));
    else if (env("XDG_CACHE_HOME"))
        *out = fm_asprintf("%s/huggingface", env("XDG_CACHE_HOME"));
    else if (env("HOME"))
        *out = fm_asprintf("%s/.cache/huggingface", env("HOME"));
    else
        return FM_OK;
    return *out ? FM_OK : FM_ENOMEM;
}

/* Without blanks around it and line ends in it, as Hugging Face's client reads it. */
static fm_status take_token(fmr_hub_env *e, const char *text, size_t len)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    for (size_t i = 0; i < len && text[i]; i++)
        if (text[i] != '\n' && text[i] != '\r' && (text[i] != ' ' || b.len > 0))
            fm_buf_char(&b, text[i]);
    while (b.len > 0 && (b.data[b.len - 1] == ' ' || b.data[b.len - 1] == '\t'))
        b.data[--b.len] = '\0';
    fm_status rc = fm_buf_ok(&b);
    if (rc == FM_OK && b.len > 0) {
        e->token = fm_strdup(fm_buf_cstr(&b));
        rc = e->token ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&b);
    return rc;
}

static fm_status read_token(fmr_hub_env *e, const char *home)
{
    const char *word = env("HF_TOKEN") ? env("HF_TOKEN") : env("HUGGING_FACE_HUB_TOKEN");
    if (word)
        return take_token(e, word, strlen(word));
    if (!env("HF_TOKEN_PATH") && !home)
        return FM_OK;
    char *path =
        env("HF_TOKEN_PATH") ? expanded(env("HF_TOKEN_PATH")) : fm_path_join(home, "token");
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = path ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && fm_path_exists(path)) {
        rc = fm_read_file(&text, path, TOKEN_MAX_BYTES);
        FM_THEN(rc, take_token(e, fm_buf_cstr(&text), text.len));
    }
    fm_buf_release(&text);
    fm_free(path);
    return rc;
}

static fm_status read_endpoint(fmr_hub_env *e)
{
    const char *word = env("HF_ENDPOINT") ? env("HF_ENDPOINT") : "https://huggingface.co";
    size_t n = strlen(word);
    while (n > 0 && word[n - 1] == '/')
        n--;
    if (strncmp(word, "http://", 7) != 0 && strncmp(word, "https://", 8) != 0)
        return fm_fail(FM_EINVAL, "HF_ENDPOINT must begin with https:// or http://");
    e->endpoint = fm_strndup(word, n);
    return e->endpoint ? FM_OK : FM_ENOMEM;
}

fm_status fmr_hub_env_read(fmr_hub_env *out)
{
    char *home = NULL;
    const char *cache = env("HF_HUB_CACHE") ? env("HF_HUB_CACHE") : env("HUGGINGFACE_HUB_CACHE");
    *out = (fmr_hub_env){.offline = is_yes(env("HF_HUB_OFFLINE"))};
    fm_status rc = read_endpoint(out);
    FM_THEN(rc, find_home(&home));
    if (rc == FM_OK && (cache || home)) {
        out->cache = cache ? expanded(cache) : fm_path_join(home, "hub");
        rc = out->cache ? FM_OK : FM_ENOMEM;
    }
    FM_THEN(rc, read_token(out, home));
    fm_free(home);
    if (rc != FM_OK)
        fmr_hub_env_release(out);
    return rc;
}

void fmr_hub_env_release(fmr_hub_env *e)
{
    fm_free(e->endpoint);
    fm_free(e->token);
    fm_free(e->cache);
    *e = (fmr_hub_env){.endpoint = NULL};
}
