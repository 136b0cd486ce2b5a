#!/usr/bin/env python3
"""Training steps of PyTorch + PEFT on SmolLM2, timed: the other side of tests/bench/bench_train.

    python3 tests/peer/train_torch.py MODEL --case lora-4x128 [--dtype bf16] [--steps N] [--threads N]

MODEL: SmolLM2-135M-Instruct as GGUF (needs the package `gguf`) or as a folder of Hugging Face's. One JSON line a case:
median and best seconds of a step, tokens per second of the best, peak resident memory, the first loss, what ran it.
Warm-up steps are left out of the times, not of the
memory; with one thread the process's own clock counts, as in bench_train. --dtype bf16: float32 weights under torch.autocast, as
users run it on a CPU. Every token is a target; AdamW is PyTorch's fused one, the fastest that it has here.
"""

import time

BEGIN = time.perf_counter()

import argparse
import json
import os
import resource
import statistics

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import peft
import torch
import transformers

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name: batch, tokens, all weights train, gradient checkpointing
CASES = {
    "lora-1x8": (1, 8, False, False),
    "lora-1x32": (1, 32, False, False),
    "lora-4x128": (4, 128, False, False),
    "lora-8x256": (8, 256, False, False),
    "lora-8x256-checkpoint": (8, 256, False, True),
    "full-4x128": (4, 128, True, False),
}
GGUF_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
}


def value(reader, key):
    return reader.fields[f"llama.{key}"].contents()


def from_gguf(path):
    import gguf

    reader = gguf.GGUFReader(path)
    heads, kv = value(reader, "attention.head_count"), value(reader, "attention.head_count_kv")
    tensors = {t.name: t for t in reader.tensors}
    config = transformers.LlamaConfig(
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        hidden_size=value(reader, "embedding_length"),
        intermediate_size=value(reader, "feed_forward_length"),
        num_hidden_layers=value(reader, "block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv,
        rms_norm_eps=value(reader, "attention.layer_norm_rms_epsilon"),
        max_position_embeddings=value(reader, "context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": value(reader, "rope.freq_base")},
        tie_word_embeddings="output.weight" not in tensors,
    )
    model, state = transformers.LlamaForCausalLM(config).float(), {}
    for name, t in tensors.items():
        parts = name.split(".")
        w = torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type)).float()
        layer = parts[0] == "blk"
        if layer and parts[2] in ("attn_q", "attn_k"):  # rows in GGUF's rotary order
            n = heads if parts[2] == "attn_q" else kv
            w = w.reshape(n, w.shape[0] // n // 2, 2, -1).transpose(1, 2).reshape(w.shape)
        where = f"model.layers.{parts[1]}.{GGUF_NAMES[parts[2]]}" if layer else GGUF_NAMES[parts[0]]
        state[where + ".weight"] = w.contiguous()
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model


def load(path):
    if os.path.isdir(path):
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return from_gguf(path)


def prepare(path, full, checkpointing):
    model = load(path)
    model.config.use_cache = False
    if not full:
        config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=LINEARS, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, config)
    if checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(args):
    batch, tokens, full, checkpointing = CASES[args.case]
    imported = peak_mb()
    model = prepare(args.model, full, checkpointing)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, weight_decay=0.01, fused=True)
    clock = time.process_time if args.threads == 1 else time.perf_counter
    seconds, losses, before = [], [], time.perf_counter() - BEGIN
    for step in range(args.warm_up + args.steps):
        # as bench_train's batches: another text each step, the same on both sides
        ids = (torch.arange(batch * tokens) + step * batch * tokens) * 7919 % 40000 + 100
        ids = ids.reshape(batch, tokens)
        began = clock()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(clock() - began)
    best = min(seconds[args.warm_up :])
    return {
        "case": args.case,
        "dtype": args.dtype,
        "batch": batch,
        "tokens": tokens,
        "seconds": best,
        "median_seconds": statistics.median(seconds[args.warm_up :]),
        "tokens_per_s": batch * tokens / best,
        "peak_mb": round(peak_mb(), 1),
        "imports_mb": round(imported, 1),
        "first_loss": losses[0],
        "before_first_step_s": before,  # since the interpreter read this file
        "trained": sum(p.numel() for p in trained),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "isa": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "mkldnn_bf16": torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    }


def main():
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("model")
    ap.add_argument("--case", required=True, choices=list(CASES))
    ap.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
    ap.add_argument("--steps", type=int, default=3)
    ap.add_argument("--warm-up", type=int, default=2, help="steps before those that are timed")
    ap.add_argument("--threads", type=int, default=2)
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(json.dumps(run(args)), flush=True)


if __name__ == "__main__":
    main()
