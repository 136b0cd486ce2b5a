"""The recipes of store/FORMAT.md, for decode.py: the predicted tensor, whole. Written for being read, not
for speed; no NaN or infinity in what it adds up."""
import math
import struct
from fractions import Fraction

import blocks

WIDTH = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
SHAPE = {"F32": (24, -149, 127), "BF16": (8, -133, 127), "F16": (11, -24, 15), "F64": (53, -1074, 1023)}


def need(cond, what):
    if not cond:
        raise ValueError(what)


def rounded(v, dtype):
    """A Fraction or float to the nearest value of the dtype, ties to even, as a Fraction."""
    v = Fraction(v)
    if v == 0:
        return v
    bits, least, most = SHAPE[dtype]
    m, e = abs(v), 0
    while m >= 2:
        m, e = m / 2, e + 1
    while m < 1:
        m, e = m * 2, e - 1
    step = Fraction(2) ** max(e - bits + 1, least)
    q, rest = divmod(abs(v), step)
    if rest * 2 > step or (rest * 2 == step and q % 2):
        q += 1
    need(q * step < Fraction(2) ** (most + 1), "finite values")
    return q * step if v > 0 else -q * step


def load(data, dtype):
    """Elements as Fractions; of block types as float32 has them."""
    if dtype in blocks.SIZE:
        width = blocks.SIZE[dtype][1]
        return [Fraction(blocks.f(v)) for at in range(0, len(data), width)
                for v in blocks.dequantize(dtype, data[at:at + width])]
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
        dtype = "F32"
    kind = {"F64": "d", "F32": "f", "F16": "e"}[dtype]
    return [Fraction(x) for x in struct.unpack("<%d%s" % (len(data) // WIDTH[dtype], kind), data)]


def dump(values, dtype):
    """Through float32, as said; signs of zero are plus here."""
    values = [float(v if dtype == "F64" else rounded(rounded(v, "F32"), dtype)) for v in values]
    kind = {"F64": "d", "F32": "f", "BF16": "f", "F16": "e"}[dtype]
    out = struct.pack("<%d%s" % (len(values), kind), *values)
    return b"".join(out[i + 2:i + 4] for i in range(0, len(out), 4)) if dtype == "BF16" else out


def linear(mode, params, inputs, dtype):
    form, arithmetic = mode & 127, mode >> 8
    if mode & 128:
        inputs = [[rounded(v, dtype) for v in x] for x in inputs]
    c = struct.unpack("<%dd" % len(inputs), params)

    def r(v):
        if arithmetic == 2:
            return rounded(v, "F64")
        v = rounded(v, "F32")
        return rounded(v, dtype) if arithmetic == 3 else v

    def more(s, k, x):
        return r(c[k] * x + s) if arithmetic == 1 else r(r(c[k] * x) + s)
    c = [Fraction(v) if arithmetic == 2 else rounded(v, "F32") for v in c]
    out = []
    for x in zip(*inputs):
        if form == 0:
            s = r(c[0] * x[0])
            for k in range(1, len(x)):
                s = more(s, k, x[k])
        elif form == 3:
            d = [r(v - x[0]) for v in x]
            if len(x) == 2:
                s = more(x[0], 1, d[1])
            else:
                s = r(c[1] * d[1])
                for k in range(2, len(x)):
                    s = more(s, k, d[k])
                s = r(x[0] + s)
        else:
            s = x[0]
            for v in x[1:]:
                s = r(s + v)
            s = r(s * c[0]) if form == 1 else r(s / c[0])
        out.append(s)
    return out


def lora(mode, params, w, a, b, dims, rank, dtype):
    turned, rounding = mode & 16, mode & 15
    if mode & 32:
        w = [rounded(v, dtype) for v in w]
    if mode & 64:
        a, b = [rounded(v, dtype) for v in a], [rounded(v, dtype) for v in b]
    scale = Fraction(struct.unpack("<f", params)[0])
    n = dims[0] if turned else dims[1]
    out = []
    for at, v in enumerate(w):
        row, column = divmod(at, dims[1])
        o, i = (column, row) if turned else (row, column)
        s = Fraction(0)
        for k in range(rank):
            s = rounded(b[o * rank + k] * a[k * n + i] + s, "F32")
        if rounding == 2:
            s = rounded(s, dtype)
        delta = rounded(s * scale, "F32")
        if rounding:
            delta = rounded(delta, dtype)
        out.append(rounded(v + delta, "F32"))
    return out


def gather(mode, params, datas, r):
    if mode == 0:
        out = b""
        for at in range(0, len(params), 20):
            k, first, n = struct.unpack_from("<IQQ", params, at)
            out += bytes(n) if k == 0xffffffff else datas[k][first:first + n]
        return out
    heads, = struct.unpack("<Q", params)
    row = len(datas[0]) // r["dims"][0]
    d = r["dims"][0] // heads
    out = []
    for at in range(r["dims"][0]):
        h, p = divmod(at, d)
        p = p % 2 * (d // 2) + p // 2 if mode == 1 else p % (d // 2) * 2 + p // (d // 2)
        out.append(datas[0][(h * d + p) * row:(h * d + p + 1) * row])
    return b"".join(out)


def transpose(data, dims, width):
    rows, columns = dims[-2:]
    step, out = rows * columns, []
    for base in range(0, len(data) // width, step):
        for c in range(columns):
            for r in range(rows):
                at = (base + r * columns + c) * width
                out.append(data[at:at + width])
    return b"".join(out)


def root(v, dtype):
    """The square root of a Fraction, rounded: an integer root with bits to spare and a sticky one."""
    scaled = v * 4 ** 200
    whole = math.isqrt(scaled.numerator // scaled.denominator)
    sticky = 0 if Fraction(whole) ** 2 == scaled else Fraction(1, 2)
    return rounded((whole + sticky) / Fraction(2) ** 200, dtype)


def adamw(mode, params, values):
    one_less1, b2, one_less2, decay, step, divisor, eps = map(Fraction, struct.unpack("<7f", params))

    def f(v):
        return rounded(v, "F32")

    def d(v):
        return rounded(v, "F64")
    out, inverse = [], d(1 / one_less1)
    for a, b, c in zip(*values):
        if mode & 16:  # w0, m1, v1
            old, below = f(a * decay), f(f(root(c, "F32") / divisor) + eps)
            w = (old - step * f(b / below), old + f(f(-step * b) / below), old - f(step * f(b / below)))
            out.append(f(w[mode & 15]))
        else:  # v0, m0, m1
            g = f(d(b + d(d(c - b) * inverse)))
            old, part = f(a * b2), f(g * one_less2)
            out.append(f(old + f(part * g)) if mode == 2 else f(part * g + old))
    return out


def predict(r, parents, datas):
    """The bytes of the predicted tensor of record r; parents are records, datas their bytes."""
    op, mode, params = r["recipe"]
    if op == 4:
        return gather(mode, params, datas, r)
    if op == 5:
        return transpose(datas[0], parents[0]["dims"], WIDTH[r["dtype"]])
    need(op in (1, 2, 3, 6, 7), "an operation that is read here")
    values = [load(d, p["dtype"]) for p, d in zip(parents, datas)]
    if op == 6:
        return blocks.quantize(r["dtype"], [float(v) for v in values[0]], mode)
    if op == 1:
        out = values[0]
    elif op == 7:
        out = adamw(mode, params, values)
    elif op == 2:
        out = linear(mode, params, values, r["dtype"])
    else:
        out = lora(mode, params, *values, r["dims"], parents[1]["dims"][0], r["dtype"])
    return dump(out, r["dtype"])
