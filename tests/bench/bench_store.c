/* bench_store PARENT.safetensors [CHILD.safetensors] - what the store costs and saves on real
 * weights, beside memcpy and SHA-256 over the same bytes in the same run. Pin it to one CPU
 * (taskset -c 0) for rates per core. Prints one "name value unit" a line. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "store/store.h"
#include "tests/testkit.h"

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct model {
    fm_file_map map;
    fm_json *head;
    const uint8_t *body;
    uint64_t bytes; /* of all tensors */
} model;

static void load(model *m, const char *path)
{
    tk_ok(fm_map_file(&m->map, path));
    uint64_t n = fm_get_u64(m->map.data);
    tk_ok(fm_json_parse(&m->head, fm_span_of(m->map.data + 8, (size_t)n), path));
    m->body = m->map.data + 8 + n;
    m->bytes = m->map.len - 8 - n;
}

/* The tree's ids need hashing; it is timed by the caller as part of the import. */
static fm_tree *tree_of(const model *m)
{
    fm_tree *tree;
    tk_ok(fm_tree_new(&tree));
    for (void *it = fm_json_iter(m->head); it; it = fm_json_next(m->head, it)) {
        const char *name = fm_json_iter_key(it);
        const fm_json *v = fm_json_iter_value(it);
        const char *dtype = fm_json_cstr(fm_json_get(v, "dtype"), NULL);
        if (!dtype)
            continue;
        const fm_json *dims = fm_json_get(v, "shape"), *at = fm_json_get(v, "data_offsets");
        fm_shape shape = {(uint32_t)fm_json_count(dims), {0}};
        for (uint32_t i = 0; i < shape.rank; i++)
            shape.dim[i] = (uint64_t)fm_json_int(fm_json_at(dims, i), 0);
        uint64_t a = (uint64_t)fm_json_int(fm_json_at(at, 0), 0);
        uint64_t b = (uint64_t)fm_json_int(fm_json_at(at, 1), 0);
        fm_dtype d = fm_dtype_parse(dtype, strlen(dtype));
        fm_digest id;
        fm_buf path;
        tk_ok(fm_tensor_id(&id, d, &shape, fm_span_of(m->body + a, (size_t)(b - a)), NULL));
        fm_buf_init(&path, 0);
        tk_ok(fm_tensor_path(&path, "tensors", name));
        tk_ok(fm_tree_put_tensor(tree, fm_buf_cstr(&path), name, d, &shape, &id));
        fm_buf_release(&path);
    }
    return tree;
}

static fm_status provide(void *ctx, const fm_entry *e, void *dst)
{
    const model *m = ctx;
    const fm_json *at = fm_json_get(fm_json_get(m->head, e->name), "data_offsets");
    memcpy(dst, m->body + fm_json_int(fm_json_at(at, 0), 0), (size_t)e->bytes);
    return FM_OK;
}

static void rate(const char *name, uint64_t bytes, double s)
{
    printf("%-28s %8.0f MB/s\n", name, (double)bytes / 1e6 / s);
}

static fm_tree *import(fm_store *s, model *m, const fm_tree *parent, const char *name)
{
    fm_txn *t;
    fm_txn_stats st;
    fm_provider p = {.ctx = m, .read = provide};
    fm_tree *tree = tree_of(m);
    double begun = seconds();
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tree(t, tree, &p, parent, NULL, NULL));
    tk_ok(fm_txn_commit(t, &st));
    fm_txn_close(t);
    rate(name, m->bytes, seconds() - begun);
    printf("%-28s %8.2f %% of raw\n", "  stored",
           100.0 * (double)st.bytes_stored / (double)m->bytes);
    return tree;
}

static void export_all(fm_store *s, const fm_tree *tree, uint64_t bytes, const char *name)
{
    fm_provider p = fm_store_provider(s);
    fm_buf buf;
    fm_buf_init(&buf, 0);
    double begun = seconds();
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        fm_buf_clear(&buf);
        tk_ok(fm_entry_read(&buf, &p, fm_tree_at(tree, i)));
    }
    rate(name, bytes, seconds() - begun);
    fm_buf_release(&buf);
}

static void limits(const model *m)
{
    uint8_t *copy = fm_malloc((size_t)m->bytes);
    fm_digest d;
    memcpy(copy, m->body, (size_t)m->bytes);
    double begun = seconds();
    memcpy(copy, m->body, (size_t)m->bytes);
    rate("memcpy", m->bytes, seconds() - begun);
    begun = seconds();
    tk_ok(fm_sha256(&d, copy, (size_t)m->bytes));
    rate("sha256", m->bytes, seconds() - begun);
    fm_free(copy);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_store PARENT.safetensors [CHILD.safetensors]\n");
        return 2;
    }
    char *root = tk_scratch();
    fm_store *s;
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(&s, root));
    model m[2];
    fm_tree *tree[2] = {NULL, NULL};
    int count = argc > 2 ? 2 : 1;
    for (int i = 0; i < count; i++)
        load(&m[i], argv[i + 1]);
    limits(&m[0]);
    tree[0] = import(s, &m[0], NULL, "import parent");
    export_all(s, tree[0], m[0].bytes, "export parent");
    if (count > 1) {
        tree[1] = import(s, &m[1], tree[0], "import child");
        export_all(s, tree[1], m[1].bytes, "export child");
    }
    fm_tree_free(import(s, &m[0], NULL, "import parent again"));
    for (int i = 0; i < count; i++) {
        fm_tree_free(tree[i]);
        fm_json_free(m[i].head);
        fm_unmap_file(&m[i].map);
    }
    fm_store_close(s);
    fm_free(root);
    return 0;
}
