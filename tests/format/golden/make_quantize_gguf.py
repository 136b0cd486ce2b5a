#!/usr/bin/env python3
"""quantize_gguf.bin: floats, an importance matrix, and what ggml_quantize_chunk makes of them.

usage: make_quantize_gguf.py LIBGGML-BASE.so > quantize_gguf.bin
The library is that of llama.cpp built for x86-64 as its CMake builds it (ggml-base has no FMA). The
file: rows u32, columns u32, the floats, a weight for each column; then for each type in the order below
its blocks without the weights and with them.
"""
import ctypes
import random
import struct
import sys

# name, ggml's number, elements and bytes of a block
TYPES = [("Q4_0", 2, 32, 18), ("Q4_1", 3, 32, 20), ("Q5_0", 6, 32, 22), ("Q5_1", 7, 32, 24), ("Q8_0", 8, 32, 34),
         ("Q2_K", 10, 256, 84), ("Q3_K", 11, 256, 110), ("Q4_K", 12, 256, 144), ("Q5_K", 13, 256, 176),
         ("Q6_K", 14, 256, 210), ("IQ4_NL", 20, 32, 18), ("IQ4_XS", 23, 256, 136)]
ROWS, COLUMNS = 3, 768


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def source():
    rng = random.Random(11)
    out = [f32(rng.gauss(0, 0.03)) for _ in range(256)]  # weights as models have them
    out += [f32(rng.gauss(0.02, 0.5)) for _ in range(256)]
    for k in range(8):  # a constant in each 32, one of them zero, one minus zero
        out += [f32([0.0, -0.0, 1.0, -1.0, 3e-6, -7e4, 0.1, 1e-15][k])] * 32
    for k in range(8):  # zeros of both signs, an outlier beside zeros, beside ordinary values
        block = [rng.choice([0.0, -0.0]) if k < 4 else f32(rng.gauss(0, 0.02)) for _ in range(32)]
        if k & 1:
            block[rng.randrange(32)] = f32(rng.gauss(0, 100))
        out += block
    out += [f32(abs(rng.gauss(0, 1))) for _ in range(128)]
    out += [f32(-1 - abs(rng.gauss(0, 1))) for _ in range(128)]
    out += [f32(rng.gauss(0, 1) * 10.0 ** rng.randint(-7, 4)) for _ in range(256)]
    out += [f32(rng.gauss(0, 1e-7)) for _ in range(256)]  # scales that are float16 subnormals
    out += [f32(1e-15 * rng.gauss(0, 1)) for _ in range(128)] + [0.0] * 128
    out += [f32(rng.gauss(0, 300) if rng.random() < 0.02 else rng.gauss(0, 0.02)) for _ in range(256)]
    return out


def importance():
    rng = random.Random(12)
    return [0.0 if rng.random() < 0.25 and i % 256 > 128 else f32(10 ** rng.uniform(-3, 4)) for i in range(COLUMNS)]


def main():
    chunk = ctypes.CDLL(sys.argv[1]).ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    x, w = source(), importance()
    assert len(x) == ROWS * COLUMNS
    src, by = (ctypes.c_float * len(x))(*x), (ctypes.c_float * len(w))(*w)
    out = struct.pack("<II", ROWS, COLUMNS) + bytes(src) + bytes(by)
    for _, number, elems, size in TYPES:
        for weights in (None, by):
            dst = ctypes.create_string_buffer(len(x) // elems * size)
            chunk(ctypes.c_int(number), src, dst, ctypes.c_int64(0), ctypes.c_int64(ROWS),
                  ctypes.c_int64(COLUMNS), weights)
            out += dst.raw
    sys.stdout.buffer.write(out)


main()
