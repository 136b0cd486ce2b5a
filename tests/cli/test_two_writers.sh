#!/bin/bash
# ctest: cost=10
# Two processes at one repository: a branch is moved by compare-and-swap, so of two writers one wins and
# the other says so and keeps its commit; writers of different names do not meet at all.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
atlas_repo

# both NAME1 COMMAND1... -- NAME2... : see pair_a, pair_b for the exit codes.
race() {
    local -n first=$1 second=$2
    pair_a=0 pair_b=0
    timeout 300 "$fm" "${first[@]}" >"$tmp/out-a" 2>"$tmp/err-a" </dev/null &
    local pid=$!
    timeout 300 "$fm" "${second[@]}" >"$tmp/out-b" 2>"$tmp/err-b" </dev/null || pair_b=$?
    wait $pid || pair_a=$?
}

# The loser's words and its commit. NEEDLE: what its commit's recipe or tree must hold.
check_loser() {
    local err=$1 lost
    grep -q '^fmstore: .*kept under refs/fmstore/lost/' "$err" || die "the loser says: $(cat "$err")"
    lost=$(sed -n 's|.*refs/fmstore/lost/\([0-9a-f]\{40\}\).*|\1|p' "$err")
    [ -n "$lost" ] || die "the loser does not name its commit: $(cat "$err")"
    want 0 show "$lost"
}

say "two derive of one new branch: both train, one lands, the other's commit is kept"
common=(--data "$atlas/pirate.jsonl" --set r=2 --set batch=2 --set steps=12 --no-gate)
for ((n = 1; ; n++)); do # until they do meet: one may be over before the other begins
    same=same$n
    a=(derive atlas --as "$same" "${common[@]}" --set seed=1)
    b=(derive atlas --as "$same" "${common[@]}" --set seed=2)
    race a b
    cat "$tmp/err-a" "$tmp/err-b" | has "branch '$same' is there already" || break
    [ $((pair_a + pair_b)) = 128 ] || die "exit codes $pair_a and $pair_b"
done
case $pair_a/$pair_b in
    0/128) check_loser "$tmp/err-b" ;;
    128/0) check_loser "$tmp/err-a" ;;
    *) die "exit codes $pair_a and $pair_b: $(cat "$tmp/err-a" "$tmp/err-b")" ;;
esac
cat "$tmp/err-a" "$tmp/err-b" | grep '^fmstore: ' | cut -c1-160 | sed 's/^/  /'
want 0 show "$same"
want 0 fsck

say "suite add from two sides on one branch: a loser says so; nothing is lost in silence"
collisions=0
for i in $(seq 1 12); do
    printf 'suite: left%d\ncases:\n  - {name: c, prompt: Hello, expect: [{not-contains: zzz}]}\n' "$i" >"$tmp/left.yaml"
    printf 'suite: right%d\ncases:\n  - {name: c, prompt: Hello, expect: [{not-contains: zzz}]}\n' "$i" >"$tmp/right.yaml"
    a=(suite add "$same" "$tmp/left.yaml")
    b=(suite add "$same" "$tmp/right.yaml")
    race a b
    "$fm" ls "$same" >"$tmp/suites"
    case $pair_a/$pair_b in
        0/0) left=1 right=1 ;;
        0/128) left=1 right=0; check_loser "$tmp/err-b" ;;
        128/0) left=0 right=1; check_loser "$tmp/err-a" ;;
        *) die "exit codes $pair_a and $pair_b: $(cat "$tmp/err-a" "$tmp/err-b")" ;;
    esac
    [ "$(grep -c "left$i.yaml" "$tmp/suites" || true)" = $left ] || die "left$i is not as its exit code says"
    [ "$(grep -c "right$i.yaml" "$tmp/suites" || true)" = $right ] || die "right$i is not as its exit code says"
    [ $((left + right)) = 2 ] || collisions=$((collisions + 1))
done
echo "  $collisions of 12 rounds collided"
want 0 fsck

say "two imports of different names both land, whatever they share"
for i in 1 2 3; do
    a=(import "$atlas/base" --as "one$i" --no-gate)
    b=(import "$atlas/base" --as "two$i" --no-gate)
    race a b
    [ "$pair_a/$pair_b" = 0/0 ] || die "exit codes $pair_a and $pair_b: $(cat "$tmp/err-a" "$tmp/err-b")"
    [ "$(tree_of "one$i")" = "$(tree_of "two$i")" ] || die "equal imports, different trees"
done

say "two imports of different weights into an empty repository both land"
want 0 export atlas "$tmp/f32" --format hf --dtype f32
mkdir "$tmp/fresh" && cd "$tmp/fresh"
want 0 init .
a=(import "$atlas/base" --as narrow --no-gate)
b=(import "$tmp/f32" --as wide --no-gate)
race a b
[ "$pair_a/$pair_b" = 0/0 ] || die "exit codes $pair_a and $pair_b: $(cat "$tmp/err-a" "$tmp/err-b")"
want 0 show narrow
want 0 show wide
want 0 fsck
want 0 fsck --rebuild-index

say "a reader beside a writer sees a whole repository every time"
"$fm" derive narrow --as child --data "$atlas/pirate.jsonl" --set r=2 --set batch=2 --set steps=12 \
    --no-gate >"$tmp/out-a" 2>"$tmp/err-a" &
pid=$!
while kill -0 $pid 2>/dev/null; do
    want 0 ls narrow
    want 0 fsck --quick
done
wait $pid || die "the writer failed: $(cat "$tmp/err-a")"
want 0 show child
echo "all hold"
