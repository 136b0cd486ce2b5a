#!/bin/bash
# ctest: cost=20
# Families with modules, children on children, and sweeps: each child is what it would be alone, and what
# was tried is on record.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
atlas_repo
cp "$atlas/pirate.jsonl" "$atlas/clerk.jsonl" "$atlas/almanac.jsonl" ..
set="r: 2, lr: 0.003, batch: 2, max_tokens: 32, steps: 6, seed: 5"
sets=(--set r=2 --set lr=0.003 --set batch=2 --set max_tokens=32 --set steps=6 --set seed=5 --no-gate)
parent_of() { "$fm" show "$1" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["parents"][0])'; }
id_of() { "$fm" show "$1" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["id"])'; }

say "three waves: modules with and without a branch, children on them and on one another"
cat >../waves.yaml <<Y
parent: atlas
set: {$set}
modules:
  style: {data: pirate.jsonl}
  facts: {data: almanac.jsonl, as: facts-branch}
children:
  - {as: a, on: style, data: clerk.jsonl}
  - {as: b, on: facts, data: clerk.jsonl, set: {r: 3}}
  - {as: c, on: a, data: almanac.jsonl}
  - {as: d, data: clerk.jsonl}
Y
want 0 derive -f ../waves.yaml --no-gate
[ "$(wc -l <"$tmp/out")" = 5 ] || die "want five branches: $(cat "$tmp/out")"
[ "$(parent_of c)" = "$(id_of a)" ] || die "c does not stand on a"
[ "$(parent_of b)" = "$(id_of facts-branch)" ] || die "b does not stand on its module"
[ "$(parent_of d)" = "$(id_of atlas)" ] || die "d does not stand on the parent"
refused 128 "no version" show style
want 0 derive atlas --as lone-style --data ../pirate.jsonl "${sets[@]}"
want 0 derive lone-style --as lone-a --data ../clerk.jsonl "${sets[@]}"
want 0 derive lone-a --as lone-c --data ../almanac.jsonl "${sets[@]}"
want 0 derive facts-branch --as lone-b --data ../clerk.jsonl "${sets[@]}" --set r=3
for v in a b c; do
    [ "$(tree_of $v)" = "$(tree_of lone-$v)" ] || die "$v is another than made alone"
done
[ "$(tree_of a~1)" = "$(tree_of lone-style)" ] || die "the module is another than made alone"
want 0 ls c:adapters
grep -q 'adapters/2-lora' "$tmp/out" || die "c has no third adapter"

say "stopped in the second wave: nothing has landed; run again, it ends the same, and does the first no more"
sed -e 's/as: /as: again-/' ../waves.yaml >../again.yaml
sed -i 's/on: a,/on: again-a,/' ../again.yaml
want 128 derive -f ../again.yaml --no-gate --stop-after 9
refused 128 "no version" show again-facts-branch
want 0 derive -f ../again.yaml --no-gate
[ "$(grep -c 'goes on after step 6$' "$tmp/err")" = 3 ] || die "the first wave is not resumed: $(cat "$tmp/err")"
for v in a b c d; do
    [ "$(tree_of $v)" = "$(tree_of again-$v)" ] || die "$v is another after a stop"
done
[ -z "$(find .fmstore/lineage.git/refs/fmstore/checkpoints -type f 2>/dev/null)" ] || die "states are left"

say "words that make no sense are refused before any work"
bad() { # bad TEXT YAML-OF-CHILDREN [MODULES]
    printf 'parent: atlas\nset: {%s}\nmodules: {%s}\nchildren: [%s]\n' "$set" "${3:-}" "$2" >../bad.yaml
    refused 128 "$1" derive -f ../bad.yaml
}
d="data: clerk.jsonl"
bad "neither a module nor a child" "{as: x, on: nobody, $d}"
bad "stands on itself" "{as: x, on: y, $d}, {as: y, on: x, $d}"
bad "used by nobody" "{as: x, $d}" "m: {$d}"
bad "two children are called" "{as: x, $d}, {as: x, $d}"
bad "must be a list" "{as: x, $d, sweep: {lr: 0.1}}"
bad "is unknown" "{as: x, $d, sweep: {learning: [1, 2]}}"
bad "no setting is swept" "{as: x, $d, sweep: {}}"
bad "empty list" "{as: x, $d, sweep: {lr: []}}"
bad "search random wants 'trials'" "{as: x, $d, sweep: {search: random, lr: [1, 2]}}"
bad "goes with search: random" "{as: x, $d, sweep: {lr: [0.1], trials: 3}}"
bad "wants {log: [from, to]}" "{as: x, $d, sweep: {search: random, trials: 2, lr: {log: [0, 1]}}}"
bad "leave out 'steps'" "{as: x, $d, sweep: {lr: [0.1]}, halving: {rungs: [2]}, set: {steps: 3}}"
bad "ascend" "{as: x, $d, sweep: {lr: [0.1]}, halving: {rungs: [4, 2]}}"
bad "between 0 and 1" "{as: x, $d, sweep: {lr: [0.1]}, halving: {rungs: [4], keep: 1}}"
bad "goes with 'sweep'" "{as: x, $d, halving: {rungs: [4]}}"
bad "lr: 'high' is no finite number" "{as: x, $d, sweep: {lr: [high]}}"
bad "cannot be swept" "{as: x, $d, sweep: {method: [lora, full]}}"

printf 'parent: atlas\nmode: exact\nset: {%s}\nchildren: [{as: moded, %s}]\n' "$set" "$d" >../mode.yaml
refused 128 "the family file says mode: exact" derive -f ../mode.yaml --mode bf16
want 0 derive -f ../mode.yaml --mode exact --no-gate
sed -i 's/mode: exact/mode: quantum/; s/as: moded/as: moded2/' ../mode.yaml
refused 128 "quantum" derive -f ../mode.yaml

say "a grid with halving: the winner is what it would be alone, all trials are on record"
cat >../grid.yaml <<Y
parent: atlas
set: {batch: 2, max_tokens: 32, seed: 5}
children:
  - {as: best, data: clerk.jsonl, sweep: {lr: [0.001, 0.01, 0.03], r: [2, 4]}, halving: {rungs: [4, 8, 12]}}
  - {as: beside, data: pirate.jsonl, set: {steps: 5}}
  - {as: onbest, on: best, data: pirate.jsonl, set: {steps: 3}}
Y
want 0 derive -f ../grid.yaml --no-gate
cp "$tmp/err" ../table
"$fm" cat best:sweep.json >../sweep.json
"$fm" cat best:recipe.json >../recipe.json
python3 - <<'PY'
import json
s, r = json.load(open("../sweep.json")), json.load(open("../recipe.json"))
t = s["trials"]
assert [x["set"] for x in t] == [{"lr": l, "r": n} for l in (0.001, 0.01, 0.03) for n in (2, 4)], t
assert s["rungs"] == [4, 8, 12] and s["keep"] == 0.5
win = t[s["winner"] - 1]
assert win["outcome"] == "wins" and win["steps"] == 12
assert sorted(x["steps"] for x in t) == [4, 4, 4, 8, 12, 12], t   # 6 -> 3 -> 2 (rounded up)
ended = [x for x in t if x["steps"] == 12]
assert win["loss"] == min(x["loss"] for x in ended)
first = [x for x in t if x["steps"] == 4]
for x in first:
    assert x["outcome"].startswith("dropped at step 4: ") and x["outcome"].endswith("of 6"), x
assert r["config"]["steps"] == 12 and r["config"]["r"] == win["set"]["r"] and r["config"]["lr"] == win["set"]["lr"]
open("../lone", "w").write(f'{win["set"]["lr"]} {win["set"]["r"]}\n')
PY
grep -q 'trial 6 .*dropped' ../table || die "no table: $(cat ../table)"
[ "$(grep -c 'step 12/12' ../table)" = 2 ] || die "a loser was trained to its end: $(cat ../table)"
read -r lr r <../lone
want 0 derive atlas --as lone --data ../clerk.jsonl --set lr=$lr --set r=$r --set steps=12 --set batch=2 --set max_tokens=32 --set seed=5 --no-gate
[ "$(ids best)" = "$(ids lone)" ] || die "the winner is another than made alone"
[ "$(parent_of onbest)" = "$(id_of best)" ] || die "onbest does not stand on the winner"

say "stopped at any step and resumed: the same winner, the same record"
for stop in 3 6 10; do
    sed "s/as: /as: s$stop/; s/on: best/on: s${stop}best/" ../grid.yaml >../stopped.yaml
    want 128 derive -f ../stopped.yaml --no-gate --stop-after $stop
    want 0 derive -f ../stopped.yaml --no-gate
    [ "$(tree_of best)" = "$(tree_of "s${stop}best")" ] || die "stopped after $stop, the winner's tree is another"
done

say "random search draws the same every time, within its ranges"
cat >../random.yaml <<Y
parent: atlas
set: {batch: 2, max_tokens: 32, steps: 2, seed: 5}
children:
  - as: rnd
    data: clerk.jsonl
    sweep: {search: random, trials: 5, seed: 3, lr: {log: [1.0e-4, 1.0e-2]}, r: [2, 4], weight_decay: {uniform: [0, 0.1]}}
Y
want 0 derive -f ../random.yaml --no-gate
sed 's/as: rnd/as: rnd2/' ../random.yaml >../random2.yaml
want 0 derive -f ../random2.yaml --no-gate
[ "$(tree_of rnd)" = "$(tree_of rnd2)" ] || die "random search differs from itself"
"$fm" cat rnd:sweep.json >../random.json
python3 - <<'PY'
import json
t = json.load(open("../random.json"))["trials"]
assert len(t) == 5 and len({json.dumps(x["set"]) for x in t}) == 5
for x in t:
    s = x["set"]
    assert 1e-4 <= s["lr"] <= 1e-2 and s["r"] in (2, 4) and 0 <= s["weight_decay"] <= 0.1, s
PY

say "a child that breaks down is told of by its step, the others land; exit 128, and nothing stands on it"
cat >../broken.yaml <<Y
parent: atlas
set: {batch: 2, max_tokens: 32, steps: 12, seed: 5}
children:
  - {as: well, data: clerk.jsonl}
  - {as: ill, data: clerk.jsonl, set: {lr: 1000, weight_decay: 1000}}
  - {as: onill, on: ill, data: pirate.jsonl}
  - {as: some, data: clerk.jsonl, sweep: {lr: [0.001, 1000], weight_decay: [1000]}}
Y
want 128 derive -f ../broken.yaml --no-gate
grep -q "^fmstore: 'ill': step 2: .*(records" "$tmp/err" || die "it says: $(cat "$tmp/err")"
grep -q "'onill' was not trained: 'ill', on which it stands, failed" "$tmp/err" || die "it says: $(cat "$tmp/err")"
grep -q 'trial 2 .*failed: step 2' "$tmp/err" || die "no failed trial: $(cat "$tmp/err")"
refused 128 "no version" show ill
refused 128 "no version" show onill
want 0 derive atlas --as well-alone --data ../clerk.jsonl --set batch=2 --set max_tokens=32 --set steps=12 --set seed=5 --no-gate
[ "$(ids well)" = "$(ids well-alone)" ] || die "a sibling that broke down changed a child"
want 0 replay some

say "a module that its gate refuses: exit 1, who stands on it is not trained"
printf 'suite: never\ngate: true\ncases:\n  - {name: impossible, prompt: Hello, expect: [{contains: "~~~~"}]}\n' >../never.yaml
cat >../gated.yaml <<Y
parent: atlas
set: {batch: 2, max_tokens: 32, steps: 2, seed: 5, r: 2}
modules:
  m: {data: clerk.jsonl, suites: [never.yaml]}
children:
  - {as: onm, on: m, data: clerk.jsonl}
  - {as: free, data: clerk.jsonl}
Y
want 1 derive -f ../gated.yaml
grep -q "'onm' was not trained: 'm', on which it stands, was refused" "$tmp/err" || die "it says: $(cat "$tmp/err")"
want 0 show free
refused 128 "no version" show onm
want 0 fsck
echo "all hold"
