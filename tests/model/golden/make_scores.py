#!/usr/bin/env python3
"""Tiny models of transformers' ...ForSequenceClassification with one output: objectives/score-*, for tests/model/infer_classify.c.

usage: make_scores.py OUT_DIR [NAME..]        made with torch 2.15, transformers 5.23
OUT/<name>/config.json, model.safetensors (bfloat16), ref.safetensors: input_ids [B, T] i32, len [B] i32, logits [B, 1] f32."""
import os, sys, torch
from safetensors.torch import save_file
import transformers as tf

torch.set_num_threads(1)
V, H, T, B = 48, 16, 12, 6
base = dict(vocab_size=V, hidden_size=H, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=0,
            intermediate_size=24, num_labels=1)
heads = {
    "score-qwen3": tf.Qwen3ForSequenceClassification(tf.Qwen3Config(**base, num_key_value_heads=1, head_dim=8)),
    "score-bert": tf.BertForSequenceClassification(tf.BertConfig(**base)),
    "score-albert": tf.AlbertForSequenceClassification(tf.AlbertConfig(**base, embedding_size=8)),
    "score-modernbert": tf.ModernBertForSequenceClassification(tf.ModernBertConfig(**base, local_attention=6, cls_token_id=1, sep_token_id=2)),
    "score-modernbert-mean": tf.ModernBertForSequenceClassification(tf.ModernBertConfig(**base, classifier_pooling="mean", classifier_bias=True, norm_bias=True,
        classifier_activation="relu", cls_token_id=1, sep_token_id=2)),
    "score-xlm-roberta": tf.XLMRobertaForSequenceClassification(tf.XLMRobertaConfig(**base, type_vocab_size=1, problem_type="regression")),
}
gen = torch.Generator().manual_seed(3)
ids = torch.randint(3, V, (B, T), generator=gen)
length = torch.randint(4, T + 1, (B,), generator=gen)
mask = (torch.arange(T)[None] < length[:, None]).long()
for name, m in heads.items():
    if sys.argv[2:] and name not in sys.argv[2:]: continue
    m = m.float().eval()
    g = torch.Generator().manual_seed(5)
    for p in m.parameters(): p.data = (p.data + 0.12 * torch.randn(p.shape, generator=g)).bfloat16().float()
    with torch.no_grad(): logits = m(input_ids=ids * mask, attention_mask=mask).logits
    d = os.path.join(sys.argv[1], name)
    os.makedirs(d, exist_ok=True)
    m.config.save_pretrained(d)
    save_file({k: v.bfloat16().contiguous().clone() for k, v in m.state_dict().items() if not k.endswith("position_ids")}, os.path.join(d, "model.safetensors"),
              metadata={"format": "pt"})
    save_file({"input_ids": ids.int(), "len": length.int(), "logits": logits.contiguous()}, os.path.join(d, "ref.safetensors"))
    print(name, logits.flatten().tolist())
