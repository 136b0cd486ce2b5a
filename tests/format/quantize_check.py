#!/usr/bin/env python3
"""blocks.py's quantizers against ggml's own output of three compilers. usage: quantize_check.py QUANTIZE.BIN
(golden/make_quantize.py says what is in it). Exit 0: every block has ggml's bits."""
import struct
import sys

import blocks

NAMES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")


def main(path):
    data = open(path, "rb").read()
    count, = struct.unpack_from("<I", data)
    x, at, bad = struct.unpack_from("<%df" % count, data, 4), 4 + 4 * count, 0
    for name in NAMES:
        elems, size = blocks.SIZE[name]
        for how in range(3):
            got = blocks.quantize(name, list(x), how)
            for b in range(0, len(got), size):
                if got[b:b + size] != data[at + b:at + b + size]:
                    print("%s, arithmetic %d: block %d differs" % (name, how, b // size))
                    bad += 1
            at += len(got)
    if at != len(data):
        print("%d bytes are left" % (len(data) - at))
        bad += 1
    print("%d blocks differ" % bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
