#!/bin/bash
# What came in comes out: byte for byte as it was, and in other formats with the same tensors.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
atlas_repo

say "an HF folder comes out again byte for byte"
want 0 export atlas ../source --format source
diff -r "$atlas/base" ../source

say "exported as HF and imported again: the same tensor ids"
want 0 export atlas ../hf
want 0 import ../hf --as again --no-gate
[ "$(ids atlas)" = "$(ids again)" ] || die "HF round trip changed a tensor"

say "importing twice writes no payload: no pack, not a byte of physical size"
packs=$(ls .fmstore/packs)
"$fm" stats --json >../stats1
want 0 import "$atlas/base" --as twice --no-gate
grep -q '0 B stored (0 objects new' "$tmp/out" || die "import says: $(cat "$tmp/out")"
"$fm" stats --json >../stats2
[ "$packs" = "$(ls .fmstore/packs)" ] || die "a pack was written"
[ "$(field ../stats1 physical_bytes)" = "$(field ../stats2 physical_bytes)" ] || die "physical bytes grew"
[ "$(tree_of atlas)" = "$(tree_of twice)" ] || die "equal imports have different trees"

say "one safetensors file: out and in, the same tensor ids"
want 0 export atlas ../one.safetensors --format safetensors
want 0 import ../one.safetensors --as one --no-gate
[ "$(ids atlas)" = "$(ids one)" ] || die "safetensors round trip changed a tensor"
want 0 export one ../two.safetensors --format source
cmp ../one.safetensors ../two.safetensors

say "our adapter, exported as PEFT and imported on its parent: the same tensor ids, byte for byte out"
want 0 derive atlas --as child --data "$atlas/pirate.jsonl" --set r=4 --set steps=3 --set batch=2 --no-gate
want 0 export child ../peft --format peft
[ -f ../peft/adapter_model.safetensors ] && [ -f ../peft/adapter_config.json ] || die "no PEFT folder"
want 0 import ../peft --as adopted --parent atlas --no-gate
[ "$(ids child)" = "$(ids adopted)" ] || die "PEFT round trip changed a tensor"
grep -q '0 B stored' "$tmp/out" || die "import of known tensors stored something"
want 0 export adopted ../peft2 --format source
diff -r ../peft ../peft2

say "an adapter of a kind that does not run is kept: it says so, comes out byte for byte, and is refused by name"
cp -r ../peft ../kept
sed -i 's/"LORA"/"POLY"/' ../kept/adapter_config.json
want 0 import ../kept --as kept --parent atlas --no-gate
grep -q 'kept, not run: .*adapter kind poly' "$tmp/err" || die "import says: $(cat "$tmp/err")"
want 0 export kept ../kept2 --format source
diff -r ../kept ../kept2
want 128 run kept -p "Hello" -n 4
grep -q 'adapter kind poly' "$tmp/err" || die "run says: $(cat "$tmp/err")"
want 128 export kept ../kept3 --format hf
grep -q "kind 'poly'" "$tmp/err" || die "export says: $(cat "$tmp/err")"

say "norms tuned here run, merge, and come back as PEFT's kind"
want 0 derive atlas --as norms --method ln_tuning --data "$atlas/pirate.jsonl" --set steps=3 --set batch=2 --no-gate
want 0 run norms -p "Hello" -n 4
want 0 export norms ../norms --format peft
grep -q '"LN_TUNING"' ../norms/adapter_config.json
want 0 import ../norms --as norms2 --parent atlas --no-gate
[ "$(ids norms)" = "$(ids norms2)" ] || die "PEFT round trip changed a tensor"
want 0 export norms ../norms-hf --dtype f32

say "what changes a whole weight runs, merges, comes back as PEFT's kind, and trains further"
for m in loha lokr oft boft hra "miss r=8" "shira r=2" fourierft randlora vera adalora; do
    more=()
    [ "$m" = "${m#* }" ] || more=(--set "${m#* }")
    m=${m%% *}
    want 0 derive atlas --as "of-$m" --method $m --data "$atlas/pirate.jsonl" --set steps=3 --set batch=2 "${more[@]}" --no-gate
    want 0 run "of-$m" -p "Hello" -n 4
    want 0 export "of-$m" "../of-$m" --format peft
    want 0 import "../of-$m" --as "back-$m" --parent atlas --no-gate
    [ "$(ids "of-$m")" = "$(ids "back-$m")" ] || die "$m: PEFT round trip changed a tensor"
    want 0 export "of-$m" "../hf-$m" --dtype f32
    want 0 derive "of-$m" --as "on-$m" --data "$atlas/pirate.jsonl" --set steps=2 --set batch=2 --no-gate
done

say "an imported adapter does not claim its parent's training data for its own"
want 0 import ../peft --as grandchild --parent child --no-gate
want 0 ls grandchild
! grep -Eq ' (data/|recipe.json|train_log.json)' "$tmp/out" || die "it carries its parent's recipe or data"

say "an adapter merged on export gives an HF folder that imports and answers"
want 0 export child ../merged --dtype f32
want 0 import ../merged --as merged --parent atlas --no-gate
want 0 run merged -p "Hello" -n 4
want 0 run child -p "Hello" -n 4

say "cast to f32 and back to bf16: the same tensor ids"
want 0 export atlas ../wide --dtype f32
want 0 import ../wide --as wide --no-gate
want 0 export wide ../narrow --dtype bf16
want 0 import ../narrow --as narrow --no-gate
[ "$(ids atlas)" = "$(ids narrow)" ] || die "widening and narrowing changed a tensor"
want 1 diff atlas wide

say "raw tensor bytes are the file's bytes"
path=$("$fm" ls atlas --json | python3 -c '
import json, sys
print(next(e["path"] for e in json.load(sys.stdin) if e.get("name") == "model.norm.weight"))')
"$fm" cat "atlas:$path" --raw >../norm
python3 - "$atlas/base/model.safetensors" ../norm <<'PY'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
a, b = json.loads(raw[8:8 + n])["model.norm.weight"]["data_offsets"]
assert raw[8 + n + a:8 + n + b] == open(sys.argv[2], "rb").read()
PY

say "plain git reads the lineage"
if command -v git >/dev/null; then
    git -C .fmstore/lineage.git log --graph --oneline --branches >../graph
    grep -q 'import base' ../graph || die "git log shows nothing of it"
    git -C .fmstore/lineage.git fsck --strict >../fsck 2>&1 || die "git fsck: $(cat ../fsck)"
fi
want 0 fsck
echo "all hold"

say "files whose names are no UTF-8, or hold control bytes, come out under their very names"
cp -r "$atlas/base" ../names
python3 - <<'PY'
import os
for name in (b"\xff\xfe.txt", b"caf\xe9", b"%FF%FE.txt", b"a\x1b[31mb\n.txt", "\ufffd\ufffd.txt".encode()):
    with open(b"../names/" + name, "wb") as f:
        f.write(name)
os.symlink("caf\u00e9".encode("latin-1"), b"../names/link")
PY
want 0 import ../names --as names --no-gate
want 0 fsck
want 0 export names ../names.out --format source
diff -r ../names ../names.out
cp "$atlas/base/model.safetensors" $'../\xe9.safetensors'
want 0 import $'../\xe9.safetensors' --as single --no-gate
want 0 export single ../single.out --format source
cmp ../single.out "$atlas/base/model.safetensors"
