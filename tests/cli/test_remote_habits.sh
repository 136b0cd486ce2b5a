#!/bin/bash
# ctest: cost=8
# What users of git's remotes expect beside clone, fetch and push: branch -r, fetch --prune, one tag, remote rename
# and show, ls-remote of a pattern, dry runs that name refs, a clone into an empty folder.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"

# names FILE: the member "name" of each object of a JSON array, sorted.
names() { python3 -c 'import json,sys; print(*sorted(r["name"] for r in json.load(open(sys.argv[1]))))' "$1"; }

mkdir a
want 0 init a
want 0 -C a import "$atlas/base" --as base --no-gate
for child in one two; do
    want 0 -C a derive base --as "$child" --method lora --data "$atlas/pirate.jsonl" \
        --set steps=2 --set "seed=${#child}" --set r=2 --no-gate -m "child $child"
done
want 0 -C a tag v1 one
want 0 clone a b

say "branch -r and -a list what was fetched last, and a version is taken by that name"
want 0 -C b branch -d two
want 0 -C b branch
grep -q origin out && die "a plain list has the remote's: $(cat out)"
want 0 -C b branch -r
[ "$(cut -d' ' -f1 out | xargs)" = "origin/base origin/one origin/two" ] || die "$(cat out)"
want 0 -C b branch -a
[ "$(cut -d' ' -f1 out | xargs)" = \
    "base one remotes/origin/base remotes/origin/one remotes/origin/two" ] || die "$(cat out)"
want 0 -C b log remotes/origin/two -n 1
want 0 -C b branch -r --json
[ "$(names out)" = "origin/base origin/one origin/two" ] || die "$(cat out)"
want 0 -C b tag --json
[ "$(names out)" = v1 ] || die "$(cat out)"
want 0 -C b log origin/two --oneline
grep -q 'child two' out || die "$(cat out)"
refused 129 "list names, and want none" -C b branch -r one
want 129 -C b tag -r
