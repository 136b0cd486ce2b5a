/* ctest: store */
/* JSON: no input crashes; what parses is written, parsed again and is the same value and bytes. */
#include "store/base/text/json.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fm_json *a = NULL;
    fm_json *b = NULL;
    fm_buf one, two;

    if (fm_json_parse(&a, fm_span_of(data, size), "fuzz") < 0) {
        fm_assert(!a && fm_error_text()[0]);
        return 0;
    }
    fm_buf_init(&one, 0);
    fm_buf_init(&two, 0);
    fm_assert(fm_json_write(&one, a, FM_JSON_CANONICAL) == FM_OK);
    fm_assert(fm_json_parse(&b, fm_buf_span(&one), "again") == FM_OK);
    fm_assert(fm_json_equal(a, b));
    fm_assert(fm_json_write(&two, b, FM_JSON_CANONICAL) == FM_OK);
    fm_assert(fm_span_eq(fm_buf_span(&one), fm_buf_span(&two)));
    fm_buf_clear(&two);
    fm_assert(fm_json_write(&two, a, FM_JSON_PRETTY) == FM_OK);
    fm_json_free(b);
    fm_assert(fm_json_parse(&b, fm_buf_span(&two), "pretty") == FM_OK);
    fm_assert(fm_json_equal(a, b));
    fm_json_free(a);
    fm_json_free(b);
    fm_buf_release(&one);
    fm_buf_release(&two);
    return 0;
}
