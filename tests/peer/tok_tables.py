"""Print the C tables of unicode_old.c, script.c and grapheme.c of infer/tokenizer: where the tokenizers package's idea of
Unicode differs from utf8proc's, found by asking the package about every code point.

    VENV/bin/python tests/peer/tok_tables.py old | script | grapheme

Needs PyPI tokenizers, for grapheme sentencepiece, and libutf8proc.so.2 (2.8: Unicode 15, as unicode_15.c has it)."""
import ctypes
import sys

from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P

U = ctypes.CDLL("libutf8proc.so.2")
U.utf8proc_category_string.restype = ctypes.c_char_p
U.utf8proc_get_property.restype = ctypes.POINTER(ctypes.c_uint16)
ALL = [c for c in range(1, 0x110000) if not 0xD800 <= c <= 0xDFFF]
CAT = {c: U.utf8proc_category_string(c).decode() for c in ALL}


def ranges(cps):
    out = []
    for c in sorted(cps):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def of(*cats):
    return {c for c in ALL if CAT[c] in cats or CAT[c][0] in cats}


def table(name, what, cps):
    print(f"/* {what} */\nstatic const range {name}[] = {{")
    line = "   "
    for lo, hi in ranges(cps):
        item = f" {{{lo:#x}, {hi:#x}}},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line + "\n};\n")


def ccc(c):
    return U.utf8proc_get_property(c)[1]  # category, combining_class, ... are 16 bits each


def old():
    bert = N.BertNormalizer(False, False, True, False)
    clean = N.BertNormalizer(True, False, False, False)
    strip, punct = N.StripAccents(), P.Punctuation()
    mn = {c for c in ALL if bert.normalize_str("a" + chr(c) + "b") == "ab"}
    marks = {c for c in ALL if strip.normalize_str("a" + chr(c) + "b") == "ab"}
    other = {c for c in ALL if clean.normalize_str("a" + chr(c) + "b") == "ab"}
    pun = {c for c in ALL if len(punct.pre_tokenize_str("a" + chr(c) + "b")) == 3}
    ascii_punct = {c for c in range(33, 127) if not chr(c).isalnum()}
    print("/* extra Mn:", ranges(mn - of("Mn")), "marks:", ranges(marks - of("M")), "P:",
          ranges(pun - of("P") - ascii_punct), "C:",
          ranges(other - of("Cc", "Cf", "Co") - {0xFFFD}), "*/")
    table("not_nonspacing", "Mn that BertNormalizer keeps", of("Mn") - mn)
    table("not_mark", "marks that StripAccents keeps", of("M") - marks)
    table("not_punctuation", "P that is no punctuation there", of("P") - pun)
    table("not_other", "Cf that BertNormalizer keeps", of("Cc", "Cf", "Co") - other - {9, 10, 13})
    inert = {0x11938, 0x11930}  # composed and second half of a pair unknown there
    nfd, nfkd = N.NFD(), N.NFKD()
    buf = (ctypes.c_int32 * 64)()
    for c in ALL:
        if nfkd.normalize_str(chr(c)) == chr(c):
            n = U.utf8proc_decompose_char(c, buf, 64, (1 << 2) | (1 << 4), None)
            if n != 1 or buf[0] != c:
                inert.add(c)
        k = ccc(c)
        if k and nfd.normalize_str(chr(c)) == chr(c):
            s = "a\u0345" + chr(c) if k < 240 else "a" + chr(c) + "\u0300"
            t = "a" + chr(c) + "\u0345" if k < 240 else "a\u0300" + chr(c)
            if nfd.normalize_str(s) != t:
                inert.add(c)
    table("inert", "neither decomposed, composed nor reordered there", inert)
    low = N.Lowercase()
    print("/* lower case:", [(hex(c), [hex(ord(x)) for x in low.normalize_str(chr(c))]) for c in ALL if
          low.normalize_str(chr(c)) != chr(U.utf8proc_tolower(c))], "*/")


def script():
    us = P.UnicodeScripts()

    def parts(s):
        return len(us.pre_tokenize_str(s))

    reps, cls, out, prev = [], {}, [], None
    for c in ALL:
        ch = chr(c)
        if parts("a" + ch + "a") == 1 and parts("\u5b57" + ch + "\u5b57") == 1:
            continue  # of any script
        k = cls[prev] if prev is not None and parts(chr(prev) + ch) == 1 else next(
            (i for i, r in enumerate(reps) if parts(r + ch) == 1), None)
        if k is None:
            k = len(reps)
            reps.append(ch)
        cls[c] = k
        prev = c
        if out and out[-1][1] == c - 1 and out[-1][2] == k:
            out[-1][1] = c
        else:
            out.append([c, c, k])
    line = "   "
    for lo, hi, k in out:
        item = f" {{{lo:#x}, {hi:#x}, {k}}},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)


def grapheme():
    """A character map that replaces A, (C) and KA shows where clusters end: of a short cluster that begins with one of
    them all else is lost."""
    import tempfile

    import sentencepiece as spm

    import tok_kinds

    with tempfile.TemporaryDirectory() as d:
        with open(d + "/rules.tsv", "w") as f:
            f.write("41\t42\nA9\t58\n915\t4B\n")
        with open(d + "/text", "w") as f:
            f.write("hello world foo bar baz\n" * 100)
        spm.SentencePieceTrainer.train(input=d + "/text", model_prefix=d + "/m", vocab_size=20, minloglevel=2,
                                       normalization_rule_tsv=d + "/rules.tsv", hard_vocab_limit=False)
        with open(d + "/m.model", "rb") as f:
            run = N.Precompiled(tok_kinds.charsmap(f.read())).normalize_str
    extend, spacing, prepend, linker, consonant = set(), set(), set(), set(), {0x915}
    for c in ALL:
        ch = chr(c)
        if c in (0x41, 0xA9, 0x915, 0x200D):
            continue
        if run("A" + ch) == "B":
            (extend if run("\u00a9" + ch + "\u200d\u00a9\u0301").endswith("\u0301") else spacing).add(c)
            if run("\u0915" + ch + "\u0915\u0301").endswith("\u0301"):
                linker.add(c)
        else:
            if run(ch + "A\u0301").endswith("\u0301"):
                prepend.add(c)
            if run(ch + "\u094d\u0915\u0301").endswith("\u0301"):
                consonant.add(c)
    # cp and utf8proc's boundclass on stdin: bit fields are the compiler's
    bound = {int(k, 16): int(v) for k, v in (line.split() for line in sys.stdin)}
    has = {k: {c for c in ALL if bound[c] == k} for k in (5, 12, 13)}
    table("new_extend", "Extend", extend - has[5])
    table("new_spacing", "SpacingMark", spacing - has[12])
    table("new_prepend", "Prepend", prepend - has[13])
    table("new_other", "no longer Prepend", has[13] - prepend)
    table("indic_linker", "InCB=Linker", linker)
    table("indic_consonant", "InCB=Consonant", consonant)


{"old": old, "script": script, "grapheme": grapheme}[sys.argv[1]]()
