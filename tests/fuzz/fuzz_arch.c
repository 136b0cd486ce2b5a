/* model.json to fm_arch: whatever the bytes say, an architecture within its limits or an error. */
#include "infer/arch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    fm_json *v = NULL;
    if (fm_json_parse(&v, fm_span_of(data, len), "fuzz") != FM_OK)
        return 0;
    fm_arch a;
    fm_param p;
    if (fm_arch_from_json(&a, v, "fuzz") == FM_OK) {
        fm_assert(a.layers >= 1 && a.layers <= FM_MAX_LAYERS && a.vocab <= FM_MAX_VOCAB);
        fm_assert(a.heads % a.kv_heads == 0 && a.sw.rotary_dim <= a.head_dim && a.eos_count <= 8);
        uint32_t n = 0;
        while (fm_arch_param(&a, n, &p)) {
            fm_param same;
            fm_assert(n % 97 != 0 || fm_arch_param_named(&a, p.name, &same));
            n++;
        }
        fm_assert(n > a.layers);
    }
    fm_json_free(v);
    return 0;
}
