#!/usr/bin/env python3
"""Adapters between fmstore and PEFT, both ways.

Ours: a LoRA derived here, exported, laid by PEFT on the exported parent: same log-probabilities, same
greedy answers. Theirs: adapters that PEFT wrote come back byte for byte, and score as PEFT scores them.

    FMSTORE=build/cli/fmstore python3 tests/peer/peft_load.py [--data DIR]"""

import json
import pathlib

import peft
import torch
import transformers

from common import (
    ATLAS,
    Failed,
    Peers,
    chat_ids,
    compare_answers,
    compare_scores,
    data,
    load_hf,
    main,
    questions_of,
    sha256,
)

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "model" / "golden" / "train"
QUESTIONS = 20
SETS = ["r=8", "alpha=16", "lr=0.005", "steps=24", "batch=8", "max_tokens=96", "seed=3"]


# What PEFT says of adapters that are meant so: factors on a tied embedding, and experts apart, which it turns
# into parameters by patterns of its own before some of its checks.
# The first of RandLoRA's two copies of its bases is stored alone; and without CUDA PEFT says that BOFT has one factor.
MEANT = r"missing adapter keys .*randlora_A|boft_n_butterfly_factor to 1|ensure_weight_tying|_pattern keys did not match .*gate_up_proj"


def with_adapter(report, base_folder, adapter_folder):
    model = load_hf(report, base_folder)
    with Peers(f"loading {adapter_folder}", expect=MEANT):
        return peft.PeftModel.from_pretrained(model, adapter_folder).eval()


def set_args(values):
    return [a for v in values for a in ("--set", v)]


def atlas(report, store, folder, more_sets, method="lora"):
    """The atlas, a child of it, both exported; what PEFT makes of them."""
    store("import", ATLAS / "base", "--as", "atlas")
    store(
        "derive",
        "atlas",
        "--as",
        "child",
        "--method",
        method,
        "--data",
        ATLAS / "pirate.jsonl",
        *set_args(SETS + more_sets),
    )
    base = store.export("atlas", folder / "base")
    adapter = store.export("child", folder / "adapter", "peft")
    with Peers("the tokenizer"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    return with_adapter(report, base, adapter), tokenizer, base, adapter


def derived(more_sets, method="lora", answers=True):
    """answers: PEFT's prompt kinds take no cache of ours, so that their answers are not compared."""

    def part(report, store, folder, args):
        model, tokenizer, base, _ = atlas(report, store, folder, more_sets, method)
        questions = questions_of(ATLAS / "pirate.jsonl", QUESTIONS)
        ids = [chat_ids(tokenizer, q) for q in questions]
        worst = compare_scores(report, store, "child", model, ids, 1000, "child")
        if not answers:
            return f"log-probabilities within {worst:.2g}"
        ties = compare_answers(report, store, "child", model, tokenizer, questions, 40, "child")
        plain = load_hf(report, base)
        with torch.no_grad():
            moved = max(
                (
                    model(input_ids=torch.tensor([i])).logits
                    - plain(input_ids=torch.tensor([i])).logits
                )
                .abs()
                .max()
                .item()
                for i in ids[:3]
            )
        report.check(moved > 0.1, f"the adapter changes the model (logits by {moved:.3g})")
        return (
            f"log-probabilities within {worst:.2g}, {len(questions) - ties} answers equal, {ties} near "
            f"ties; the adapter moves logits by up to {moved:.2g}"
        )

    return part


def stacked(report, store, folder, args):
    """A LoRA on a LoRA: the parent's export is merged, the child's adapter is the topmost alone."""
    atlas(report, store, folder, [])
    store(
        "derive",
        "child",
        "--as",
        "grandchild",
        "--method",
        "lora",
        "--data",
        ATLAS / "almanac.jsonl",
        *set_args(SETS),
    )
    store.export("child", folder / "merged", dtype="f32")
    store.export("grandchild", folder / "top", "peft")
    model = with_adapter(report, folder / "merged", folder / "top")
    with Peers("the tokenizer"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "merged")
    ids = [chat_ids(tokenizer, q) for q in questions_of(ATLAS / "almanac.jsonl", 8)]
    worst = compare_scores(report, store, "grandchild", model, ids, 1000, "grandchild")
    return f"log-probabilities within {worst:.2g}"


def random_ids():
    torch.manual_seed(1)
    return [torch.randint(3, 160, (24,)).tolist() for _ in range(4)]


def foreign(report, store, folder, parent, base, where, ids):
    """One adapter folder of PEFT's: in, out again by the byte, and scored. What is refused says so."""
    kind = where.name
    try:
        store("import", where, "--as", kind, "--parent", parent)
    except Failed as e:
        if "exit 128" not in str(e):
            raise
        return f"{kind}: import refused ({str(e).split(': ', 3)[-1][:150]})"
    for fmt in ("source", "peft"):
        out = pathlib.Path(store.export(kind, folder / f"{kind}-{fmt}", fmt))
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            same = sha256((out / name).read_bytes()) == sha256((where / name).read_bytes())
            report.check(same, f"{kind} --format {fmt}: {name} comes back byte for byte")
    model = with_adapter(report, base, out)
    try:
        return f"{kind} {compare_scores(report, store, kind, model, ids, 160, kind):.2g}"
    except Failed as e:
        if "exit 128" not in str(e):
            raise
        return f"{kind}: bytes only, run refused ({str(e).split(': ', 2)[-1][:90]})"


def imported(report, store, folder, args):
    """Each kind that PEFT wrote: the same bytes out, and loadable again; LoRA kinds also score the same."""
    where = data(args, "arch", "llama")
    if not where:
        return None
    store("import", where, "--as", "llama")
    base, told, same_files = store.export("llama", folder / "base"), [], 0
    ids = random_ids()
    told.append(
        f"base {compare_scores(report, store, 'llama', load_hf(report, base), ids, 160, 'base'):.2g}"
    )
    for kind in sorted((where / "peft").iterdir()):
        told.append(foreign(report, store, folder, "llama", base, kind, ids))
        same_files += 4
    return f"{same_files} files byte-equal; " + "; ".join(told)


def golden(report, store, folder, args):
    """The same for the kinds recorded in tests/model/golden/train, on whichever tiny model each stands."""
    if not data(args, "arch", "llama"):
        return None
    told, bases = [], {}
    for kind in sorted(p.parent for p in GOLDEN.glob("*/adapter_config.json")):
        if json.loads((kind / "adapter_config.json").read_text()).get("task_type") != "CAUSAL_LM":
            continue
        base = json.loads((kind / "case.json").read_text())["base"]
        if base not in bases:
            store("import", data(args, "arch", base), "--as", base)
            bases[base] = store.export(base, folder / base)
        told.append(foreign(report, store, folder, base, bases[base], kind, random_ids()))
    return "; ".join(told)


def theirs(report, store, folder, args):
    """Adapters that PEFT makes on the exported atlas, with the settings people use, come in and score."""
    store("import", ATLAS / "base", "--as", "atlas")
    base, told = store.export("atlas", folder / "base"), []
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    kinds = {
        "qv": dict(target_modules=["q_proj", "v_proj"]),
        "all-linear": dict(target_modules="all-linear"),
        "regex": dict(target_modules=r".*layers\.[1-3]\.self_attn\.(q|k)_proj"),
        "rslora": dict(target_modules=every, use_rslora=True),
        "patterns": dict(
            target_modules=every, rank_pattern={"q_proj": 2}, alpha_pattern={"down_proj": 3}
        ),
        "some-layers": dict(target_modules=every, layers_to_transform=[0, 5]),
        "saved-norm": dict(target_modules=["o_proj"], modules_to_save=["norm"]),
    }
    ids = [[1 + (7 * i * j) % 1000 for j in range(1, 25)] for i in (1, 3, 5)]
    for name, settings in kinds.items():
        torch.manual_seed(len(name))
        made = peft.get_peft_model(
            load_hf(report, base),
            peft.LoraConfig(
                r=4, lora_alpha=8, init_lora_weights=False, task_type="CAUSAL_LM", **settings
            ),
        ).eval()
        made.save_pretrained(folder / name)
        store("import", folder / name, "--as", name, "--parent", "atlas")
        worst = compare_scores(report, store, name, made, ids, 1000, name)
        out = store.export(name, folder / f"{name}-source", "source")
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            report.check(
                (out / file).read_bytes() == (folder / name / file).read_bytes(), f"{name}: {file}"
            )
        told.append(f"{name} {worst:.2g}")
    return "; ".join(told)


def config_fields(report, store, folder, args):
    """Our adapter_config.json has no field that PEFT does not know."""
    _, _, _, adapter = atlas(report, store, folder, [])
    ours = json.loads((adapter / "adapter_config.json").read_text())
    known = set(peft.LoraConfig().to_dict())
    report.check(set(ours) <= known, f"unknown fields {sorted(set(ours) - known)}")
    return f"{len(ours)} of PEFT {peft.__version__}'s {len(known)} fields, none unknown"


if __name__ == "__main__":
    main(
        __doc__,
        [
            ("derived", derived([])),
            ("derived-rslora", derived(["rslora=true"])),
            ("derived-qv", derived(["targets=q_proj,v_proj"])),
            ("derived-dora", derived(["dora=true"])),
            ("derived-patterns", derived(["rank_pattern=q_proj=4", "alpha_pattern=down_proj=8"])),
            ("derived-layers", derived(["layers=1-3"])),
            ("derived-embedding", derived(["targets=embed_tokens,q_proj"])),
            ("derived-saved", derived(["modules_to_save=norm"])),
            ("derived-loha", derived(["r=4"], "loha")),
            ("derived-lokr", derived(["r=4", "decompose_factor=4"], "lokr")),
            ("derived-oft", derived(["r=0", "oft_block_size=8"], "oft")),
            ("derived-boft", derived([], "boft")),
            ("derived-hra", derived(["apply_GS=true"], "hra")),
            ("derived-miss", derived(["init_weights=bat"], "miss")),
            ("derived-shira", derived(["r=2"], "shira")),
            ("derived-fourierft", derived(["lr=0.03"], "fourierft")),
            ("derived-randlora", derived(["alpha=64"], "randlora")),
            ("derived-vera", derived(["lr=0.05"], "vera")),
            ("derived-adalora", derived(["lr=0.02"], "adalora")),
            ("derived-ia3", derived(["targets="], "ia3")),
            ("derived-prefix", derived(["virtual_tokens=4"], "prefix", False)),
            ("derived-prompt", derived(["virtual_tokens=4"], "prompt", False)),
            ("stacked", stacked),
            ("config", config_fields),
            ("imported", imported),
            ("golden", golden),
            ("theirs", theirs),
        ],
    )
