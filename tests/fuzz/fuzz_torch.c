/* ctest: store */
/* Any bytes as a PyTorch checkpoint, or (where they do not begin as one) as the pickle in one:
 * refused with a text, or read within bounds. */
#include "store/formats/torch.h"

#include "store/base/mem.h"
#include "tests/format/torch_kit.h"

#define MAX_READ_BYTES ((uint64_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const fm_torch *t, fm_span file)
{
    for (size_t i = 0; i < fm_torch_count(t); i++) {
        const fm_torch_tensor *p = fm_torch_at(t, i);
        const uint64_t bytes = FM_MIN(p->bytes, MAX_READ_BYTES);
        uint8_t *dst = fm_malloc((size_t)bytes);

        fm_assert(dst && p->name[0] && fm_torch_find(t, p->name) == p);
        fm_torch_gather(p, file.data, p->bytes - bytes, dst, bytes);
        fm_free(dst);
    }
}

static void try_file(fm_span file)
{
    fm_torch *t = NULL;

    if (fm_torch_parse(&t, file, "fuzz") == FM_OK)
        read_all(t, file);
    else
        fm_assert(!t && fm_error_text()[0] != '\0');
    fm_torch_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fm_buf zip;

    if ((size >= 4 && fm_torch_is_zip(data)) || fm_torch_is_legacy(fm_span_of(data, size))) {
        try_file(fm_span_of(data, size));
        return 0;
    }
    fm_buf_init(&zip, 0);
    zk_model(&zip, fm_span_of(data, size));
    try_file(fm_buf_span(&zip));
    fm_buf_release(&zip);
    return 0;
}
