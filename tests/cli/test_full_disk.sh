#!/bin/bash
# gc on a disk without a free byte: it frees what is unreached, whatever it must write to do so. In a small file system
# of its own; skipped where none may be mounted.
. "$(dirname "$0")/lib.sh"
disk=$tmp/disk
mkdir "$disk"
if ! mount -t tmpfs -o size=16m none "$disk" 2>/dev/null; then
    echo "skip: no tmpfs may be mounted here"
    exit 77
fi
trap 'cd /; umount "$disk"; rm -rf "$tmp"' EXIT
mkdir "$tmp/made" && cd "$tmp/made"
atlas_repo
for n in 1 2 3; do
    want 0 derive atlas --as "b$n" --data "$atlas/pirate.jsonl" --method full --set steps=2 --set batch=2 --set "seed=$n" \
        --no-gate
done
want 0 branch keep b1
for n in 1 2 3; do want 0 branch -d "b$n"; done
trees=$(tree_of atlas && tree_of keep)

# full KILOBYTES: the repository with a reserve of so many, on a disk that is full.
full() {
    cd "$tmp"
    rm -rf "$disk/r" "$disk/fill"
    cp -r made "$disk/r" && cd "$disk/r"
    rm .fmstore/reserve && touch .fmstore/reserve && { [ "$1" = 0 ] || fallocate -n -l "$1k" .fmstore/reserve; }
    cat /dev/zero >"$disk/fill" 2>/dev/null || true
    [ "$(room)" = 0 ] || die "there is room"
}
room() { df --output=avail -k "$disk" | tail -1 | tr -d ' '; }
packs() { find .fmstore/packs -name '*.pack' | wc -l; }
whole() {
    want 0 fsck
    [ "$trees" = "$(tree_of atlas && tree_of keep)" ] || die "other trees"
}

say "init and gc keep a reserve, which nobody sees"
[ -e .fmstore/reserve ] && [ ! -s .fmstore/reserve ] || die "no reserve"
[ "$(du -k .fmstore/reserve | cut -f1)" -ge 256 ] || echo "  (this file system reserves nothing)"

say "no free byte: the packs that nothing reaches go, git's objects too"
full 256
want 0 gc --prune now --reflog now
[ "$(packs)" = 2 ] || die "$(packs) packs are left: $(cat "$tmp/out")"
[ "$(room)" -gt 50 ] || die "$(room) kB are free"
[ -e .fmstore/reserve ] || die "the reserve was not made again"
whole

say "the reserve takes the list, git's new pack waits for the room of the old packs"
full 24
want 0 gc --prune now --reflog now
[ "$(packs)" = 2 ] || die "$(packs) packs are left: $(cat "$tmp/out")"
whole

say "nothing at all to begin with: refused, nothing lost; with room it goes on"
full 0
refused 128 'No space left' gc --prune now --reflog now
whole
rm "$disk/fill"
want 0 gc --prune now --reflog now
[ "$(packs)" = 2 ] || die "$(packs) packs are left: $(cat "$tmp/out")"
whole
echo "all hold"
