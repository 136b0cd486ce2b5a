/* ctest: store */
/* YAML: no input crashes or expands without bound; what parses can be written as JSON and read. */
#include "store/base/text/yaml.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fm_json *a = NULL;
    fm_json *b = NULL;
    fm_buf text;

    if (fm_yaml_parse(&a, fm_span_of(data, size), "fuzz") < 0) {
        fm_assert(!a && fm_error_text()[0]);
        return 0;
    }
    fm_buf_init(&text, 0);
    fm_assert(fm_json_write(&text, a, FM_JSON_CANONICAL) == FM_OK);
    fm_assert(fm_json_parse(&b, fm_buf_span(&text), "again") == FM_OK);
    fm_assert(fm_json_equal(a, b));
    fm_json_free(a);
    fm_json_free(b);
    fm_buf_release(&text);
    return 0;
}
