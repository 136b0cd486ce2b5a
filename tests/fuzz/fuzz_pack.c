/* ctest: store */
/* Any bytes as a pack: the walk ends, every record that it accepts can be asked for any leaf, and a
 * recipe whose forms fit those of the records before it can be evaluated. */
#include <string.h>

#include "store/codec/codec.h"
#include "store/pack/pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define EVALUATED_MAX (1u << 16)

typedef struct seen {
    fms_coder *coder;
    uint8_t *leaf;
    fms_form form[FMS_PARENTS_MAX]; /* of the last records, the latest first */
} seen;

/* Bytes of some pattern; a range outside the input is our fault. */
static fm_status read_pattern(void *ctx, uint32_t input, uint64_t offset, void *dst, size_t bytes)
{
    const fms_inputs *in = ctx;
    fm_assert(input < in->count && offset <= in->input[input].bytes &&
              bytes <= in->input[input].bytes - offset);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)dst)[i] = (uint8_t)((offset + i) * 0x9du + input);
    return FM_OK;
}

/* The inputs are the records before it, or all of the child's own form. */
static void try_recipe(const seen *s, const fms_record *r, bool own)
{
    fms_inputs in = {.child = {r->dtype, r->shape, r->bytes}, .count = r->parent_count};
    for (uint32_t k = 0; k < in.count; k++)
        in.input[k] = own ? in.child : s->form[in.count - 1 - k];
    in.ctx = &in;
    in.read = read_pattern;
    if (fms_recipe_check(&r->recipe, &in) != FM_OK || r->bytes == 0 || r->bytes > EVALUATED_MAX)
        return;
    for (uint32_t k = 0; k < in.count; k++)
        fm_assert(fms_recipe_touches(&r->recipe, &in, k) <= FM_MAX_TENSOR_BYTES);
    fm_ignore(fms_recipe_leaf(&r->recipe, &in, 0, s->leaf), "only crashes count");
}

static fm_status on_record(void *ctx, uint64_t offset, const fms_record *r)
{
    seen *s = ctx;
    (void)offset;
    uint64_t at = 0;
    for (uint32_t i = 0; i < r->leaf_count && i < 4; i++) {
        uint32_t stored = fms_leaf_stored(r, i);
        uint8_t codec = fms_leaf_codec(r, i);
        fms_leaf_at where = fms_leaf_at_of(r->dtype, &r->shape, i);
        if (!fms_codec_needs_parent(codec))
            fm_ignore(fms_leaf_decode(s->coder, s->leaf, fms_leaf_bytes(r->bytes, i), codec, &where,
                                      fm_span_of(r->payload + at, stored), NULL),
                      "only crashes count");
        at += stored;
    }
    if (r->recipe.op != FMS_OP_NONE) {
        try_recipe(s, r, false);
        try_recipe(s, r, true);
    }
    memmove(s->form + 1, s->form, sizeof s->form - sizeof s->form[0]);
    s->form[0] = (fms_form){r->dtype, r->shape, r->bytes};
    return FM_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static seen s;
    if (!s.coder) {
        if (fms_coder_new(&s.coder) != FM_OK)
            return 0;
        s.leaf = fms_coder_scratch(s.coder, 0);
    }
    memset(s.form, 0, sizeof s.form);
    fms_pack_visitor v = {&s, on_record, NULL};
    fm_ignore(fms_pack_walk(fm_span_of(data, size), "fuzz", &v), "only crashes count");
    return 0;
}
