#!/usr/bin/env python3
"""The vocabularies in llama.cpp's models/ against the ids that it keeps beside them.

usage: gguf_vocab.py FMSTORE LLAMA_CPP      prints a line for each file; exit 1 where a text has other ids

A begin or end token that one side adds and the other does not is passed over: the .out files have none.
"""
import glob, json, os, subprocess, sys, tempfile
fm, llama = sys.argv[1:3]
bad = 0
with tempfile.TemporaryDirectory() as repo:
    run = lambda *a, **k: subprocess.run([fm, "-C", repo, *a], capture_output=True, text=True, **k)
    assert run("init", ".").returncode == 0
    for path in sorted(glob.glob(os.path.join(llama, "models", "*.gguf.inp"))):
        name = os.path.basename(path)[len("ggml-vocab-"):-len(".gguf.inp")]
        texts = open(path, encoding="utf-8").read().split("\n__ggml_vocab_test__\n")
        wants = [list(map(int, line.split())) for line in open(path[:-4] + ".out").read().split("\n")]
        got = run("import", path[:-4], "--as", name)
        if got.returncode == 0:
            got = run("tokenize", name, input="".join(json.dumps({"text": t}) + "\n" for t in texts))
        if got.returncode != 0:
            bad += 1
            print("%-16s %s" % (name, got.stderr.strip()))
            continue
        lines = [json.loads(line)["ids"] for line in got.stdout.splitlines()]
        differ = [t for t, g, w in zip(texts, lines, wants) if w not in (g, g[1:], g[:-1], g[1:-1])]
        bad += len(differ) > 0 or len(lines) != len(texts)
        print("%-16s %d texts, %d differ %s" % (name, len(lines), len(differ), [d[:40] for d in differ[:2]] or ""))
sys.exit(bad > 0)
