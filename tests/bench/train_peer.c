/* train_peer.c - tests/peer/train_torch.py run beside us, a process for each case and turn. */
#include "tests/bench/train_bench.h"

static double real(const fm_json *v, const char *key)
{
    return fm_json_real(fm_json_get(v, key), 0);
}

static const char *text(const fm_json *v, const char *key)
{
    const char *s = (const char *)fm_json_str(fm_json_get(v, key)).data;
    return s ? s : "?";
}

bool tb_peer_turn(const tb_bench *b, const char *name, const char *dtype, uint32_t steps,
                  tb_peer *out)
{
    char *script = tk_source("tests/peer/train_torch.py");
    char threads[16], count[16];
    (void)snprintf(threads, sizeof(threads), "%u", b->threads);
    (void)snprintf(count, sizeof(count), "%u", steps);
    const char *argv[] = {b->python, script, "--case",    name,    "--dtype", dtype,
                          "--steps", count,  "--threads", threads, b->model,  NULL};
    fm_json *v = b->python ? bk_run_json(argv) : NULL;
    double step = real(v, "seconds");

    fm_free(script);
    if (!v)
        return false;
    if (out->step <= 0 || step < out->step)
        out->step = step;
    out->loss = real(v, "first_loss");
    out->peak_mb = real(v, "peak_mb");
    out->imports_mb = real(v, "imports_mb");
    out->before_first_step = real(v, "before_first_step_s");
    (void)snprintf(out->what, sizeof(out->what), "torch %s, transformers %s, PEFT %s, %s, bf16 %s",
                   text(v, "torch"), text(v, "transformers"), text(v, "peft"), text(v, "isa"),
                   fm_json_bool(fm_json_get(v, "mkldnn_bf16"), false) ? "by mkldnn" : "emulated");
    fm_json_free(v);
    return true;
}
