#!/bin/bash
# ctest: cost=12
# clone, fetch, pull, push, ls-remote and remote between folders: only what is missing travels, what arrived is
# equal, refs move by compare-and-swap, and what cannot be is refused by name.
. "$(dirname "$0")/lib.sh"
cd "$tmp"

refs_of() { "$fm" ls-remote "$1" | grep -v refs/fmstore | sort; }
# same A B REV: the version exports to the same bytes from both.
same() {
    rm -rf one two
    "$fm" -C "$1" export "$3" "$tmp/one" >/dev/null 2>&1
    "$fm" -C "$2" export "$3" "$tmp/two" >/dev/null 2>&1
    diff -r one two || die "$3 differs"
}
# not_cloned TEXT ARGUMENT...: refused, and the folder (the last argument) is not made.
not_cloned() {
    local text=$1
    shift
    want 128 clone "$@"
    grep -qF -- "$text" err || die "want '$text' in: $(cat err)"
    [ ! -e "${!#}" ] || die "a refused clone left a folder"
}
# travelled: the number of objects that the last command says it moved.
travelled() { sed -n 's/^\([0-9]*\) objects, .*/\1/p' err; }

mkdir a
want 0 init a
want 0 -C a import "$atlas/base" --as base --no-gate
for child in one two three; do
    want 0 -C a derive base --as "$child" --method lora --data "$atlas/pirate.jsonl" \
        --set steps=2 --set "seed=${#child}" --set r=2 --no-gate -m "child $child"
done
want 0 -C a tag v1 one

say "a clone has every branch and tag, and the same bytes"
want 0 clone a b
grep -q 'cloning into b' err || die "$(cat err)"
[ "$(refs_of a)" = "$(refs_of b)" ] || die "refs differ: $(refs_of b)"
for rev in base one two three v1; do same a b "$rev"; done
want 0 -C b fsck
want 0 -C b remote
grep -q "^origin .*/a$" out || die "$(cat out)"
git -C b/.fmstore/lineage.git fsck --strict >/dev/null 2>&1 || die "git fsck"

say "fetched once, nothing travels again"
want 0 -C b fetch
[ "$(travelled)" = 0 ] || die "$(cat err)"
want 0 -C b pull
[ "$(travelled)" = 0 ] || die "$(cat err)"

say "a child of a stem that both hold costs its own bytes"
want 0 -C a derive base --as four --method lora --data "$atlas/pirate.jsonl" --set steps=2 --set r=2 \
    --set seed=9 --no-gate
want 0 -C b pull --dry-run
n=$(travelled)
[ "$n" -gt 0 ] || die "$(cat err)"
refused 128 "there is no branch 'four'" -C b branch -d four
want 0 -C b pull
[ "$(travelled)" = "$n" ] || die "dry run said $n: $(cat err)"
grep -q ' \* new  *four -> four' err || die "$(cat err)"
wire=$(sed -n 's/.*; \(.*\) kB on the wire$/\1/p' err)
[ -n "$wire" ] || die "more than kilobytes: $(cat err)"
same a b four

say "push: a child goes to a bare repository, and back to a third one"
want 0 init --bare hub
want 0 -C b remote add hub ../hub
want 128 -C b push hub
grep -q 'name the branches or tags to push, or say --all' err || die "$(cat err)"
want 0 -C b push hub one v1
grep -q ' \* new  *one -> one' err || die "$(cat err)"
want 0 -C b push hub --all
want 0 -C b push hub --all
[ "$(travelled)" = 0 ] || die "$(cat err)"
[ "$(refs_of b)" = "$(refs_of hub)" ] || die "refs differ"
want 0 clone hub c
for rev in base one two three four; do same a c "$rev"; done
want 0 -C hub fsck

say "one branch alone"
want 0 clone --branch two hub d
want 0 -C d ls
[ "$(wc -l <out)" = 1 ] || die "$(cat out)"
same a d two
not_cloned "has no branch 'nine'" --branch nine hub e

say "of two pushers one wins; the other hears it, and a pull tells the two sides apart"
want 0 -C c derive two --as new-c --method lora --data "$atlas/pirate.jsonl" --set steps=1 --set r=2 --no-gate
want 0 -C b derive two --as new-b --method lora --data "$atlas/pirate.jsonl" --set steps=1 --set r=2 \
    --set seed=5 --no-gate
want 0 -C c push origin new-c:two
grep -q 'new-c -> two' err || die "$(cat err)"
want 1 -C b push hub new-b:two
grep -q ' ! refused' err || die "$(cat err)"
grep -q 'fast-forward' err || die "$(cat err)"
want 0 -C b fetch hub
want 0 -C b push hub new-b:two --force-with-lease
want 1 -C c push origin new-c:two --force-with-lease
grep -q ' ! refused' err || die "$(cat err)"
want 0 -C b show hub/two
want 0 -C b branch -m two mine # so that two is gone here
want 0 -C b push hub :v1 :three
want 0 ls-remote hub
grep -q 'refs/heads/three' out && die "three is still there"
grep -q 'refs/tags/v1' out && die "v1 is still there"
want 0 -C hub fsck
want 0 -C hub gc --prune=now
want 0 -C hub fsck
same b hub four

say "results and notes go along, and join"
want 0 -C a suite add base "$atlas/suites/facts.yaml"
want 0 -C a test base
want 0 -C b pull
want 0 -C b test base
"$fm" -C b results ls base --json >left.json
"$fm" -C a results ls base --json >right.json
cmp left.json right.json || die "results differ"

say "fsck --repair takes what is damaged from a remote"
want 0 clone hub f
for pack in f/.fmstore/packs/*.pack f/.fmstore/lineage.git/objects/pack/*.pack; do
    chmod u+w "$pack"
    printf '\xff\xff\xff\xff' | dd of="$pack" bs=1 seek=$(($(stat -c %s "$pack") / 2)) conv=notrunc status=none
done
want 1 -C f fsck
want 0 -C f fsck --repair origin
want 0 -C f fsck
same a f four

say "what a repair was killed over is removed by gc, and not while it lives"
staged() { find f/.fmstore/tmp -mindepth 1 -maxdepth 1 -type d | wc -l; }
for _ in $(seq 200); do # a repair is caught while it has its clone
    "$fm" -C f fsck --repair origin >/dev/null 2>&1 &
    pid=$!
    until [ "$(staged)" -gt 0 ] || ! kill -0 $pid 2>/dev/null; do :; done
    if kill -STOP $pid 2>/dev/null && [ "$(staged)" -gt 0 ]; then break; fi
    kill -CONT $pid 2>/dev/null || true
    wait $pid || true
    pid=0
done
[ $pid != 0 ] || die "no repair was caught"
want 0 -C f gc
[ "$(staged)" = 1 ] || die "gc took the folder of a repair that lives"
kill -9 $pid
{ wait $pid; } 2>/dev/null || true
[ "$(staged)" = 1 ] || die "the kill left nothing"
want 0 -C f gc
[ "$(staged)" = 0 ] || die "gc leaves $(ls f/.fmstore/tmp)"

say "a branch at the remote becomes a folder of branches; what cannot be taken is told, and the rest goes on"
want 0 -C a push "$tmp/hub" four:move
want 0 -C f fetch
want 0 -C a push "$tmp/hub" :move
want 0 -C a push "$tmp/hub" four:move/sub
want 0 -C f fetch
want 0 -C f show origin/move/sub
refused 128 "no version 'origin/move'" -C f show origin/move
git -C hub/lineage.git update-ref "$(printf 'refs/heads/b\xc2\x9bd')" refs/heads/four
git -C hub/lineage.git update-ref refs/heads/later refs/heads/four
want 1 -C f pull
grep -q ' ! refused' err || die "$(cat err)"
grep -q ' \* new  *later -> later' err || die "$(cat err)"
git -C hub/lineage.git update-ref -d "$(printf 'refs/heads/b\xc2\x9bd')"

say "a tag takes no branch's name over, and a lease needs what was fetched"
git -C hub/lineage.git update-ref refs/tags/four refs/heads/base
want 0 -C f ls-remote origin
"$fm" -C f show four --json >left
want 0 -C f fetch
"$fm" -C f show four --json >right
cmp left right || die "the tag has taken the branch's name"
git -C hub/lineage.git update-ref -d refs/tags/four
want 0 -C f tag -d four
refused 128 "wants a remote's name, not a URL" -C f push "$tmp/hub" base:four --force-with-lease
want 0 -C f tag rel base
want 0 -C f push origin rel
git -C hub/lineage.git update-ref refs/tags/rel refs/heads/four
want 1 -C f push origin rel --force-with-lease
grep -q ' ! refused' err || die "$(cat err)"
refused 128 "has no 'nothing' to delete" -C f push origin :nothing

if [ "$(id -u)" = 0 ]; then
    say "another user's repository has no programs run"
    cp -r f g
    git config -f g/.fmstore/config core.sshCommand "touch $tmp/PWNED;"
    git config -f g/.fmstore/config remote.origin.url ssh://h/x
    chown -R nobody g
    want 1 -C g fetch
    grep -q 'belongs to another user' err || die "$(cat err)"
    [ ! -e PWNED ] || die "a program of another user's config ran"
    want 0 -C g log base
    git config -f trust --add safe.directory "$(cd g/.fmstore && pwd -P)"
    mkdir home
    mv trust home/.gitconfig
    HOME=$tmp/home want 128 -C g fetch
    [ -e PWNED ] || die "a repository that is trusted: $(cat err)"
fi

say "what cannot be"
refused 128 "there is no remote 'nowhere'" -C a fetch nowhere
not_cloned "is no repository of fmstore" "$tmp/nothing" x
refused 128 "is there and not empty" clone a b
not_cloned "is none of file, ssh, http, https, git, s3" gopher://a/b x
not_cloned "must not begin with '-'" "ssh://-oProxyCommand=touch evil/x" x
not_cloned "must not begin with '-'" -- "-oProxyCommand=touch evil:x" x
[ ! -e evil ] || die "an option reached ssh"
want 0 -C a remote add there "$tmp/hub"
refused 128 "is there already" -C a remote add there x
want 0 -C a remote set-url there ../c
want 0 -C a remote rm there
refused 128 "there is no remote 'there'" -C a remote rm there
