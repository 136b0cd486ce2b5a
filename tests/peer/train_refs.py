#!/usr/bin/env python3
"""Losses, gradients and AdamW steps of PEFT (and of formulas in PyTorch) on the tiny models of the reference data: the kinds that
arch/llama/peft lacks, and the objectives.

    python3 tests/peer/train_refs.py DATA tests/model/golden/train      (DATA: the reference data; made with torch 2.15,
                                                                         transformers 5.23, PEFT 0.21)

OUT/README.md says what is in each folder. One thread, float32, seeds fixed."""

import copy
import json
import os
import pathlib
import shutil
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import peft
import torch
import torch.nn.functional as F
import transformers as tf
from safetensors.torch import save_file

ADAMW = dict(lr=2e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.01)
STEPS, TOKENS = 4, 16


def lora(targets, task="CAUSAL_LM", **more):
    return peft.LoraConfig(
        **{"r": 2, "lora_alpha": 4, "target_modules": targets, "task_type": task, **more}
    )


def noise(params, seed, scale=0.1):
    """Every parameter matters: B is not zero, a bias is not what the base has."""
    g = torch.Generator().manual_seed(seed)
    for p in params:
        p.data += scale * torch.randn(p.shape, generator=g)


def int32(**tensors):
    return {k: v.int().contiguous() for k, v in tensors.items()}


class Case:
    """model: with what trains marked so. loss(model): of the batch, a scalar. more: outputs to record."""

    def __init__(self, model, batch, loss, settings, more=None):
        self.model, self.batch, self.loss, self.settings, self.more = (
            model,
            batch,
            loss,
            settings,
            more,
        )

    def names(self):
        """Parameter -> its name in a file: PEFT's for adapters, the model's for full tensors."""
        own = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        if not isinstance(self.model, peft.PeftModel):
            return [(n, p) for n, p in own.items()]
        if self.model.active_peft_config.is_prompt_learning:
            return [("prompt_embeddings", p) for p in own.values()]
        saved = peft.get_peft_model_state_dict(self.model, save_embedding_layers=False)
        place = {v.data_ptr(): k for k, v in saved.items()}
        return [(place[p.data_ptr()], p) for p in own.values()]


def optimizer(case, names):
    scale = case.settings.get("loraplus", 1)
    slow = [p for n, p in names if ".lora_B" not in n and "lora_embedding_B" not in n]
    fast = [p for n, p in names if ".lora_B" in n or "lora_embedding_B" in n]
    groups = [dict(params=slow), dict(params=fast, lr=ADAMW["lr"] * scale)]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]],
        lr=ADAMW["lr"],
        betas=tuple(ADAMW["betas"]),
        eps=ADAMW["eps"],
        weight_decay=ADAMW["weight_decay"],
    )


def record(case, folder, rename=lambda n: n):
    case.model.eval()
    names = [(rename(n), p) for n, p in case.names()]
    out = dict(case.batch)
    if isinstance(case.model, peft.PeftModel):
        case.model.save_pretrained(folder)
        shutil.rmtree(folder / "README.md", ignore_errors=True)
        (folder / "README.md").unlink(missing_ok=True)
        rename_file(folder, rename)
    elif "init" in case.settings:
        out.update({"init." + n: p.detach().clone().contiguous() for n, p in names})
    loss = case.loss(case.model)
    loss.backward()
    out["loss"] = loss.detach().clone()
    if case.more:
        with torch.no_grad():
            out.update(
                {
                    k: v.detach().float().contiguous().clone()
                    for k, v in case.more(case.model).items()
                }
            )
    out.update({"grad." + n: p.grad.clone().contiguous() for n, p in names})
    if not case.settings.get("gradients_only"):
        steps, losses = optimizer(case, names), []
        for _ in range(STEPS):
            steps.zero_grad()
            loss = case.loss(case.model)
            loss.backward()
            steps.step()
            losses.append(float(loss.detach()))
        out["train.losses"] = torch.tensor(losses)
        out.update({"train.final." + n: p.detach().clone().contiguous() for n, p in names})
    save_file(out, folder / "ref.safetensors")
    told = {k: v for k, v in case.settings.items() if k not in ("init", "gradients_only")}
    told = {**told, "steps": STEPS, **ADAMW, "schedule": "constant", "grad_clip": None}
    (folder / "case.json").write_text(json.dumps(told, indent=1) + "\n")
    config = folder / "adapter_config.json"
    if config.exists():
        read = json.loads(config.read_text())
        read["base_model_name_or_path"] = case.settings["base"]
        for key, value in read.items():  # sets are saved in any order
            if key.startswith("target_") and isinstance(value, list):
                read[key] = sorted(value)
        config.write_text(json.dumps(read, indent=1, sort_keys=True) + "\n")
    return float(out["loss"])


def rename_file(folder, rename):
    from safetensors.torch import load_file

    path = folder / "adapter_model.safetensors"
    held = {rename(k): v.contiguous() for k, v in load_file(path).items()}
    save_file(held, path, metadata={"format": "pt"})


# ---- next token ----


def text_batch(seed, vocab=160):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocab, (2, TOKENS), generator=g)
    labels = ids.clone()
    labels[0, :5], labels[1, -4:] = -100, -100
    return ids, labels


def next_token(logits, labels):
    return F.cross_entropy(
        logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100
    )


def causal(data, base, cls=tf.AutoModelForCausalLM):
    return cls.from_pretrained(
        data / "arch" / base, attn_implementation="eager", dtype=torch.float32
    )


def next_token_case(model, base, **settings):
    ids, labels = text_batch(11)
    if isinstance(model, peft.PeftModel):
        noise([p for p in model.parameters() if p.requires_grad], 4)
    return Case(
        model,
        int32(input_ids=ids, labels=labels),
        lambda m: next_token(m(input_ids=ids).logits, labels),
        {"base": base, "objective": "next_token", **settings},
        lambda m: {"logits": m(input_ids=ids).logits},
    )


def adapter(base, config, **settings):
    def make(data):
        torch.manual_seed(3)
        return next_token_case(peft.get_peft_model(causal(data, base), config), base, **settings)

    return make


def bitfit(data):
    model = causal(data, "qwen2")
    for n, p in model.named_parameters():
        p.requires_grad = n.endswith(".bias")
    return next_token_case(model, "qwen2", method="bitfit")


# ---- experts, each with linear layers of its own, as Mixtral's files and most adapters have them ----


class Expert(torch.nn.Module):
    def __init__(self, up, down):
        super().__init__()
        wide = up.shape[0] // 2
        for name, w in (("w1", up[:wide]), ("w3", up[wide:]), ("w2", down)):
            lin = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
            lin.weight.data = w.detach().clone()
            setattr(self, name, lin)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(torch.nn.Module):
    def __init__(self, mlp, best):
        super().__init__()
        w = mlp.gate.weight
        self.best, self.gate = best, torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
        self.gate.weight.data = w.detach().clone()
        fused = mlp.experts
        self.experts = torch.nn.ModuleList(
            Expert(fused.gate_up_proj[i], fused.down_proj[i]) for i in range(w.shape[0])
        )

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        share = self.gate(flat).softmax(-1)
        top, index = share.topk(self.best, -1)
        top = top / top.sum(-1, keepdim=True)
        y = torch.zeros_like(flat)
        for k in range(self.best):
            for e, expert in enumerate(self.experts):
                rows = (index[:, k] == e).nonzero()[:, 0]
                if len(rows):
                    y = y.index_add(0, rows, top[rows, k, None] * expert(flat[rows]))
        return y.reshape(x.shape)


def experts(data):
    model = causal(data, "mixtral")
    fused, (ids, _) = copy.deepcopy(model), text_batch(11)
    for layer in model.model.layers:
        layer.mlp = Experts(layer.mlp, model.config.num_experts_per_tok)
    gap = (model(input_ids=ids).logits - fused(input_ids=ids).logits).abs().max()
    assert gap < 1e-4, gap
    torch.manual_seed(3)
    model.config.model_type = "separate"  # PEFT would name the fused parameters instead
    model = peft.get_peft_model(model, lora(["q_proj", "w1", "w2", "w3"]))
    return next_token_case(model, "mixtral")


# ---- a class ----


def padded(seed, rows, lens, vocab=160):
    g = torch.Generator().manual_seed(seed)
    ids, mask = torch.zeros(rows, TOKENS, dtype=torch.long), torch.zeros(
        rows, TOKENS, dtype=torch.long
    )
    for i, n in enumerate(lens):
        ids[i, :n], mask[i, :n] = torch.randint(3, vocab, (n,), generator=g), 1
    return ids, mask


def class_case(model, base, **settings):
    ids, mask = padded(12, 3, [16, 9, 12])
    classes = torch.tensor([2, 0, 1])
    noise([p for p in model.parameters() if p.requires_grad], 4)

    def scores(m):
        return m(input_ids=ids, attention_mask=mask).logits

    return Case(
        model,
        int32(input_ids=ids, attention_mask=mask, classes=classes),
        lambda m: F.cross_entropy(scores(m), classes),
        {"base": base, "objective": "classify", "classes": 3, **settings},
        lambda m: {"logits": scores(m)},
    )


def sequence_class(base, cls, config, **settings):
    def make(data):
        torch.manual_seed(5)
        model = cls.from_pretrained(
            data / "arch" / base,
            attn_implementation="eager",
            num_labels=3,
            pad_token_id=0,
            dtype=torch.float32,
        )
        torch.manual_seed(3)
        return class_case(peft.get_peft_model(model, config), base, **settings)

    return make


class MeanClass(torch.nn.Module):
    """A linear head on the mean of the states, after no pooler."""

    def __init__(self, bert):
        super().__init__()
        self.bert, self.config = bert, bert.config
        self.classifier = torch.nn.Linear(bert.config.hidden_size, 3)

    def forward(self, input_ids, attention_mask):
        x = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        x = (x * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        return tf.modeling_outputs.SequenceClassifierOutput(logits=self.classifier(x))


def mean_class(data):
    torch.manual_seed(5)
    model = MeanClass(encoder(data))
    for n, p in model.named_parameters():
        p.requires_grad = n.startswith("classifier") or n.endswith(".query.bias")
    return class_case(model, "bert", method="head, query biases", pooling="mean", init=True)


# ---- embeddings ----


def encoder(data):
    return tf.BertModel.from_pretrained(
        data / "arch" / "bert",
        attn_implementation="eager",
        add_pooling_layer=False,
        dtype=torch.float32,
    )


def contrastive(trained, negatives, **settings):
    """Multiple negatives ranking: cross entropy of 20 times the cosine over all positives (and negatives) of the step."""

    def make(data):
        model = encoder(data)
        torch.manual_seed(3)
        if trained:
            model = peft.get_peft_model(model, trained)
            noise([p for p in model.parameters() if p.requires_grad], 4)
        texts = {"anchor": padded(13, 3, [8, 5, 16]), "positive": padded(14, 3, [9, 16, 4])}
        if negatives:
            texts["negative"] = padded(15, 3, [7, 7, 10])

        def embed(m, ids, mask):
            x = m(input_ids=ids, attention_mask=mask).last_hidden_state
            return F.normalize((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)

        def loss(m):
            a = embed(m, *texts["anchor"])
            b = torch.cat([embed(m, *texts[k]) for k in texts if k != "anchor"])
            return F.cross_entropy(a @ b.T / 0.05, torch.arange(3))

        batch = {}
        for k, (ids, mask) in texts.items():
            batch.update({k + "_ids": ids, k + "_mask": mask})
        more = {"base": "bert", "objective": "contrastive", "temperature": 0.05, "pooling": "mean"}
        return Case(
            model,
            int32(**batch),
            loss,
            {**more, **settings},
            lambda m: {k + "_embedding": embed(m, *t) for k, t in texts.items()},
        )

    return make


# ---- preference, teacher ----


def sums(logits, labels):
    """Log-probability of each sequence's counted tokens."""
    nxt = labels[:, 1:]
    picked = logits[:, :-1].log_softmax(-1).gather(2, nxt.clamp(min=0)[..., None])[..., 0]
    return (picked * (nxt != -100)).sum(1)


def preference(data):
    """Rafailov et al. 2023: -log sigmoid(beta ((pi_c - ref_c) - (pi_r - ref_r))), the mean over pairs."""
    torch.manual_seed(3)
    model = peft.get_peft_model(causal(data, "llama"), lora(["q_proj", "v_proj", "down_proj"]))
    noise([p for p in model.parameters() if p.requires_grad], 4)
    text, g = {}, torch.Generator().manual_seed(16)
    prompt = torch.randint(3, 160, (2, 6), generator=g)
    for side, lens in (("chosen", [16, 11]), ("rejected", [13, 16])):
        ids, labels = torch.zeros(2, TOKENS, dtype=torch.long), torch.full((2, TOKENS), -100)
        for i, n in enumerate(lens):
            ids[i, :n] = torch.cat([prompt[i], torch.randint(3, 160, (n - 6,), generator=g)])
            labels[i, 6:n] = ids[i, 6:n]
        text[side] = (ids, labels)
    with torch.no_grad(), model.disable_adapter():
        ref = {k: sums(model(input_ids=i).logits, y) for k, (i, y) in text.items()}

    def margin(m):
        got = {k: sums(m(input_ids=i).logits, y) - ref[k] for k, (i, y) in text.items()}
        return got["chosen"] - got["rejected"]

    batch = {}
    for k, (ids, labels) in text.items():
        batch.update({k + "_ids": ids, k + "_labels": labels})
    return Case(
        model,
        int32(**batch),
        lambda m: -F.logsigmoid(0.1 * margin(m)).mean(),
        {"base": "llama", "objective": "dpo", "dpo_beta": 0.1},
        lambda m: {"margin": margin(m), **{k + "_reference": v for k, v in ref.items()}},
    )


def distill(data):
    """Hinton et al. 2015: w T^2 KL(teacher_T || student_T) + (1 - w) next token, means over the counted tokens."""
    heat, share = 2.0, 0.75
    torch.manual_seed(3)
    model = peft.get_peft_model(causal(data, "llama"), lora(["q_proj", "v_proj", "down_proj"]))
    noise([p for p in model.parameters() if p.requires_grad], 4)
    ids, labels = text_batch(17)
    counted = labels[:, 1:] != -100
    with torch.no_grad():
        want = (causal(data, "qwen3")(input_ids=ids).logits[:, :-1][counted] / heat).log_softmax(-1)

    def parts(m):
        logits = m(input_ids=ids).logits
        have = (logits[:, :-1][counted] / heat).log_softmax(-1)
        kl = (want.exp() * (want - have)).sum(-1).mean()
        return kl, next_token(logits, labels)

    def loss(m):
        kl, plain = parts(m)
        return share * heat * heat * kl + (1 - share) * plain

    return Case(
        model,
        int32(input_ids=ids, labels=labels),
        loss,
        {
            "base": "llama",
            "teacher": "qwen3",
            "objective": "distill",
            "temperature": heat,
            "distill_weight": share,
        },
        lambda m: dict(zip(("divergence", "next_token"), parts(m))),
    )


BERT = ["query", "value", "attention.output.dense", "intermediate.dense"]
CASES = {
    "lora-embedding": adapter("llama", lora(["embed_tokens", "q_proj"])),
    "lora-embedding-tied": adapter("qwen2", lora(["embed_tokens", "o_proj"])),
    "lora-head": adapter("llama", lora(["lm_head", "v_proj"])),
    "lora-bias-all": adapter("qwen2", lora(["q_proj", "o_proj"], bias="all")),
    "lora-bias-lora_only": adapter("qwen2", lora(["q_proj", "o_proj"], bias="lora_only")),
    "lora-layers": adapter("llama", lora(["q_proj", "up_proj"], layers_to_transform=[1])),
    "lora-plus": adapter("llama", lora(["q_proj", "down_proj"]), loraplus=16),
    "dora-gpt2": adapter("gpt2", lora(["c_attn"], fan_in_fan_out=True, use_dora=True)),
    "lora-gpt2": adapter("gpt2", lora(["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "lora-gpt2-bias-all": adapter("gpt2", lora(["c_attn"], fan_in_fan_out=True, bias="all")),
    "ia3-gpt2": adapter(
        "gpt2",
        peft.IA3Config(
            target_modules=["c_attn", "mlp.c_proj"],
            feedforward_modules=["mlp.c_proj"],
            fan_in_fan_out=True,
            task_type="CAUSAL_LM",
        ),
    ),
    "prefix-gpt2": adapter(
        "gpt2", peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    ),
    "lora-experts": experts,
    "lora-experts-parameters": adapter(
        "mixtral",
        lora(["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    ),
    "lora-gemma3": adapter("gemma3", lora(["q_proj", "o_proj", "up_proj"])),
    "bitfit": bitfit,
    "classify-llama": sequence_class(
        "llama",
        tf.LlamaForSequenceClassification,
        lora(["q_proj", "v_proj"], "SEQ_CLS"),
        pooling="last",
    ),
    "classify-bert": sequence_class(
        "bert",
        tf.BertForSequenceClassification,
        lora(BERT, "SEQ_CLS", modules_to_save=["pooler", "classifier"]),
        pooling="cls",
    ),
    "classify-bert-mean": mean_class,
    "contrastive": contrastive(lora(BERT, "FEATURE_EXTRACTION"), False),
    "contrastive-negatives": contrastive(lora(BERT, "FEATURE_EXTRACTION"), True),
    "contrastive-full": contrastive(None, False, method="full", gradients_only=True),
    "dpo": preference,
    "distill": distill,
}


def main():
    data, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    for name, make in CASES.items():
        if len(sys.argv) > 3 and sys.argv[3] not in name:
            continue
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        rename = (
            (lambda n: n.replace(".mlp.", ".block_sparse_moe."))
            if name == "lora-experts"
            else (lambda n: n)
        )
        loss = record(make(data), folder, rename)
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{name}: loss {loss:.6f}, {size >> 10} KB", flush=True)


if __name__ == "__main__":
    main()
