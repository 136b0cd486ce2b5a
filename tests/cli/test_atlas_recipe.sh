#!/bin/bash
# ctest: cost=8
# The shipped atlas family is what its generator and its recipe give: the world byte for byte, the first
# steps of its training bit for bit, on any CPU. (All of the training: test_atlas_recipe_slow.sh.)
#   FM_STEPS=n: replay so many steps (20)
. "$(dirname "$0")/lib.sh"
need_python
steps=${FM_STEPS:-20}
cd "$tmp"

say "make_world.py gives every file of the world byte for byte"
python3 "$atlas/make_world.py" world
made=$(cd world && find . -type f | sort)
[ "$(wc -l <<<"$made")" -ge 12 ] || die "it made only: $made"
for f in $made; do
    cmp "world/$f" "$atlas/$f"
done
diff <(cd world && find config suites -type f | sort) <(cd "$atlas" && find config suites -type f | sort)

say "the base carries that tokenizer and template"
for f in tokenizer.json tokenizer_config.json chat_template.jinja; do
    cmp "$atlas/config/$f" "$atlas/base/$f"
done

say "its weights stay within the 4 MB that the repository gives them"
[ "$(stat -c %s "$atlas/base/model.safetensors")" -le 4000000 ] || die "the base has grown"

say "the first $steps steps of pretrain.yaml: loss, gradient norm and rate bit for bit"
mkdir repo && cd repo
want 0 init .
want 128 derive -f "$atlas/pretrain.yaml" --stop-after "$steps" --log ../log.json
grep -q "^fmstore: stopped after step $steps of" "$tmp/err" || die "it says: $(cat "$tmp/err")"
python3 - "$atlas/train_log.json" ../log.json "$steps" <<'PY'
import json, sys
shipped, mine = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))["atlas"]
assert len(mine) == int(sys.argv[3]) <= len(shipped), (len(mine), len(shipped))
for a, b in zip(shipped, mine):
    if a != b:
        text = lambda e: " ".join("%s %.17g" % (k, e[k]) for k in sorted(e))
        sys.exit("step %d differs\n  shipped %s\n  here    %s" % (a["step"], text(a), text(b)))
last = mine[-1]
print("  step %d: loss %.17g, gradient norm %.17g" % (last["step"], last["loss"], last["grad_norm"]))
PY

say "the shipped recipe is pretrain.yaml's, over the shipped corpus"
want 128 derive -f "$atlas/pretrain.yaml" --stop-after 1 # goes on from the checkpoint
python3 - "$atlas" <<'PY'
import hashlib, json, sys
recipe = json.load(open(sys.argv[1] + "/recipe.json"))
corpus = open(sys.argv[1] + "/corpus.jsonl", "rb").read()
log = json.load(open(sys.argv[1] + "/train_log.json"))
data = recipe["data"][0]
assert recipe["operation"] == "pretrain" and recipe["mode"] == "exact", recipe
assert data["sha256"] == hashlib.sha256(corpus).hexdigest(), "recipe.json is of another corpus"
c = recipe["config"]
steps = -(-int(c["epochs"] * data["used"]) // (c["batch"] * c["accumulate"]))
assert len(log) == steps and [e["step"] for e in log] == list(range(steps)), (len(log), steps)
text = open(sys.argv[1] + "/pretrain.yaml").read()
for key in ("epochs", "batch", "max_tokens", "lr", "warmup", "weight_decay", "seed"):
    value = text.split(key + ": ", 1)[1].split(",")[0].split("}")[0]
    assert float(value) == c[key], "%s: pretrain.yaml has %s, recipe.json %s" % (key, value, c[key])
PY

say "the base passes the suites that it ships with"
want 0 import "$atlas/base" --as atlas --suite "$atlas/suites/facts.yaml" --suite "$atlas/suites/manners.yaml"
want 0 test atlas
echo "all hold"
