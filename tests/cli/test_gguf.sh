#!/bin/bash
# Any valid GGUF is stored and comes back byte for byte; what cannot run says so in one line.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"

# gguf.py OUT DIR: files of all kinds, by the format's specification.
cat >make.py <<'EOF'
import os, random, struct, sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
CODE = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
# ggml's number of a type: elements of a block, bytes of a block
TYPES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
         11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
         17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136),
         24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
         35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18)}


def text(e, s):
    s = s.encode()
    return struct.pack(e + "Q", len(s)) + s


def value(e, kind, v):
    if kind == STR:
        return text(e, v)
    if kind == ARR:
        inner, items = v
        return struct.pack(e + "IQ", inner, len(items)) + b"".join(value(e, inner, i) for i in items)
    return struct.pack(e + CODE[kind], v)


def write(path, kv, tensors, big=False, version=3, align=32):
    """tensors: (name, shape as GGUF writes it, ggml type, bytes)"""
    e = ">" if big else "<"
    out = b"GGUF" + struct.pack(e + "IQQ", version, len(tensors), len(kv))
    for key, kind, v in kv:
        out += text(e, key) + struct.pack(e + "I", kind) + value(e, kind, v)
    at = 0
    for name, shape, kind, data in tensors:
        out += text(e, name) + struct.pack(e + "I", len(shape))
        out += b"".join(struct.pack(e + "Q", d) for d in shape) + struct.pack(e + "IQ", kind, at)
        at += (len(data) + align - 1) // align * align
    out += bytes(-len(out) % align)
    for _, _, _, data in tensors:
        out += data + bytes(-len(data) % align)
    open(path, "wb").write(out)


def noise(n, seed):
    return random.Random(seed).randbytes(n)


os.chdir(sys.argv[1])
arch = [("general.architecture", STR, "outlandish"), ("outlandish.wings", ARR, (ARR, [(I16, [1, -2]), (I16, [])])),
        ("outlandish.odd", BOOL, 1), ("general.alignment", U32, 64)]
every = [("t%d.weight" % t, (512, 3), t, noise(512 // n * b * 3, t)) for t, (n, b) in TYPES.items()]
write("every.gguf", arch, every, align=64)
write("every2.gguf", arch + [("general.name", STR, "a copy")], every, align=64)
write("v2.gguf", arch[:1], every[:3], version=2)
write("future.gguf", arch[:1], every[:2] + [("new.weight", (512, 3), 77, noise(1000, 9)),
                                             ("last", (4,), 200, noise(33, 10))])
write("big.gguf", arch[:3], every, big=True)
write("big2.gguf", arch[:1] + [("general.alignment", U32, 64)], every[:4], big=True, version=2, align=64)
write("bare.gguf", [], [])
write("anonymous.gguf", [("general.type", STR, "imatrix")], [("sums", (8, 2), 0, noise(64, 1))])
tokens = ["<s>", "</s>", "a", "b", "ab"]
words = [("tokenizer.ggml.model", STR, "gpt2"), ("tokenizer.ggml.pre", STR, "smollm"),
         ("tokenizer.ggml.tokens", ARR, (STR, tokens)), ("tokenizer.ggml.merges", ARR, (STR, ["a b"])),
         ("tokenizer.ggml.token_type", ARR, (I32, [3, 3, 1, 1, 1])),
         ("tokenizer.ggml.bos_token_id", U32, 0), ("tokenizer.ggml.eos_token_id", U32, 1)]
write("vocab.gguf", [("general.architecture", STR, "llama")] + words, [])

# A Llama of one layer, whole and in three parts of which the first has no tensors.
llama = [("general.architecture", STR, "llama"), ("llama.block_count", U32, 1), ("llama.context_length", U32, 64),
         ("llama.embedding_length", U32, 256), ("llama.feed_forward_length", U32, 256),
         ("llama.attention.head_count", U32, 4), ("llama.rope.freq_base", F32, 1e4),
         ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5)] + words


def small(shape, seed):
    r = random.Random(seed)
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    return b"".join(struct.pack("<f", r.gauss(0, 0.05)) for _ in range(n))


def half(v):
    return struct.pack("<e", v)


def blocks(kind, rows, seed):
    """rows of 256 elements whose scales are small numbers"""
    n, b = TYPES[kind]
    r, out = random.Random(seed), b""
    for _ in range(rows * 256 // n):
        block = bytearray(r.randbytes(b))
        for at in {10: (80, 82), 11: (108,), 23: (0,), 16: (0,), 21: (0,), 19: (0,), 34: (52,), 35: (64,),
                   41: (0,), 2: (0,)}.get(kind, ()):
            block[at:at + 2] = half(0.003)
        if kind == 39:
            block[0] = 120
        if kind == 40:
            block[0:4] = bytes(r.randrange(1, 40) for _ in range(4))
        out += bytes(block)
    return out


def model(kind):
    def w(name, rows, seed):
        return (name, (256, rows), kind, blocks(kind, rows, seed) if kind else small((256, rows), seed))
    one = struct.pack("<f", 1.0) * 256
    return [("token_embd.weight", (256, 5), 0, small((256, 5), 1)), ("output_norm.weight", (256,), 0, one),
            ("blk.0.attn_norm.weight", (256,), 0, one), ("blk.0.ffn_norm.weight", (256,), 0, one)] + [
        w("blk.0.%s.weight" % n, 256, i) for i, n in
        enumerate("attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down".split())]


for kind, name in ((0, "F32"), (10, "Q2_K"), (11, "Q3_K"), (16, "IQ2_XXS"), (19, "IQ1_S"), (21, "IQ3_S"),
                   (23, "IQ4_XS"), (34, "TQ1_0"), (35, "TQ2_0"), (39, "MXFP4"), (40, "NVFP4"), (41, "Q1_0")):
    write("llama-%s.gguf" % name, llama, model(kind))
parts = [[], model(0)[:4], model(0)[4:]]
for i, t in enumerate(parts):
    split = [("split.no", U16, i), ("split.count", U16, 3), ("split.tensors.count", I32, 11)]
    write("s-%05d-of-00003.gguf" % (i + 1), (llama if i == 0 else []) + split, t)
EOF
mkdir files && python3 make.py files
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
