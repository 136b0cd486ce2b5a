#!/usr/bin/env python3
"""What PEFT learns where neither ../shared/data nor tests/model/golden/train has a reference: saved norms and embeddings, DoRA
beside biases, excluded modules, IA3's default modules.

usage: peft_train.py SHARED_DATA OUT_DIR [CASE...]      made with torch 2.15, transformers 5.23, PEFT 0.21, in float32

OUT/<case>/adapter_config.json, adapter_model.safetensors   the beginning, as PEFT saves it (drawn at random, never zero)
OUT/<case>/ref.safetensors   input_ids, labels, loss, grad.<key> at the beginning, train.losses [steps] and train.final.<key> after AdamW
OUT/<case>/case.json         the base (a folder of SHARED_DATA/arch) and the settings of the steps
Keys are those of adapter files."""
import json, os, sys, torch
import torch.nn.functional as F
import transformers as tf
import peft
import peft.tuners.boft.layer as boft
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

data, out = sys.argv[1], sys.argv[2]
torch.set_num_threads(1)
L = dict(r=3, lora_alpha=6, lora_dropout=0.0, task_type="CAUSAL_LM")
CASES = {
    "save-norm": ("llama", peft.LoraConfig(target_modules=["v_proj"], modules_to_save=["model.norm", "embed_tokens"], **L)),
    "dora-bias": ("qwen2", peft.LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"], use_dora=True, **L)),
    "exclude": ("llama", peft.LoraConfig(target_modules=["q_proj", "down_proj"], exclude_modules=["layers.0.mlp.down_proj"], **L)),
    "ln-tuning": ("llama", peft.LNTuningConfig(task_type="CAUSAL_LM")),
    "loha": ("llama", peft.LoHaConfig(r=2, alpha=3, target_modules=["q_proj", "down_proj"], rank_pattern={"down_proj": 3}, alpha_pattern={"q_proj": 5}, task_type="CAUSAL_LM")),
    "lokr": ("llama", peft.LoKrConfig(r=2, alpha=3, target_modules=["k_proj", "up_proj"], decompose_factor=4, task_type="CAUSAL_LM")),
    "lokr-both": ("llama", peft.LoKrConfig(r=2, alpha=4, target_modules=["q_proj", "down_proj"], decompose_both=True, task_type="CAUSAL_LM")),
    "oft": ("qwen2", peft.OFTConfig(oft_block_size=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")),
    "oft-shared": ("llama", peft.OFTConfig(r=4, oft_block_size=0, block_share=True, num_cayley_neumann_terms=7, target_modules=["v_proj", "gate_proj"], task_type="CAUSAL_LM")),
    "oft-coft": ("llama", peft.OFTConfig(r=8, oft_block_size=0, coft=True, eps=0.3, use_cayley_neumann=False, target_modules=["q_proj"], task_type="CAUSAL_LM")),
    "boft": ("qwen2", peft.BOFTConfig(boft_block_size=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")),
    "boft-factors": ("llama", peft.BOFTConfig(boft_block_size=4, boft_n_butterfly_factor=3, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")),
    "hra": ("llama", peft.HRAConfig(r=3, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")),
    "hra-gs": ("llama", peft.HRAConfig(r=4, apply_GS=True, target_modules=["k_proj"], task_type="CAUSAL_LM")),
    "miss": ("llama", peft.MissConfig(r=3, target_modules=["v_proj", "up_proj"], task_type="CAUSAL_LM")),
    "miss-bat": ("llama", peft.MissConfig(r=4, init_weights="bat", target_modules=["q_proj"], task_type="CAUSAL_LM")),
    "miss-mini": ("llama", peft.MissConfig(r=3, mini_r=4, init_weights="mini", target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")),
    "shira": ("llama", peft.ShiraConfig(r=1, target_modules=["k_proj", "down_proj"], task_type="CAUSAL_LM")),
    "fourierft": ("llama", peft.FourierFTConfig(n_frequency=40, scaling=90.0, random_loc_seed=3, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")),
    "fourierft-gpt2": ("gpt2", peft.FourierFTConfig(n_frequency=40, fan_in_fan_out=True, target_modules=["c_attn"], task_type="CAUSAL_LM")),
    "randlora": ("llama", peft.RandLoraConfig(r=5, randlora_alpha=20, target_modules=["k_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM")),
    "vera": ("llama", peft.VeraConfig(r=6, projection_prng_key=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")),
    "vera-gpt2": ("gpt2", peft.VeraConfig(r=3, fan_in_fan_out=True, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM")),
    "adalora": ("llama", peft.AdaLoraConfig(init_r=3, target_r=3, lora_alpha=5, total_step=1, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")),
    "ia3-usual": ("llama", peft.IA3Config(task_type="CAUSAL_LM")),
}
T = dict(lr=2e-3, steps=4, weight_decay=0.01)


class Blocks:
    """PEFT computes more than one butterfly factor with a CUDA extension alone: block diagonals, and back."""

    def forward(self, x):
        return [torch.stack([torch.block_diag(*b) for b in x])]

    def backward(self, grad, x):
        n, b = x.shape[1], x.shape[2]
        return [torch.stack([torch.stack([g[i * b:(i + 1) * b, i * b:(i + 1) * b] for i in range(n)]) for g in grad])]


FROZEN = ("vera_A", "vera_B", "randlora_A", "randlora_B", "shira_indices")


def keys(model, tensors, frozen=False):
    """tensors by parameter -> by key of the adapter's file; frozen: with what is drawn once."""
    tensors = {**{n: b for n, b in model.state_dict().items() if any(f in n for f in FROZEN)}, **tensors}
    return {k: v.detach().clone().contiguous()
            for k, v in get_peft_model_state_dict(model, state_dict=tensors, save_embedding_layers=False).items()
            # RandLoRA repeats its bases for each module: once is enough
            if not any(f in k for f in FROZEN)
            or (frozen and (k.startswith("base_model.randlora_") or "randlora" not in k))}


for name, (base, config) in CASES.items():
    boft.get_fbd_cuda = lambda: Blocks() if name == "boft-factors" else None
    if len(sys.argv) > 3 and name not in sys.argv[3:]:
        continue
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    ref = load_file(os.path.join(data, "arch", base, "ref.safetensors"))
    ids, labels = ref["input_ids"].long(), ref["labels"].long()
    model = tf.AutoModelForCausalLM.from_pretrained(os.path.join(data, "arch", base), attn_implementation="eager").float()
    torch.manual_seed(3)
    model = peft.get_peft_model(model, config)
    noise = torch.Generator().manual_seed(4)
    train = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    for n, p in train:
        p.data += 0.1 * torch.randn(p.shape, generator=noise)
    model.eval()
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(folder, save_embedding_layers=False)
    save_file(keys(model, {n: p for n, p in train}, True), os.path.join(folder, "adapter_model.safetensors"))

    def loss_of():
        logits = model(input_ids=ids).logits
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100)

    loss = loss_of()
    loss.backward()
    r = {"input_ids": ids.int(), "labels": labels.int(), "loss": loss.detach().clone()}
    r.update({"grad." + k: v for k, v in keys(model, {n: p.grad for n, p in train}).items()})
    opt = torch.optim.AdamW([p for _, p in train], lr=T["lr"], weight_decay=T["weight_decay"])
    losses = []
    for _ in range(T["steps"]):
        opt.zero_grad()
        loss = loss_of()
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    r["train.losses"] = torch.tensor(losses)
    r.update({"train.final." + k: v for k, v in keys(model, {n: p for n, p in train}).items()})
    save_file(r, os.path.join(folder, "ref.safetensors"))
    readme = os.path.join(folder, "README.md")
    if os.path.exists(readme):
        os.remove(readme)
    json.dump(dict(T, base=base), open(os.path.join(folder, "case.json"), "w"))
    print(name, len(train), [n for n, _ in train][:3], sorted(keys(model, {n: p for n, p in train}))[:4], float(losses[0]), float(losses[-1]))
