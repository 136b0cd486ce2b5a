#!/bin/bash
# ctest: cost=8
# What a recipe says is enough: trained again alone, every tensor and every logged number is the same,
# however the version was made. What is not as the recipe says is told apart from what cannot be told.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
atlas_repo
cp "$atlas/pirate.jsonl" "$atlas/clerk.jsonl" ..
how=(--data ../pirate.jsonl --set r=4 --set lr=0.003 --set batch=4 --set steps=9 --set seed=5 --no-gate)
equal() { # equal REV...: replay says so
    local v
    for v in "$@"; do
        want 0 replay "$v"
        grep -q "^equal  $v: [1-9][0-9]* tensors, [1-9][0-9]* steps" "$tmp/out" || die "$v: $(cat "$tmp/out")"
    done
}

say "alone, in a family, stacked, stopped and resumed, with records left out, by another thread count"
want 0 derive atlas --as lone "${how[@]}" --skip 0,3,17
want 128 derive atlas --as part "${how[@]}" --stop-after 4
want 0 derive atlas --as part "${how[@]}"
cat >../family.yaml <<'Y'
parent: atlas
set: {r: 4, lr: 0.003, batch: 4, steps: 6, seed: 5}
modules:
  style: {data: pirate.jsonl, set: {rslora: true, targets: "q_proj,v_proj"}}
children:
  - {as: kid, on: style, data: clerk.jsonl, set: {accumulate: 2}}
  - {as: full, data: clerk.jsonl, method: full, set: {batch: 2, steps: 2, lr: 0.0005}}
  - {as: best, data: clerk.jsonl, sweep: {lr: [0.001, 0.01], r: [2, 4]}, halving: {rungs: [2, 4, 6]}}
Y
want 0 derive -f ../family.yaml --no-gate
equal lone part kid full best
want 0 --threads 1 replay lone
want 0 replay full --json
python3 - "$tmp/out" <<'PY'
import json, sys
(r,) = json.load(open(sys.argv[1]))
assert r["equal"] is True and r["log_equal"] is True and r["differ"] == 0 and r["paths"] == [] and r["steps"] == 2, r
assert r["tensors"] >= 50, r
PY

say "every method that there is"
for m in dora ia3 prefix prompt bitfit ln_tuning loha lokr oft boft hra miss shira fourierft randlora vera adalora; do
    code=0
    "$fm" derive atlas --as "by-$m" --method $m --data ../clerk.jsonl --set steps=3 --set batch=2 --set seed=2 --no-gate >"$tmp/out" 2>"$tmp/err" || code=$?
    if [ $code = 0 ]; then
        equal "by-$m"
    else # an atlas has no biases; a method that is not there says so by name
        grep -q '^fmstore: ' "$tmp/err" || die "$m: $(cat "$tmp/err")"
        echo "  $m: $(tail -1 "$tmp/err")"
    fi
done

say "a chain, up to what was imported"
want 0 derive kid --as grandkid "${how[@]}"
want 0 replay grandkid --chain
[ "$(grep -c '^equal  ' "$tmp/out")" = 3 ] || die "want three: $(cat "$tmp/out")"
head -1 "$tmp/out" | has '^equal  grandkid~2' || die "not the oldest first: $(cat "$tmp/out")"

say "pretraining, whose parent is a config alone"
want 0 derive --from-config "$atlas/config" --as born --data "$atlas/corpus.jsonl" --set steps=3 --set batch=2 --set seed=3 --set max_tokens=64 --no-gate
equal born

say "the recipe says which device trained; the class, not the device, binds a replay"
device_of() { "$fm" cat "$1:recipe.json" | python3 -c 'import json,sys; print(json.load(sys.stdin)["device"])'; }
[ "$(device_of lone)" = cpu ] || die "lone: device $(device_of lone)"
if [ -n "${FM_APART:-}" ]; then
    "$FM_APART" derive atlas --as apart "${how[@]}" >"$tmp/out" 2>"$tmp/err" || die "$(cat "$tmp/err")"
    [ "$(device_of apart)" = apart ] || die "apart: device $(device_of apart)"
    "$fm" cat apart:train.html | has 'device apart' || die "the page does not say the device"
    equal apart
fi

say "nothing is changed by it, and no state is left"
before=$(state_of .)
want 0 replay lone
[ "$before" = "$(state_of .)" ] || die "replay changed the repository"

say "what was not trained here cannot be replayed"
refused 128 "has no recipe.json" replay atlas

command -v git >/dev/null || { echo "no git: forged recipes are not tried"; echo "all hold"; exit 0; }
export GIT_DIR=$PWD/.fmstore/lineage.git GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t
# forge REV NAME PYTHON: branch NAME is REV with recipe.json changed by PYTHON (r is the recipe)
forge() {
    export GIT_INDEX_FILE=$tmp/index
    rm -f "$GIT_INDEX_FILE"
    git read-tree "$1"
    git cat-file blob "$1:recipe.json" >"$tmp/recipe.json"
    python3 -c "
import json
r = json.load(open('$tmp/recipe.json'))
$3
json.dump(r, open('$tmp/forged.json', 'w'))"
    git update-index --cacheinfo "100644,$(git hash-object -w "$tmp/forged.json"),recipe.json"
    git log -1 --format=%B "$1" >"$tmp/message"
    git update-ref "refs/heads/$2" "$(git commit-tree "$(git write-tree)" -p "$1~1" -F "$tmp/message")"
    unset GIT_INDEX_FILE
}

say "another class is no finding, and both devices are named"
forge lone classed "r['kernel_class'] = 'cuda-bf16-1'; r['device'] = 'cuda'"
refused 128 "in kernel class 'cuda-bf16-1' (device cuda), this machine computes mode exact in 'exact-f32-1' (device cpu)" replay classed

say "a recipe that is not what was done: exit 1, and the tensors are named"
forge lone forged "r['config']['seed'] = 6"
want 1 replay forged
grep -q '^differs  forged' "$tmp/out" || die "$(cat "$tmp/out")"
grep -q '  adapters/0-lora/tensors/.*lora_A.weight' "$tmp/out" || die "no tensor is named: $(cat "$tmp/out")"
grep -q '  train_log.json' "$tmp/out" || die "the log is not named: $(cat "$tmp/out")"
want 1 replay forged --json
python3 -c 'import json,sys; r = json.load(open(sys.argv[1]))[0]; assert not r["equal"] and not r["log_equal"] and r["differ"] == len(r["paths"]) > 20, r' "$tmp/out"
forge lone records "r['data'][0]['skipped'] = [0]"
want 1 replay records

say "a recipe of an earlier fmstore, which lacks the newer settings, replays"
forge lone older "
keep = 'method r alpha rslora targets modules_to_save lr beta1 beta2 eps weight_decay clip schedule warmup steps epochs batch accumulate max_tokens seed dtype answers_only'.split()
r['config'] = {k: v for k, v in r['config'].items() if k in keep}
r['data'] = [{k: d[k] for k in 'name sha256 records used tokens skipped without_target'.split()} for d in r['data']]"
equal older

say "what this machine cannot judge is no difference: exit 128"
forge lone elsewhere "r['kernel_class'] = 'exact-f32-9'"
refused 128 "kernel class 'exact-f32-9'" replay elsewhere
forge lone nomode "r['mode'] = 'quantum'"
refused 128 "quantum" replay nomode
forge lone data "r['data'][0]['sha256'] = '0' * 64"
refused 128 "is not what the recipe's sha256 says" replay data
forge lone gone "r['data'][0]['name'] = 'nothing.jsonl'"
refused 128 "has no data/nothing.jsonl" replay gone
forge lone other "r['parent_model'] = '0' * 64"
refused 128 "history was rewritten" replay other
forge lone setting "r['config']['lr'] = 'high'"
refused 128 "lr: 'high'" replay setting
forge lone merged "r['operation'] = 'merge'"
refused 128 "'merge' is no training" replay merged
echo "all hold"
