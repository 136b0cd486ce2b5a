/* bench_codec.c - codecs on real files: size, and rate per thread beside memcpy and SHA-256.
 *
 *   bench_codec CASE FILE [PARENT]...     CASE is a word for the line
 *
 * Files are safetensors. Leaves of all tensors are coded and decoded alone, hashing apart, on one
 * thread, timed by that thread's clock; limits are taken in the same run, between the turns.
 * Every decoded leaf is compared. FM_SLOW=1 asks for the slow codecs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/base/os/io.h"
#include "store/base/mem.h"
#include "store/codec/codec.h"
#include "store/formats/safetensors.h"

#define TURNS 3

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(fm_status rc)
{
    if (rc != FM_OK) {
        fprintf(stderr, "bench_codec: %s\n", fm_error_text());
        exit(1);
    }
}

typedef struct file {
    fm_buf bytes;
    fm_st *st;
} file;

static void load(file *f, const char *path)
{
    fm_buf_init(&f->bytes, (size_t)1 << 40);
    FILE *in = fopen(path, "rb");
    if (!in) {
        fprintf(stderr, "bench_codec: %s: cannot be opened\n", path);
        exit(1);
    }
    fseek(in, 0, SEEK_END);
    size_t n = (size_t)ftell(in);
    rewind(in);
    uint8_t *to = fm_buf_extend(&f->bytes, n);
    if (!to || fread(to, 1, n, in) != n)
        exit(1);
    fclose(in);
    must(fm_st_parse(&f->st, fm_buf_span(&f->bytes), path));
}

typedef struct sums {
    uint64_t raw, coded, codec[FMS_CODEC_COUNT], codec_raw[FMS_CODEC_COUNT];
    double encode_s, decode_s, copy_s, hash_s;
} sums;

static void run_leaf(sums *s, fms_coder *c, fm_buf *out, const fms_leaf_at *at, fm_span leaf,
                     const uint8_t *parent)
{
    uint8_t codec;
    double t0 = cpu_s();
    fm_buf_clear(out);
    must(fms_leaf_encode(c, out, &codec, at, leaf, parent));
    double t1 = cpu_s();
    uint8_t *back = fms_coder_scratch(c, 1);
    must(fms_leaf_decode(c, back, leaf.len, codec, at, fm_buf_span(out), parent));
    double t2 = cpu_s();
    if (memcmp(back, leaf.data, leaf.len) != 0) {
        fprintf(stderr, "bench_codec: a leaf came back different\n");
        exit(1);
    }
    double t3 = cpu_s();
    memcpy(back, leaf.data, leaf.len);
    double t4 = cpu_s();
    fm_digest d;
    must(fm_sha256(&d, leaf.data, leaf.len));
    s->hash_s += cpu_s() - t4;
    s->copy_s += t4 - t3;
    s->encode_s += t1 - t0;
    s->decode_s += t2 - t1;
    s->raw += leaf.len;
    s->coded += out->len;
    s->codec[codec] += out->len;
    s->codec_raw[codec] += leaf.len;
}

static sums run(const file *f, const file *p, bool slow, fms_coder *c, fm_buf *out)
{
    sums s = {0};
    for (size_t k = 0; k < fm_st_count(f->st); k++) {
        const fm_st_tensor *t = fm_st_at(f->st, k);
        fm_span bytes = fm_st_bytes(f->st, t);
        const fm_st_tensor *pt = p ? fm_st_find(p->st, t->name) : NULL;
        bool fits = pt && pt->dtype == t->dtype && fm_shape_eq(&pt->shape, &t->shape);
        for (size_t at = 0; at < bytes.len; at += FM_LEAF_BYTES) {
            fms_leaf_at where = fms_leaf_at_of(t->dtype, &t->shape, at / FM_LEAF_BYTES);
            where.slow = slow;
            fm_span leaf = fm_span_of(bytes.data + at, FM_MIN(bytes.len - at, FM_LEAF_BYTES));
            run_leaf(&s, c, out, &where, leaf, fits ? fm_st_bytes(p->st, pt).data + at : NULL);
        }
    }
    return s;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_codec CASE FILE [PARENT]\n");
        return 2;
    }
    file f, p;
    load(&f, argv[2]);
    if (argc > 3)
        load(&p, argv[3]);
    fms_coder *c;
    must(fms_coder_new(&c));
    fm_buf out;
    fm_buf_init(&out, 0);
    sums best = {0};
    const char *slow = getenv("FM_SLOW"), *turns = getenv("FM_TURNS");
    for (int turn = 0; turn < (turns ? atoi(turns) : TURNS); turn++) {
        sums s = run(&f, argc > 3 ? &p : NULL, slow && *slow == '1', c, &out);
        if (turn == 0)
            best = s;
        best.encode_s = FM_MIN(best.encode_s, s.encode_s);
        best.decode_s = FM_MIN(best.decode_s, s.decode_s);
        best.copy_s = FM_MIN(best.copy_s, s.copy_s);
        best.hash_s = FM_MIN(best.hash_s, s.hash_s);
    }
    double gb = 1e-9 * (double)best.raw;
    printf("%-24s %6.2f %% of %.1f MB  encode %.2f GB/s  decode %.2f  (memcpy %.1f, SHA-256 %.2f)",
           argv[1], 100.0 * (double)best.coded / (double)best.raw, gb * 1e3, gb / best.encode_s,
           gb / best.decode_s, gb / best.copy_s, gb / best.hash_s);
    for (uint8_t k = 0; k < FMS_CODEC_COUNT; k++)
        if (best.codec_raw[k])
            printf(" %s %.1f%%", fms_codec_name(k),
                   100.0 * (double)best.codec_raw[k] / (double)best.raw);
    printf("\n");
    fm_buf_release(&out);
    fms_coder_free(c);
    return 0;
}
