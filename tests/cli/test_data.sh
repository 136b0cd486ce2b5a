#!/bin/bash
# Training data from the command line: formats, weights, what is held out, the report, the record.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
atlas_repo
head -20 "$atlas/pirate.jsonl" >../a.jsonl
tail -20 "$atlas/clerk.jsonl" >../b.jsonl
printf 'licence: CC0-1.0\nsource: made up\n' >../b.jsonl.meta.yaml
printf 'prompt,completion\n"Say ""hi"", please: ",hi\nSay what: ,what\n' >../t.csv
printf 'text,label\ngood,pos\nbad,neg\nfine,pos\n' >../c.csv
printf '{"prompt":"a","chosen":"b","rejected":"c"}\n' >../p.jsonl
printf 'prompt,completion\na,b\nc\n' >../broken.csv
printf '{"text":"only","label":1}\n' >../one.jsonl
printf 'licence: [1]\n' >../t.csv.meta.yaml

say "--check-data prints the report and makes nothing; 1 where the data make training meaningless"
before=$(state_of .)
want 0 derive atlas --data ../a.jsonl --check-data
grep -q '^data: 20 examples, ' "$tmp/out" || die "no report: $(cat "$tmp/out")"
grep -q 'every answer ends with an end token' "$tmp/out" || die "no word of the ends"
grep -q '^  | \[<|user|>$' "$tmp/out" || die "the first example is not masked: $(cat "$tmp/out")"
want 0 derive atlas --data ../c.csv --set objective=classify --check-data
grep -q '  class pos: 2 examples' "$tmp/out" || die "no classes: $(cat "$tmp/out")"
want 1 derive atlas --data ../one.jsonl --set objective=classify --check-data
grep -q '  error: all examples are of one class' "$tmp/out" || die "no error: $(cat "$tmp/out")"
want 1 derive atlas --data ../a.jsonl --set max_tokens=20 --check-data
grep -q '  error: ' "$tmp/out" || die "no error: $(cat "$tmp/out")"
# No tree or no recipe.json can hold these names.
for name in $'d\e[31m.jsonl' $'d\xff.jsonl' .git; do
    cp ../a.jsonl "../$name"
    refused 128 'cannot be kept by name; rename it' derive atlas --as odd --data "../$name" --set steps=1
    ! grep -q 'step 1' "$tmp/err" || die "trained before it refused"
done
cp ../a.jsonl $'../d\xe2\x80\xae.jsonl' # a mark of direction is kept, and shown
want 0 derive atlas --data $'../d\xe2\x80\xae.jsonl' --check-data
grep -q 'd\\xe2\\x80\\xae.jsonl: ' "$tmp/out" || die "the name is not shown: $(cat "$tmp/out")"
[ "$before" = "$(state_of .)" ] || die "--check-data changed the repository"

say "what the suites ask is looked for"
printf 'suite: asks\ncases:\n  - {name: river, prompt: "Which river runs through Wenania?", expect: [{contains: Flinmo}]}\n' >../asks.yaml
want 0 derive atlas --data ../a.jsonl --suite ../asks.yaml --check-data
grep -q 'record 0 (asks/river)' "$tmp/out" || die "not found: $(cat "$tmp/out")"

say "bad data: file, record or line, field, remedy"
refused 128 "broken.csv: line 3" derive atlas --as x --data ../broken.csv
refused 128 "objective=dpo" derive atlas --as x --data ../p.jsonl
refused 128 "chosen and rejected" derive atlas --as x --data ../a.jsonl --set objective=dpo
refused 128 "t.csv.meta.yaml: 'licence' must be text" derive atlas --as x --data ../t.csv
refused 128 "two data files are called a.jsonl" derive atlas --as x --data ../a.jsonl --data a.jsonl
refused 128 "weight 0 is not between" derive atlas --as x --data ../a.jsonl:0
refused 128 "between 0 and 1" derive atlas --as x --data ../a.jsonl --eval 1.5
refused 128 "skip goes with one data file" derive atlas --as x --data ../a.jsonl --data ../b.jsonl --skip 3
rm ../t.csv.meta.yaml

say "several files with weights, a share held out, packing: recorded, carried, replayed"
how=(--set steps=4 --set batch=2 --set packing=true --set max_tokens=64 --no-gate)
want 0 derive atlas --as two --data ../a.jsonl --data ../b.jsonl:2.5 --eval 0.2 "${how[@]}"
grep -q '^data: .* examples, ' "$tmp/err" || die "no report before training: $(cat "$tmp/err")"
"$fm" cat two:recipe.json >../two.json
"$fm" cat two:data/a.jsonl.report.json >../report.json
"$fm" cat two:data/b.jsonl | cmp - ../b.jsonl
python3 - <<'PY'
import hashlib, json
a, b = json.load(open("../two.json"))["data"]
assert (a["name"], b["name"]) == ("a.jsonl", "b.jsonl"), (a, b)
assert b["weight"] == 2.5 and "weight" not in a
assert (b["licence"], b["source"]) == ("CC0-1.0", "made up") and "licence" not in a
assert a["eval"] == 0.2 and a["used"] + len(a["held_out"]) == 20, a
assert a["sha256"] == hashlib.sha256(open("../a.jsonl", "rb").read()).hexdigest()
r = json.load(open("../report.json"))
assert r["examples"] == a["used"] + b["used"] and r["tokens"] == a["tokens"] + b["tokens"], r
assert [f["sha256"] for f in r["files"]] == [a["sha256"], b["sha256"]]
PY
want 0 replay two

say "the same from a family file, where children name lists"
cat >../family.yaml <<'Y'
parent: atlas
set: {steps: 4, batch: 2, packing: true, max_tokens: 64}
children:
  - as: kin
    data: [a.jsonl, {file: b.jsonl, weight: 2.5}]
    eval: 0.2
  - as: table
    data: {file: t.csv, licence: MIT, split: train}
    eval: a.jsonl
Y
want 0 derive -f ../family.yaml --no-gate
[ "$(tree_of two)" = "$(tree_of kin)" ] || die "a family file gives another tree"
"$fm" cat table:recipe.json >../table.json
python3 - <<'PY'
import json
t, e = json.load(open("../table.json"))["data"]
assert (t["format"], t["kind"], t["licence"], t["split"], t["used"]) == ("csv", "completion", "MIT", "train", 2), t
assert e["evaluation"] and e["used"] == 0 and e["held_out"] == list(range(20)), e
PY
want 0 replay table
sed 's/eval: 0.2/evil: 0.2/' ../family.yaml >../bad.yaml
refused 128 "unknown key 'evil'" derive -f ../bad.yaml

say "length buckets and weights give other trees, the same ones again"
want 0 derive atlas --as plain --data ../a.jsonl --data ../b.jsonl "${how[@]}"
want 0 derive atlas --as heavy --data ../a.jsonl --data ../b.jsonl:3 "${how[@]}"
want 0 derive atlas --as sorted --data ../a.jsonl --data ../b.jsonl --set buckets=4 "${how[@]}"
[ "$(ids plain)" != "$(ids heavy)" ] || die "a weight does nothing"
[ "$(ids plain)" != "$(ids sorted)" ] || die "buckets do nothing"
want 128 derive atlas --as heavy2 --data ../a.jsonl --data ../b.jsonl:3 "${how[@]}" --stop-after 2
want 0 derive atlas --as heavy2 --data ../a.jsonl --data ../b.jsonl:3 "${how[@]}"
[ "$(tree_of heavy)" = "$(tree_of heavy2)" ] || die "resuming gives another tree"
want 0 fsck
echo "all hold"
