#!/bin/bash
# gc, repack and fsck as a user meets them: what is deleted, what comes back, what damage touches, and
# what another repository or the imported file mends.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
atlas_repo
want 0 derive atlas --as child --data "$atlas/pirate.jsonl" --set r=2 --set steps=2 --set batch=2 --no-gate
want 0 export atlas "$tmp/f32" --format hf --dtype f32
want 0 import "$tmp/f32" --as wide --no-gate
trees=$(tree_of atlas && tree_of child)

say "a dry run says who keeps what, and changes nothing"
want 0 branch -d wide
before=$(state_of .)
want 0 gc --dry-run --prune now
grep -q '^would go ' "$tmp/out" || die "nothing would go: $(cat "$tmp/out")"
grep -q 'child ' "$tmp/out" || die "nobody keeps anything: $(cat "$tmp/out")"
[ "$before" = "$(state_of .)" ] || die "the dry run changed something"

say "the unreached waits for its time, can be named again, and goes"
want 0 gc
grep -q '^condemned ' "$tmp/out" || die "$(cat "$tmp/out")"
packs() { find .fmstore/packs -name '*.pack' | wc -l; }
[ "$(packs)" = 3 ] || die "something was deleted within its grace"
want 0 gc --prune now
grep -q '^deleted ' "$tmp/out" || die "$(cat "$tmp/out")"
[ "$(packs)" = 2 ] || die "the pack is still there"
want 0 fsck
want 0 gc --prune now --json
python3 - "$tmp/out" <<'P'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["deleted"]["objects"] == r["waiting"]["objects"] == r["condemned"]["objects"] == 0, r
P

say "repack: one pack, no deltas, the same trees and bytes"
want 0 repack --all --depth 0
[ "$(packs)" = 1 ] || die "$(packs) packs"
cp -r .fmstore/packs "$tmp/packs"
want 0 repack --all --depth 0
diff -r .fmstore/packs "$tmp/packs" || die "a second repack gives other bytes"
want 0 fsck
[ "$trees" = "$(tree_of atlas && tree_of child)" ] || die "other trees"
want 0 export atlas "$tmp/again" --format hf --dtype f32
diff -r "$tmp/f32" "$tmp/again" || die "other bytes"

flip() { # FILE SHARE...: flips a bit at each share of the file
    python3 - "$@" <<'P'
import os, sys
b = bytearray(open(sys.argv[1], "rb").read())
for s in sys.argv[2:]:
    b[int(len(b) * float(s))] ^= 0x55
os.chmod(sys.argv[1], 0o644)
open(sys.argv[1], "wb").write(b)
P
}

say "damage is named by version and path, and mended from another repository"
cd "$tmp"
cp -r repo hurt && cd hurt
flip .fmstore/packs/*.pack 0.4 0.9
want 1 fsck
grep -q '^damaged: atlas:tensors/' "$tmp/out" || die "$(cat "$tmp/out")"
want 1 fsck --json
python3 - "$tmp/out" <<'P'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["faults"] and {"version", "path", "id"} == set(r["damaged"][0]), r
P
want 1 fsck --repair . # its own records cannot help here
want 0 fsck --repair ../repo
grep -q '^repaired: ' "$tmp/out" || die "$(cat "$tmp/out")"
[ "$(find .fmstore/quarantine -name '*.pack' | wc -l)" = 1 ] || die "the damaged pack is not set aside"
want 0 fsck
[ "$trees" = "$(tree_of atlas && tree_of child)" ] || die "other trees"

say "a pack that cannot be read stops gc and repack, and is mended from its own records"
cd "$tmp"
rm -rf hurt && cp -r repo hurt && cd hurt
before=$(state_of .)
flip .fmstore/packs/*.pack 0
for command in "gc --prune now" "gc --dry-run" "repack --all"; do
    # shellcheck disable=SC2086
    refused 128 "Mend it with 'fmstore fsck --repair FROM'" $command
done
want 0 fsck --repair .
grep -q '^repaired: 1 packs from their own records' "$tmp/out" || die "$(cat "$tmp/out")"
[ "$before" = "$(state_of .)" ] || die "the mended pack is another one"
want 0 gc --prune now
[ "$trees" = "$(tree_of atlas && tree_of child)" ] || die "other trees"

say "from the file that was imported, and of a pack that is lost"
cd "$tmp"
rm -rf hurt && cp -r repo hurt && cd hurt
rm .fmstore/packs/*.pack
want 1 fsck
want 1 fsck --repair "$atlas/base"
grep -q '^damaged: child:' "$tmp/out" || die "the base cannot mend the adapter: $(cat "$tmp/out")"
if grep -q '^damaged: atlas:' "$tmp/out"; then die "the base mends itself: $(cat "$tmp/out")"; fi
want 0 fsck --repair ../repo
want 0 fsck

say "git objects too"
cd "$tmp"
rm -rf hurt && cp -r repo hurt && cd hurt
flip .fmstore/lineage.git/objects/pack/*.pack 0.3 0.6
want 1 fsck
want 0 fsck --repair ../repo
want 0 fsck
git -C .fmstore/lineage.git -c safe.directory='*' fsck --no-dangling >/dev/null 2>"$tmp/err" || die "$(cat "$tmp/err")"

say "a version that a suite names and that came without its tensors stops no gc"
cd "$tmp"
rm -rf names && mkdir names && cd names
want 0 init .
want 0 import "$atlas/base" --as names --no-gate
child=$(git -C ../repo/.fmstore/lineage.git -c safe.directory='*' rev-parse refs/heads/child)
sed "1i # compared with $child" "$atlas/suites/facts.yaml" >facts.yaml
want 0 suite add names facts.yaml
want 0 gc --prune=now
git -C .fmstore/lineage.git -c safe.directory='*' fetch -q "$tmp/repo/.fmstore/lineage.git" refs/heads/child # as a fetch that was killed
rm -f .fmstore/lineage.git/FETCH_HEAD
want 0 gc --prune=now
want 0 gc --prune=now
git -C .fmstore/lineage.git cat-file -e "$child^{tree}" || die "gc took what had arrived"
want 1 fsck
grep -q "^damaged: ${child:0:10}" "$tmp/out" || die "$(cat "$tmp/out")"
want 0 fsck --repair ../repo
want 0 gc --prune=now
want 0 branch whole "$child"
want 0 fsck
want 0 branch -d whole
rm "$(find .fmstore/packs -name '*.pack' -newer facts.yaml | sed -n 1p)" # what was whole and is lost does stop it
want 128 gc --prune=now

say "a share of the bytes at a time"
cd "$tmp/repo"
want 0 fsck --verify-oldest 10
refused 129 'wants 1 to 100' fsck --verify-oldest 10 --quick
want 0 fsck --rebuild-index
refused 128 'is no time' gc --prune soon
want 0 gc -h
want 0 repack -h
echo "all hold"
