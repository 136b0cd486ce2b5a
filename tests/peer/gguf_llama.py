#!/usr/bin/env python3
"""Exports as GGUF, run by llama.cpp: each tiny model of tests/model/golden/arch (and of --data DIR/arch) is imported,
exported in F32 and given to llama.cpp, whose logits and greedy tokens are held against Hugging Face's; likewise those
of tests/model/golden/gguf, of which log-probabilities are recorded.

usage: gguf_llama.py FMSTORE LLAMA_LOGITS [--data DIR] [--only NAME]      wants numpy and safetensors
LLAMA_LOGITS is llama_logits.cpp, built by tests/bench/build_llama.sh. What is refused is printed with its reason.
llama.cpp's caches are float16 and its GELU is a table, so logits differ a little (LIMIT, relative); greedy tokens may
differ only where Hugging Face's two best are nearer than that.
"""
import argparse, json, os, pathlib, shutil, subprocess, sys, tempfile
import numpy as np
from safetensors.numpy import load_file

LIMIT = 1e-2
NO_WINDOW = "llama.cpp has no window in this architecture"
LONG = "llama.cpp takes the long factors, as its smallest context of 256 is above the original length"
KNOWN = {"arch/mistral": NO_WINDOW, "arch/phi3": NO_WINDOW, "gguf/phi3": NO_WINDOW, "arch/phi3-longrope": LONG, "gguf/phi3-longrope": LONG}
root = pathlib.Path(__file__).resolve().parents[2]


def tokenizer(folder, vocab):
    """One letter a token: the GGUF has a vocabulary then, without which llama.cpp loads nothing. Of Phi-3's it wants
    some tokens by name."""
    named = ["<unk>", "<s>", "</s>", "<|endoftext|>"]
    letters = [chr(c) for c in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 323))][:vocab - len(named)]
    added = [{"id": i, "content": c, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
             for i, c in enumerate(named)]
    json.dump({"version": "1.0", "added_tokens": added, "normalizer": None, "post_processor": None,
               "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
               "decoder": {"type": "ByteLevel"},
               "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(named + letters)}, "merges": []}},
              open(folder / "tokenizer.json", "w"))


def run(*args, **kw):
    return subprocess.run([str(a) for a in args], capture_output=True, **kw)


def logits(program, gguf, ids, work):
    got = floats(program, gguf, ids, work)
    return None if got is None else got.reshape(len(ids), -1)


def floats(program, gguf, ids, work):
    np.asarray(ids, "<i4").tofile(work / "ids")
    p = run(program, gguf, 1, len(ids), work / "ids")
    return None if p.returncode else np.frombuffer(p.stdout, "<f4")


def best_differ(got, want):
    """Rows whose best token differs although Hugging Face's best leads by more than the error."""
    top = np.sort(want, axis=1)
    clear = top[:, -1] - top[:, -2] > LIMIT * np.abs(want).max()
    return int((clear & (got.argmax(1) != want.argmax(1))).sum()), int(clear.sum())


def export(a, source, work):
    """The model as F32 GGUF with a vocabulary; the reason where it is refused."""
    repo, copy = work / "repo", work / "model"
    repo.mkdir()
    do = lambda *args: run(a.fmstore, *args, cwd=repo)
    do("init", ".")
    if source.is_file():
        do("import", source, "--as", "g")
        do("export", "g", copy, "--format", "hf")
    else:
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("ref.safetensors"))
    config = json.load(open(copy / "config.json"))
    if not (copy / "tokenizer.json").exists():
        tokenizer(copy, (config.get("text_config") or config)["vocab_size"])
    p = do("import", copy, "--as", "m", "--no-gate")
    assert p.returncode == 0, p.stderr
    p = do("export", "m", work / "m.gguf", "--dtype", "f32")
    return "refused: " + p.stderr.decode().strip().removeprefix("fmstore: ") if p.returncode else None


def check_folder(a, folder, work):
    ref = load_file(folder / "ref.safetensors")
    if "logits" not in ref or len(ref["logits"]) != len(ref["input_ids"]):
        return "no logits", None
    ids, want = ref["input_ids"], ref["logits"]
    if ids.ndim == 2:
        ids, want = ids[0], want[0]
    refused = export(a, folder, work)
    if refused:
        return refused, None
    got = logits(a.llama_logits, work / "m.gguf", ids, work)
    if got is None:
        return "llama.cpp does not run it", False
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    wrong, clear = best_differ(got, want)
    text = f"error {error:.1e}, best token of {clear} rows: {wrong} differ"
    if "greedy" in ref:
        tail = np.concatenate([ids[:8], ref["greedy"]])
        said = logits(a.llama_logits, work / "m.gguf", tail, work)[7:-1].argmax(1)
        same = bool((said == ref["greedy"]).all())
        text += ", greedy the same" if same else f", greedy {said.tolist()} for {ref['greedy'].tolist()}"
    return text, bool(error < LIMIT and wrong == 0)


def check_embedding(a, line, work):
    got = floats(a.llama_logits, work / "m.gguf", line["ids"], work)
    if got is None:
        return "llama.cpp does not run it", False
    got = got.astype(np.float64).reshape(-1, len(line["embedding"])).mean(0)
    error = np.abs(got / np.linalg.norm(got) - line["embedding"]).max()
    return f"largest error of an embedding {error:.1e}", bool(error < LIMIT)


def check_recorded(a, line, work):
    refused = export(a, root / "tests/model/golden/gguf" / (line["name"] + ".gguf"), work)
    if refused:
        return refused, None
    if "embedding" in line:
        return check_embedding(a, line, work)
    got = logits(a.llama_logits, work / "m.gguf", line["ids"], work)
    if got is None:
        return "llama.cpp does not run it", False
    wide = got.astype(np.float64)
    said = wide - np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1, keepdims=True)) - wide.max(1, keepdims=True)
    error = max(abs(said[i, line["ids"][i + 1]] - p) for i, p in enumerate(line["logprobs"]))
    return f"largest error of a log-probability {error:.1e}", bool(error < LIMIT)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("fmstore")
    p.add_argument("llama_logits")
    p.add_argument("--data", default=os.environ.get("FM_SHARED_DATA"))
    p.add_argument("--only", default="")
    a = p.parse_args()
    a.fmstore, a.llama_logits = map(os.path.abspath, (a.fmstore, a.llama_logits))
    folders = sorted((root / "tests/model/golden/arch").iterdir())
    if a.data:
        folders += sorted((pathlib.Path(a.data) / "arch").iterdir())
    cases = [("arch/" + f.name, lambda work, f=f: check_folder(a, f, work)) for f in folders]
    for line in map(json.loads, open(root / "tests/model/golden/gguf/logprobs.jsonl")):
        cases.append(("gguf/" + line["name"], lambda work, line=line: check_recorded(a, line, work)))
    ran, bad = 0, []
    for name, case in cases:
        if a.only not in name:
            continue
        with tempfile.TemporaryDirectory() as d:
            text, ok = case(pathlib.Path(d))
        if ok is False and name in KNOWN:
            text, ok = f"{text}; known: {KNOWN[name]}", None
        print(f"{name}: {text}", flush=True)
        ran += ok is not None
        bad += [name] if ok is False else []
    print(f"{ran} given to llama.cpp; wrong: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
