#!/usr/bin/env python3
"""What other programs make of the same tensors: store_peers.py CHILD [PARENT]  (safetensors)

Prints "name per-cent-of-raw" lines: zipnn (PyPI zipnn, tensor by tensor), zstd-planes (byte planes, each zstd-3), and with a
parent bitx (ZipLLM's BitX: XOR with the parent's tensor of that name, byte planes, zstd-3; tensors without one as zstd-planes).
A peer that is not installed is printed as "skip NAME why".
"""
import json, struct, sys, warnings

warnings.filterwarnings("ignore")


def tensors(path):
    import numpy as np

    raw = np.memmap(path, np.uint8, "r")
    n = struct.unpack("<Q", raw[:8].tobytes())[0]
    head = json.loads(raw[8 : 8 + n].tobytes())
    return {k: (t["dtype"], raw[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]]) for k, t in head.items() if k != "__metadata__"}


WIDTH = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "F64": 8, "I64": 8}


def planes(z, dtype, b):
    w = WIDTH.get(dtype, 1)
    return sum(len(z.compress(b[i::w].tobytes())) for i in range(w)) if len(b) % w == 0 else len(z.compress(b.tobytes()))


def run(child, parent):
    total = sum(len(b) for _, b in child.values())
    try:
        import zstandard

        z = zstandard.ZstdCompressor(level=3)
        print("zstd-planes", 100 * sum(planes(z, d, b) for d, b in child.values()) / total)
        if parent:
            size = 0
            for name, (d, b) in child.items():
                p = parent.get(name)
                size += planes(z, d, b ^ p[1] if p and p[0] == d and len(p[1]) == len(b) else b)
            print("bitx", 100 * size / total)
    except ImportError as e:
        print("skip zstandard", e)
    try:
        import zipnn

        size = 0
        for d, b in child.values():
            kind = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}.get(d)
            raw = b.tobytes()
            size += min(len(raw), len(zipnn.ZipNN(bytearray_dtype=kind, threads=1).compress(raw))) if kind and raw else len(raw)
        print("zipnn", 100 * size / total)
    except ImportError as e:
        print("skip zipnn", e)


if __name__ == "__main__":
    if not all(p.endswith(".safetensors") for p in sys.argv[1:3]):
        print("skip peers: they know safetensors alone")
    else:
        run(tensors(sys.argv[1]), tensors(sys.argv[2]) if len(sys.argv) > 2 else None)
