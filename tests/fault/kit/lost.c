/* lost.c - the machine stops, and what was not fsynced is lost, torn or out of order.
 *
 * A command's calls are recorded with their data and replayed up to a point. The disk is taken at
 * its word: of a file, what was written before its last fsync is there; of a folder, what was made,
 * renamed and removed before the folder's own fsync. Of all after that any part may be there, a
 * write by half too. A file's fsync says nothing of its name (ext4 is kinder), a rename is done or
 * not. The folder is made anew as such a disk might show it, and looked at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/math/rng.h"
#include "tests/fault/kit/fault_kit.h"

enum { MAX_RECORDS = 8192, MAX_OBJECTS = 1024, MAX_NAMES = 1024, MAX_OPS = 2048, ABSENT = -1 };

typedef struct record {
    rec r;
    char *path, *path2; /* below the repository's folder; "" for itself */
    const uint8_t *data;
} record;

typedef struct change { /* of a file's bytes, not yet fsynced */
    bool trunc;
    uint64_t offset, len;
    const uint8_t *data;
} change;

typedef struct object { /* a file or a folder, whatever its names */
    bool is_dir;
    uint64_t ino;
    fm_buf bytes; /* fsynced */
    change *change;
    size_t count, cap;
} object;

typedef struct name {
    char path[512];
    int object;
} name;
typedef struct names {
    name at[MAX_NAMES];
    size_t count;
} names;

typedef struct dir_op { /* not yet fsynced: `to` becomes object, `from` goes; "" = no such part */
    char to[512], from[512];
    int object;
    bool to_done, from_done;
} dir_op;

typedef struct disk {
    object object[MAX_OBJECTS];
    size_t objects;
    names now, kept; /* as the process sees it; as the folders were fsynced */
    dir_op op[MAX_OPS];
    size_t ops;
} disk;

/* ==== names ================================================================================ */

static int lookup(const names *n, const char *path)
{
    for (size_t i = 0; i < n->count; i++)
        if (strcmp(n->at[i].path, path) == 0)
            return n->at[i].object;
    return ABSENT;
}

static void set(names *n, const char *path, int number)
{
    size_t i = 0;
    while (i < n->count && strcmp(n->at[i].path, path) != 0)
        i++;
    if (i == n->count) {
        assert_true(n->count < MAX_NAMES);
        snprintf(n->at[n->count++].path, sizeof n->at[0].path, "%s", path);
    }
    n->at[i].object = number;
}

static bool is_in(const char *path, const char *dir)
{
    size_t len = strlen(dir);
    return *path && (len == 0 ? !strchr(path, '/')
                              : strncmp(path, dir, len) == 0 && path[len] == '/' &&
                                    !strchr(path + len + 1, '/'));
}

static int new_object(disk *d, bool is_dir, uint64_t ino)
{
    assert_true(d->objects < MAX_OBJECTS);
    object *o = &d->object[d->objects];
    memset(o, 0, sizeof *o);
    o->is_dir = is_dir;
    o->ino = ino;
    fm_buf_init(&o->bytes, 0);
    return (int)d->objects++;
}

/* All of the repository before the command is on the disk. */
static void load(disk *d, const char *root, const char *below)
{
    char *dir = *below ? fm_path_join(root, below) : fm_strdup(root);
    fm_names list;
    tk_ok(fm_list_dir(&list, dir));
    for (size_t i = 0; i < list.count; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s%s%s", below, *below ? "/" : "", list.name[i]);
        char *full = fm_path_join(root, path);
        bool is_dir = fm_path_is_dir(full);
        int o = new_object(d, is_dir, 0);
        set(&d->now, path, o);
        set(&d->kept, path, o);
        if (is_dir)
            load(d, root, path);
        else
            tk_ok(fm_read_file(&d->object[o].bytes, full, (size_t)1 << 30));
        fm_free(full);
    }
    fm_names_release(&list);
    fm_free(dir);
}

static void free_disk(disk *d)
{
    for (size_t i = 0; i < d->objects; i++) {
        fm_buf_release(&d->object[i].bytes);
        fm_free(d->object[i].change);
    }
    fm_free(d);
}

/* ==== replay =============================================================================== */

static void apply(fm_buf *b, const change *c, uint64_t len)
{
    uint64_t end = c->trunc ? c->offset : c->offset + len;
    while (b->len < end) /* a hole reads as zeros */
        fm_buf_u8(b, 0);
    tk_ok(fm_buf_ok(b));
    if (c->trunc)
        b->len = (size_t)end;
    else if (len)
        memcpy(b->data + c->offset, c->data, (size_t)len);
}

static void add_change(object *o, change c)
{
    tk_ok(fm_grow(&o->change, &o->cap, o->count + 1, sizeof *o->change));
    o->change[o->count++] = c;
}

static void add_op(disk *d, const char *to, int number, const char *from)
{
    assert_true(d->ops < MAX_OPS);
    dir_op *op = &d->op[d->ops++];
    memset(op, 0, sizeof *op);
    snprintf(op->to, sizeof op->to, "%s", to);
    snprintf(op->from, sizeof op->from, "%s", from);
    op->object = number;
    op->to_done = !*to;
    op->from_done = !*from;
    if (*from)
        set(&d->now, from, ABSENT);
    if (*to)
        set(&d->now, to, number);
}

static void do_parts(names *n, dir_op *op, bool to, bool from)
{
    if (from && !op->from_done)
        set(n, op->from, ABSENT);
    if (to && !op->to_done)
        set(n, op->to, op->object);
    op->to_done = op->to_done || to;
    op->from_done = op->from_done || from;
}

static void sync_dir(disk *d, const char *dir)
{
    size_t left = 0;
    for (size_t i = 0; i < d->ops; i++) {
        dir_op *op = &d->op[i];
        bool from = is_in(op->from, dir);
        do_parts(&d->kept, op, is_in(op->to, dir) || from, from);
        if (!op->to_done || !op->from_done)
            d->op[left++] = *op;
    }
    d->ops = left;
}

static object *by_ino(disk *d, uint64_t ino)
{
    for (size_t i = d->objects; i-- > 0;) /* a number may be used again: the newest has it */
        if (d->object[i].ino == ino)
            return &d->object[i];
    fail_msg("a file of which no opening was recorded");
    return d->object; /* not reached */
}

static void created(disk *d, const record *c)
{
    int o = lookup(&d->now, c->path);
    if (o == ABSENT || (c->r.flags & 1u)) {
        o = new_object(d, false, c->r.ino);
        add_op(d, c->path, o, "");
    }
    for (size_t i = 0; i < d->objects; i++)
        if (d->object[i].ino == c->r.ino)
            d->object[i].ino = 0;
    d->object[o].ino = c->r.ino;
    if (c->r.flags & 2u)
        add_change(&d->object[o], (change){.trunc = true});
}

static void synced(disk *d, const record *c)
{
    int o = lookup(&d->now, c->path);
    if (!*c->path || (o != ABSENT && d->object[o].is_dir)) {
        sync_dir(d, c->path);
        return;
    }
    object *f = by_ino(d, c->r.ino);
    for (size_t i = 0; i < f->count; i++)
        apply(&f->bytes, &f->change[i], f->change[i].len);
    f->count = 0;
}

static void replay(disk *d, const record *c)
{
    int o = lookup(&d->now, c->path);
    if (c->r.failed)
        return;
    switch ((rec_kind)c->r.kind) {
    case REC_CREATE:
        created(d, c);
        return;
    case REC_WRITE:
        add_change(by_ino(d, c->r.ino),
                   (change){.offset = c->r.offset, .len = c->r.data_len, .data = c->data});
        return;
    case REC_TRUNC:
        add_change(by_ino(d, c->r.ino), (change){.trunc = true, .offset = c->r.len});
        return;
    case REC_SYNC:
        synced(d, c);
        return;
    case REC_RENAME:
        assert_true(o != ABSENT);
        add_op(d, c->path2, o, c->path);
        return;
    case REC_LINK:
        assert_true(o != ABSENT);
        add_op(d, c->path2, o, "");
        return;
    case REC_UNLINK:
    case REC_RMDIR:
        add_op(d, "", ABSENT, c->path);
        return;
    case REC_MKDIR:
        add_op(d, c->path, new_object(d, true, 0), "");
        return;
    case REC_COPY:
        fail_msg("%s: bytes copied inside the system are not modelled", c->path);
        return;
    case REC_ALLOC:
    case REC_MMAP: /* -shm alone, which holds nothing that lasts */
    case REC_MSYNC:
    case REC_CLOSE:
    case REC_META:
        return;
    }
}

/* ==== what a disk may show ================================================================= */

typedef struct dice {
    uint64_t seed, stream, n;
    unsigned bytes, entries; /* of 100: how likely a change not fsynced is there */
} dice;

static bool lucky(dice *x, unsigned of_100)
{
    return fm_rng_below(x->seed, x->stream, x->n++, 100) < of_100;
}

static void show_file(const object *o, const char *path, dice *x)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_buf_append(&b, o->bytes.data, o->bytes.len);
    for (size_t i = 0; i < o->count; i++)
        if (lucky(x, x->bytes))
            apply(&b, &o->change[i], lucky(x, 20) ? o->change[i].len / 2 : o->change[i].len);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(b.data ? b.data : (const uint8_t *)"", 1, b.len, out), b.len);
    assert_int_equal(fclose(out), 0);
    fm_buf_release(&b);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const name *)a)->path, ((const name *)b)->path);
}

/* A name whose folder is not there is lost with it. */
static void show(const disk *d, const char *root, dice *x)
{
    static names shown;
    shown = d->kept;
    for (size_t i = 0; i < d->ops; i++) {
        dir_op op = d->op[i];
        if (lucky(x, x->entries))
            do_parts(&shown, &op, true, true);
    }
    qsort(shown.at, shown.count, sizeof shown.at[0], by_path);
    tk_ok(fm_remove_tree(root));
    assert_int_equal(mkdir(root, 0777), 0);
    for (size_t i = 0; i < shown.count; i++) {
        const name *n = &shown.at[i];
        if (n->object == ABSENT)
            continue;
        char *path = fm_path_join(root, n->path);
        char *slash = strrchr(path, '/');
        *slash = '\0';
        bool there = fm_path_is_dir(path);
        *slash = '/';
        if (there && d->object[n->object].is_dir)
            assert_int_equal(mkdir(path, 0777), 0);
        else if (there)
            show_file(&d->object[n->object], path, x);
        fm_free(path);
    }
}

/* ==== the record of a command ============================================================== */

typedef struct history {
    record *at;
    size_t count;
    fm_buf log;
} history;

static char *below_root(const fk_world *w, const uint8_t *text, size_t len)
{
    char *full = fm_strndup((const char *)text, len);
    size_t root = strlen(w->work);
    assert_non_null(full);
    assert_true(len == 0 || strncmp(full, w->work, root) == 0);
    char *out = fm_strdup(len > root ? full + root + 1 : "");
    fm_free(full);
    return out;
}

static void record_command(fk_world *w, const fk_command *c, bool fresh, history *h)
{
    char *log = fm_path_join(w->dir, "log");
    fk_fate fate = {.log = log, .data = true};
    memset(h, 0, sizeof *h);
    fm_buf_init(&h->log, (size_t)1 << 30);
    tk_ok(fm_remove_file(log));
    tk_ok(fm_remove_tree(w->work));
    if (fresh)
        tk_ok(fm_make_dirs(w->work));
    else
        fk_copy_tree(w->sound, w->work);
    assert_int_equal(fk_run(w, c, &fate), 0);
    tk_ok(fm_read_file(&h->log, log, (size_t)1 << 30));
    h->at = fm_calloc(MAX_RECORDS, sizeof *h->at);
    assert_non_null(h->at);
    for (size_t p = 0; p < h->log.len;) {
        assert_true(h->count < MAX_RECORDS);
        record *e = &h->at[h->count++];
        memcpy(&e->r, h->log.data + p, sizeof e->r);
        assert_int_equal(e->r.magic, REC_MAGIC);
        p += sizeof e->r;
        e->path = below_root(w, h->log.data + p, e->r.path_len);
        p += e->r.path_len;
        e->path2 = below_root(w, h->log.data + p, e->r.path2_len);
        p += e->r.path2_len;
        e->data = h->log.data + p;
        p += (size_t)e->r.data_len;
    }
    fm_free(log);
}

static void free_history(history *h)
{
    for (size_t i = 0; i < h->count; i++) {
        fm_free(h->at[i].path);
        fm_free(h->at[i].path2);
    }
    fm_free(h->at);
    fm_buf_release(&h->log);
}

/* ==== looking ============================================================================== */

/* How much of what was not fsynced is there: nothing, all, any part, names without bytes, bytes
 * without names. */
static const unsigned chances[][2] = {{0, 0}, {100, 100}, {50, 50}, {10, 90}, {90, 10}, {0, 100}};

static void look_at(fk_world *w, const fk_command *c, const fk_refs *before, const history *h,
                    size_t upto, dice *x, fk_losses *out)
{
    disk *d = fm_calloc(1, sizeof *d);
    assert_non_null(d);
    if (before->count)
        load(d, w->sound, "");
    for (size_t i = 0; i < upto; i++)
        replay(d, &h->at[i]);
    show(d, w->work, x);
    free_disk(d);
    bool ended = upto == h->count;
    const char *wrong = fk_wrong(w->work, before, &c->after, ended);
    if (strstr(wrong, ".sqlite")) { /* a cache may be made again, once */
        out->mended++;
        wrong = fk_wrong(w->work, before, &c->after, ended);
    }
    out->points++;
    if (*wrong && ++out->failures <= 20)
        print_error("%s, after %zu of %zu calls, seed %llu/%llu, bytes %u%%, names %u%%: %s\n",
                    c->name, upto, h->count, (unsigned long long)x->seed,
                    (unsigned long long)x->stream, x->bytes, x->entries, wrong);
}

static dice dice_of(uint64_t seed, uint64_t stream)
{
    const unsigned *chance = chances[fm_rng_below(seed, stream, 1u << 20, FM_ARRAY_LEN(chances))];
    return (dice){.seed = seed, .stream = stream, .bytes = chance[0], .entries = chance[1]};
}

/* An init that ended: what is put into the repository later leans on its files for ever. */
static void lose_init(fk_world *w, uint64_t seed, unsigned points, fk_losses *out)
{
    static const fk_command init = {.name = "init", .argv = {"init", "."}};
    static const fk_refs none;
    history h;
    record_command(w, &init, true, &h);
    for (unsigned k = 0; k < points; k++) {
        dice x = dice_of(seed, (uint64_t)1 << 63 | k);
        look_at(w, &init, &none, &h, h.count, &x, out);
    }
    free_history(&h);
}

void fk_lose(fk_world *w, uint64_t seed, unsigned points, fk_losses *out)
{
    memset(out, 0, sizeof *out);
    lose_init(w, seed, points, out);
    for (size_t i = 0; i < w->commands; i++) {
        fk_command *c = &w->command[i];
        history h;
        if (!c->kind)
            fk_learn(w, c);
        record_command(w, c, false, &h);
        for (unsigned k = 0; k < points; k++) {
            uint64_t stream = (uint64_t)i << 32 | k;
            dice x = dice_of(seed, stream);
            size_t upto =
                k % 5 == 0 ? h.count : (size_t)fm_rng_below(seed, stream, (1u << 20) + 1, h.count);
            look_at(w, c, &w->before, &h, upto, &x, out);
        }
        free_history(&h);
    }
    print_message("seed %llu: %u disks after a stop, %u with a cache made again; %u with anything "
                  "lost\n",
                  (unsigned long long)seed, out->points, out->mended, out->failures);
}
