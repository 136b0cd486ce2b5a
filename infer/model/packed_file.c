/* packed_file.c - see packed_file.h. A process measures the folder when it first writes, and adds
 * the size of its own files from then on; so several writers may overshoot the bound until one of
 * them measures again. One process writes half of the bound at most: a model larger than the folder
 * would otherwise delete its own first half while it writes the second, at every load. */
#include "infer/model/packed_file.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "store/base/cursor.h"
#include "store/base/mem.h"

#define MAGIC "FMPACKED"
#define VERSION 2u
#define LAYOUT_BYTES 64u
#define FIELDS_BYTES 152u /* what the header's own digest covers */
#define KEEP_AFTER_PRUNE(max) ((max) / 10 * 9)

struct fmi_packed_files {
    char *packed; /* <cache_dir>/packed */
    char layout[LAYOUT_BYTES];
    uint64_t bytes_max;
    atomic_bool off; /* a write failed: no more are tried */
    atomic_uint_fast64_t mapped, written, refused;
    pthread_mutex_t lock; /* guards what follows, and pruning */
    bool counted;
    uint64_t bytes; /* of the folder */
    uint64_t own;   /* written by this process */
};

fm_status fmi_packed_files_new(fmi_packed_files **out, const char *cache_dir, const char *layout,
                               uint64_t bytes_max)
{
    *out = NULL;
    if (strlen(layout) >= LAYOUT_BYTES)
        return fm_fail(FM_EINVAL, "layout '%s' has too long a name", layout);
    fmi_packed_files *a = fm_calloc(1, sizeof(*a));
    if (!a)
        return FM_ENOMEM;
    a->packed = fm_path_join(cache_dir, "packed");
    if (!a->packed) {
        fm_free(a);
        return FM_ENOMEM;
    }
    memcpy(a->layout, layout, strlen(layout));
    a->bytes_max = bytes_max;
    (void)pthread_mutex_init(&a->lock, NULL);
    *out = a;
    return FM_OK;
}

void fmi_packed_files_free(fmi_packed_files *a)
{
    if (!a)
        return;
    (void)pthread_mutex_destroy(&a->lock);
    fm_free(a->packed);
    fm_free(a);
}

static char *folder_of(const fmi_packed_files *a, const char hex[FM_HEX_CHARS + 1])
{
    return fm_asprintf("%s/%s/%.2s", a->packed, a->layout, hex);
}

static char *path_of(const fmi_packed_files *a, const fmi_packed_file_key *key)
{
    static const char *const role[] = {
        [FM_ROLE_LINEAR] = "linear", [FM_ROLE_LORA_A] = "lora_a", [FM_ROLE_LORA_B] = "lora_b"};
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&key->id, hex);
    return fm_asprintf("%s/%s/%.2s/%s.%s", a->packed, a->layout, hex, hex, role[key->role]);
}

/* Writes the header's fields except the sums; head is zero. */
static void put_fields(uint8_t *head, const fmi_packed_files *a, const fmi_packed_file_key *key)
{
    const char *dtype = fm_dtype_get(key->dtype)->name;
    memcpy(head, MAGIC, 8);
    fm_put_u32(head + 8, VERSION);
    fm_put_u32(head + 12, (uint32_t)key->role);
    memcpy(head + 16, dtype, FM_MIN(strlen(dtype), (size_t)8));
    fm_put_u32(head + 24, key->n);
    fm_put_u32(head + 28, key->k);
    memcpy(head + 32, key->id.b, sizeof(key->id.b));
    memcpy(head + 64, a->layout, LAYOUT_BYTES);
    fm_put_u64(head + 128, key->bytes);
}

static fm_status put_head(uint8_t *head, const fmi_packed_files *a, const fmi_packed_file_key *key,
                          const void *image)
{
    fm_digest d;
    memset(head, 0, FMI_ARTEFACT_HEADER_BYTES);
    put_fields(head, a, key);
    const XXH128_hash_t sum = XXH3_128bits(image, (size_t)key->bytes);
    fm_put_u64(head + 136, sum.low64);
    fm_put_u64(head + 144, sum.high64);
    fm_status rc = fm_sha256(&d, head, FIELDS_BYTES);
    memcpy(head + 152, d.b, sizeof(d.b));
    return rc;
}

/* ==== reading ==== */

/* Whether the file's header, in every byte, is what this process would write for the image. */
static bool fits(const fmi_packed_files *a, const fm_file_map *map, const fmi_packed_file_key *key)
{
    uint8_t want[FMI_ARTEFACT_HEADER_BYTES] = {0};
    if (map->len < FMI_ARTEFACT_HEADER_BYTES || map->len - FMI_ARTEFACT_HEADER_BYTES != key->bytes)
        return false;
    put_fields(want, a, key);
    if (memcmp(map->data, want, 136) != 0) /* of another tensor: do not hash the image */
        return false;
    return put_head(want, a, key, map->data + FMI_ARTEFACT_HEADER_BYTES) == FM_OK &&
           memcmp(map->data, want, sizeof(want)) == 0;
}

bool fmi_packed_file_map(fmi_packed_files *a, fm_file_map *map, const fmi_packed_file_key *key)
{
    fm_error_state kept;
    *map = (fm_file_map){NULL, 0};
    fm_error_save(&kept);
    char *path = path_of(a, key);
    bool there = path && fm_map_file(map, path) == FM_OK;
    bool good = there && fits(a, map, key);
    if (there && !good) {
        atomic_fetch_add(&a->refused, 1);
        fm_unmap_file(map);
    }
    if (good) {
        atomic_fetch_add(&a->mapped, 1);
        fm_ignore(fm_touch_file(path), "its age is only for the choice of what to delete");
    }
    fm_free(path);
    fm_error_restore(&kept);
    return good;
}

/* ==== the bound ==== */

typedef struct aged {
    char *path;
    int64_t time;
    uint64_t bytes;
} aged;

typedef struct survey {
    aged *file;
    size_t count, cap;
    uint64_t bytes;
} survey;

static int by_age(const void *x, const void *y)
{
    const aged *a = x, *b = y;
    return a->time < b->time ? -1 : a->time > b->time;
}

/* Notes the files under dir, `depth` folders deep; skips what it cannot read. */
static void look(survey *s, const char *dir, unsigned depth)
{
    fm_names names = {NULL, 0};
    if (fm_list_dir(&names, dir) != FM_OK)
        return;
    for (size_t i = 0; i < names.count; i++) {
        aged f = {.path = fm_path_join(dir, names.name[i])};
        if (f.path && depth > 0 && fm_path_is_dir(f.path)) {
            look(s, f.path, depth - 1);
        } else if (f.path && fm_file_bytes(&f.bytes, f.path) == FM_OK &&
                   fm_file_time(&f.time, f.path) == FM_OK &&
                   fm_grow(&s->file, &s->cap, s->count + 1, sizeof(aged)) == FM_OK) {
            s->bytes += f.bytes;
            s->file[s->count++] = f;
            continue;
        }
        fm_free(f.path);
    }
    fm_names_release(&names);
}

/* Measures the folder anew and deletes the oldest files beyond the bound. The lock is held. */
static void prune(fmi_packed_files *a, uint64_t coming)
{
    survey s = {NULL, 0, 0, 0};
    look(&s, a->packed, 2);
    a->counted = true;
    if (s.count > 0 && s.bytes + coming > a->bytes_max)
        qsort(s.file, s.count, sizeof(aged), by_age);
    bool over = s.bytes + coming > a->bytes_max;
    for (size_t i = 0; i < s.count; i++) {
        if (over && s.bytes + coming > KEEP_AFTER_PRUNE(a->bytes_max) &&
            fm_remove_file(s.file[i].path) == FM_OK)
            s.bytes -= s.file[i].bytes;
        fm_free(s.file[i].path);
    }
    fm_free(s.file);
    a->bytes = s.bytes;
}

static bool make_room(fmi_packed_files *a, uint64_t coming)
{
    if (a->bytes_max == 0)
        return true;
    if (coming > KEEP_AFTER_PRUNE(a->bytes_max))
        return false;
    (void)pthread_mutex_lock(&a->lock);
    if (a->own + coming > FM_MAX(a->bytes_max / 2, coming)) {
        (void)pthread_mutex_unlock(&a->lock);
        return false;
    }
    if (!a->counted || a->bytes + coming > a->bytes_max)
        prune(a, coming);
    bool room = a->bytes + coming <= a->bytes_max;
    if (room) {
        a->bytes += coming;
        a->own += coming;
    }
    (void)pthread_mutex_unlock(&a->lock);
    return room;
}

/* ==== writing ==== */

static fm_status write_file(fmi_packed_files *a, const fmi_packed_file_key *key, const void *image,
                            const char *path)
{
    uint8_t head[FMI_ARTEFACT_HEADER_BYTES];
    fm_writer *w = NULL;
    fm_status rc = put_head(head, a, key, image);
    FM_THEN(rc, fm_writer_open(&w, path, NULL));
    FM_THEN(rc, fm_writer_write(w, head, sizeof(head)));
    FM_THEN(rc, fm_writer_write(w, image, (size_t)key->bytes));
    FM_THEN(rc, fm_writer_place(w, path));
    fm_writer_close(w);
    return rc;
}

bool fmi_packed_file_write(fmi_packed_files *a, const fmi_packed_file_key *key, const void *image)
{
    char hex[FM_HEX_CHARS + 1];
    fm_error_state kept;
    if (atomic_load(&a->off))
        return false;
    fm_error_save(&kept);
    bool done = false;
    if (make_room(a, key->bytes + FMI_ARTEFACT_HEADER_BYTES)) {
        fm_digest_hex(&key->id, hex);
        char *folder = folder_of(a, hex), *path = path_of(a, key);
        fm_status rc = folder && path ? fm_make_dirs(folder) : FM_ENOMEM;
        if (rc == FM_OK) {
            fm_remove_dead_temps(folder);
            rc = write_file(a, key, image, path);
        }
        done = rc == FM_OK;
        if (rc == FM_EIO || rc == FM_ENOTFOUND) /* read-only, full, or gone: try no more */
            atomic_store(&a->off, true);
        fm_free(folder);
        fm_free(path);
    }
    if (done)
        atomic_fetch_add(&a->written, 1);
    fm_error_restore(&kept);
    return done;
}

fmi_packed_file_stats fmi_packed_file_stats_of(fmi_packed_files *a)
{
    return (fmi_packed_file_stats){.mapped = atomic_load(&a->mapped),
                                   .written = atomic_load(&a->written),
                                   .refused = atomic_load(&a->refused)};
}
