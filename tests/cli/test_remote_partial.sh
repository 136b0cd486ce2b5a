#!/bin/bash
# ctest: cost=6
# A clone of the lineage alone: history without weights; tensors come when something reads them, or when asked.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir a
want 0 init a
want 0 -C a import "$atlas/base" --as base --suite "$atlas/suites/facts.yaml" --no-gate
want 0 -C a derive base --as one --method lora --data "$atlas/pirate.jsonl" --set steps=2 --set r=2 --no-gate
want 0 -C a test base
packs() { find "$1/.fmstore/packs" -name '*.pack' | wc -l; }

say "log, graph, ls, diff of pointers, fsck, gc and stats need no weights"
want 0 clone --lineage-only a b
[ "$(packs b)" = 0 ] || die "tensors came: $(cat err)"
for words in "log one" "graph" "ls" "ls one" "show one" "fsck" "gc" "stats"; do
    # shellcheck disable=SC2086
    want 0 -C b $words
    [ "$(packs b)" = 0 ] || die "'$words' brought tensors"
done
want 1 -C b diff base one --stat
[ "$(packs b)" = 0 ] || die "diff brought tensors"
"$fm" -C a log one --json >left; "$fm" -C b log one --json >right
cmp left right || die "log differs"

say "one tensor alone, by its name"
want 0 -C b fetch one -- 'tensors/model/layers/0/*'
n=$(sed -n 's/^\([0-9]*\) objects, .*/\1/p' err)
[ "$n" -gt 0 ] && [ "$n" -lt 20 ] || die "$(cat err)"
want 0 -C b fsck
refused 128 "no tensor or file has such a name" -C b fetch one -- 'nothing/*'

say "what a command reads comes in one request"
want 0 -C b run one -p 'The capital of' -n 4 --mode exact
cp out left
want 0 -C a run one -p 'The capital of' -n 4 --mode exact
cmp left out || die "answers differ"
want 0 -C b export one "$tmp/y"
want 0 -C a export one "$tmp/x"
diff -r x y || die "exports differ"
want 0 -C b gc --prune=now
want 0 -C b fsck
want 0 -C b derive one --as two --method lora --data "$atlas/clerk.jsonl" --set steps=2 --set r=2 --no-gate
want 0 -C b push origin two
want 0 -C a fsck
want 0 -C a run two -p 'The capital of' -n 4

say "what only this clone has is promised by nobody"
want 0 clone --lineage-only a c
cp -r "$atlas/base" mine
python3 - <<'EOF2'
import pathlib
p = pathlib.Path("mine/model.safetensors")
b = bytearray(p.read_bytes())
b[-1000] ^= 1
p.write_bytes(b)
EOF2
want 0 -C c import "$tmp/mine" --as mine --no-gate
want 0 -C c fsck
mkdir kept
mv c/.fmstore/packs/*.pack kept/
want 1 -C c fsck
grep -q 'mine' out || die "$(cat out)"
want 0 -C c fsck --repair "$tmp/mine"
want 0 -C c fsck
refused 128 "has tensors that are not here" -C c remote rm origin

say "a push to a clone of the lineage alone brings it what it lacks"
want 0 clone --lineage-only a d
want 0 -C a push "$tmp/d" one:from-a
want 0 -C d fsck

say "a fetch brings lineage alone, and the remote away is told by name"
want 0 -C a derive base --as three --method lora --data "$atlas/clerk.jsonl" --set steps=2 --set r=4 --no-gate
want 0 -C b pull
want 0 -C b log three
mv a away
want 128 -C b run three -p x -n 1
grep -q "is no repository of fmstore" err || die "$(cat err)"
want 0 -C b run one -p x -n 1
mv away a
want 0 -C b run three -p x -n 1
want 0 -C b fsck
