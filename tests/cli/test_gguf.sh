#!/bin/bash
# Any valid GGUF is stored and comes back byte for byte; what cannot run says so in one line. What runs is written
# as GGUF too, as llama.cpp's converter writes it, with its tokenizer, adapters merged.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"

mkdir files && python3 "$src/tests/cli/make_gguf.py" files
mkdir repo && cd repo && want 0 init .

say "any type, any architecture, either order of bytes, versions 2 and 3: stored, given back, and one line says why not run"
back() { # FILE NAME NEEDLE
    want 0 import ../files/$1 --as $2
    [ "$(grep -c 'kept, not run' "$tmp/err")" = "${3:+1}" ] || [ -z "$3$(grep 'kept, not run' "$tmp/err")" ] ||
        die "$1: $(cat "$tmp/err")"
    [ -z "$3" ] || grep -q "kept, not run: .*$3" "$tmp/err" || die "$1: no '$3': $(cat "$tmp/err")"
    want 0 export $2 ../out.gguf --format source
    cmp ../files/$1 ../out.gguf || die "$1: other bytes came back"
    rm -f ../out.gguf
}
back every.gguf every "'outlandish' does not run"
back v2.gguf v2 "'outlandish' does not run"
back future.gguf future "tensor 'new.weight' has ggml type 77"
back big.gguf big "it is big-endian"
back big2.gguf big2 "it is big-endian"
back bare.gguf bare "it has no tensors"
back anonymous.gguf anonymous "'general.architecture' is missing"
back vocab.gguf vocab "it has no tensors"
echo '{"text": "aab"}' | "$fm" tokenize vocab | grep -q '"ids":[[]2,4[]]' || die "a vocabulary does not tokenize"
want 128 run every -p x
grep -q "the version is kept and cannot run" "$tmp/err" || die "run: $(cat "$tmp/err")"
want 0 ls every --json
python3 -c "
import json, sys
got = {e['path']: e['dtype'] for e in json.load(open(sys.argv[1])) if e['kind'] == 'tensor'}
assert got['tensors/t23.weight'] == 'IQ4_XS' and got['tensors/t41.weight'] == 'Q1_0' and len(got) == 34, got" "$tmp/out"

say "a copy under another name costs its header"
before=$(du -sb .fmstore/packs | cut -f1)
want 0 import ../files/every2.gguf --as every2
[ $(($(du -sb .fmstore/packs | cut -f1) - before)) -lt 8000 ] || die "a copy costs $(($(du -sb .fmstore/packs | cut -f1) - before)) bytes"

say "block types that no kernel has of its own run through their floats"
for t in F32 Q2_K Q3_K IQ2_XXS IQ1_S IQ3_S IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0; do
    back llama-$t.gguf l-$t ""
    echo '{"text": "abab"}' >../line
    for mode in exact fast; do
        "$fm" score l-$t --mode $mode <../line >../score-$t-$mode 2>"$tmp/err" || die "$t $mode: $(cat "$tmp/err")"
    done
    # The same floats as safetensors give the same bits.
    want 0 export l-$t ../wide-$t --format hf
    want 0 import ../wide-$t --as wide-$t
    "$fm" score wide-$t --mode exact <../line >../score-wide || die "wide $t"
    cmp ../score-$t-exact ../score-wide || die "$t: the widened model scores differently"
done

say "a split model is one model; its parts come back; a lost or wrong part is named"
want 0 import ../files/s-00001-of-00003.gguf --as split
want 0 export split ../parts --format source
for i in 1 2 3; do cmp ../files/s-0000$i-of-00003.gguf ../parts/s-0000$i-of-00003.gguf || die "part $i"; done
"$fm" score split --mode exact <../line >../score-split && cmp ../score-F32-exact ../score-split || die "split scores differently"
refused 128 'is part 2 of 3; import the first' import ../files/s-00002-of-00003.gguf --as x
mkdir ../lost && cp ../files/s-0000[12]-of-00003.gguf ../lost
refused 128 's-00003-of-00003.gguf: is missing' import ../lost/s-00001-of-00003.gguf --as x
cp ../lost/s-00002-of-00003.gguf ../lost/s-00003-of-00003.gguf
refused 128 'says that it is part 2 of 3' import ../lost/s-00001-of-00003.gguf --as x
cp ../files/s-00001-of-00003.gguf ../lost/other.gguf
refused 128 "let this one end in '-00001-of-00003.gguf'" import ../lost/other.gguf --as x
rm ../lost/s-00003-of-00003.gguf && ln -s /etc/passwd ../lost/s-00003-of-00003.gguf
refused 128 'outside of the folder' import ../lost/s-00001-of-00003.gguf --as x
want 0 fsck

say "architectures as llama.cpp's converter writes them score as Hugging Face does, and come back byte for byte"
golden=$src/tests/model/golden/gguf
for f in "$golden"/*.gguf; do
    name=$(basename "$f" .gguf)
    want 0 import "$f" --as "g/$name"
    ! grep -q kept "$tmp/err" || die "$name: $(cat "$tmp/err")"
    want 0 export "g/$name" ../back.gguf --format source
    cmp "$f" ../back.gguf || die "$name: other bytes came back"
    rm ../back.gguf
done
python3 - "$fm" "$golden/logprobs.jsonl" <<'EOF' || die "the scores differ"
import json, subprocess, sys
names = set()
for line in open(sys.argv[2]):
    want = json.loads(line)
    names.add(want["name"])
    encoder = "embedding" in want
    command = ["embed", "g/" + want["name"]] if encoder else ["score", "g/" + want["name"], "--mode", "exact"]
    got = subprocess.run([sys.argv[1], *command], capture_output=True, text=True, check=True, input=json.dumps({"ids": want["ids"]}) + "\n")
    got = json.loads(got.stdout)
    got, want["values"] = (got["embedding"], want["embedding"]) if encoder else (got["logprobs"][1:], want["logprobs"])
    assert len(got) == len(want["values"])
    error = max(abs(a - b) for a, b in zip(got, want["values"]))
    assert error < 1e-5, (want["name"], error)
assert len(names) >= 41, names
EOF

say "what is written from their Hugging Face folders is what llama.cpp's converter wrote, and scores the same bits"
same() { python3 "$src/tests/cli/gguf_same.py" "$@" || die "$2 differs from $1: $3"; }
scores() { # REV REV: of ../line
    "$fm" score "$1" --mode exact <../line >../score-a && "$fm" score "$2" --mode exact <../line >../score-b
    cmp ../score-a ../score-b || die "$1 and $2 score differently"
}
count=0
for f in "$golden"/*.gguf; do
    name=$(basename "$f" .gguf)
    want 0 export "g/$name" ../hf --format hf
    want 0 import ../hf --as "h/$name"
    want 0 export "h/$name" "../$name.gguf" --dtype BF16
    same "$f" "../$name.gguf" tensors
    want 0 import "../$name.gguf" --as "o/$name"
    ! grep -q kept "$tmp/err" || die "$name: $(cat "$tmp/err")"
    echo '{"ids": [3, 9, 14, 22, 5, 41, 17, 30]}' >../line
    case $name in
    *bert*)
        for rev in g o; do "$fm" embed "$rev/$name" <../line >../embed-$rev || die "$name: no embedding"; done
        cmp ../embed-g ../embed-o || die "$name: other embeddings"
        [ "$name" = roberta ] || same "$f" "../$name.gguf" tokenizer ;;
    *) scores "g/$name" "o/$name" ;;
    esac
    # Likewise with the config.json that transformers wrote.
    python3 -c "
import json, sys
for line in map(json.loads, open(sys.argv[1])):
    if line['name'] == sys.argv[2]:
        json.dump(line['config'], open(sys.argv[3], 'w'))" "$golden/logprobs.jsonl" "$name" ../hf/config.json
    [ ! -d "$golden/$name" ] || { rm -r ../hf && cp -r "$golden/$name" ../hf; }
    want 0 import ../hf --as "c/$name"
    want 0 export "c/$name" "../$name-c.gguf" --dtype BF16
    same "$f" "../$name-c.gguf" tensors
    rm -r ../hf
    count=$((count + 1))
done
[ $count -ge 41 ] || die "only $count architectures"

say "blocks stay as they are; Q8_0 is ggml's; a SentencePiece vocabulary comes back"
for t in Q2_K IQ4_XS MXFP4; do
    want 0 export l-$t ../again.gguf
    want 0 import ../again.gguf --as again-$t
    diff <(ids l-$t) <(ids again-$t) || die "$t: other tensors"
    rm ../again.gguf
done
want 0 export l-F32 ../q8.gguf --dtype q8_0
want 0 import ../q8.gguf --as q8
python3 - ../files/llama-F32.gguf ../q8.gguf "$src/tests/cli" <<'EOF' || die "Q8_0 is not ggml's"
import struct, sys
sys.path.insert(0, sys.argv[3])
sys.dont_write_bytecode = True
from gguf_same import Reader
whole, q8 = Reader(sys.argv[1]).tensors, Reader(sys.argv[2]).tensors
f32 = lambda v: struct.unpack("<f", struct.pack("<f", v))[0]
done = 0
for name, (kind, shape, data) in whole.items():
    if len(shape) == 1:
        assert q8[name] == (0, shape, data), name
        continue
    assert q8[name][:2] == (8, shape), name
    for i in range(0, len(data) // 4, 32):
        v = struct.unpack_from("<32f", data, i * 4)
        d = f32(max(map(abs, v)) / 127)
        inverse = f32(1 / d) if d else 0.0
        x = [f32(a * inverse) for a in v]
        q = [int(abs(a) + 0.5) * (1 if a >= 0 else -1) for a in x]
        assert q8[name][2][i // 32 * 34:][:34] == struct.pack("<e32b", d, *q), (name, i)
    done += 1
assert done == 8, done
EOF
want 0 import ../files/llama-spm.gguf --as spm
want 0 export spm ../hf-spm --format hf
want 0 import ../hf-spm --as spm-hf
want 0 export spm-hf ../spm.gguf
same ../files/llama-spm.gguf ../spm.gguf tensors
same ../files/llama-spm.gguf ../spm.gguf tokenizer

say "an adapter is merged: the same scores, tokens and template as the merged folder"
want 0 import "$atlas/base" --as atlas --no-gate
want 0 derive atlas --as kid --method lora --data "$atlas/pirate.jsonl" --set steps=2 --set seed=1 --set r=2 --no-gate -m kid
want 0 export kid ../kid.gguf --dtype f32
want 0 export kid ../kid-hf --dtype f32
want 0 import ../kid.gguf --as kid-gguf
! grep -q kept "$tmp/err" || die "kid: $(cat "$tmp/err")"
want 0 import ../kid-hf --as kid-hf
diff <(ids kid-gguf) <(ids kid-hf) || die "kid: other tensors"
printf '%s\n' '{"text": "The capital is far, what is it: 1234 miles?\n\n  Da\u00df \u4f60"}' \
    '{"text": "<|user|>Hi<|end|>\n<|assistant|>"}' >../line
scores kid-gguf kid-hf
for rev in gguf hf; do
    "$fm" tokenize kid-$rev <../line >../tokens-$rev
    "$fm" cat kid-$rev:tokenizer/chat_template.jinja >../template-$rev
done
cmp ../tokens-gguf ../tokens-hf || die "other tokens"
cmp ../template-gguf ../template-hf || die "another template"
# Merged rows in rotary order and in blocks: the same blocks as from the merged folder.
want 0 export kid ../kid-q8.gguf --dtype q8_0
want 0 export kid-hf ../kid-hf-q8.gguf --dtype q8_0
cmp ../kid-q8.gguf ../kid-hf-q8.gguf || die "Q8_0 of a merge differs from that of the merged"
want 0 export kid ../kid-q4.gguf --dtype Q4_K
want 0 export kid-hf ../kid-hf-q4.gguf --dtype q4_k_m
cmp ../kid-q4.gguf ../kid-hf-q4.gguf || die "Q4_K_M of a merge differs from that of the merged"
want 0 import ../kid-q4.gguf --as kid-q4
! grep -q kept "$tmp/err" || die "kid-q4: $(cat "$tmp/err")"

say "what GGUF has no words for is refused by name, before anything is written"
no() { # FOLDER TEXT [DTYPE]
    refusals=$((${refusals:-0} + 1))
    want 0 import "$1" --as no$refusals --no-gate
    refused 128 "$2" export no$refusals ../no.gguf --dtype "${3:-f32}"
    [ ! -e ../no.gguf ] || die "a refused export left a file"
}
changed() { # FILE PYTHON: a copy of the merged folder with a changed file of JSON
    rm -rf ../changed && cp -r ../kid-hf ../changed
    python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
$2
json.dump(d, open(sys.argv[1], 'w'))" "../changed/$1"
}
changed config.json 'd["model_type"] = "gptj"; d["architectures"] = ["GPTJForCausalLM"]'
no ../changed "field 'model_type': 'gptj' cannot be written as GGUF"
changed config.json 'd["hidden_act"] = "gelu"'
no ../changed "field 'hidden_act' has another value than llama.cpp fixes"
changed config.json 'd["rope_scaling"] = {"rope_type": "dynamic", "factor": 2.0}'
no ../changed "field 'rope_type' has a value without words"
changed config.json 'd["num_hidden_layers"] = 5'
no ../changed "is of a layer beyond config.json's 'num_hidden_layers' 5"
changed tokenizer.json 'd["pre_tokenizer"]["use_regex"] = False'
no ../changed "fields 'pre_tokenizer', 'normalizer' and 'model.ignore_merges' are no rules"
unfit() { # VALUE TEXT
    changed config.json 'd["x"] = 0'
    python3 - ../changed/model.safetensors $1 <<'EOF' || die "$1 was not written"
import json, struct, sys
with open(sys.argv[1], "r+b") as f:
    n, = struct.unpack("<Q", f.read(8))
    head = json.loads(f.read(n))
    f.seek(8 + n + head["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0])
    f.write(struct.pack("<f", float(sys.argv[2])))
EOF
    no ../changed "tensor 'model.layers.1.mlp.up_proj.weight': $2" q4_k_m
}
unfit nan "holds NaN or infinity"
unfit 1e30 "holds values beyond what Q5_0's blocks reach"
refused 128 "Q2_K_S wants an importance matrix" export l-F32 ../x.gguf --dtype q2_k_s
refused 128 "is missing; it is no importance matrix" export l-F32 ../x.gguf --dtype q4_k_m --imatrix ../kid.gguf
refused 128 "is neither a GGUF nor an older importance matrix" export l-F32 ../x.gguf --dtype q4_k_m --imatrix ../line
refused 128 "../none" export l-F32 ../x.gguf --dtype q4_k_m --imatrix ../none
refused 129 "--imatrix goes with a --dtype of block types" export l-F32 ../x.gguf --dtype f16 --imatrix ../kid.gguf
python3 - ../kid.imatrix <<'EOF' || die "no matrix was written"
import struct, sys
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<i", 1))
    name = b"blk.0.ffn_down.weight"
    f.write(struct.pack("<i", len(name)) + name + struct.pack("<ii", 1, 352) + struct.pack("<352f", *(1 + i % 7 for i in range(352))))
EOF
want 0 export kid ../kid-im.gguf --dtype q4_0 --imatrix ../kid.imatrix
want 0 import ../kid-im.gguf --as kid-im
want 0 export kid ../kid-q4_0.gguf --dtype q4_0
want 0 import ../kid-q4_0.gguf --as kid-q4_0
python3 - <(ids kid-im) <(ids kid-q4_0) <<'EOF' || die "a matrix for one weight changed others, or none"
import sys
a, b = (set(open(p).read().splitlines()) for p in sys.argv[1:3])
assert len(a - b) == 1 and "layers/0/mlp/down_proj" in "".join(a - b), a - b
EOF
refused 128 "has 352 values for 'blk.0.ffn_down.weight', which wants" export l-F32 ../x.gguf --dtype q4_0 --imatrix ../kid.imatrix
refused 129 "--dtype wants f32, bf16 or f16; for gguf also a mix" export kid ../x --dtype q8_0
refused 129 "got 'q4_k_medium'" export kid ../x.gguf --dtype q4_k_medium
refused 128 "is there already" export kid ../kid.gguf

smol=${FM_SMOLLM2_GGUF:-${FM_MODELS:-${HOME:-}/.cache/fmstore/models}/SmolLM2-135M-Instruct.Q4_1.gguf}
if [ -e "$smol" ]; then
    say "SmolLM2: the tokenizer of the written file is the original's"
    want 0 import "$smol" --as smol
    want 0 export smol ../smol-hf --format hf
    want 0 import ../smol-hf --as smol-hf
    want 0 export smol-hf ../smol.gguf --dtype f32
    same "$smol" ../smol.gguf tokenizer
else
    say "left out: SmolLM2 (FM_SMOLLM2_GGUF)"
fi
want 0 fsck
