/* ctest: store */
/* Any bytes as a git blob of a model tree: refused, or an entry whose encoding is the same bytes;
 * and any text as a tensor's name: its path is one that a tree takes. */
#include <string.h>

#include "store/base/mem.h"
#include "store/tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_blob(const uint8_t *data, size_t size)
{
    fm_tree *t = NULL;
    fm_buf b;

    fm_assert(fm_tree_new(&t) == FM_OK);
    fm_buf_init(&b, 0);
    if (fm_tree_put_encoded(t, "tensors/p", fm_span_of(data, size)) == FM_OK) {
        fm_assert(fm_entry_encode(&b, fm_tree_at(t, 0)) == FM_OK);
        fm_assert(b.len == size && (size == 0 || memcmp(b.data, data, size) == 0));
    }
    fm_buf_release(&b);
    fm_tree_free(t);
}

static void read_name(const uint8_t *data, size_t size)
{
    char *name = fm_strndup((const char *)data, size);
    const fm_shape scalar = {0, {0}};
    const fm_digest id = {{0}};
    fm_tree *t = NULL;
    fm_buf path;

    fm_assert(name && fm_tree_new(&t) == FM_OK);
    fm_buf_init(&path, 0);
    if (fm_tensor_path(&path, "tensors", name) == FM_OK)
        fm_assert(fm_tree_put_tensor(t, fm_buf_cstr(&path), name, FM_U8, &scalar, &id) == FM_OK);
    fm_buf_release(&path);
    fm_tree_free(t);
    fm_free(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_blob(data, size);
    read_name(data, size);
    return 0;
}
