"""make_bad_adapter.py GOOD OUT - PEFT adapters that do not fit, made from one that does."""
import json
import pathlib
import shutil
import struct
import sys

good, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
raw = (good / "adapter_model.safetensors").read_bytes()
size = struct.unpack("<Q", raw[:8])[0]
header, body = json.loads(raw[8 : 8 + size]), raw[8 + size :]
config = json.loads((good / "adapter_config.json").read_text())
names = sorted(k for k in header if k != "__metadata__")
a = next(n for n in names if n.endswith("lora_A.weight"))


def file_of(head):
    """Tensors laid end to end: only what a case is about is wrong."""
    fresh, data = {}, b""
    for name, t in head.items():
        if name == "__metadata__":
            fresh[name] = t
            continue
        begin, end = t["data_offsets"]
        fresh[name] = {**t, "data_offsets": [len(data), len(data) + end - begin]}
        data += body[begin:end]
    text = json.dumps(fresh).encode()
    return struct.pack("<Q", len(text)) + text + data


def adapter(name, head=None, conf=None):
    to = out / name
    shutil.copytree(good, to)
    if head is not None:
        (to / "adapter_model.safetensors").write_bytes(file_of(head))
    if conf is not None:
        (to / "adapter_config.json").write_text(conf if isinstance(conf, str) else json.dumps(conf))


module = a[: -len("lora_A.weight")]


def moved(to):
    return {(to + k[len(module) :] if k.startswith(module) else k): v for k, v in header.items()}


adapter("module", moved(module.replace("layers.0.", "layers.99.")))
adapter("unknown-module", moved(module.replace("mlp", "mlq").replace("self_attn", "self_attm")))
adapter("lone", {k: v for k, v in header.items() if k != a})
shape = header[a]["shape"]
adapter("shape", {**header, a: {**header[a], "shape": [shape[0] * 2, shape[1] // 2]}})
adapter("flat", {**header, a: {**header[a], "shape": [shape[0] * shape[1]]}})
adapter("half", {k: v for k, v in header.items() if not k.endswith("lora_B.weight")})
adapter("rank", conf={**config, "r": config["r"] * 2})
adapter("odd-kind", conf={**config, "peft_type": "../../x"})
adapter("not-json", conf="{r: 8")
