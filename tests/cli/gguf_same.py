#!/usr/bin/env python3
"""gguf_same.py WANTED GOT tensors|tokenizer - compares two GGUF files, with Python's own library alone.

tensors: every tensor has the same name, type, shape and bytes, and every field of WANTED below its architecture's
prefix or adapter., general.architecture and general.type has the same value. tokenizer: every field of WANTED below tokenizer. has it; one
that says that no token is added may be missing in WANTED."""
import struct
import sys

PLAIN = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# type: elements and bytes of a block
BLOCK = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 14: (256, 210), 30: (1, 2)}


class Reader:
    def __init__(self, path):
        self.data, self.at = open(path, "rb").read(), 4
        assert self.data[:4] == b"GGUF" and self.one("I") == 3
        tensors, fields = self.one("Q"), self.one("Q")
        self.fields = {self.text().decode(): self.value(self.one("I")) for _ in range(fields)}
        infos = []
        for _ in range(tensors):
            name, rank = self.text().decode(), self.one("I")
            infos.append((name, [self.one("Q") for _ in range(rank)], self.one("I"), self.one("Q")))
        start = (self.at + 31) // 32 * 32
        self.tensors, self.end = {}, start
        for name, shape, kind, at in infos:
            n = 1
            for d in shape:
                n *= d
            elems, size = BLOCK[kind]
            n = n // elems * size
            assert at % 32 == 0 and name not in self.tensors
            self.tensors[name] = (kind, shape, self.data[start + at:start + at + n])
            self.end = max(self.end, start + at + (n + 31) // 32 * 32)
        assert self.end == len(self.data), "the file does not end with its tensors"

    def one(self, fmt):
        self.at += struct.calcsize("<" + fmt)
        return struct.unpack_from("<" + fmt, self.data, self.at - struct.calcsize("<" + fmt))[0]

    def text(self):
        n = self.one("Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.one(PLAIN[kind])
        elem, n = self.one("I"), self.one("Q")
        return [self.value(elem) for _ in range(n)]


def main():
    want, got = Reader(sys.argv[1]), Reader(sys.argv[2])
    if sys.argv[3] == "tensors":
        prefix = want.fields["general.architecture"].decode() + "."
        keys = [k for k in want.fields if k.startswith((prefix, "adapter."))]
        keys += ["general.architecture"] + (["general.type"] if "general.type" in want.fields else [])
        assert len(keys) >= (4 if b"adapter" == want.fields.get("general.type") else 7)
        assert set(want.tensors) == set(got.tensors), set(want.tensors) ^ set(got.tensors)
        for name, t in want.tensors.items():
            assert t[:2] == got.tensors[name][:2], (name, t[:2], got.tensors[name][:2])
            assert t[2] == got.tensors[name][2], name + ": other bytes"
    else:
        keys = [k for k in want.fields if k.startswith("tokenizer.")]
        assert len(keys) > 4
        for key in ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"):
            assert not got.fields[key] or want.fields[key]
    for key in keys:
        assert key in got.fields, key + " is missing"
        assert want.fields[key] == got.fields[key], (key, str(want.fields[key])[:200], str(got.fields[key])[:200])


if __name__ == "__main__":
    main()
