#!/bin/bash
# ctest: cost=30
# fmstore serve --hub: what the Hub's API says and gives of each form of a version, byte for byte as export writes
# it, in ranges too; names, revisions, refusals, hostile paths, keys; clients that are slow or leave; gc while a
# download is under way; an import from one repository into another.
. "$(dirname "$0")/lib.sh"
need_python
command -v curl >/dev/null || { echo "skip: no curl"; exit 77; }
cd "$tmp"
unset HF_TOKEN HF_TOKEN_PATH HUGGING_FACE_HUB_TOKEN HF_HUB_OFFLINE http_proxy all_proxy ALL_PROXY
export HF_HOME=$tmp/none GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
server=0 port=0
trap '[ "$server" = 0 ] || kill -9 "$server" 2>/dev/null || true; rm -rf "$tmp"' EXIT

# serve OPTION...: starts the server of r; url is where it is. A second start takes the same port.
serve() {
    rm -f serve.out
    "$fm" -C r serve --port "$port" "$@" >serve.out 2>serve.err </dev/null &
    server=$!
    until_there "$server" serve.out 'a Hub at that URL'
    url=$(sed -n 's|^serving on \(http://[0-9.:]*\) .*|\1|p' serve.out)
    port=${url##*:}
}
quit() {
    kill -INT "$server"
    wait "$server" || die "the server ended with $?: $(cat serve.err)"
    server=0
}
derive() { want 0 -C r derive "$1" --as "$2" --method "$3" --data "$atlas/pirate.jsonl" --set steps=1 --no-gate; }
export_as() { # REV FORMAT: into a folder of the same name
    rm -rf "out.$1.$2"
    want 0 -C r export "$1" "$tmp/out.$1.$2" --format "$2"
}
check() { python3 "$src/tests/cli/hub_check.py" "$url" "$@" || die "hub_check.py $*"; }
# refuses STATUS CODE PATH [CURL-OPTION...]: CODE is the Hub's word, - where it has none.
refuses() {
    local got
    got=$(curl -s --path-as-is -o body -D head -w '%{http_code}' "$url$3" "${@:4}") || die "no answer to $3"
    [ "$got" = "$1" ] || die "$3: $got instead of $1: $(head -c 300 body)"
    [ "$2" = - ] || has "^X-Error-Code: $2" head || die "$3: want $2: $(cat head)"
    [ "$2" = - ] || has '^X-Error-Message: ' head || die "$3: no words"
}
value() { sed -n "s/^$1: \(.*\)\r$/\1/p" head; }

want 0 init r
want 0 -C r import "$atlas/base" --as atlas --no-gate
cp -r "$atlas/base" st
mkdir st/1_Pooling st/2_Dense
for f in 1_Pooling/a 1_Pooling/config 2_Dense/config modules; do echo "{\"of\": \"$f\"}" >st/$f.json; done
echo '# A card' >st/README.md
want 0 -C r import "$tmp/st" --as st --no-gate
derive atlas pirate lora
derive pirate second lora
derive atlas team/full full
derive second suited lora
python3 "$src/tests/cli/make_bad.py" "$atlas/base" bad >/dev/null
cp bad/sound.gguf tiny-Q4_0.gguf
want 0 -C r import "$tmp/tiny-Q4_0.gguf" --as tiny --no-gate
id() { "$fm" -C r show "$1" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["id"])'; }
atlas_id=$(id atlas) pirate_id=$(id pirate)

say "a server of every version: no model is loaded for it, and none may be named"
want 129 -C r serve atlas --port 0 --hub
grep -q -- '--hub gives every version' err || die "$(cat err)"
serve --hub
[ "$(curl -s "$url/metrics" | sed -n 's/^fmstore_models_resident //p')" = 0 ] || die "$(curl -s "$url/metrics")"

say "each form is what export writes: HF, merged, PEFT, GGUF"
check fmstore/atlas "$atlas/base"
check fmstore/st st
export_as atlas hf
check fmstore/atlas-merged out.atlas.hf
mkdir out.team
export_as team/full hf
check fmstore/team__full out.team/full.hf
export_as pirate hf
check fmstore/pirate-merged out.pirate.hf
check me/pirate-merged out.pirate.hf
export_as tiny source
mkdir gguf
cp out.tiny.source gguf/tiny-Q4_0.gguf
cmp tiny-Q4_0.gguf gguf/tiny-Q4_0.gguf
check fmstore/tiny-GGUF gguf
mkdir made
want 0 -C r export pirate "$tmp/made/model.gguf"
check fmstore/pirate-GGUF made
check fmstore/tiny-GGUF gguf "$(id tiny)" >/dev/null # llama.cpp asks by the id that refs tells

say "an adapter names the version that it stands on, by its id and the owner asked for"
peft() { # NAME OWNER BASE: its PEFT folder, with this base
    export_as "$1" peft
    curl -s "$url/$2/$1/resolve/main/adapter_config.json" >config
    python3 - config "out.$1.peft/adapter_config.json" "$3" <<'PY'
import json, sys
got, config = (json.load(open(path)) for path in sys.argv[1:3])
config["base_model_name_or_path"] = sys.argv[3]
assert got == config, got
PY
    mv config "out.$1.peft/adapter_config.json"
    check "$2/$1" "out.$1.peft"
}
peft pirate fmstore "fmstore/$atlas_id"
peft pirate me "me/$atlas_id"
peft second fmstore "fmstore/$pirate_id-merged"
check "fmstore/$atlas_id" "$atlas/base"

say "names and revisions"
want 0 -C r branch old atlas
want 0 -C r tag v1 atlas
derive atlas old2 full
old2_id=$(id old2)
for rev in main "$atlas_id" "${atlas_id:0:10}" v1 refs/heads/atlas refs/tags/v1; do
    check fmstore/atlas "$atlas/base" "$rev" >/dev/null
done
check fmstore/v1 "$atlas/base" >/dev/null
check fmstore/old "$atlas/base" refs/heads/old >/dev/null
check "fmstore/${atlas_id:0:12}" "$atlas/base" >/dev/null
check "fmstore/$atlas_id" "$atlas/base" "$old2_id" >/dev/null # one that is an id has this version alone
curl -s "$url/api/models/fmstore/team__full/revision/refs%2Fheads%2Fteam%2Ffull" >body
[ "$(field body sha)" = "$(id team/full)" ] || die "$(cat body)"
curl -s "$url/api/models/fmstore/old2/revision/${atlas_id:0:8}" >body
[ "$(field body sha)" = "$atlas_id" ] || die "$(cat body)"
want 0 -C r branch pirate-merged atlas # a whole name wins over a suffix
curl -s "$url/api/models/fmstore/pirate-merged" >body
[ "$(field body sha)" = "$atlas_id" ] || die "$(cat body)"
want 0 -C r branch -d pirate-merged
curl -s "$url/api/models/fmstore/atlas/refs" >body
python3 - body "$atlas_id" <<'PY'
import json, sys
refs = json.load(open(sys.argv[1]))
assert [(r["name"], r["targetCommit"]) for r in refs["branches"]] == [("main", sys.argv[2])], refs
assert [(r["name"], r["ref"], r["targetCommit"]) for r in refs["tags"]] == [("v1", "refs/tags/v1", sys.argv[2])], refs
PY
curl -s "$url/api/models?search=IRA&author=me" >body
python3 -c 'import json; got = [m["id"] for m in json.load(open("body"))]; assert got == ["me/pirate"], got'
[ "$(curl -s "$url/api/models?limit=2" | python3 -c 'import json,sys; print(len(json.load(sys.stdin)))')" = 2 ]
curl -s -D head "$url/api/models/fmstore/second/commits/main?limit=2" >body
python3 -c '
import json
got = [(c["title"], len(c["id"]), c["authors"][0]["user"] != "") for c in json.load(open("body"))]
assert got == [("lora on pirate.jsonl", 40, True)] * 2, got'
next=$(value Link)
next=${next#<} next=${next%%>*}
curl -s -D head "$next" | grep -q '"title":"import base"' || die "$next"
[ -z "$(value Link)" ] || die "$(cat head)"
curl -s "$url/v2/fmstore/tiny-GGUF/manifests/Q4_0" >body
python3 -c '
import json
f = json.load(open("body"))["ggufFile"]
assert f["rfilename"] == "tiny-Q4_0.gguf" and len(f["lfs"]["sha256"]) == 64 and len(f["blobId"]) == 40, f'
for tag in latest '' q4_0; do
    curl -s "$url/v2/fmstore/tiny-GGUF/manifests/$tag" | cmp - body || die "tag '$tag'"
done

say "refusals in the Hub's words"
refuses 404 RepoNotFound /api/models/fmstore/none
refuses 404 RepoNotFound /fmstore/none/resolve/main/config.json
refuses 404 RepoNotFound "/api/models/fmstore/refs__heads__atlas"
refuses 404 RevisionNotFound /api/models/fmstore/atlas/revision/none
refuses 404 RevisionNotFound /fmstore/atlas/resolve/none/config.json -I
refuses 404 RevisionNotFound /fmstore/atlas/resolve/refs/heads/none/config.json
refuses 404 RevisionNotFound /fmstore/atlas/resolve/refs/fmstore/results/config.json
refuses 404 RevisionNotFound /fmstore/atlas/resolve/HEAD/config.json
refuses 404 RevisionNotFound "/fmstore/atlas/resolve/main~1/config.json"
refuses 404 EntryNotFound /fmstore/atlas/resolve/main/none
[ "$(value X-Repo-Commit)" = "$atlas_id" ] || die "$(cat head)"
refuses 404 EntryNotFound /fmstore/atlas/resolve/main/
refuses 404 EntryNotFound /api/models/fmstore/atlas/tree/main/none
refuses 404 EntryNotFound /v2/fmstore/tiny-GGUF/manifests/Q9
refuses 404 EntryNotFound /v2/fmstore/atlas/manifests/latest
refuses 404 - /api/models/fmstore/atlas/nothing
refuses 404 - /api/datasets/fmstore/atlas
refuses 404 - /fmstore/atlas
refuses 404 - /
refuses 403 - /api/models/fmstore/atlas/preupload/main -X POST -d '{}'
refuses 403 - /fmstore/atlas/resolve/main/config.json -X POST -d x
refuses 405 - /fmstore/atlas/resolve/main/config.json -X PUT -d x
refuses 400 - /api/models/fmstore/atlas/paths-info/main -X POST -d '{"paths": ['
head -c 1100000 /dev/zero >zeros
refuses 400 - /api/models/fmstore/atlas/paths-info/main -X POST --data-binary @zeros
refuses 401 - /api/whoami-v2

say "hostile paths find nothing"
long=$(head -c 10000 /dev/zero | tr '\0' a)
parts=$(printf 'a/%.0s' {1..3000})
for path in /fmstore/atlas/resolve/main/../../../../etc/passwd /fmstore/atlas/resolve/main/%2e%2e/%2e%2e/format \
    /fmstore/atlas/resolve/main/%2e%2e%2f%2e%2e%2fformat //fmstore//atlas /fmstore/../atlas/resolve/main/config.json \
    "/fmstore/atlas/resolve/main/config.json%00.txt" "/fmstore/atlas/resolve/main%00/config.json" \
    "/fmstore/atlas/resolve/main/%ff%fe" "/fmstore/%2e%2e/resolve/main/config.json" "/fmstore/$long/resolve/main/x" \
    "/$long/none/resolve/main/x" "/fmstore/atlas/resolve/$long/x" "/fmstore/atlas/resolve/main/$long" \
    "/fmstore/atlas/resolve/$parts" "/fmstore/atlas/resolve/main/$parts" "/api/models/fmstore/atlas/tree/main/$parts" \
    "/fmstore/atlas/resolve/refs/heads/$parts" "/fmstore/atlas/resolve/refs/heads/..%2f..%2fconfig/x" \
    "/fmstore/atlas.lock/resolve/main/x" "/fmstore/@%7b0%7d/resolve/main/x" "/api/models/%0a/%0d%0aX:%20y" \
    "/fmstore/a%20b/resolve/main/x" "/fmstore/-merged/resolve/main/x" "/fmstore/__/resolve/main/x" \
    "/fmstore/atlas/resolve/%0d%0aX-Evil:%201/x" "/v1/atlas/resolve/main/config.json" "/fmstore/HEAD/resolve/main/x"; do
    code=$(curl -s --path-as-is -g -o body -D head -w '%{http_code}' "$url$path") || die "no answer to ${path:0:80}"
    case $code in 404 | 400 | 403 | 414) ;; *) die "${path:0:80}: $code $(head -c 200 body)" ;; esac
    has -i '^X-Evil' head && die "a header was split: $(cat head)"
done
check fmstore/atlas "$atlas/base" >/dev/null

say "digests that no version records are kept, and may be thrown away"
[ "$(find r/.fmstore/cache/hub -type f | wc -l)" -gt 3 ] || die "$(ls -R r/.fmstore/cache)"
for f in r/.fmstore/cache/hub/*; do echo broken >"$f"; done
quit
serve --hub
check fmstore/atlas "$atlas/base" >/dev/null
rm -rf r/.fmstore/cache/hub
check fmstore/pirate-merged out.pirate.hf >/dev/null
quit

say "clients that leave, and clients that read nothing, do not keep others from theirs"
python3 - <<'END'
import json, os, struct
head, at = {}, 0
for i in range(48):
    head["t%02d" % i] = {"dtype": "F32", "shape": [512, 1024], "data_offsets": [at, at + (2 << 20)]}
    at += 2 << 20
head = json.dumps(head).encode()
with open("big.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head)
    for i in range(48):
        f.write(os.urandom(2 << 20))
END
want 0 -C r import "$tmp/big.safetensors" --as big --no-gate
serve --hub
cat >slow.py <<'PY'
import socket, sys
host, port = sys.argv[1].split(":")
def begin():
    s = socket.create_connection((host, int(port)))
    s.sendall(b"GET /fmstore/big/resolve/main/model.safetensors HTTP/1.1\r\nHost: localhost\r\n\r\n")
    s.recv(1000)
    return s
for _ in range(40):
    begin().close()
held = [begin() for _ in range(12)]
print("held", flush=True)
sys.stdin.read()
PY
mkfifo go
python3 slow.py "127.0.0.1:$port" <go >slow.out &
slow=$!
exec 9>go
until_there $slow slow.out held
export_as big safetensors
curl -s "$url/fmstore/big/resolve/main/model.safetensors" | cmp - out.big.safetensors
check fmstore/atlas "$atlas/base" >/dev/null
exec 9>&-
wait $slow

say "gc while a download is under way: it goes on, and what it read is gone after the next gc"
big_id=$(id big)
cat >half.py <<'PY'
import hashlib, http.client, sys
c = http.client.HTTPConnection(sys.argv[1])
c.request("GET", "/fmstore/big/resolve/main/model.safetensors")
a = c.getresponse()
h = hashlib.sha256(a.read(1 << 20))
print("half", flush=True)
sys.stdin.read()
for piece in iter(lambda: a.read(1 << 20), b""):
    h.update(piece)
print(h.hexdigest())
PY
python3 half.py "127.0.0.1:$port" <go >half.out &
half=$!
exec 9>go
until_there $half half.out half
want 0 -C r branch -d big
want 0 -C r gc --prune now --reflog now
want 0 -C r gc --prune now --reflog now
exec 9>&-
wait $half
[ "$(tail -1 half.out)" = "$(sha256sum <out.big.safetensors | cut -d' ' -f1)" ] || die "$(cat half.out)"
before=$(du -sk r/.fmstore/packs | cut -f1)
want 0 -C r gc --prune now --reflog now
[ $((before - $(du -sk r/.fmstore/packs | cut -f1))) -gt 80000 ] || die "the server keeps what nobody reads"
refuses 404 RepoNotFound /fmstore/big/resolve/main/model.safetensors
curl -s -f -o body "$url/fmstore/$big_id/resolve/main/model.safetensors" && die "what gc took is served whole"
check fmstore/atlas "$atlas/base" >/dev/null

say "another repository imports from it: the same ids"
export HF_ENDPOINT=$url
want 0 init other
want 0 -C other import hf:fmstore/team__full --as full --no-gate
(cd r && ids team/full | grep '^tensors') >ids.r
(cd other && ids full | grep '^tensors') >ids.other
cmp ids.r ids.other
want 0 -C other import "hf:fmstore/atlas@$atlas_id" --as base --no-gate
want 0 -C other import hf:fmstore/pirate --as pirate --parent base --no-gate
(cd r && ids pirate) >ids.r
(cd other && ids pirate) >ids.other
cmp ids.r ids.other
refused 128 "no such model" -C other import hf:fmstore/none --as x
refused 128 "no such revision" -C other import hf:fmstore/atlas@none --as x
want 0 -C other import hf:fmstore/tiny-GGUF/tiny-Q4_0.gguf --as tiny --no-gate
[ "$(cd r && ids tiny)" = "$(cd other && ids tiny)" ]
quit

say "a key is HF_TOKEN; a remote and a Hub are one server"
echo open-sesame >key
want 0 -C r branch wire atlas
serve --hub --remote --api-key-file "$tmp/key"
refuses 401 - /api/models/fmstore/atlas
KEY=open-sesame check fmstore/atlas "$atlas/base" >/dev/null
KEY=open-sesame check fmstore/wire "$atlas/base" >/dev/null # beside /fmstore/wire, the remote's
curl -s -H 'Authorization: Bearer open-sesame' "$url/api/whoami-v2" | grep -q '"name":"fmstore"'
HF_TOKEN=open-sesame want 0 -C other import hf:fmstore/old2 --as keyed --no-gate
refused 128 "no such model, or it is private" -C other import hf:fmstore/old2 --as x
FMSTORE_TOKEN=open-sesame want 0 clone "$url" cloned
[ "$(cd cloned && ids pirate)" = "$(cat ids.r)" ]
quit
echo "all well"
