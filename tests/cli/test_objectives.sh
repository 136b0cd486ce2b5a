#!/usr/bin/env bash
# Every objective from the command line: what is held out is measured, classes get their names, a
# teacher is followed; each version replays.
. "$(dirname "$0")/lib.sh"

need_python
cd "$tmp"
mkdir repo && cd repo
atlas_repo
python3 - <<'PY'
import json
def put(name, rows):
    with open(name, "w") as f:
        for r in rows: f.write(json.dumps(r) + "\n")
places = ["Lorendor", "Vastmark", "Quillon", "Ostrava", "Meridor", "Tarn"]
put("kinds.jsonl", [{"text": f"{p} is a {k} of the north", "label": k} for p in places for k in ("city", "river")])
put("likes.jsonl", [{"prompt": f"What is {p}?", "chosen": f"{p} is a city.", "rejected": f"No idea about {p}."} for p in places])
put("chat.jsonl", [{"prompt": f"Where is {p}?", "completion": f"{p} lies in the north."} for p in places])
PY
fast="--set steps=4 --set batch=2 --no-gate"

say "classify: the classes' names are in the version, and classify answers with them"
want 0 derive atlas --as kinds --data kinds.jsonl --set objective=classify --eval 0.2 --eval-every 2 $fast
grep -q "held out: loss" "$tmp/err" || die "nothing is said of what is held out"
echo '{"text": "Lorendor is a city of the north"}' > one
"$fm" classify kinds < one > "$tmp/out" || die "classify fails"
grep -Eq '"label": ?"(city|river)"' "$tmp/out" || die "no class: $(cat "$tmp/out")"
want 0 replay kinds

say "dpo: begins at log 2"
want 0 derive atlas --as likes --data likes.jsonl --set objective=dpo --log "$tmp/log.json" $fast
python3 - "$tmp/log.json" <<'PY'
import json, math, sys
loss = json.load(open(sys.argv[1]))["likes"][0]["loss"]
assert abs(loss - math.log(2)) < 1e-5, loss
PY
want 0 replay likes

say "distill: wants a teacher, follows it, and the recipe names it"
want 128 derive atlas --as pupil --data chat.jsonl --set objective=distill $fast
want 0 derive atlas --as teacher --data chat.jsonl $fast
want 0 derive atlas --as pupil --data chat.jsonl --set objective=distill --teacher teacher $fast
want 0 cat pupil:recipe.json
grep -q '"teacher"' "$tmp/out" || die "the recipe does not name the teacher"
want 0 replay pupil

say "every method becomes a version that inference runs, and replays"
for m in lora:lora dora:dora ia3:ia3 prefix:prefix prompt:prompt full:; do
    method=${m%%:*} kind=${m#*:}
    want 0 derive atlas --as "by-$method" --method "$method" --data chat.jsonl $fast
    want 0 ls "by-$method"
    [ -z "$kind" ] || grep -q "adapters/0-$kind/" "$tmp/out" || die "$method: no adapters/0-$kind: $(cat "$tmp/out")"
    echo '{"text": "Lorendor lies"}' > one
    "$fm" score "by-$method" < one > "$tmp/out" || die "$method: score fails"
    want 0 replay "by-$method"
done
# the atlas has no biases
want 128 derive atlas --as by-bitfit --method bitfit --data chat.jsonl $fast
want 0 fsck
echo "all hold"
