// llama_lora.cpp - llama.cpp decoding for several LoRA children of one model, one after another:
// its contexts have one set of adapters at a time, so children never share a batch.
//
// usage: llama-lora MODEL.gguf THREADS RANKS CONTEXT TOKENS TYPE FOLDER
//   RANKS   one adapter for each of a comma-separated list ("8,8,8"), on all linears, of noise
//   TYPE    f32 (what upstream's converter writes) or f16
//   FOLDER  where the adapters' files are written; they are loaded before the clock starts
// For each child: CONTEXT tokens are read (not timed), then TOKENS are decoded. Prints one JSON
// line with the rate over all children. Built by tests/bench/build_llama.sh.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ggml.h"
#include "gguf.h"
#include "llama.h"

struct linear {
    std::string name;
    int64_t in, out;
};

[[noreturn]] static void die(const std::string &what)
{
    fprintf(stderr, "llama-lora: %s\n", what.c_str());
    exit(1);
}

static std::vector<linear> linears_of(const char *path)
{
    ggml_context *meta = nullptr;
    gguf_context *g = gguf_init_from_file(path, {true, &meta});
    std::vector<linear> out;
    if (!g)
        die(std::string("cannot read ") + path);
    for (int64_t i = 0; i < gguf_get_n_tensors(g); i++) {
        const char *name = gguf_get_tensor_name(g, i);
        const ggml_tensor *t = ggml_get_tensor(meta, name);
        if (strncmp(name, "blk.", 4) == 0 && ggml_n_dims(t) == 2)
            out.push_back({name, t->ne[0], t->ne[1]});
    }
    gguf_free(g);
    ggml_free(meta);
    return out;
}

static void add_noise(gguf_context *g, ggml_context *c, const std::string &name, ggml_type type,
                      int64_t ne0, int64_t ne1, unsigned seed)
{
    ggml_tensor *t = ggml_new_tensor_2d(c, type, ne0, ne1);
    ggml_set_name(t, name.c_str());
    for (int64_t i = 0; i < ne0 * ne1; i++) {
        float v = 1e-3f * (float)((i * 31 + seed * 13) % 97) - 0.05f;
        if (type == GGML_TYPE_F32)
            ((float *)t->data)[i] = v;
        else
            ((ggml_fp16_t *)t->data)[i] = ggml_fp32_to_fp16(v);
    }
    gguf_add_tensor(g, t);
}

static std::string write_adapter(const std::vector<linear> &linears, const std::string &folder,
                                 ggml_type type, int64_t rank, unsigned child)
{
    gguf_context *g = gguf_init_empty();
    ggml_context *c = ggml_init({(size_t)256 << 20, nullptr, false});
    std::string path = folder + "/lora" + std::to_string(child) + ".gguf";
    gguf_set_val_str(g, "general.type", "adapter");
    gguf_set_val_str(g, "general.architecture", "llama");
    gguf_set_val_str(g, "adapter.type", "lora");
    gguf_set_val_f32(g, "adapter.lora.alpha", 2.0f * (float)rank);
    for (const linear &l : linears) {
        add_noise(g, c, l.name + ".lora_a", type, l.in, rank, child);
        add_noise(g, c, l.name + ".lora_b", type, rank, l.out, child + 1);
    }
    if (!gguf_write_to_file(g, path.c_str(), false))
        die("cannot write " + path);
    gguf_free(g);
    ggml_free(c);
    return path;
}

static void decode(llama_context *ctx, int32_t *ids, int n)
{
    if (llama_decode(ctx, llama_batch_get_one(ids, n)) != 0)
        die("decode failed");
    llama_synchronize(ctx);
}

// Seconds of `tokens` decode steps of one child.
static double run_child(llama_context *ctx, llama_adapter_lora *adapter, int context, int tokens)
{
    std::vector<int32_t> ids((size_t)context);
    float scale = 1.0f;
    for (int i = 0; i < context; i++)
        ids[(size_t)i] = 100 + i;
    llama_memory_clear(llama_get_memory(ctx), true);
    if (llama_set_adapters_lora(ctx, &adapter, 1, &scale) != 0)
        die("the adapter cannot be set");
    decode(ctx, ids.data(), context);
    auto from = std::chrono::steady_clock::now();
    for (int32_t i = 0; i < tokens; i++)
        decode(ctx, &i, 1);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

int main(int argc, char **argv)
{
    if (argc != 8)
        die("usage: llama-lora MODEL.gguf THREADS RANKS CONTEXT TOKENS TYPE FOLDER");
    const int threads = atoi(argv[2]), context = atoi(argv[4]), tokens = atoi(argv[5]);
    const ggml_type type = strcmp(argv[6], "f16") == 0 ? GGML_TYPE_F16 : GGML_TYPE_F32;
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model)
        die("the model does not load");
    const std::vector<linear> linears = linears_of(argv[1]);
    std::vector<llama_adapter_lora *> adapters;
    unsigned child = 0;
    for (char *r = strtok(argv[3], ","); r; r = strtok(nullptr, ",")) {
        std::string path = write_adapter(linears, argv[7], type, atoi(r), child++);
        adapters.push_back(llama_adapter_lora_init(model, path.c_str()));
        remove(path.c_str());
        if (!adapters.back())
            die("the adapter does not load: " + path);
    }
    llama_context_params p = llama_context_default_params();
    p.n_ctx = (uint32_t)(context + tokens);
    p.n_threads = p.n_threads_batch = threads;
    llama_context *ctx = llama_init_from_model(model, p);
    if (!ctx)
        die("no context");
    double seconds = 0;
    run_child(ctx, adapters[0], context, 4); // warms up
    for (llama_adapter_lora *a : adapters)
        seconds += run_child(ctx, a, context, tokens);
    printf("{\"children\": %zu, \"linears\": %zu, \"tokens\": %zu, \"seconds\": %.6f, "
           "\"tok_s\": %.3f}\n",
           adapters.size(), linears.size(), adapters.size() * (size_t)tokens, seconds,
           (double)(adapters.size() * (size_t)tokens) / seconds);
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
