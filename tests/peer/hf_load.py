#!/usr/bin/env python3
"""What fmstore exports as a Hugging Face folder, read by transformers, PEFT and safetensors.

FMSTORE=build/cli/fmstore python3 tests/peer/hf_load.py [--data DIR] [--gguf SmolLM2-135M-Instruct.gguf]
"""

import json
import pathlib

import peft
import safetensors
import torch
import transformers
from safetensors.torch import load_file

from common import (
    ATLAS,
    DEEP_TOL,
    Failed,
    Peers,
    chat_ids,
    compare_answers,
    compare_scores,
    data,
    load_hf,
    main,
    questions_of,
    tensor_sha256,
)

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "\t\tx",
    "Hello",
    " Hello",
    "Hello, world!  How's it going?",
    "I'LL we've don't",
    "3.14159 1234567 12 0x1F 1e-9",
    "a.b,c;d:e!f?g",
    "for (int i = 0; i < n; i++) {\n    x[i] += y[i];\n}\n",
    "naïve café über straße",
    "Ελληνικά русский 中文 日本語 한국어 العربية עברית हिन्दी ไทย",
    "👍🏽 👨‍👩‍👧 🇫🇷",
    "e\u0301 vs é",
    "\u00a0\u2003\u200bx",
    "trailing   ",
    "   leading",
    "line\r\nline\r",
    "A" * 300,
    "ab " * 100,
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|>",
    "<|user|>\nWhat is the capital of Lorendor?<|end|>\n<|assistant|>\n",
    "<| im_start|> <|im_start",
    "_snake_case CamelCase kebab-case",
    "https://example.org/a?b=c&d=%20",
    "½ ² ① Ⅷ ㎏",
    "\u0000\u0001\u007f",
    "\ufeffbom",
    "''\"\"``",
    "$100 €5 £3 ¥7",
    "x²+y²=z² ∑∫√∞",
]
# A tiny random model's logits near 0 may differ a lot relatively, but little absolutely; the same limit holds.
DECODERS = ["gemma3", "gpt2", "llama", "llama3", "mistral", "mixtral", "qwen2", "qwen3"]


def load_tokenizer(folder):
    with Peers(f"the tokenizer of {folder}"):
        return transformers.AutoTokenizer.from_pretrained(folder)


def compare_tokens(report, store, rev, tokenizer, texts):
    for text, got in zip(texts, store.tokenize(rev, texts), strict=True):
        want = tokenizer.encode(text)
        report.check(got == want, f"{rev}: tokens of {text!r}: fmstore {got}, transformers {want}")
    ids = [tokenizer.encode(t) for t in texts]
    back = [
        x["text"]
        for x in store.lines("tokenize", rev, "--decode", ask=[{"ids": i} for i in ids if i])
    ]
    for i, got in zip([i for i in ids if i], back, strict=True):
        want = tokenizer.decode(i, clean_up_tokenization_spaces=False)
        report.check(got == want, f"{rev}: text of {i}: fmstore {got!r}, transformers {want!r}")


def compare_merge(report, folder, base, adapter, merged):
    """PEFT's own merge in float32, tensor by tensor, against ours: digests."""
    model = load_hf(report, base)
    with Peers(f"merging {adapter}", r"tie_word_embeddings|no longer tied"):
        model = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
    want, got = model.state_dict(), load_file(pathlib.Path(merged, "model.safetensors"))
    plain = load_file(pathlib.Path(base, "model.safetensors"))
    config = json.loads(pathlib.Path(merged, "config.json").read_text())
    if config["tie_word_embeddings"]:
        got["lm_head.weight"] = got["model.embed_tokens.weight"]
    report.check(set(want) == set(got), f"names: {sorted(set(want) ^ set(got))}")
    bad = [n for n in got if tensor_sha256(got[n]) != tensor_sha256(want[n])]
    report.check(not bad, f"{len(bad)} of {len(got)} merged tensors differ: {bad[:5]}")
    changed = sum(tensor_sha256(got[n]) != tensor_sha256(plain[n]) for n in got if n in plain)
    report.check(changed > 0, "the merge changes something")
    return f"{len(got)} tensors equal to merge_and_unload by SHA-256, {changed} of them changed"


def open_safetensors(report, folder):
    """The library's own reader, slices included; the header says that the weights are PyTorch's."""
    with safetensors.safe_open(pathlib.Path(folder, "model.safetensors"), "pt") as f:
        report.check(f.metadata() == {"format": "pt"}, f"metadata {f.metadata()}")
        for name in f.keys():
            whole, part = f.get_tensor(name), f.get_slice(name)[:1]
            report.check(torch.equal(whole[:1], part), name)


def atlas(report, store, folder, args):
    """The base as exported is the base as shipped; a LoRA child merged is PEFT's merge."""
    store("import", ATLAS / "base", "--as", "atlas")
    out = store.export("atlas", folder / "out")
    open_safetensors(report, out)
    model, tokenizer = load_hf(report, out), load_tokenizer(out)
    report.check(
        model.state_dict()["lm_head.weight"].data_ptr()
        == model.state_dict()["model.embed_tokens.weight"].data_ptr(),
        "the head stays tied",
    )
    compare_tokens(report, store, "atlas", tokenizer, TEXTS)
    questions = questions_of(ATLAS / "almanac.jsonl", 10) + questions_of(ATLAS / "clerk.jsonl", 10)
    worst = compare_scores(
        report, store, "atlas", model, [chat_ids(tokenizer, q) for q in questions], 1000, "atlas"
    )
    ties = compare_answers(report, store, "atlas", model, tokenizer, questions, 40, "atlas")
    store(
        "derive",
        "atlas",
        "--as",
        "child",
        "--method",
        "lora",
        "--data",
        ATLAS / "clerk.jsonl",
        "--set",
        "steps=20",
        "--set",
        "lr=0.005",
        "--set",
        "batch=8",
        "--set",
        "max_tokens=96",
    )
    told = compare_merge(
        report,
        folder,
        store.export("atlas", folder / "f32", dtype="f32"),
        store.export("child", folder / "peft", "peft"),
        store.export("child", folder / "merged", dtype="f32"),
    )
    return (
        f"{len(TEXTS)} texts tokenized alike, log-probabilities within {worst:.2g}, "
        f"{len(questions) - ties} answers equal ({ties} near ties); {told}"
    )


def merges(report, store, folder, args):
    """Adapters that PEFT saved, merged by both: dtypes, tied heads and what is saved whole."""
    store("import", ATLAS / "base", "--as", "atlas")
    base, told = store.export("atlas", folder / "base", dtype="f32"), []
    ids = [[1 + (7 * i * j) % 1000 for j in range(1, 25)] for i in (1, 3)]
    kinds = {
        "rslora": dict(target_modules="all-linear", use_rslora=True),
        "patterns": dict(
            target_modules="all-linear", rank_pattern={"q_proj": 2}, alpha_pattern={"o_proj": 3}
        ),
        "saved-norm": dict(target_modules=["o_proj"], modules_to_save=["norm"]),
        "saved-head": dict(target_modules=["q_proj"], modules_to_save=["lm_head"]),
        "saved-embedding": dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"]),
        "saved-both": dict(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]),
        "head": dict(target_modules=["q_proj", "lm_head"]),
    }
    for name, settings in kinds.items():
        torch.manual_seed(len(name))
        with Peers(name, r"tie_word_embeddings|save_embedding_layers"):
            made = peft.get_peft_model(
                load_hf(report, base),
                peft.LoraConfig(
                    r=4, lora_alpha=8, init_lora_weights=False, task_type="CAUSAL_LM", **settings
                ),
            ).eval()
            for key, p in made.named_parameters():
                if "modules_to_save" in key:
                    p.data += torch.randn_like(p) * 0.05
            made.save_pretrained(folder / name)
        store("import", folder / name, "--as", name, "--parent", "atlas")
        merged = store.export(name, folder / f"{name}-merged", dtype="f32")
        # PEFT merges a tied head into the shared matrix, so that its merged model is another than its
        # unmerged one; ours unties. Held against the unmerged one instead.
        if name != "head":
            compare_merge(report, folder, base, folder / name, merged)
        worst = max(
            compare_scores(report, store, name, made, ids, 1000, name),
            compare_scores(report, store, name, load_hf(report, merged), ids, 1000, name),
        )
        told.append(f"{name} {worst:.2g}")
    return "digests as PEFT's, scores before and after the merge within: " + "; ".join(told)


def full(report, store, folder, args):
    """A full fine-tune, stored as bf16 and as f32, scores the same as its own export."""
    told = []
    store("import", ATLAS / "base", "--as", "atlas")
    for dtype in ("BF16", "F32"):
        store(
            "derive",
            "atlas",
            "--as",
            dtype,
            "--method",
            "full",
            "--data",
            ATLAS / "clerk.jsonl",
            "--set",
            "steps=20",
            "--set",
            "lr=0.001",
            "--set",
            "batch=8",
            "--set",
            "max_tokens=96",
            "--set",
            f"dtype={dtype}",
        )
        out = store.export(dtype, folder / dtype)
        model, tokenizer = load_hf(report, out), load_tokenizer(out)
        named = json.loads((out / "config.json").read_text())
        weights = load_file(out / "model.safetensors")
        stored = {str(t.dtype).removeprefix("torch.") for t in weights.values()}
        report.check(
            {named.get("dtype", named.get("torch_dtype"))} == stored,
            f"config.json says {named.get('dtype', named.get('torch_dtype'))}, the weights are {stored}",
        )
        questions = questions_of(ATLAS / "clerk.jsonl", 20)
        worst = compare_scores(
            report, store, dtype, model, [chat_ids(tokenizer, q) for q in questions], 1000, dtype
        )
        ties = compare_answers(report, store, dtype, model, tokenizer, questions, 40, dtype)
        told.append(
            f"{dtype}: log-probabilities within {worst:.2g}, {len(questions) - ties} answers equal"
        )
    return "; ".join(told)


def smollm2(report, store, folder, args):
    """A GGUF, exported as float32 and as bfloat16, and a LoRA that PEFT trained on it, merged."""
    if not args.gguf:
        return None
    store("import", args.gguf, "--as", "smol")
    out = store.export("smol", folder / "f32", dtype="f32")
    open_safetensors(report, out)
    model, tokenizer, told = load_hf(report, out), load_tokenizer(out), []
    listed = data(args, "smollm2", "tensors.json")
    cases = data(args, "smollm2", "tokenizer_cases.json")
    texts = TEXTS + [c["text"] for c in json.loads(cases.read_text())] if cases else TEXTS
    compare_tokens(report, store, "smol", tokenizer, texts)
    told.append(f"{len(texts)} texts tokenized alike")
    for q in questions_of(ATLAS / "clerk.jsonl", 3) + [
        "Why is the sky blue?",
        "Write a haiku about rain.",
    ]:
        report.check(chat_ids(tokenizer, q), "the chat template renders")
    asked = [
        "What is the capital of France?",
        "Explain gravity to a child.",
        "Name three primes.",
        "Write a short poem about the sea.",
        "What is 12 times 12?",
    ]
    ids = [chat_ids(tokenizer, q) for q in asked]
    told.append(
        f"f32 within {compare_scores(report, store, 'smol', model, ids, 200, 'smol', DEEP_TOL):.2g}"
    )
    ties = compare_answers(report, store, "smol", model, tokenizer, asked, 32, "smol")
    told.append(f"{len(asked) - ties} answers equal, {ties} near ties")
    if listed:
        told.append(compare_digests(report, json.loads(listed.read_text()), out, "f32"))
    bf16 = store.export("smol", folder / "bf16", dtype="bf16")
    if listed:
        told.append(compare_digests(report, json.loads(listed.read_text()), bf16, "bf16"))
    store("import", bf16, "--as", "smol16", "--parent", "smol", "--kind", "cast")
    told.append(
        "bf16 imported again, within "
        f"{compare_scores(report, store, 'smol16', load_hf(report, bf16), ids[:3], 200, 'bf16', DEEP_TOL):.2g}"
    )
    lora = data(args, "smollm2-lora")
    if lora:
        store("import", lora, "--as", "lora", "--parent", "smol")
        told.append(
            compare_merge(
                report, folder, out, lora, store.export("lora", folder / "merged", dtype="f32")
            )
        )
    return "; ".join(told)


def compare_digests(report, listed, folder, which):
    """Against the digests that another program took of the dequantized tensors."""
    got = load_file(pathlib.Path(folder, "model.safetensors"))
    rows = listed.get("tensors", listed)
    for name, t in got.items():
        report.check(rows[name][f"sha256_{which}"] == tensor_sha256(t), f"{which} digest of {name}")
    return f"{len(got)} {which} tensors by SHA-256"


def architectures(report, store, folder, args):
    """Tiny models of each architecture: out as we wrote them, in with transformers, scored."""
    if not data(args, "arch"):
        return None
    told = []
    for name in DECODERS:
        where = data(args, "arch", name)
        store("import", where, "--as", name)
        out = store.export(name, folder / name)
        model = load_hf(report, out)
        there, here = load_hf(report, where).state_dict(), model.state_dict()
        report.check(there.keys() == here.keys(), f"{name}: transformers finds the same parameters")
        for key, want in there.items():
            report.check(torch.equal(want, here[key]), f"{name}: {key}")
        vocab = model.get_input_embeddings().weight.shape[0]
        torch.manual_seed(2)
        ids = [torch.randint(3, vocab, (n,)).tolist() for n in (2, 17, 40)]
        try:
            worst = compare_scores(report, store, name, model, ids, min(vocab, 160), name)
            told.append(f"{name} within {worst:.2g}")
        except Failed as e:
            if "is not supported" not in str(e):
                raise
            told.append(f"{name} weights only, our engine refuses it by name")
    return "; ".join(told)


if __name__ == "__main__":
    main(
        __doc__,
        [
            ("atlas", atlas),
            ("merges", merges),
            ("full", full),
            ("smollm2", smollm2),
            ("architectures", architectures),
        ],
    )
