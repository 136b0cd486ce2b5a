/* s3_keys.c - credentials, region and endpoint. */
#include "remote/bucket/s3_keys.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/base/os/io.h"

#define FILE_MAX ((size_t)1 << 20)
#define DEFAULT_REGION "us-east-1"

static fm_span trimmed(fm_span s)
{
    while (s.len && (s.data[0] == ' ' || s.data[0] == '\t')) {
        s.data++;
        s.len--;
    }
    while (s.len && strchr(" \t\r", s.data[s.len - 1]))
        s.len--;
    return s;
}

static fm_span take_line(fm_span *text)
{
    const uint8_t *end = memchr(text->data, '\n', text->len);
    const size_t len = end ? (size_t)(end - text->data) : text->len;
    const fm_span line = trimmed(fm_span_of(text->data, len));
    text->data += len + (end != NULL);
    text->len -= len + (end != NULL);
    return line;
}

static bool is_section(fm_span line, const char *section)
{
    return line.len > 2 && line.data[line.len - 1] == ']' &&
           fm_span_eq_str(trimmed(fm_span_of(line.data + 1, line.len - 2)), section);
}

char *fmr_ini_value(fm_span text, const char *section, const char *key)
{
    bool inside = false;
    while (text.len > 0) {
        const fm_span line = take_line(&text);
        if (line.len == 0 || line.data[0] == '#' || line.data[0] == ';')
            continue;
        if (line.data[0] == '[') {
            inside = is_section(line, section);
            continue;
        }
        const uint8_t *eq = memchr(line.data, '=', line.len);
        if (!inside || !eq ||
            !fm_span_eq_str(trimmed(fm_span_of(line.data, (size_t)(eq - line.data))), key))
            continue;
        const fm_span value = trimmed(fm_span_of(eq + 1, line.len - (size_t)(eq + 1 - line.data)));
        return fm_strndup((const char *)value.data, value.len);
    }
    return NULL;
}

static const char *set(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* The text of a file that the environment names, or of ~/.aws/<name>; empty where there is none. */
static fm_status read_text(fm_buf *out, const char *variable, const char *name)
{
    const char *given = set(variable), *home = set("HOME");
    char *path = given ? fm_strdup(given) : home ? fm_asprintf("%s/.aws/%s", home, name) : NULL;
    fm_status rc = FM_OK;
    fm_buf_init(out, FILE_MAX);
    if (path && fm_path_exists(path))
        rc = fm_read_file(out, path, FILE_MAX);
    fm_free(path);
    return rc;
}

typedef struct files {
    fm_buf credentials, config;
    const char *profile;
    char *section; /* of the config: "profile x" */
} files;

static char *from_files(const files *f, const char *key)
{
    char *v = fmr_ini_value(fm_buf_span(&f->credentials), f->profile, key);
    return v ? v : fmr_ini_value(fm_buf_span(&f->config), f->section, key);
}

static char *either(const char *a, const char *b, const files *f, const char *key)
{
    const char *v = set(a) ? set(a) : b ? set(b) : NULL;
    return v ? fm_strdup(v) : from_files(f, key);
}

static fm_status read_keys(fmr_s3_keys *k, const files *f)
{
    k->region = either("AWS_REGION", "AWS_DEFAULT_REGION", f, "region");
    if (!k->region)
        k->region = fm_strdup(DEFAULT_REGION);
    k->endpoint = either("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", f, "endpoint_url");
    if (set("AWS_ACCESS_KEY_ID") || set("AWS_SECRET_ACCESS_KEY")) {
        k->access = set("AWS_ACCESS_KEY_ID") ? fm_strdup(set("AWS_ACCESS_KEY_ID")) : NULL;
        k->secret = set("AWS_SECRET_ACCESS_KEY") ? fm_strdup(set("AWS_SECRET_ACCESS_KEY")) : NULL;
        k->token = set("AWS_SESSION_TOKEN") ? fm_strdup(set("AWS_SESSION_TOKEN")) : NULL;
    } else {
        k->access = from_files(f, "aws_access_key_id");
        k->secret = from_files(f, "aws_secret_access_key");
        k->token = from_files(f, "aws_session_token");
    }
    if (!k->region)
        return FM_ENOMEM;
    if (!k->access != !k->secret)
        return fm_fail(FM_EREFUSED, "S3: one half of the key is set alone; AWS_ACCESS_KEY_ID and "
                                    "AWS_SECRET_ACCESS_KEY go together");
    if (!k->access && set("AWS_PROFILE"))
        return fm_fail(FM_EREFUSED,
                       "S3: the profile '%.60s' of AWS_PROFILE has no "
                       "aws_access_key_id in ~/.aws/credentials",
                       set("AWS_PROFILE"));
    return FM_OK;
}

fm_status fmr_s3_keys_read(fmr_s3_keys *out)
{
    files f = {.profile = set("AWS_PROFILE") ? set("AWS_PROFILE") : "default"};
    memset(out, 0, sizeof *out);
    fm_status rc = read_text(&f.credentials, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
    FM_THEN(rc, read_text(&f.config, "AWS_CONFIG_FILE", "config"));
    f.section = strcmp(f.profile, "default") == 0 ? fm_strdup("default")
                                                  : fm_asprintf("profile %s", f.profile);
    if (rc == FM_OK && !f.section)
        rc = FM_ENOMEM;
    FM_THEN(rc, read_keys(out, &f));
    fm_free(f.section);
    fm_buf_release(&f.credentials);
    fm_buf_release(&f.config);
    if (rc != FM_OK)
        fmr_s3_keys_release(out);
    return rc;
}

void fmr_s3_keys_release(fmr_s3_keys *k)
{
    fm_free(k->access);
    fm_free(k->secret);
    fm_free(k->token);
    fm_free(k->region);
    fm_free(k->endpoint);
    memset(k, 0, sizeof *k);
}
