/* bench_store DIR [NAME ...] - what the store makes of real models, and how fast.
 *
 * DIR is what make_store_cases.py wrote. Each case runs in a store of its own, through the same
 * calls as `fmstore import`: open the source, put its tree with the parents offered, commit; then
 * the source export, compared byte for byte. Beside it stand the case's goal, the peers' figures on
 * the same file (store_peers.py, in the same run), and the speed of memcpy and SHA-256. Speeds are
 * per second of CPU time of all threads together, so they are those of one core; pin the run to one
 * (taskset -c 0) all the same, for caches and clocks. `bench_store --big GB [DIR]` proves the
 * memory instead: a synthetic model of that size in, out, and in again. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/source.h"
#include "store/store.h"
#include "tests/bench/store_kit.h"

#define FILES_MAX 16

typedef struct files {
    const char *path[FILES_MAX];
    size_t count;
} files;

typedef struct bench_case {
    char *line, *name, *goal, *what;
    files parents, children;
    double percent; /* once it ran */
} bench_case;

typedef struct bench {
    const char *dir;
    fm_buf table;
    bench_case *c;
    size_t count, cap;
} bench;

/* ==== the table ============================================================================ */

static char *next_field(char **at, char end)
{
    char *field = *at, *stop = field + strcspn(field, (char[]){end, '\0'});
    *at = *stop ? stop + 1 : stop;
    *stop = '\0';
    return field;
}

static void split_files(files *out, char *list)
{
    while (*list && out->count < FILES_MAX)
        out->path[out->count++] = next_field(&list, ',');
}

static void read_table(bench *b)
{
    char *path = fm_path_join(b->dir, "cases.tsv");
    fm_buf_init(&b->table, 0);
    tk_ok(fm_read_file(&b->table, path, 1 << 20));
    fm_free(path);
    for (char *at = (char *)b->table.data; *at;) {
        char *line = next_field(&at, '\n');
        bench_case c = {0};
        c.name = next_field(&line, '\t');
        c.goal = next_field(&line, '\t');
        split_files(&c.parents, next_field(&line, '\t'));
        split_files(&c.children, next_field(&line, '\t'));
        c.what = line;
        if (c.children.count == 0)
            continue;
        tk_ok(fm_grow(&b->c, &b->cap, b->count + 1, sizeof c));
        b->c[b->count++] = c;
    }
}

static char *path_of(const bench *b, const char *file)
{
    return file[0] == '/' ? fm_strdup(file) : fm_path_join(b->dir, file);
}

/* ==== one case ============================================================================= */

typedef struct opened {
    fm_source *src;
    char *path;
} opened;

typedef struct run {
    fm_store *store;
    opened parent[FILES_MAX + 1];
    size_t parents;
    uint64_t raw, stored;
    sk_cpu in, out, again;
    sk_codecs codecs;
} run;

static void store_source(run *r, const opened *o, uint64_t *stored)
{
    fm_txn *t;
    fm_txn_stats st;
    fm_provider p = fm_source_provider(o->src);
    const fm_tree *parent = r->parents ? fm_source_tree(r->parent[0].src) : NULL;
    tk_ok(fm_txn_begin(&t, r->store));
    for (size_t i = 0; i < r->parents; i++)
        tk_ok(fm_txn_offer(t, fm_source_tree(r->parent[i].src)));
    tk_ok(fm_txn_put_tree(t, fm_source_tree(o->src), &p, parent, NULL, NULL));
    tk_ok(fm_txn_commit(t, &st));
    fm_txn_close(t);
    *stored = st.bytes_stored;
}

static void open_file(opened *o, char *path)
{
    o->path = path;
    tk_ok(fm_source_open(&o->src, path));
}

static void close_file(opened *o)
{
    fm_source_close(o->src);
    fm_free(o->path);
}

static void run_child(run *r, opened *o, char *out, bool last)
{
    uint64_t stored;
    sk_cpu begun = sk_cpu_now();
    open_file(o, o->path);
    store_source(r, o, &stored);
    sk_cpu_add(&r->in, &begun);
    r->raw += fm_source_file_bytes(o->src);
    r->stored += stored;
    sk_count_codecs(&r->codecs, r->store, fm_source_tree(o->src));
    fm_provider p = fm_store_provider(r->store);
    begun = sk_cpu_now();
    tk_ok(fm_export(fm_source_tree(o->src), &p, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE));
    sk_cpu_add(&r->out, &begun);
    sk_same_file(o->path, out);
    tk_ok(fm_remove_tree(out));
    if (!last)
        return;
    fm_source *again;
    begun = sk_cpu_now();
    tk_ok(fm_source_open(&again, o->path));
    opened twice = {again, NULL};
    store_source(r, &twice, &stored);
    sk_cpu_add(&r->again, &begun);
    fm_source_close(again);
}

static double goal_of(const bench *b, const bench_case *c, const sk_peers *peers)
{
    char name[64];
    double f, a, least = 0;
    if (sscanf(c->goal, "peer %lf", &f) == 1) {
        for (size_t i = 0; i < peers->count; i++)
            if (least == 0 || peers->percent[i] < least)
                least = peers->percent[i];
        return f * least;
    }
    if (sscanf(c->goal, "case %63s %lf %lf", name, &f, &a) == 3) {
        for (size_t i = 0; i < b->count; i++)
            if (strcmp(b->c[i].name, name) == 0)
                return b->c[i].percent > 0 ? f * b->c[i].percent + a : 0;
        return 0;
    }
    return strtod(c->goal, NULL);
}

static void print_rate(const char *what, double mb, const sk_cpu *cpu)
{
    printf("  %s %.0f MB/s a core (%.0f) ", what, mb / cpu->all_s, mb / cpu->user_s);
}

static void print_case(const bench *b, const bench_case *c, const run *r, const sk_peers *peers)
{
    const double goal = goal_of(b, c, peers), mb = (double)r->raw / 1e6;
    printf("\n%s: %s (%.1f MB)\n", c->name, c->what, mb);
    printf("  stored %9.3f %% of raw", c->percent);
    if (goal > 0)
        printf("   goal %.3f %%  %s", goal, c->percent <= goal ? "reached" : "MISSED");
    printf("\n ");
    for (size_t i = 0; i < peers->count; i++)
        printf(" %s %.2f %%", peers->name[i], peers->percent[i]);
    printf("%s\n", peers->skipped);
    print_rate("in", mb, &r->in);
    print_rate("out", mb, &r->out);
    print_rate("again", mb / (double)c->children.count, &r->again);
    printf("(in brackets: without the kernel)\n  ");
    sk_print_codecs(&r->codecs);
    fflush(stdout);
}

static void run_case(bench *b, bench_case *c)
{
    run r;
    sk_peers peers;
    memset(&r, 0, sizeof r);
    char *root = tk_scratch(), *out = fm_path_join(root, "out");
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(&r.store, root));
    for (size_t i = 0; i < c->parents.count; i++) {
        uint64_t stored;
        open_file(&r.parent[i], path_of(b, c->parents.path[i]));
        store_source(&r, &r.parent[i], &stored);
        r.parents = i + 1;
    }
    char *first = r.parents ? fm_strdup(r.parent[0].path) : NULL;
    for (size_t i = 0; i < c->children.count; i++) {
        opened o = {NULL, path_of(b, c->children.path[i])};
        run_child(&r, &o, out, i + 1 == c->children.count);
        while (c->children.count > 1 && r.parents) /* a chain: the next one's parent is this */
            close_file(&r.parent[--r.parents]);
        if (c->children.count > 1)
            r.parent[r.parents++] = o;
        else
            close_file(&o);
    }
    c->percent = 100.0 * (double)r.stored / (double)r.raw;
    char *last = path_of(b, c->children.path[c->children.count - 1]);
    char *before =
        c->children.count > 1 ? path_of(b, c->children.path[c->children.count - 2]) : NULL;
    sk_ask_peers(&peers, last, before ? before : first);
    print_case(b, c, &r, &peers);
    while (r.parents)
        close_file(&r.parent[--r.parents]);
    fm_store_close(r.store);
    tk_ok(fm_remove_tree(root));
    fm_free(before);
    fm_free(last);
    fm_free(first);
    fm_free(out);
    fm_free(root);
}

static bool is_wanted(const bench_case *c, int argc, char **argv)
{
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], c->name) == 0)
            return true;
    return argc <= 2;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_store DIR [NAME ...] | --big GB [DIR]\n");
        return 2;
    }
    if (strcmp(argv[1], "--big") == 0)
        return sk_big(argc > 2 ? strtod(argv[2], NULL) : 20, argc > 3 ? argv[3] : NULL);
    bench b = {.dir = argv[1]};
    read_table(&b);
    sk_print_limits();
    for (size_t i = 0; i < b.count; i++)
        if (is_wanted(&b.c[i], argc, argv))
            run_case(&b, &b.c[i]);
    fm_free(b.c);
    fm_buf_release(&b.table);
    return 0;
}
