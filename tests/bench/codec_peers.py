#!/usr/bin/env python3
"""What the peers reach on the files that bench_codec is given: percent of the tensors' bytes.

usage: codec_peers.py CASE FILE [PARENT]     needs: numpy, zstandard; zipnn where it is installed

Per tensor, in whole (no leaves, so a little in the peers' favour): ZipNN alone; byte planes and
zstd-3; and with a parent BitX's method (ZipLLM): XOR, byte planes, zstd-3."""
import json
import struct
import sys

import numpy as np
import zstandard

BYTES = {"F32": 4, "BF16": 2, "F16": 2}
ZIPNN = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def load(path):
    raw = open(path, "rb").read()
    n, = struct.unpack_from("<Q", raw)
    head = json.loads(raw[8:8 + n])
    return {k: (v["dtype"], np.frombuffer(raw, np.uint8, v["data_offsets"][1] - v["data_offsets"][0],
                                          8 + n + v["data_offsets"][0]))
            for k, v in head.items() if k != "__metadata__" and v["dtype"] in BYTES}


def planes(a, width, zstd):
    return sum(len(zstd.compress(a[b::width].tobytes())) for b in range(width))


def main(case, path, parent=None):
    zstd = zstandard.ZstdCompressor(level=3)
    new, old = load(path), load(parent) if parent else {}
    raw = alone = bitx = 0
    for name, (dtype, a) in new.items():
        raw += len(a)
        alone += planes(a, BYTES[dtype], zstd)
        if parent:
            bitx += planes(a ^ old[name][1], BYTES[dtype], zstd)
    line = "%-24s planes + zstd-3 %.2f %%" % (case, 100 * alone / raw)
    if parent:
        line += ", BitX %.2f %%" % (100 * bitx / raw)
    try:
        import zipnn
        whole = {}
        for dtype, a in new.values():
            whole.setdefault(dtype, []).append(a)
        size = 0
        for dtype, parts in whole.items():
            z = zipnn.ZipNN(bytearray_dtype=ZIPNN[dtype], input_format="byte", threads=1)
            size += len(z.compress(np.concatenate(parts).tobytes()))
        line += ", ZipNN %.2f %%" % (100 * size / raw)
    except ImportError:
        line += ", no zipnn here"
    print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
