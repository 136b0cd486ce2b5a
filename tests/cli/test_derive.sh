#!/bin/bash
# ctest: cost=10
# Training from the command line: deterministic, stoppable at any step, honest about its recipe.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
atlas_repo
how=(--data "$atlas/pirate.jsonl" --set r=4 --set lr=0.003 --set batch=4 --set steps=16 --set warmup=3
    --set schedule=cosine --set seed=5 --no-gate)

say "the same derivation twice gives the same tree; one thread or two, too"
want 0 derive atlas --as whole "${how[@]}" --log ../whole.json
want 0 --threads 1 derive atlas --as thread1 "${how[@]}" -m "another message"
want 0 --threads 2 derive atlas --as thread2 "${how[@]}"
[ "$(tree_of whole)" = "$(tree_of thread1)" ] || die "one thread gives another tree"
[ "$(tree_of whole)" = "$(tree_of thread2)" ] || die "two threads give another tree"
want 0 derive atlas --as stored --stored "${how[@]}"
[ "$(tree_of whole)" = "$(tree_of stored)" ] || die "a stem that stays as it is stored gives another tree"
refused 128 "mode bf16 on device cpu lays out weights in its own way and cannot keep them as they are stored (--stored)" \
    derive atlas --as narrow --stored --mode bf16 "${how[@]}"
want 0 derive atlas --as other "${how[@]}" --set seed=6
[ "$(ids whole)" != "$(ids other)" ] || die "the seed does nothing"

say "the recipe and the log are in the version, and --log writes the same numbers"
"$fm" cat whole:recipe.json >../recipe.json
"$fm" cat whole:train_log.json >../log.json
python3 - <<'PY'
import json
r, log, said = (json.load(open("../" + f)) for f in ("recipe.json", "log.json", "whole.json"))
assert r["operation"] == "lora" and r["config"]["seed"] == 5 and r["config"]["r"] == 4, r
assert len(log) == 16 and [e["step"] for e in log] == list(range(16))
assert said == {"whole": log}
assert log[-1]["loss"] < log[0]["loss"], "it does not learn"
PY

say "stopped after 7 steps: no branch, exit 128, and the same command ends with the very same tree"
want 128 derive atlas --as part "${how[@]}" --stop-after 7 --log ../part.json
grep -q '^fmstore: stopped after step 7 of 16' "$tmp/err" || die "it says: $(cat "$tmp/err")"
refused 128 "no version 'part'" show part
python3 - <<'PY'
import json
part, whole = json.load(open("../part.json"))["part"], json.load(open("../whole.json"))["whole"]
assert part == whole[:7], part
PY
want 0 derive atlas --as part "${how[@]}"
[ "$(tree_of whole)" = "$(tree_of part)" ] || die "resuming gives another tree"

say "Ctrl-C at any time: the same"
rm -f "$tmp/err"
"$fm" derive atlas --as broken "${how[@]}" >"$tmp/out" 2>"$tmp/err" &
pid=$!
until_there $pid "$tmp/err" 'step 1/16'
kill -INT $pid 2>/dev/null || true
code=0
wait $pid || code=$?
if [ $code = 128 ]; then
    grep -q '^fmstore: stopped after step' "$tmp/err" || die "Ctrl-C says: $(cat "$tmp/err")"
    refused 128 "no version 'broken'" show broken
    want 0 derive atlas --as broken "${how[@]}"
elif [ $code != 0 ]; then
    die "Ctrl-C gives exit code $code: $(cat "$tmp/err")"
fi
[ "$(tree_of whole)" = "$(tree_of broken)" ] || die "resuming after Ctrl-C gives another tree"

say "a finished derivation leaves no checkpoint behind"
[ -z "$(find .fmstore/cache .fmstore/tmp -type f)" ] || die "left: $(find .fmstore/cache .fmstore/tmp -type f)"

say "a family stopped when one child has ended lands nothing; run again, it lands all, the same as one by one"
cp "$atlas/pirate.jsonl" "$atlas/clerk.jsonl" ..
cat >../family.yaml <<'Y'
parent: atlas
set: {r: 4, lr: 0.003, batch: 4, steps: 6, seed: 5}
children:
  - {as: kid1, data: pirate.jsonl}
  - {as: kid2, data: clerk.jsonl, set: {steps: 8}}
Y
want 128 derive -f ../family.yaml --stop-after 7 --no-gate
grep -q "^fmstore: stopped after step 7 of 8 of 'kid2'" "$tmp/err" || die "it says: $(cat "$tmp/err")"
refused 128 "no version 'kid1'" show kid1
want 0 derive -f ../family.yaml --no-gate
want 0 derive atlas --as lone2 --data ../clerk.jsonl --set r=4 --set lr=0.003 --set batch=4 --set steps=8 --set seed=5 --no-gate
[ "$(tree_of kid2)" = "$(tree_of lone2)" ] || die "trained with a sibling, a child is another"

say "--skip leaves records out and says so in the manifest"
want 0 derive atlas --as fewer "${how[@]}" --skip 0,3,251
"$fm" cat fewer:recipe.json >../fewer.json
python3 - <<'PY'
import json
all_, few = (json.load(open("../" + f))["data"][0] for f in ("recipe.json", "fewer.json"))
assert few["skipped"] == [0, 3, 251] and all_["skipped"] == [], few
assert few["used"] == all_["used"] - 3 and few["sha256"] == all_["sha256"]
PY
[ "$(ids whole)" != "$(ids fewer)" ] || die "skipping three records does nothing"
bad=$(wc -l <"$atlas/pirate.jsonl")
refused 128 "$bad" derive atlas --as none "${how[@]}" --skip "$bad"

say "a full fine-tune keeps names, shapes and types of its parent, and shares what it did not change"
want 0 derive atlas --as full --method full --data "$atlas/pirate.jsonl" --set steps=2 --set batch=2 --no-gate
want 1 diff atlas full --stat
diff <("$fm" ls atlas:tensors | awk '{print $4, $5, $6, $7}') <("$fm" ls full:tensors | awk '{print $4, $5, $6, $7}')

say "a gate that fails: exit 1, the case is named, no branch, the candidate is kept"
printf 'suite: never\ngate: true\ncases:\n  - {name: impossible, prompt: Hello, expect: [{contains: "~~~~"}]}\n' >../never.yaml
want 1 derive atlas --as gated --data "$atlas/pirate.jsonl" --set steps=1 --set batch=1 --set r=1 --suite ../never.yaml
grep -q 'FAIL impossible' "$tmp/err" || die "the case is not named: $(cat "$tmp/err")"
kept=$(sed -n 's/.*kept as \([0-9a-f]*\).*/\1/p' "$tmp/err")
refused 128 "no version 'gated'" show gated
want 0 show "$kept"
want 0 derive atlas --as gated --data "$atlas/pirate.jsonl" --set steps=1 --set batch=1 --set r=1 --suite ../never.yaml --no-gate
want 1 test gated

say "the curve and the page are in the version: whole files, for dark and light, with every step"
"$fm" cat whole:train.svg >../train.svg
"$fm" cat whole:train.html >../train.html
python3 - <<'PY'
import xml.etree.ElementTree as E
svg = open("../train.svg").read()
root = E.fromstring(svg)
lines = {p.get("class").split()[0]: p.get("points").split() for p in root.iter("{http://www.w3.org/2000/svg}polyline")}
assert len(lines["loss"]) == len(lines["lr"]) == 16, lines
xy = [tuple(map(float, p.split(","))) for p in lines["loss"]]
assert all(0 < x < 760 and 0 < y < 412 for x, y in xy) and [x for x, _ in xy] == sorted(x for x, _ in xy)
assert xy[0][1] < xy[-1][1], "the loss falls, so the curve does (y grows downwards)"
assert "prefers-color-scheme:dark" in svg
page = open("../train.html").read()
root = E.fromstring(page)
assert not any(k in ("src", "href") for e in root.iter() for k in e.attrib), "it needs another file"
assert len(root.findall(".//svg")) == 1 and "<script" not in page and "http" not in page
rows = {r.find("th").text: "".join(r.find("td").itertext()) for r in root.iter("tr") if r.find("td") is not None}
assert rows["seed"] == "5" and rows["lr"] == "0.003" and rows["name"] == "pirate.jsonl", rows
inline = {p.get("class").split()[0]: p.get("points").split() for p in root.iter("polyline")}
assert inline == lines, "the page has another curve than the file"
PY
want 0 show whole
grep -q '^Curve:   train.html' "$tmp/out" && grep -q '^Curve:   train.svg' "$tmp/out" || die "show does not name them"
want 0 derive whole --as onlydata --data "$atlas/clerk.jsonl" --set steps=1 --set batch=1 --suite "$atlas/suites/clerk.yaml" --no-gate
"$fm" cat onlydata:train.html | has '<li>clerk.yaml</li>' || die "the page names no suite"

say "a plan says what it would take, and changes nothing"
before=$(state_of .)
want 0 derive atlas --as planned "${how[@]}" --plan
cp "$tmp/out" ../plan
[ "$before" = "$(state_of .)" ] || die "a plan changed the repository"
refused 128 "no version" show planned
"$fm" ls whole --json >../entries
python3 - <<'PY'
import json, re
plan = open("../plan").read()
unit = {"B": 1, "kB": 1e3, "MB": 1e6}
got = {m[1].strip(): float(m[2]) * unit[m[3]] for m in re.finditer(r"^  ([a-z][a-z, ]*?)  +([\d.]+) (B|kB|MB) +\d+ %$", plan, re.M)}
adapter = sum(e["bytes"] for e in json.load(open("../entries")) if e["kind"] == "tensor" and e["path"].startswith("adapters/"))
for what, times in (("parameters", 1), ("gradients", 1), ("moments", 2)):
    assert abs(got[what] / (times * adapter) - 1) < 0.02, (what, got, adapter)
assert got["stem"] > 2.5e6 and got["activations"] > 1e5
assert re.search(r"^time    0:00:\d\d for 16 steps, [\d.]+ s each, \d+ tokens/s$", plan, re.M), plan
parts = [float(x) for x in re.findall(r"([\d.]+) s a step", plan)]
each = float(re.search(r"steps, ([\d.]+) s each", plan)[1])
assert abs(sum(parts) - each) < 0.004 * len(parts), (parts, each)
PY
want 0 derive atlas --as less "${how[@]}" --recompute
[ "$(tree_of whole)" = "$(tree_of less)" ] || die "computed again, it is another tree"

say "a child of a child: adapters stack, and the first adapter is shared"
want 0 derive whole --as second --data "$atlas/clerk.jsonl" --set r=2 --set steps=2 --set batch=2 --no-gate
want 0 ls second:adapters
grep -q 'adapters/1-lora' "$tmp/out" || die "no second adapter"
want 0 run second -p Hello -n 4
want 0 fsck
echo "all hold"
