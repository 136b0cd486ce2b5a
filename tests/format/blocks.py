"""GGUF's block types as store/FORMAT.md has them, for decode.py and recipes.py: blocks to floats, and
floats to blocks ("Quantizing"). Written for being read, not for speed; finite values only."""
import math
import struct

# elements and bytes of a block
SIZE = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
        "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ4_NL": (32, 18)}
IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
PLAIN, CLANG, GCC = 0, 1, 2


def f16_at(b, at):
    return struct.unpack_from("<e", b, at)[0]


def scale_min(s, j):
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4


def dequantize(name, b):
    """The floats of one block, in doubles: products of these factors are exact there, so that packing
    them as F32 rounds once, as ggml does."""
    if name == "Q8_0":
        return [q * f16_at(b, 0) for q in struct.unpack_from("<32b", b, 2)]
    if name == "IQ4_NL":
        return [f16_at(b, 0) * IQ4_NL[b[2 + i % 16] >> 4 * (i // 16) & 15] for i in range(32)]
    if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        at = 4 if name[3] == "1" else 2
        high = 0
        if name[1] == "5":
            high, = struct.unpack_from("<I", b, at)
            at += 4
        q = [(b[at + i % 16] >> 4 * (i // 16) & 15) | (high >> i & 1) << 4 for i in range(32)]
        if name[3] == "1":
            return [v * f16_at(b, 0) + f16_at(b, 2) for v in q]
        return [(v - (16 if name[1] == "5" else 8)) * f16_at(b, 0) for v in q]
    if name == "Q6_K":
        out = []
        for e in range(256):
            half, quarter, i = e // 128, e % 128 // 32, e % 32
            low, high = b[half * 64 + quarter % 2 * 32 + i], b[128 + half * 32 + i]
            q = (low >> 4 if quarter > 1 else low & 15) | (high >> 2 * quarter & 3) << 4
            out.append(f16_at(b, 208) * struct.unpack_from("<b", b, 192 + e // 16)[0] * (q - 32))
        return out
    out, five = [], name == "Q5_K"
    for e in range(256):
        j, i = divmod(e, 32)
        sc, m = scale_min(b[4:16], j)
        q = b[(48 if five else 16) + j // 2 * 32 + i] >> j % 2 * 4 & 15
        q |= (b[16 + i] >> j & 1) << 4 if five else 0
        out.append(f16_at(b, 0) * sc * q - f16_at(b, 2) * m)
    return out


# ---- float32 in doubles: one operation on two float32 is exact enough to be rounded once more ----

def f(v):
    try:
        return struct.unpack("<f", struct.pack("<f", v))[0]
    except OverflowError:
        return math.copysign(math.inf, v)


def fma(a, b, c):
    """a b + c rounded once: the product is exact in a double, and the sum is rounded to odd there."""
    p = a * b
    s = p + c
    t = s - p
    rest = (p - (s - t)) + (c - t)
    if rest:
        bits, = struct.unpack("<q", struct.pack("<d", s))
        if not bits & 1:
            bits += 1 if (rest > 0) == (s > 0) else -1
            s, = struct.unpack("<d", struct.pack("<q", bits))
    return f(s)


def mad(a, b, c, how):
    return fma(a, b, c) if how != PLAIN else f(f(a * b) + c)


def apart(a, b, c, how):
    return fma(a, b, c) if how == GCC else f(f(a * b) + c)


def low_bits(v):
    """What is left of 1.5 * 2^23 + n: n, of 23 bits."""
    return (struct.unpack("<I", struct.pack("<f", v))[0] & 0x7fffff) - 0x400000


def nearest(v):
    return low_bits(f(v + 12582912.0))


def nearest_product(a, b, how):
    return low_bits(apart(a, b, 12582912.0, how))


def half(v):
    try:
        return struct.pack("<e", v)
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, v))


def clamp(v, low, high):
    return min(max(v, low), high)


def inverse_of(d):
    return f(1.0 / d) if d else 0.0


def extreme_of(x):
    best = 0.0
    for v in x:
        if abs(v) > abs(best):
            best = v
    return best


# ---- blocks of 32 ----

def truncated(v):
    return int(v) if abs(v) < 2.0 ** 31 else -2 ** 31


def codes(x, low, inverse, add, most, how):
    out = []
    for v in x:
        n = truncated(apart(f(v - low), inverse, add, how)) & 255
        out.append(min(n - 256 if n > 127 else n, most) & 255)
    return out


def nibbles(c, whole):
    """whole: as ggml does for 4 bits, what a code has above them reaches into the other."""
    return bytes(((c[i] if whole else c[i] & 15) | c[i + 16] << 4) & 255 for i in range(16))


def q8_0(x, how):
    d = f(max(abs(v) for v in x) / 127.0)
    inverse, out = inverse_of(d), b""
    for v in x:
        v = f(v * inverse)
        t = truncated(v)
        out += bytes([(t + (v - t >= 0.5) - (v - t <= -0.5)) & 255])
    return half(d) + out


def q45(x, how, bits):
    top = 1 << (bits - 1)
    d = f(extreme_of(x) / -float(top))
    c = codes(x, 0.0, inverse_of(d), top + 0.5, 2 * top - 1, how)
    high = sum((v >> 4 & 1) << i for i, v in enumerate(c))
    return half(d) + (struct.pack("<I", high) if bits == 5 else b"") + nibbles(c, bits == 4)


def q45_min(x, how, bits):
    low, high = x[0], x[0]
    for v in x:
        low, high = v if v < low else low, v if v > high else high
    d = f(f(high - low) / ((1 << bits) - 1))
    c = codes(x, low, inverse_of(d), 0.5, 15 if bits == 4 else 127, how)
    fifth = sum((v >> 4 & 1) << i for i, v in enumerate(c))
    return half(d) + half(low) + (struct.pack("<I", fifth) if bits == 5 else b"") + nibbles(c, bits == 4)


def level_of(v):
    if v <= IQ4_NL[0]:
        return 0
    if v >= IQ4_NL[15]:
        return 15
    n = max(i for i in range(15) if v >= IQ4_NL[i])
    return n if f(v - IQ4_NL[n]) < f(IQ4_NL[n + 1] - v) else n + 1


def iq4_nl(x, how):
    most = extreme_of(x)

    def sums(inverse):
        qx = q2 = 0.0
        for v in x:
            q = float(IQ4_NL[level_of(f(inverse * v))])
            wq = f(f(v * v) * q)
            qx, q2 = mad(wq, v, qx, how), mad(wq, q, q2, how)
        return qx, q2
    d = 0.0
    if abs(most) >= f(1e-15):
        qx, q2 = sums(f(1.0 / f(-most / -127.0)))
        d = f(qx / q2) if q2 > 0 else 0.0
        best = f(d * qx)
        for t in range(-7, 8):
            qx, q2 = sums(f((t - 127.0) / most))
            if q2 > 0 and f(qx * qx) > f(best * q2):
                d = f(qx / q2)
                best = f(d * qx)
    return half(d) + nibbles([level_of(f(inverse_of(d) * v)) for v in x], False)


# ---- blocks of 256 ----

class Fit:
    """Scale, minimum and codes of 32 elements, by the least weighted error of the candidates."""
    def __init__(self, x, top, start, steps, how):
        self.x, self.top, self.how = x, top, how
        square = 0.0
        for v in x:
            square = mad(v, v, square, how)
        root = f(math.sqrt(f(square / 32.0)))
        self.w = [f(root + abs(v)) for v in x]
        self.low = self.high = x[0]
        self.sum_w, self.sum_x = self.w[0], f(self.w[0] * x[0])
        for w, v in zip(self.w[1:], x[1:]):
            self.low = v if v < self.low else self.low
            self.high = v if v > self.high else self.high
            self.sum_w, self.sum_x = f(self.sum_w + w), mad(w, v, self.sum_x, how)
        self.low = 0.0 if self.low > 0 else self.low
        self.min, self.scale, self.code = self.low, 0.0, [0] * 32
        if self.high != self.low:
            self.code, inverse = self.encode(float(top))
            self.scale = f(1.0 / inverse)
            self.error = self.measure(self.code, self.scale, self.min)
            for t in range(steps + 1):
                self.improve(self.encode(f(mad(f(0.1), float(t), start, how) + top))[0])
        self.min = -self.min

    def encode(self, count):
        inverse = f(count / f(self.high - self.min))
        return [clamp(nearest_product(inverse, f(v - self.min), self.how), 0, self.top) for v in self.x], inverse

    def measure(self, code, scale, low):
        error = 0.0
        for c, v, w in zip(code, self.x, self.w):
            off = f(mad(scale, float(c), low, self.how) - v)
            error = mad(w, f(off * off), error, self.how)
        return error

    def improve(self, code):
        how, l, l2, xl = self.how, 0.0, 0.0, 0.0
        for c, v, w in zip(map(float, code), self.x, self.w):
            wc = f(w * c)
            l = fma(w, c, l) if how == CLANG else f(l + wc)
            l2, xl = mad(wc, c, l2, how), mad(wc, v, xl, how)
        det = mad(self.sum_w, l2, -f(l * l), how)
        if not det > 0:
            return
        scale = f(mad(self.sum_w, xl, -f(self.sum_x * l), how) / det)
        low = f(mad(l2, self.sum_x, -f(l * xl), how) / det)
        if low > 0:
            low, scale = 0.0, f(xl / l2)
        error = self.measure(code, scale, low)
        if error < self.error:
            self.error, self.scale, self.min, self.code = error, scale, low, code


def q45_k(x, how, bits):
    top = (1 << bits) - 1
    fits = [Fit(x[k:k + 32], top, *((-0.5, 15) if bits == 5 else (-1.0, 20)), how) for k in range(0, 256, 32)]

    def six(values):
        most = max([0.0] + values)
        by = f(63.0 / most) if most > 0 else 0.0
        return half(f(most / 63.0)), [min(nearest_product(by, v, how) & 255, 63) for v in values]
    d16, scale = six([t.scale for t in fits])
    m16, low = six([t.min for t in fits])
    out = d16 + m16 + bytes(scale[s] | scale[s + 4] >> 4 << 6 for s in range(4))
    out += bytes(low[s] | low[s + 4] >> 4 << 6 for s in range(4))
    out += bytes(scale[s + 4] & 15 | (low[s + 4] & 15) << 4 for s in range(4))
    code = []
    for s, t in enumerate(fits):
        d, m = f(f16_at(d16, 0) * scale[s]), f(f16_at(m16, 0) * low[s])
        code += [clamp(nearest(f(f(v + m) / d)), 0, top) for v in t.x] if d else t.code
    if bits == 5:
        out += bytes(sum((code[s * 32 + e] >> 4) << s for s in range(8)) for e in range(32))
    for pair in range(0, 256, 64):
        out += bytes(code[pair + e] & 15 | (code[pair + 32 + e] & 15) << 4 for e in range(32))
    return out


def fit6(x, how):
    """Scale and codes of 16 elements."""
    most = extreme_of(x)
    if abs(most) < f(1e-15):
        return 0.0, [-32] * 16

    def encode(inverse, sums):
        code, lx, l2 = [], 0.0, 0.0
        for v in x:
            w, c = f(v * v), clamp(nearest_product(inverse, v, how), -32, 31)
            code.append(c)
            lx, l2 = mad(f(w * v), float(c), lx, sums), mad(f(w * c), float(c), l2, sums)
        return code, lx, l2
    code, lx, l2 = encode(f(-32.0 / most), how)
    scale = f(lx / l2) if l2 else 0.0
    best = f(scale * lx)
    for t in [t for t in range(-9, 10) if t]:
        trial, lx, l2 = encode(f(-mad(f(0.1), float(t), 32.0, how) / most), PLAIN if how == GCC else how)
        if l2 > 0 and f(lx * lx) > f(best * l2):
            code, scale = trial, f(lx / l2)
            best = f(scale * lx)
    return scale, code


def q6_k(x, how):
    fits = [fit6(x[k:k + 16], how) for k in range(0, 256, 16)]
    most = extreme_of([scale for scale, _ in fits])
    if abs(most) < f(1e-15):
        return bytes(210)
    by = f(-128.0 / most)
    d16, small, code = half(f(1.0 / by)), b"", []
    for s, (scale, found) in enumerate(fits):
        n = min(nearest_product(by, scale, how), 127) & 255
        d = f(f16_at(d16, 0) * (n - 256 if n > 127 else n))
        small += bytes([n])
        code += [c + 32 for c in found] if not d else [
            clamp(nearest(f(v / d)), -32, 31) + 32 for v in x[16 * s:16 * s + 16]]
    low = high = b""
    for h in (code[:128], code[128:]):
        low += bytes(h[i] & 15 | (h[i + 64] & 15) << 4 for i in range(64))
        high += bytes(sum((h[i + 32 * k] >> 4) << 2 * k for k in range(4)) for i in range(32))
    return low + high + small + d16


MAKE = {"Q8_0": q8_0, "IQ4_NL": iq4_nl, "Q6_K": q6_k,
        "Q4_0": lambda x, how: q45(x, how, 4), "Q5_0": lambda x, how: q45(x, how, 5),
        "Q4_1": lambda x, how: q45_min(x, how, 4), "Q5_1": lambda x, how: q45_min(x, how, 5),
        "Q4_K": lambda x, how: q45_k(x, how, 4), "Q5_K": lambda x, how: q45_k(x, how, 5)}


def quantize(name, x, how):
    """The blocks of the floats x; how: the mode of the operation."""
    elems = SIZE[name][0]
    return b"".join(MAKE[name](x[k:k + elems], how) for k in range(0, len(x), elems))
