#!/bin/bash
# ctest: cost=40
# Imports from a Hub (hub_server.py stands in for it and its CDN): files, digests, tokens, refusals, caches,
# and what a kill at any byte leaves.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_python
cd "$tmp"
unset HF_HUB_CACHE HF_HUB_OFFLINE HF_TOKEN HF_TOKEN_PATH HUGGING_FACE_HUB_TOKEN HUGGINGFACE_HUB_CACHE
unset http_proxy all_proxy ALL_PROXY
export HF_HOME=$tmp/home/hf

# ---- the models ----
main=$tmp/root/org/atlas/main
mkdir -p root/org/atlas root/plain $main
cp "$atlas"/base/* $main
echo '# A card' >$main/README.md
mkdir $main/onnx $main/1_Pooling
echo '{}' >$main/1_Pooling/config.json
echo 'not taken' >$main/onnx/model.onnx
echo 'not taken' >$main/old.h5
cp -r $main root/org/atlas/v2
echo '# Another card' >root/org/atlas/v2/README.md
mkdir -p root/org/gated/main root/org/shards/main root/org/pickle/main root/org/lora/main root/org/files/main
cp "$atlas"/base/* root/org/gated/main
cp "$atlas/base/model.safetensors" root/org/files/main/alone.safetensors
python3 - root "$atlas/base" <<'PY'
import json, pathlib, struct, sys
root, base = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
raw = (base / "model.safetensors").read_bytes()
size = struct.unpack("<Q", raw[:8])[0]
head, body = json.loads(raw[8 : 8 + size]), raw[8 + size :]
head.pop("__metadata__", None)

def write(path, tensors):
    fresh, data = {}, b""
    for name, (dtype, shape, part) in tensors.items():
        fresh[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(fresh).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)

tensors = {n: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for n, t in head.items()}
names, to = sorted(tensors), root / "org/shards/main"
for p in base.iterdir():
    if p.name != "model.safetensors":
        (to / p.name).write_bytes(p.read_bytes())
halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
for file, part in halves.items():
    write(to / file, {n: tensors[n] for n in part})
(to / "model.safetensors.index.json").write_text(json.dumps(
    {"metadata": {}, "weight_map": {n: file for file, part in halves.items() for n in part}}))
(to / "pytorch_model.bin").write_bytes(b"not taken")
lora = root / "org/lora/main"
(lora / "adapter_config.json").write_text(json.dumps(
    {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM",
     "base_model_name_or_path": "org/atlas"}))
q = "model.layers.0.self_attn.q_proj"
out, inn = tensors[q + ".weight"][1]
zero = lambda *s: ("F32", list(s), bytes(4 * s[0] * s[1]))
write(lora / "adapter_model.safetensors", {f"base_model.model.{q}.lora_A.weight": zero(2, inn),
                                           f"base_model.model.{q}.lora_B.weight": zero(out, 2)})
PY
cp "$main/model.safetensors" root/plain/x.safetensors
mkdir -p every root/org/parts/main/q
python3 "$src/tests/cli/make_gguf.py" every
mv every/s-0000?-of-00003.gguf root/org/parts/main/q
size=$(stat -c %s $main/model.safetensors)

python3 "$src/tests/cli/hub_server.py" root >urls 2>hub.err &
hub=$!
trap 'kill $hub 2>/dev/null; rm -rf "$tmp"' EXIT
until_there $hub urls http
read -r HF_ENDPOINT cdn <urls
export HF_ENDPOINT
asked() { grep -c "$1" root/log || true; }
quiet() { rm -f root/log root/fault; touch root/log; }
leftovers() { find "$1/.fmstore/incoming-hub" -mindepth 1 2>/dev/null | wc -l; }

say "the first part of a split GGUF brings the others"
quiet
want 0 init split
want 0 -C split import hf:org/parts/q/s-00001-of-00003.gguf --as split
want 0 -C split export split "$tmp/parts" --format source
for i in 1 2 3; do cmp root/org/parts/main/q/s-0000$i-of-00003.gguf parts/s-0000$i-of-00003.gguf; done
mv root/org/parts/main/q/s-00002-of-00003.gguf gone
refused 128 "has no file 'q/s-00002-of-00003.gguf', a part of" -C split import hf:org/parts/q/s-00001-of-00003.gguf --as x

say "a model equals the import of its folder, byte for byte"
quiet
want 0 init r
want 0 -C r import hf:org/atlas --as hub --no-gate
want 0 -C r import "$main" --as local --no-gate
[ "$(cd r && ids hub)" = "$(cd r && ids local)" ] || die "other tensors"
want 0 -C r export hub "$tmp/xout" --format source
for f in config.json tokenizer.json model.safetensors README.md 1_Pooling/config.json; do
    cmp "xout/$f" "$main/$f"
done
[ ! -e xout/old.h5 ] && [ ! -e xout/onnx ] || die "more was downloaded than a version holds"
[ "$(asked 'onnx\|old.h5')" = 0 ] || die "asked for what is left out"
[ "$(asked 'resolve')" = 7 ] || die "want 7 files: $(cat root/log)"
[ "$(leftovers r)" = 0 ] || die "downloads were left: $(find r/.fmstore/incoming-hub)"
want 0 -C r fsck
say "the commit is in the recipe, the files that stayed there too"
commit=$(sed -n 's|.*/resolve/\([0-9a-f]*\)/config.json .*|\1|p' root/log)
want 0 -C r cat hub:recipe.json
python3 - "$tmp/out" "$commit" <<'PY'
import json, sys
recipe = json.load(open(sys.argv[1]))
assert recipe["operation"] == "import", recipe
source = recipe["source"]
assert source["model"] == "org/atlas" and source["revision"] == "main", source
assert source["commit"] == sys.argv[2] and len(sys.argv[2]) == 40, source
assert [f["name"] for f in source["left_out"]] == ["old.h5", "onnx/model.onnx"], source
PY
want 0 -C r show hub
grep -q "^Source:  org/atlas at $commit" "$tmp/out" || die "show does not say where it came from: $(cat "$tmp/out")"

say "a file whose digest a version here names is not downloaded"
quiet
want 0 -C r import hf:org/atlas@v2 --as second --no-gate
[ "$(asked model.safetensors)" = 0 ] || die "downloaded again: $(cat root/log)"
grep -q ' 1 file from versions that are here' "$tmp/err" || die "$(cat "$tmp/err")"
want 0 -C r export second "$tmp/xout2" --format source
cmp xout2/model.safetensors $main/model.safetensors
cmp xout2/README.md root/org/atlas/v2/README.md

say "shards, adapters, single files, plain URLs, pages"
quiet
want 0 -C r import hf:org/shards --as shards --no-gate
[ "$(asked pytorch_model.bin)" = 0 ] || die "$(cat root/log)"
[ "$(asked '^hub.*/model-0000')" = 2 ] || die "$(cat root/log)"
[ "$(cd r && ids shards)" = "$(cd r && ids local)" ] || die "other tensors"
refused 128 "--parent" -C r import hf:org/lora --as lora --no-gate
want 0 -C r import hf:org/lora --as lora --parent hub --no-gate
want 0 -C r import hf:org/files/alone.safetensors --as alone --no-gate
want 0 -C r import "$HF_ENDPOINT/org/files/blob/main/alone.safetensors?download=true" --as page --no-gate
want 0 -C r import "$HF_ENDPOINT/org/atlas/tree/v2" --as page2 --no-gate
[ "$(cd r && tree_of page2)" != "" ]
want 0 -C r import "$cdn/plain/x.safetensors?sig=secret" --as plain --no-gate
want 0 -C r cat plain:recipe.json
grep -q '/plain/x.safetensors"' "$tmp/out" && ! grep -q secret "$tmp/out" || die "$(cat "$tmp/out")"
[ "$(leftovers r)" = 0 ] || die "downloads were left"
refused 128 "alone.safetensors" -C r import hf:org/files --as x

say "tokens go to the Hub alone; refusals say what to do"
quiet
refused 128 "is gated: accept its conditions at $HF_ENDPOINT/org/gated" -C r import hf:org/gated --as g
HF_TOKEN=poor refused 128 "has no access yet: ask for it" -C r import hf:org/gated --as g
HF_TOKEN=wrong refused 128 "does not know this token" -C r import hf:org/gated --as g
HF_TOKEN=good want 0 -C r import hf:org/gated --as g --no-gate
mkdir -p "$HF_HOME"
printf 'good\n' >"$HF_HOME/token"
want 0 -C r import hf:org/gated --as g2 --no-gate
printf 'good' >token
rm "$HF_HOME/token"
HF_TOKEN_PATH=$tmp/token want 0 -C r import hf:org/gated --as g3 --no-gate
want 0 init r2
HF_TOKEN=good want 0 -C r2 import hf:org/gated --as g --no-gate
[ "$(asked '^cdn .*token$')" = 0 ] && [ "$(asked '^cdn')" -gt 0 ] || die "the token went to the CDN: $(cat root/log)"
refused 128 "no such model" -C r import hf:org/none --as x
refused 128 "has no such revision" -C r import hf:org/atlas@nope --as x
refused 128 "has no file 'nope.gguf'" -C r import hf:org/atlas/nope.gguf --as x
refused 128 "no path inside a model" -C r import hf:org/atlas/../../x --as x
refused 128 "no model's name" -C r import hf:../x --as x
refused 128 "no revision" -C r import hf:org/atlas@../x --as x

say "other bytes, other lengths and other places are refused by name, and nothing is imported"
want 0 init l
before=$(state_of l)
lie() {
    quiet
    echo "$1" >root/fault
    rm -rf l/.fmstore/incoming-hub
    refused "$2" "$3" -C l import hf:org/atlas --as x
    [ "$(state_of l)" = "$before" ] || die "the repository changed: $1"
}
lie 'bytes model.safetensors' 128 'model.safetensors: these are other bytes than the Hub announces'
lie 'bytes config.json' 128 'config.json: these are other bytes than the Hub announces: their git blob id'
lie 'redirect model.safetensors file:///etc/passwd' 128 'redirects to a file: URL'
lie 'redirect config.json /nowhere' 128 'config.json'
lie 'cut model.safetensors 100' 128 'model.safetensors'
lie 'api {"sha":"0123456789012345678901234567890123456789","siblings":[{"rfilename":"../x","size":1}]}' 128 \
    'is no path inside a folder'
lie 'api {"sha":"x","siblings":[]}' 128 'is no commit'
lie 'api [' 128 'hf:org/atlas@main: line 1'
lie down 128 'HTTP 503'

say "a kill at any byte loses nothing, and the rest alone is asked for again"
RANDOM=7
for i in $(seq 20); do
    at=$((RANDOM * 32768 + RANDOM))
    at=$((at % size))
    rm -rf k
    want 0 init k
    quiet
    echo "pause model.safetensors $at" >root/fault
    "$fm" -C k import hf:org/atlas --as a --no-gate >/dev/null 2>&1 &
    pid=$!
    until_there $pid root/log "^paused"
    kill -9 $pid
    wait $pid 2>/dev/null || true
    part=$(find k/.fmstore/incoming-hub -path '*/parts/*' -size +0 -name "$(sha256sum $main/model.safetensors | cut -c1-64)")
    had=0
    if [ -n "$part" ]; then # the kill may also fall into a write
        had=$(stat -c %s "$part")
        [ "$had" -le "$at" ] || die "more than was sent: $had of $at"
        had=$((had * (i % 4 + 1) / 4))
        truncate -s $had "$part"
    fi
    quiet
    want 0 -C k import hf:org/atlas --as a --no-gate
    range=-
    [ $had = 0 ] || range="bytes=$had-$((size - 1))"
    grep -q "^cdn GET .* $range -$" root/log || die "kill at $at, $had here: $(cat root/log)"
    [ "$(leftovers k)" = 0 ] || die "downloads were left"
    rm -rf xkout
    want 0 -C k export a "$tmp/xkout" --format source
    cmp xkout/model.safetensors $main/model.safetensors
done

# The client has written a part of what the server sent before it waits.
until_part() { # until_part PID REPO
    until_there "$1" root/log "^paused"
    until [ -n "$(find "$2/.fmstore/incoming-hub" -path '*/parts/*' -size +600k)" ]; do
        kill -0 "$1" 2>/dev/null || die "the import ended"
        sleep 0.02
    done
}
say "a beginning that is not the file's is fetched anew; so is all where no part is given"
spoil() { # a part of another content
    rm -rf k
    want 0 init k
    quiet
    echo 'pause model.safetensors 1000000' >root/fault
    "$fm" -C k import hf:org/atlas --as a --no-gate >/dev/null 2>&1 &
    pid=$!
    until_part $pid k
    kill -9 $pid
    wait $pid 2>/dev/null || true
    quiet
}
spoil
find k/.fmstore/incoming-hub -path '*/parts/*' -size +100k -exec sh -c 'head -c 700000 /dev/zero >"$1"' _ {} \;
want 0 -C k import hf:org/atlas --as a --no-gate
[ "$(asked '^cdn')" = 2 ] || die "$(cat root/log)"
spoil
echo 'norange model.safetensors' >root/fault
want 0 -C k import hf:org/atlas --as a --no-gate
want 0 -C k export a "$tmp/xkout2" --format source
cmp xkout2/model.safetensors $main/model.safetensors

say "a connection that ends again and again is taken up again and again"
rm -rf k xkout
want 0 init k
quiet
echo 'cut model.safetensors 700000' >root/fault
want 0 -C k import hf:org/atlas --as a --no-gate
[ "$(asked '^cdn')" = 4 ] || die "$(cat root/log)"
[ "$(asked '^cdn.*bytes=2100000-')" = 1 ] || die "$(cat root/log)"
want 0 -C k export a "$tmp/xkout" --format source
cmp xkout/model.safetensors $main/model.safetensors

say "a URL's download goes on while the file is the same, and begins anew where it is another"
cut_url() {
    rm -rf k xkout
    want 0 init k
    quiet
    echo 'pause x.safetensors 1000000' >root/fault
    "$fm" -C k import "$cdn/plain/x.safetensors" --as a --no-gate >/dev/null 2>&1 &
    pid=$!
    until_part $pid k
    kill -9 $pid
    wait $pid 2>/dev/null || true
    quiet
}
cut_url
want 0 -C k import "$cdn/plain/x.safetensors" --as a --no-gate
[ "$(asked '^cdn.*bytes=[1-9][0-9]*- -$')" = 1 ] && [ "$(asked '^cdn')" = 1 ] || die "$(cat root/log)"
want 0 -C k export a "$tmp/xkout" --format source
cmp xkout root/plain/x.safetensors
cut_url
cp root/org/shards/main/model-00001-of-00002.safetensors root/plain/x.safetensors
want 0 -C k import "$cdn/plain/x.safetensors" --as a --no-gate
[ "$(asked '^cdn')" = 2 ] || die "$(cat root/log)"
want 0 -C k export a "$tmp/xkout" --format source
cmp xkout root/plain/x.safetensors
[ "$(leftovers k)" = 0 ] || die "downloads were left"

say "Ctrl-C ends it at once; gc removes what nobody comes back for"
rm -rf k
want 0 init k
quiet
echo 'pause model.safetensors 1000000' >root/fault
"$fm" -C k import hf:org/atlas --as a --no-gate >/dev/null 2>&1 &
pid=$!
until_part $pid k
kill -INT $pid
got=0
wait $pid || got=$?
[ $got != 0 ] || die "it went on"
[ "$(leftovers k)" -gt 0 ] || die "what was there is gone"
want 0 -C k gc
[ "$(leftovers k)" -gt 0 ] || die "gc took what is young"
want 0 -C k gc --prune=now
[ "$(leftovers k)" = 0 ] || die "gc left $(find k/.fmstore/incoming-hub)"

say "the cache is read in place, and its blobs by digest"
cache=$HF_HOME/hub/models--org--atlas
quiet
main_commit=$commit
mkdir -p "$cache/blobs" "$cache/refs" "$cache/snapshots/$main_commit/1_Pooling"
for f in config.json tokenizer.json tokenizer_config.json chat_template.jinja README.md model.safetensors 1_Pooling/config.json; do
    if [ $f = model.safetensors ]; then
        blob=$(sha256sum $main/$f | cut -c1-64)
    else
        blob=$( (printf 'blob %d\0' "$(stat -c %s $main/$f)"; cat $main/$f) | sha1sum | cut -c1-40)
    fi
    cp $main/$f "$cache/blobs/$blob"
    ln -s "$(realpath "$cache/blobs/$blob")" "$cache/snapshots/$main_commit/$f"
done
printf '%s' "$main_commit" >"$cache/refs/main"
rm -rf k
want 0 init k
want 0 -C k import hf:org/atlas --as a --no-gate
grep -q 'read in place' "$tmp/err" || die "$(cat "$tmp/err")"
[ "$(asked resolve)" = 0 ] || die "downloaded what the cache has: $(cat root/log)"
rm -rf k
want 0 init k
want 0 -C k import hf:org/atlas@v2 --as a --no-gate # another revision: all but one file are the same
[ "$(asked 'resolve.*README.md')" = 1 ] && [ "$(asked resolve)" = 1 ] || die "$(cat root/log)"
grep -q ' 6 files from the cache' "$tmp/err" || die "$(cat "$tmp/err")"
[ "$(leftovers k)" = 0 ] || die "links were left"
[ -s "$cache/blobs/$(sha256sum $main/model.safetensors | cut -c1-64)" ] || die "the cache lost a file"

say "a damaged small file of the cache is not taken"
blob=$( (printf 'blob %d\0' "$(stat -c %s $main/config.json)"; cat $main/config.json) | sha1sum | cut -c1-40)
cp "$cache/blobs/$blob" kept.json
tr a b <kept.json >"$cache/blobs/$blob"
rm -rf k
want 0 init k
quiet
want 0 -C k import hf:org/atlas --as a --no-gate
[ "$(asked 'resolve.*/config.json')" = 1 ] || die "$(cat root/log)"
cp kept.json "$cache/blobs/$blob"

say "without a network the cache serves, and says so"
kill $hub
wait $hub 2>/dev/null || true
rm -rf k
want 0 init k
want 0 -C k import hf:org/atlas --as a --no-gate
grep -q "hf:org/atlas@main: $HF_ENDPOINT.*: taken from the cache as it was, $(echo $main_commit | cut -c1-12)" "$tmp/err" || die "$(cat "$tmp/err")"
HF_HUB_OFFLINE=1 want 0 -C k import "hf:org/atlas@$main_commit" --as b --no-gate
[ "$(cd k && ids a)" = "$(cd r && ids local)" ] || die "other tensors"
HF_HUB_OFFLINE=1 refused 128 "the cache does not have it" -C k import hf:org/atlas@v2 --as x
refused 128 "hf:org/none@main: $HF_ENDPOINT" -C k import hf:org/none --as x
say "a damaged file of the cache is refused by name where the Hub says its digest"
python3 "$src/tests/cli/hub_server.py" root >urls 2>hub.err &
hub=$!
until_there $hub urls http
read -r HF_ENDPOINT cdn <urls
blob=$cache/blobs/$(sha256sum $main/model.safetensors | cut -c1-64)
python3 -c 'import sys; f = open(sys.argv[1], "r+b"); f.seek(-9, 2); f.write(b"damage")' "$blob"
refused 128 "model.safetensors has the SHA-256" -C k import hf:org/atlas --as c
echo "all well"
