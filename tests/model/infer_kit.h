/* infer_kit.h - what the model tests share: opening folders as models, reading references, and
 * trees made in memory. */
#ifndef FM_TESTS_MODEL_INFER_KIT_H
#define FM_TESTS_MODEL_INFER_KIT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infer/infer.h"
#include "store/source.h"
#include "tests/testkit.h"

#define IK_MAX_TENSORS 2048

/* Engines are of several ranks (tests/stages): bytes are a rank's, and telling the others
 * allocates. */
static inline bool ik_on_stages(void)
{
    return getenv("FM_TEST_STAGES") != NULL;
}

/* ==== tensors held in memory, and a provider over them and up to two sources ==== */

typedef struct ik_mem {
    struct {
        fm_digest id;
        void *bytes;
        uint64_t len;
    } t[IK_MAX_TENSORS];
    size_t count;
    fm_provider behind[2];
    size_t behind_count;
} ik_mem;

static inline fm_status ik_read(void *ctx, const fm_entry *e, void *dst)
{
    const ik_mem *m = ctx;
    for (size_t i = 0; i < m->count; i++)
        if (fm_digest_eq(&m->t[i].id, &e->id)) {
            memcpy(dst, m->t[i].bytes, m->t[i].len);
            return FM_OK;
        }
    fm_status rc = fm_fail(FM_ENOTFOUND, "no such tensor: %s", e->path);
    for (size_t i = 0; i < m->behind_count && rc == FM_ENOTFOUND; i++)
        rc = m->behind[i].read(m->behind[i].ctx, e, dst);
    return rc;
}

static inline fm_provider ik_provider(ik_mem *m)
{
    return (fm_provider){.ctx = m, .read = ik_read};
}

static inline void ik_mem_free(ik_mem *m)
{
    for (size_t i = 0; i < m->count; i++)
        fm_free(m->t[i].bytes);
    m->count = 0;
}

/* Puts an F32 tensor (copied) at prefix + name. */
static inline void ik_put(ik_mem *m, fm_tree *tree, const char *prefix, const char *name,
                          const float *data, uint32_t rank, uint64_t rows, uint64_t cols)
{
    fm_shape shape = {.rank = rank, .dim = {rows, cols}};
    uint64_t len = rows * (rank == 2 ? cols : 1) * sizeof(float);
    fm_digest id;
    fm_buf path;
    tk_ok(fm_tensor_id(&id, FM_F32, &shape, fm_span_of(data, (size_t)len), NULL));
    fm_buf_init(&path, 0);
    tk_ok(fm_tensor_path(&path, prefix, name));
    tk_ok(fm_tree_put_tensor(tree, fm_buf_cstr(&path), name, FM_F32, &shape, &id));
    fm_buf_release(&path);
    assert_true(m->count < IK_MAX_TENSORS);
    m->t[m->count].id = id;
    m->t[m->count].len = len;
    m->t[m->count].bytes = fm_memdup(data, (size_t)len);
    assert_non_null(m->t[m->count].bytes);
    m->count++;
}

/* ==== references: one safetensors file ==== */

typedef struct ik_ref {
    fm_source *src;
} ik_ref;

static inline bool ik_ref_open(ik_ref *r, const char *relative)
{
    char *path = tk_shared(relative);
    r->src = NULL;
    if (!path)
        return false;
    tk_ok(fm_source_open(&r->src, path));
    fm_free(path);
    return true;
}

/* The tensor's bytes; fm_free. *elems may be NULL. */
static inline void *ik_ref_get(const ik_ref *r, const char *name, size_t *elems)
{
    fm_buf path;
    fm_buf_init(&path, 0);
    tk_ok(fm_tensor_path(&path, "tensors", name));
    const fm_entry *e = fm_tree_find(fm_source_tree(r->src), fm_buf_cstr(&path));
    if (!e)
        fail_msg("reference has no %s", name);
    fm_buf_release(&path);
    void *out = fm_malloc((size_t)e->bytes);
    fm_provider p = fm_source_provider(r->src);
    tk_ok(p.read(p.ctx, e, out));
    if (elems)
        *elems = (size_t)e->bytes / 4;
    return out;
}

/* ==== models ==== */

static inline fm_source *ik_source(const char *relative)
{
    char *path = tk_shared(relative);
    fm_source *src = NULL;
    if (!path)
        return NULL;
    tk_ok(fm_source_open(&src, path));
    fm_free(path);
    return src;
}

static inline fm_engine *ik_engine(unsigned threads, uint32_t max_rows)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.threads = threads;
    o.max_rows = max_rows;
    tk_ok(fm_engine_new(&e, &o));
    return e;
}

static inline fm_model *ik_model(fm_engine *e, const fm_source *src, const char *what)
{
    fm_model *m = NULL;
    fm_provider p = fm_source_provider(src);
    tk_ok(fm_model_load(&m, e, fm_source_tree(src), &p, what));
    return m;
}

/* Logits [n, vocab] of ids, run in pieces of `cut` tokens. */
static inline void ik_logits(fm_model *m, const int32_t *ids, uint32_t n, uint32_t cut, float *out)
{
    fm_engine *e = fm_model_engine(m);
    size_t vocab = fm_model_arch(m)->vocab;
    fm_row row[512];
    fm_seq *s = NULL;
    tk_ok(fm_seq_open(&s, m));
    for (uint32_t at = 0; at < n; at += cut) {
        uint32_t k = FM_MIN(cut, n - at);
        for (uint32_t i = 0; i < k; i++)
            row[i] = (fm_row){.seq = s, .token = ids[at + i], .want_logits = true};
        tk_ok(fm_engine_step(e, row, k));
        for (uint32_t i = 0; i < k; i++)
            memcpy(out + (at + i) * vocab, fm_engine_logits(e, i), vocab * sizeof(float));
    }
    fm_seq_close(s);
}

/* The tiny Llama with the adapter on it; tree and both sources are the caller's to free. */
typedef struct ik_adapted {
    fm_source *base, *adapter;
    fm_tree *tree;
    ik_mem both;
} ik_adapted;

/* A folder of tests/model/golden/peft_kinds, or of the reference data; fm_free. */
static inline char *ik_adapter_path(const char *kind, const char *file)
{
    char *own = fm_asprintf("%s/tests/model/golden/peft_kinds/%s/%s", FM_SOURCE_DIR, kind, file);
    if (fm_path_exists(own))
        return own;
    fm_free(own);
    char *shared = fm_asprintf("arch/llama/peft/%s/%s", kind, file), *path = tk_shared(shared);
    fm_free(shared);
    return path;
}

static inline void ik_open_adapted(ik_adapted *a, const char *kind)
{
    char *path = ik_adapter_path(kind, "");
    memset(a, 0, sizeof(*a));
    a->base = ik_source("arch/llama");
    assert_non_null(path);
    tk_ok(fm_source_open(&a->adapter, path));
    tk_ok(fm_adapter_apply(&a->tree, fm_source_tree(a->base), fm_source_tree(a->adapter),
                           "arch/llama", NULL));
    a->both.behind[0] = fm_source_provider(a->base);
    a->both.behind[1] = fm_source_provider(a->adapter);
    a->both.behind_count = 2;
    fm_free(path);
}

static inline void ik_close_adapted(ik_adapted *a)
{
    fm_tree_free(a->tree);
    ik_mem_free(&a->both);
    fm_source_close(a->adapter);
    fm_source_close(a->base);
}

#endif
