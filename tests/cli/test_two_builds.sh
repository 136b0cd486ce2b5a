#!/bin/bash
# A newer fmstore and this one at the same repository. FM_NEXT is this program with the next version
# of packs: it reads both, and writes what this one cannot read.
. "$(dirname "$0")/lib.sh"
next=${FM_NEXT:?FM_NEXT must name the newer program}
cd "$tmp"
mkdir repo && cd repo
atlas_repo
both() { want 0 "$@"; "$next" "$@" >"$tmp/next.out" 2>&1 || die "$(cat "$tmp/next.out")"; }

say "the newer one reads what this one wrote, and writes beside it"
both ls atlas
# Its packs stand on objects that no version of this one names: what is merged first.
want 0 derive atlas --as one --data "$atlas/pirate.jsonl" --set r=2 --set steps=2 --set batch=2 --no-gate
want 0 derive atlas --as two --data "$atlas/clerk.jsonl" --set r=2 --set steps=2 --set batch=2 --no-gate
"$next" merge one two --as newer --no-gate >"$tmp/next.out" 2>&1 || die "$(cat "$tmp/next.out")"
"$next" export newer "$tmp/a" --format hf >"$tmp/next.out" 2>&1 || die "$(cat "$tmp/next.out")"
want 0 branch -d two
before=$(state_of .)

say "this one deletes nothing while it cannot read all, and says to upgrade"
for command in "gc --prune now" "gc --prune now --reflog now" gc "repack --all --prune now" repack; do
    # shellcheck disable=SC2086
    refused 128 "Upgrade this fmstore" $command
done
[ "$before" = "$(state_of .)" ] || die "something was changed"
want 1 fsck
want 128 fsck --repair .
[ "$before" = "$(state_of .)" ] || die "a repair put away what is only newer"
[ ! -e .fmstore/quarantine ] || die "the newer packs are in quarantine"

say "both go on working: what each can read is as it was"
want 0 export one "$tmp/one" --format peft
want 0 tag v1 atlas
"$next" export newer "$tmp/b" --format hf >"$tmp/next.out" 2>&1 || die "$(cat "$tmp/next.out")"
diff -r "$tmp/a" "$tmp/b" || die "other bytes"
"$next" fsck >"$tmp/next.out" 2>&1 || die "$(cat "$tmp/next.out")"

say "the newer one collects, and all that it kept reads"
"$next" gc --prune now --reflog now >"$tmp/next.out" 2>&1 || die "$(cat "$tmp/next.out")"
"$next" repack --all --prune now >"$tmp/next.out" 2>&1 || die "$(cat "$tmp/next.out")"
rm -rf "$tmp/b"
"$next" export newer "$tmp/b" --format hf >"$tmp/next.out" 2>&1 || die "$(cat "$tmp/next.out")"
diff -r "$tmp/a" "$tmp/b" || die "other bytes after gc"
"$next" fsck >"$tmp/next.out" 2>&1 || die "$(cat "$tmp/next.out")"
echo "all hold"
