"""Rates of peers that print none as JSON: ik_llama.cpp and OpenVINO GenAI, in their best settings.

usage: peer_speed.py ik|openvino FOLDER MODEL.gguf THREADS prefill TOKENS
       peer_speed.py ik|openvino FOLDER MODEL.gguf THREADS decode STREAMS CONTEXT TOKENS

FOLDER is that of tests/bench/build_llama.sh. ik_llama.cpp packs weights again when it loads them
(-rtr 1) and has flash attention (-fa 1). OpenVINO GenAI reads the GGUF itself; where it does not
know the file's types it fails. Prints one JSON line: {"tok_s": RATE}, decode's summed over streams;
the best of three turns after one that is not counted.
"""
import json
import re
import subprocess
import sys

TURNS = 3


def ik(folder, model, threads, work, sizes):
    tool = f"{folder}/ik/bin/llama-bench"
    best = ["-m", model, "-t", threads, "-fa", "1", "-rtr", "1"]
    if work == "decode" and sizes[0] > 1:
        streams, context, tokens = sizes
        best[4:] = ["-fa", "on", "-rtr"]
        run = [f"{folder}/ik/bin/llama-batched-bench", *best, "-c", str(streams * 256), "-npp",
               str(context), "-ntg", str(tokens), "-npl", str(streams)]
        text = subprocess.run(run, check=True, capture_output=True, text=True)
        row = re.search(r"^\|" + r" *([\d.]+) \|" * 10, text.stdout + text.stderr, re.M)
        return float(row.group(8))
    if work == "prefill":
        test = ["-p", str(sizes[0]), "-n", "0"]
    else:
        test = ["-p", "0", "-n", "0", "-gp", f"{sizes[1]},{sizes[2]}"]
    run = [tool, *best, *test, "-r", str(TURNS), "-o", "json"]
    text = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    return max(json.loads(text)[0]["samples_ts"])


def openvino(model, threads, work, sizes):
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    streams, context, tokens = (1, sizes[0], 1) if work == "prefill" else sizes
    pipe = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=int(threads))
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = tokens
    config.ignore_eos, config.do_sample = True, False
    rates = []
    for turn in range(TURNS + 1):
        ids = np.random.default_rng(turn).integers(100, 40000, (streams, context))
        asked = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        seen = pipe.generate(asked, config).perf_metrics
        ms = seen.get_ttft().mean if work == "prefill" else seen.get_tpot().mean
        rates.append(1000 * (context if work == "prefill" else streams) / ms)
    return max(rates[1:])


def main():
    peer, folder, model, threads, work = sys.argv[1:6]
    sizes = [int(s) for s in sys.argv[6:]]
    if peer == "ik":
        rate = ik(folder, model, threads, work, sizes)
    else:
        rate = openvino(model, threads, work, sizes)
    print(json.dumps({"tok_s": rate}))


if __name__ == "__main__":
    main()
