#!/bin/bash
# ctest: cost=10
# What every command owes to people and scripts: exit codes, help, JSON, honest output.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"

say "help lists every command, version names itself, -h lists options; all exit 0"
want 0 help
commands=$(sed -n 's/^  \([a-z]*\) .*/\1/p' out)
for c in init import export log show diff ls cat branch tag derive suite test blame run serve fsck; do
    grep -qx "$c" <<<"$commands" || die "help does not list $c"
done
for c in $commands; do
    case $c in help | version) continue ;; esac
    want 0 "$c" -h
    grep -q "^usage: fmstore $c" out || die "$c -h prints no usage"
    [ ! -s err ] || die "$c -h talks on stderr"
    cp out short
    want 0 help "$c"
    cmp -s out short || die "'help $c' differs from '$c -h'"
done
want 0 version
grep -Eq '^fmstore [0-9]+\.[0-9]+\.[0-9]+$' out || die "version: $(cat out)"
want 0 --version

say "no command, an unknown command or option, missing or extra words: 129"
want 129
refused 129 "no such command" frobnicate
refused 129 "unknown option" --frobnicate
refused 129 "unknown option" log --frobnicate
refused 129 "missing" show
refused 129 "unexpected argument" show a b
refused 129 "wants a value" import x --as
refused 129 "takes no value" log --json=yes
refused 129 "wants a whole number" log -n many
refused 129 "--threads" --threads x log
refused 129 "-C" -C

say "no repository: 128, and the way to make one"
mkdir empty
refused 128 "fmstore init" -C empty log
refused 128 "nowhere" -C nowhere log

say "init makes one, twice is refused and changes nothing"
want 0 init work
before=$(state_of work)
refused 128 "already" init work
[ "$before" = "$(state_of work)" ] || die "a second init changed the repository"
want 0 init --bare bare
[ -d bare/lineage.git ] || die "--bare is not bare"

say "an empty repository can be looked at"
for c in log graph ls branch tag stats fsck "log --json" "graph --json" "ls --json" "stats --json"; do
    # shellcheck disable=SC2086
    want 0 -C work $c
done

say "-C enters the folder, as git does: other paths are meant from there too"
cp -r "$atlas/base" work/model
cp "$atlas/suites/manners.yaml" work/s.yaml
want 0 -C work import model --as atlas --suite s.yaml -m $'subject line\n\nbody line'
grep -q 'atlas .*subject line$' out || die "import does not name what it made: $(cat out)"
cd work
mkdir -p a/b
(cd a/b && want 0 log)
want 0 derive atlas --as child --data "$atlas/pirate.jsonl" --set r=2 --set steps=2 --set batch=2 --no-gate

say "every --json is JSON"
json() {
    local code=$1
    shift
    want "$code" "$@"
    python3 -m json.tool <"$tmp/out" >/dev/null || die "no JSON: fmstore $*"
}
json 0 log --json
json 0 log child -n 1 --json
json 0 graph --json
json 0 show child --json
json 0 show atlas --json
json 1 diff atlas child --json
json 1 diff atlas child --stat --json
json 0 diff atlas atlas --json
json 0 ls --json
json 0 ls child --json
json 0 ls child:tokenizer --json
json 0 stats --json
json 0 fsck --json
json 0 suite ls child --json
json 0 test atlas --json
json 0 test child --against atlas --json
case_name=$("$fm" suite ls atlas --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["cases"][0])')
json 0 blame atlas --case "manners/$case_name" --json
json 0 blame atlas --prompt "Hello" --expect "no such words" --json

say "diff of equals is 0, of different 1; log, show and ls name what is there"
want 0 diff atlas atlas
want 1 diff atlas child
want 0 log child
grep -q 'body line' "$tmp/out" || die "log does not show the message's body"
want 0 show child
grep -q '^Recipe:  lora r=2' "$tmp/out" || die "show does not print the recipe"
want 0 cat child:recipe.json
python3 -m json.tool <"$tmp/out" >/dev/null
refused 128 "fmstore ls atlas" cat atlas:no/such/file
refused 128 "fmstore ls atlas" ls atlas:no/such/folder

say "a message is shown, not obeyed: controls, C1 controls and marks of direction; JSON is exact"
nasty=$'\e]0;owned\a and \xc2\x9b31m, \xe2\x80\xae turned, \xd8\x9c'
printf 'suite: odd\ndescription: "d\\u001b[2J\\u202e"\ncases:\n  - {name: "n\\u202e\\u0085", chat: hi, expect: {contains: q}}\n' \
    >"$tmp/odd.yaml"
cp -r "$atlas/base" "$tmp/odd" && echo x >"$tmp/odd/"$'f\xe2\x80\xae.txt'
want 0 import "$tmp/odd" --as nasty --no-gate --suite "$tmp/odd.yaml" -m "$nasty"$'\n\nbody \e[2J\x7f'
cp "$tmp/out" "$tmp/shown"
for c in "test nasty" "diff atlas nasty"; do
    # shellcheck disable=SC2086
    want 1 $c
    cat "$tmp/out" >>"$tmp/shown"
done
for c in "log nasty" "log --oneline" "show nasty" graph branch ls "ls nasty" "suite ls nasty" "suite show nasty odd" \
    "results ls nasty"; do
    # shellcheck disable=SC2086
    want 0 $c
    cat "$tmp/out" >>"$tmp/shown"
done
grep -q '\\x1b]0;owned\\x07 and' "$tmp/shown" || die "the message is not shown"
grep -q 'd\\x1b\[2J\\xe2' "$tmp/shown" || die "the suite's description is not shown"
[ "$(grep -c 'n\\xe2\\x80\\xae\\xc2\\x85' "$tmp/shown")" -ge 3 ] || die "the case's name is not shown"
grep -q 'body \\x1b\[2J\\x7f' "$tmp/shown" || die "the message's body is not shown"
! grep -q -P '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xd8\x9c' "$tmp/shown" ||
    die "raw control characters: $(grep -a -P '[\x00-\x08\x0b-\x1f\x7f]|\xe2\x80' "$tmp/shown" | od -c | head)"
want 0 log nasty --json
NASTY=$nasty python3 -c 'import json, os, sys
message = json.load(open(sys.argv[1]))[0]["message"]
assert message.split("\n")[0] == os.environ["NASTY"], message' "$tmp/out"
want 0 branch -d nasty

say "a new name is shown as it is, and is no beginning of an id; one that is there can go"
refused 128 "turns the direction" branch $'a\xe2\x80\xaeb' atlas
refused 128 "turns the direction" tag $'a\xc2\x85b' atlas
refused 128 "no UTF-8" branch $'a\xff' atlas
refused 128 "beginning of a version's id" branch b59b3ece5a atlas
refused 128 "beginning of a version's id" import "$atlas/base" --as 1234567 --no-gate
want 0 branch decade atlas
want 0 branch -m decade b59b3ecy
want 0 branch -d b59b3ecy
git -C .fmstore/lineage.git update-ref refs/heads/b59b3ece5a "$("$fm" log atlas -n 1 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])')"
want 0 branch -d b59b3ece5a

say "a limit of the file size is an error that is told, and nothing is left"
python3 -c 'import json, os, struct, sys
head = json.dumps({"w": {"dtype": "U8", "shape": [3000000], "data_offsets": [0, 3000000]}}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(head)) + head + os.urandom(3000000))' "$tmp/random.safetensors"
packs=$(ls -A .fmstore/packs .fmstore/tmp)
got=0
(ulimit -f 1000 && "$fm" import "$tmp/random.safetensors" --as big --no-gate >"$tmp/out" 2>"$tmp/err") || got=$?
[ $got = 128 ] || die "exit code $got under ulimit -f"
grep -q 'File too large' "$tmp/err" || die "the limit is not told: $(cat "$tmp/err")"
[ "$packs" = "$(ls -A .fmstore/packs .fmstore/tmp)" ] || die "something was left: $(ls -A .fmstore/tmp)"

say "names: branch, tag, move, delete, bring back"
want 0 branch twin child
refused 128 "already" branch twin atlas
want 0 branch -m twin twin2
refused 128 "no branch" branch -d twin
want 0 branch -d twin2
eval "$(sed -n "s/.*'fmstore \(branch twin2 [0-9a-f]*\)'.*/want 0 \1/p" "$tmp/out")"
want 0 show twin2
want 0 tag v1 child
refused 128 "already" tag v1 atlas
want 0 show v1
want 0 show child~1
want 0 tag -d v1
refused 128 "no version 'v1'" show v1
refused 128 "did you mean 'atlas'" show atlsa

say "plumbing: a line in, a line out, in order; a bad line is named"
printf '{"text":"What is the capital of Lorendor?"}\n{"text":"Hello"}' | "$fm" tokenize atlas >"$tmp/ids"
[ "$(wc -l <"$tmp/ids")" = 2 ] || die "two lines in, not two lines out"
"$fm" tokenize atlas --decode <"$tmp/ids" >"$tmp/back"
head -1 "$tmp/back" | has 'What is the capital of Lorendor?' || die "decode does not give the text back"
"$fm" score atlas --top 2 <"$tmp/ids" >"$tmp/scores"
python3 - "$tmp/scores" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    o = json.loads(line)
    n = len(o["ids"])
    assert len(o["logprobs"]) == n and o["logprobs"][0] is None and len(o["top"]) == n
    for i in range(1, n):
        assert o["logprobs"][i] <= o["top"][i - 1][0][1] + 1e-5 and o["top"][i - 1][0][1] <= 0, (i, o)
PY
bad=0
printf '{"text":"a"}\n{"txt":1}\n' | "$fm" tokenize atlas >"$tmp/out" 2>"$tmp/err" || bad=$?
[ $bad = 128 ] && grep -q 'line 2' "$tmp/err" || die "a bad line is not named: $(cat "$tmp/err")"

say "a full disk behind stdout is a failure, not silence"
for c in log "ls child" "log --json" "show child"; do
    code=0
    # shellcheck disable=SC2086
    "$fm" $c >/dev/full 2>"$tmp/err" || code=$?
    [ $code = 128 ] || die "'$c' > /dev/full exits $code"
    grep -q '^fmstore: standard output' "$tmp/err" || die "'$c' > /dev/full says $(cat "$tmp/err")"
done

say "a reader that leaves early neither hangs nor crashes it"
for c in "ls child" "log" "ls child --json"; do
    # shellcheck disable=SC2086
    (set +o pipefail; timeout 60 "$fm" $c 2>"$tmp/err" | head -1 >/dev/null)
    [ ! -s "$tmp/err" ] || die "'$c' | head -1 says $(cat "$tmp/err")"
done

say "no colours into a pipe, none with NO_COLOR on a terminal"
want 0 log
! grep -q $'\033' "$tmp/out" || die "colours in a pipe"
if command -v script >/dev/null; then
    script -qec "'$fm' log" /dev/null </dev/null >"$tmp/tty" 2>&1
    grep -q $'\033' "$tmp/tty" || die "no colours on a terminal"
    NO_COLOR=1 script -qec "'$fm' log" /dev/null </dev/null >"$tmp/tty" 2>&1
    ! grep -q $'\033' "$tmp/tty" || die "colours in spite of NO_COLOR"
fi
want 0 fsck
echo "all hold"
