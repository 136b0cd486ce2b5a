/* ctest: store */
/* Any bytes as index.sqlite of a sound store: it opens, and what it reads is right or an error.
 * The index is a cache that a stranger or a rotten disk may have written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/pack/pack.h"
#include "store/store.h"
#include "tests/testkit.h"

#define GOLDEN "1fe8543008befe1fea9a682eff41613022cf44596326b398d2229bcb654762e3.pack"
#define MAX_OBJECTS 64u
#define MAX_READ_BYTES (1u << 15) /* larger ones cost more than they show */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct known {
    char *root, *index;
    fm_digest id[MAX_OBJECTS];
    size_t count;
    uint8_t version[4]; /* of our schema: inputs that were kept must not age */
} known;

static fm_status on_record(void *ctx, uint64_t offset, const fms_record *r)
{
    known *k = ctx;

    (void)offset;
    if (k->count < MAX_OBJECTS)
        k->id[k->count++] = r->id;
    return FM_OK;
}

static void make_store(known *k)
{
    char *golden = tk_source("tests/format/golden/" GOLDEN), *to;
    const fms_pack_visitor v = {k, on_record, NULL};
    fm_buf pack;

    k->root = tk_scratch();
    k->index = fm_path_join(k->root, "index.sqlite");
    fm_assert(fm_store_init(k->root) == FM_OK);
    fm_buf_init(&pack, 0);
    fm_assert(fm_read_file(&pack, golden, 64u << 20) == FM_OK);
    fm_assert(fms_pack_walk(fm_buf_span(&pack), "golden", &v) == FM_OK && k->count > 0);
    to = fm_asprintf("%s/packs/" GOLDEN, k->root);
    fm_assert(to && fm_write_file(to, pack.data, pack.len) == FM_OK);
    fm_buf_release(&pack);
    fm_free(to);
    fm_free(golden);
}

/* fm_store_read compares the leaves; the id is taken of the bytes again here. */
static void read_object(fm_store *s, const fm_digest *id)
{
    fm_object_info info;
    fm_digest got;
    void *bytes;

    if (fm_store_info(s, &info, id) != FM_OK || info.bytes > MAX_READ_BYTES)
        return;
    bytes = fm_malloc((size_t)info.bytes);
    fm_assert(bytes);
    if (fm_store_read(s, id, bytes, info.bytes) == FM_OK) {
        const fm_span span = fm_span_of(bytes, (size_t)info.bytes);
        fm_assert((info.is_blob
                       ? fm_blob_id(&got, span, NULL)
                       : fm_tensor_id(&got, info.dtype, &info.shape, span, NULL)) == FM_OK);
        fm_assert(fm_digest_eq(&got, id));
    }
    fm_free(bytes);
}

static void use(const known *k)
{
    fm_store_totals totals;
    fm_fsck_report report;
    fm_store *s = NULL;

    if (fm_store_open(&s, k->root) != FM_OK) {
        fm_assert(!s && fm_error_text()[0] != '\0');
        return;
    }
    for (size_t i = 0; i < k->count; i += 5) {
        fm_ignore(fm_store_has(s, &k->id[i]), "it may be hidden by the index");
        read_object(s, &k->id[i]);
    }
    fm_ignore(fm_store_totals_of(s, &totals), "only crashes count");
    fm_ignore(fm_store_fsck(s, false, &report, NULL, NULL), "likewise");
    fm_assert(fm_store_rebuild_index(s) == FM_OK);
    for (size_t i = 0; i < k->count; i++) /* nothing is hidden any more */
        fm_assert(fm_store_has(s, &k->id[i]));
    fm_store_close(s);
}

#define VERSION_AT 60u /* user_version in SQLite's header */
#define NO_VERSION 99u /* an input that means another one */

static void read_version(known *k)
{
    fm_store *s = NULL;

    fm_assert(fm_store_open(&s, k->root) == FM_OK);
    fm_store_close(s);
    fm_assert(fm_pread_file(k->index, VERSION_AT, k->version, sizeof k->version) == FM_OK);
}

static void put_file(const known *k, const uint8_t *data, size_t size)
{
    FILE *f = fopen(k->index, "wb"); /* in place and not durable: hundreds of times a second */

    fm_assert(f && fwrite(data, 1, size, f) == size);
    if (size >= VERSION_AT + 4 && data[VERSION_AT + 3] != NO_VERSION)
        fm_assert(fseek(f, VERSION_AT, SEEK_SET) == 0 && fwrite(k->version, 1, 4, f) == 4);
    (void)fclose(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static known k;
    static const char *const side[] = {"-wal", "-shm", "-journal"};

    if (!k.root) {
        make_store(&k);
        read_version(&k);
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(side); i++) {
        char *path = fm_asprintf("%s%s", k.index, side[i]);
        (void)remove(path);
        fm_free(path);
    }
    put_file(&k, data, size);
    use(&k);
    return 0;
}
