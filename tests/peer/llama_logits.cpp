// llama_logits.cpp - llama.cpp's logits of given token ids, for the error table of bench_infer.
//
// usage: llama-logits MODEL.gguf THREADS CONTEXT IDS [--exact] [LORA.gguf...]
// IDS: a file of int32, little-endian. --exact: keys and values in F32, no flash attention. Each
// LoRA is added with scale 1.
// Writes [ids, vocab] float32 to standard output, of an encoder (IDS at most CONTEXT) its pooled
// embedding, or the states where it says no pooling. Ids are taken CONTEXT at a time; each piece
// begins with an empty cache, and nothing (no BOS) is put before it. Built by
// tests/bench/build_llama.sh.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llama.h"

static int fail(const char *what)
{
    fprintf(stderr, "llama-logits: %s\n", what);
    return 1;
}

static bool read_ids(const char *path, std::vector<int32_t> &ids)
{
    FILE *f = fopen(path, "rb");
    int32_t id;
    if (!f)
        return false;
    while (fread(&id, sizeof(id), 1, f) == 1)
        ids.push_back(id);
    fclose(f);
    return !ids.empty();
}

static llama_batch piece(const int32_t *ids, int n)
{
    llama_batch b = llama_batch_init(n, 0, 1);
    b.n_tokens = n;
    for (int i = 0; i < n; i++) {
        b.token[i] = ids[i];
        b.pos[i] = i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = 1;
    }
    return b;
}

static bool add_loras(llama_context *ctx, llama_model *model, char **path, int n)
{
    std::vector<llama_adapter_lora *> loras;
    std::vector<float> scales((size_t)n, 1.0f);
    for (int i = 0; i < n; i++) {
        llama_adapter_lora *lora = llama_adapter_lora_init(model, path[i]);
        if (!lora)
            return false;
        loras.push_back(lora); // freed with the model
    }
    return llama_set_adapters_lora(ctx, loras.data(), loras.size(), scales.data()) == 0;
}

static bool is_encoder(const llama_model *model)
{
    char name[64] = "";
    llama_model_meta_val_str(model, "general.architecture", name, sizeof(name));
    return strstr(name, "bert") != nullptr;
}

static bool put(const float *v, size_t count)
{
    return v && fwrite(v, sizeof(float), count, stdout) == count;
}

static int embed(llama_context *ctx, const llama_model *model, const std::vector<int32_t> &ids)
{
    const size_t width = (size_t)llama_model_n_embd(model);
    llama_batch b = piece(ids.data(), (int)ids.size());
    if (llama_encode(ctx, b) != 0)
        return fail("encode failed");
    if (llama_pooling_type(ctx) != LLAMA_POOLING_TYPE_NONE)
        return put(llama_get_embeddings_seq(ctx, 0), width) ? 0 : fail("no embedding");
    for (int i = 0; i < (int)ids.size(); i++)
        if (!put(llama_get_embeddings_ith(ctx, i), width))
            return fail("no state");
    return 0;
}

int main(int argc, char **argv)
{
    std::vector<int32_t> ids;
    if (argc < 5 || !read_ids(argv[4], ids))
        return fail("usage: llama-logits MODEL.gguf THREADS CONTEXT IDS [--exact] [LORA.gguf...]");
    const int threads = atoi(argv[2]);
    const size_t context = strtoul(argv[3], nullptr, 10);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model)
        return fail("the model does not load");
    llama_context_params p = llama_context_default_params();
    p.n_ctx = p.n_batch = p.n_ubatch = (uint32_t)context;
    p.n_threads = p.n_threads_batch = threads;
    const bool exact = argc > 5 && strcmp(argv[5], "--exact") == 0;
    if (exact) {
        p.type_k = p.type_v = GGML_TYPE_F32;
        p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    }
    p.embeddings = is_encoder(model);
    llama_context *ctx = llama_init_from_model(model, p);
    const size_t vocab = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    if (!ctx)
        return fail("no context");
    const int first = exact ? 6 : 5;
    if (argc > first && !add_loras(ctx, model, argv + first, argc - first))
        return fail("a LoRA does not load");
    if (p.embeddings)
        return embed(ctx, model, ids) || fflush(stdout) != 0;
    for (size_t at = 0; at < ids.size(); at += context) {
        const int n = (int)(ids.size() - at < context ? ids.size() - at : context);
        llama_batch b = piece(ids.data() + at, n);
        llama_memory_clear(llama_get_memory(ctx), true);
        if (llama_decode(ctx, b) != 0)
            return fail("decode failed");
        for (int i = 0; i < n; i++)
            if (fwrite(llama_get_logits_ith(ctx, i), sizeof(float), vocab, stdout) != vocab)
                return fail("the output cannot be written");
        llama_batch_free(b);
    }
    llama_free(ctx);
    llama_model_free(model);
    return fflush(stdout) == 0 ? 0 : fail("the output cannot be written");
}
