#!/usr/bin/env python3
"""quantize.bin: floats, and what ggml's quantizers make of them as three compilers build them.

usage: make_quantize.py PLAIN.so CLANG.so GCC.so > quantize.bin
Each .so is ggml-quants.c built as a shared library: without FMA by any compiler; by clang -O3 -mfma;
by gcc -std=gnu11 -O3 -mfma -mavx2. The file: count u32, count float32; then for each type in the order
below, for each of the three, its blocks.
"""
import ctypes
import random
import struct
import sys

TYPES = [("q8_0", 32, 34), ("q4_0", 32, 18), ("q4_1", 32, 20), ("q5_0", 32, 22), ("q5_1", 32, 24),
         ("q4_K", 256, 144), ("q5_K", 256, 176), ("q6_K", 256, 210), ("iq4_nl", 32, 18)]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16(x):
    return struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", x))[0] & 0xFFFF0000))[0]


def source():
    rng = random.Random(7)
    out = []
    for _ in range(6):  # weights as models have them
        out += [bf16(rng.gauss(0, 0.03)) for _ in range(256)]
    for _ in range(3):
        out += [f32(rng.gauss(0.02, 0.5)) for _ in range(256)]
    out += [f32(abs(rng.gauss(0, 1))) for _ in range(256)]  # one-sided
    out += [f32(-abs(rng.gauss(0, 1))) for _ in range(256)]
    for k in range(8):  # a constant in each block, one of them zero, one minus zero
        out += [[0.0, -0.0, 1.0, -1.0, 3e-6, -7e4, 0.1, 1e-15][k]] * 32
    for k in range(8):  # zeros of both signs beside values of one sign; a single outlier
        block = [rng.choice([0.0, -0.0]) for _ in range(32)]
        if k & 1:
            block[rng.randrange(32)] = f32(rng.gauss(0, 1))
        if k & 2:
            block = [abs(v) if v else v for v in block]
        if k & 4:
            block[3] = f32(rng.gauss(0, 100))
        out += block
    out += [f32(rng.gauss(0, 1) * 10.0 ** rng.randint(-7, 4)) for _ in range(256)]
    out += [f32(rng.gauss(0, 1e-7)) for _ in range(256)]  # scales that are float16 subnormals
    out += [f32(1e-15 * rng.gauss(0, 1)) for _ in range(256)]
    return out


def main():
    x = source()
    libs = [ctypes.CDLL(p) for p in sys.argv[1:4]]
    src = (ctypes.c_float * len(x))(*x)
    out = struct.pack("<I%df" % len(x), len(x), *x)
    for name, elems, size in TYPES:
        for lib in libs:
            blocks = len(x) // elems
            dst = ctypes.create_string_buffer(blocks * size)
            fn = getattr(lib, "quantize_" + name)
            fn.restype = ctypes.c_size_t
            fn(src, dst, ctypes.c_int64(blocks), ctypes.c_int64(elems), None)
            out += dst.raw
    sys.stdout.buffer.write(out)


main()
