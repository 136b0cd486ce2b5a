#!/usr/bin/env python3
"""A second reader of packs, after the byte tables of store/FORMAT.md: decodes every object of the packs
given and checks every digest. usage: decode.py PACK...   exit 0 sound, 1 not, 77 no zstd here.

It shares no code with fmstore, so that what FORMAT.md says and what the program does can be held
against each other. zstd comes from the module `zstandard`, or from libzstd through ctypes."""
import ctypes
import ctypes.util
import hashlib
import os
import struct
import sys

import blocks
import recipes

LEAF = 1 << 20
FLOATS = {"F32": (4, 23, 255), "BF16": (2, 7, 255), "F16": (2, 10, 31)}
UNITS = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
CODECS = ["raw", "const", "planes", "bytes", "same", "delta", "xor", "exps", "cdelta", "narrow",
          "narrow-delta", "palette", "blocks", "mixed"]
BLOCKS = {2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL"}


def find_zstd():
    try:
        import zstandard
        return lambda data, n: zstandard.ZstdDecompressor().decompress(data, max_output_size=n)
    except ImportError:
        pass
    name = ctypes.util.find_library("zstd")
    if not name:
        return None
    lib = ctypes.CDLL(name)
    lib.ZSTD_decompress.restype = ctypes.c_size_t
    lib.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]

    def run(data, n):
        out = ctypes.create_string_buffer(max(n, 1))
        got = lib.ZSTD_decompress(out, n, data, len(data))
        need(got == n, "zstd frame")
        return out.raw[:n]
    return run


def need(cond, what):
    if not cond:
        raise ValueError(what)


def rans(data, n):
    at, slots = 1, []
    for _ in range(data[0] + 1):
        s, f = data[at], data[at + 1]
        at += 2
        if f >= 128:
            f = (f & 127) | data[at] << 7
            at += 1
        slots += [(s, f, j) for j in range(f)]
    need(len(slots) == 4096, "frequencies sum to 4096")
    x = list(struct.unpack_from("<4I", data, at))
    at += 16
    out = bytearray(n)
    for i in range(n):
        v = x[i & 3]
        s, f, j = slots[v & 4095]
        out[i] = s
        v = f * (v >> 12) + j
        if v < 1 << 16:
            v = v << 16 | data[at] | data[at + 1] << 8
            at += 2
        x[i & 3] = v
    need(x == [1 << 16] * 4 and at == len(data), "end of a rans stream")
    return bytes(out)


def stream(data, at, n, zstd):
    mode, size = struct.unpack_from("<BI", data, at)
    body = data[at + 5:at + 5 + size]
    need(len(body) == size, "stream inside its leaf")
    if mode == 0:
        need(size == n, "raw stream")
        out = body
    elif mode == 1:
        need(size == 1, "const stream")
        out = body * n
    elif mode == 2:
        out = zstd(body, n)
    else:
        need(mode == 3, "stream mode")
        out = rans(body, n)
    return out, at + 5 + size


def planes(data, size, zstd):
    unit, transform = struct.unpack_from("<HB", data)
    n, at, plane = size // unit, 3, []
    for _ in range(unit):
        p, at = stream(data, at, n, zstd)
        plane.append(p)
    out = bytearray(size)
    for b in range(unit):
        out[b:n * unit:unit] = plane[b]
    if transform:
        bits = 8 * unit
        for i in range(0, n * unit, unit):
            v = int.from_bytes(out[i:i + unit], "little")
            out[i:i + unit] = (v >> 1 | (v & 1) << (bits - 1)).to_bytes(unit, "little")
    need(len(data) - at == size - n * unit, "bytes after the planes")
    out[n * unit:] = data[at:]
    return bytes(out)


def delta(data, size, dtype, parent, zstd):
    width, shift, mask = FLOATS[dtype]
    n, top, ones = size // width, 1 << (8 * width - 1), (1 << 8 * width) - 1
    base = [int.from_bytes(parent[i:i + width], "little") for i in range(0, size, width)]
    exps = [v >> shift & mask for v in base]
    groups = data[0] + 1
    last, at, first = data[1:1 + groups], 1 + groups, 0
    z = []
    for g in range(groups):
        held = sum(1 for e in exps if first <= e <= last[g])
        ps = []
        for _ in range(width):
            p, at = stream(data, at, held, zstd)
            ps.append(p)
        z += [int.from_bytes(bytes(p[i] for p in ps), "little") for i in range(held)]
        first = last[g] + 1
    need(at == len(data), "bytes after the delta")
    order = sorted(range(n), key=lambda i: exps[i])
    out = bytearray(size)
    for k, i in enumerate(order):
        u = z[k] >> 1 ^ (ones if z[k] & 1 else 0)
        o = base[i] ^ ones if base[i] & top else base[i] | top
        o = (o + u) & ones
        v = o & (top - 1) if o & top else o ^ ones
        out[i * width:(i + 1) * width] = v.to_bytes(width, "little")
    return bytes(out)


def crans_tables(data, at, tables):
    """Per table the slots (symbol, frequency, slot - start); and where the bytes go on."""
    pos, out = 8 * at, []

    def bits(n):
        nonlocal pos
        v = sum((data[p >> 3] >> (p & 7) & 1) << i for i, p in enumerate(range(pos, pos + n)))
        pos += n
        return v
    for _ in range(tables):
        slots = []
        for s in range(bits(7) + 1):
            n = bits(4)
            f = (1 << (n - 1)) | bits(n - 1) if n else 0
            slots += [(s, f, j) for j in range(f)]
        need(len(slots) == 2048, "frequencies sum to 2048")
        out.append(slots)
    return out, (pos + 7) // 8


def crans(data, at, slots, table):
    x = list(struct.unpack_from("<32I", data, at))
    at += 128
    out = bytearray(len(table))
    for i, t in enumerate(table):
        v = x[i & 31]
        out[i], f, j = slots[t][v & 2047]
        v = f * (v >> 11) + j
        if v < 1 << 16:
            v = v << 16 | data[at] | data[at + 1] << 8
            at += 2
        x[i & 31] = v
    need(x == [1 << 16] * 32 and at == len(data), "end of the words")
    return out


def cdelta(data, size, dtype, parent, zstd):
    width, shift, mask = FLOATS[dtype]
    n, top, ones = size // width, 1 << (8 * width - 1), (1 << 8 * width) - 1
    each, first, base = struct.unpack_from("<HHh", data)
    rows = 1 + max(0, n - first + each - 1) // each
    scales, at = stream(data, 6, rows, zstd)
    tail_bytes, = struct.unpack_from("<I", data, at)
    tails = int.from_bytes(data[at + 4:at + 4 + tail_bytes], "little")
    at += 4 + tail_bytes
    of, slots, at = contexts_tables(data, at, 256)
    values = [int.from_bytes(parent[i:i + width], "little") for i in range(0, size, width)]
    table = bytearray(n)
    for i, p in enumerate(values):
        s = scales[0 if i < first else 1 + (i - first) // each]
        e = max(p >> shift & mask, 1)
        c = 128 + e % 128 if s == 255 else min(max(s + base - 2 * e + 24, 0), 127)
        table[i] = of[c]
    out, used = bytearray(size), 0
    for i, z in enumerate(crans(data, at, slots, table)):
        if z >= 16:
            k = (z - 16) // 4 + 2
            z = (4 + (z - 16) % 4) << k | tails >> used & ((1 << k) - 1)
            used += k
        u = z >> 1 ^ (ones if z & 1 else 0)
        p = values[i]
        o = (p ^ ones) - u if p & top else (p | top) + u
        o &= ones
        v = o & (top - 1) if o & top else o ^ ones
        out[i * width:(i + 1) * width] = v.to_bytes(width, "little")
    need((used + 7) // 8 == tail_bytes, "tails")
    return bytes(out)


def contexts_tables(data, at, contexts):
    """The table of each context, the tables' slots, and where the words begin."""
    tables = data[at] + 1
    last = data[at + 1:at + 1 + tables]
    need(last[-1] == contexts - 1 and list(last) == sorted(set(last)), "contexts ascend")
    slots, at = crans_tables(data, at + 1 + tables, tables)
    return [next(t for t in range(tables) if c <= last[t]) for c in range(contexts)], slots, at


def exps(data, size, zstd):
    width, lowest, each, first = struct.unpack_from("<BBHH", data)
    n = size // width
    at = 6 + (width - 1) * n
    rows, at = stream(data, at, 1 + max(0, n - first + each - 1) // each, zstd)
    columns, at = stream(data, at, each, zstd)
    of, slots, at = contexts_tables(data, at, 128)
    table = bytearray(n)
    for i in range(n):
        row, column = divmod(i + each - first, each)
        table[i] = of[min(max((rows[row] + columns[column]) % 256 - 64, 0), 127)]
    out, bits = bytearray(size), 8 * width
    for i, s in enumerate(crans(data, at, slots, table)):
        v = ((s + lowest - 1) % 256 if s else 0) << (bits - 8)
        for b in range(width - 1):
            v |= data[6 + b * n + i] << (8 * b)
        out[i * width:(i + 1) * width] = (v >> 1 | (v & 1) << (bits - 1)).to_bytes(width, "little")
    return bytes(out)


def f32_of(v, kind):
    """The bits of a BF16 or F16 value as F32."""
    if kind == 1:
        return v << 16
    sign, exp, frac = v >> 15, v >> 10 & 31, v & 1023
    if exp == 31:
        return sign << 31 | 255 << 23 | frac << 13
    if exp == 0:
        return sign << 31 | struct.unpack("<I", struct.pack("<f", frac * 2.0 ** -24))[0]
    return sign << 31 | (exp + 112) << 23 | frac << 13


def f16_of(u):
    """F32 bits to F16 bits, to nearest, ties to even."""
    sign, mag = u >> 16 & 0x8000, u & 0x7fffffff
    if mag > 0x7f800000:
        return sign | 0x7e00 | mag >> 13 & 0x1ff
    if mag >= 0x477ff000:
        return sign | 0x7c00
    if mag >= 0x38800000:
        return sign | (mag - 0x38000000 + 0xfff + (mag >> 13 & 1)) >> 13
    if mag < 102 << 23:
        return sign
    frac, shift = mag & 0x7fffff | 0x800000, 126 - (mag >> 23)
    q, rest, half = frac >> shift, frac & ((1 << shift) - 1), 1 << (shift - 1)
    return sign | q + (rest > half or rest == half and q & 1)


def narrow(coded, size, parent, zstd):
    kind, how = coded[0], coded[1]
    base = None
    if parent is not None:
        base = bytearray()
        for u in struct.unpack("<%dI" % (size // 4), parent):
            v = (u + 0x7fff + (u >> 16 & 1)) >> 16 & 0xffff if kind == 1 else f16_of(u)
            base += v.to_bytes(2, "little")
    got = leaf(how, coded[2:], size // 2, {1: "BF16", 2: "F16"}[kind], base, zstd)
    values = struct.unpack("<%dH" % (size // 4), got)
    return b"".join(f32_of(v, kind).to_bytes(4, "little") for v in values)


def palette(coded, size, unit, zstd):
    count = struct.unpack_from("<H", coded)[0] + 1
    n, at = size // unit, 2 + count * unit
    value = [coded[i:i + unit] for i in range(2, at, unit)]
    index, at = stream(coded, at, n, zstd)
    if count > 256:
        high, at = stream(coded, at, n, zstd)
        index = [a | b << 8 for a, b in zip(index, high)]
    need(at == len(coded), "bytes after the indices")
    return b"".join(value[i] for i in index)


def dequantized(coded, size, zstd):
    name = BLOCKS[coded[0]]
    elems, width = blocks.SIZE[name]
    rest_bytes, = struct.unpack_from("<I", coded, 2)
    rest = coded[6:6 + rest_bytes]
    count = size // 4 // elems
    got = leaf(coded[1], coded[6 + rest_bytes:], count * width, name, None, zstd)
    out = [struct.pack("<%df" % elems, *blocks.dequantize(name, got[k * width:(k + 1) * width]))
           for k in range(count)]
    at = 4
    for _ in range(struct.unpack_from("<I", rest)[0]):
        k, = struct.unpack_from("<I", rest, at)
        out[k] = rest[at + 4:at + 4 + 4 * elems]
        at += 4 + 4 * elems
    return b"".join(out) + rest[at:]


def div(a, b):
    """Towards zero, as C does."""
    return a // b if a >= 0 else -(-a // b)


class Mixer:
    """The adaptive coder of FORMAT.md's "Mixed"."""
    def __init__(self, data, at):
        self.data, self.at, self.low, self.high, self.value = data, at, 0, (1 << 32) - 1, 0
        for _ in range(4):
            self.value = self.value << 8 | self.byte()
        self.squash, e = {}, 1 << 32
        for d in range(2048):
            self.squash[d] = min((1 << 44) // ((1 << 32) + e), 4095)
            self.squash[-d] = 4096 - self.squash[d] if d else self.squash[0]
            e = e * 4278222805 >> 32
        self.stretch, d = [], -2047
        for p in range(4096):
            while d < 2047 and self.squash[d] < p:
                d += 1
            self.stretch.append(d)
        self.cells, self.weights = {}, {}

    def byte(self):
        b = self.data[self.at] if self.at < len(self.data) else 0
        self.at += 1
        return b

    def bit(self, p):
        mid = self.low + ((self.high - self.low) * p >> 16)
        bit = self.value <= mid
        if bit:
            self.high = mid
        else:
            self.low = mid + 1
        while (self.low ^ self.high) >> 24 == 0:
            self.value = (self.value << 8 | self.byte()) & 0xffffffff
            self.low = self.low << 8 & 0xffffffff
            self.high = (self.high << 8 | 255) & 0xffffffff
        return int(bit)

    def learn(self, key, bit):
        p, n = self.cells.get(key, (1 << 21, 0))
        p += div((((1 << 22) - 1 if bit else 0) - p) * (655360 // (10 * n + 16)), 65536)
        self.cells[key] = (p, min(n + 1, 1023))

    def mixed(self, node, group, inputs):
        w = self.weights.setdefault((node, group), [16384] * 6)
        keys = [(k, node) + x for k, x in enumerate(inputs)]
        s = [self.stretch[self.cells.get(k, (1 << 21, 0))[0] >> 10] for k in keys]
        d = min(max(div(sum(a * b for a, b in zip(w, s)), 65536), -2047), 2047)
        p = self.squash[d]
        bit = self.bit(p << 4)
        for k in range(6):
            w[k] = min(max(w[k] + div(s[k] * (4096 * bit - p), 4096), -(1 << 22)), 1 << 22)
            self.learn(keys[k], bit)
        return bit, p

    def top(self, key):
        bit = self.bit(min(max(self.cells.get(key, (1 << 21, 0))[0] >> 6, 64), 65472))
        self.learn(key, bit)
        return bit


def mixed(data, size, dtype, parent, zstd):
    width, shift, mask = FLOATS[dtype]
    n, top, ones = size // width, 1 << (8 * width - 1), (1 << 8 * width) - 1
    each, first, base = struct.unpack_from("<HHh", data)
    scales, at = stream(data, 6, 1 + max(0, n - first + each - 1) // each, zstd)
    m, seen, columns, drift, out = Mixer(data, at), [], [0] * each, 0, bytearray(size)
    for i in range(n):
        row, j = divmod(i + each - first, each)
        if j == 0 or i == 0:
            drift = 0
        p = int.from_bytes(parent[i * width:(i + 1) * width], "little")
        e, neg, man = max(p >> shift & mask, 1), int(p & top > 0), p >> (shift - 3) & 7
        s = scales[row]
        c = 128 + e % 128 if s == 255 else min(max(s + base - 2 * e + 24, 0), 127)
        near = [seen[i - 1] if j and i else 0, seen[i - each] if i >= each else 0]
        sizes = tuple(3 if abs(d) > 6 else min(abs(d), 2) for d in near)
        signs = tuple(0 if d == 0 else 2 if (d < 0) != bool(neg) else 1 for d in near)
        col, r = min(max(div(columns[j] + 512, 128), 0), 7), min(max(div(drift + 512, 256), 0), 3)
        inputs = [(c,), (c,) + sizes, (c, col, r), (e & 31, man, neg, s == 255), (c,) + signs, (c, man, col)]
        group = 1 if s == 255 else 0 if c < 18 else 2 if c < 24 else 3
        z = 0
        bit, p12 = m.mixed(0, group, inputs)
        columns[j] += div(4095 * bit - p12 - columns[j], 16)
        drift += div(4095 * bit - p12 - drift, 32)
        if bit:
            odd, length, v = m.mixed(1, group, inputs)[0], 0, 1
            while length < 8 * width - 1 and m.mixed(2 + length, group, inputs)[0]:
                length += 1
            for k in range(length):
                key = ("top", c, length) + ((v & 1,) if k else ())
                v = v << 1 | (m.top(key) if k < 2 else m.bit(32768))
            z = (2 * v - odd) & ones
        moved = min((z >> 1) + (z & 1), 7)
        seen.append(-moved if (z & 1) != neg else moved)
        u = z >> 1 ^ (ones if z & 1 else 0)
        o = ((p ^ ones) - u if p & top else (p | top) + u) & ones
        out[i * width:(i + 1) * width] = (o & (top - 1) if o & top else o ^ ones).to_bytes(width, "little")
    need(m.at == len(data), "end of the mixed bits")
    return bytes(out)


def leaf(codec, coded, size, dtype, parent, zstd):
    name = CODECS[codec]
    if name == "raw":
        return coded
    if name == "const":
        return coded * (size // len(coded))
    if name == "planes":
        return planes(coded, size, zstd)
    if name == "bytes":
        out, at = stream(coded, 0, size, zstd)
        need(at == len(coded), "bytes after the stream")
        return out
    if name == "same":
        need(not coded, "same has no payload")
        return parent
    if name == "delta":
        return delta(coded, size, dtype, parent, zstd)
    if name == "blocks":
        return dequantized(coded, size, zstd)
    if name == "narrow":
        return narrow(coded, size, None, zstd)
    if name == "narrow-delta":
        return narrow(coded, size, parent, zstd)
    if name == "palette":
        return palette(coded, size, UNITS[dtype], zstd)
    if name == "exps":
        return exps(coded, size, zstd)
    if name == "mixed":
        return mixed(coded, size, dtype, parent, zstd)
    if name == "cdelta":
        return cdelta(coded, size, dtype, parent, zstd)
    return bytes(a ^ b for a, b in zip(planes(coded, size, zstd), parent))


def record(data, at):
    h = data[at:]
    need(h[:8] == b"\x93FMREC1\n", "record magic")
    size, kind, flags, depth, rank = struct.unpack_from("<I4B", h, 8)
    need(hashlib.sha256(h[:size - 32]).digest() == h[size - 32:size], "head checksum")
    r = {"kind": kind, "depth": depth, "id": h[32:64], "sum": h[size - 32:size]}
    r["dtype"] = h[16:32].rstrip(b"\0").decode()
    need(flags <= 2, "flags")
    r["parents"] = [h[64:96]] if flags == 1 else []
    r["bytes"], payload, leaves, section = struct.unpack_from("<QQII", h, 96)
    dims = struct.unpack_from("<%dQ" % rank, h, 120)
    rows = [struct.unpack_from("<32sB3xI", h, 192 + 40 * i) for i in range(leaves)]
    r["dims"], r["recipe"] = dims, None
    need((flags == 2) == (section > 0), "a recipe where the flags say so")
    if section:
        begin = 192 + 40 * leaves
        op, mode, count, params, zero = struct.unpack_from("<HHIII", h, begin)
        need(zero == 0 and 1 <= count <= 8 and section == 16 + 32 * count + params, "recipe")
        begin += 16
        r["parents"] = [h[begin + 32 * k:begin + 32 * k + 32] for k in range(count)]
        r["recipe"] = op, mode, h[begin + 32 * count:begin + 32 * count + params]
    need(sum(x[2] for x in rows) == payload, "payload size")
    if kind == 1:
        text = b"fmstore tensor 1\n" + r["dtype"].encode() + b"\n" + struct.pack("<I", rank)
        text += struct.pack("<%dQ" % rank, *dims)
    else:
        text = b"fmstore blob 1\n"
    text += struct.pack("<Q", r["bytes"]) + b"".join(x[0] for x in rows)
    need(hashlib.sha256(text).digest() == r["id"], "id of the leaves")
    r["rows"], body = [], size
    for digest, codec, stored in rows:
        r["rows"].append((digest, codec, h[body:body + stored]))
        body += stored
    return r, at + size + (payload + 63) // 64 * 64


def read_pack(path, objects):
    data = open(path, "rb").read()
    need(os.path.basename(path) == hashlib.sha256(data).hexdigest() + ".pack", "name is the SHA-256")
    need(data[:8] == b"\x93FMPACK\n" and struct.unpack_from("<I", data, 8) == (1,), "pack header")
    features, = struct.unpack_from("<I", data, 12)
    need(features <= 1, "features of a newer pack")
    foot = data[-64:]
    need(foot[:8] == b"\x93FMEND1\n", "pack footer")
    count, size = struct.unpack_from("<QQ", foot, 8)
    need(size == len(data), "file size")
    at, sums = 64, b""
    for _ in range(count):
        r, at = record(data, at)
        sums += r["sum"]
        need(features or not r["recipe"], "recipes are announced")
        objects[r["id"]] = r
    need(at == len(data) - 64, "records fill the pack")
    need(hashlib.sha256(sums).digest() == foot[32:64], "footer digest")


def decode(objects, oid, zstd):
    r = objects[oid]
    if "data" not in r:
        datas = [decode(objects, p, zstd) for p in r["parents"]]
        base = datas[0] if datas else None
        if r["recipe"]:
            base = recipes.predict(r, [objects[p] for p in r["parents"]], datas)
        out = []
        for i, (digest, codec, coded) in enumerate(r["rows"]):
            size = min(LEAF, r["bytes"] - i * LEAF)
            part = base[i * LEAF:i * LEAF + size] if base is not None else None
            got = leaf(codec, coded, size, r["dtype"], part, zstd)
            need(len(got) == size and hashlib.sha256(got).digest() == digest, "leaf digest")
            out.append(got)
        r["data"] = b"".join(out)
    return r["data"]


def main(paths):
    zstd = find_zstd()
    if not zstd:
        print("skip: neither the module zstandard nor libzstd is here")
        return 77
    objects, oid = {}, b""
    try:
        for path in paths:
            read_pack(path, objects)
        for oid, r in objects.items():
            decode(objects, oid, zstd)
            names = sorted({CODECS[row[1]] for row in r["rows"]})
            print(oid.hex(), r["dtype"] or "blob", r["bytes"], "depth", r["depth"], " ".join(names),
                  "recipe %d" % r["recipe"][0] if r["recipe"] else "")
    except (ValueError, IndexError, KeyError, struct.error) as e:
        print("decode.py: %s: %r" % (oid.hex(), e), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
