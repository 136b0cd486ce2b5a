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

# tells TEXT: the last command's messages have this line, blanks taken together.
tells() { tr -s ' ' <err | has -F -- "$1" || die "want '$1' in: $(cat err)"; }
# moved REPO BRANCH REV: the branch is at that version from now on.
moved() { git -C "$1/.fmstore/lineage.git" update-ref "refs/heads/$2" "refs/heads/$3"; }

say "a dry run of a fetch, a pull or a push names the refs that would move, and moves none"
short() { "$fm" -C "$1" show "$2" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["id"][:10])'; }
want 0 -C a derive one --as next --method lora --data "$atlas/pirate.jsonl" --set steps=1 --set r=2 --no-gate
moved a one next
was=$(short b one) now=$(short a next)
"$fm" -C b branch -a >before
want 0 -C b fetch --dry-run
tells " $was..$now one -> origin/one"
tells " * new next -> origin/next"
tells "would travel"
want 0 -C b pull --dry-run
tells " $was..$now one -> one"
tells " * new next -> next"
"$fm" -C b branch -a >after
cmp before after || die "a dry run moved refs"
want 0 -C b pull
tells " $was..$now one -> one"
want 0 -C b derive one --as mine --method lora --data "$atlas/pirate.jsonl" --set steps=1 --set r=2 --no-gate
"$fm" ls-remote a >before
want 1 -C b push origin --dry-run mine base:one base :next
tells " * new mine -> mine"
tells " ! refused base -> one (not a fast-forward"
tells " up to date base -> base"
tells " - deleted next -> next"
want 0 -C b push origin --dry-run --force-with-lease base:one
tells " + $now..$(short b base) base -> one"
"$fm" ls-remote a >after
cmp before after || die "a dry run moved the remote's refs"
want 0 -C b push origin --force-with-lease base:one
tells " + $now..$(short b base) base -> one"
moved a one next

say "fetch --prune forgets what the remote has no more; config says so too, and names do not"
want 0 -C b fetch
want 0 -C a branch -d next
want 0 -C b fetch
want 0 -C b show origin/next
want 0 -C b fetch --prune --dry-run
tells " - deleted (none) -> origin/next"
want 0 -C b fetch --prune origin base
want 0 -C b show origin/next
want 0 -C b fetch --prune
tells " - deleted (none) -> origin/next"
refused 128 "origin/next" -C b show origin/next
want 0 -C b show next # a branch here stays
git config -f b/.fmstore/config fetch.prune true
git config -f b/.fmstore/config remote.origin.prune false
want 0 -C a branch gone base
want 0 -C b fetch
want 0 -C a branch -d gone
want 0 -C b fetch
want 0 -C b show origin/gone
git config -f b/.fmstore/config --unset remote.origin.prune
want 0 -C b pull
tells " - deleted (none) -> origin/gone"
git config -f b/.fmstore/config --unset fetch.prune

say "in a clone of the lineage alone what names here come from stays promised"
want 0 clone --lineage-only a thin
want 0 -C a branch -d two
want 0 -C thin fetch --prune
tells " kept origin/two -> origin/two"
want 0 -C thin fsck
want 0 -C thin branch -d two
want 0 -C thin fetch --prune
tells " - deleted (none) -> origin/two"
want 0 -C thin fsck

say "one tag alone, by its name or as git writes it; a branch of the name goes before it"
want 0 -C a tag v2 base
want 0 -C a tag one base
mkdir t
want 0 init t
want 0 -C t remote add origin ../a
want 0 -C t fetch origin v1
tells " * new v1 -> v1"
want 0 -C t ls
[ ! -s out ] || die "$(cat out)"
want 0 -C t tag
[ "$(cut -d' ' -f1 out | xargs)" = v1 ] || die "$(cat out)"
want 0 -C t fetch origin tag v2
tells " * new v2 -> v2"
want 0 -C t fetch origin one
tells " * new one -> origin/one"
want 0 -C t fetch origin refs/tags/one
tells " * new one -> one"
refused 128 "has no branch or tag 'nothing'" -C t fetch origin nothing
refused 128 "has no branch or tag 'refs/notes/fmstore'" -C t fetch origin refs/notes/fmstore
refused 129 "there is no SRC:DST" -C t fetch origin one:x

say "remote rename: settings and what was fetched go along, also where the remote alone has the tensors"
want 0 clone --lineage-only a thin2
git config -f thin2/.fmstore/config remote.origin.prune true
"$fm" -C thin2 branch -r | sed 's,^origin/,hub/,' | tr -s ' ' >before
want 0 -C thin2 remote rename origin hub
"$fm" -C thin2 branch -r | tr -s ' ' >after
cmp before after || die "$(cat after)"
want 0 -C thin2 remote
[ "$(wc -l <out)" = 1 ] && grep -q '^hub ' out || die "$(cat out)"
[ "$(git config -f thin2/.fmstore/config remote.hub.prune)" = true ] || die "a setting is lost"
git config -f thin2/.fmstore/config --get-regexp 'remote\.origin' && die "an old setting stayed"
want 0 -C thin2 fsck
want 0 -C thin2 fetch hub
want 0 -C thin2 run base -p x -n 1
want 0 -C thin2 remote add other ../b
refused 128 "is there already" -C thin2 remote rename hub other
refused 128 "cannot name a remote" -C thin2 remote rename hub a/b
refused 128 "there is no remote 'origin'" -C thin2 remote rename origin x

say "remote show: each branch of the remote beside what is here"
want 0 clone a s
want 0 -C a branch fresh base
want 0 -C a branch gone base
want 0 -C s fetch origin gone
want 0 -C a branch -d gone
moved a one base
want 0 -C s derive one --as m --method lora --data "$atlas/pirate.jsonl" --set steps=1 --set r=2 --no-gate
moved s one m
want 0 -C s remote show origin
squeezed() { tr -s ' ' <out | has -E -- "$1" || die "want '$1' in: $(cat out)"; }
squeezed "^origin /.*/a$"
squeezed "^ base [0-9a-f]{10} tracked up to date$"
squeezed "^ fresh [0-9a-f]{10} new no branch here$"
squeezed "^ gone [0-9a-f]{10} stale no branch here$"
squeezed "^ one [0-9a-f]{10} moved 3 ahead$"
want 0 -C a derive base --as b2 --method lora --data "$atlas/pirate.jsonl" --set steps=1 --set r=2 --no-gate
moved a one b2
want 0 -C s remote show origin
squeezed "^ one [0-9a-f]{10} moved not fetched$"
want 0 -C s fetch
tells "+ "
want 0 -C s remote show origin
squeezed "^ one [0-9a-f]{10} tracked 3 here alone, 1 there alone$"
want 0 -C s remote show origin --json
python3 - <<'E2'
import json
r = json.load(open("out"))
b = {x["name"]: x for x in r["branches"]}
assert r["name"] == "origin" and r["url"].endswith("/a"), r
assert (b["one"]["ahead"], b["one"]["behind"], b["one"]["state"]) == (3, 1, "tracked"), b
assert b["gone"]["state"] == "stale" and b["fresh"]["branch"] is False, b
E2
want 0 -C s remote get-url origin
[ "$(cat out)" = "$(cd a && pwd -P)" ] || die "$(cat out)"
refused 128 "there is no remote 'nowhere'" -C s remote show nowhere
refused 128 "there is no remote 'nowhere'" -C s remote get-url nowhere

say "ls-remote: patterns are for the ends of names, as in git; and JSON"
git -C a/.fmstore/lineage.git -c user.name=n -c user.email=n@n tag -a -m text notes-1 base
want 0 ls-remote a base
[ "$(cut -f2 out | xargs)" = refs/heads/base ] || die "$(cat out)"
want 0 ls-remote a 'tags/*' one
[ "$(cut -f2 out | xargs)" = "refs/heads/one refs/tags/notes-1 refs/tags/notes-1^{} refs/tags/one refs/tags/v1 refs/tags/v2" ] ||
    die "$(cat out)"
want 0 ls-remote a nothing
[ ! -s out ] || die "$(cat out)"
want 0 ls-remote a 'as*'
[ ! -s out ] || die "a pattern begins at a '/': $(cat out)"
want 0 ls-remote a base notes-1 --json
python3 - "$(git -C a/.fmstore/lineage.git rev-parse base)" "$(git -C a/.fmstore/lineage.git rev-parse notes-1)" <<'E2'
import json, sys
r = {x["name"]: x for x in json.load(open("out"))}
assert sorted(r) == ["refs/heads/base", "refs/tags/notes-1"], r
assert r["refs/heads/base"] == {"name": "refs/heads/base", "id": sys.argv[1], "version": sys.argv[1]}, r
assert (r["refs/tags/notes-1"]["id"], r["refs/tags/notes-1"]["version"]) == (sys.argv[2], sys.argv[1]), r
E2
want 0 -C b fetch origin tag notes-1
tells " * new notes-1 -> notes-1"

say "clone into the folder that one is in, if it is empty"
mkdir empty empty2
want 0 -C empty clone ../a .
want 0 -C empty ls
want 0 clone --bare a empty2
want 0 -C empty2 fsck
mkdir full
touch full/file
refused 128 "'.' is there and not empty" -C full clone ../a .
refused 128 "'.' is there and not empty" -C empty clone ../a .
refused 128 "the URL names no folder" -C a clone .

say "clone --depth: all versions, and the tensors of each branch's newest ones; later fetches do the same"
mkdir deep
want 0 init deep
want 0 -C deep import "$atlas/base" --as v0 --no-gate
cp -r "$atlas/base" big
# other N: version N is of other numbers altogether, so none is stored as another's delta
other() {
    python3 - "$1" <<'E2'
import pathlib, random, sys
p = pathlib.Path("big/model.safetensors")
b = bytearray(p.read_bytes())
at = 8 + int.from_bytes(b[:8], "little")
random.seed(int(sys.argv[1]))
b[at:] = random.randbytes(len(b) - at)
b[at + 1::2] = bytes(0x3c | x & 0x80 for x in b[at + 1::2])
p.write_bytes(b)
E2
    want 0 -C deep import "$tmp/big" --as "v$1" --parent "v$(($1 - 1))" --no-gate
    git -C deep/.fmstore/lineage.git update-ref refs/heads/main "refs/heads/v$1"
    want 0 -C deep branch -d "v$(($1 - 1))"
}
for n in 1 2 3; do other $n; done
want 0 -C deep branch -d v3
size() { du -sb "$1/.fmstore/packs" | cut -f1; }
want 0 clone deep whole
want 0 clone --depth 1 deep d1
want 0 clone --depth 2 deep d2
"$fm" -C deep log --json >left
"$fm" -C d1 log --json >right
cmp left right || die "log differs"
[ $(($(size d1) * 3)) -lt "$(size whole)" ] || die "--depth 1: $(size d1) of $(size whole)"
[ $(($(size d2) * 3)) -lt $(($(size whole) * 2)) ] || die "--depth 2: $(size d2) of $(size whole)"
for d in d1 d2; do
    want 0 -C $d fsck
    want 0 -C $d gc --prune=now
    want 0 -C $d fsck
done
mv deep away
want 0 -C d1 run main -p x -n 1
want 128 -C d1 run main~1 -p x -n 1
want 0 -C d2 run main~1 -p x -n 1
want 128 -C d2 run main~2 -p x -n 1
mv away deep
want 0 -C deep branch v3 main
other 4
want 0 -C d1 pull
[ "$(size d1)" -gt $(($(size whole) / 3)) ] || die "a new version came without its tensors: $(size d1)"
mv deep away
want 0 -C d1 run main -p x -n 1
want 1 -C d1 diff main main~1
mv away deep
want 0 -C d1 run main~3 -p x -n 1
want 0 -C d1 fsck
refused 129 "--depth wants 1 to" clone --depth 0 deep d0
refused 129 "--depth wants 1 to" clone --depth 1 --lineage-only deep d0
