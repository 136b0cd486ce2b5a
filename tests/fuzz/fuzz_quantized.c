/* ctest: store */
/* Any quantization_config and any tensors beside each other: refused, or weights with the same
 * floats wide and as codes, whole and in ranges. u16 bytes of config, config | per tensor u8 name,
 * u8 dtype, u8 rank, u16 dims, u8 bytes of content, content (repeated) */
#include <string.h>

#include "store/base/mem.h"
#include "store/scaled.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TENSORS_MAX 8u
#define BYTES_MAX (1u << 16)
#define MADE_MAX (1u << 19)

typedef struct content {
    fm_digest id;
    fm_span bytes;
} content;

typedef struct memory {
    content tensor[TENSORS_MAX];
    size_t count;
} memory;

static fm_status read_one(void *ctx, const fm_entry *e, void *dst)
{
    const memory *m = ctx;
    for (size_t t = 0; t < m->count; t++)
        if (fm_digest_eq(&m->tensor[t].id, &e->id)) {
            const fm_span s = m->tensor[t].bytes;
            for (uint64_t i = 0; i < e->bytes; i++)
                ((uint8_t *)dst)[i] = s.len ? s.data[i % s.len] : 0;
            return FM_OK;
        }
    return fm_fail(FM_ENOTFOUND, "no '%s'", e->name);
}

static void put_tensor(fm_tree *tree, memory *m, fm_cursor *c)
{
    static const char *const names[] = {"a.qweight",
                                        "a.qzeros",
                                        "a.scales",
                                        "a.g_idx",
                                        "a.weight",
                                        "a.weight.absmax",
                                        "a.weight.quant_map",
                                        "a.weight.nested_absmax",
                                        "a.weight.nested_quant_map",
                                        "a.weight.quant_state.bitsandbytes__nf4",
                                        "a.weight.quant_state.bitsandbytes__fp4",
                                        "a.SCB",
                                        "a.weight_packed",
                                        "a.weight_shape",
                                        "a.weight_scale",
                                        "a.weight_zero_point",
                                        "a.weight_g_idx",
                                        "a_blocks",
                                        "a_scales",
                                        "a.weight_scale_inv",
                                        "b.weight",
                                        "a._weight_qdata",
                                        "a._weight_scale",
                                        "a._weight_zero_point",
                                        "h.0.a.weight",
                                        "h.0.a.weight_scale",
                                        "h.0.a.bias"};
    const char *name = names[fm_cursor_u8(c) % FM_ARRAY_LEN(names)];
    const fm_dtype dtype = (fm_dtype)(1 + fm_cursor_u8(c) % (FM_U8));
    fm_shape shape = {.rank = fm_cursor_u8(c) % 5};
    uint64_t bytes = 0;
    char path[96];
    for (uint32_t i = 0; i < shape.rank; i++)
        shape.dim[i] = fm_cursor_u16(c);
    const size_t len = fm_cursor_u8(c);
    const fm_span s = fm_cursor_bytes(c, len);
    if (c->failed || fm_tensor_bytes(&bytes, dtype, &shape, name) != FM_OK || bytes > BYTES_MAX)
        return;
    content *t = &m->tensor[m->count];
    memset(t->id.b, (int)m->count + 1, sizeof t->id.b);
    t->bytes = s;
    fm_buf at;
    fm_buf_init(&at, sizeof path);
    fm_status rc = fm_tensor_path(&at, "tensors", name);
    if (rc == FM_OK &&
        fm_tree_put_tensor(tree, fm_buf_cstr(&at), name, dtype, &shape, &t->id) == FM_OK)
        m->count++;
    fm_buf_release(&at);
}

/* The floats of a made weight, read whole; a range of it is compared. NULL: too large. */
static float *floats_of(const fm_plain *v, const fm_entry *e, uint64_t *n)
{
    const fm_provider *p = fm_plain_provider(v);
    fm_assert(fm_shape_elems(n, &e->shape) == FM_OK);
    if (e->bytes == 0 || *n > MADE_MAX)
        return NULL;
    uint8_t *whole = fm_malloc((size_t)e->bytes), *part = fm_malloc((size_t)e->bytes);
    float *f = fm_malloc((size_t)*n * sizeof *f);
    const uint64_t at = e->bytes / 3, some = e->bytes / 2;
    fm_assert(whole && part && f);
    if (p->read(p->ctx, e, whole) != FM_OK) {
        fm_free(f);
        f = NULL;
    } else {
        fm_assert(fm_entry_read_range(p, e, at, some, part, 0) == FM_OK);
        fm_assert(memcmp(part, whole + at, (size_t)some) == 0);
        fm_assert(fm_to_f32(f, e->dtype, whole, *n) == FM_OK);
    }
    fm_free(whole);
    fm_free(part);
    return f;
}

static void compare(const fm_plain *wide, const fm_plain *other, bool same)
{
    for (size_t i = 0; i < fm_tree_count(fm_plain_tree(other)); i++) {
        const fm_entry *o = fm_tree_at(fm_plain_tree(other), i);
        const fm_entry *w = fm_tree_find(fm_plain_tree(wide), o->path);
        uint64_t n = 0;
        fm_assert(w);
        if (!fm_plain_made(other, o))
            continue;
        fm_assert(fm_shape_eq(&w->shape, &o->shape));
        float *x = floats_of(wide, w, &n), *y = floats_of(other, o, &n);
        fm_assert(!x == !y);
        for (uint64_t k = 0; same && x && k < n; k++)
            fm_assert(memcmp(&x[k], &y[k], sizeof x[k]) == 0 || (x[k] != x[k] && y[k] != y[k]));
        fm_free(x);
        fm_free(y);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memory m = {.count = 0};
    fm_plain *v[3] = {NULL, NULL, NULL};
    fm_tree *tree = NULL;
    fm_cursor c;
    fm_buf model;
    fm_cursor_init(&c, fm_span_of(data, size));
    const fm_span config = fm_cursor_bytes(&c, fm_cursor_u16(&c));
    fm_buf_init(&model, BYTES_MAX);
    fm_buf_printf(&model, "{\"config\":{\"quantization_config\":");
    fm_buf_append(&model, config.data, config.len);
    fm_buf_printf(&model, "}}");
    fm_assert(fm_tree_new(&tree) == FM_OK);
    if (c.failed || fm_buf_ok(&model) != FM_OK ||
        fm_tree_put_file(tree, "model.json", fm_buf_span(&model)) != FM_OK) {
        fm_buf_release(&model);
        fm_tree_free(tree);
        return 0;
    }
    while (fm_cursor_left(&c) > 0 && !c.failed && m.count < TENSORS_MAX)
        put_tensor(tree, &m, &c);
    const fm_provider p = {.ctx = &m, .read = read_one};
    if (fm_plain_open(&v[0], tree, &p, "fuzz") == FM_OK) {
        fm_assert(fm_plain_open_as(&v[1], tree, &p, "fuzz", FM_PLAIN_CODES) == FM_OK);
        compare(v[0], v[1], true);
        if (fm_plain_open_as(&v[2], tree, &p, "fuzz", FM_PLAIN_INTEGERS) == FM_OK)
            compare(v[0], v[2], false);
    }
    for (size_t i = 0; i < 3; i++)
        fm_plain_close(v[i]);
    fm_buf_release(&model);
    fm_tree_free(tree);
    return 0;
}
