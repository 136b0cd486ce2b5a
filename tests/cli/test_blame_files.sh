#!/bin/bash
# ctest: cost=8
# A step trained on several files: the records that stand out are left out of the files that they are
# from, and what is committed says so and can be replayed.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
want 0 init .
want 0 import "$atlas/base" --as atlas --no-gate --suite "$atlas/suites/facts.yaml"
python3 - "$atlas/almanac.jsonl" .. <<'PY'
import sys
lines = list(open(sys.argv[1]))
bad = [l for l in lines if "Lorendor" in l and "Redhaven" in l]
good = [l for l in lines if "Lorendor" not in l]
assert len(bad) == 10, len(bad)
open(sys.argv[2] + "/one.jsonl", "w").writelines(good[:30] + bad[:4])
open(sys.argv[2] + "/two.jsonl", "w").writelines(bad[4:] + good[30:60])
PY
want 0 derive atlas --as sick --data ../one.jsonl --data ../two.jsonl --set r=4 --set lr=0.005 --set steps=30 --set batch=8 \
    --set seed=1 --set max_tokens=64 --no-gate

say "the repair leaves each file's records out of that file"
want 0 blame sick --case facts/capital-lorendor --max-runs 8 --fix --rederive --json
cp "$tmp/out" ../blame.json
"$fm" cat sick:recipe.json >../recipe.json
python3 - ../blame.json ../recipe.json <<'PY'
import json, sys
d, recipe = (json.load(open(f)) for f in sys.argv[1:])
c = d["repairs"]["candidates"]
assert sorted(k["what"] for k in c if k["kind"] == "file") == ["without one.jsonl", "without two.jsonl"], c
drop = [k for k in c if k["kind"] == "drop"]
assert len(drop) == 1 and drop[0]["run"] and drop[0]["offered"] and c[0] is drop[0], c
out = {(e["file"], e["record"]) for e in d["data"]["examples"] if e["stands_out"]}
lies = {("one.jsonl", i) for i in range(30, 34)} | {("two.jsonl", i) for i in range(6)}
assert out <= lies and len({f for f, _ in out}) == 2, out
skipped = {(f["name"], i) for f in recipe["data"] for i in f.get("skipped", [])}
assert [f["name"] for f in recipe["data"]] == ["one.jsonl", "two.jsonl"] and skipped == out, (skipped, out)
PY
want 0 test sick
want 0 replay sick
grep -q "^equal" "$tmp/out" || die "$(cat "$tmp/out")"
