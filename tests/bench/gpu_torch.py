#!/usr/bin/env python3
"""gpu_torch.py - PyTorch as bench_gpu's peer on the same card, in the same run.

A request is a line, an answer is a line: seconds, the median of five turns of at least 0.1 s after a
warm one, or 0 where it cannot be done. bench_gpu writes to it and waits, so the two never work at
once. What is launched in small pieces is captured as a graph first, as bench_gpu replays its steps.

  product M N K                  y = x W^T in bf16
  layer M N1 K1 N2 K2 ..         such products one after another, in one graph
  decode SEQS NH NKV HD POS      attention of one row of each sequence, bf16, in a graph
  prefill NH NKV HD T            causal attention of one sequence, bf16
"""
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except Exception:
    print("none", flush=True)
    sys.exit(0)
if not torch.cuda.is_available():
    print("none", flush=True)
    sys.exit(0)
print("torch " + torch.__version__, flush=True)


def seconds(run):
    def turn(times):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            run()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / times

    turn(1)
    one, times = turn(1), 1
    while one * times < 0.1 and times < 65536:
        times *= 2
    return sorted(turn(times) for _ in range(5))[2]


def as_graph(run):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def products(m, shapes):
    x = {k: random(m, k) for _, k in shapes}
    w = [random(n, k) for n, k in shapes]

    def run():
        for weight in w:
            F.linear(x[weight.shape[1]], weight)

    return run


def answer(words):
    kind, n = words[0], [int(word) for word in words[1:]]
    if kind == "product":
        return seconds(products(n[0], [(n[1], n[2])]))
    if kind == "layer":
        return seconds(as_graph(products(n[0], list(zip(n[1::2], n[2::2])))))
    if kind == "decode":
        seqs, nh, nkv, hd, positions = n
        q, k, v = random(seqs, nh, 1, hd), random(seqs, nkv, positions, hd), random(seqs, nkv, positions, hd)
        return seconds(as_graph(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=nh != nkv)))
    if kind == "prefill":
        nh, nkv, hd, t = n
        q, k, v = random(1, nh, t, hd), random(1, nkv, t, hd), random(1, nkv, t, hd)
        return seconds(
            lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=nh != nkv))
    return 0.0


for line in sys.stdin:
    try:
        with torch.no_grad():
            took = answer(line.split())
    except Exception as e:
        print(f"gpu_torch.py: {line.strip()}: {e}", file=sys.stderr, flush=True)
        took = 0.0
    torch.cuda.empty_cache()
    print(f"{took:.9f}", flush=True)
