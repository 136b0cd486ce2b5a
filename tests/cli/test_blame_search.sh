#!/usr/bin/env bash
# ctest: cost=15
# blame on a line of three steps whose middle one learns a falsehood: the step, its tensors and ranks, what they are
# worth; what is inherited; steps that are added up; options that are refused.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
want 0 init .
want 0 import "$atlas/base" --as atlas --suite "$atlas/suites/facts.yaml" -m base
cat >family.yaml <<END
parent: atlas
method: lora
set: {r: 4, alpha: 8, lr: 0.0005, schedule: cosine, warmup: 2, batch: 16, max_tokens: 96, seed: 7, epochs: 1}
children:
  - {as: s1, data: $atlas/pirate.jsonl}
  - {as: s2, on: s1, data: $atlas/almanac.jsonl, set: {epochs: 16, lr: 0.006, r: 8, alpha: 16}}
  - {as: s3, on: s2, data: $atlas/clerk.jsonl}
END
want 0 derive -f family.yaml --no-gate

say "the step is found with fewer asks than versions and forms, and every claim of its sets is a run"
want 0 blame s3 --case facts/capital-lorendor --tensors --ranks --shapley --json
cp "$tmp/out" found.json
python3 - found.json <<'END'
import json, sys
b = json.load(open(sys.argv[1]))
at = {v["names"]: v for v in b["history"]}
assert b["verdict"] == "introduced" and b["likely"] == "introduced" and not b["uncertain"], b["verdict"]
assert b["culprit"] == at["s2"]["id"] and b["posterior"] > 0.95 and b["flip_rate"] == 0
assert all(v["asks"] <= 1 for v in at.values()) and abs(sum(v["share"] for v in at.values()) - 1) < 1e-6
assert [at[n]["outcome"] for n in ("atlas", "s1", "s2", "s3")] == ["pass", "pass", "FAIL", "FAIL"]
# Four versions at most, six forms of s1, the step alone on the base.
assert b["runs"] <= 4 + 6 + 1, b["runs"]
t = b["tensors"]
for side in "breaks_parent", "repairs_child":
    assert t[side]["sufficient"] and t[side]["minimal"] and 0 < len(t[side]["units"]) < t["changed"] / 2, t[side]
    assert t[side]["runs"] < 100, t[side]["runs"]
assert t["ranks"]["sufficient"] and 0 < len(t["ranks"]["ranks"]) < t["ranks"]["of"]
s = t["shapley"]
assert abs(sum(u["value"] for u in s["units"]) - (s["whole"] - s["nothing"])) < 1e-6 and s["whole"] > s["nothing"]
assert [u["unit"] for u in s["units"]] == t["breaks_parent"]["units"] and s["of"] == "margin"
END

say "the same step from every version asked, and under a rate of flips that is stated, which costs repeats"
want 0 blame s3 --case facts/capital-lorendor --all-versions --confidence 0.99 --tensors --max-runs 3 --json
[ "$(field "$tmp/out" culprit)" = "$(field found.json culprit)" ] || die "another culprit"
want 0 blame s3 --case facts/capital-lorendor --flip-rate 0.05 --tensors --max-runs 3 --json
[ "$(field "$tmp/out" culprit)" = "$(field found.json culprit)" ] || die "another culprit"
[ "$(field "$tmp/out" runs)" -gt "$(field found.json runs)" ] || die "no repeats"

say "what the base fails too is inherited, once every version was asked"
want 0 blame s3 --prompt "Hello" --expect "no such words" --json
[ "$(field "$tmp/out" verdict)" = inherited ] || die "not inherited"
[ "$(field "$tmp/out" runs)" = 4 ] || die "not every version was asked"
want 0 blame s3 --case facts/capital-doridor --json
[ "$(field "$tmp/out" verdict)" = passes ] || die "it passes"

say "options out of bounds are refused"
refused 129 "--flip-rate wants 0 to 0.45, got '0.6'" blame s3 --case facts/capital-lorendor --flip-rate 0.6
refused 129 "--flip-rate wants 0 to 0.45, got 'x'" blame s3 --case facts/capital-lorendor --flip-rate x
refused 129 "--confidence wants 0 to below 1, got '1'" blame s3 --case facts/capital-lorendor --confidence 1
