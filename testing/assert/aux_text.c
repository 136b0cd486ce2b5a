/* aux_text.c - for auxiliary models: the texts to read, a class by its label, a cosine. */
#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/assert/assert.h"

fm_status fmv_aux_text(fmv_aux *h, fm_span text)
{
    fm_buf *all = fm_realloc(h->text, (h->texts + 1) * sizeof *all);
    if (!all)
        return FM_ENOMEM;
    h->text = all;
    fm_buf_init(&all[h->texts], 0);
    fm_buf_append(&all[h->texts], text.data, text.len);
    return fm_buf_ok(&all[h->texts++]);
}

fm_status fmv_cosine(double *out, const float *a, const float *b, size_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    *out = aa > 0 && bb > 0 ? ab / (sqrt(aa) * sqrt(bb)) : 0;
    return isfinite(aa) && isfinite(bb) && isfinite(*out)
               ? FM_OK
               : fm_fail(FM_EUNSUPPORTED, "the embedder's states are not finite");
}

fm_status fmv_class_of(uint32_t *out, const fm_model *m, const char *label)
{
    fm_buf list;
    fm_buf_init(&list, 4096);
    for (uint32_t i = 0; i < fm_model_classes(m); i++) {
        *out = i;
        if (strcmp(fm_model_label(m, i), label) == 0) {
            fm_buf_release(&list);
            return FM_OK;
        }
        fm_buf_printf(&list, "%s%.40s", i ? ", " : "", fm_model_label(m, i));
    }
    fm_status rc = fm_model_classes(m)
                       ? fm_fail(FM_EINVAL, "the version has no class '%.60s' (it has %s)", label,
                                 fm_buf_cstr(&list))
                       : fm_fail(FM_EUNSUPPORTED, "the version has no classification head");
    fm_buf_release(&list);
    return rc;
}
