"""Makes tests/format/golden/torch with PyTorch (2.15 when it was last run) and safetensors.

Each <x>.bin is what torch.save writes, each <x>.safetensors the same tensors under the same names
as the importer gives them. Run from the root of the repository: python3 tests/format/make_torch.py
"""
import json
import os
import pickle
from collections import OrderedDict

import torch
from safetensors.torch import save_file

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "torch")
torch.manual_seed(7)


def twin(name, tensors):
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()},
              os.path.join(OUT, name + ".safetensors"))


def both(name, obj, tensors=None, **how):
    torch.save(obj, os.path.join(OUT, name + ".bin"), **how)
    twin(name, tensors if tensors is not None else obj)


def dtypes():
    bits = torch.randint(0, 256, (48,), dtype=torch.uint8)
    d = OrderedDict()
    for t in ("float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 "
              "uint64 uint32 uint16 uint8").split():
        d["t." + t] = bits.clone().view(getattr(torch, t))
    d["t.bool"] = torch.tensor([True, False, True])
    return d


def views():
    w = torch.randn(6, 4)
    fused = torch.randn(9, 5)
    long = torch.randn(140, 130)
    cube = torch.randn(2, 3, 4)
    d = OrderedDict()
    d["w"] = w
    d["tied"] = w
    d["transposed"] = w.t()
    d["rows"] = w[2:]
    d["column"] = w[:, 1]
    d["steps"] = w[::2, 1::2]
    d["expanded"] = torch.arange(5.0).expand(3, 5)
    d["q"], d["k"], d["v"] = fused[:3], fused[3:6], fused[6:]
    d["permuted"] = cube.permute(2, 0, 1)
    d["scalar"] = torch.tensor(3.5)
    d["empty"] = torch.zeros(0, 3)
    d["one"] = torch.randn(1, 4, 1)[:, 1:3]
    d["long.transposed"] = long.t()
    d["param"] = torch.nn.Parameter(torch.randn(3))
    d._metadata = OrderedDict([("", {"version": 1})])
    return d


def training():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.randn(5, 3)).sum().backward()
    opt.step()
    both("training", {"epoch": 3, "loss": 0.25, "big": 1 << 80, "note": None, "model": net.state_dict(),
                      "optimizer": opt.state_dict(), "shape": torch.Size([3, 4]),
                      "dtype": torch.bfloat16, "device": torch.device("cpu"),
                      "ema": [torch.ones(2), (torch.zeros(1),)]},
         {**net.state_dict(), "ema.0": torch.ones(2), "ema.1.0": torch.zeros(1),
          **{f"optimizer.state.{i}.{k}": v for i, s in opt.state_dict()["state"].items()
             for k, v in s.items()}})


def folders():
    sd = OrderedDict((f"model.layers.{i}.weight", torch.randn(3, 4)) for i in range(4))
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    os.makedirs(os.path.join(OUT, "sharded"), exist_ok=True)
    for n, part in zip(names, (list(sd)[:2], list(sd)[2:])):
        torch.save({k: sd[k] for k in part}, os.path.join(OUT, "sharded", n))
    with open(os.path.join(OUT, "sharded", "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 192},
                   "weight_map": {k: names[i // 2] for i, k in enumerate(sd)}}, f, indent=2)
    with open(os.path.join(OUT, "sharded", "config.json"), "w") as f:
        json.dump({"model_type": "llama"}, f)
    twin("sharded", sd)
    key = "base_model.model.model.layers.0.self_attn.q_proj."
    ad = {key + "lora_A.weight": torch.randn(2, 8), key + "lora_B.weight": torch.randn(8, 2)}
    os.makedirs(os.path.join(OUT, "adapter"), exist_ok=True)
    torch.save(ad, os.path.join(OUT, "adapter", "adapter_model.bin"))
    with open(os.path.join(OUT, "adapter", "adapter_config.json"), "w") as f:
        json.dump({"base_model_name_or_path": "tiny", "lora_alpha": 4, "peft_type": "LORA", "r": 2,
                   "target_modules": ["q_proj"]}, f)
    twin("adapter", ad)


class Evil:
    def __reduce__(self):
        return os.system, ("echo executed > /tmp/fmstore-was-here",)


def refused():
    torch.save({"w": torch.ones(2), "x": Evil()}, os.path.join(OUT, "evil.bin"))
    torch.save(torch.nn.Linear(2, 2), os.path.join(OUT, "module.bin"))
    torch.jit.script(torch.nn.Linear(2, 2)).save(os.path.join(OUT, "script.bin"))
    torch.save({"w": torch.ones(2, dtype=torch.complex64)}, os.path.join(OUT, "complex.bin"))
    torch.save({"w": torch.eye(2).to_sparse()}, os.path.join(OUT, "sparse.bin"))


os.makedirs(OUT, exist_ok=True)
both("dtypes", dtypes())
both("views", views())
both("protocol4", {"a": torch.randn(2, 3), "b": torch.nn.Parameter(torch.ones(1))},
     pickle_protocol=4)
both("protocol5", {"a": torch.randn(2, 3)}, pickle_protocol=5)
small = views()
del small["long.transposed"]
both("legacy", {**small, **dtypes()}, _use_new_zipfile_serialization=False)
training()
folders()
refused()
