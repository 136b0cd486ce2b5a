/* lease.c - leases, and the gate between their owners and gc. */
#include "store/lease/lease.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define HEAD_LINE "fmstore lease 1\n"
#define LEASE_MAX_BYTES ((size_t)256 << 20)

struct fms_lease {
    char *dir, *path;
    fm_lock *lock;
    bool writes;
    fms_condemned *condemned;
    pthread_mutex_t mutex;
    fm_map *held[4];
};

static const char *const hold_word[4] = {"object ", "pack ", "commit ", "git "};

static size_t hold_bytes(fms_hold kind)
{
    return kind == FMS_HOLD_OBJECT || kind == FMS_HOLD_PACK ? FM_DIGEST_BYTES : FMS_GIT_ID_BYTES;
}

static char *leases_dir(const char *root)
{
    return fm_path_join(root, "leases");
}

static fm_status gate_open_shared(fm_lock **out, const char *dir)
{
    char *path = fm_path_join(dir, "gate");
    fm_status rc = path ? fm_lock_share(out, path) : FM_ENOMEM;
    fm_free(path);
    return rc;
}

fm_status fms_gate_close(fm_lock **out, const char *root)
{
    *out = NULL;
    char *dir = leases_dir(root), *path = dir ? fm_path_join(dir, "gate") : NULL;
    fm_status rc = path ? fm_make_dirs(dir) : FM_ENOMEM;
    FM_THEN(rc, fm_lock_take(out, path));
    fm_free(path);
    fm_free(dir);
    return rc;
}

/* ==== the owner's side ===================================================================== */

static fm_status make_file(fms_lease *l)
{
    uint8_t r[FMS_LEASE_NAME_CHARS / 2];
    char name[FMS_LEASE_NAME_CHARS + 1];
    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r)
        return fm_fail(FM_EIO, "lease: the system gives no random bytes");
    for (size_t i = 0; i < sizeof r; i++)
        snprintf(name + 2 * i, 3, "%02x", r[i]);
    l->path = fm_path_join(l->dir, name);
    return l->path ? fm_lock_make(&l->lock, l->path) : FM_ENOMEM;
}

static fm_status write_head(fms_lease *l, const char *what)
{
    fm_buf b;
    fm_buf_init(&b, 4096);
    fm_buf_printf(&b, HEAD_LINE "begun %lld\n%s ", (long long)time(NULL),
                  l->writes ? "write" : "read");
    for (size_t i = 0; what[i] && i < sizeof((fms_lease_seen *)0)->what - 1; i++)
        fm_buf_char(&b, (unsigned char)what[i] < ' ' || what[i] == 0x7f ? '?' : what[i]);
    fm_buf_char(&b, '\n');
    fm_status rc = fm_buf_ok(&b);
    FM_THEN(rc, fm_lock_append(l->lock, b.data, b.len));
    fm_buf_release(&b);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "lease %s", l->path);
}

/* Called with the gate shared: gc will see this lease before it condemns anything more. */
static fm_status begin_inside(fms_lease *l, const char *root, const char *what)
{
    FM_TRY(make_file(l));
    FM_TRY(write_head(l, what));

    fm_status rc = fms_condemned_read(&l->condemned, root);
    return rc == FM_ECORRUPT ? FM_OK : rc; /* a damaged list condemns nothing */
}

fm_status fms_lease_begin(fms_lease **out, const char *root, bool writes, const char *what)
{
    *out = NULL;
    fm_lock *gate = NULL;
    fms_lease *l = fm_calloc(1, sizeof *l);
    if (!l)
        return FM_ENOMEM;
    pthread_mutex_init(&l->mutex, NULL);
    l->writes = writes;
    l->dir = leases_dir(root);
    fm_status rc = l->dir ? FM_OK : FM_ENOMEM;
    for (int i = 0; rc == FM_OK && i < 4; i++)
        rc = fm_map_new(&l->held[i]);
    FM_THEN(rc, fm_make_dirs(l->dir));
    FM_THEN(rc, gate_open_shared(&gate, l->dir));
    FM_THEN(rc, begin_inside(l, root, what ? what : ""));
    fm_lock_drop(gate);
    if (rc == FM_OK)
        *out = l;
    else
        fms_lease_end(l);
    return rc;
}

void fms_lease_end(fms_lease *l)
{
    fm_error_state kept;
    if (!l)
        return;
    fm_error_save(&kept);
    if (l->lock) /* removed while it is locked, so that gc does not take it for a dead one */
        fm_ignore(fm_remove_file(l->path), "gc removes what the dead leave");
    fm_error_restore(&kept);
    fm_lock_drop(l->lock);
    for (int i = 0; i < 4; i++)
        fm_map_free(l->held[i]);
    fms_condemned_free(l->condemned);
    pthread_mutex_destroy(&l->mutex);
    fm_free(l->path);
    fm_free(l->dir);
    fm_free(l);
}

bool fms_lease_writes(const fms_lease *l)
{
    return l->writes;
}

const fms_condemned *fms_lease_condemned(const fms_lease *l)
{
    return l->condemned;
}

static fm_status new_lines(const fms_lease *l, fms_hold kind, const uint8_t *ids, size_t count,
                           fm_buf *b)
{
    static const char digit[] = "0123456789abcdef";
    size_t bytes = hold_bytes(kind);
    for (size_t i = 0; i < count; i++, ids += bytes) {
        if (fm_map_has(l->held[kind], ids, bytes))
            continue;
        fm_buf_str(b, hold_word[kind]);
        for (size_t k = 0; k < bytes; k++) {
            fm_buf_char(b, digit[ids[k] >> 4]);
            fm_buf_char(b, digit[ids[k] & 15]);
        }
        fm_buf_char(b, '\n');
    }
    return fm_buf_ok(b);
}

/* Remembers ids whose lines are written; after a failed write they are written again. */
static fm_status remember(fms_lease *l, fms_hold kind, const uint8_t *ids, size_t count)
{
    size_t bytes = hold_bytes(kind);

    for (size_t i = 0; i < count; i++, ids += bytes)
        FM_TRY(fm_map_put(l->held[kind], ids, bytes, l, NULL));
    return FM_OK;
}

fm_status fms_lease_hold(fms_lease *l, fms_hold kind, const uint8_t *ids, size_t count)
{
    fm_buf b;
    fm_lock *gate = NULL;
    fm_buf_init(&b, LEASE_MAX_BYTES);
    pthread_mutex_lock(&l->mutex);
    fm_status rc = new_lines(l, kind, ids, count, &b);
    if (rc == FM_OK && b.len)
        rc = gate_open_shared(&gate, l->dir);
    if (rc == FM_OK && b.len) {
        rc = fm_lock_append(l->lock, b.data, b.len);
        rc = rc == FM_OK ? rc : fm_error_prefix(rc, "lease %s", l->path);
    }
    FM_THEN(rc, remember(l, kind, ids, count));
    fm_lock_drop(gate);
    pthread_mutex_unlock(&l->mutex);
    fm_buf_release(&b);
    return rc;
}

fm_status fms_lease_inherit(fms_lease *l, const fms_lease *from)
{
    fm_status rc = FM_OK;
    for (int kind = 0; from && kind < 4; kind++)
        for (size_t i = 0; rc == FM_OK && i < fm_map_count(from->held[kind]); i++)
            rc = fms_lease_hold(l, (fms_hold)kind, fm_map_key_at(from->held[kind], i).data, 1);
    return rc;
}

/* ==== gc's side ============================================================================ */

static int hex_value(uint8_t ch)
{
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

static bool take_hold(fms_leases *ls, fm_span line)
{
    for (int kind = 0; kind < 4; kind++) {
        size_t n = strlen(hold_word[kind]), bytes = hold_bytes((fms_hold)kind);
        if (line.len < n || memcmp(line.data, hold_word[kind], n) != 0)
            continue;
        if (line.len != n + 2 * bytes)
            return false;
        for (size_t i = 0; i < bytes; i++) {
            int hi = hex_value(line.data[n + 2 * i]), lo = hex_value(line.data[n + 2 * i + 1]);
            if (hi < 0 || lo < 0)
                return false;
            fm_buf_u8(&ls->held[kind], (uint8_t)(hi << 4 | lo));
        }
        return true;
    }
    return false;
}

static bool take_begun(fms_lease_seen *seen, fm_span line)
{
    if (line.len < 7 || line.len > 24 || memcmp(line.data, "begun ", 6) != 0)
        return false;
    for (size_t i = 6; i < line.len; i++) {
        if (line.data[i] < '0' || line.data[i] > '9')
            return false;
        seen->begun = seen->begun * 10 + (line.data[i] - '0');
    }
    return true;
}

static bool take_what(fms_lease_seen *seen, fm_span line)
{
    size_t n = line.len >= 6 && memcmp(line.data, "write ", 6) == 0  ? 6
               : line.len >= 5 && memcmp(line.data, "read ", 5) == 0 ? 5
                                                                     : 0;
    if (n == 0 || line.len - n >= sizeof seen->what)
        return false;
    seen->writes = n == 6;
    memcpy(seen->what, line.data + n, line.len - n);
    return true;
}

/* Lines are written whole with the gate shared, so the lease of a living process has no torn line;
 * a line that is not understood is a newer fmstore's. */
static bool take_text(fms_leases *ls, fms_lease_seen *seen, fm_span text)
{
    size_t head = strlen(HEAD_LINE);
    if (text.len < head || memcmp(text.data, HEAD_LINE, head) != 0)
        return false;
    text = fm_span_of(text.data + head, text.len - head);
    for (unsigned n = 0; text.len > 0; n++) {
        const uint8_t *end = memchr(text.data, '\n', text.len);
        if (!end)
            return false;
        fm_span line = fm_span_of(text.data, (size_t)(end - text.data));
        bool good = n == 0   ? take_begun(seen, line)
                    : n == 1 ? take_what(seen, line)
                             : take_hold(ls, line);
        if (!good)
            return false;
        text = fm_span_of(end + 1, text.len - line.len - 1);
    }
    return true;
}

static fm_status take_lease(fms_leases *ls, size_t *cap, const char *path, const char *name)
{
    fm_buf text;
    fm_buf_init(&text, LEASE_MAX_BYTES);
    fm_status rc = fm_grow(&ls->lease, cap, ls->count + 1, sizeof *ls->lease);
    FM_THEN(rc, fm_read_file(&text, path, LEASE_MAX_BYTES));
    if (rc == FM_OK) {
        fms_lease_seen *seen = &ls->lease[ls->count++];
        memset(seen, 0, sizeof *seen);
        snprintf(seen->name, sizeof seen->name, "%s", name);
        if (!take_text(ls, seen, fm_buf_span(&text)))
            rc = fm_fail(FM_ECORRUPT,
                         "%s: a running process holds a lease that cannot be read (a newer "
                         "fmstore's?): nothing is deleted while it runs",
                         path);
    }
    fm_buf_release(&text);
    return rc == FM_ENOTFOUND ? FM_OK : rc; /* it ended after the folder was listed */
}

fm_status fms_leases_read(fms_leases *out, const char *root)
{
    size_t cap = 0;
    fm_names names = {NULL, 0};
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 4; i++)
        fm_buf_init(&out->held[i], 0);
    char *dir = leases_dir(root);
    fm_status rc = dir ? fm_list_dir(&names, dir) : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        if (strlen(names.name[i]) != FMS_LEASE_NAME_CHARS)
            continue;
        char *path = fm_path_join(dir, names.name[i]);
        if (!path)
            rc = FM_ENOMEM;
        else if (fm_lock_is_free(path))
            rc = fm_remove_file(path);
        else if (fm_path_exists(path))
            rc = take_lease(out, &cap, path, names.name[i]);
        fm_free(path);
    }
    for (int i = 0; rc == FM_OK && i < 4; i++)
        rc = fm_buf_ok(&out->held[i]);
    fm_names_release(&names);
    fm_free(dir);
    if (rc != FM_OK)
        fms_leases_release(out);
    return rc;
}

void fms_leases_release(fms_leases *ls)
{
    fm_free(ls->lease);
    for (int i = 0; i < 4; i++)
        fm_buf_release(&ls->held[i]);
    ls->lease = NULL;
    ls->count = 0;
}
