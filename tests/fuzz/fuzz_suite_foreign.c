/* Suites of other tools: the first byte chooses the format, the rest is the file, and after a line
 * "---DATA" the examples. No input crashes or hangs a reader, and what is converted is a suite. */
#include "testing/testing.h"

#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const from[] = {"promptfoo", "lm-eval", "checklist", "csv", NULL};
    static const char mark[] = "\n---DATA\n";
    const size_t n = sizeof mark - 1;
    fm_suite *s = NULL;
    fm_buf out;
    if (size == 0)
        return 0;
    fm_span text = fm_span_of(data + 1, size - 1), rows = {NULL, 0};
    for (size_t i = 1; i + n <= size; i++)
        if (memcmp(data + i, mark, n) == 0) {
            text.len = i - 1;
            rows = fm_span_of(data + i + n, size - i - n);
            break;
        }
    fm_foreign_opts o = {
        .from = from[data[0] % 5], .data = rows, .data_what = "rows", .chat = data[0] & 64};
    fm_buf_init(&out, 0);
    if (fm_suite_convert(&out, text, "fuzz", &o) < 0) {
        fm_assert(out.len == 0 && fm_error_text()[0]);
    } else {
        fm_assert(fm_suite_parse(&s, fm_buf_span(&out), "fuzz") == FM_OK);
        fm_assert(fm_suite_count(s) > 0);
    }
    fm_suite_free(s);
    fm_buf_release(&out);
    return 0;
}
