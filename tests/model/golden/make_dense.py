#!/usr/bin/env python3
"""A folder of sentence-transformers like EmbeddingGemma's: arch/gemma3-both-ways, pooled by mean, through two Dense modules, normalised.

usage: make_dense.py ARCH_DIR OUT_DIR        made with torch 2.15, transformers 5.23
OUT_DIR/ref.safetensors: input_ids [T] i32, embedding [H] f32, by torch. What Dense does (linear, then its activation) is written out here."""
import json, os, shutil, sys, torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
import transformers as tf

src, out = os.path.join(sys.argv[1], "gemma3-both-ways"), sys.argv[2]
os.makedirs(out, exist_ok=True)
for f in ("config.json", "model.safetensors"): shutil.copy(os.path.join(src, f), out)
m = tf.AutoModel.from_pretrained(src, attn_implementation="eager", dtype=torch.float32).eval()
ids = load_file(os.path.join(src, "ref.safetensors"))["input_ids"]
with torch.no_grad(): x = m(input_ids=ids.long()[None]).last_hidden_state[0].mean(0)
g = torch.Generator().manual_seed(4)
modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
for k, (i, o, act) in enumerate([(16, 24, "torch.nn.modules.activation.Tanh"), (24, 16, "torch.nn.modules.linear.Identity")]):
    d = os.path.join(out, f"{k + 2}_Dense")
    os.makedirs(d, exist_ok=True)
    w = {"linear.weight": 0.3 * torch.randn(o, i, generator=g)}
    if k == 0: w["linear.bias"] = 0.3 * torch.randn(o, generator=g)
    save_file(w, os.path.join(d, "model.safetensors"))
    json.dump({"in_features": i, "out_features": o, "bias": k == 0, "activation_function": act}, open(os.path.join(d, "config.json"), "w"))
    x = F.linear(x, w["linear.weight"], w.get("linear.bias"))
    if "Tanh" in act: x = torch.tanh(x)
    modules.append((f"{k + 2}_Dense", "Dense"))
modules.append(("4_Normalize", "Normalize"))
os.makedirs(os.path.join(out, "1_Pooling"), exist_ok=True)
json.dump({"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, "include_prompt": True}, open(os.path.join(out, "1_Pooling/config.json"), "w"))
json.dump([{"idx": i, "name": str(i), "path": p, "type": "sentence_transformers.models." + t} for i, (p, t) in enumerate(modules)],
          open(os.path.join(out, "modules.json"), "w"))
save_file({"input_ids": ids, "embedding": F.normalize(x, dim=0)}, os.path.join(out, "ref.safetensors"))
