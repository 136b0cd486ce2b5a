/* What git prints of a host's refs and of a push: any bytes; what is taken has a name that
 * travels. */
#include <string.h>

#include "remote/githost/answers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take(void *ctx, const char *name, bool moved, const char *why)
{
    size_t *sum = ctx;
    fm_assert(strlen(name) < 256 && strlen(why) < 256 && (!moved || !why[0]));
    for (; *why; why++)
        fm_assert((unsigned char)*why >= ' ' && *why != 0x7f);
    *sum += strlen(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fmr_host_refs refs;
    size_t sum = 0;

    fmr_push_report(fm_span_of(data, size), take, &sum);
    if (fmr_host_refs_parse(&refs, fm_span_of(data, size), "fuzz") != FM_OK)
        return 0;
    for (size_t i = 0; i < refs.count; i++) {
        fm_assert(fm_exchange_ref_travels(refs.ref[i].name));
        fm_assert(fmr_host_refs_find(&refs, refs.ref[i].name));
    }
    fmr_host_refs_release(&refs);
    return 0;
}
