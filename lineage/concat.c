/* concat.c - joins several git packs into one, without decoding an object.
 *
 * A pack is a header, objects one after the other, and a SHA-1. An object refers to its delta base
 * by distance or by id, so the bodies can be written one after another as they are; the new index
 * merges the old ones, each offset moved by its pack's shift. No object may be in a pack twice: of
 * two packs that share one (an earlier repack was killed before it removed the old packs, or two
 * writers did not see each other) the smaller is left out, and its other objects are coded anew.
 * Formats: gitformat-pack(5), pack version 2, index version 2. */
#include "lineage/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHA1_BYTES 20u
#define PACK_HEAD_BYTES 12u
#define FANOUT_BYTES 1024u
#define IDX_HEAD_BYTES (8u + FANOUT_BYTES)
#define IDX_ENTRY_BYTES 28u
#define PLACE_IS_64 0x80000000u

typedef struct entry {
    uint8_t id[SHA1_BYTES];
    uint8_t crc[4];
    uint32_t at;   /* offset in its own pack */
    uint32_t pack; /* index of that pack in join.part */
} entry;

typedef struct part { /* one of the packs */
    fm_file_map idx, pack;
    uint64_t shift; /* added to its offsets gives those in the joined pack */
    bool left_out;  /* a larger pack holds an object of this one */
} part;

typedef struct join {
    part *part;
    size_t parts;
    entry *entry;
    size_t count, cap;
    git_oid *rest; /* objects held only by packs that are left out */
    size_t rest_count, rest_cap;
    fm_buf pack, idx;
} join;

/* Numbers in git's files are big-endian. */
static uint32_t get_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void put_be32(fm_buf *b, uint32_t v)
{
    const uint8_t p[4] = {(uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v};

    fm_buf_append(b, p, sizeof p);
}

static fm_status bad(const char *path, const char *why)
{
    return fm_fail(FM_ECORRUPT, "%s: %s; nothing was changed", path, why);
}

static fm_status check_sum(const fm_file_map *map, const char *path)
{
    uint8_t sum[SHA1_BYTES];

    if (map->len < PACK_HEAD_BYTES + SHA1_BYTES)
        return bad(path, "is too short");
    FM_TRY(fm_sha1(sum, map->data, map->len - SHA1_BYTES));
    if (memcmp(sum, map->data + map->len - SHA1_BYTES, SHA1_BYTES) != 0)
        FM_TRY(bad(path, "its checksum is wrong"));
    return FM_OK;
}

static fm_status check_index(const part *p, const char *path, uint64_t *count)
{
    const fm_file_map *idx = &p->idx, *pack = &p->pack;
    uint64_t n;

    if (idx->len < IDX_HEAD_BYTES + 2 * SHA1_BYTES || memcmp(idx->data, "\377tOc\0\0\0\2", 8) != 0)
        return bad(path, "is no index of version 2");
    n = get_be32(idx->data + IDX_HEAD_BYTES - 4);
    if (idx->len != IDX_HEAD_BYTES + n * IDX_ENTRY_BYTES + 2 * SHA1_BYTES)
        return bad(path, "has not the size that its count of objects gives");
    if (memcmp(pack->data, "PACK\0\0\0\2", 8) != 0 || n != get_be32(pack->data + 8) ||
        memcmp(idx->data + idx->len - 2 * SHA1_BYTES, pack->data + pack->len - SHA1_BYTES,
               SHA1_BYTES) != 0)
        return bad(path, "is the index of another pack");
    *count = n;
    return FM_OK;
}

static fm_status add_entries(join *j, size_t k, const char *path)
{
    const uint8_t *p = j->part[k].idx.data + IDX_HEAD_BYTES;
    uint64_t n = 0;
    FM_TRY(check_index(&j->part[k], path, &n));

    FM_TRY(fm_grow(&j->entry, &j->cap, j->count + (size_t)n, sizeof(entry)));
    for (uint64_t i = 0; i < n; i++) {
        entry *e = &j->entry[j->count++];
        e->pack = (uint32_t)k;
        e->at = get_be32(p + n * (SHA1_BYTES + 4u) + i * 4);
        memcpy(e->id, p + i * SHA1_BYTES, SHA1_BYTES);
        memcpy(e->crc, p + n * SHA1_BYTES + i * 4, 4);
        if (e->at & PLACE_IS_64 || e->at < PACK_HEAD_BYTES ||
            e->at >= j->part[k].pack.len - SHA1_BYTES)
            return bad(path, "a place lies outside of its pack");
    }
    return FM_OK;
}

static fm_status open_part(join *j, size_t k, const char *idx_path)
{
    char *path = fm_asprintf("%.*s.pack", (int)(strlen(idx_path) - 4), idx_path);
    part *p = &j->part[k];
    fm_status rc = path ? fm_map_file(&p->idx, idx_path) : FM_ENOMEM;

    FM_THEN(rc, fm_map_file(&p->pack, path));
    FM_THEN(rc, check_sum(&p->idx, idx_path));
    FM_THEN(rc, check_sum(&p->pack, path));
    FM_THEN(rc, add_entries(j, k, idx_path));
    fm_free(path);
    return rc;
}

static int by_id(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    const int order = memcmp(x->id, y->id, SHA1_BYTES);

    return order ? order : x->pack < y->pack ? -1 : x->pack > y->pack;
}

static bool same_id(const entry *a, const entry *b)
{
    return memcmp(a->id, b->id, SHA1_BYTES) == 0;
}

/* Entries are sorted by id, and packs by size: the last of equal entries lies in the largest
 * pack. */
static void leave_out(join *j)
{
    for (size_t i = 0; i + 1 < j->count; i++)
        if (same_id(&j->entry[i], &j->entry[i + 1]))
            j->part[j->entry[i].pack].left_out = true;
}

static fm_status add_rest(join *j, const entry *e)
{
    FM_TRY(fm_grow(&j->rest, &j->rest_cap, j->rest_count + 1, sizeof *j->rest));

    (void)git_oid_fromraw(&j->rest[j->rest_count++], e->id);
    return FM_OK;
}

/* Keeps the entries of the packs that are joined. */
static fm_status keep_entries(join *j)
{
    size_t kept = 0, next;
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < j->count; i = next) {
        const entry *found = NULL;
        for (next = i; next < j->count && same_id(&j->entry[i], &j->entry[next]); next++)
            if (!j->part[j->entry[next].pack].left_out)
                found = &j->entry[next];
        if (found)
            j->entry[kept++] = *found;
        else
            rc = add_rest(j, &j->entry[i]);
    }
    j->count = kept;
    return rc;
}

static fm_status close_with_sum(fm_buf *b)
{
    uint8_t sum[SHA1_BYTES];
    FM_TRY(fm_buf_ok(b));

    FM_TRY(fm_sha1(sum, b->data, b->len));
    fm_buf_append(b, sum, sizeof sum);
    return fm_buf_ok(b);
}

static fm_status make_pack(join *j)
{
    uint8_t head[PACK_HEAD_BYTES] = "PACK\0\0\0\2";

    for (unsigned i = 0; i < 4; i++)
        head[8 + i] = (uint8_t)(j->count >> (24 - 8 * i));
    fm_buf_append(&j->pack, head, sizeof head);
    for (size_t k = 0; k < j->parts; k++) {
        part *p = &j->part[k];
        if (p->left_out)
            continue;
        p->shift = j->pack.len - PACK_HEAD_BYTES;
        fm_buf_append(&j->pack, p->pack.data + PACK_HEAD_BYTES,
                      p->pack.len - PACK_HEAD_BYTES - SHA1_BYTES);
    }
    return close_with_sum(&j->pack);
}

static fm_status make_index(join *j)
{
    size_t at = 0;

    fm_buf_append(&j->idx, "\377tOc\0\0\0\2", 8);
    for (unsigned first = 0; first < 256; first++) {
        while (at < j->count && j->entry[at].id[0] == first)
            at++;
        put_be32(&j->idx, (uint32_t)at);
    }
    for (size_t i = 0; i < j->count; i++)
        fm_buf_append(&j->idx, j->entry[i].id, SHA1_BYTES);
    for (size_t i = 0; i < j->count; i++)
        fm_buf_append(&j->idx, j->entry[i].crc, 4);
    for (size_t i = 0; i < j->count; i++)
        put_be32(&j->idx, (uint32_t)(j->entry[i].at + j->part[j->entry[i].pack].shift));
    fm_buf_append(&j->idx, j->pack.data + j->pack.len - SHA1_BYTES, SHA1_BYTES);
    return close_with_sum(&j->idx);
}

/* Writes by way of the repository's tmp/: files of killed processes there are swept. */
static fm_status write_file(fm_repo *r, const char *name, const char *ext, const fm_buf *bytes)
{
    char *path = fm_asprintf("%s/objects/pack/pack-%s%s", r->git_path, name, ext);
    char *tmp = fm_path_join(r->path, "tmp");
    fm_writer *w = NULL;
    fm_status rc = path && tmp ? fm_writer_open(&w, path, tmp) : FM_ENOMEM;

    FM_THEN(rc, fm_writer_write(w, bytes->data, bytes->len));
    FM_THEN(rc, fm_writer_commit(w, NULL));
    fm_writer_close(w);
    fm_free(path);
    fm_free(tmp);
    return rc;
}

static fm_status join_all(join *j, char *const *idx)
{
    for (size_t k = 0; k < j->parts; k++)
        FM_TRY(open_part(j, k, idx[k]));
    if (j->count > 0)
        qsort(j->entry, j->count, sizeof *j->entry, by_id);
    leave_out(j);
    FM_TRY(keep_entries(j));
    FM_TRY(make_pack(j));
    return make_index(j);
}

/* Writes the pack before its index: readers find a pack by the index. */
static fm_status write_all(fm_repo *r, const join *j, char **name, char **rest_name)
{
    char hex[2 * SHA1_BYTES + 1];

    for (size_t i = 0; i < SHA1_BYTES; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x",
                       (unsigned)j->pack.data[j->pack.len - SHA1_BYTES + i]);
    FM_TRY(write_file(r, hex, ".pack", &j->pack));
    FM_TRY(write_file(r, hex, ".idx", &j->idx));
    if (j->rest_count > 0)
        FM_TRY(fml_pack_write(r, j->rest, j->rest_count, rest_name));
    *name = fm_strdup(hex);

    return *name ? FM_OK : FM_ENOMEM;
}

fm_status fml_packs_concat(fm_repo *r, char *const *idx, size_t count, char **name,
                           char **rest_name)
{
    join j = {.parts = count};
    fm_status rc;

    *name = NULL;
    *rest_name = NULL;
    fm_buf_init(&j.pack, 0);
    fm_buf_init(&j.idx, 0);
    j.part = fm_calloc(count, sizeof *j.part);
    rc = j.part ? join_all(&j, idx) : FM_ENOMEM;
    FM_THEN(rc, write_all(r, &j, name, rest_name));
    for (size_t k = 0; j.part && k < count; k++) {
        fm_unmap_file(&j.part[k].idx);
        fm_unmap_file(&j.part[k].pack);
    }
    fm_free(j.part);
    fm_free(j.entry);
    fm_free(j.rest);
    fm_buf_release(&j.pack);
    fm_buf_release(&j.idx);
    return rc;
}
