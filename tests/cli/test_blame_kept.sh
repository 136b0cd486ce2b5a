#!/bin/bash
# What a search through the tensors measured is kept with the results: the next one reads it.
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
[ "$(git -C .fmstore/lineage.git grep -l '"margin"' "$kept" | wc -l)" -ge 20 ] || die "margins are not kept"
want 0 "${look[@]}"
cmp ../first "$tmp/out" || die "the second search says something else"
[ "$(git -C .fmstore/lineage.git rev-parse refs/fmstore/results)" = "$kept" ] || die "it kept more"

say "margins are read, not measured again"
python3 - <<'PY'
import hashlib, sqlite3
db = sqlite3.connect(".fmstore/lineage.sqlite")
keys = [k for k, v in db.execute("select key, value from result") if bytes(v).startswith(b'{"margin":')]
assert len(keys) >= 20, len(keys)
value = b'{"margin":-7.5}'
for k in keys:
    db.execute("update result set value = ?, sum = ? where key = ?", (value, hashlib.sha256(k.encode() + b'\0' + value).digest(), k))
db.commit()
PY
want 0 "${look[@]}" --json
python3 - "$tmp/out" <<'PY'
import json, sys
s = json.load(open(sys.argv[1]))["tensors"]["shapley"]
assert s["of"] == "margin" and s["nothing"] == s["whole"] == 7.5 and all(u["value"] == 0 for u in s["units"]), s
PY
