/* torch_zip.c - see torch_zip.h. */
#include "store/formats/torch_zip.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/checked.h"
#include "store/base/map.h"
#include "store/base/mem.h"

enum {
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    CENTRAL_BYTES = 46,
    LOCAL_BYTES = 30,
    FLAG_ENCRYPTED = 0x0001,
    FLAG_DESCRIPTOR = 0x0008,
    FLAG_UTF8 = 0x0800,
    EXTRA_ZIP64 = 1,
};
#define SIG_END 0x06054b50u
#define SIG_END64 0x06064b50u
#define SIG_LOCATOR 0x07064b50u
#define SIG_CENTRAL 0x02014b50u
#define SIG_LOCAL 0x04034b50u
#define SIG_DESCRIPTOR 0x08074b50u
#define FULL32 0xffffffffu
#define FULL16 0xffffu

struct fm_zip {
    fm_span file;
    const char *what;
    fm_arena *arena;
    fm_zip_entry *entry;
    size_t count;
    fm_map *by_name;
    fm_span root; /* "archive/", taken from the first entry */
};

/* One record, central or local. */
typedef struct record {
    uint16_t flags, method;
    uint32_t crc;
    uint64_t packed, bytes, head;
    fm_span name, extra;
} record;

typedef struct place { /* place of the central directory */
    uint64_t at, bytes, count;
} place;

void fm_zip_close(fm_zip *zip)
{
    if (!zip)
        return;
    fm_free(zip->entry);
    fm_map_free(zip->by_name);
    fm_arena_free(zip->arena);
    fm_free(zip);
}

size_t fm_zip_count(const fm_zip *zip)
{
    return zip->count;
}

const fm_zip_entry *fm_zip_at(const fm_zip *zip, size_t i)
{
    fm_assert(i < zip->count);
    return &zip->entry[i];
}

const fm_zip_entry *fm_zip_find(const fm_zip *zip, const char *name)
{
    return fm_map_get(zip->by_name, name, strlen(name));
}

fm_span fm_zip_bytes(const fm_zip *zip, const fm_zip_entry *e)
{
    return fm_span_of(zip->file.data + e->at, (size_t)e->bytes);
}

static fm_status bad(const fm_zip *zip, const char *why)
{
    return fm_fail(FM_ECORRUPT, "%s: zip archive: %s", zip->what, why);
}

/* ---- the end of the file says where the central directory is ---- */

/* A 16- or 32-bit field with all bits set refers to its 64-bit twin; else both must be equal. */
static bool agree(uint64_t narrow, uint64_t full, uint64_t wide)
{
    return narrow == full || narrow == wide;
}

static fm_status read_end64(const fm_zip *zip, place *out, uint64_t end_at, bool *found)
{
    const uint8_t *f = zip->file.data, *end = f + end_at;
    const uint8_t *locator = end_at >= LOCATOR_BYTES ? end - LOCATOR_BYTES : NULL;
    uint64_t at, size;

    *found = locator && fm_get_u32(locator) == SIG_LOCATOR;
    if (!*found)
        return FM_OK;
    at = fm_get_u64(locator + 8);
    if (fm_get_u32(locator + 4) != 0 || fm_get_u32(locator + 16) > 1)
        return bad(zip, "is one of several disks");
    if (end_at < LOCATOR_BYTES + END64_BYTES || at > end_at - LOCATOR_BYTES - END64_BYTES ||
        fm_get_u32(f + at) != SIG_END64)
        return bad(zip, "the zip64 locator points at no zip64 end record");
    size = fm_get_u64(f + at + 4);
    if (size != end_at - LOCATOR_BYTES - at - 12)
        return bad(zip, "the zip64 end record's field 'size' does not reach the locator");
    if (fm_get_u32(f + at + 16) != 0 || fm_get_u32(f + at + 20) != 0 ||
        fm_get_u64(f + at + 24) != fm_get_u64(f + at + 32))
        return bad(zip, "is one of several disks");
    out->count = fm_get_u64(f + at + 32);
    out->bytes = fm_get_u64(f + at + 40);
    out->at = fm_get_u64(f + at + 48);
    if (!agree(fm_get_u16(end + 10), FULL16, out->count) ||
        !agree(fm_get_u32(end + 12), FULL32, out->bytes) ||
        !agree(fm_get_u32(end + 16), FULL32, out->at))
        return bad(zip, "the end record contradicts the zip64 end record");
    if (out->at > at || out->bytes != at - out->at)
        return bad(zip, "the central directory does not end at the zip64 end record");
    return FM_OK;
}

static fm_status read_end(const fm_zip *zip, place *out)
{
    const uint64_t end_at = zip->file.len - END_BYTES;
    const uint8_t *end = zip->file.data + end_at;
    bool found = false;
    fm_status rc;

    if (fm_get_u32(end) != SIG_END || fm_get_u16(end + 20) != 0)
        return bad(zip, "has no end record (the file is cut short, or something follows it)");
    if (fm_get_u16(end + 4) != 0 || fm_get_u16(end + 6) != 0 ||
        fm_get_u16(end + 8) != fm_get_u16(end + 10))
        return bad(zip, "is one of several disks");
    rc = read_end64(zip, out, end_at, &found);
    if (rc < 0 || found)
        return rc;
    out->count = fm_get_u16(end + 10);
    out->bytes = fm_get_u32(end + 12);
    out->at = fm_get_u32(end + 16);
    if (out->at > end_at || out->bytes != end_at - out->at)
        return bad(zip, "the central directory does not end at the end record");
    return FM_OK;
}

/* ---- records ---- */

/* Takes the zip64 extra field's values for those fields that have all bits set, in this order. */
static fm_status widen(const fm_zip *zip, record *r, bool with_head)
{
    uint64_t *const field[] = {&r->bytes, &r->packed, &r->head};
    const uint8_t *p = r->extra.data;
    size_t left = r->extra.len;

    while (left >= 4) {
        const uint16_t id = fm_get_u16(p), size = fm_get_u16(p + 2);
        if (size > left - 4)
            return bad(zip, "an extra field reaches past its record");
        if (id == EXTRA_ZIP64) {
            size_t at = 0;
            for (size_t i = 0; i < (with_head ? 3u : 2u); i++) {
                if (*field[i] != FULL32)
                    continue;
                if (at + 8 > size)
                    return bad(zip, "a zip64 extra field is too short");
                *field[i] = fm_get_u64(p + 4 + at);
                at += 8;
            }
            return FM_OK;
        }
        p += 4 + size;
        left -= 4u + size;
    }
    return FM_OK;
}

static fm_status read_central(const fm_zip *zip, record *r, uint64_t *at, uint64_t end)
{
    const uint8_t *p = zip->file.data + *at;
    uint64_t size;

    if (end - *at < CENTRAL_BYTES || fm_get_u32(p) != SIG_CENTRAL)
        return bad(zip, "a central record is missing or damaged");
    size = (uint64_t)CENTRAL_BYTES + fm_get_u16(p + 28) + fm_get_u16(p + 30) + fm_get_u16(p + 32);
    if (size > end - *at)
        return bad(zip, "a central record reaches past the central directory");
    if (fm_get_u16(p + 32) != 0 || fm_get_u16(p + 34) != 0)
        return bad(zip, "a central record has a comment or another disk's number");
    r->flags = fm_get_u16(p + 8);
    r->method = fm_get_u16(p + 10);
    r->crc = fm_get_u32(p + 16);
    r->packed = fm_get_u32(p + 20);
    r->bytes = fm_get_u32(p + 24);
    r->head = fm_get_u32(p + 42);
    r->name = fm_span_of(p + CENTRAL_BYTES, fm_get_u16(p + 28));
    r->extra = fm_span_of(p + CENTRAL_BYTES + r->name.len, fm_get_u16(p + 30));
    *at += size;
    return widen(zip, r, true);
}

/* Checks the data descriptor after an entry whose local header has no sizes. */
static bool descriptor_ok(const fm_zip *zip, const record *r, uint64_t at, uint64_t end)
{
    const uint8_t *p = zip->file.data + at;
    uint64_t left = end - at;

    if (left >= 4 && fm_get_u32(p) == SIG_DESCRIPTOR) {
        p += 4;
        left -= 4;
    }
    if (left >= 20 && fm_get_u32(p) == r->crc && fm_get_u64(p + 4) == r->bytes &&
        fm_get_u64(p + 12) == r->bytes)
        return true;
    return left >= 12 && fm_get_u32(p) == r->crc && fm_get_u32(p + 4) == r->bytes &&
           fm_get_u32(p + 8) == r->bytes;
}

static fm_status check_local(const fm_zip *zip, const record *r, uint64_t directory, uint64_t *at)
{
    const uint8_t *p = zip->file.data + r->head;
    const bool open = (r->flags & FLAG_DESCRIPTOR) != 0;
    record local = {.head = 0};

    if (r->head > directory || directory - r->head < LOCAL_BYTES || fm_get_u32(p) != SIG_LOCAL)
        return bad(zip, "a central record points at no local header");
    local.name = fm_span_of(p + LOCAL_BYTES, fm_get_u16(p + 26));
    local.extra = fm_span_of(p + LOCAL_BYTES + local.name.len, fm_get_u16(p + 28));
    *at = r->head + LOCAL_BYTES + local.name.len + local.extra.len;
    if (*at > directory || r->bytes > directory - *at)
        return bad(zip, "an entry reaches into the central directory");
    local.packed = fm_get_u32(p + 18);
    local.bytes = fm_get_u32(p + 22);
    if (widen(zip, &local, false) < 0)
        return FM_ECORRUPT;
    if (!fm_span_eq(local.name, r->name) || fm_get_u16(p + 6) != r->flags ||
        fm_get_u16(p + 8) != r->method)
        return bad(zip, "a local header contradicts its central record");
    if (open && fm_get_u32(p + 14) == 0 && local.bytes == 0 && local.packed == 0)
        return descriptor_ok(zip, r, *at + r->bytes, directory)
                   ? FM_OK
                   : bad(zip, "a data descriptor contradicts its central record");
    if (fm_get_u32(p + 14) != r->crc || local.bytes != r->bytes || local.packed != r->bytes)
        return bad(zip, "a local header contradicts its central record");
    return FM_OK;
}

/* ---- names ---- */

/* Relative, without empty parts, ".", ".." and other systems' separators. */
static bool is_safe_name(fm_span name)
{
    size_t part = 0;

    if (name.len == 0 || name.len > FM_ZIP_MAX_NAME_BYTES)
        return false;
    for (size_t i = 0; i <= name.len; i++) {
        if (i < name.len && name.data[i] != '/') {
            if (name.data[i] < 0x20 || name.data[i] == '\\' || name.data[i] == ':')
                return false;
            continue;
        }
        const size_t n = i - part;
        if (n == 0 || (n <= 2 && memcmp(name.data + part, "..", n) == 0))
            return false;
        part = i + 1;
    }
    return true;
}

static fm_status take_name(fm_zip *zip, fm_zip_entry *e, fm_span name)
{
    if (!is_safe_name(name))
        return bad(zip, "an entry's name is no relative path, or leaves the archive");
    if (!zip->root.data) {
        const uint8_t *slash = memchr(name.data, '/', name.len);
        if (!slash)
            return bad(zip, "its entries lie in no folder; this is no file of torch.save");
        zip->root = fm_span_of(name.data, (size_t)(slash - name.data) + 1);
    }
    if (name.len <= zip->root.len || memcmp(name.data, zip->root.data, zip->root.len) != 0)
        return bad(zip, "its entries lie in several folders");
    e->name = fm_arena_strndup(zip->arena, (const char *)name.data + zip->root.len,
                               name.len - zip->root.len);
    return e->name ? FM_OK : FM_ENOMEM;
}

static int by_place(const void *a, const void *b)
{
    const fm_zip_entry *x = a, *y = b;

    return x->head < y->head ? -1 : x->head > y->head;
}

/* Sorts the entries by place, then makes the table of names, which has pointers into the list. */
static fm_status check_order(fm_zip *zip)
{
    fm_status rc = fm_map_new(&zip->by_name);

    if (zip->count > 0)
        qsort(zip->entry, zip->count, sizeof *zip->entry, by_place);
    for (size_t i = 0; rc == FM_OK && i < zip->count; i++) {
        fm_zip_entry *e = &zip->entry[i];
        void *old = NULL;
        if (i > 0 && e->head < e[-1].at + e[-1].bytes)
            return fm_fail(FM_ECORRUPT, "%s: zip archive: entries '%.200s' and '%.200s' overlap",
                           zip->what, e[-1].name, e->name);
        rc = fm_map_put(zip->by_name, e->name, strlen(e->name), e, &old);
        if (rc == FM_OK && old)
            rc = fm_fail(FM_ECORRUPT, "%s: zip archive: entry '%.200s' is there twice", zip->what,
                         e->name);
    }
    return rc;
}

static fm_status read_entry(fm_zip *zip, uint64_t *at, const place *dir)
{
    fm_zip_entry *e = &zip->entry[zip->count];
    record r = {.head = 0};
    FM_TRY(read_central(zip, &r, at, dir->at + dir->bytes));

    FM_TRY(take_name(zip, e, r.name));
    if (r.flags & FLAG_ENCRYPTED)
        return fm_fail(FM_EUNSUPPORTED, "%s: zip entry '%.200s' is encrypted", zip->what, e->name);
    if (r.method != 0 || r.packed != r.bytes)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: zip entry '%.200s' is compressed, which torch.save never does; load it "
                       "with PyTorch and save it as safetensors",
                       zip->what, e->name);
    if (r.flags & ~(unsigned)(FLAG_DESCRIPTOR | FLAG_UTF8))
        return fm_fail(FM_EUNSUPPORTED, "%s: zip entry '%.200s': flags 0x%x are not understood",
                       zip->what, e->name, (unsigned)r.flags);
    fm_status rc = check_local(zip, &r, dir->at, &e->at);
    if (rc < 0)
        return fm_error_prefix(rc, "entry '%.200s'", e->name);
    e->head = r.head;
    e->bytes = r.bytes;
    zip->count++;
    return FM_OK;
}

static fm_status read_all(fm_zip *zip)
{
    place dir = {0, 0, 0};
    uint64_t at;

    if (zip->file.len < END_BYTES)
        return bad(zip, "too few bytes");
    FM_TRY(read_end(zip, &dir));
    if (dir.count > dir.bytes / CENTRAL_BYTES)
        return bad(zip, "claims more entries than the central directory can hold");
    if (dir.count > FM_ZIP_MAX_ENTRIES)
        return fm_fail(FM_ELIMIT, "%s: zip archive: more than %u entries", zip->what,
                       FM_ZIP_MAX_ENTRIES);
    zip->entry = fm_calloc((size_t)dir.count + 1, sizeof *zip->entry);
    if (!zip->entry)
        return FM_ENOMEM;
    at = dir.at;
    for (uint64_t i = 0; i < dir.count; i++)
        FM_TRY(read_entry(zip, &at, &dir));
    if (at != dir.at + dir.bytes)
        FM_TRY(bad(zip, "bytes follow the last central record"));
    return check_order(zip);
}

fm_status fm_zip_parse(fm_zip **out, fm_span file, const char *what)
{
    fm_zip *zip = fm_calloc(1, sizeof *zip);
    fm_status rc = zip ? fm_arena_new(&zip->arena) : FM_ENOMEM;

    *out = NULL;
    if (rc == FM_OK) {
        zip->file = file;
        zip->what = fm_arena_strndup(zip->arena, what, strlen(what));
        rc = zip->what ? read_all(zip) : FM_ENOMEM;
    }
    if (rc < 0) {
        fm_zip_close(zip);
        return rc;
    }
    *out = zip;
    return FM_OK;
}
