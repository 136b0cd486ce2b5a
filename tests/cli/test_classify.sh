#!/bin/bash
# classify: JSON lines in, a label and log-probabilities out; imported heads run and leave again.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
golden=$src/tests/model/golden/objectives

want 0 init .
want 0 import "$golden/classify-bert" --as enc
want 0 import "$golden/classify-llama" --as dec
want 0 import "$golden/dpo" --as plain

say "the best label and every class, whose probabilities sum to 1"
printf '{"ids":[5,6,7]}\n{"ids":[7,6,5,9]}\n' >in
for rev in enc dec; do
    "$fm" classify "$rev" <in >"$rev.out"
done
python3 - <<'PY'
import json, math
for name in ("enc", "dec"):
    x = [json.loads(l) for l in open(name + ".out")]
    assert len(x) == 2, name
    for r in x:
        assert [s["label"] for s in r["scores"]] == ["no", "perhaps", "yes"], r
        assert abs(sum(math.exp(s["logprob"]) for s in r["scores"]) - 1) < 1e-5, r
        assert r["label"] == max(r["scores"], key=lambda s: s["logprob"])["label"], r
    assert x[0]["scores"] != x[1]["scores"], name
PY

say "a head of one output gives a number"
want 0 import "$golden/score-qwen3" --as rank
"$fm" classify rank <in >rank.out
python3 - <<'PY'
import json
x = [json.loads(l) for l in open("rank.out")]
assert len(x) == 2 and all(list(r) == ["score"] for r in x) and x[0] != x[1], x
PY

say "the head goes out as it came in"
want 0 export dec dst --format hf
grep -q '"perhaps"' dst/config.json || die "config.json lost its labels"
grep -q score.weight dst/model.safetensors || die "model.safetensors lost its head"

say "refusals name the reason"
echo '{"ids":[5,6]}' >bad
if "$fm" classify plain <bad >out 2>err; then die "a language model classified"; fi
grep -q "no classification head" err || die "$(cat err)"
if "$fm" score dec <bad >out 2>err; then die "a classifier without a language head scored"; fi
grep -q "a classifier's classes come from classify" err || die "$(cat err)"
