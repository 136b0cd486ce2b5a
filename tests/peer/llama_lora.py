#!/usr/bin/env python3
"""Adapters written as GGUF LoRA, on the base's F32 GGUF in llama.cpp, beside the version here.

Log-probabilities of a text, and the greedy tokens after it: fmstore's are fed to llama.cpp, which must
choose each of them too. Where llama.cpp's own convert_lora_to_gguf.py runs, its file of the same PEFT
folder must have the same tensors.

    FMSTORE=build/cli/fmstore FM_LLAMA=FOLDER python3 tests/peer/llama_lora.py [SMOLLM2.gguf]

FOLDER is build_llama.sh's. Needs numpy; the converter torch and transformers too."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
ATLAS = ROOT / "examples" / "atlas"
PROGRAM = str(pathlib.Path(os.environ["FMSTORE"]).resolve())
LLAMA = pathlib.Path(os.environ["FM_LLAMA"]).resolve()
GREEDY = 20


def run(*args, text=None):
    done = subprocess.run([str(a) for a in args], input=text, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, args))}: {done.stderr.strip()}")
    return done.stdout


def store(*args, text=None):
    return run(PROGRAM, *args, text=text)


def score(rev, ids):
    got = json.loads(store("score", rev, "--top", "1", text=json.dumps({"ids": ids}) + "\n"))
    return got["logprobs"][1:], [best[0][0] for best in got["top"]]


def continued(rev, text):
    ids = json.loads(store("tokenize", rev, text=json.dumps({"text": text}) + "\n"))["ids"]
    for _ in range(GREEDY):
        ids.append(score(rev, ids)[1][-1])
    return ids


def log_probabilities(base, ids, loras):
    with open("ids", "wb") as f:
        f.write(struct.pack(f"<{len(ids)}i", *ids))
    got = subprocess.run(
        [LLAMA / "bin" / "llama-logits", base, "2", "512", "ids", "--exact", *loras],
        capture_output=True,
    )
    if got.returncode != 0:
        sys.exit(got.stderr.decode())
    x = numpy.frombuffer(got.stdout, "<f4").reshape(len(ids), -1).astype(numpy.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - numpy.log(numpy.exp(x).sum(axis=1, keepdims=True))


def compare(what, rev, parent, loras, text):
    """The gap of the base alone is what an adapter's is held to."""
    ids = continued(rev, text)
    each = numpy.arange(len(ids) - 1), ids[1:]
    mine, base = score(rev, ids)[0], score(parent, ids)[0]
    theirs = log_probabilities(f"{parent}.gguf", ids, loras)
    plain = log_probabilities(f"{parent}.gguf", ids, [])
    gap = numpy.abs(theirs[each] - mine).max()
    usual = numpy.abs(plain[each] - base).max()
    moved = numpy.abs(plain[each] - mine).max()
    same = (theirs.argmax(axis=1)[-GREEDY - 1 : -1] == ids[-GREEDY:]).all()
    print(
        f"{what}: gap {gap:.2g} (the base alone {usual:.2g}), the adapter moves {moved:.2g}, "
        f"greedy {'same' if same else 'OTHER'}"
    )
    if not same or not gap < 3 * usual or not moved > 20 * gap:
        sys.exit(f"{what}: llama.cpp answers otherwise")


def converted(what, base, peft, lora):
    source = next(LLAMA.glob("src/*/vendor/llama.cpp"))
    made = subprocess.run(
        [sys.executable, source / "convert_lora_to_gguf.py", "--base", base, "--outfile", "ref.gguf", peft],
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        print(f"{what}: no converter here: {made.stderr.strip().splitlines()[-1]}")
        return
    sys.path.insert(0, str(source / "gguf-py"))
    import gguf

    want, have = gguf.GGUFReader("ref.gguf"), gguf.GGUFReader(lora)
    mine = {t.name: t for t in have.tensors}
    assert mine.keys() == {t.name for t in want.tensors}
    for t in want.tensors:
        m = mine[t.name]
        assert (m.tensor_type, list(m.shape)) == (t.tensor_type, list(t.shape)), t.name
        assert m.data.tobytes() == t.data.tobytes(), t.name
    names = ["general.architecture", "general.type", "adapter.type", "adapter.lora.alpha"]
    for name in names:
        assert want.fields[name].contents() == have.fields[name].contents(), name
    print(f"{what}: the converter's {len(mine)} tensors and fields")


def derive(parent, name, data, *sets):
    flags = [x for s in ["seed=1", *sets] for x in ("--set", s)]
    store("derive", parent, "--as", name, "--method", "lora", "--data", data, *flags, "--no-gate", "-m", name)


def atlas():
    store("import", ATLAS / "base", "--as", "atlas", "--no-gate")
    store("export", "atlas", "atlas.gguf", "--dtype", "f32")
    ask = "<|user|>\nWhat is the capital of Lorendor?<|end|>\n<|assistant|>\n"
    kinds = {
        "plain": ["steps=60", "r=4"],
        "rslora": ["steps=60", "r=4", "rslora=true"],
        "ranks": ["steps=60", "r=4", "rank_pattern=q_proj=2,layers.1.mlp.up_proj=8"],
    }
    for name, sets in kinds.items():
        derive("atlas", name, ATLAS / "pirate.jsonl", *sets)
        store("export", name, f"{name}.gguf", "--format", "gguf-lora")
        compare(f"atlas, {name}", name, "atlas", [f"{name}.gguf"], ask)
    store("export", "plain", "plain-peft", "--format", "peft")
    converted("atlas, plain", ATLAS / "base", "plain-peft", "plain.gguf")
    derive("plain", "second", ATLAS / "clerk.jsonl", "steps=60", "r=2")
    store("export", "second", "second", "--format", "gguf-lora")
    both = sorted(pathlib.Path("second").iterdir())
    assert [p.name for p in both] == ["0-lora.gguf", "1-lora.gguf"], both
    compare("atlas, two adapters", "second", "atlas", both, ask)


def smollm2(path):
    store("import", path, "--as", "smollm2", "--no-gate")
    store("export", "smollm2", "smollm2.gguf", "--dtype", "f32")
    derive("smollm2", "tuned", ATLAS / "pirate.jsonl", "steps=8", "r=8", "alpha=32")
    store("export", "tuned", "tuned.gguf", "--format", "gguf-lora")
    compare("smollm2", "tuned", "smollm2", ["tuned.gguf"], "Once upon a time, in a land far away,")


def main():
    smol = [pathlib.Path(p).resolve() for p in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        store("init", ".")
        atlas()
        for path in smol:
            smollm2(path)


main()
