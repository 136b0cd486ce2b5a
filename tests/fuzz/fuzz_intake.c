/* ctest: store */
/* A hostile sender: any order of records that begin, give bytes and end, of breaks and takeovers.
 * Whatever comes, the store is clean afterwards, what it has reads, and nothing is in incoming/
 * that the next intake cannot take over.
 *
 * The input is a list of steps: a byte that says which, a byte for it, and where bytes are given,
 * their number (u16). Records are those of a golden pack, so that an input of a few bytes gets far;
 * a step may change a byte of one, or of what it is said to be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/exchange/intake.h"
#include "store/pack/pack.h"
#include "tests/testkit.h"

#define GOLDEN "1fe8543008befe1fea9a682eff41613022cf44596326b398d2229bcb654762e3.pack"
#define MAX_RECORDS 64u
#define MAX_RECORD_BYTES (1u << 16)
#define MAX_STEPS 200u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct known {
    fm_buf pack;
    fm_span record[MAX_RECORDS];
    fm_record_info info[MAX_RECORDS];
    size_t count;
    char *scratch;
} known;

typedef struct run {
    known *k;
    fm_cursor in;
    fm_store *s;
    fm_intake *intake;
    uint8_t bytes[MAX_RECORD_BYTES]; /* of the record that is given */
    size_t len, at;
    fm_record_info info;
} run;

static fm_status on_record(void *ctx, uint64_t offset, const fms_record *r)
{
    known *k = ctx;
    (void)offset;
    if (k->count == MAX_RECORDS || r->stored_bytes > MAX_RECORD_BYTES)
        return FM_OK;
    k->record[k->count] = fm_span_of(r->payload - r->head_bytes, (size_t)r->stored_bytes);
    return fms_info_of(&k->info[k->count++], r);
}

static void read_golden(known *k)
{
    char *golden = tk_source("tests/format/golden/" GOLDEN);
    const fms_pack_visitor v = {k, on_record, NULL};
    fm_buf_init(&k->pack, 0);
    fm_assert(fm_read_file(&k->pack, golden, 64u << 20) == FM_OK);
    fm_assert(fms_pack_walk(fm_buf_span(&k->pack), "golden", &v) == FM_OK && k->count > 3);
    k->scratch = tk_scratch();
    fm_free(golden);
}

static void open_again(run *r)
{
    fm_intake_close(r->intake);
    fm_assert(fm_intake_open(&r->intake, r->s) == FM_OK);
}

static void choose(run *r, uint8_t which)
{
    const size_t n = which % r->k->count;
    r->info = r->k->info[n];
    r->len = r->k->record[n].len;
    r->at = 0;
    memcpy(r->bytes, r->k->record[n].data, r->len);
}

/* The head has a right checksum again, so that what stands in it is looked at. */
static void mend_head(run *r)
{
    const uint64_t n = r->len >= 192 ? fm_get_u32(r->bytes + 8) : 0;
    fm_digest sum;
    if (n < 224 || n > r->len)
        return;
    fm_assert(fm_sha256(&sum, r->bytes, (size_t)n - FM_DIGEST_BYTES) == FM_OK);
    memcpy(r->bytes + n - FM_DIGEST_BYTES, sum.b, sizeof sum);
    r->info.head = sum;
}

static void begin(run *r, bool go_on)
{
    fm_digest id, head;
    uint64_t cut = 0;
    if (go_on && fm_intake_cut(r->intake, &id, &head, &cut)) {
        r->info.id = id; /* whatever else was said of it */
        r->info.head = head;
    }
    r->at = (size_t)FM_MIN(cut, (uint64_t)r->len);
    fm_ignore(fm_intake_begin(r->intake, &r->info, cut), "only crashes count");
}

static void give(run *r, size_t n)
{
    n = FM_MIN(n, r->len - r->at);
    fm_ignore(fm_intake_bytes(r->intake, r->bytes + r->at, n), "only crashes count");
    r->at += n;
}

static void step(run *r)
{
    const uint8_t what = fm_cursor_u8(&r->in), arg = fm_cursor_u8(&r->in);
    uint16_t at;
    switch (what % 12) {
    case 0:
        choose(r, arg);
        break;
    case 1:
        begin(r, false);
        break;
    case 2:
        begin(r, true);
        break;
    case 3:
        give(r, fm_cursor_u16(&r->in));
        break;
    case 4:
        give(r, r->len);
        break;
    case 5:
        fm_ignore(fm_intake_end(r->intake), "only crashes count");
        break;
    case 6: /* as a sound sender would */
        choose(r, arg);
        begin(r, false);
        give(r, r->len);
        fm_ignore(fm_intake_end(r->intake), "only crashes count");
        break;
    case 7:
        fm_ignore(fm_intake_publish(r->intake, NULL), "only crashes count");
        break;
    case 8:
        open_again(r);
        break;
    case 9:
        at = fm_cursor_u16(&r->in);
        if (r->len)
            r->bytes[at % r->len] ^= arg;
        break;
    case 10:
        mend_head(r);
        break;
    default: /* what is said of it */
        at = fm_cursor_u16(&r->in);
        ((uint8_t *)&r->info)[at % offsetof(fm_record_info, parent)] ^= arg;
        break;
    }
}

static fm_status read_whole(void *ctx, const fm_digest *id)
{
    fm_object_info info;
    FM_TRY(fm_store_info(ctx, &info, id));
    if (info.bytes > 8 * FM_LEAF_BYTES) /* a large one costs more than it shows */
        return FM_OK;
    void *bytes = fm_malloc((size_t)info.bytes + 1);
    fm_status rc = bytes ? fm_store_read(ctx, id, bytes, info.bytes) : FM_ENOMEM;
    fm_free(bytes);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static known k;
    static run r;
    fm_fsck_report report;

    if (!k.scratch)
        read_golden(&k);
    char *root = fm_path_join(k.scratch, "repository");
    fm_assert(root && fm_make_dirs(root) == FM_OK && fm_store_init(root) == FM_OK);
    memset(&r, 0, sizeof r);
    r.k = &k;
    fm_cursor_init(&r.in, fm_span_of(data, size));
    fm_assert(fm_store_open(&r.s, root) == FM_OK);
    fm_assert(fm_intake_open(&r.intake, r.s) == FM_OK);
    choose(&r, 0);
    for (unsigned i = 0; i < MAX_STEPS && !r.in.failed && fm_cursor_left(&r.in) >= 2; i++)
        step(&r);
    open_again(&r); /* takes over all that is whole */
    fm_intake_close(r.intake);
    fm_assert(fm_store_fsck(r.s, true, &report, NULL, NULL) == FM_OK && report.faults == 0);
    fm_assert(fm_store_each(r.s, read_whole, r.s) == FM_OK);
    fm_store_close(r.s);
    fm_assert(fm_remove_tree(root) == FM_OK);
    fm_free(root);
    return 0;
}
