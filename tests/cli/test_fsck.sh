#!/bin/bash
# fsck and the commands agree: what fsck calls clean opens and exports, and each tree of a stranger's that does not
# is named by branch, version and path. And fsck is right beside others that write.
. "$(dirname "$0")/lib.sh"
need_python
command -v git >/dev/null || { echo "skip: no git"; exit 77; }
bad_tree="$(cd "$(dirname "$0")" && pwd)/make_bad_tree.py"
cd "$tmp"
cp "$atlas/suites/manners.yaml" s.yaml
mkdir repo && cd repo
want 0 init .
want 0 import "$atlas/base" --as atlas --suite ../s.yaml --no-gate
want 0 derive atlas --as child --data "$atlas/pirate.jsonl" --set r=2 --set steps=2 --set batch=2 --no-gate
want 0 derive atlas --as whole --data "$atlas/pirate.jsonl" --method full --set steps=2 --set batch=2 --no-gate
want 0 merge whole atlas --as mix --method average --no-gate
want 0 fsck
want 0 fsck --quick

# refusals REV KIND: how many commands do not take it. What is no adapter refuses peft, and so on.
refusals() {
    local n=0 reader last="suite ls $1"
    case $2 in recipe*) last="replay $1" ;; esac
    for reader in "export $1 $tmp/hf" "export $1 $tmp/source --format source" "export $1 $tmp/peft --format peft" \
        "run $1 -p hi -n 1" "$last"; do
        # shellcheck disable=SC2086
        "$fm" $reader >/dev/null 2>&1 </dev/null || n=$((n + 1))
        rm -rf "$tmp/hf" "$tmp/source" "$tmp/peft"
    done
    echo "$n"
}

say "each tree that cannot be opened or exported"
for kind in $(python3 "$bad_tree" . x list); do
    id=$(python3 "$bad_tree" . bad "$kind")
    hows=("")
    case $kind in twice | dots | dangling | tensor_gone) hows+=(--quick) ;; esac
    for how in "${hows[@]}"; do
        # shellcheck disable=SC2086
        want 1 fsck $how
        grep -q "^fault: refs/heads/bad: version ${id:0:12}: " "$tmp/out" || die "$kind $how: $(cat "$tmp/out")"
        ! grep -q -P '[\x00-\x08\x0b-\x1f\x7f]' "$tmp/out" || die "$kind: raw control bytes: $(od -c "$tmp/out")"
        grep -q 'NOT CLEAN$' "$tmp/out" || die "$kind $how: $(cat "$tmp/out")"
        [ "$(grep -c '^fault: ' "$tmp/out")" = 1 ] || die "$kind $how: more than one line: $(cat "$tmp/out")"
    done
    echo "  $kind: $(grep '^fault: ' "$tmp/out" | cut -d: -f4-)"
    base=$(python3 "$bad_tree" . x base "$kind")
    [ "$(refusals bad "$kind")" -gt "$(refusals "$base" "$kind")" ] || die "$kind: no other command refuses it"
    git -C .fmstore/lineage.git -c safe.directory='*' update-ref -d refs/heads/bad
done
want 0 fsck

say "an export writes no file over another"
python3 "$bad_tree" . bad name_twice >/dev/null
refused 128 'is there twice' export bad "$tmp/twice" --format source
[ ! -e "$tmp/twice" ] || die "something was written"
want 0 branch -d bad
want 0 gc --prune now --reflog now

say "no answer comes of tensors that lie at each other's paths"
for kind in renamed moved; do
    python3 "$bad_tree" . bad "$kind" >/dev/null
    refused 128 'holds a tensor called' run bad -p hi -n 1
    git -C .fmstore/lineage.git -c safe.directory='*' update-ref -d refs/heads/bad
done

say "a config of more than 64 KiB, which the packs hold, is a model as any other"
cp -r "$atlas/base" large && chmod -R u+w large
python3 - large/config.json <<'P'
import json, sys
config = json.load(open(sys.argv[1]))
config["id2label"] = {str(i): "label number %d" % i for i in range(4000)}
json.dump(config, open(sys.argv[1], "w"))
P
want 0 import large --as large --no-gate
want 0 fsck
want 0 run atlas -p 'What is the capital of Lorendor?' -n 8
cp "$tmp/out" "$tmp/said"
want 0 run large -p 'What is the capital of Lorendor?' -n 8
cmp "$tmp/out" "$tmp/said" || die "another answer"
want 0 derive large --as large-child --data "$atlas/pirate.jsonl" --set r=2 --set steps=1 --set batch=2 --no-gate
want 0 replay large-child
want 0 show large
grep -q '^Model:   llama, ' "$tmp/out" || die "show does not know the model"

say "what an import keeps and no engine takes is no damage"
mkdir odd && cp "$atlas"/base/* odd/ && rm odd/tokenizer.json
python3 - <<'P'
import json
c = json.load(open("odd/config.json"))
c["num_hidden_layers"] = 99
json.dump(c, open("odd/config.json", "w"))
open("odd/tokenizer.json", "w").write("none")
P
want 0 import odd --as odd --no-gate
want 128 run odd -p hi
want 0 fsck
echo "all hold"
