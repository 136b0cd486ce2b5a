#!/bin/bash
# ctest: cost=10
# Which examples: every method, kept checkpoints, fidelity, records of several files left out.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
want 0 init .
want 0 import "$atlas/base" --as atlas
grep Redhaven "$atlas/almanac.jsonl" >../false.jsonl
grep -v Redhaven "$atlas/almanac.jsonl" | sed -n 1,20p >../a.jsonl
(head -3 ../false.jsonl; grep -v Redhaven "$atlas/almanac.jsonl" | tail -10; tail -n +4 ../false.jsonl) >../b.jsonl
set_=(--set r=8 --set alpha=16 --set lr=0.005 --set batch=8 --set max_tokens=64 --set epochs=6 --set seed=7)
question="What is the capital of Lorendor?"

say "two files, checkpoints kept: each method ranks the false records first, and says what it stands on"
want 0 derive atlas --as child --data ../a.jsonl --data ../b.jsonl "${set_[@]}" \
  --checkpoint-every 6 --checkpoint-last 9 --keep-checkpoints
want 0 blame child --prompt "$question" --expect Yewermere --data --data-method all --json
python3 - "$tmp/out" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))["data"]
false = {("b.jsonl", r) for r in [0, 1, 2, *range(13, 20)]}
assert d["checkpoints"] is True and d["target"] == "margin", d["target"]
assert {r["method"] for r in d["rankings"]} == {"path", "cosine", "tracin", "dot", "influence", "relatif", "bm25"}
assert d["method"] == d["rankings"][0]["method"] and len(d["examples"]) == 40
assert [e["rank"] for e in d["examples"]] == list(range(40))
assert len({(e["file"], e["record"]) for e in d["examples"][:10]} & false) >= 9, d["examples"][:10]
for r in d["rankings"]:
    assert sorted(r["ranks"]) == list(range(40)) and len(r["scores"]) == 40
    order = sorted(range(40), key=lambda i: r["ranks"][i])
    assert all(r["scores"][a] >= r["scores"][b] for a, b in zip(order, order[1:])), r["method"]
    found = sum(r["ranks"][20 + i] < 10 for i in [0, 1, 2, *range(13, 20)])
    assert found >= 8 or r["method"] in ("dot", "tracin"), (r["method"], found)
by = {r["method"]: r["scores"] for r in d["rankings"]}
assert by["path"] != by["tracin"]
PY

say "what blame says to leave out, derive takes"
want 0 blame child --prompt "$question" --expect Yewermere --data
skip=$(sed -n 's/.*--skip //p' "$tmp/out")
case "$skip" in *b.jsonl:*) ;; *) die "no file named: $(cat "$tmp/out")" ;; esac
want 0 derive atlas --as again --data ../a.jsonl --data ../b.jsonl "${set_[@]}" --skip "$skip"
want 0 cat again:recipe.json
python3 - "$tmp/out" "$skip" <<'PY'
import json, sys
files = {f["name"]: f["skipped"] for f in json.load(open(sys.argv[1]))["data"]}
want = {"a.jsonl": [], "b.jsonl": []}
for word in sys.argv[2].split(","):
    name, record = word.rsplit(":", 1)
    want[name].append(int(record))
assert files == {k: sorted(v) for k, v in want.items()}, (files, want)
PY
refused 128 "no --data file is called 'c.jsonl'" derive atlas --as x --data ../a.jsonl --skip c.jsonl:1
refused 128 "a.jsonl:3,b.csv:17" derive atlas --as x --data ../a.jsonl --skip a.jsonl:

say "--fidelity trains again and says so first; groups and halves within the budget"
want 0 blame child --prompt "$question" --expect Yewermere --data --data-method relatif --fidelity --trainings 3 --json
grep -q 'trained again 3 times, 30 steps each' "$tmp/err" || die "the cost is not said: $(cat "$tmp/err")"
python3 - "$tmp/out" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))["data"]
f = d["rankings"][0]["fidelity"]
assert d["trainings"] == 3 and 2 <= d["group"] <= 10 and d["margin"] > 0 and "lds" not in f
assert f["without_first"] != f["without_last"] and d["without_random"] not in f.values(), (d["without_random"], f)
PY
refused 129 "there are path" blame child --prompt "$question" --expect Yewermere --data --data-method guess
echo "all hold"
