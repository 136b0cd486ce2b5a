#!/bin/bash
# ctest: cost=15
# Bad input of every kind: one line that says what and what to do, the right exit code, and a repository
# in which nothing moved.
. "$(dirname "$0")/lib.sh"
need_python
here=$(cd "$(dirname "$0")" && pwd)
cd "$tmp"
mkdir bad && python3 "$here/make_bad.py" "$atlas/base" bad
mkdir repo && cd repo
atlas_repo
want 0 derive atlas --as child --data "$atlas/pirate.jsonl" --set r=2 --set steps=2 --set batch=2 --no-gate
want 0 export child "$tmp/adapter" --format peft
mkdir "$tmp/adapters" && python3 "$here/make_bad_adapter.py" "$tmp/adapter" "$tmp/adapters"
packs=$(ls .fmstore/packs)
before=$(state_of .)

# bad CODE TEXT COMMAND... : refused, and nothing has moved.
bad() {
    refused "$@"
    [ "$before" = "$(state_of .)" ] || die "the repository changed: fmstore ${*:3}"
}

say "safetensors that lie about themselves"
bad 128 "overlaps" import ../bad/st-overlap --as x
bad 128 "lies outside the file" import ../bad/st-outside --as x
for f in ../bad/st-*; do
    bad 128 "safetensors" import "$f" --as x
done

say "a GGUF cut anywhere, of another version, or with absurd counts"
for f in ../bad/cut-*.gguf; do
    bad 128 "$(basename "$f")" import "$f" --as x
done
bad 128 "version 99" import ../bad/version-99.gguf --as x
bad 128 "many-tensors" import ../bad/many-tensors.gguf --as x

say "adapters that do not fit their parent, or come without one"
for f in "$tmp"/adapters/*; do
    bad 128 "" import "$f" --as x --parent atlas
done
bad 128 "--parent REV" import "$tmp/adapter" --as x
bad 128 "layers.99" import "$tmp/adapters/module" --as x --parent atlas
bad 128 "lora_A" import "$tmp/adapters/shape" --as x --parent atlas

say "sources that are not models"
: >../empty.gguf
echo "hello" >../text.gguf
bad 128 "does not begin with GGUF's mark" import ../text.gguf --as x
mkdir ../folder
for f in ../empty.gguf ../text.gguf ../folder ../nowhere /dev/null "$atlas/suites"; do
    bad 128 "" import "$f" --as x
done

say "a folder whose link leads out of it; what is not taken of a sound one is told"
cp -r "$atlas/base" ../link
ln -s /etc/passwd ../link/extra.txt
bad 128 "link to '/etc/passwd', outside of the folder" import ../link --as x
rm ../link/extra.txt
mkdir -p ../link/sub/.cache ../link/.git
echo deep >../link/sub/.cache/file
echo kept >../link/sub/file
want 0 -C ../ init other
want 0 -C ../other import ../link --as x --no-gate
for left in "'sub/.cache' (5 bytes), a folder of what was downloaded" "'.git' (0 bytes), git"; do
    grep -q "note: not imported: $left" "$tmp/err" || die "not told: $left: $(cat "$tmp/err")"
done
want 0 -C ../other export x ../back --format source
grep -q "import left out of what came in: 2 " "$tmp/err" || die "not told: $(cat "$tmp/err")"

say "data that cannot be trained on"
: >../empty.jsonl
echo '{"instruction": 3}' >../types.jsonl
printf '{"instruction":"a","output":"b"}\n{"instruction":\n' >../broken.jsonl
bad 128 "is empty" derive atlas --as x --data ../empty.jsonl
bad 128 "types.jsonl" derive atlas --as x --data ../types.jsonl
bad 128 "line 2" derive atlas --as x --data ../broken.jsonl
bad 128 "nowhere.jsonl" derive atlas --as x --data ../nowhere.jsonl
bad 128 "is empty" derive --from-config "$atlas/config" --as x --data ../empty.jsonl
bad 128 "config.json" derive --from-config ../folder --as x --data "$atlas/pirate.jsonl"

say "suites that are no suites, before anything is stored or trained"
printf 'suite: s\ncases:\n  - name: a\n    prompt: Hi\n    asert: {contains: x}\n' >../key.yaml
printf 'a: [b\n' >../broken.yaml
bad 128 "unknown key 'asert'" suite add atlas ../key.yaml
bad 128 "asert" import "$atlas/base" --as x --suite ../key.yaml
bad 128 "asert" derive atlas --as x --data "$atlas/pirate.jsonl" --suite ../key.yaml
bad 128 "broken.yaml" suite add atlas ../broken.yaml
bad 128 "nowhere.yaml" suite add atlas ../nowhere.yaml
bad 128 "not a branch" suite add nowhere "$atlas/suites/facts.yaml"

say "names: unknown, taken, forbidden"
for c in "show" "log" "test" "ls" "run" "tokenize" "suite ls"; do
    # shellcheck disable=SC2086
    bad 128 "no version 'nope'" $c nope
done
bad 128 "no version 'nope'" diff atlas nope
bad 128 "no version 'nope'" export nope ../x
bad 128 "no version 'nope'" derive nope --as x --data "$atlas/pirate.jsonl"
bad 128 "no version 'nope'" blame nope --case a/b
bad 128 "already" derive atlas --as child --data "$atlas/pirate.jsonl"
bad 128 "already" import "$atlas/base" --as child
for name in 'a b' '-x' 'a..b' 'x.lock' '.x' 'a//b' '' $'a\nb'; do
    bad 128 "branch name" import "$atlas/base" "--as=$name"
    bad 128 "branch name" derive atlas "--as=$name" --data "$atlas/pirate.jsonl"
done
bad 128 "kind 'adopt' is not known" import "$atlas/base" --as x --kind adopt
bad 128 "already" export child "$tmp/adapter"

say "settings that do not exist or make no sense"
for s in lrr=1 lr=fast lr= steps=-1 steps=1.5 r=0 batch=0 schedule=zigzag dtype=I8 targets=nothing noequals; do
    bad 128 "" derive atlas --as x --data "$atlas/pirate.jsonl" --set "$s"
done
bad 128 "method 'magic'" derive atlas --as x --data "$atlas/pirate.jsonl" --method magic
bad 128 "--skip" derive atlas --as x --data "$atlas/pirate.jsonl" --skip 1,zwei
bad 129 "--as NAME" derive atlas --data "$atlas/pirate.jsonl"
bad 129 "-f FILE" derive -f "$atlas/family.yaml" --set lr=1

say "family files, by file, child and key"
family() {
    local text=$1
    shift
    printf -- "$text" >../family.yaml
    bad 128 "$1" derive -f ../family.yaml
}
cp "$atlas/pirate.jsonl" ../d.jsonl
one='\n  - {as: x, data: d.jsonl'
family "children: []\n" "'parent'"
family "parent: atlas\n" "'children'"
family "parent: atlas\nchildren: 3\n" "'children' must be a list"
family "parent: atlas\nchildern: []\n" "unknown key 'childern'"
family "parent: atlas\nchildren:$one, dat: y}\n" "unknown key 'dat'"
family "parent: atlas\nchildren:\n  - {data: d.jsonl}\n" "child 1: 'as'"
family "parent: atlas\nset: [lr]\nchildren:$one}\n" "'set' must be a mapping"
family "parent: atlas\nchildren:$one, set: {lrr: 1}}\n" "child 1: training option 'lrr'"
family "parent: atlas\nchildren:$one, skip: 3}\n" "'skip' must be a list"
family "parent: atlas\nchildren:$one, skip: [a]}\n" "child 1: skip"
family "parent: atlas\nchildren:$one, suites: s.yaml}\n" "'suites' must be a list"
family "parent: atlas\nchildren:$one, suites: [nowhere.yaml]}\n" "nowhere.yaml"
family "parent: atlas\nchildren:$one, method: magic}\n" "child 1: method 'magic'"
family "parent: atlas\nchildren:$one}$one}\n" "two children are called 'x'"
family "parent: nope\nchildren:$one}\n" "no version 'nope'"
family "- a\n- b\n" "key: value"
family "\tx" "line 1"

say "after all that: the same packs, and fsck is clean"
[ "$packs" = "$(ls .fmstore/packs)" ] || die "packs came or went"
want 0 fsck

say "strange tensor names stay inside the tree, and come back as they were"
want 0 import ../bad/odd --as odd --no-gate
want 0 export odd ../odd-out --format source
diff -r ../bad/odd ../odd-out
[ -z "$(find "$tmp" / -maxdepth 1 -name 'escape*')" ] || die "a tensor name escaped"
want 0 fsck

say "a damaged pack: fsck names what is hurt and exits 1; what is not hurt stays readable"
cp -r .fmstore ../sound
pack=$(ls -S .fmstore/packs/*.pack | sed -n 1p)
chmod u+w "$pack"
python3 - "$pack" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(0, 2)
    at = f.tell() // 2
    f.seek(at)
    byte = f.read(1)[0]
    f.seek(at)
    f.write(bytes([byte ^ 0x40]))
PY
want 1 fsck
grep -q '^fault: ' out 2>/dev/null || grep -q '^fault: ' "$tmp/out" || die "fsck names no fault"
grep -q 'NOT CLEAN' "$tmp/out" || die "fsck does not say so"
want 1 fsck --json
hurt=0 sound=0
for path in $("$fm" ls atlas --json | python3 -c '
import json, sys
print("\n".join(e["path"] for e in json.load(sys.stdin) if e["kind"] == "tensor"))'); do
    code=0
    "$fm" cat "atlas:$path" --raw >"$tmp/raw" 2>"$tmp/err" || code=$?
    case $code in
        0) sound=$((sound + 1)) ;;
        128) hurt=$((hurt + 1)); grep -q '^fmstore: ' "$tmp/err" || die "no line about $path" ;;
        *) die "cat atlas:$path exits $code" ;;
    esac
done
echo "  $hurt tensors hurt, $sound sound"
[ $hurt -ge 1 ] && [ $sound -ge 40 ] || die "one flipped bit must hurt one tensor, not $hurt"
refused 128 "" test atlas
rm -rf .fmstore && mv ../sound .fmstore

say "a repository of a newer format is refused by every command, and not written to"
for file in config format; do
    cp -r .fmstore ../sound
    sed -i 's/1$/2/' ".fmstore/$file"
    now=$(find .fmstore -type f ! -name '*.lock' | sort | xargs sha256sum)
    for c in "log" "fsck" "stats" "import $atlas/base --as y" "derive atlas --as y --data $atlas/pirate.jsonl" "branch b atlas"; do
        # shellcheck disable=SC2086
        refused 128 "newer" $c
    done
    [ "$now" = "$(find .fmstore -type f ! -name '*.lock' | sort | xargs sha256sum)" ] || die "it was written to"
    rm -rf .fmstore && mv ../sound .fmstore
done
want 0 fsck
echo "all hold"
