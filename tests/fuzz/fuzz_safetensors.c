/* ctest: store */
/* Any bytes as a safetensors file: refused, or read within bounds and written back to the same. */
#include "store/formats/safetensors.h"

#include <string.h>

#include "store/base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void rewrite(const fm_st *st)
{
    const size_t n = fm_st_count(st);
    fm_st_item *items = fm_calloc(n + 1, sizeof *items);
    fm_st *again = NULL;
    fm_buf b;

    fm_assert(items);
    fm_buf_init(&b, 0);
    for (size_t i = 0; i < n; i++) {
        const fm_st_tensor *t = fm_st_at(st, i);
        items[i] = (fm_st_item){t->name, t->dtype, t->shape, t};
    }
    fm_assert(fm_st_header(&b, items, n) == FM_OK);
    for (size_t i = 0; i < n; i++) {
        const fm_span s = fm_st_bytes(st, items[i].user);
        fm_buf_append(&b, s.data, s.len);
    }
    fm_assert(fm_st_parse(&again, fm_buf_span(&b), "again") == FM_OK);
    fm_assert(fm_st_count(again) == n);
    for (size_t i = 0; i < n; i++) {
        const fm_st_tensor *t = fm_st_at(st, i), *u = fm_st_find(again, t->name);
        fm_assert(u && fm_shape_eq(&t->shape, &u->shape));
        fm_assert(fm_span_eq(fm_st_bytes(st, t), fm_st_bytes(again, u)));
    }
    fm_st_close(again);
    fm_buf_release(&b);
    fm_free(items);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fm_st *st = NULL;

    if (fm_st_parse(&st, fm_span_of(data, size), "fuzz") == FM_OK)
        rewrite(st);
    else
        fm_assert(fm_error_text()[0] != '\0');
    fm_st_close(st);
    return 0;
}
