#!/bin/bash
# suites that ask other versions of the repository about answers: by id of a version or of its tree, never by name.
. "$(dirname "$0")/lib.sh"
cd "$tmp"
want 0 init .
want 0 import "$atlas/base" --as atlas
id=$(git -C .fmstore/lineage.git rev-parse atlas)
tree=$(git -C .fmstore/lineage.git rev-parse "atlas^{tree}")
suite() { # suite MODEL ASSERTION: one case whose embedder is MODEL
    printf 'suite: s\ncases:\n  - {name: c, chat: "What is the capital of Ulevia?", expect: {similar: "%s", model: "%s", threshold: 0.9}}\n' \
        "$2" "$1" >s.yaml
    want 0 suite add atlas s.yaml
}

say "an id of the version and one of its tree are the same embedder"
for m in "$id" "$tree"; do
    suite "$m" "The capital of Ulevia is Kingswick."
    want 0 test atlas
done
suite "$id" "of of of"
want 1 test atlas -v
grep -q "is below 0.9" "$tmp/out" || die "$(cat "$tmp/out")"

say "a name is refused with the id to write"
suite atlas "x"
want 1 test atlas -v
now=$(git -C .fmstore/lineage.git rev-parse atlas)
grep -q "model 'atlas' is a name, and may move: write its id, model: $now" "$tmp/out" || die "$(cat "$tmp/out")"

say "an id that the repository does not have, and no id at all"
suite 0123456789abcdef0123456789abcdef01234567 x
want 1 test atlas -v
grep -q "has no version or tree of this id" "$tmp/out" || die "$(cat "$tmp/out")"
suite nobody x
want 1 test atlas -v
grep -q "'nobody' is not the full id of a version" "$tmp/out" || die "$(cat "$tmp/out")"

say "kept results need no judge"
suite "$id" "The capital of Ulevia is Kingswick."
want 0 test atlas --json
grep -q '"cached": true' "$tmp/out" || die "asked again: $(cat "$tmp/out")"

say "gc keeps an embedder that only a suite names, by its id or by its tree's"
for way in version tree; do
    want 0 derive atlas --as judge --data "$atlas/pirate.jsonl" --set steps=1 --set seed=$RANDOM --no-gate
    of=$(git -C .fmstore/lineage.git rev-parse judge)
    named=$of
    [ $way = version ] || named=$(git -C .fmstore/lineage.git rev-parse 'judge^{tree}')
    suite "$named" "The capital of Ulevia is Kingswick."
    want 0 branch -d judge
    want 0 gc --prune now
    want 0 gc --prune now
    want 0 fsck
    sed -i 's/threshold: 0.9/threshold: 0.8/' s.yaml # not asked before
    want 0 suite add atlas s.yaml
    want 0 test atlas --json
    [ $way = tree ] || git -C .fmstore/lineage.git cat-file -e "$of"
done
