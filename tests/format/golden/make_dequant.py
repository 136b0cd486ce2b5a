#!/usr/bin/env python3
"""Golden vectors of GGUF's block types, by the numpy dequantization of the PyPI package `gguf`.

usage: make_dequant.py OUT_DIR      needs: gguf numpy

OUT_DIR/dequant_<TYPE>.bin: 16 blocks of random bytes (scales made finite), then the float32 values.
"""
import os, sys
import numpy as np, gguf
from gguf.constants import GGMLQuantizationType as T, GGML_QUANT_SIZES

out = sys.argv[1]
rng = np.random.default_rng(20240607)
# Byte offsets of the float16 scales; "m": IQ1_M's, which is spread over four words.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108],
          "IQ1_S": [0], "IQ1_M": "m", "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0],
          "IQ3_S": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "MXFP4": None, "NVFP4": None,
          "Q1_0": [0], "Q8_K": "f", "Q2_0": [0]}  # "f": a float32 in front


def dequantize(blocks, name):
    """gguf has no code for these; ggml-quants.c has the formulas."""
    if name == "Q1_0":
        d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        return np.where(np.unpackbits(blocks[:, 2:], axis=1, bitorder="little") == 1, d, -d)
    if name == "Q8_K":
        return blocks[:, :4].copy().view("<f4") * blocks[:, 4:260].view(np.int8).astype(np.float32)
    if name == "Q2_0":
        d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        pairs = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], dtype=np.uint8) & 3
        return (pairs.reshape(16, 64).astype(np.float32) - 1) * d
    return gguf.quants.dequantize(blocks, T[name])


for name, places in SCALES.items():
    elems, size = GGML_QUANT_SIZES[T[name]] if name != "Q2_0" else (64, 18)
    blocks = rng.integers(0, 256, size=(16, size), dtype=np.uint8)
    scale = lambda: (rng.standard_normal(16) * 10.0 ** rng.integers(-6, 3, 16)).astype(np.float16)
    if places == "m":
        bits = scale().view(np.uint16)
        for i in range(4):
            blocks[:, 49 + 2 * i] = \
                (blocks[:, 49 + 2 * i] & 15) | ((bits >> 4 * i & 15) << 4).astype(np.uint8)
    elif places == "f":
        blocks[:, :4] = scale().astype("<f4").view(np.uint8).reshape(16, 4)
    elif places is None:
        blocks[:, 0] %= 240  # MXFP4: an exponent whose products stay finite
    else:
        for at in places:
            blocks[:, at:at + 2] = scale().view(np.uint8).reshape(16, 2)
    wide = dequantize(blocks, name).astype("<f4")
    assert wide.size == 16 * elems and np.isfinite(wide).all()
    with open(os.path.join(out, f"dequant_{name}.bin"), "wb") as f:
        f.write(blocks.tobytes() + wide.tobytes())
