#!/usr/bin/env python3
"""githost_liar.py - a git host that lies, in the place of ssh (GIT_SSH_COMMAND): it speaks git's protocol of
version 0 on its standard input and output. FM_LIE says how; FM_LIE_OID is a commit of the family, FM_LIE_PACK a
pack of true objects."""
import hashlib
import os
import struct
import sys
import zlib

if "-G" in sys.argv:  # git asks whether this is OpenSSH
    sys.exit(1)
lie = os.environ["FM_LIE"]
oid = os.environ.get("FM_LIE_OID", "12" * 20)
out = sys.stdout.buffer


def line(text):
    data = text if isinstance(text, bytes) else text.encode()
    out.write(b"%04x" % (len(data) + 4) + data)


def advertise(refs):
    caps = "ofs-delta allow-tip-sha1-in-want"
    for n, (name, at) in enumerate(refs):
        line(f"{at} {name}" + (f"\0{caps}" if n == 0 else "") + "\n")
    out.write(b"0000")
    out.flush()


def pack(objects):
    """objects: (kind, claimed size, bytes that are packed)."""
    data = b"PACK" + struct.pack(">II", 2, len(objects))
    for kind, size, content in objects:
        first, rest = size & 15, size >> 4
        head = bytearray([kind << 4 | first])
        while rest:
            head[-1] |= 128
            head.append(rest & 127)
            rest >>= 7
        data += bytes(head) + (content if isinstance(content, bytes) else content())
    return data + hashlib.sha1(data).digest()


def commit(tree):
    text = f"tree {tree}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nlie\n".encode()
    return hashlib.sha1(b"commit %d\0" % len(text) + text).hexdigest(), (1, len(text), zlib.compress(text))


def zeros(count):
    def make():
        z, piece, left, text = zlib.compressobj(9), bytes(1 << 20), count, b""
        while left > 0:
            text += z.compress(piece[:min(left, 1 << 20)])
            left -= 1 << 20
        return text + z.flush()
    return make


def serve(tip, data):
    """Gives the pack to whoever asks."""
    advertise([("refs/heads/base", tip)])
    while True:
        n = sys.stdin.buffer.read(4)
        if not n:
            return
        if n == b"0000":
            continue
        text = sys.stdin.buffer.read(int(n, 16) - 4)
        if text.startswith(b"done"):
            break
    line("NAK\n")
    out.write(data)
    out.flush()


lost, alone = commit("34" * 20)
if lie == "names":
    advertise([("HEAD", oid), ("refs/heads/../../evil", oid), ("refs/heads/a b", oid), ("refs/heads/-x", oid),
               ("refs/remotes/origin/evil", oid), ("refs/fmstore/lost/evil", oid), ("refs/fmstore/kept/evil", oid),
               ("refs/heads/\x1b[31mred", oid), ("refs/heads/" + "n" * 4000, oid), ("refs/heads/good", oid)])
elif lie == "endless":
    line(f"{oid} refs/heads/base\0ofs-delta\n")
    while True:
        line(f"{oid} refs/heads/{'x' * 60000}\n")
elif lie == "garbage":
    out.write(b"<html>no git here</html>\n" * 100)
elif lie == "sha256":
    line("56" * 32 + " refs/heads/base\0object-format=sha256\n")
    out.write(b"0000")
elif lie == "absent":  # the pack lacks the commit that was asked for
    serve(oid, pack([alone]))
elif lie == "hole":  # the commit's tree is not in it
    serve(lost, pack([alone]))
elif lie == "bomb":  # a tree of 64 GiB, it says
    serve(lost, pack([alone, (2, 64 << 30, zeros(64 << 20))]))
elif lie == "blob":  # half a GiB of zeros that nothing asked for
    serve(lost, pack([alone, (3, 512 << 20, zeros(512 << 20))]))
elif lie == "pointer":  # git finds no fault in it; the tensor is nowhere
    blob = b"fmstore tensor 1\nid sha256:" + b"78" * 32 + b"\ndtype F32\nshape 2\nbytes 8\nname x\n"
    tree = b"100644 x\0" + hashlib.sha1(b"blob %d\0" % len(blob) + blob).digest()
    root = b"40000 tensors\0" + hashlib.sha1(b"tree %d\0" % len(tree) + tree).digest()
    tip, version = commit(hashlib.sha1(b"tree %d\0" % len(root) + root).hexdigest())
    serve(tip, pack([version, (2, len(root), zlib.compress(root)), (2, len(tree), zlib.compress(tree)),
                     (3, len(blob), zlib.compress(blob))]))
elif lie == "cut":
    serve(lost, pack([alone])[:-25])
elif lie == "bits":
    data = bytearray(pack([alone]))
    data[40] ^= 1
    serve(lost, bytes(data))
elif lie == "words":
    sys.stderr.write("fatal: \x1b[31myour disk is broken\x07\n" + "x" * 100000 + "\nERR the end\n")
    sys.exit(1)
