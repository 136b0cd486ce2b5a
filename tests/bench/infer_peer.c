/* infer_peer.c - one turn of a peer (build_llama.sh makes them all). llama.cpp: its own benchmark
 * programs where the wall's clock is meant, tests/peer/llama_speed.cpp for adapters and for one
 * thread. The others: tests/peer/peer_speed.py. */
#include "tests/bench/infer_bench.h"

const char *const bi_peer_name[BI_PEERS] = {"llama.cpp", "ik_llama.cpp", "OpenVINO"};

/* Runs FM_LLAMA/program with args (NULL-ended); NULL where it is missing or fails. */
static fm_json *peer(const char *program, const char *const *args)
{
    const char *argv[24] = {NULL};
    char *path = bk_llama(program);
    size_t n = 1;
    if (!path)
        return NULL;
    argv[0] = path;
    for (; args[n - 1] && n + 1 < FM_ARRAY_LEN(argv); n++)
        argv[n] = args[n - 1];
    fm_json *v = bk_run_json(argv);
    fm_free(path);
    return v;
}

static void number(char out[16], uint32_t v)
{
    (void)snprintf(out, 16, "%u", v);
}

/* The best sample of the only test of a llama-bench run. */
static double bench(const char *const *args)
{
    fm_json *v = peer("bin/llama-bench", args);
    const fm_json *samples = fm_json_get(fm_json_at(v, 0), "samples_ts");
    double best = 0;
    for (size_t i = 0; i < fm_json_count(samples); i++) {
        double s = fm_json_real(fm_json_at(samples, i), 0);
        best = s > best ? s : best;
    }
    fm_json_free(v);
    return best;
}

/* The rate that a llama-speed run prints. */
static double speed(const char *gguf, unsigned threads, const char *work, const char *const *args)
{
    const char *all[12] = {gguf, NULL, work};
    char t[16];
    number(t, threads);
    all[1] = t;
    for (size_t i = 0; args[i] && i + 4 < FM_ARRAY_LEN(all); i++)
        all[3 + i] = args[i];
    fm_json *v = peer("bin/llama-speed", all);
    double rate = fm_json_real(fm_json_get(v, "tok_s"), 0);
    fm_json_free(v);
    return rate;
}

/* The rate that peer_speed.py prints; work and its sizes end with NULL. */
static double other(bi_peer who, const char *gguf, const char *threads, const char *const *work)
{
    static const char *const python[BI_PEERS] = {NULL, "ik/bin/python3", "openvino/bin/python3"};
    const char *folder = getenv("FM_LLAMA");
    const char *argv[16] = {BI_PEER_SPEED, who == BI_IK ? "ik" : "openvino", folder, gguf, threads};
    for (size_t i = 0; work[i] && i + 6 < FM_ARRAY_LEN(argv); i++)
        argv[5 + i] = work[i];
    fm_json *v = strcmp(threads, "1") == 0 ? NULL : peer(python[who], argv);
    double rate = fm_json_real(fm_json_get(v, "tok_s"), 0);
    fm_json_free(v);
    return rate;
}

double bi_peer_prefill(bi_peer who, const char *gguf, unsigned threads)
{
    char t[16], n[16];
    number(t, threads);
    number(n, BI_PREFILL);
    if (who != BI_LLAMA)
        return other(who, gguf, t, (const char *const[]){"prefill", n, NULL});
    if (threads == 1)
        return speed(gguf, threads, "prefill", (const char *const[]){n, NULL});
    return bench((const char *const[]){"-m", gguf, "-t", t, "-p", n, "-n", "0", "-r", "1", "-o",
                                       "json", NULL});
}

static double batched(const char *gguf, unsigned threads, uint32_t streams)
{
    char t[16], pp[16], tg[16], pl[16], ctx[16];
    number(t, threads);
    number(pp, BI_CONTEXT);
    number(tg, BI_DECODE);
    number(pl, streams);
    number(ctx, streams * 256);
    fm_json *v = peer("bin/llama-batched-bench",
                      (const char *const[]){"-m", gguf, "-t", t, "-npp", pp, "-ntg", tg, "-npl", pl,
                                            "-c", ctx, "--output-format", "jsonl", NULL});
    double rate = fm_json_real(fm_json_get(v, "speed_tg"), 0);
    fm_json_free(v);
    return rate;
}

double bi_peer_decode(bi_peer who, const char *gguf, unsigned threads, uint32_t streams)
{
    char t[16], n[16], d[16], s[16];
    number(t, threads);
    number(n, BI_DECODE);
    number(d, BI_CONTEXT);
    number(s, streams);
    if (who != BI_LLAMA)
        return other(who, gguf, t, (const char *const[]){"decode", s, d, n, NULL});
    if (threads == 1)
        return speed(gguf, threads, "decode", (const char *const[]){s, d, n, NULL});
    if (streams > 1)
        return batched(gguf, threads, streams);
    return bench((const char *const[]){"-m", gguf, "-t", t, "-p", "0", "-n", n, "-d", d, "-r", "1",
                                       "-o", "json", NULL});
}

double bi_peer_lora(const char *gguf, unsigned threads, const char *ranks)
{
    static char *folder;
    char d[16], n[16];
    folder = folder ? folder : tk_scratch();
    number(d, BI_CONTEXT);
    number(n, BI_DECODE);
    return speed(gguf, threads, "lora", (const char *const[]){ranks, d, n, "f32", folder, NULL});
}
