/* imatrix.c - both forms of an importance matrix.
 *
 * GGUF: two F32 tensors a weight, X.in_sum2 (sums of squares, a row for each expert) and X.counts
 * (by how many rows of input, one for each expert); an expert that no input reached counts as all
 * ones. The older form: i32 entries; for each i32 name bytes, name, i32 calls, i32 values, f32
 * values, of which a call's share is meant; then, if anything follows, i32 chunks, i32 bytes of the
 * data set's name, the name. */
#include "store/formats/imatrix.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"
#include "store/formats/gguf.h"

#define SUMS ".in_sum2"
#define COUNTS ".counts"

typedef struct entry {
    uint64_t count;
    float v[];
} entry;

struct fm_imatrix {
    const char *what; /* while it is read */
    fm_map *by_weight;
    uint32_t chunks;
    bool has_dataset;
    char dataset[FM_IMATRIX_TEXT_BYTES + 1];
};

void fm_imatrix_free(fm_imatrix *m)
{
    if (!m)
        return;
    for (size_t i = 0; m->by_weight && i < fm_map_count(m->by_weight); i++)
        fm_free(fm_map_value_at(m->by_weight, i));
    fm_map_free(m->by_weight);
    fm_free(m);
}

size_t fm_imatrix_count(const fm_imatrix *m)
{
    return fm_map_count(m->by_weight);
}

const float *fm_imatrix_find(const fm_imatrix *m, const char *weight, uint64_t *count)
{
    const entry *e = fm_map_get(m->by_weight, weight, strlen(weight));

    *count = e ? e->count : 0;
    return e ? e->v : NULL;
}

uint32_t fm_imatrix_chunks(const fm_imatrix *m)
{
    return m->chunks;
}

const char *fm_imatrix_dataset(const fm_imatrix *m)
{
    return m->has_dataset ? m->dataset : NULL;
}

static float float_at(fm_span bytes, uint64_t i)
{
    const uint32_t u = fm_get_u32(bytes.data + i * 4);
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static void set_dataset(fm_imatrix *m, fm_span name)
{
    const size_t n = FM_MIN(name.len, (size_t)FM_IMATRIX_TEXT_BYTES);

    for (size_t i = 0; i < n && name.data[i]; i++)
        m->dataset[i] = (char)name.data[i];
    m->has_dataset = true;
}

/* Adds a weight with room for its values; *out is the matrix's. */
static fm_status add(entry **out, fm_imatrix *m, fm_span weight, uint64_t count)
{
    void *old = NULL;
    entry *e;

    if (fm_map_count(m->by_weight) >= FM_IMATRIX_MAX_ENTRIES)
        return fm_fail(FM_ELIMIT, "%s: more than %u weights", m->what, FM_IMATRIX_MAX_ENTRIES);
    if (fm_map_has(m->by_weight, weight.data, weight.len))
        return fm_fail(FM_ECORRUPT, "%s: weight '%.*s' is there twice", m->what, (int)weight.len,
                       (const char *)weight.data);
    *out = e = fm_malloc(sizeof *e + (size_t)count * sizeof e->v[0]);
    if (!e)
        return FM_ENOMEM;
    e->count = count;
    const fm_status rc = fm_map_put(m->by_weight, weight.data, weight.len, e, &old);
    if (rc < 0)
        fm_free(e);
    return rc;
}

static fm_status check_finite(const fm_imatrix *m, const entry *e, fm_span weight)
{
    for (uint64_t i = 0; i < e->count; i++)
        if (!isfinite(e->v[i]))
            return fm_fail(FM_ECORRUPT, "%s: weight '%.*s': value %" PRIu64 " is not finite",
                           m->what, (int)weight.len, (const char *)weight.data, i);
    return FM_OK;
}

/* ==== GGUF ================================================================================== */

static bool ends_in(const char *name, const char *end, size_t *stem)
{
    const size_t n = strlen(name), m = strlen(end);

    *stem = n - (n > m ? m : 0);
    return n > m && strcmp(name + n - m, end) == 0;
}

/* Whole counts are meant; those that are not are rounded as llama.cpp rounds them. */
static fm_status get_count(float *out, const fm_imatrix *m, const char *name, float count)
{
    if (!(fabsf(count) < 9e18f))
        return fm_fail(FM_ECORRUPT, "%s: tensor '%s': a count is out of range", m->what, name);
    *out = (float)llroundf(count);
    return FM_OK;
}

static fm_status add_sums(fm_imatrix *m, const fm_gguf *g, const fm_gguf_tensor *sums, size_t stem)
{
    char *name = fm_asprintf("%.*s" COUNTS, (int)stem, sums->name);
    const fm_gguf_tensor *counts = name ? fm_gguf_find(g, name) : NULL;
    const fm_span weight = fm_span_of(sums->name, stem);
    const uint64_t n = sums->bytes / 4, rows = counts ? counts->bytes / 4 : 0;
    fm_status rc = name ? FM_OK : FM_ENOMEM;
    entry *e = NULL;

    if (rc == FM_OK &&
        (!counts || sums->dtype != FM_F32 || counts->dtype != FM_F32 || rows == 0 || n % rows != 0))
        rc = fm_fail(FM_ECORRUPT,
                     "%s: tensor '%s' has no '%s' beside it that fits, both of type F32; make the "
                     "file again with llama-imatrix",
                     m->what, sums->name, name);
    FM_THEN(rc, add(&e, m, weight, n));
    for (uint64_t r = 0; rc == FM_OK && r < rows; r++) {
        float count = 0.0f;
        rc = get_count(&count, m, name, float_at(fm_gguf_bytes(g, counts), r));
        for (uint64_t i = r * (n / rows); rc == FM_OK && i < (r + 1) * (n / rows); i++)
            e->v[i] = count > 0.0f ? float_at(fm_gguf_bytes(g, sums), i) / count : 1.0f;
    }
    FM_THEN(rc, check_finite(m, e, weight));
    fm_free(name);
    return rc;
}

static fm_status read_fields(fm_imatrix *m, const fm_gguf *g)
{
    const fm_gguf_kv *sets = fm_gguf_get(g, "imatrix.datasets");
    uint64_t chunks = 0, size = 0;
    bool has_chunks = false, has_size = false;
    size_t at = 0;

    FM_TRY(fm_gguf_u64(g, "imatrix.chunk_count", &chunks, &has_chunks));
    FM_TRY(fm_gguf_u64(g, "imatrix.chunk_size", &size, &has_size));
    if (!sets || !has_chunks || !has_size || chunks > INT32_MAX)
        return fm_fail(FM_ECORRUPT,
                       "%s: a field 'imatrix.datasets', 'imatrix.chunk_count' or "
                       "'imatrix.chunk_size' is missing; it is no importance matrix of "
                       "llama-imatrix's",
                       m->what);
    m->chunks = (uint32_t)chunks;
    if (sets->type == FM_GGUF_ARRAY && sets->elem == FM_GGUF_STRING && sets->count > 0)
        set_dataset(m, fm_gguf_next_string(sets, &at));
    return FM_OK;
}

static fm_status read_gguf(fm_imatrix *m, fm_span file)
{
    fm_gguf *g = NULL;
    size_t stem;
    fm_status rc = fm_gguf_parse(&g, file, m->what);

    if (rc == FM_OK && fm_gguf_opaque(g))
        rc = fm_fail(FM_EUNSUPPORTED, "%s: %s; an importance matrix is of F32", m->what,
                     fm_gguf_opaque(g));
    FM_THEN(rc, read_fields(m, g));
    for (size_t i = 0; rc == FM_OK && i < fm_gguf_count(g); i++) {
        const fm_gguf_tensor *t = fm_gguf_at(g, i);
        if (ends_in(t->name, SUMS, &stem))
            rc = add_sums(m, g, t, stem);
        else if (ends_in(t->name, COUNTS, &stem)) {
            char *sums = fm_asprintf("%.*s" SUMS, (int)stem, t->name);
            rc = !sums ? FM_ENOMEM
                 : fm_gguf_find(g, sums)
                     ? FM_OK
                     : fm_fail(FM_ECORRUPT, "%s: tensor '%s' has no '%s' beside it", m->what,
                               t->name, sums);
            fm_free(sums);
        }
    }
    fm_gguf_close(g);
    return rc;
}

/* ==== the older form ======================================================================== */

static fm_status read_old_entry(fm_imatrix *m, fm_cursor *c)
{
    const uint32_t name_len = fm_cursor_u32(c);
    const fm_span whole = fm_cursor_bytes(c, name_len);
    const int32_t calls = (int32_t)fm_cursor_u32(c);
    const uint32_t count = fm_cursor_u32(c);
    const fm_span values = fm_cursor_bytes(c, (uint64_t)count * 4);
    entry *e;

    FM_TRY(fm_cursor_ok(c, m->what, "a weight"));
    fm_span name = {whole.data, 0};
    while (name.len < whole.len && whole.data[name.len])
        name.len++;
    if (count == 0 || count > INT32_MAX || name.len == 0)
        return fm_fail(FM_ECORRUPT, "%s: a weight has no name or no values", m->what);
    FM_TRY(add(&e, m, name, count));
    for (uint32_t i = 0; i < count; i++)
        e->v[i] = calls > 0 ? float_at(values, i) / (float)calls : float_at(values, i);
    return check_finite(m, e, name);
}

static fm_status read_old(fm_imatrix *m, fm_span file)
{
    fm_cursor c;

    fm_cursor_init(&c, file);
    const uint32_t entries = fm_cursor_u32(&c);
    FM_TRY(fm_cursor_ok(&c, m->what, "the number of weights"));
    if (entries == 0 || entries > FM_IMATRIX_MAX_ENTRIES)
        return fm_fail(FM_ECORRUPT,
                       "%s: is neither a GGUF nor an older importance matrix (%" PRIu32
                       " weights); make it with llama-imatrix",
                       m->what, entries);
    for (uint32_t i = 0; i < entries; i++)
        FM_TRY(read_old_entry(m, &c));
    if (fm_cursor_left(&c) < 4)
        return FM_OK;
    const int32_t chunks = (int32_t)fm_cursor_u32(&c);
    m->chunks = chunks > 0 ? (uint32_t)chunks : 0;
    if (fm_cursor_left(&c) < 4)
        return FM_OK;
    const fm_span name = fm_cursor_bytes(&c, fm_cursor_u32(&c));
    FM_TRY(fm_cursor_ok(&c, m->what, "the data set's name"));
    if (name.len > 0)
        set_dataset(m, name);
    return FM_OK;
}

/* ==== either ================================================================================ */

fm_status fm_imatrix_parse(fm_imatrix **out, fm_span file, const char *what)
{
    fm_imatrix *m = fm_calloc(1, sizeof *m);
    fm_status rc = m ? fm_map_new(&m->by_weight) : FM_ENOMEM;

    *out = NULL;
    if (rc == FM_OK) {
        m->what = what;
        rc = file.len >= 4 && memcmp(file.data, "GGUF", 4) == 0 ? read_gguf(m, file)
                                                                : read_old(m, file);
    }
    if (rc == FM_OK && fm_imatrix_count(m) == 0)
        rc = fm_fail(FM_ECORRUPT,
                     "%s: holds no weight's sums; is it a model? --imatrix wants "
                     "what llama-imatrix wrote",
                     what);
    if (rc < 0) {
        fm_imatrix_free(m);
        return rc;
    }
    m->what = NULL;
    *out = m;
    return FM_OK;
}

fm_status fm_imatrix_read(fm_imatrix **out, const char *path)
{
    fm_file_map map;

    *out = NULL;
    FM_TRY(fm_map_file(&map, path));
    const fm_status rc = fm_imatrix_parse(out, fm_span_of(map.data, map.len), path);
    fm_unmap_file(&map);
    return rc;
}
