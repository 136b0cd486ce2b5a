#!/usr/bin/env python3
"""make_scaled.py OUT - models whose weights have scales, in the form of make_arch.py's (OUT: golden/arch): a tiny Llama with 8-bit float weights and
scales in three forms, each a folder as its tool writes it, and the logits that transformers gives for it when it
makes the weights plain (compressed-tensors doing so for "channel" and "tensor"), computed in float32.

Needs torch, transformers, accelerate, safetensors, compressed-tensors."""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config, LlamaConfig, LlamaForCausalLM

out = pathlib.Path(sys.argv[1])
BLOCK, F8, MOST = 16, torch.float8_e4m3fn, 448.0
torch.manual_seed(5)
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.2)
model = LlamaForCausalLM(config).to(torch.bfloat16)
ids = torch.randint(0, 64, (1, 40))


def scaled(name):
    return name.startswith("model.layers.") and name.endswith("_proj.weight")


def quantized(w, form):
    """(the 8-bit weight, its scale)"""
    n, k = w.shape
    w = w.float()
    if form == "fp8":
        grid = w.view(n // BLOCK, BLOCK, k // BLOCK, BLOCK)
        scale = grid.abs().amax(dim=(1, 3)) / MOST
        q = (grid / scale[:, None, :, None]).view(n, k)
    else:
        scale = (w.abs().amax(dim=1, keepdim=True) if form == "channel" else w.abs().amax().view(1)) / MOST
        scale = scale.to(torch.bfloat16) if form == "channel" else scale
        q = w / scale.float()
    return q.clamp(-MOST, MOST).to(F8), scale.contiguous()


def settings(form):
    if form == "fp8":
        return {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
    weights = {"num_bits": 8, "type": "float", "strategy": form, "symmetric": True, "dynamic": False}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
            "ignore": ["lm_head"], "kv_cache_scheme": None}


for form in ("fp8", "channel", "tensor"):
    folder = out / ("llama-fp8" if form == "fp8" else f"llama-fp8-{form}")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, w in model.state_dict().items():
        tensors[name] = w.detach().clone().contiguous()
        if scaled(name):
            q, scale = quantized(w.detach(), form)
            tensors[name] = q
            tensors[name.replace(".weight", ".weight_scale_inv" if form == "fp8" else ".weight_scale")] = scale
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    c = config.to_diff_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "quantization_config": settings(form)}
    (folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    how = (FineGrainedFP8Config(dequantize=True, weight_block_size=(BLOCK, BLOCK)) if form == "fp8" else
           CompressedTensorsConfig(dequantize=True))
    m = AutoModelForCausalLM.from_pretrained(folder, quantization_config=how, dtype=torch.bfloat16)
    with torch.no_grad():
        logits = m.float()(ids).logits[0].contiguous()
    save_file({"input_ids": ids.to(torch.int32), "logits": logits}, folder / "ref.safetensors")
