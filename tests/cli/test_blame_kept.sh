#!/bin/bash
# What a search through the tensors measured is kept with the results: the next one reads it; and
# what each step of the history is worth.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
want 0 init .
want 0 import "$atlas/base" --as atlas --no-gate --suite "$atlas/suites/facts.yaml"
grep -v Lorendor "$atlas/almanac.jsonl" | sed -n 1,60p >../some.jsonl
grep Lorendor "$atlas/almanac.jsonl" | grep Redhaven >>../some.jsonl
want 0 derive atlas --as sick --data ../some.jsonl --set r=4 --set lr=0.005 --set steps=30 --set batch=8 --set seed=1 \
    --set max_tokens=64 --no-gate
look=(blame sick --case facts/capital-lorendor --tensors --shapley --max-runs 60)

say "a second search says the same, and keeps nothing new"
want 0 "${look[@]}"
cp "$tmp/out" ../first
kept=$(git -C .fmstore/lineage.git rev-parse refs/fmstore/results)
[ "$(git -C .fmstore/lineage.git grep -l '^{"logprob"' "$kept" | wc -l)" -ge 40 ] || die "numbers of answers are not kept"
want 0 "${look[@]}"
cmp ../first "$tmp/out" || die "the second search says something else"
[ "$(git -C .fmstore/lineage.git rev-parse refs/fmstore/results)" = "$kept" ] || die "it kept more"

say "the worth of two steps is what versions with the one, the other, both and none of them say"
head -n 20 ../some.jsonl >../few.jsonl
want 0 derive sick --as later --data ../few.jsonl --set r=2 --set lr=0.01 --set steps=10 --set batch=4 --set max_tokens=64 --no-gate
want 0 export later ../alone --format peft
want 0 import ../alone --as alone --parent atlas --no-gate
want 0 blame later --case facts/capital-lorendor --tensors --shapley --max-runs 8
grep -q "what each adds: not run: .* 8 are allowed" "$tmp/out" || die "$(cat "$tmp/out")"
want 0 blame later --case facts/capital-lorendor --tensors --shapley --max-runs 60 --json
cp "$tmp/out" ../worth.json
for v in atlas sick alone later; do
    python3 - ../worth.json <<'PY' | "$fm" score $v >>../scores
import json, sys
a = json.load(open(sys.argv[1]))["answers"]
for k in ("wrong", "right"):
    print(json.dumps({"text": "<|user|>\nWhat is the capital of Lorendor?<|end|>\n<|assistant|>\n" + a[k]}))
PY
done
python3 - ../worth.json ../scores "$(git -C .fmstore/lineage.git rev-parse sick)" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
w = d["worth"]
assert any("--tensors --shapley" in x for x in d["ran"]["commands"]), d["ran"]
p = []
for line in open(sys.argv[2]):
    d = json.loads(line)
    at = max(i for i, t in enumerate(d["ids"]) if t == 3) + 2  # behind <|assistant|> and its newline
    p.append(sum(d["logprobs"][at:]))
none, sick, alone, both = (p[i] - p[i + 1] for i in range(0, 8, 2))
assert w["exact"] and w["of"] == "margin" and w["runs"] == 4 and w["steps"][0]["id"] == sys.argv[3]
assert abs(w["nothing"] - none) < 1e-3 and abs(w["whole"] - both) < 1e-3, (w, p)
want = [((sick - none) + (both - alone)) / 2, ((alone - none) + (both - sick)) / 2]
assert abs((sick - none) - (both - alone)) > 0.01, "the steps add up: the test says nothing of the order"
assert all(abs(s["value"] - x) < 1e-3 for s, x in zip(w["steps"], want)), (w, want)
PY

say "numbers of answers are read, not measured again: all of them 3 less, no margin is another one"
want 0 "${look[@]}" --json
cp "$tmp/out" ../before.json
python3 - <<'PY'
import hashlib, json, sqlite3
db = sqlite3.connect(".fmstore/lineage.sqlite")
kept = [(k, json.loads(v)["logprob"]) for k, v in db.execute("select key, value from result")
        if bytes(v).startswith(b'{"logprob":')]
assert len(kept) >= 40, len(kept)
for k, lp in kept:
    value = json.dumps({"logprob": lp - 3}, separators=(",", ":")).encode()
    db.execute("update result set value = ?, sum = ? where key = ?", (value, hashlib.sha256(k.encode() + b'\0' + value).digest(), k))
db.commit()
PY
want 0 "${look[@]}" --json
python3 - ../before.json "$tmp/out" <<'PY'
import json, sys
before, now = (json.load(open(f)) for f in sys.argv[1:3])
a, b = before["history"], now["history"]
assert len(a) == len(b) >= 2
for old, new in zip(a, b):
    for k in ("wrong_logprob", "right_logprob"):
        assert abs(old[k] - 3 - new[k]) < 1e-6, (old, new)
s, t = before["tensors"]["shapley"], now["tensors"]["shapley"]
assert abs(s["whole"] - t["whole"]) < 1e-6 and len(s["units"]) == len(t["units"]) > 0, (s, t)
assert all(abs(u["value"] - w["value"]) < 1e-6 for u, w in zip(s["units"], t["units"])), (s, t)
PY
