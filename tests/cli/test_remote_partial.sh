#!/bin/bash
# ctest: cost=6
# A clone of the lineage alone: history without weights; tensors come when something reads them, or when asked.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir a
want 0 init a
want 0 -C a import "$atlas/base" --as base --suite "$atlas/suites/facts.yaml" --no-gate
want 0 -C a derive base --as one --method lora --data "$atlas/pirate.jsonl" --set steps=2 --set r=2 --no-gate
want 0 -C a test base
packs() { find "$1/.fmstore/packs" -name '*.pack' | wc -l; }

say "log, graph, ls, diff of pointers, fsck, gc and stats need no weights"
want 0 clone --lineage-only a b
[ "$(packs b)" = 0 ] || die "tensors came: $(cat err)"
for words in "log one" "graph" "ls" "ls one" "show one" "fsck" "gc" "stats"; do
    # shellcheck disable=SC2086
    want 0 -C b $words
    [ "$(packs b)" = 0 ] || die "'$words' brought tensors"
done
want 1 -C b diff base one --stat
[ "$(packs b)" = 0 ] || die "diff brought tensors"
"$fm" -C a log one --json >left; "$fm" -C b log one --json >right
cmp left right || die "log differs"

say "one tensor alone, by its name"
want 0 -C b fetch one -- 'tensors/model/layers/0/*'
n=$(sed -n 's/^\([0-9]*\) objects, .*/\1/p' err)
[ "$n" -gt 0 ] && [ "$n" -lt 20 ] || die "$(cat err)"
want 0 -C b fsck
refused 128 "no tensor or file has such a name" -C b fetch one -- 'nothing/*'

say "what a command reads comes in one request"
want 0 -C b run one -p 'The capital of' -n 4 --mode exact
cp out left
want 0 -C a run one -p 'The capital of' -n 4 --mode exact
cmp left out || die "answers differ"
want 0 -C b export one "$tmp/y"
want 0 -C a export one "$tmp/x"
diff -r x y || die "exports differ"
want 0 -C b gc --prune=now
want 0 -C b fsck
want 0 -C b derive one --as two --method lora --data "$atlas/clerk.jsonl" --set steps=2 --set r=2 --no-gate
want 0 -C b push origin two
want 0 -C a fsck
want 0 -C a run two -p 'The capital of' -n 4

say "what only this clone has is promised by nobody"
want 0 clone --lineage-only a c
cp -r "$atlas/base" mine
python3 - <<'EOF2'
import pathlib
p = pathlib.Path("mine/model.safetensors")
b = bytearray(p.read_bytes())
b[-1000] ^= 1
p.write_bytes(b)
EOF2
want 0 -C c import "$tmp/mine" --as mine --no-gate
want 0 -C c fsck
mkdir kept
mv c/.fmstore/packs/*.pack kept/
want 1 -C c fsck
grep -q 'mine' out || die "$(cat out)"
want 0 -C c fsck --repair "$tmp/mine"
want 0 -C c fsck
refused 128 "has tensors that are not here" -C c remote rm origin

say "a push to a clone of the lineage alone brings it what it lacks"
want 0 clone --lineage-only a d
want 0 -C a push "$tmp/d" one:from-a
want 0 -C d fsck
want 0 -C a derive base --as late --method lora --data "$atlas/clerk.jsonl" --set steps=2 --set r=2 --set seed=5 --no-gate
want 0 -C d pull
was=$(find d/.fmstore/packs -name '*.pack' | wc -l)
want 0 -C a push "$tmp/d" late # which it has, without the tensors
[ "$(packs d)" -gt "$was" ] || die "$(cat err)"
mv a away
want 0 -C d run late -p x -n 1
mv away a

say "a fetch brings lineage alone, and the remote away is told by name"
want 0 -C a derive base --as three --method lora --data "$atlas/clerk.jsonl" --set steps=2 --set r=4 --no-gate
want 0 -C b pull
want 0 -C b log three
mv a away
want 128 -C b run three -p x -n 1
grep -q "is no repository of fmstore" err || die "$(cat err)"
want 0 -C b run one -p x -n 1
mv away a
want 0 -C b run three -p x -n 1
want 0 -C b fsck

say "results ls reads no tensor, and a suite is added to a version whose tensors are elsewhere"
want 0 clone --lineage-only a e
want 0 -C e results ls base --json
[ "$(packs e)" -le 1 ] || die "tensors came"
cp out left
want 0 -C a results ls base --json
cmp left out || die "results differ"
grep -q '"pass"' left || die "$(cat left)"
size() { du -sb "$1/.fmstore/packs" | cut -f1; }
was=$(size e)
want 0 -C e suite add one "$atlas/suites/clerk.yaml"
"$fm" -C e suite ls one --json >suites.json
want 0 -C e suite waive one "$(python3 -c '
import json
s = [s for s in json.load(open("suites.json")) if s["name"] != "facts"][0]
print(s["name"] + "/" + s["cases"][0])')" --reason x
[ $(($(size e) - was)) -lt 100000 ] || die "tensors came: $was, then $(size e)"
want 0 -C e fsck
want 0 -C e gc --prune=now
want 0 -C e fsck
want 0 -C e push origin one:one-with-suite
want 0 -C a fsck
want 0 -C a run one-with-suite -p 'The capital of' -n 4 --mode exact

say "a tag on no branch is promised too, as long as it is here, under the remote's new name as well"
want 0 -C a derive base --as off --method lora --data "$atlas/clerk.jsonl" --set steps=1 --set r=2 --no-gate
want 0 -C a tag off-tag off
want 0 -C a branch -d off
want 0 clone --lineage-only a k
want 0 -C k fsck
want 0 -C k remote rename origin hub
want 0 -C k fsck
want 0 -C k gc --prune=now
want 0 -C k run off-tag -p x -n 1
want 0 -C k fsck
want 0 -C k tag -d off-tag
want 0 -C a tag -d off-tag
want 0 -C k fetch
git -C k/.fmstore/lineage.git for-each-ref | has promised && die "a promise outlived its tag"

say "lineageOnly false, and a fetch brings all, though every ref is there already"
want 0 clone --lineage-only a h
git config -f h/.fmstore/config remote.origin.lineageOnly false
want 0 -C h fetch
mv a away
want 0 -C h run one -p x -n 1
mv away a

say "what is fetched on demand is held by no writer's lease: gc deletes what was condemned meanwhile"
mkfifo questions
"$fm" -C e score one >answers 2>scored <questions &
scorer=$!
exec 9>questions
echo '{"text": "The capital of"}' >&9
until_there "$scorer" answers logprobs
grep -rl '^write ' e/.fmstore/leases && die "a writer's lease is left"
exec 9>&-
wait "$scorer"

command -v curl >/dev/null || { echo "no curl: serve is left out"; exit 0; }
say "serve brings a version's tensors on its loading thread, and answers 503 while the remote is away"
want 0 clone --lineage-only a f
"$fm" -C f serve --port 0 --mode exact >served 2>told &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -rf "$tmp"' EXIT
until_there "$server" served http
url=$(sed -n 's|.*\(http://[0-9.:]*\).*|\1|p' served)
ask() {
    curl -s -o answer -w '%{http_code}' "$url/v1/completions" -H 'Content-Type: application/json' \
        -d "{\"model\":\"$1\",\"max_tokens\":4,\"temperature\":0,\"prompt\":\"The capital of\"}"
}
mv a away
[ "$(ask one)" = 503 ] || die "$(cat answer)"
grep -q 'could not be fetched' answer || die "$(cat answer)"
mv away a
[ "$(ask one)" = 200 ] || die "$(cat answer)"
grep -rl '^write ' f/.fmstore/leases && die "the server has a writer's lease"
want 0 -C a run one --raw -p 'The capital of' -n 4 --mode exact
python3 - <<'E2'
import json
assert json.load(open("answer"))["choices"][0]["text"].strip() in open("out").read(), (open("answer").read(), open("out").read())
E2
[ "$(ask base)" = 200 ] || die "$(cat answer)"
kill -INT "$server"
wait "$server"
want 0 -C f fsck
want 0 clone --lineage-only a g
"$fm" -C g serve two --port 0 >preloaded 2>told &
server=$!
until_there "$server" preloaded http
[ "$(packs g)" -gt 0 ] || die "serve REV fetched nothing before it began"
