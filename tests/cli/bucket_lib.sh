# bucket_lib.sh - sourced after lib.sh by the tests of buckets: a family of models in repository a, and what must
# hold whichever place the bucket lies in.
# shellcheck shell=bash

# same A B REV: the version exports to the same bytes from both.
same() {
    rm -rf "$tmp/one" "$tmp/two"
    "$fm" -C "$1" export "$3" "$tmp/one" >/dev/null 2>&1
    "$fm" -C "$2" export "$3" "$tmp/two" >/dev/null 2>&1
    diff -r "$tmp/one" "$tmp/two" || die "$3 differs"
}
# travelled: the number of objects that the last command says it moved.
travelled() { sed -n 's/^\([0-9]*\) objects, .*/\1/p' "$tmp/err"; }
refs_of() { "$fm" ls-remote "$1" | sort; }
# child REPO PARENT NAME SEED
child() {
    want 0 -C "$1" derive "$2" --as "$3" --method lora --data "$atlas/pirate.jsonl" --set steps=1 --set "seed=$4" \
        --set r=2 --no-gate -m "child $3"
}
family() {
    want 0 init a
    want 0 -C a import "$atlas/base" --as base --no-gate
    child a base one 1
    child a base two 2
    child a base three 3
    want 0 -C a tag v1 one
}

# push_and_clone URL [--packs URL]: what a family's way through a bucket is.
push_and_clone() {
    say "push a family, clone it elsewhere: equal ids and bytes"
    want 0 -C a remote add bucket "$@"
    want 0 -C a push bucket --all
    [ "$(travelled)" -gt 0 ] || die "$(cat err)"
    grep -q ' \* new  *one -> one' err || die "$(cat err)"
    want 0 clone "$@" b
    for rev in base one two three v1; do
        same a b "$rev"
        (cd a && ids "$rev") >"$tmp/left"
        (cd b && ids "$rev") >"$tmp/right"
        [ -s "$tmp/left" ] && cmp "$tmp/left" "$tmp/right" || die "ids of $rev differ"
    done
    want 0 -C b fsck
    git -C b/.fmstore/lineage.git fsck --strict >/dev/null 2>&1 || die "git fsck"

    say "nothing new, nothing travels"
    want 0 -C a push bucket --all
    [ "$(travelled)" = 0 ] || die "$(cat err)"
    want 0 -C b pull
    [ "$(travelled)" = 0 ] || die "$(cat err)"

    say "a second member of the family costs its own bytes"
    child a base four 4
    want 0 -C a push --dry-run bucket four
    local n
    n=$(travelled)
    [ "$n" -gt 0 ] || die "$(cat err)"
    want 0 -C a push bucket four
    [ "$(travelled)" = "$n" ] || die "dry run said $n: $(cat err)"
    grep -q '; .* kB on the wire$' err || die "more than kilobytes: $(cat err)"
    want 0 -C b pull
    [ "$(travelled)" = "$n" ] || die "$(cat err)"
    grep -q '; .* kB on the wire$' err || die "more than kilobytes: $(cat err)"
    same a b four
    want 0 clone --branch two "$@" c
    same a c two

    say "of two pushers to one branch one wins; the other is refused by name"
    child b two new-b 5
    child c two new-c 6
    want 0 -C b push origin new-b:two
    want 1 -C c push origin new-c:two
    grep -q ' ! refused .*new-c -> two' err || die "$(cat err)"
    want 0 -C c fetch
    want 1 -C c push origin new-c:two
    grep -q 'fast-forward' err || die "$(cat err)"
    want 0 -C c push origin new-c:two --force-with-lease
    want 1 -C b push origin new-b:two --force-with-lease
    grep -q ' ! refused' err || die "$(cat err)"
    want 0 -C b push origin :three
    want 0 -C a ls-remote bucket
    grep -q 'refs/heads/three' out && die "three is still there"

    say "results and notes join"
    want 0 -C a suite add base "$atlas/suites/facts.yaml"
    want 0 -C a push bucket base
    want 0 clone --branch base "$@" d
    child d base mine 7
    "$fm" -C a test base >out 2>err || [ $? = 1 ] || die "$(cat err)"
    "$fm" -C d test mine >out 2>err || [ $? = 1 ] || die "$(cat err)"
    want 0 -C a push bucket base
    want 0 -C d push origin mine # whoever comes second brings the union
    want 0 clone "$@" whole
    for one in "a base" "d mine"; do
        # shellcheck disable=SC2086 # a repository and a name
        set -- $one "$@"
        "$fm" -C "$1" results ls "$2" --json >left
        "$fm" -C whole results ls "$2" --json >right
        [ -s left ] && cmp left right || die "results of $2 differ"
        shift 2
    done
    want 0 -C whole fsck
    git -C whole/.fmstore/lineage.git fsck --strict >/dev/null 2>&1 || die "git fsck"
}

# two_at_once URL [--packs URL]: pushers who begin in the same moment all arrive.
two_at_once() {
    local i pids=()
    say "six pushers at once"
    for i in 1 2 3 4 5 6; do
        want 0 clone --branch base "$@" "p$i"
        child "p$i" base "at-once-$i" "$((40 + i))"
    done
    for i in 1 2 3 4 5 6; do
        "$fm" -C "p$i" push origin "at-once-$i" >"$tmp/p$i.out" 2>"$tmp/p$i.err" &
        pids+=($!)
    done
    for i in 1 2 3 4 5 6; do
        wait "${pids[$((i - 1))]}" || die "pusher $i: $(cat "$tmp/p$i.err")"
    done
    want 0 clone "$@" all
    for i in 1 2 3 4 5 6; do same "p$i" all "at-once-$i"; done
    want 0 -C all fsck
}
