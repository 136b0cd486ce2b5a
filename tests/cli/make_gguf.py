#!/usr/bin/env python3
"""make_gguf.py OUT_DIR - GGUF files of all kinds, by the format's specification."""
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

# The same with a SentencePiece vocabulary and a template.
pieces = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581ab", "<user>"]
spm = [("tokenizer.ggml.model", STR, "llama"), ("tokenizer.ggml.pre", STR, "default"),
       ("tokenizer.ggml.tokens", ARR, (STR, pieces)),
       ("tokenizer.ggml.scores", ARR, (F32, [0.0, -1000.0, -1000.0, -1.0, -2.0, -3.0, -0.5, -0.25, -1000.0])),
       ("tokenizer.ggml.token_type", ARR, (I32, [2, 3, 3, 1, 1, 1, 1, 1, 4])),
       ("tokenizer.ggml.bos_token_id", U32, 1), ("tokenizer.ggml.eos_token_id", U32, 2),
       ("tokenizer.ggml.unknown_token_id", U32, 0), ("tokenizer.ggml.add_bos_token", BOOL, True),
       ("tokenizer.ggml.add_eos_token", BOOL, False), ("tokenizer.ggml.add_space_prefix", BOOL, True),
       ("tokenizer.chat_template", STR, "{{ bos_token }}{{ messages[0].content }}")]
write("llama-spm.gguf", llama[:8] + spm, [("token_embd.weight", (256, 9), 0, small((256, 9), 1))] + model(0)[1:])
