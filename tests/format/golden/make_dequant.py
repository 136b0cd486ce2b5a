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
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}  # byte offsets of the float16 scales
for name, places in SCALES.items():
    elems, size = GGML_QUANT_SIZES[T[name]]
    blocks = rng.integers(0, 256, size=(16, size), dtype=np.uint8)
    for at in places:
        scale = (rng.standard_normal(16) * 10.0 ** rng.integers(-6, 3, 16)).astype(np.float16)
        blocks[:, at:at + 2] = scale.view(np.uint8).reshape(16, 2)
    wide = gguf.quants.dequantize(blocks, T[name]).astype("<f4")
    assert wide.size == 16 * elems and np.isfinite(wide).all()
    with open(os.path.join(out, f"dequant_{name}.bin"), "wb") as f:
        f.write(blocks.tobytes() + wide.tobytes())
