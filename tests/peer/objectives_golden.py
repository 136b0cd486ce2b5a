#!/usr/bin/env python3
"""Tiny models with classification heads, and training towards every objective in PyTorch: tests/model/golden/objectives.

usage: objectives_golden.py OUT_DIR        made with torch 2.15, transformers 5.23, peft 0.21
OUT/<name>/config.json, model.safetensors, ref.safetensors, float32. ref.safetensors of the classifiers: input_ids [B, T] i32, len [B] i32,
klass [B] i32, logits [B, C], loss, grad.<parameter>, and of AdamW (lr 1e-3, weight decay 0.01, clip 1, batches of BATCH in file order, all parameters):
train.loss [S], train.norm [S]. Of `contrastive` (sentence-transformers' MultipleNegativesRankingLoss written out), `dpo` (TRL's sigmoid loss
written out; the reference is the beginning) and `distill` (Hinton's, on `teacher`): what the rows are is said beside each.
"""
import copy, os, sys, torch
import torch.nn.functional as F
from safetensors.torch import save_file
import transformers as tf

out = sys.argv[1]
torch.set_num_threads(1)
torch.manual_seed(0)
V, H, T, B, STEPS = 48, 16, 12, 4, 5
base = dict(vocab_size=V, hidden_size=H, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=0)
llama = dict(base, intermediate_size=24, num_key_value_heads=1)
labels = dict(num_labels=3, id2label={0: "no", 1: "perhaps", 2: "yes"}, label2id={"no": 0, "perhaps": 1, "yes": 2})
gen = torch.Generator().manual_seed(3)
N = B * STEPS
ids = torch.randint(3, V, (2 * N, T), generator=gen)
length = torch.randint(4, T + 1, (2 * N,), generator=gen)
klass = torch.randint(0, 3, (N,), generator=gen)


def fresh(model, seed):
    g = torch.Generator().manual_seed(seed)
    model = model.float().eval()
    for p in model.parameters():
        p.data += 0.12 * torch.randn(p.shape, generator=g)
    if getattr(model.config, "tie_word_embeddings", False):
        model.tie_weights()
    return model


def save(name, model, ref, steps=None):
    d = os.path.join(out, name)
    os.makedirs(d, exist_ok=True)
    model.config.save_pretrained(d)
    save_file({k: v.contiguous().clone() for k, v in model.state_dict().items() if not k.endswith(("position_ids", ".attn.bias", ".attn.masked_bias"))},
              os.path.join(d, "model.safetensors"), metadata={"format": "pt"})
    save_file({k: v.detach().contiguous().clone() for k, v in ref.items()}, os.path.join(d, "ref.safetensors"))


def steps_of(model, loss_of, ref):
    """loss_of(model, step); loss and gradients of step 0 in float64, then the run."""
    exact = copy.deepcopy(model).double()
    loss = loss_of(exact, 0)
    loss.backward()
    for n, p in exact.named_parameters():
        if p.grad is not None:
            ref["grad." + n] = p.grad.float()
    ref["loss"] = loss.detach()[None]
    run = copy.deepcopy(model)
    opt = torch.optim.AdamW(run.parameters(), lr=1e-3, weight_decay=0.01)
    losses, norms = [], []
    for s in range(STEPS):
        opt.zero_grad()
        loss = loss_of(run, s)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(run.parameters(), 1.0))
        losses.append(loss.detach())
        opt.step()
    ref["train.loss"], ref["train.norm"] = torch.stack(losses), torch.stack(norms)


def masked(i):
    mask = (torch.arange(T)[None] < length[i][:, None]).long()
    return ids[i] * mask, mask


def rows(s, n=B):
    return torch.arange(s * n, (s + 1) * n)


# ---- classification: row i's class is klass[i] ----
heads = {
    "classify-llama": tf.LlamaForSequenceClassification(tf.LlamaConfig(**llama, **labels)),
    "classify-gpt2": tf.GPT2ForSequenceClassification(tf.GPT2Config(vocab_size=V, n_embd=H, n_layer=2, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2,
        pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **labels)),
    "classify-bert": tf.BertForSequenceClassification(tf.BertConfig(**base, intermediate_size=24, **labels)),
    "classify-roberta": tf.RobertaForSequenceClassification(tf.RobertaConfig(**dict(base, pad_token_id=0), intermediate_size=24, type_vocab_size=1, **labels)),
}
x, mask = masked(torch.arange(N))


def classifier(name, model):
    model = fresh(model, 5)

    def loss_of(m, s):
        x, mask = masked(rows(s))
        return F.cross_entropy(m(input_ids=x, attention_mask=mask).logits, klass[rows(s)])

    ref = {"input_ids": ids[:N].int(), "len": length[:N].int(), "klass": klass.int(), "logits": model(input_ids=x, attention_mask=mask).logits}
    steps_of(model, loss_of, ref)
    save(name, model, ref)


for name, model in heads.items():
    classifier(name, model)

import peft

adapted = peft.get_peft_model(copy.deepcopy(heads["classify-llama"]), peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["q_proj", "up_proj"]))
g = torch.Generator().manual_seed(6)
for n, p in adapted.named_parameters():
    if p.requires_grad:
        p.data += 0.2 * torch.randn(p.shape, generator=g)
adapted.eval()
d = os.path.join(out, "classify-llama", "peft")
adapted.save_pretrained(d)
for f in ("README.md",):
    if os.path.exists(os.path.join(d, f)):
        os.remove(os.path.join(d, f))
save_file({"logits": adapted(input_ids=x, attention_mask=mask).logits.detach().contiguous()}, os.path.join(d, "ref.safetensors"))

# ---- contrastive: rows 3i, 3i + 1, 3i + 2 are anchor, positive, negative; 2 triples a step; means over the tokens, scale 1 / 0.05 ----
model = fresh(tf.BertModel(tf.BertConfig(**base, intermediate_size=24), add_pooling_layer=False), 7)


def ranking(symmetric):
    def loss_of(m, s):
        x, mask = masked(rows(s, 6))
        h = m(input_ids=x, attention_mask=mask).last_hidden_state
        e = F.normalize((h * mask[..., None]).sum(1) / mask.sum(1)[:, None], dim=1)
        scores = e[0::3] @ torch.cat([e[1::3], e[2::3]]).T / 0.05
        own = torch.arange(2)
        loss = F.cross_entropy(scores, own)
        return (loss + F.cross_entropy(scores[:, :2].T, own)) / 2 if symmetric else loss

    return loss_of


for name, symmetric in (("contrastive", False), ("contrastive-symmetric", True)):
    ref = {"input_ids": ids[: 6 * STEPS].int(), "len": length[: 6 * STEPS].int()}
    steps_of(model, ranking(symmetric), ref)
    save(name, model, ref)

# ---- the same of a decoder, whose last tokens' states are compared ----
model = fresh(tf.LlamaModel(tf.LlamaConfig(**llama)), 10)
model.config.architectures = ["LlamaModel"]


def last(m, s):
    x, mask = masked(rows(s, 6))
    h = m(input_ids=x, attention_mask=mask).last_hidden_state
    e = F.normalize(h[torch.arange(6), mask.sum(1) - 1], dim=1)
    return F.cross_entropy(e[0::3] @ torch.cat([e[1::3], e[2::3]]).T / 0.05, torch.arange(2))


ref = {"input_ids": ids[: 6 * STEPS].int(), "len": length[: 6 * STEPS].int()}
steps_of(model, last, ref)
whole = tf.LlamaForCausalLM(model.config)
whole.model.load_state_dict(model.state_dict())
save("contrastive-llama", whole, {("grad.model." + k[5:] if k.startswith("grad.") else k): v for k, v in ref.items()})

# ---- DPO: rows 2i, 2i + 1 are chosen, rejected; the first 3 tokens of each are its prompt; 2 pairs a step; beta 0.3 ----
model = fresh(tf.LlamaForCausalLM(tf.LlamaConfig(**llama)), 8)


def logps(m, i):
    x, mask = masked(i)
    lp = m(input_ids=x, attention_mask=mask).logits.log_softmax(-1)[:, :-1].gather(-1, x[:, 1:, None])[..., 0]
    counts = (mask[:, 1:] * (torch.arange(1, T) >= 3)).float()
    return (lp * counts).sum(1)


reference = copy.deepcopy(model)


def dpo(m, s):
    i = rows(s)
    with torch.no_grad():
        r = logps(reference if next(m.parameters()).dtype == torch.float32 else copy.deepcopy(reference).double(), i)
    p = logps(m, i)
    return -F.logsigmoid(0.3 * ((p[0::2] - p[1::2]) - (r[0::2] - r[1::2]))).mean()


ref = {"input_ids": ids[:N].int(), "len": length[:N].int(), "logps": logps(model, torch.arange(N))}
steps_of(model, dpo, ref)
save("dpo", model, ref)

# ---- distillation: all tokens but the first count; temperature 2, weight 0.7; `teacher` is wider; `self` has the student's shape ----
teacher = fresh(tf.LlamaForCausalLM(tf.LlamaConfig(**dict(llama, hidden_size=24, intermediate_size=40))), 9)
save("teacher", teacher, {"input_ids": ids[:2].int()})
wide = teacher


def distil(m, s):
    x, mask = masked(rows(s))
    of = teacher if next(m.parameters()).dtype == torch.float32 else copy.deepcopy(teacher).double()
    z, t = m(input_ids=x, attention_mask=mask).logits[:, :-1], of(input_ids=x, attention_mask=mask).logits[:, :-1].detach()
    on = mask[:, 1:].bool()
    z, t, y = z[on], t[on], x[:, 1:][on]
    kl = F.kl_div(F.log_softmax(z / 2, -1), F.log_softmax(t / 2, -1), log_target=True, reduction="batchmean")
    return 0.3 * F.cross_entropy(z, y) + 0.7 * 4 * kl


student = fresh(tf.LlamaForCausalLM(tf.LlamaConfig(**llama)), 11)
for name, teacher in (("distill", wide), ("distill-same", model)):  # the latter's teacher is dpo's model
    ref = {"input_ids": ids[:N].int(), "len": length[:N].int()}
    steps_of(student, distil, ref)
    save(name, student, ref)

# ---- of a later day, so that what is above keeps its random numbers ----
classifier("classify-distilbert", tf.DistilBertForSequenceClassification(tf.DistilBertConfig(vocab_size=V, dim=H, hidden_dim=24, n_layers=2, n_heads=2,
    max_position_embeddings=32, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, **labels)))
