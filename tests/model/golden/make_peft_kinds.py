#!/usr/bin/env python3
"""Adapters of PEFT's other kinds with PEFT's own answers: peft_kinds/<case>, on a base of the reference data or of arch/.

usage: make_peft_kinds.py SHARED_ARCH GOLDEN_ARCH OUT_DIR [CASE...]      made with torch 2.15, transformers 5.23, peft 0.21.2
OUT/<case>/adapter_config.json, adapter_model.safetensors: as PEFT saves them. ref.safetensors: input_ids [T], logits [T, V] of the
model as PEFT loads the saved folder on a fresh base, f32; and where PEFT can merge, under "merged." every fourth row of the weights
that its merge_and_unload changes, but for layer 1. case.json names the base."""
import json, os, shutil, sys, torch, peft
from safetensors.torch import load_file, save_file
import transformers as tf

torch.set_num_threads(1)
shared, golden, out = sys.argv[1:4]
C = "CAUSAL_LM"
T = ["q_proj", "down_proj"]  # one square, one wide
CASES = {  # name: (base, config, extra of the case)
    "lora-bias-term": ("qwen2", lambda: peft.LoraConfig(r=2, lora_alpha=4, lora_bias=True, target_modules=["q_proj", "v_proj"], task_type=C)),
    "lora-bias-new": ("llama", lambda: peft.LoraConfig(r=2, lora_alpha=4, lora_bias=True, target_modules=["q_proj", "o_proj"], task_type=C)),
    "lora-tokens": ("llama", lambda: peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], trainable_token_indices=[5, 9], task_type=C)),
    "lora-tokens-tied": ("qwen2", lambda: peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [5, 9]}, task_type=C)),
    "tokens": ("llama", lambda: peft.TrainableTokensConfig(token_indices=[3, 17, 4], task_type=C)),
    "tokens-tied": ("qwen2", lambda: peft.TrainableTokensConfig(token_indices=[3, 17, 4], task_type=C)),
    "adalora": ("llama", lambda: peft.AdaLoraConfig(init_r=4, target_r=2, total_step=10, lora_alpha=8, target_modules=T, task_type=C)),
    "adalora-ranks": ("llama", lambda: peft.AdaLoraConfig(init_r=4, target_r=2, total_step=10, lora_alpha=8, target_modules=T, task_type=C)),
    "ln-tuning": ("llama", lambda: peft.LNTuningConfig(target_modules=["input_layernorm", "norm"], task_type=C)),
    "vera": ("llama", lambda: peft.VeraConfig(r=3, target_modules=T, task_type=C)),
    "vera-unsaved": ("llama", lambda: peft.VeraConfig(r=3, target_modules=T, save_projection=False, task_type=C)),
    "loha": ("llama", lambda: peft.LoHaConfig(r=2, alpha=3, target_modules=T, rank_pattern={"down_proj": 3}, alpha_pattern={"q_proj": 5}, task_type=C)),
    "lokr": ("llama", lambda: peft.LoKrConfig(r=2, alpha=3, target_modules=T, decompose_both=True, decompose_factor=6, task_type=C)),
    "lokr-whole": ("llama", lambda: peft.LoKrConfig(r=64, alpha=32, target_modules=T, task_type=C)),
    "oft": ("llama", lambda: peft.OFTConfig(r=0, oft_block_size=8, target_modules=T, task_type=C)),
    "oft-shared": ("llama", lambda: peft.OFTConfig(r=4, oft_block_size=0, block_share=True, use_cayley_neumann=False, target_modules=T, task_type=C)),
    "oft-coft": ("llama", lambda: peft.OFTConfig(r=4, oft_block_size=0, coft=True, eps=0.5, use_cayley_neumann=False, target_modules=T, task_type=C)),
    "boft": ("qwen2", lambda: peft.BOFTConfig(boft_block_size=8, target_modules=["q_proj", "o_proj"], task_type=C)),
    "boft-factors": ("llama", lambda: peft.BOFTConfig(boft_block_size=4, boft_n_butterfly_factor=3, target_modules=["q_proj", "down_proj"], task_type=C)),
    "miss": ("llama", lambda: peft.MissConfig(r=7, target_modules=T, task_type=C)),
    "miss-bat": ("llama", lambda: peft.MissConfig(r=8, init_weights="bat", target_modules=T, task_type=C)),
    "miss-mini": ("llama", lambda: peft.MissConfig(r=8, mini_r=6, init_weights="mini", target_modules=T, task_type=C)),
    "hra": ("llama", lambda: peft.HRAConfig(r=4, target_modules=T, task_type=C)),
    "hra-gs": ("llama", lambda: peft.HRAConfig(r=3, apply_GS=True, target_modules=T, task_type=C)),
    "randlora": ("llama", lambda: peft.RandLoraConfig(r=5, randlora_alpha=10, target_modules=r".*layers\.0\..*(q_proj|down_proj|up_proj)", task_type=C)),
    "shira": ("llama", lambda: peft.ShiraConfig(r=1, random_seed=7, target_modules=T, task_type=C)),
    "fourierft": ("llama", lambda: peft.FourierFTConfig(n_frequency=40, scaling=30.0, target_modules=["q_proj", "down_proj"], task_type=C)),
    "vblora": ("llama", lambda: peft.VBLoRAConfig(r=2, num_vectors=12, vector_length=24, topk=2, save_only_topk_weights=True, target_modules=T, task_type=C)),
    "vblora-logits": ("llama", lambda: peft.VBLoRAConfig(r=2, num_vectors=12, vector_length=24, topk=2, target_modules=T, task_type=C)),
    "p-tuning": ("llama", lambda: peft.PromptEncoderConfig(num_virtual_tokens=4, encoder_hidden_size=16, task_type=C)),
    "pissa": ("llama", lambda: peft.LoraConfig(r=3, lora_alpha=6, init_lora_weights="pissa", target_modules=T, task_type=C)),
    "olora": ("llama", lambda: peft.LoraConfig(r=3, lora_alpha=6, init_lora_weights="olora", target_modules=T, task_type=C)),
    "loha-gpt2": ("gpt2", lambda: peft.LoHaConfig(r=2, alpha=3, target_modules=["lm_head"], task_type=C)),
    "vera-gpt2": ("gpt2", lambda: peft.VeraConfig(r=3, target_modules=["c_attn"], fan_in_fan_out=True, task_type=C)),
    "fourierft-gpt2": ("gpt2", lambda: peft.FourierFTConfig(n_frequency=40, scaling=30.0, target_modules=["c_attn"], fan_in_fan_out=True, task_type=C)),
    "merge-dora": ("qwen2", lambda: peft.LoraConfig(r=2, lora_alpha=4, use_dora=True, target_modules=["q_proj", "down_proj"], task_type=C)),
    "merge-dora-gpt2": ("gpt2", lambda: peft.LoraConfig(r=2, lora_alpha=4, use_dora=True, target_modules=["c_attn"], fan_in_fan_out=True, task_type=C)),
    "merge-lora-gpt2": ("gpt2", lambda: peft.LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type=C)),
    "merge-ia3": ("qwen2", lambda: peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"], task_type=C)),
    "merge-embedding": ("llama", lambda: peft.LoraConfig(r=2, lora_alpha=4, target_modules=["embed_tokens"], task_type=C)),
    "merge-embedding-tied": ("qwen2", lambda: peft.LoraConfig(r=2, lora_alpha=4, target_modules=["embed_tokens"], task_type=C)),
}
names = sys.argv[4:] or list(CASES)


class Blocks:  # PEFT computes more than one butterfly factor with a CUDA extension alone, which makes block diagonals
    def forward(self, x): return [torch.stack([torch.block_diag(*b) for b in x])]


import peft.tuners.boft.layer as boft
for name in names:
    base, config = CASES[name]
    where = os.path.join(shared, base) if os.path.isdir(os.path.join(shared, base)) else os.path.join(golden, base)
    fresh = lambda: tf.AutoModelForCausalLM.from_pretrained(where, attn_implementation="eager", dtype=torch.float32).eval()
    torch.manual_seed(1)
    boft.get_fbd_cuda = lambda: Blocks() if name == "boft-factors" else None
    model = peft.get_peft_model(fresh(), config())
    g = torch.Generator().manual_seed(4)
    for n, p in model.named_parameters():
        if p.requires_grad:
            scale = 0.3 if "oft" in name or "hra" in name or "bat" in name else 0.2
            p.data = (p.data if name in ("pissa", "olora", "tokens") else 1.0 if any(k in n for k in ("ia3_l", "magnitude", "boft_s", "ln_tuning")) else 0.0) + scale * torch.randn(p.shape, generator=g)
            if "magnitude" in n: p.data = p.data.abs()
    if name == "adalora-ranks":  # the state after the budget was spent: some ranks are masked and cut off
        pattern = {}
        for n, p in model.named_parameters():
            if "lora_E" in n:
                keep = [len(pattern) != 1 and i != (len(pattern) % 4) for i in range(p.shape[0])]
                p.data[[i for i, k in enumerate(keep) if not k]] = 0.0
                pattern[n.removeprefix("base_model.model.")] = keep
        model.peft_config["default"].rank_pattern = pattern
    ids = load_file(os.path.join(where, "ref.safetensors"))["input_ids"].long().reshape(-1)[:12].clone()
    ids[2:7] = torch.tensor([3, 17, 4, 5, 9])
    d = os.path.join(out, name)
    shutil.rmtree(d, ignore_errors=True)
    model.peft_config["default"].base_model_name_or_path = None
    model.save_pretrained(d)
    os.path.exists(os.path.join(d, "README.md")) and os.remove(os.path.join(d, "README.md"))
    loaded = peft.PeftModel.from_pretrained(fresh(), d).eval()
    with torch.no_grad():
        logits = loaded(input_ids=ids[None]).logits[0][-len(ids):].contiguous()
        plain = fresh()(input_ids=ids[None]).logits[0]
    ref = {"input_ids": ids.to(torch.int32), "logits": logits}
    case = {"base": base, "merges": False, "merged": False}
    saved = json.load(open(os.path.join(d, "adapter_config.json")))
    json.dump(dict(saved, base_model_name_or_path=None), open(os.path.join(d, "adapter_config.json"), "w"), indent=2, sort_keys=True)
    try:
        merged = loaded.merge_and_unload()
        with torch.no_grad(): off = (merged(input_ids=ids[None]).logits[0] - logits).abs().max().item()
        was = fresh().state_dict()
        changed = [k for k, v in merged.state_dict().items() if k in was and not torch.equal(v, was[k]) and not (k == "lm_head.weight" and merged.config.tie_word_embeddings)]
        case["merges"] = True
        case["merged"] = off < 1e-4  # where the head is the embedding PEFT's merge is not what it computes unmerged
        for k in [k for k in changed if case["merged"] and "layers.1" not in k and ".h.1." not in k]:
            ref["merged." + k] = merged.state_dict()[k][::4].contiguous().clone()
        print(name, "merges", len(changed), "off by %.2e" % off)
    except Exception as e:
        print(name, "does not merge:", repr(e)[:120])
    save_file(ref, os.path.join(d, "ref.safetensors"))
    json.dump(case, open(os.path.join(d, "case.json"), "w"))
    print(name, "moves the logits by %.3f" % (logits - plain).abs().max().item(), sorted(load_file(os.path.join(d, "adapter_model.safetensors")))[:3], flush=True)
