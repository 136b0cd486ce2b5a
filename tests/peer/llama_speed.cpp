// llama_speed.cpp - llama.cpp's library where its own programs do not time it: LoRA children one after
// another (a context has one set of adapters at a time, so children never share a batch), and any
// work on one thread by the thread's own clock, which other programs on the machine hardly disturb.
//
// usage: llama-speed MODEL.gguf THREADS prefill TOKENS
//        llama-speed MODEL.gguf THREADS decode STREAMS CONTEXT TOKENS
//        llama-speed MODEL.gguf THREADS lora RANKS CONTEXT TOKENS TYPE FOLDER
//   RANKS   one adapter for each of a comma-separated list ("8,8,8"), on all linears, of noise
//   TYPE    f32 (what upstream's converter writes) or f16
//   FOLDER  where the adapters' files are written; they are loaded before the clock starts
// CONTEXT tokens are read first (not timed), then TOKENS are decoded by each stream or child. With
// 1 thread the clock is the thread's, else the wall's. Prints one JSON line. Built by
// tests/bench/build_llama.sh.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
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
    fprintf(stderr, "llama-speed: %s\n", what.c_str());
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

static double now_s(int threads)
{
    timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void decode(llama_context *ctx, const llama_batch &b)
{
    if (llama_decode(ctx, b) != 0)
        die("decode failed");
    llama_synchronize(ctx);
}

static llama_context *open_context(llama_model *model, int threads, int tokens, int streams)
{
    llama_context_params p = llama_context_default_params();
    p.n_ctx = (uint32_t)(tokens * streams);
    p.n_seq_max = (uint32_t)streams;
    p.n_threads = p.n_threads_batch = threads;
    llama_context *ctx = llama_init_from_model(model, p);
    if (!ctx)
        die("no context");
    return ctx;
}

// A batch of `count` tokens from position `at` of each stream; the last of each wants logits.
static void fill(llama_batch &b, int streams, int at, int count)
{
    b.n_tokens = 0;
    for (int s = 0; s < streams; s++)
        for (int i = 0; i < count; i++) {
            const int n = b.n_tokens++;
            b.token[n] = 100 + (at + i + s * 37) % 10000;
            b.pos[n] = at + i;
            b.n_seq_id[n] = 1;
            b.seq_id[n][0] = s;
            b.logits[n] = i + 1 == count;
        }
}

static double prefill_s(llama_context *ctx, int threads, int tokens)
{
    llama_batch b = llama_batch_init(tokens, 0, 1);
    llama_memory_clear(llama_get_memory(ctx), true);
    fill(b, 1, 0, tokens);
    const double from = now_s(threads);
    decode(ctx, b);
    const double took = now_s(threads) - from;
    llama_batch_free(b);
    return took;
}

// Seconds of `tokens` steps of `streams` sequences, after `context` tokens of each.
static double decode_s(llama_context *ctx, int threads, int streams, int context, int tokens)
{
    llama_batch b = llama_batch_init(streams * context, 0, 1);
    llama_memory_clear(llama_get_memory(ctx), true);
    fill(b, streams, 0, context);
    decode(ctx, b);
    const double from = now_s(threads);
    for (int i = 0; i < tokens; i++) {
        fill(b, streams, context + i, 1);
        decode(ctx, b);
    }
    const double took = now_s(threads) - from;
    llama_batch_free(b);
    return took;
}

static void report(double tokens, double seconds)
{
    printf("{\"tokens\": %.0f, \"seconds\": %.6f, \"tok_s\": %.3f}\n", tokens, seconds,
           tokens / seconds);
}

// argv: RANKS CONTEXT TOKENS TYPE FOLDER
static void run_lora(llama_model *model, const char *path, int threads, char **argv)
{
    const int context = atoi(argv[1]), tokens = atoi(argv[2]);
    const ggml_type type = strcmp(argv[3], "f16") == 0 ? GGML_TYPE_F16 : GGML_TYPE_F32;
    const std::vector<linear> linears = linears_of(path);
    std::vector<llama_adapter_lora *> adapters;
    unsigned child = 0;
    for (char *r = strtok(argv[0], ","); r; r = strtok(nullptr, ",")) {
        std::string file = write_adapter(linears, argv[4], type, atoi(r), child++);
        adapters.push_back(llama_adapter_lora_init(model, file.c_str()));
        remove(file.c_str());
        if (!adapters.back())
            die("the adapter does not load: " + file);
    }
    llama_context *ctx = open_context(model, threads, context + tokens, 1);
    double seconds = 0;
    float scale = 1.0f;
    decode_s(ctx, threads, 1, context, 4); // warms up
    for (llama_adapter_lora *a : adapters) {
        if (llama_set_adapters_lora(ctx, &a, 1, &scale) != 0)
            die("the adapter cannot be set");
        seconds += decode_s(ctx, threads, 1, context, tokens);
    }
    report((double)adapters.size() * tokens, seconds);
    llama_free(ctx);
}

int main(int argc, char **argv)
{
    const std::string work = argc > 3 ? argv[3] : "";
    if (!(work == "prefill" && argc == 5) && !(work == "decode" && argc == 7) &&
        !(work == "lora" && argc == 9))
        die("usage: llama-speed MODEL.gguf THREADS prefill TOKENS | decode STREAMS CONTEXT TOKENS "
            "| lora RANKS CONTEXT TOKENS TYPE FOLDER");
    const int threads = atoi(argv[2]);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model)
        die("the model does not load");
    if (work == "lora") {
        run_lora(model, argv[1], threads, argv + 4);
    } else if (work == "prefill") {
        const int tokens = atoi(argv[4]);
        llama_context *ctx = open_context(model, threads, tokens, 1);
        prefill_s(ctx, threads, 16); // warms up
        report(tokens, prefill_s(ctx, threads, tokens));
        llama_free(ctx);
    } else {
        const int streams = atoi(argv[4]), context = atoi(argv[5]), tokens = atoi(argv[6]);
        llama_context *ctx = open_context(model, threads, context + tokens, streams);
        decode_s(ctx, threads, streams, 16, 2); // warms up
        report((double)streams * tokens, decode_s(ctx, threads, streams, context, tokens));
        llama_free(ctx);
    }
    llama_model_free(model);
    return 0;
}
