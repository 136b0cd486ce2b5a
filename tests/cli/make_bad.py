"""make_bad.py BASE OUT - hostile and broken model files for test_bad_input.sh, made from the atlas base.

OUT/st-*      HF folders whose model.safetensors is wrong in the way its name says
OUT/odd       an HF folder with strange but legal tensor names beside the real ones
OUT/*.gguf    a small sound GGUF (sound.gguf) and pieces of it
"""
import json
import pathlib
import shutil
import struct
import sys

base, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
raw = (base / "model.safetensors").read_bytes()
size = struct.unpack("<Q", raw[:8])[0]
header, body = json.loads(raw[8 : 8 + size]), raw[8 + size :]
first = sorted((k for k in header if k != "__metadata__"), key=lambda k: header[k]["data_offsets"][0])


def folder(name, data):
    to = out / name
    shutil.copytree(base, to)
    (to / "model.safetensors").write_bytes(data)


def pack(head, data=body):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data


def changed(tensor, **fields):
    head = json.loads(json.dumps(header))
    head[tensor].update(fields)
    return head


a, b = first[0], first[1]
begin, end = header[b]["data_offsets"]
folder("st-overlap", pack(changed(b, data_offsets=[begin - 2, end - 2])))
folder("st-outside", pack(changed(first[-1], data_offsets=[len(body), len(body) + 256])))
folder("st-huge-offset", pack(changed(b, data_offsets=[begin, 2**63 - 1])))
folder("st-backwards", pack(changed(b, data_offsets=[end, begin])))
folder("st-shape", pack(changed(b, shape=[3, 5])))
folder("st-shape-overflow", pack(changed(b, shape=[2**62, 2**62])))
folder("st-dtype", pack(changed(b, dtype="BF17")))
folder("st-no-json", pack(b"{" + b" " * 40))
folder("st-duplicate", pack(json.dumps(header).replace("{", '{"%s": %s, ' % (a, json.dumps(header[a])), 1).encode()))
folder("st-short-header", raw[: 8 + size // 2])
folder("st-long-header", struct.pack("<Q", 2**60) + raw[8:])
folder("st-empty", b"")
folder("st-truncated", raw[:-1])
folder("st-empty-name", pack({**{k: v for k, v in header.items() if k != a}, "": header[a]}))

odd = json.loads(json.dumps(header))
names = ["../../../escape", "/etc/passwd", "..", ".git.weight", "a//b", "con\x07trol\n.x", "per%cent.%2e",
         "a.b.", "deep" + ".x" * 200, "\u00fcber.gewicht"]
at, data = len(body), body
for name in names:
    odd[name] = {"dtype": "U8", "shape": [16], "data_offsets": [at, at + 16]}
    data, at = data + bytes(range(16)), at + 16
folder("odd", pack(odd, data))


def string(s):
    return struct.pack("<Q", len(s)) + s.encode()


def gguf():
    kv = [("general.architecture", "llama"), ("general.name", "tiny")]
    kv_bytes = b"".join(string(k) + struct.pack("<I", 8) + string(v) for k, v in kv)
    for key, value in (("block_count", 1), ("embedding_length", 32), ("feed_forward_length", 64),
                       ("attention.head_count", 2), ("context_length", 64)):
        kv_bytes += string("llama." + key) + struct.pack("<II", 4, value)
    kv_bytes += string("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5)
    tensors = [("token_embd.weight", [32, 8]), ("output_norm.weight", [32])]
    infos, blob = b"", b""
    for name, dims in tensors:
        infos += string(name) + struct.pack("<I", len(dims))
        infos += b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", 0, len(blob))
        count = 1
        for d in dims:
            count *= d
        blob += struct.pack("<%df" % count, *[i / 7 for i in range(count)])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(kv) + 6) + kv_bytes + infos
    return head + b"\0" * (-len(head) % 32) + blob


sound = gguf()
(out / "sound.gguf").write_bytes(sound)
for i in range(24):
    cut = len(sound) * i // 24 if i else 3
    (out / f"cut-{i:02}.gguf").write_bytes(sound[:cut])
(out / "cut-last.gguf").write_bytes(sound[:-1])
(out / "version-99.gguf").write_bytes(sound[:4] + struct.pack("<I", 99) + sound[8:])
(out / "many-tensors.gguf").write_bytes(sound[:8] + struct.pack("<Q", 2**61) + sound[16:])
