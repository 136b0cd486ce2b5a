/* What rank 0 says to a rank that follows it, any bytes behind a model that is there: refused,
 * or done; nothing crashes, nothing is left open. The wire is this file: what is told comes from
 * the input, what else a peer would send is what this rank sends it. FUZZ_RANKS_SEEDS=FOLDER
 * writes what a real rank 0 says in a few steps. */
#include "infer/comm/wire.h"
#include "infer/trace.h"
#include "store/base/os/io.h"
#include "tests/model/variant_kit.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MESSAGES 16u

typedef struct fake {
    fm_wire wire;
    fm_span said[MESSAGES]; /* by rank 0 */
    size_t count, at;
    bool body; /* the length of message `at` has gone */
} fake;

typedef struct world {
    ik_mem mem;
    fm_tree *tree;
    fm_provider p;
    fm_buf heard[MESSAGES];
    size_t count;
} world;

static world w;

/* ==== the wire ==== */

static fm_status tell(fake *f, const fm_move *m)
{
    if (f->at == f->count)
        return fm_fail(FM_EIO, "rank 0 is gone");
    fm_span s = f->said[f->at];
    uint64_t len = s.len;
    if (f->body)
        memcpy(m->ptr, s.data, s.len);
    else
        memcpy(m->ptr, &len, sizeof(len));
    f->body = !f->body && len > 0;
    f->at += !f->body;
    return FM_OK;
}

static void record(fake *f, const fm_move *m)
{
    uint64_t len = 0;
    if (f->body)
        fm_buf_append(&w.heard[w.count - 1], m->ptr, m->bytes);
    else
        memcpy(&len, m->ptr, sizeof(len));
    if (!f->body && w.count < MESSAGES)
        fm_buf_init(&w.heard[w.count++], 0);
    f->body = len > 0;
}

static fm_status exchange(fm_wire *wire, const fm_move *list, uint32_t n)
{
    fake *f = (fake *)(void *)wire;
    if (n == 1 && !list[0].send && wire->rank == 1)
        return tell(f, &list[0]);
    if (n == 1 && list[0].send && wire->rank == 0)
        record(f, &list[0]);
    for (uint32_t i = 0; i < n; i++) {
        const fm_move *echo = NULL;
        for (uint32_t j = 0; j < n && !list[i].send; j++)
            if (list[j].send && list[j].bytes == list[i].bytes)
                echo = &list[j];
        if (echo)
            memcpy(list[i].ptr, echo->ptr, echo->bytes);
        else if (!list[i].send)
            memset(list[i].ptr, 0, list[i].bytes);
    }
    return FM_OK;
}

static fm_status alive(fm_wire *wire)
{
    (void)wire;
    return FM_OK;
}

static bool called(fm_wire *wire)
{
    (void)wire;
    return false;
}

static fm_status break_off(fm_wire *wire, const void *word, void *all, size_t bytes)
{
    memset(all, 0, 2 * bytes);
    memcpy((char *)all + wire->rank * bytes, word, bytes);
    return FM_OK;
}

static void close_wire(fm_wire *wire)
{
    (void)wire;
}

static fm_engine *open_rank(fake *f, uint32_t rank, fm_comm **comm)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    f->wire = (fm_wire){.name = "fuzz",
                        .rank = rank,
                        .size = 2,
                        .exchange = exchange,
                        .alive = alive,
                        .called = called,
                        .break_off = break_off,
                        .close = close_wire};
    fm_assert(fm_comm_new(comm, &f->wire, "here") == FM_OK);
    o.comm = *comm;
    o.threads = 1;
    o.max_rows = 64;
    o.kv_bytes_max = 2u << 20;
    fm_assert(fm_engine_new(&e, &o) == FM_OK);
    return e;
}

/* ==== what a real one says ==== */

static void hooked(fm_engine *e, fm_model *m)
{
    float *rows = fm_calloc(4 * (size_t)fm_model_arch(m)->hidden, sizeof(*rows));
    const fm_hook hook[] = {{FM_SITE_RESIDUAL, 1, 0, 2, rows, NULL},
                            {FM_SITE_MLP, 0, 1, 4, NULL, rows},
                            {FM_SITE_ATTENTION, 0, 9, 1, rows, rows}};
    fm_row row[3];
    fm_seq *s;
    fm_assert(rows && fm_seq_open(&s, m) == FM_OK);
    fm_assert(fm_seq_hooks(s, hook, FM_ARRAY_LEN(hook)) == FM_OK);
    for (uint32_t i = 0; i < 3; i++)
        row[i] = (fm_row){s, (int32_t)i, i == 2};
    fm_assert(fm_engine_step(e, row, 3) == FM_OK);
    fm_assert(fm_engine_step(e, row, 1) == FM_OK);
    fm_seq_close(s);
    fm_free(rows);
}

static void steps(fm_engine *e, fm_model *m)
{
    fm_row row[48];
    fm_seq *s[2];
    fm_assert(fm_seq_open(&s[0], m) == FM_OK && fm_seq_open(&s[1], m) == FM_OK);
    for (uint32_t i = 0; i < 48; i++)
        row[i] = (fm_row){s[i % 2], (int32_t)(i % 7), i > 45};
    fm_assert(fm_engine_step(e, row, 48) == FM_OK);
    fm_assert(fm_seq_rewind(s[0], 20) == FM_OK);
    fm_assert(fm_engine_step(e, row + 46, 2) == FM_OK);
    fm_seq_close(s[1]);
    fm_assert(fm_engine_step(e, row, 1) == FM_OK);
    fm_seq_close(s[0]);
    hooked(e, m);
}

static void hear(void)
{
    fake f = {.count = 0};
    fm_comm *comm = NULL;
    fm_model *m = NULL;
    fm_engine *e = open_rank(&f, 0, &comm);
    fm_assert(fm_model_load(&m, e, w.tree, &w.p, "model") == FM_OK);
    steps(e, m);
    fm_model_close(m);
    fm_engine_free(e);
    fm_comm_free(comm);
    const char *folder = getenv("FUZZ_RANKS_SEEDS");
    for (size_t i = 1; folder && i < w.count; i++) {
        char *path = fm_asprintf("%s/said_%zu", folder, i);
        fm_assert(path && fm_write_file(path, w.heard[i].data, w.heard[i].len) == FM_OK);
        fm_free(path);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fake f = {.count = 2};
    fm_comm *comm = NULL;
    if (!w.tree) {
        vk_base(&w.mem, &w.tree);
        w.p = ik_provider(&w.mem);
        hear();
    }
    fm_engine *e = open_rank(&f, 1, &comm);
    f.said[0] = fm_buf_span(&w.heard[0]);
    f.said[1] = fm_span_of(data, size);
    if (fm_engine_follow(e, &w.p) != FM_OK)
        fm_assert(fm_error_text()[0]);
    fm_engine_free(e); /* asserts that nothing is open */
    fm_comm_free(comm);
    return 0;
}
