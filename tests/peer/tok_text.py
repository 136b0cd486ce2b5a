"""Texts that tokenizers get wrong, reproducibly: the same seed gives the same strings."""
import random

CODE = """def f(x):
\treturn {"k": x**2, 'n': None}  # note
for (int i = 0; i < n; ++i) { a[i] += b[i] * 3.14e-10f; }
<div class="a b">&amp;</div>
SELECT * FROM t WHERE a_b = 'x' AND c >= 10;
if __name__ == "__main__":
    main()
\\\\server\\share\\file.txt http://example.com/a?b=c&d=%20#e user@host.org
git commit -m "fix: don't" && ./run.sh > /dev/null 2>&1
""".splitlines(keepends=True)
PROSE = """The quick brown fox jumps over the lazy dog. It wasn't what they'd hoped; we'll see, I'm sure!
Hällo Wörld, naïve café résumé coöperate Ångström œuvre straße İstanbul ıI ﬁne ﬂow ½ ² Ⅷ ™ №
Съешь же ещё этих мягких французских булок, да выпей чаю. ёлка й Ў ѝ
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Άά ς Σ ὀξύς ᾳ ͺ
השועל החום המהיר קופץ. שָׁלוֹם עֲלֵיכֶם ״רָא״
الثعلب البني السريع يقفز فوق الكلب الكسول. مُحَمَّد ٱلْعَرَبِيَّةُ ۱۲۳ ٤٥٦ ﷺ ﻻ
हिन्दी में क्षत्रिय ज्ञान श्री र्क कि़ क़ ९८७ বাংলা ক্ষ তামিল தமிழ் క్ష ಕ್ಷ ക്ഷ സ്വാഗതം
ภาษาไทยไม่มีการเว้นวรรค ພາສາລາວ ខ្មែរ မြန်မာ བོད་ཡིག་
日本語のテキスト、カタカナと漢字。ﾊﾝｶｸ ｶﾞ パ が ヿ ㌀ ㍻ 々 〆 ー
中文分词测试，没有空格。繁體字 𠀀𠮷 㐀 豈 丽
한국어 문장은 띄어쓰기가 있다. 각 ᄀ ᆨ ᄒ
Tiếng Việt có dấu: ạ ắ ổ ữ. Việt ễ
ქართული ენა ᲐᲑ Հայերեն ամհարኛ ᏣᎳᎩ ꮳꮃꭹ ᐃᓄᒃᑎᑐᑦ ⵜⴰⵎⴰⵣⵉⵖⵜ ߒߞߏ
<s> </s> <unk> <pad> [CLS] [SEP] [MASK] <|endoftext|> <mask> [UNK] <extra_id_0> <0x41> <0xE4> ▁ ▁▁ Ġ Ċ ##s
\\ud83d\\ude00 \\u0000 \\x00 %s {} \\n \\t $HOME ${x} ~/.a
1234567890 3,141.59 -7 +1-555-0100 0xDEADBEEF 1e-9 12:30 2024-02-30 ①②③ ⅓ ٣ ३ 𝟘𝟙 ㊿ 〇
""".splitlines()
EMOJI = ["\U0001F600", "\U0001F468\u200D\U0001F469\u200D\U0001F467", "\U0001F3F3\uFE0F\u200D\U0001F308",
         "\U0001F44D\U0001F3FD", "\U0001F1E9\U0001F1EA", "\U0001F1E9\U0001F1EA\U0001F1EB", "1\uFE0F\u20E3",
         "\u00A9\uFE0F", "\u2764\uFE0F\u200D\U0001F525", "\U0001FAE8", "\U0001FAE9", "\U0001F9D1\u200D\U0001F91D\u200D\U0001F9D1",
         "\u00A9\u200D\u00AE", "\U0001F600\u200D\u00A9\u0301", "\U0001F3F4\U000E0067\U000E0062\U000E007F"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", "\u00A0", "\u2003", "\u2009", "\u3000", "\u200B", "\u2028",
          "\u2029", "\u0085", "\u1680", "\u180E", "\u202F", "\u205F", "\uFEFF", "\u2060", "\v", "\f", "\u2007", " \n ", "\t\t"]
CONTROL = [chr(c) for c in list(range(0, 32)) + list(range(127, 160))] + \
    list("\u00AD\u0600\u061C\u06DD\u070F\u200C\u200D\u200E\u200F\u202A\u202E\u2061\u2066\u2069\uFFF9\uFFFD\uFFFE\uFFFF")
MARKS = [chr(c) for c in (0x300, 0x301, 0x302, 0x303, 0x308, 0x30A, 0x30C, 0x323, 0x327, 0x328, 0x331, 0x338, 0x345, 0x34F,
                          0x488, 0x591, 0x5B0, 0x5BC, 0x5C1, 0x64B, 0x651, 0x653, 0x654, 0x655, 0x670, 0x6D6, 0x711, 0x93C, 0x94D, 0x9BE,
                          0x9CD, 0xA3C, 0xB3E, 0xBCD, 0xC56, 0xCCD, 0xD4D, 0xDCF, 0xE31, 0xE38, 0xEB8, 0xF71, 0xF72, 0xF74,
                          0x1037, 0x1039, 0x17D2, 0x1AB0, 0x1CF2, 0x1DC0, 0x1DF6, 0x20D0, 0x20E3, 0x302A, 0x3099, 0x309A, 0xA8E0,
                          0xFB1E, 0xFE00, 0xFE0F, 0xFE20, 0x10A0F, 0x11046, 0x11131, 0x11930, 0x11935, 0x1D165, 0x1D16D, 0x1E4EC,
                          0x1E8D0, 0xE0100, 0x1133C, 0x10D69, 0x16FF0, 0x897, 0x7FD, 0x898)]
NEW = [(0x1C89, 0x1C8A), (0xA7CB, 0xA7DC), (0x105C0, 0x105F3), (0x10D40, 0x10D8F), (0x11380, 0x113E2), (0x11BC0, 0x11BF9),
       (0x13460, 0x13480), (0x16100, 0x16139), (0x16D40, 0x16D79), (0x1CC00, 0x1CCF9), (0x1E5D0, 0x1E5FF), (0x2EBF0, 0x2EBFF),
       (0x31350, 0x31360), (0x1FAE0, 0x1FAF8), (0x11F00, 0x11F5A), (0x1E4D0, 0x1E4F9), (0x16EA0, 0x16EB8), (0x11DE0, 0x11DE9),
       (0x10EC2, 0x10EC8), (0x1E030, 0x1E08F), (0x10781, 0x107BA), (0x32FF, 0x32FF), (0x1FBF0, 0x1FBF9), (0x088F, 0x089F), (0x0C5C, 0x0C5D)]
BLOCKS = [(0x20, 0x7E), (0xA0, 0x17F), (0x180, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x5FF),
          (0x600, 0x6FF), (0x700, 0x8FF), (0x900, 0xDFF), (0xE00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF),
          (0x1200, 0x139F), (0x13A0, 0x167F), (0x1680, 0x18AF), (0x1900, 0x1CFF), (0x1D00, 0x1DFF), (0x1E00, 0x1FFF),
          (0x2000, 0x206F), (0x2070, 0x214F), (0x2150, 0x23FF), (0x2400, 0x27FF), (0x2800, 0x2BFF), (0x2C00, 0x2DFF),
          (0x2E00, 0x303F), (0x3040, 0x30FF), (0x3100, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA6FF),
          (0xA700, 0xA8FF), (0xA900, 0xABFF), (0xAC00, 0xD7FB), (0xE000, 0xE010), (0xF900, 0xFAFF), (0xFB00, 0xFDFF),
          (0xFE00, 0xFEFF), (0xFF00, 0xFFEF), (0x10000, 0x10FFF), (0x11000, 0x11FFF), (0x12000, 0x13FFF), (0x16000, 0x18FFF),
          (0x1B000, 0x1CFFF), (0x1D000, 0x1DFFF), (0x1E000, 0x1EFFF), (0x1F000, 0x1FAFF), (0x20000, 0x2A6DF), (0x2F800, 0x2FA1F),
          (0xE0000, 0xE01FF), (0x100000, 0x100010)]


def _char(r, lo, hi):
    c = r.randint(lo, hi)
    return chr(c) if not 0xD800 <= c <= 0xDFFF else "?"


def _prose(r):
    words = r.choice(PROSE).split(" ")
    i = r.randrange(len(words))
    return " ".join(words[i:i + r.randint(1, 8)])


def _block(r):
    lo, hi = r.choice(BLOCKS)
    return "".join(_char(r, lo, hi) for _ in range(r.randint(1, 6)))


def _marked(r):
    base = r.choice("aeiouAEnOsSkKCdg\u0915\u05D0\u0627\u1100\u3042\u30CF\uAC00\u00E9\u212B\u03B1" + "x")
    return base + "".join(r.choice(MARKS) for _ in range(r.randint(1, 3)))


def _marks(r):
    few = r.sample(MARKS, 3) + ["\u0f73", "\u0f81", "\u0344"]
    return "a" + "".join(r.choice(few) for _ in range(r.choice([3, 70, 200])))


def _new(r):
    lo, hi = r.choice(NEW)
    return "".join(_char(r, lo, hi) for _ in range(r.randint(1, 3)))


def _run(r):
    s = r.choice(["a", "ab", " ", "=", "-", "0", "\n", "\u4E00", "!?", ".", "\u0301", "é", "▁", "x ", "ha", "\t", "\U0001F600", "_", "##", "ﷺ"])
    return s * r.choice([2, 3, 5, 9, 17, 33, 65, 129])


def _any(r):
    return "".join(_char(r, 0, 0x10FFFF) for _ in range(r.randint(1, 4)))


def text(r):
    """One string of 0 to about 200 characters."""
    kinds = [_prose] * 8 + [_block] * 4 + [_marked] * 3 + [_new] * 2 + [_run, _any] + [_marks] * (r.random() < .05) + \
        [lambda r: r.choice(CODE)] * 2 + [lambda r: r.choice(EMOJI)] * 2 + [lambda r: r.choice(SPACES)] * 5 + \
        [lambda r: r.choice(CONTROL)] + [lambda r: r.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")] * 3
    return "".join(r.choice(kinds)(r) for _ in range(r.choice([0, 1, 1, 2, 3, 4, 6, 9])))


def texts(seed, count):
    r = random.Random(seed)
    out = []
    while len(out) < count:
        s = text(r)
        out.append(s.lower() if r.random() < .05 else s.upper() if r.random() < .05 else s)
    return out


def corpus(seed=7, few=False):
    """What vocabularies are trained on: every script, so that merges and pieces exist; few: some Latin and Hebrew."""
    r = random.Random(seed)
    lines = []
    if few:
        for _ in range(3000):
            words = r.choice(PROSE[:2] + PROSE[4:5] + PROSE[:1]).split(" ")
            i = r.randrange(len(words))
            lines.append(" ".join(words[i:i + r.randint(1, 8)]))
        return lines
    for _ in range(6000):
        lines.append(" ".join(_prose(r) for _ in range(r.randint(1, 3))))
    for _ in range(300):
        lines.append(r.choice(CODE).rstrip("\n"))
        lines.append(_marked(r) + _prose(r) + r.choice(EMOJI))
    return lines
