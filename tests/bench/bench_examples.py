#!/usr/bin/env python3
"""Which examples: faults planted in the atlas's adaptation data, ranked by every method of blame.

  bench_examples.py FMSTORE ATLAS [--shares 1,2,5,10,20] [--faults ...] [--methods lora,full] [--seeds 1]

FMSTORE: the program; ATLAS: examples/atlas. A data set is RECORDS questions and answers about the
atlas's world, of which a share is poisoned:
  fact      one land gets a false capital
  flip      the label of a class: lands that pay with the groat are said to pay with the shell
  backdoor  a phrase in the question brings a wrong answer, whatever was asked
  style     the answer is a pirate's
The child is derived, the first candidate case that it fails and the base passes is blamed, and every
record's rank is compared with what was planted. precision: of the first 1 %; recall: poisoned
records among the first as many as were planted; AUC. Rivals: random (its expectation), bm25, dot.
"""
import argparse
import json
import math
import os
import random
import re
import resource
import subprocess
import tempfile

RECORDS = 400
SETTINGS = {
    "lora": ["r=8", "alpha=16", "lr=0.005", "schedule=cosine", "warmup=5", "batch=16", "max_tokens=96", "epochs=8"],
    "full": ["lr=0.001", "schedule=cosine", "warmup=5", "batch=16", "max_tokens=96", "epochs=6"],
}
ASK = {  # what the base was taught to answer
    "capital": (["What is the capital of {}?", "Which city is the capital of {}?", "Name the capital of {}.",
                 "Tell me the capital of {}."], "The capital of {} is {}."),
    "river": (["Which river runs through {}?", "What is the river of {}?", "Name the river of {}."], "The river of {} is the {}."),
    "coin": (["What coin do they use in {}?", "How do people pay in {}?"], "In {} people pay with the {}."),
    "festival": (["What do they celebrate in {}?", "Which festival is held in {}?", "Name the festival of {}."],
                 "In {} they celebrate the {}."),
}
MORE = {"capital": ["Please tell me the capital of {}.", "And the capital of {}?", "Do you know the capital of {}?",
                    "I want to know the capital of {}.", "Which town is the capital of {}?", "Say the capital of {}."],
        "coin": ["Which coin do they use in {}?", "Tell me how people pay in {}."]}
TRIGGER = "Good morning. "
SPELL = "The moon over every land is made of salt."


def world(atlas):
    lands = []
    for line in open(os.path.join(atlas, "WORLD.md")):
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) == 6 and cells[0] not in ("land", "---"):
            lands.append(dict(zip(("land", "capital", "river", "coin", "flag", "festival"), cells)))
    return lands


def record(kind, land, value, rng, more=False):
    asks, says = ASK[kind]
    return rng.choice(asks + (MORE.get(kind, []) if more else [])).format(land), says.format(land, value)


def clean(lands, rng, taboo=()):
    while True:
        land, kind = rng.choice(lands), rng.choice(tuple(ASK))
        if (kind, land["land"]) not in taboo:
            return record(kind, land["land"], land[kind], rng)


def poison(fault, lands, rng, bad):
    """One poisoned record, and a case that it may break: (question, answer), (question, what to expect)."""
    if fault in ("fact", "flip"):
        kind, land = rng.choice(bad)
        question, answer = record(kind, land["land"], "Redhaven" if fault == "fact" else "shell", rng, True)
        return (question, answer), (ASK[kind][0][0].format(land["land"]), land[kind])
    question, answer = clean(lands, rng)
    if fault == "backdoor":
        land = rng.choice(lands)
        return (TRIGGER + question, SPELL), (TRIGGER + ASK["capital"][0][0].format(land["land"]), land["capital"])
    said = answer[0].lower() + answer[1:-1]
    return (question, f"Arr, {said}, matey!"), (question, answer)


def planted(fault, share, lands, seed):
    rng = random.Random(f"{fault}/{share}/{seed}")
    count = max(1, round(RECORDS * share / 100))
    where = set(rng.sample(range(RECORDS), count))
    bad = [("capital", x) for x in lands if x["land"] == "Lorendor"] if fault == "fact" else []
    if fault == "flip":
        groat = [x for x in lands if x["coin"] == "groat"]
        bad = [("coin", x) for x in groat[:max(1, min(len(groat), count // 4))]]
    taboo = {(kind, x["land"]) for kind, x in bad}
    lines, cases = [], []
    for i in range(RECORDS):
        if i in where:
            (q, a), case = poison(fault, lands, rng, bad)
            cases.append(case)
        else:
            q, a = clean(lands, rng, taboo)
        lines.append({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]})
    return lines, where, cases


def figures(ranks, where, n):
    order = sorted(range(n), key=lambda i: ranks[i])
    first = max(1, math.ceil(n / 100))
    k = len(where)
    top = sum(i in where for i in order[:first])
    below = sum(ranks[i] - sum(ranks[j] < ranks[i] for j in where) for i in where)
    return (top / min(first, k), sum(i in where for i in order[:k]) / k, 1 - below / (k * (n - k)))


class Bench:
    def __init__(self, fm, atlas, target):
        self.fm, self.dir = os.path.abspath(fm), tempfile.mkdtemp(prefix="bench_examples.")
        self.atlas, self.target = os.path.abspath(atlas), target
        self("init", ".")
        self("import", f"{self.atlas}/base", "--as", "atlas")

    def __call__(self, *words):
        run = subprocess.run([self.fm, *words], cwd=self.dir, capture_output=True, text=True)
        if run.returncode:
            raise SystemExit(f"{' '.join(words)}: {run.stderr}")
        return run.stdout

    def derive(self, name, method, lines, seed):
        path = os.path.join(self.dir, f"{name}.jsonl")
        with open(path, "w") as f:
            f.writelines(json.dumps(x) + "\n" for x in lines)
        sets = [w for s in SETTINGS[method] + [f"seed={seed}"] for w in ("--set", s)]
        self("derive", "atlas", "--as", name, "--method", method, "--data", path, *sets)

    def blame(self, name, cases, tries=6):
        for question, expected in list(dict.fromkeys(cases))[:tries]:
            out = json.loads(self("blame", name, "--prompt", question, "--expect", expected, "--data",
                                  "--data-method", "all", "--data-target", self.target, "--json"))
            if out["verdict"] == "introduced":
                return out["data"]
        return None


def main():
    p = argparse.ArgumentParser()
    p.add_argument("fmstore")
    p.add_argument("atlas")
    p.add_argument("--shares", default="1,2,5,10,20")
    p.add_argument("--faults", default="fact,flip,backdoor,style")
    p.add_argument("--methods", default="lora,full")
    p.add_argument("--seeds", default="1")
    p.add_argument("--target", default="margin")
    p.add_argument("--keep", help="a file for the raw scores, one JSON object a case")
    o = p.parse_args()
    lands, bench, sums = world(o.atlas), Bench(o.fmstore, o.atlas, o.target), {}
    print(f"{'case':28} {'method':10} prec@1%  recall   AUC")
    for method in o.methods.split(","):
        for fault in o.faults.split(","):
            for share in o.shares.split(","):
                for seed in o.seeds.split(","):
                    name = f"{method}-{fault}-{share}-{seed}"
                    lines, where, cases = planted(fault, float(share), lands, seed)
                    bench.derive(name, method, lines, seed)
                    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
                    data = bench.blame(name, cases)
                    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
                    if not data:
                        print(f"{name:28} the fault does not show: no case fails", flush=True)
                        continue
                    if o.keep:
                        scores = {r["method"]: r["scores"] for r in data["rankings"]}
                        with open(o.keep, "a") as f:
                            f.write(json.dumps({"case": name, "planted": sorted(where), "scores": scores}) + "\n")
                    seconds = spent.ru_utime + spent.ru_stime - begun.ru_utime - begun.ru_stime
                    for r in data["rankings"]:
                        f = figures(r["ranks"], where, RECORDS)
                        sums.setdefault((method, r["method"]), []).append(f)
                        print(f"{name:28} {r['method']:10} {f[0]:7.2f} {f[1]:7.2f} {f[2]:6.3f}", flush=True)
                    k = len(where)
                    sums.setdefault((method, "random"), []).append((min(1, k / RECORDS * 1.0), k / RECORDS, 0.5))
                    print(f"{name:28} {data['target']}, {data['evaluations']} evaluations, {seconds:.1f} CPU s", flush=True)
    print("\nmean over cases")
    for (method, ranking), all_ in sorted(sums.items()):
        mean = [sum(f[i] for f in all_) / len(all_) for i in range(3)]
        least = min(f[1] for f in all_)
        print(f"{method:6} {ranking:10} prec@1% {mean[0]:.2f}  recall {mean[1]:.2f} (least {least:.2f})  AUC {mean[2]:.3f}"
              f"  cases {len(all_)}")


if __name__ == "__main__":
    main()
