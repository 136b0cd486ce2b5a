/* store_big.c - a model as large as asked for, made here, through the store and back: its peaks of
 * memory must not grow with it. One tensor is a third of the file, the rest are of every size down
 * to a few bytes; most of it is noise with a bf16 model's exponents, some of it a hole. */
#include <stdio.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/formats/safetensors.h"
#include "store/source.h"
#include "tests/bench/store_kit.h"

#define NOISE_BYTES ((size_t)16 << 20)
#define TENSORS_MAX 400u

typedef struct big {
    fm_st_item item[TENSORS_MAX];
    char name[TENSORS_MAX][48];
    uint64_t bytes[TENSORS_MAX];
    size_t count;
} big;

static void add(big *b, uint64_t rows, uint64_t cols)
{
    fm_st_item *it = &b->item[b->count];
    snprintf(b->name[b->count], sizeof b->name[0], "model.layers.%zu.weight", b->count);
    *it = (fm_st_item){b->name[b->count], FM_BF16, {2, {rows, cols}}, NULL};
    b->count++;
}

static void plan(big *b, uint64_t total)
{
    uint64_t left = total;
    add(b, total / 3 / 8192, 4096);
    left -= total / 3;
    for (uint64_t k = 0; left > 0 && b->count < TENSORS_MAX; k++) {
        uint64_t rows = b->count + 1 == TENSORS_MAX ? left / 8192 + 1
                                                    : 1 + fm_rng_u64(1, 0, k) % (total / 600000);
        rows = FM_MIN(rows, left / 8192 + 1);
        add(b, rows, 4096);
        left -= FM_MIN(left, rows * 8192);
    }
}

static uint8_t *noise(void)
{
    uint8_t *p = fm_malloc(NOISE_BYTES);
    for (size_t i = 0; i < NOISE_BYTES / 2; i++)
        fm_put_u16(p + 2 * i, fm_f32_to_bf16((float)(0.02 * fm_rng_normal(7, 0, i))));
    return p;
}

/* The noise repeats with a shift of its own each time, so that no two leaves are the same. */
static void make(const char *path, uint64_t total)
{
    static big b;
    fm_buf head;
    fm_writer *w;
    uint8_t *p = noise();
    uint64_t left = 0;
    plan(&b, total);
    fm_buf_init(&head, 0);
    tk_ok(fm_st_header(&head, b.item, b.count));
    for (size_t i = 0; i < b.count; i++)
        left += b.item[i].shape.dim[0] * b.item[i].shape.dim[1] * 2;
    tk_ok(fm_writer_open(&w, path, NULL));
    tk_ok(fm_writer_write(w, head.data, head.len));
    for (uint64_t k = 0; left > 0; k++) {
        size_t n = (size_t)FM_MIN(left, (uint64_t)NOISE_BYTES);
        size_t cut = (size_t)(fm_rng_u64(2, 0, k) % (NOISE_BYTES / 2)) * 2;
        size_t first = FM_MIN(n, NOISE_BYTES - cut);
        fm_put_u64(p + 4096, k);
        tk_ok(fm_writer_write(w, p + cut, first));
        tk_ok(fm_writer_write(w, p, n - first));
        left -= n;
    }
    tk_ok(fm_writer_commit(w, NULL));
    fm_writer_close(w);
    fm_buf_release(&head);
    fm_free(p);
}

typedef struct meter {
    sk_watch *watch;
    sk_cpu cpu;
    double wall;
} meter;

static meter begin(void)
{
    return (meter){sk_watch_begin(), sk_cpu_now(), sk_wall_s()};
}

static void end(meter m, const char *what, uint64_t bytes)
{
    uint64_t anon, hwm;
    const double wall = sk_wall_s() - m.wall, mb = 1e-6 * (double)bytes;
    sk_cpu cpu = {0, 0};
    sk_cpu_add(&cpu, &m.cpu);
    sk_watch_end(m.watch, &anon, &hwm);
    printf("%-8s %5.0f MB/s a core (%.0f without the kernel), %5.0f on the clock; peak %4.0f MiB "
           "anonymous, VmHWM %4.0f MiB\n",
           what, mb / cpu.all_s, mb / cpu.user_s, mb / wall, (double)anon / 1048576,
           (double)hwm / 1048576);
    fflush(stdout);
}

static fm_source *import(fm_store *s, const char *path)
{
    fm_source *src;
    fm_txn *t;
    fm_txn_stats st;
    tk_ok(fm_source_open(&src, path));
    fm_provider p = fm_source_provider(src);
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tree(t, fm_source_tree(src), &p, NULL, NULL, NULL));
    tk_ok(fm_txn_commit(t, &st));
    fm_txn_close(t);
    return src;
}

int sk_big(double gigabytes, const char *dir)
{
    char *root = dir ? fm_path_join(dir, "bench-big") : tk_scratch();
    tk_ok(fm_make_dirs(root));
    char *in = fm_path_join(root, "in.safetensors"), *out = fm_path_join(root, "out.safetensors");
    fm_store *s;
    const uint64_t bytes = (uint64_t)(gigabytes * 1e9);
    make(in, bytes);
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(&s, root));
    printf("a model of %.1f GB\n", gigabytes);
    sk_print_limits();
    meter m = begin();
    fm_source *src = import(s, in);
    end(m, "import", bytes);
    m = begin();
    fm_source_close(import(s, in));
    end(m, "again", bytes);
    fm_provider p = fm_store_provider(s);
    m = begin();
    tk_ok(fm_export(fm_source_tree(src), &p, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE));
    end(m, "export", bytes);
    sk_same_file(in, out);
    fm_source_close(src);
    fm_store_close(s);
    tk_ok(fm_remove_tree(root));
    fm_free(in);
    fm_free(out);
    fm_free(root);
    return 0;
}
