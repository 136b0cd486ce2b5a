/* ctest: store */
/* Any bytes as an importance matrix, of either form. */
#include <math.h>

#include "store/formats/imatrix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fm_imatrix *m = NULL;
    uint64_t n = 0;

    if (fm_imatrix_parse(&m, fm_span_of(data, size), "fuzz") != FM_OK) {
        fm_assert(fm_error_text()[0] != '\0' && !m);
        return 0;
    }
    fm_assert(fm_imatrix_count(m) > 0);
    const float *v = fm_imatrix_find(m, "w", &n);
    for (uint64_t i = 0; v && i < n; i++)
        fm_assert(isfinite(v[i]));
    fm_imatrix_free(m);
    return 0;
}
