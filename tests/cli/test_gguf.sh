#!/bin/bash
# Any valid GGUF is stored and comes back byte for byte; what cannot run says so in one line.
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
    got = subprocess.run([sys.argv[1], "score", "g/" + want["name"], "--mode", "exact"], capture_output=True, text=True, check=True,
                         input=json.dumps({"ids": want["ids"]}) + "\n")
    got = json.loads(got.stdout)["logprobs"][1:]
    assert len(got) == len(want["logprobs"])
    error = max(abs(a - b) for a, b in zip(got, want["logprobs"]))
    assert error < 1e-5, (want["name"], error)
assert len(names) >= 13, names
EOF
