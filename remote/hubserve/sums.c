/* sums.c - digests of a version's files: recorded, kept, or computed once whoever asks.
 *
 * They are kept as small files that may be deleted at any time; their names are digests of what the
 * bytes follow from. */
#include <string.h>

#include "remote/hubserve/web.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

#define KEPT_MAX 4096u /* files; then all go */

/* ==== kept ==== */

static char *path_for(const char *dir, fm_span of)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest d;
    if (fm_sha256(&d, of.data, of.len) != FM_OK)
        return NULL;
    fm_digest_hex(&d, hex);
    return fm_asprintf("%s/cache/hub/%s", dir, hex);
}

static void read_kept(const char *dir, fm_span of, char sha256[65], bool *found)
{
    char *path = path_for(dir, of);
    fm_digest d;
    fm_buf text;
    fm_buf_init(&text, FM_HEX_CHARS);
    *found = path && fm_read_file(&text, path, FM_HEX_CHARS) == FM_OK &&
             fm_digest_parse(&d, fm_buf_cstr(&text), text.len);
    if (*found)
        fm_digest_hex(&d, sha256);
    else
        fm_error_clear();
    fm_buf_release(&text);
    fm_free(path);
}

static fm_status make_room(const char *folder)
{
    fm_names names;
    FM_TRY(fm_make_dirs(folder));
    FM_TRY(fm_list_dir(&names, folder));
    const bool full = names.count >= KEPT_MAX;
    fm_names_release(&names);
    if (!full)
        return FM_OK;
    FM_TRY(fm_remove_tree(folder));
    return fm_make_dirs(folder);
}

static void keep(const char *dir, fm_span of, const char *sha256)
{
    char *folder = fm_asprintf("%s/cache/hub", dir), *path = path_for(dir, of);
    fm_writer *w = NULL;
    fm_status rc = folder && path ? make_room(folder) : FM_ENOMEM;
    FM_THEN(rc, fm_writer_open(&w, path, NULL));
    FM_THEN(rc, fm_writer_write(w, sha256, strlen(sha256)));
    FM_THEN(rc, fm_writer_place(w, path));
    fm_writer_close(w);
    fm_free(folder);
    fm_free(path);
    fm_error_clear();
}

/* ==== of a file ==== */

bool fmr_view_is_lfs(const fm_view_file *f)
{
    static const char *const weights[] = {".safetensors", ".gguf", ".bin", ".pt", ".pth"};
    for (size_t i = 0; i < FM_ARRAY_LEN(weights); i++)
        if (fmr_ends_with(f->name, weights[i]))
            return true;
    return f->bytes > FMR_SERVE_PLAIN_MAX;
}

void fmr_lfs_pointer(fm_buf *out, const char *sha256, uint64_t bytes)
{
    fm_buf_printf(out, "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %llu\n",
                  sha256, (unsigned long long)bytes);
}

fm_status fmr_blob_id(char out[41], fm_span bytes)
{
    fm_oid oid;
    fm_buf blob;
    fm_buf_init(&blob, 0);
    fm_buf_printf(&blob, "blob %zu", bytes.len);
    fm_buf_char(&blob, '\0');
    fm_buf_append(&blob, bytes.data, bytes.len);
    fm_status rc = fm_buf_ok(&blob);
    FM_THEN(rc, fm_sha1(oid.b, blob.data, blob.len));
    if (rc == FM_OK)
        fm_oid_hex(&oid, out);
    fm_buf_release(&blob);
    return rc;
}

typedef struct summing {
    fm_hasher *hasher;
    const fm_hub_exchange *x;
} summing;

/* The body was read to its end, so that a further read says at once whether the server ends. The
 * client may leave: it will ask again, and others wait for this digest. */
static fm_status sum_piece(void *ctx, const void *data, size_t len)
{
    summing *s = ctx;
    uint8_t none[1];
    size_t got;
    if (s->x->read(s->x->ctx, none, sizeof none, &got) == FM_ECANCELLED)
        return FM_ECANCELLED;
    return fm_hasher_update(s->hasher, data, len);
}

static fm_status compute(fmr_open *o, size_t i, const fm_hub_exchange *x, char sha256[65])
{
    summing s = {.x = x};
    fm_digest d;
    fm_status rc = fm_hasher_new(&s.hasher);
    FM_THEN(rc, fm_view_read(o->view, i, 0, fm_view_at(o->view, i)->bytes, sum_piece, &s));
    FM_THEN(rc, fm_hasher_final(s.hasher, &d));
    if (rc == FM_OK)
        fm_digest_hex(&d, sha256);
    fm_hasher_free(s.hasher);
    return rc;
}

/* What is recorded, else what is kept, else computed. */
static fm_status sha256_of(const fmr_views *v, fmr_open *o, size_t i, const fm_hub_exchange *x,
                           char sha256[65])
{
    const fm_view_file *f = fm_view_at(o->view, i);
    fm_buf of;
    bool found;
    if (f->known) {
        fm_digest_hex(&f->sha256, sha256);
        return FM_OK;
    }
    fm_buf_init(&of, 0);
    fm_buf_printf(&of, "1 %s %d %d %llu %s", o->tree_id, (int)o->form, o->peft,
                  (unsigned long long)f->bytes, f->name);
    fm_status rc = fm_buf_ok(&of);
    if (rc == FM_OK)
        read_kept(v->dir, fm_buf_span(&of), sha256, &found);
    if (rc == FM_OK && !found) {
        rc = compute(o, i, x, sha256);
        if (rc == FM_OK)
            keep(v->dir, fm_buf_span(&of), sha256);
    }
    fm_buf_release(&of);
    return rc;
}

static fm_status append(void *ctx, const void *data, size_t len)
{
    fm_buf_append(ctx, data, len);
    return fm_buf_ok(ctx);
}

static fm_status find_sum(const fmr_views *v, fmr_open *o, size_t i, const fm_hub_exchange *x,
                          fmr_sum *out)
{
    const fm_view_file *f = fm_view_at(o->view, i);
    fm_status rc;
    fm_buf text;
    fm_buf_init(&text, FMR_SERVE_PLAIN_MAX);
    if (fmr_view_is_lfs(f)) {
        rc = sha256_of(v, o, i, x, out->sha256);
        if (rc == FM_OK)
            fmr_lfs_pointer(&text, out->sha256, f->bytes);
    } else {
        rc = fm_view_read(o->view, i, 0, f->bytes, append, &text);
    }
    FM_THEN(rc, fm_buf_ok(&text));
    FM_THEN(rc, fmr_blob_id(out->blob, fm_buf_span(&text)));
    fm_buf_release(&text);
    return rc;
}

fm_status fmr_view_sum(fmr_views *v, fmr_open *o, size_t i, fmr_sum *out, const fm_hub_exchange *x)
{
    fmr_sum sum = {.state = FMR_SUM_BUSY};
    fm_status rc = FM_OK;
    (void)pthread_mutex_lock(&v->lock);
    while (o->sum[i].state == FMR_SUM_BUSY)
        (void)pthread_cond_wait(&v->change, &v->lock);
    if (o->sum[i].state == FMR_SUM_NONE) {
        o->sum[i].state = FMR_SUM_BUSY;
        (void)pthread_mutex_unlock(&v->lock);
        rc = find_sum(v, o, i, x, &sum);
        (void)pthread_mutex_lock(&v->lock);
        sum.state = rc == FM_OK ? FMR_SUM_KNOWN : FMR_SUM_NONE;
        o->sum[i] = sum;
        (void)pthread_cond_broadcast(&v->change);
    }
    *out = o->sum[i];
    (void)pthread_mutex_unlock(&v->lock);
    return rc;
}
