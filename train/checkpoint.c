/* checkpoint.c - one file that lets a stopped run go on with the same bits.
 *
 * The file is named by the digest of everything that the run's bits depend on, so that runs of
 * different configs share a folder and none can resume another's. It is replaced atomically.
 *   "fmstore train 1\n" | run digest [32] | step u32 | 0 u32 | tokens u64 | floats u64 | log bytes
 * u64 | p, m, v as f32 LE | log (compact JSON) | SHA-256 of all before */
#include "train/internal.h"

#include "store/base/cursor.h"
#include "store/base/io.h"
#include "store/base/mem.h"

#include <string.h>

#define MAGIC "fmstore train 1\n"
#define MAGIC_BYTES 16u
#define HEADER_BYTES (MAGIC_BYTES + FM_DIGEST_BYTES + 4 + 4 + 8 + 8 + 8)
#define LOG_MAX_BYTES ((size_t)1 << 30)

static char *checkpoint_path(const char *dir, const fm_digest *run)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(run, hex);
    char *name = fm_asprintf("%.16s.ckpt", hex);
    char *path = name ? fm_path_join(dir, name) : NULL;

    fm_free(name);
    return path;
}

typedef struct sink { /* a writer and the digest of what went through it */
    fm_writer *w;
    fm_hasher *h;
} sink;

static fm_status put(sink *s, const void *data, size_t len)
{
    fm_status rc = fm_hasher_update(s->h, data, len);
    return rc == FM_OK ? fm_writer_write(s->w, data, len) : rc;
}

static fm_status put_header(sink *s, const fmi_checkpoint *c, uint64_t floats, uint64_t log_bytes)
{
    uint8_t head[HEADER_BYTES];
    uint8_t *at = head + MAGIC_BYTES;

    memcpy(head, MAGIC, MAGIC_BYTES);
    memcpy(at, c->run.b, FM_DIGEST_BYTES);
    at += FM_DIGEST_BYTES;
    fm_put_u32(at, c->step);
    fm_put_u32(at + 4, 0);
    fm_put_u64(at + 8, c->tokens);
    fm_put_u64(at + 16, floats);
    fm_put_u64(at + 24, log_bytes);
    return put(s, head, sizeof(head));
}

static fm_status put_state(sink *s, const fmi_params *ps)
{
    const float *const part[] = {ps->p, ps->m, ps->v};
    float *host = fm_malloc((size_t)ps->total * sizeof(float));
    fm_status rc = host ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; i < FM_ARRAY_LEN(part) && rc == FM_OK; i++) {
        rc = fmi_params_get_all(ps, part[i], host);
        if (rc == FM_OK)
            rc = put(s, host, (size_t)ps->total * sizeof(float));
    }
    fm_free(host);
    return rc;
}

fm_status fmi_checkpoint_save(const fm_train_job *job, uint32_t child, const fmi_checkpoint *c,
                              const fmi_params *ps)
{
    const char *dir = job->checkpoint_dir;
    (void)child;
    if (!dir)
        return FM_OK;
    sink s = {0};
    fm_buf log;
    fm_digest sum;
    char *path = checkpoint_path(dir, &c->run);
    fm_status rc = path ? fm_make_dirs(dir) : FM_ENOMEM;

    fm_buf_init(&log, LOG_MAX_BYTES);
    if (rc == FM_OK)
        rc = fm_json_write(&log, c->log, FM_JSON_COMPACT);
    if (rc == FM_OK)
        rc = fm_hasher_new(&s.h);
    if (rc == FM_OK)
        rc = fm_writer_open(&s.w, path, NULL);
    if (rc == FM_OK)
        rc = put_header(&s, c, ps->total, log.len);
    if (rc == FM_OK)
        rc = put_state(&s, ps);
    if (rc == FM_OK)
        rc = put(&s, log.data, log.len);
    if (rc == FM_OK)
        rc = fm_hasher_final(s.h, &sum);
    if (rc == FM_OK)
        rc = fm_writer_write(s.w, sum.b, FM_DIGEST_BYTES);
    if (rc == FM_OK)
        rc = fm_writer_commit(s.w, NULL);
    fm_writer_close(s.w);
    fm_hasher_free(s.h);
    fm_buf_release(&log);
    fm_free(path);
    return rc;
}

static fm_status check_file(fm_cursor *cur, fm_span file, const char *path)
{
    fm_digest sum;
    fm_status rc;

    if (file.len < HEADER_BYTES + FM_DIGEST_BYTES)
        return fm_fail(FM_ECORRUPT, "%s: a checkpoint of %zu bytes is too short; remove it", path,
                       file.len);
    rc = fm_sha256(&sum, file.data, file.len - FM_DIGEST_BYTES);
    if (rc < 0)
        return rc;
    if (memcmp(sum.b, file.data + file.len - FM_DIGEST_BYTES, FM_DIGEST_BYTES) != 0)
        return fm_fail(FM_ECORRUPT, "%s: the checkpoint's checksum is wrong; remove it", path);
    fm_cursor_init(cur, fm_span_of(file.data, file.len - FM_DIGEST_BYTES));
    fm_span magic = fm_cursor_bytes(cur, MAGIC_BYTES);
    if (memcmp(magic.data, MAGIC, MAGIC_BYTES) != 0)
        return fm_fail(FM_EVERSION, "%s: is no checkpoint of this version; remove it", path);
    return FM_OK;
}

static fm_status get_floats(fm_cursor *cur, const fmi_params *ps, float *which, float *host)
{
    fm_span bytes = fm_cursor_bytes(cur, ps->total * sizeof(float));

    if (cur->failed)
        return FM_OK;
    memcpy(host, bytes.data, bytes.len);
    return fmi_params_put_all(ps, which, host);
}

static fm_status parse_state(fmi_checkpoint *c, fmi_params *ps, fm_span file, const char *path)
{
    fm_cursor cur;
    fm_status rc = check_file(&cur, file, path);

    if (rc < 0)
        return rc;
    fm_span run = fm_cursor_bytes(&cur, FM_DIGEST_BYTES);
    c->step = fm_cursor_u32(&cur);
    (void)fm_cursor_u32(&cur);
    c->tokens = fm_cursor_u64(&cur);
    uint64_t floats = fm_cursor_u64(&cur);
    uint64_t log_bytes = fm_cursor_u64(&cur);
    if (memcmp(run.data, c->run.b, FM_DIGEST_BYTES) != 0 || floats != ps->total)
        return fm_fail(FM_ECORRUPT, "%s: belongs to another run; remove it", path);
    float *host = fm_malloc((size_t)ps->total * sizeof(float));
    if (!host)
        return FM_ENOMEM;
    rc = get_floats(&cur, ps, ps->p, host);
    if (rc == FM_OK)
        rc = get_floats(&cur, ps, ps->m, host);
    if (rc == FM_OK)
        rc = get_floats(&cur, ps, ps->v, host);
    fm_free(host);
    fm_span log = fm_cursor_bytes(&cur, log_bytes);
    if (rc == FM_OK)
        rc = fm_cursor_ok(&cur, path, "the log");
    return rc == FM_OK ? fm_json_parse(&c->log, log, path) : rc;
}

fm_status fmi_checkpoint_load(const fm_train_job *job, uint32_t child, fmi_checkpoint *c,
                              fmi_params *ps, bool *found)
{
    const char *dir = job->checkpoint_dir;
    (void)child;
    *found = false;
    if (!dir)
        return FM_OK;
    fm_file_map map = {0};
    char *path = checkpoint_path(dir, &c->run);
    fm_status rc = FM_ENOMEM;

    *found = false;
    if (path && !fm_path_exists(path)) {
        fm_free(path);
        return FM_OK;
    }
    if (path)
        rc = fm_map_file(&map, path);
    if (rc == FM_OK)
        rc = parse_state(c, ps, fm_span_of(map.data, map.len), path);
    fm_unmap_file(&map);
    fm_free(path);
    *found = rc == FM_OK;
    return rc;
}
