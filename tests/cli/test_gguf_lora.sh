#!/bin/bash
# A version's LoRA adapters are written as llama.cpp's converter writes them, and such a file comes in as an adapter
# of its parent: the same factors, the same scores. What the form cannot say is refused by name.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo && want 0 init .
golden=$src/tests/model/golden

factors() { ids "$1" | grep '^adapters/0-lora/'; }
scores() { # REV REV
    echo '{"ids": [3, 9, 14, 22, 5, 41, 17, 30]}' >../line
    "$fm" score "$1" --mode exact <../line >../score-a && "$fm" score "$2" --mode exact <../line >../score-b
    cmp ../score-a ../score-b || die "$1 and $2 score differently"
}

say "adapters of PEFT become the tensors and fields that llama.cpp's converter made of them, and come back"
count=0
for f in "$golden"/gguf_lora/*.gguf; do
    name=$(basename "$f" .gguf)
    want 0 import "$golden/gguf/$name.gguf" --as "$name"
    want 0 import "$golden/gguf_lora/$name" --as "p/$name" --parent "$name"
    want 0 export "p/$name" ../lora.gguf --format gguf-lora
    python3 "$src/tests/cli/gguf_same.py" "$f" ../lora.gguf tensors || die "$name is not the converter's"
    for file in ../lora.gguf "$f"; do
        want 0 import "$file" --as "back/$name" --parent "$name"
        diff <(factors "p/$name") <(factors "back/$name") || die "$name: other factors came back"
        scores "p/$name" "back/$name"
        want 0 export "back/$name" ../again.gguf --format source
        cmp "$file" ../again.gguf || die "$name: other bytes came back"
        "$fm" show "back/$name" | grep -q 'Kind: *lora' || die "$name: another kind"
        want 0 branch -d "back/$name"
        rm ../again.gguf
    done
    rm ../lora.gguf
    count=$((count + 1))
done
[ $count -ge 4 ] || die "only $count architectures"

say "rsLoRA is an alpha of its own; several adapters are a file each; F16 is written where it is asked for"
want 0 import "$atlas/base" --as atlas --no-gate
derive() { want 0 derive "$1" --as "$2" --method lora --data "$atlas/pirate.jsonl" --set steps=2 --set seed=1 "${@:3}" --no-gate -m x; }
derive atlas root --set r=3 --set rslora=true
want 0 export root ../root.gguf --format gguf-lora
want 0 import ../root.gguf --as root-back --parent atlas
diff <(factors root) <(factors root-back) || die "rslora: other factors"
scores root root-back
want 0 export root ../root-f16.gguf --format gguf-lora --dtype f16
[ "$(stat -c %s ../root-f16.gguf)" -lt $(($(stat -c %s ../root.gguf) * 6 / 10)) ] || die "F16 is no smaller"
derive root two --set r=2
refused 128 "this version has 2 adapters, a GGUF for each; name a folder" export two ../two.gguf --format gguf-lora
want 0 export two ../two --format gguf-lora
[ "$(ls ../two | tr '\n' ' ')" = "0-lora.gguf 1-lora.gguf " ] || die "two adapters: $(ls ../two)"
cmp ../two/0-lora.gguf ../root.gguf || die "the first of two is another"
want 0 import ../two/1-lora.gguf --as two-back --parent root-back
scores two two-back

say "what a GGUF LoRA cannot say is refused by name, and nothing is written"
no() { # TEXT REV
    refused 128 "$1" export "$2" ../no.gguf --format gguf-lora
    [ ! -e ../no.gguf ] || die "a refused export left a file"
}
no "this version holds no adapter" atlas
derive atlas dora --set r=2 --set dora=true
no "cannot hold an adapter of kind 'dora'" dora
derive atlas alphas --set r=2 --set alpha_pattern=q_proj=4
no "a GGUF LoRA has one alpha" alphas
derive atlas ranks --set r=2 --set rslora=true --set rank_pattern=q_proj=4
no "a GGUF LoRA has one alpha" ranks
derive atlas saved --set r=2 --set modules_to_save=lm_head
no "is no factor of a LoRA" saved
refused 129 "gguf-lora" export root ../no.gguf --format lora

say "a file for another model, or of another kind of adapter, is refused; without a parent it is kept as it is"
refused 128 "is for a model of GGUF's architecture 'llama', and the parent is of model_type 'gemma2'" \
    import ../root.gguf --as x --parent gemma2
refused 128 "2 heads (1 of keys) of 8 need 8, by the parent's config.json" import ../root.gguf --as x --parent llama
derive atlas wide --set r=2 --set targets=q_proj
want 0 export wide ../wide.gguf --format gguf-lora
bent() { # PYTHON TEXT: the file with a change of equal length
    python3 -c "
import sys
b = open('../wide.gguf', 'rb').read()
$1
open('../bent.gguf', 'wb').write(b)"
    refused 128 "$2" import ../bent.gguf --as x --parent atlas
}
bent "b = b.replace(b'blk.3.attn_q.weight.lora_', b'blk.3.attn_q.weight.loro_')" "is no factor of a LoRA"
bent "b = b.replace(b'blk.3.attn_q.weight.lora_b', b'blk.3.attn_k.weight.lora_b')" "has no partner"
bent "b = b.replace(b'.attn_q.weight', b'.attn_z.weight')" "attn_z.weight' is not known in a llama model"
bent "b = b.replace(b'.attn_q.weight', b'.attn_v.weight')" "does not fit"
bent "b = b.replace(b'\x04\0\0\0\0\0\0\0lora', b'\x04\0\0\0\0\0\0\0vera')" "'adapter.type' is not 'lora'"
want 0 import ../wide.gguf --as kept
grep -q "note: kept, not run: it is an adapter; import it with --parent REV" "$tmp/err" || die "kept: $(cat "$tmp/err")"
want 0 export kept ../kept.gguf --format source
cmp ../wide.gguf ../kept.gguf || die "kept: other bytes"
