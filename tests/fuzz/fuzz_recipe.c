/* Any bytes as a recipe, forms and parameters: refused, or evaluated within the inputs' bounds,
 * leaf and range alike. u16 operation | u16 mode | u8 inputs | per form u8 dtype, u8 rank, u16
 * dims | parameters */
#include <string.h>

#include "store/base/mem.h"
#include "store/recipe/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BYTES_MAX (1u << 16)

static fm_status read_pattern(void *ctx, uint32_t input, uint64_t offset, void *dst, size_t bytes)
{
    const fms_inputs *in = ctx;
    fm_assert(input < in->count && offset <= in->input[input].bytes &&
              bytes <= in->input[input].bytes - offset);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)dst)[i] = (uint8_t)((offset + i) * 0x9du + input);
    return FM_OK;
}

static bool take_form(fm_cursor *c, fms_form *out)
{
    memset(out, 0, sizeof *out);
    out->dtype = (fm_dtype)(1 + fm_cursor_u8(c) % (FM_DTYPE_COUNT - 1));
    out->shape.rank = fm_cursor_u8(c) % 4;
    for (uint32_t i = 0; i < out->shape.rank; i++)
        out->shape.dim[i] = fm_cursor_u16(c);
    return fm_tensor_bytes(&out->bytes, out->dtype, &out->shape, "fuzz") == FM_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t whole[BYTES_MAX], part[BYTES_MAX];
    fm_cursor c;
    fm_cursor_init(&c, fm_span_of(data, size));
    fms_recipe r = {.op = fm_cursor_u16(&c), .mode = fm_cursor_u16(&c)};
    fms_inputs in = {.count = fm_cursor_u8(&c) % (FMS_PARENTS_MAX + 1u), .read = read_pattern};
    in.ctx = &in;
    bool sound = take_form(&c, &in.child);
    for (uint32_t k = 0; k < in.count; k++)
        sound = take_form(&c, &in.input[k]) && sound;
    r.params = fm_cursor_bytes(&c, fm_cursor_left(&c));
    if (!sound || c.failed || fms_recipe_check(&r, &in) != FM_OK)
        return 0;
    char text[96];
    fms_recipe_text(&r, in.count, text, sizeof text);
    if (in.child.bytes == 0 || in.child.bytes > BYTES_MAX ||
        fms_recipe_leaf(&r, &in, 0, whole) != FM_OK)
        return 0;
    const fm_dtype_info *type = fm_dtype_get(in.child.dtype);
    const uint64_t unit = type->is_block ? 1 : type->block_bytes;
    const uint64_t at = in.child.bytes / unit / 3 * unit, n = in.child.bytes / unit / 2 * unit;
    fm_assert(fms_recipe_range(&r, &in, at, (size_t)n, part) == FM_OK);
    fm_assert(memcmp(part, whole + at, (size_t)n) == 0);
    return 0;
}
