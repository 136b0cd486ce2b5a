/* ctest: store */
/* Any bytes as a GGUF: the reader, and all that gives its metadata a meaning. */
#include "store/import/gguf_canon.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_tensors(const fm_gguf *g, const gguf_dims *d)
{
    fm_buf name;
    volatile uint8_t sink = 0;

    fm_buf_init(&name, 0);
    for (size_t i = 0; i < fm_gguf_count(g); i++) {
        const fm_gguf_tensor *t = fm_gguf_at(g, i);
        const fm_span s = fm_gguf_bytes(g, t);
        gguf_use use;
        if (s.len > 0)
            sink = (uint8_t)(sink ^ s.data[0] ^ s.data[s.len - 1]);
        fm_buf_clear(&name);
        if (!d->arch || gguf_use_of(&use, d, g, t) != FM_OK || use.no_weight)
            continue;
        fm_assert(gguf_hf_name(&name, d, t, 0) == FM_OK);
        const src_order order = use.order;
        if (order.heads > 0)
            fm_assert(t->shape.dim[0] % (order.heads * (order.queries ? order.queries + 2 : 2)) ==
                      0);
    }
    fm_buf_release(&name);
}

/* An adapter, of a parent whose heads and layers are the corpus's. */
static void read_adapter(const fm_gguf *g, const uint8_t *data, size_t size)
{
    static const char model[] =
        "{\"config\": {\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 16, "
        "\"num_attention_heads\": 2, \"num_key_value_heads\": 1}}";
    src_file f = {.name = "f", .map = {data, size}}, *files[] = {&f};
    fm_source src = {.root = "", .file = files, .file_count = 1};
    fm_tree *parent = NULL;

    fm_buf_init(&f.literal, 0);
    fm_assert(fm_tree_new(&parent) == FM_OK && fm_tree_new(&src.tree) == FM_OK &&
              fm_arena_new(&src.arena) == FM_OK && fm_map_new(&src.by_id) == FM_OK &&
              fm_tree_put_file(parent, "model.json", fm_span_str(model)) == FM_OK);
    src.parent = parent;
    if (gguf_open_lora(&src, &f, g) < 0)
        fm_assert(fm_error_text()[0] != '\0');
    for (size_t i = 0; i < src.tensor_count; i++)
        fm_assert(strncmp(src.tensor[i].path, "adapters/0-lora/tensors/", 24) == 0);
    fm_free(f.part);
    fm_buf_release(&f.literal);
    fm_free(src.tensor);
    fm_map_free(src.by_id);
    fm_arena_free(src.arena);
    fm_tree_free(src.tree);
    fm_tree_free(parent);
}

static void read_meaning(fm_gguf *g)
{
    const gguf_parts parts = {&g, 1};
    fm_source src = {.root = ""};
    fm_json *config = NULL;
    gguf_dims d;

    if (gguf_read_dims(&d, &parts) < 0)
        d.arch = NULL;
    else if (gguf_config(&config, &d, g) == FM_OK)
        fm_assert(fm_json_get(config, "hidden_size") != NULL);
    read_tensors(g, &d);
    fm_json_free(config);
    fm_assert(fm_arena_new(&src.arena) == FM_OK && fm_map_new(&src.by_id) == FM_OK &&
              fm_tree_new(&src.tree) == FM_OK);
    if (gguf_tokenizer(&src, g) < 0)
        fm_assert(fm_error_text()[0] != '\0');
    fm_tree_free(src.tree);
    fm_map_free(src.by_id);
    fm_arena_free(src.arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fm_gguf *g = NULL;

    if (fm_gguf_parse(&g, fm_span_of(data, size), "fuzz") == FM_OK) {
        read_meaning(g);
        if (gguf_is_adapter(g))
            read_adapter(g, data, size);
    } else {
        fm_assert(fm_error_text()[0] != '\0');
    }
    fm_gguf_close(g);
    return 0;
}
