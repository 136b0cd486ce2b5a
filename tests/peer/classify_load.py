#!/usr/bin/env python3
"""Classifiers that fmstore trained, loaded by transformers (full) and PEFT (adapters): labels and log-probabilities.

    FM_OBJECTIVES_OUT=DIR build/tests/model_train_objectives && VENV/bin/python tests/peer/classify_load.py DIR
"""
import json, pathlib, sys
import torch, transformers, peft

out = pathlib.Path(sys.argv[1])
golden = pathlib.Path(__file__).resolve().parents[1] / "model" / "golden" / "objectives"
torch.set_num_threads(1)
worst, failed = 0.0, False
for expected in sorted(out.glob("*.json")):
    name = expected.stem
    if (out / name / "adapter_config.json").exists():
        base = transformers.AutoModelForSequenceClassification.from_pretrained(golden / f"classify-{name.split('-')[0]}")
        try:
            model, info = peft.PeftModel.from_pretrained(base, out / name), {}
        except Exception as e:
            print(f"{name}: FAILED, PEFT refuses it: {str(e)[:200]}")
            failed = True
            continue
        assert model.peft_config["default"].task_type == "SEQ_CLS", name
    else:
        model, info = transformers.AutoModelForSequenceClassification.from_pretrained(out / name, output_loading_info=True)
        assert model.config.id2label == {0: "red", 1: "green", 2: "blue"}, name
    missing = list(info.get("missing_keys", []))
    beside = [k for k in info.get("unexpected_keys", []) if not k.startswith(("lm_head", "pooler"))]
    gap = 0.0
    for case in json.loads(expected.read_text()):
        with torch.no_grad():
            lp = model.eval()(input_ids=torch.tensor([case["ids"]])).logits.log_softmax(-1)[0]
        gap = max(gap, (lp - torch.tensor(case["logprobs"])).abs().max().item())
    bad = missing or beside or not gap <= 2e-6
    print(f"{name}: largest gap of a log-probability {gap:.1e}; missing {missing}, left over {beside}{'  FAILED' if bad else ''}")
    worst, failed = max(worst, gap), failed or bool(bad)
sys.exit(1 if failed or not list(out.glob('*.json')) else 0)
