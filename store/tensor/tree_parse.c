/* tree_parse.c - parsing of pointer blobs, which may come from a hostile git tree.
 *
 * The grammar is exact (one field a line, fixed order, no spare space), so that an entry has only
 * one encoding and equal entries have equal git object ids. */
#include <inttypes.h>
#include <string.h>

#include "store/base/checked.h"
#include "store/tree.h"

#define MAX_POINTER_BYTES 4096u

typedef struct line_reader {
    const char *at, *end;
    const char *path; /* for errors */
} line_reader;

static fm_status bad(const line_reader *r, const char *field, const char *why)
{
    return fm_fail(FM_ECORRUPT, "tree path '%s': pointer field '%s' %s", r->path, field, why);
}

/* "<field> <value>\n" or, for a scalar's shape, "<field>\n". */
static fm_status next_line(line_reader *r, const char *field, fm_span *value)
{
    size_t n = strlen(field);
    const char *nl = r->at < r->end ? memchr(r->at, '\n', (size_t)(r->end - r->at)) : NULL;

    *value = fm_span_of("", 0);
    if (!nl)
        return bad(r, field, "is missing");
    if ((size_t)(nl - r->at) < n || memcmp(r->at, field, n) != 0)
        return bad(r, field, "is missing or out of order");
    if (r->at + n != nl) {
        if (r->at[n] != ' ')
            return bad(r, field, "is missing or out of order");
        *value = fm_span_of(r->at + n + 1, (size_t)(nl - r->at) - n - 1);
        if (value->len == 0)
            return bad(r, field, "is empty");
    }
    r->at = nl + 1;
    return FM_OK;
}

/* Decimal without sign, spare zeros or overflow; moves *p past it. */
static bool parse_u64(const uint8_t **p, const uint8_t *end, uint64_t *out)
{
    const uint8_t *s = *p;
    uint64_t v = 0;

    while (s < end && *s >= '0' && *s <= '9') {
        if (fm_mul_overflow(&v, v, 10) || fm_add_overflow(&v, v, (uint64_t)(*s - '0')))
            return false;
        s++;
    }
    if (s == *p || (**p == '0' && s - *p > 1))
        return false;
    *p = s;
    *out = v;
    return true;
}

static fm_status parse_id(line_reader *r, fm_digest *id)
{
    static const char tag[] = "sha256:";
    fm_span v;
    FM_TRY(next_line(r, "id", &v));
    if (v.len != sizeof tag - 1 + FM_HEX_CHARS || memcmp(v.data, tag, sizeof tag - 1) != 0 ||
        !fm_digest_parse(id, (const char *)v.data + sizeof tag - 1, FM_HEX_CHARS))
        return bad(r, "id", "is no sha256 digest");
    for (size_t i = sizeof tag - 1; i < v.len; i++)
        if (v.data[i] >= 'A' && v.data[i] <= 'F')
            return bad(r, "id", "must be in lower case");
    return FM_OK;
}

static fm_status parse_bytes(line_reader *r, uint64_t *bytes)
{
    fm_span v;
    const uint8_t *p;
    FM_TRY(next_line(r, "bytes", &v));
    p = v.data;
    if (!parse_u64(&p, v.data + v.len, bytes) || p != v.data + v.len)
        return bad(r, "bytes", "is no number");
    if (*bytes > FM_MAX_TENSOR_BYTES)
        return bad(r, "bytes", "is beyond the largest object");
    return FM_OK;
}

static fm_status parse_shape(line_reader *r, fm_shape *shape)
{
    fm_span v;
    const uint8_t *p, *end;
    fm_status rc = next_line(r, "shape", &v);

    memset(shape, 0, sizeof *shape);
    if (rc < 0 || v.len == 0)
        return rc;
    p = v.data;
    end = v.data + v.len;
    for (;;) {
        if (shape->rank == FM_MAX_RANK)
            return bad(r, "shape", "has too many dimensions");
        if (!parse_u64(&p, end, &shape->dim[shape->rank]))
            return bad(r, "shape", "is no list of numbers");
        shape->rank++;
        if (p == end)
            return FM_OK;
        if (*p++ != ' ')
            return bad(r, "shape", "is no list of numbers");
    }
}

static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static fm_status parse_name(line_reader *r, char name[FM_MAX_NAME_BYTES + 1])
{
    fm_span v;
    size_t n = 0;
    FM_TRY(next_line(r, "name", &v));
    for (size_t i = 0; i < v.len; i++) {
        uint8_t c = v.data[i];
        if (n == FM_MAX_NAME_BYTES)
            return bad(r, "name", "is too long");
        if (c == '%') {
            int hi = i + 2 < v.len ? hex_value(v.data[i + 1]) : -1;
            int lo = i + 2 < v.len ? hex_value(v.data[i + 2]) : -1;
            if (hi < 0 || lo < 0)
                return bad(r, "name", "has a broken escape");
            c = (uint8_t)(hi * 16 + lo);
            i += 2;
            if (c == 0 || (c >= 0x20 && c != 0x7f && c != '%'))
                return bad(r, "name", "escapes a byte that needs none");
        } else if (c < 0x20 || c == 0x7f) {
            return bad(r, "name", "holds a control byte");
        }
        name[n++] = (char)c;
    }
    if (n == 0)
        return bad(r, "name", "is empty");
    name[n] = '\0';
    return FM_OK;
}

static fm_status put_tensor(fm_tree *tree, line_reader *r)
{
    fm_digest id;
    fm_dtype dtype;
    fm_shape shape;
    fm_span v;
    uint64_t bytes = 0, need = 0;
    char name[FM_MAX_NAME_BYTES + 1];
    FM_TRY(parse_id(r, &id));

    FM_TRY(next_line(r, "dtype", &v));
    dtype = fm_dtype_parse((const char *)v.data, v.len);
    if (dtype == FM_DTYPE_NONE)
        return fm_fail(FM_EUNSUPPORTED, "tree path '%s': dtype '%.*s' is not known", r->path,
                       (int)FM_MIN(v.len, 40u), (const char *)v.data);
    FM_TRY(parse_shape(r, &shape));
    FM_TRY(parse_bytes(r, &bytes));
    FM_TRY(parse_name(r, name));
    if (r->at != r->end)
        return bad(r, "name", "is followed by more");
    if (fm_tensor_bytes(&need, dtype, &shape, name) < 0)
        return fm_error_prefix(FM_ECORRUPT, "tree path '%s'", r->path);
    if (need != bytes)
        return bad(r, "bytes", "contradicts dtype and shape");
    return fm_tree_put_tensor(tree, r->path, name, dtype, &shape, &id);
}

static fm_status put_blob(fm_tree *tree, line_reader *r)
{
    fm_digest id;
    uint64_t bytes = 0;
    FM_TRY(parse_id(r, &id));

    FM_TRY(parse_bytes(r, &bytes));
    if (r->at != r->end)
        return bad(r, "bytes", "is followed by more");
    return fm_tree_put_blob(tree, r->path, &id, bytes);
}

fm_status fm_tree_put_encoded(fm_tree *tree, const char *path, fm_span blob)
{
    static const char tensor[] = "fmstore tensor 1\n", opaque[] = "fmstore blob 1\n";
    line_reader r = {NULL, NULL, path};

    if (!fm_span_starts(blob, fm_span_str("fmstore ")))
        return fm_tree_put_file(tree, path, blob);
    if (blob.len > MAX_POINTER_BYTES)
        return fm_fail(FM_ECORRUPT, "tree path '%s': a pointer of %zu bytes", path, blob.len);
    r.end = (const char *)blob.data + blob.len;
    if (fm_span_starts(blob, fm_span_str(tensor))) {
        r.at = (const char *)blob.data + sizeof tensor - 1;
        return put_tensor(tree, &r);
    }
    if (fm_span_starts(blob, fm_span_str(opaque))) {
        r.at = (const char *)blob.data + sizeof opaque - 1;
        return put_blob(tree, &r);
    }
    if (fm_span_starts(blob, fm_span_str("fmstore tensor ")) ||
        fm_span_starts(blob, fm_span_str("fmstore blob ")))
        return fm_fail(FM_EVERSION, "tree path '%s': a pointer of a newer fmstore", path);
    return fm_fail(FM_ECORRUPT, "tree path '%s': an unknown kind of pointer", path);
}
