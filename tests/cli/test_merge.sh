#!/bin/bash
# ctest: cost=10
# Merges: average and task arithmetic, of full children and of adapters; values against sums in double
# precision, sizes, what is refused, and what the version says of itself.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
want 0 init .
want 0 import "$atlas/base" --as atlas --suite "$atlas/suites/facts.yaml" --no-gate
cat >family.yaml <<EOF2
parent: atlas
set: {r: 4, batch: 4, steps: 6, lr: 0.003, seed: 5}
children:
  - {as: p, data: $atlas/pirate.jsonl, suites: [$atlas/suites/pirate.yaml]}
  - {as: k, data: $atlas/clerk.jsonl}
  - {as: f, method: full, set: {lr: 0.0005}, data: $atlas/clerk.jsonl}
EOF2
want 0 derive -f family.yaml --no-gate
want 0 derive p --as pp --data "$atlas/clerk.jsonl" --set r=2 --set batch=4 --set steps=3 --no-gate
for v in atlas f; do want 0 export $v ../$v.st --format safetensors; done
for v in p k pp; do want 0 export $v ../$v --format peft; done

# near RESULT METHOD BASE (BRANCH COEFFICIENT)... : its tensors are the sum, rounded once to bf16. Each branch
# is FILE or FILE+ADAPTER+ADAPTER.
near() {
    want 0 export "$1" "../$1.st" --format safetensors
    python3 - "$@" <<'PY' || die "$1 is not that sum"
import array, json, math, struct, sys

def load(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    return raw, n + 8, json.loads(raw[8:8 + n])

def tensor(f, name):
    raw, at, head = f
    e = head[name]
    b = raw[at + e["data_offsets"][0]:at + e["data_offsets"][1]]
    if e["dtype"] == "BF16":
        wide = array.array("f", b"".join(b"\0\0" + b[i:i + 2] for i in range(0, len(b), 2)))
    else:
        assert e["dtype"] == "F32", e
        wide = array.array("f", b)
    return e["shape"], wide

def whole(spec, name):
    first, *adapters = spec.split("+")
    shape, w = tensor(load("../%s.st" % first), name)
    w = [float(v) for v in w]
    for a in adapters:
        f, c = load("../%s/adapter_model.safetensors" % a), json.load(open("../%s/adapter_config.json" % a))
        key = "base_model.model." + name[:-len("weight")] + "lora_%s.weight"
        if key % "A" not in f[2]:
            continue
        (r, cols), A = tensor(f, key % "A")
        (rows, _), B = tensor(f, key % "B")
        s = c["lora_alpha"] / c["r"]
        for i in range(rows):
            b = B[i * r:i * r + r]
            for j in range(cols):
                w[i * cols + j] += s * math.fsum(b[k] * A[k * cols + j] for k in range(r))
    return shape, w

made, method, base, *rest = sys.argv[1:]
got_file = load("../%s.st" % made)
for name in ("model.layers.0.self_attn.k_proj.weight", "model.layers.5.mlp.down_proj.weight",
             "model.layers.2.input_layernorm.weight", "model.norm.weight"):
    shape, got = tensor(got_file, name)
    x = whole(base, name)[1]
    want = x[:] if method == "task" else [0.0] * len(x)
    for spec, coef in zip(rest[::2], rest[1::2]):
        y = whole(spec, name)[1]
        for i in range(len(x)):
            want[i] += float(coef) * (y[i] - (x[i] if method == "task" else 0.0))
    for g, w in zip(got, want):
        half = 2.0 ** (math.frexp(w)[1] - 9)  # of the last of bf16's 8 bits
        assert abs(g - w) <= half * 1.001 + 1e-9, (name, g, w)
    assert any(g != v for g, v in zip(got, x)) or "norm" in name, "nothing was merged"
PY
}
# small BRANCH : every tensor that was made is stored as a sum, at less than 2 % of its bytes or a record's head.
small() {
    want 0 stats --codecs "$1" --json
    python3 - "$tmp/out" "$(ids atlas)" "$(ids "$1")" <<'PY' || die "$1 is not stored as a sum"
import json, sys
same = {l.split()[0] for l in set(sys.argv[2].splitlines()) & set(sys.argv[3].splitlines())}
rows = [r for r in json.load(open(sys.argv[1])) if r["bytes"] >= 8192 and r["path"] not in same]
share = sum(r["stored_bytes"] for r in rows) / max(1, sum(r["bytes"] for r in rows))
print("  %d tensors, %.2f %% of their bytes" % (len(rows), 100 * share))
large = [r for r in rows if r["stored_bytes"] > max(0.02 * r["bytes"], 512)]
sys.exit(not rows or share > 0.02 or bool(large) or {r["made"] for r in rows} != {"linear"})
PY
}

say "two adapters, averaged"
want 0 merge p k --as avg --no-gate
grep -q 'avg .*merge of p, k by average' "$tmp/out" || die "it says: $(cat "$tmp/out")"
near avg average atlas atlas+p 0.5 atlas+k 0.5
small avg

say "an adapter on an adapter, a full child, and an average of weights that do not sum to 1"
want 0 merge pp f k --as three --weight 1 --weight 2 --weight 1 --no-gate
near three average atlas atlas+p+pp 0.25 f 0.5 atlas+k 0.25
small three

say "task arithmetic over the merge base, and over a base that is named"
want 0 merge p f --as task --method task-arithmetic --lambda 0.5 --weight 1 --weight 0.4 --no-gate
near task task atlas atlas+p 0.5 f 0.2
small task
want 0 merge pp k --as over --method task-arithmetic --base p --no-gate
near over task atlas+p atlas+p+pp 1 atlas+k 1
small over
want 0 merge pp p --as same --method task-arithmetic --no-gate # what only one changed is its alone
near same task atlas+p atlas+p+pp 1

say "the version: kind, parents in order, recipe, suites of all"
want 0 show three --json
python3 - "$tmp/out" <<'PY'
import json, sys
v = json.load(open(sys.argv[1]))
assert v["kind"] == "merge" and len(v["parents"]) == 3 and v["recipe"], v
PY
[ "$(field "$tmp/out" parents | tr -d "[]',")" = "$(for v in pp f k; do
    "$fm" show $v --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["id"])'; done | xargs)" ] ||
    die "parents are not in order"
"$fm" cat task:recipe.json | python3 -c '
import json, sys
r = json.load(sys.stdin)
assert r["operation"] == "merge" and r["method"] == "task-arithmetic" and r["lambda"] == 0.5, r
assert [p["weight"] for p in r["parents"]] == [1, 0.4] and r["base"]["model"], r'
want 0 suite ls three
[ "$(cut -d' ' -f1 "$tmp/out" | xargs)" = "facts pirate" ] || die "its suites: $(cat "$tmp/out")"

say "a suite file is read with the suites that the version will carry, before any weight is"
printf 'changes: facts\ntopic: merged\noverride:\n  - {name: nowhere, chat: Hi, expect: {contains: x}}\n' >bad.yaml
refused 128 "'override' names 'nowhere'" merge p k --as worse --suite bad.yaml --no-gate
! grep -q 'tensors' "$tmp/out" || die "weights were merged before"
sed 's/nowhere/capital-ulevia/' bad.yaml >good.yaml
want 0 merge p k --as better --suite good.yaml --no-gate
want 0 suite show better facts
grep -A2 '^  capital-ulevia' "$tmp/out" | has changed || die "$(cat "$tmp/out")"

say "one thread or two, today or tomorrow: the same tree"
want 0 --threads 1 merge p k --as again --no-gate -m "another message"
[ "$(tree_of avg)" = "$(tree_of again)" ] || die "another tree"

say "its gate decides"
want 1 merge p k --as loud --method task-arithmetic --lambda 6
grep -q "^fmstore: branch 'loud' is not made" "$tmp/err" || die "it says: $(cat "$tmp/err")"
refused 128 "no version 'loud'" show loud

say "what cannot be merged is refused by name, and changes nothing"
python3 - "$atlas/base" <<'PY'
import json, os, shutil, struct, sys
def copy(to, config=None, cut=None, vocab=None):
    shutil.copytree(sys.argv[1], to)
    if config:
        c = json.load(open(to + "/config.json"))
        c.update(config)
        json.dump(c, open(to + "/config.json", "w"))
    path = to + "/model.safetensors"
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    head, body = json.loads(raw[8:8 + n]), raw[8 + n:]
    out, data = {}, b""
    for name, e in head.items():
        if name == "__metadata__" or name == cut:
            continue
        b = body[e["data_offsets"][0]:e["data_offsets"][1]]
        if vocab and name == "model.embed_tokens.weight":
            e["shape"][0] -= vocab
            b = b[:len(b) - 2 * vocab * e["shape"][1]]
        out[name] = {"dtype": e["dtype"], "shape": e["shape"], "data_offsets": [len(data), len(data) + len(b)]}
        data += b
    h = json.dumps(out).encode()
    open(path, "wb").write(struct.pack("<Q", len(h)) + h + data)
copy("../cut", cut="model.norm.weight")
copy("../theta", config={"rope_theta": 20000.0})
copy("../vocab", vocab=8)  # the config is that of the whole: the weights say otherwise
copy("../words")
t = json.load(open("../words/tokenizer_config.json"))
t["made"] = "elsewhere"
json.dump(t, open("../words/tokenizer_config.json", "w"))
PY
for v in cut theta vocab words; do want 0 import ../$v --as $v --no-gate; done

say "gc keeps a base that only the recipe names"
want 0 derive atlas --as base --method full --data "$atlas/clerk.jsonl" --set steps=1 --set lr=0.0001 --set batch=2 --no-gate
base=$(git -C .fmstore/lineage.git rev-parse base)
want 0 merge f atlas --as apart --method task-arithmetic --base base --no-gate
want 0 cat apart:recipe.json
grep -q "\"version\": \"$base\"" "$tmp/out" || die "the recipe does not name the base: $(cat "$tmp/out")"
want 0 branch -d base
for k in 1 2; do want 0 gc --prune now --reflog now; done
git -C .fmstore/lineage.git cat-file -e "$base" || die "gc took the base"
want 0 fsck
want 0 branch -d apart
for k in 1 2; do want 0 gc --prune now --reflog now; done
! git -C .fmstore/lineage.git cat-file -e "$base" 2>/dev/null || die "nobody names it now"

before=$(state_of .)
refused 128 "tensor 'model.norm.weight' is in p, not in cut" merge p cut --as x
refused 128 "field 'rope_theta' of the config differs between p and theta" merge p theta --as x
refused 128 "tokenizer/tokenizer_config.json differs between p and words" merge p words --as x
refused 128 "tensor 'model.embed_tokens.weight' is [1024, 128] in p and [1016, 128] in vocab" merge p vocab --as x
refused 128 "have no common ancestor" merge p cut --as x --method task-arithmetic
refused 128 "'p' and 'p' are the same version" merge p p --as x
refused 128 "the weights of an average must not sum to 0" merge p k --as x --weight 1 --weight -1
refused 128 "p would be taken 0 times" merge p k --as x --weight 1e308 --weight 1e308
refused 128 "k would be taken 1e+09 times: more than 1e+06 is no merge" merge p k --as x --method task-arithmetic --weight 1 --weight 1e9
refused 128 "give one for each" merge p k --as x --weight 1
refused 128 "--weight wants a number" merge p k --as x --weight 1 --weight two
refused 128 "there are average and task-arithmetic" merge p k --as x --method ties
refused 128 "branch 'avg' is there already" merge p k --as avg
refused 129 "--as NAME is missing" merge p k
want 0 derive atlas --as pre --method prefix --data "$atlas/clerk.jsonl" --set steps=1 --set batch=2 --no-gate
refused 128 "an adapter of kind 'prefix' cannot be merged" merge p pre --as x
want 0 branch -d pre
want 0 fsck
