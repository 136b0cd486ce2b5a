/* doomed.c - reading and writing the list of the condemned. FORMAT.md has the text's grammar. */
#include "store/lease/doomed.h"

#include <string.h>

#include "store/base/os/io.h"

#define HEAD_LINE "fmstore condemned 1\n"
#define SUM_WORD "sum "
#define FILE_MAX_BYTES ((size_t)1 << 30)
#define SUM_LINE_BYTES (sizeof SUM_WORD - 1 + FM_HEX_CHARS + 1)
enum { LEASE_NAME_MAX = 64, BATCHES_MAX = 1 << 20 };

fm_status fms_condemned_new(fms_condemned **out)
{
    *out = NULL;
    fms_condemned *c = fm_calloc(1, sizeof *c);
    if (!c)
        return FM_ENOMEM;
    fm_status rc = fm_map_new(&c->object);
    FM_THEN(rc, fm_map_new(&c->git));
    if (rc == FM_OK)
        *out = c;
    else
        fms_condemned_free(c);
    return rc;
}

void fms_condemned_free(fms_condemned *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->batch_count; i++) {
        for (size_t k = 0; k < c->batch[i].lease_count; k++)
            fm_free(c->batch[i].lease[k]);
        fm_free(c->batch[i].lease);
    }
    fm_free(c->batch);
    fm_map_free(c->object);
    fm_map_free(c->git);
    fm_free(c);
}

fm_status fms_condemned_add_batch(fms_condemned *c, int64_t time)
{
    FM_TRY(fm_grow(&c->batch, &c->batch_cap, c->batch_count + 1, sizeof *c->batch));
    memset(&c->batch[c->batch_count], 0, sizeof *c->batch);
    c->batch[c->batch_count++].time = time;
    return FM_OK;
}

fm_status fms_condemned_add_lease(fms_condemned *c, const char *name)
{
    fm_assert(c->batch_count > 0);
    fms_batch *b = &c->batch[c->batch_count - 1];
    FM_TRY(fm_grow(&b->lease, &b->lease_cap, b->lease_count + 1, sizeof *b->lease));
    char *copy = fm_strdup(name);
    if (!copy)
        return FM_ENOMEM;
    b->lease[b->lease_count++] = copy;
    return FM_OK;
}

static fm_status add_id(fms_condemned *c, fm_map *map, size_t batch, const uint8_t *id, size_t len)
{
    fm_assert(batch < c->batch_count);
    if (fm_map_has(map, id, len))
        return FM_OK;
    c->batch[batch].ids++;
    return fm_map_put(map, id, len, (void *)(uintptr_t)(batch + 1), NULL);
}

fm_status fms_condemned_add_object(fms_condemned *c, size_t batch, const fm_digest *id)
{
    return add_id(c, c->object, batch, id->b, FM_DIGEST_BYTES);
}

fm_status fms_condemned_add_git(fms_condemned *c, size_t batch, const uint8_t *id)
{
    return add_id(c, c->git, batch, id, FMS_GIT_ID_BYTES);
}

static const fms_batch *batch_of(const fms_condemned *c, const fm_map *map, const uint8_t *id,
                                 size_t len)
{
    uintptr_t at = (uintptr_t)fm_map_get(map, id, len);
    return at ? &c->batch[at - 1] : NULL;
}

const fms_batch *fms_condemned_object(const fms_condemned *c, const fm_digest *id)
{
    return batch_of(c, c->object, id->b, FM_DIGEST_BYTES);
}

const fms_batch *fms_condemned_git(const fms_condemned *c, const uint8_t *id)
{
    return batch_of(c, c->git, id, FMS_GIT_ID_BYTES);
}

/* ==== reading ============================================================================== */

static bool hex_bytes(uint8_t *out, size_t bytes, fm_span hex)
{
    if (hex.len != 2 * bytes)
        return false;
    for (size_t i = 0; i < hex.len; i++) {
        uint8_t ch = hex.data[i], v;
        if (ch >= '0' && ch <= '9')
            v = (uint8_t)(ch - '0');
        else if (ch >= 'a' && ch <= 'f')
            v = (uint8_t)(ch - 'a' + 10);
        else
            return false;
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | v : v << 4);
    }
    return true;
}

static bool decimal(int64_t *out, fm_span text)
{
    *out = 0;
    if (text.len == 0 || text.len > 18)
        return false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9')
            return false;
        *out = *out * 10 + (text.data[i] - '0');
    }
    return true;
}

static bool take_word(fm_span *line, const char *word)
{
    size_t n = strlen(word);
    if (line->len < n || memcmp(line->data, word, n) != 0)
        return false;
    *line = fm_span_of(line->data + n, line->len - n);
    return true;
}

static fm_status add_named_lease(fms_condemned *c, fm_span name)
{
    char text[LEASE_NAME_MAX + 1] = "";
    memcpy(text, name.data, name.len);
    return fms_condemned_add_lease(c, text);
}

/* Adds one line to c. FM_EINVAL: it is not a line of this format. */
static fm_status take_line(fms_condemned *c, fm_span line)
{
    uint8_t id[FM_DIGEST_BYTES];
    int64_t time;
    if (take_word(&line, "batch "))
        return decimal(&time, line) && c->batch_count < BATCHES_MAX
                   ? fms_condemned_add_batch(c, time)
                   : FM_EINVAL;
    if (c->batch_count == 0)
        return FM_EINVAL;
    if (take_word(&line, "lease "))
        return line.len > 0 && line.len <= LEASE_NAME_MAX ? add_named_lease(c, line) : FM_EINVAL;
    if (take_word(&line, "object "))
        return hex_bytes(id, sizeof id, line)
                   ? add_id(c, c->object, c->batch_count - 1, id, sizeof id)
                   : FM_EINVAL;
    if (take_word(&line, "git "))
        return hex_bytes(id, FMS_GIT_ID_BYTES, line)
                   ? add_id(c, c->git, c->batch_count - 1, id, FMS_GIT_ID_BYTES)
                   : FM_EINVAL;
    return FM_EINVAL;
}

/* Whether the last line is the digest of all lines before it. */
static bool sum_ok(fm_span text)
{
    fm_digest want, got;
    if (text.len < SUM_LINE_BYTES)
        return false;
    fm_span line = fm_span_of(text.data + text.len - SUM_LINE_BYTES, SUM_LINE_BYTES - 1);
    return take_word(&line, SUM_WORD) &&
           fm_digest_parse(&want, (const char *)line.data, line.len) &&
           fm_sha256(&got, text.data, text.len - SUM_LINE_BYTES) == FM_OK &&
           fm_digest_eq(&want, &got);
}

fm_status fms_condemned_parse(fms_condemned *c, fm_span text, const char *what)
{
    if (!sum_ok(text))
        return fm_fail(FM_ECORRUPT, "%s: its checksum is wrong; it may be deleted", what);
    fm_span rest = fm_span_of(text.data, text.len - SUM_LINE_BYTES);
    if (!take_word(&rest, HEAD_LINE))
        return fm_fail(FM_ECORRUPT, "%s: is of another version; it may be deleted", what);
    for (unsigned n = 2; rest.len > 0; n++) {
        const uint8_t *end = memchr(rest.data, '\n', rest.len);
        size_t len = end ? (size_t)(end - rest.data) : rest.len;
        fm_status rc = end ? take_line(c, fm_span_of(rest.data, len)) : FM_EINVAL;
        if (rc == FM_EINVAL)
            return fm_fail(FM_ECORRUPT, "%s: line %u is none of ours; it may be deleted", what, n);
        if (rc != FM_OK)
            return rc;
        rest = fm_span_of(rest.data + len + 1, rest.len - len - 1);
    }
    return FM_OK;
}

static fm_status read_path(fms_condemned *c, const char *path)
{
    fm_buf text;
    fm_buf_init(&text, FILE_MAX_BYTES);
    fm_status rc = fm_read_file(&text, path, FILE_MAX_BYTES);
    FM_THEN(rc, fms_condemned_parse(c, fm_buf_span(&text), path));
    fm_buf_release(&text);
    return rc == FM_ENOTFOUND ? FM_OK : rc;
}

fm_status fms_condemned_read(fms_condemned **out, const char *root)
{
    *out = NULL;
    char *path = fm_path_join(root, "condemned");
    fm_status rc = path ? fms_condemned_new(out) : FM_ENOMEM;
    FM_THEN(rc, read_path(*out, path));
    fm_free(path);
    if (rc == FM_OK || !*out)
        return rc;
    fms_condemned_free(*out);
    *out = NULL;
    if (rc != FM_ECORRUPT)
        return rc;
    fm_status made = fms_condemned_new(out);
    return made == FM_OK ? rc : made;
}

/* ==== writing ============================================================================== */

static void put_hex(fm_buf *b, const char *word, const uint8_t *id, size_t bytes)
{
    static const char digit[] = "0123456789abcdef";
    fm_buf_str(b, word);
    for (size_t i = 0; i < bytes; i++) {
        fm_buf_char(b, digit[id[i] >> 4]);
        fm_buf_char(b, digit[id[i] & 15]);
    }
    fm_buf_char(b, '\n');
}

static void put_ids(fm_buf *b, const fm_map *map, size_t batch, const char *word)
{
    for (size_t i = 0; i < fm_map_count(map); i++) {
        fm_span id = fm_map_key_at(map, i);
        if ((uintptr_t)fm_map_value_at(map, i) == batch + 1)
            put_hex(b, word, id.data, id.len);
    }
}

static fm_status make_text(fm_buf *b, const fms_condemned *c)
{
    fm_digest sum;
    fm_buf_str(b, HEAD_LINE);
    for (size_t i = 0; i < c->batch_count; i++) {
        const fms_batch *batch = &c->batch[i];
        if (batch->ids == 0)
            continue;
        fm_buf_printf(b, "batch %lld\n", (long long)FM_MAX(batch->time, 0));
        for (size_t k = 0; k < batch->lease_count; k++)
            fm_buf_printf(b, "lease %s\n", batch->lease[k]);
        put_ids(b, c->object, i, "object ");
        put_ids(b, c->git, i, "git ");
    }
    FM_TRY(fm_buf_ok(b));
    FM_TRY(fm_sha256(&sum, b->data, b->len));
    put_hex(b, SUM_WORD, sum.b, FM_DIGEST_BYTES);
    return fm_buf_ok(b);
}

static fm_status write_path(const fms_condemned *c, const char *root, const char *path,
                            fm_digest *sum)
{
    fm_buf text;
    fm_writer *w = NULL;
    fm_buf_init(&text, FILE_MAX_BYTES);
    char *tmp = fm_path_join(root, "tmp");
    fm_status rc = tmp ? make_text(&text, c) : FM_ENOMEM;
    FM_THEN(rc, fm_sha256(sum, text.data, text.len));
    FM_THEN(rc, fm_writer_open(&w, path, tmp)); /* fm_store_open removes it after a crash */
    FM_THEN(rc, fm_writer_write(w, text.data, text.len));
    FM_THEN(rc, fm_writer_commit(w, NULL));
    fm_writer_close(w);
    fm_free(tmp);
    fm_buf_release(&text);
    return rc;
}

fm_status fms_condemned_write(const fms_condemned *c, const char *root, fm_digest *sum)
{
    fm_digest ours;
    memset(&ours, 0, sizeof ours);
    char *path = fm_path_join(root, "condemned");
    fm_status rc = path ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && fm_map_count(c->object) == 0 && fm_map_count(c->git) == 0)
        rc = fm_path_exists(path) ? fm_remove_file(path) : FM_OK;
    else if (rc == FM_OK)
        rc = write_path(c, root, path, &ours);
    fm_free(path);
    if (sum)
        *sum = ours;
    return rc;
}

fm_status fms_condemned_sum(fm_digest *out, const char *root)
{
    fm_buf text;
    memset(out, 0, sizeof *out);
    fm_buf_init(&text, FILE_MAX_BYTES);
    char *path = fm_path_join(root, "condemned");
    fm_status rc = path ? fm_read_file(&text, path, FILE_MAX_BYTES) : FM_ENOMEM;
    FM_THEN(rc, fm_sha256(out, text.data, text.len));
    fm_free(path);
    fm_buf_release(&text);
    return rc == FM_ENOTFOUND ? FM_OK : rc;
}
