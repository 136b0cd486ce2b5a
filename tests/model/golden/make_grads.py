#!/usr/bin/env python3
"""What Hugging Face's gradients are on the tiny models beside this file, as short sketches: enough to tell a wrong one, 50 times smaller.

usage: make_grads.py ARCH_DIR OUT.json [NAME..]        made with torch 2.15, transformers 5.23

Of an encoder: loss, the sum of its last states with the first pattern of signs. Of the others: loss (mean cross entropy of the next token of input_ids, the first 5 labels masked) and of every tensor of
model.safetensors [norm, d0, d1, d2, d3]: the gradient's Euclidean norm and its sums with four patterns of signs. Sign k of element i is
bit 7 k of h(i): x = i * 2654435761; x ^= x >> 15; x *= 2246822519; x ^= x >> 13, modulo 2^32; 1 means minus. Sums in double."""
import json, os, sys
import numpy as np, torch
import torch.nn.functional as F
from safetensors.torch import load_file
import transformers as tf

torch.set_num_threads(1)
root, out, only = sys.argv[1], {}, sys.argv[3:]
if only: out = json.load(open(sys.argv[2]))  # what it has of other names stays
M = np.uint64(0xFFFFFFFF)


def signs(n):
    x = (np.arange(n, dtype=np.uint64) * np.uint64(2654435761)) & M
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(2246822519)) & M
    x ^= x >> np.uint64(13)
    return [1.0 - 2.0 * ((x >> np.uint64(7 * k)) & np.uint64(1)).astype(np.float64) for k in range(4)]


def sketch(g):
    g = g.detach().double().numpy().ravel()
    return [float(np.sqrt((g * g).sum()))] + [float((g * s).sum()) for s in signs(g.size)]


def named(model):
    """Gradients by the names of the file: experts are apart there."""
    text = model.config.model_type in ("mistral3", "qwen2_5_vl")  # the file has other prefixes
    inner = {"mistral3": "language_model.model.", "qwen2_5_vl": "model."}.get(model.config.model_type)
    for name, p in model.named_parameters():
        if text and name == "lm_head.weight" and inner[0] == "l": name = "language_model." + name
        if text: name = name.replace("model.language_model.", inner)
        if model.config.model_type == "nemotron_h": name = name.replace("model.", "backbone.", 1)
        g = torch.zeros_like(p) if p.grad is None else p.grad
        moe = model.config.model_type in ("minimax_m2", "phimoe", "lfm2_moe")
        if moe: name = name.replace(".mlp.", ".block_sparse_moe.").replace(".router.weight", ".gate.weight")
        down, up_, gate_ = ("w2", "w3", "w1") if moe else ("down_proj", "up_proj", "gate_proj")
        if model.config.model_type.startswith("granitemoe"):
            name = name.replace(".router.weight", ".router.layer.weight")
            if "shared_mlp.input_linear" in name and getattr(model.config, "num_local_experts", 0):  # one module where no expert is beside it
                for which, half in zip(("gate", "up"), g.chunk(2)): yield name.replace("input_linear", which + "_proj"), half
                continue
        at, dot, which = name.partition(".experts.")
        if dot and model.config.model_type == "gpt_oss":
            what, bias, _ = which.partition("_bias")
            for e in range(g.shape[0]):
                one, end = (g[e], "bias") if bias else (g[e].T, "weight")
                if what == "down_proj": yield f"{at}.experts.{e}.down_proj.{end}", one
                else:
                    yield f"{at}.experts.{e}.gate_proj.{end}", one[::2]
                    yield f"{at}.experts.{e}.up_proj.{end}", one[1::2]
            continue
        if not dot:
            yield name, g
            continue
        for e in range(g.shape[0]):
            if which == "down_proj":
                yield f"{at}.experts.{e}.{down}.weight", g[e]
            else:
                gate, up = g[e].chunk(2)
                yield f"{at}.experts.{e}.{gate_}.weight", gate
                yield f"{at}.experts.{e}.{up_}.weight", up


def in_double(architecture):
    """A class of transformers that computes in double where its code says float32: the float32 gradients of the delta rule differ from these by 5e-5."""
    module = sys.modules[getattr(tf, architecture).__module__]
    code = open(module.__file__).read().replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    exec(compile(code, module.__file__, "exec"), module.__dict__)
    return getattr(module, architecture)


def as_stored(grads, kind):
    """The names of the file, which has q, k and v of NomicBERT in one."""
    if kind != "nomic_bert": return list(grads)
    grads, out = dict(grads), {}
    for n, g in grads.items():
        for a, b in (("embeddings.LayerNorm", "emb_ln"), ("layers.", "encoder.layers."), ("self_attn.o_proj", "attn.out_proj"), ("up_proj", "fc11"),
                     ("gate_proj", "fc12"), ("down_proj", "fc2"), ("post_attention_layernorm", "norm1"), ("post_mlp_layernorm", "norm2")):
            n = n.replace(a, b)
        if "q_proj" in n: n, g = n.replace("self_attn.q_proj", "attn.Wqkv"), torch.cat([grads[n[8:].replace("q_proj", w + "_proj")] for w in "qkv"])
        if "self_attn" not in n: out[n] = g
    return list(out.items())


for family in only or sorted(os.listdir(root)):
    if "fp8" in family or "fp4" in family: continue
    if family.startswith(("deepseek", "albert", "electra-small", "llama4", "gemma4")): continue  # does not train
    d = os.path.join(root, family)
    config = tf.AutoConfig.from_pretrained(d)
    if config.model_type in ("roberta", "distilbert", "electra", "nomic_bert", "mpnet", "modernbert") or getattr(config, "use_bidirectional_attention", False):
        pool = {"add_pooling_layer": False} if config.model_type in ("roberta", "nomic_bert", "mpnet") else {}
        model = tf.AutoModel.from_pretrained(d, attn_implementation="eager", dtype=torch.float32, **pool).eval()
        ends = None  # a norm behind the layers is left out: the sum is over the states that the last layer gives
        if config.model_type == "gemma3_text": ends, model.norm = [("norm.weight", model.norm.weight)], torch.nn.Identity()
        if config.model_type == "modernbert": ends, model.final_norm = [("final_norm." + n, p) for n, p in model.final_norm.named_parameters()], torch.nn.Identity()
        h = model(input_ids=load_file(os.path.join(d, "ref.safetensors"))["input_ids"].long()[None]).last_hidden_state
        loss = (h.double().flatten() * torch.from_numpy(signs(h.numel())[0])).sum()
        loss.backward()
        grads = [x for x in as_stored(named(model), config.model_type) if "relative_attention_bias" not in x[0]]  # which does not train here
        if ends is not None: grads += [(n, torch.zeros_like(p)) for n, p in ends]
        out[family] = {"loss": float(loss.detach()), "tensors": {n: [float(f"{v:.9g}") for v in sketch(g)] for n, g in sorted(grads)}}
        continue
    if "hidden" in load_file(os.path.join(d, "ref.safetensors")): continue  # a base model: no loss of tokens
    auto = tf.AutoModelForImageTextToText if hasattr(config, "vision_config") else tf.AutoModelForCausalLM
    exact = {"dtype": torch.float32}
    if family.startswith(("qwen3_next", "qwen3_5")): auto, exact = in_double(config.architectures[0]), {"dtype": torch.float64, "experts_implementation": "eager"}
    model = auto.from_pretrained(d, attn_implementation="eager", **exact).eval()
    ids = load_file(os.path.join(d, "ref.safetensors"))["input_ids"].long()[None]
    logits = model(input_ids=ids).logits
    ref = load_file(os.path.join(d, "ref.safetensors"))["logits"]
    assert (logits[0] - ref).abs().max() < 1e-4 * ref.abs().max(), family
    labels = ids.clone()
    labels[0, :5] = -100
    loss = F.cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=-100)
    loss.backward()
    files = [f for f in load_file(os.path.join(d, "model.safetensors")) if not f.startswith(("vision_tower.", "multi_modal", "visual.")) and not f.endswith(("e_score_correction_bias", "expert_bias")) and ".act_fn." not in f]
    grads = dict(named(model))
    if config.model_type.startswith(("gpt_oss", "granitemoe")): files = list(grads)  # its files have experts in one tensor, which are apart here
    if "embed_out.weight" in files:
        grads["embed_out.weight"] = grads["lm_head.weight"]
    assert set(files) <= set(grads), (family, sorted(set(files) - set(grads)))
    out[family] = {"loss": float(loss.detach()), "tensors": {n: [float(f"{v:.9g}") for v in sketch(grads[n])] for n in sorted(files)}}
    print(family, float(loss.detach()), len(files))
with open(sys.argv[2], "w") as f:
    f.write(json.dumps(out, separators=(",", ":")).replace('},"', '},\n"').replace('],"', '],\n"') + "\n")
