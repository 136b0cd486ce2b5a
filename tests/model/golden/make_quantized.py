#!/usr/bin/env python3
"""make_quantized.py OUT [NAME..] - tiny Llamas in quantized forms, in the form of make_arch.py's (OUT: golden/arch): each a
folder as its tool writes it, and the logits in float32 of the weights that the tool's own code makes of it; two of these
weights beside them.

bitsandbytes, compressed-tensors and torchao (but its Int4Tensor) are the libraries themselves. GPTQ and AWQ are written down here: their codes by round to
nearest, their weights by the formulas of AutoGPTQ (scales[g_idx] * (weight - zeros), zeros + 1 in the first format) and of
AutoAWQ (dequantize_gemm), in float16 by torch.

BitNet's layers are transformers' own (BitLinear, AutoBitLinear; torch.compile switched off), weights packed by its pack_weights.

Needs torch, transformers, accelerate, safetensors, bitsandbytes 0.50, compressed-tensors 0.20, torchao 0.18."""
import json
import os
import pathlib
import shutil
import sys
import tempfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BitNetConfig, BitNetQuantConfig, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

out, only = pathlib.Path(sys.argv[1]), sys.argv[2:]
torch.manual_seed(11)
config = LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
                     num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.2,
                     bos_token_id=1, eos_token_id=2)
model = LlamaForCausalLM(config).to(torch.bfloat16)
ids = torch.randint(0, 64, (1, 40))
MODULES = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]


def plain(dtype):
    return {n: w.detach().to(dtype).clone().contiguous() for n, w in model.state_dict().items() if n != "lm_head.weight"}


def write(name, tensors, quantization, weights, dtype):
    """tensors: the file's (None: it is there); weights: module -> the weight [n, k] that the form's tool makes"""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    if tensors is not None:
        save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
        c = config.to_diff_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": str(dtype)[6:],
                                     "quantization_config": quantization}
        (folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    m = LlamaForCausalLM(config).float()
    state = {n: t.float() for n, t in plain(dtype).items()} | {f"{n}.weight": w.float() for n, w in weights.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    m.load_state_dict(state)
    with torch.no_grad():
        logits = m(ids).logits[0].contiguous()
    save_file({"input_ids": ids.to(torch.int32), "logits": logits} |
              {f"{n}.weight": weights[n].contiguous() for n in (MODULES[1], MODULES[-1])}, folder / "ref.safetensors")


def words(codes, bits, axis, order=None):
    """Packs codes along an axis into int32, the first in the lowest bits."""
    per = 32 // bits
    codes = codes.to(torch.int64).movedim(axis, -1)
    codes = codes.reshape(*codes.shape[:-1], -1, per)
    if order:
        codes = codes[..., order]
    x = (codes << (torch.arange(per) * bits)).sum(-1)
    x = torch.where(x >= 1 << 31, x - (1 << 32), x)
    return x.to(torch.int32).movedim(-1, axis).contiguous()


def rounded(w, bits, index, groups, symmetric):
    """codes [n, k], scales and zeros [n, groups] of a weight whose column c is of group index[c]"""
    n, most = w.shape[0], (1 << bits) - 1
    scale, zero = torch.zeros(n, groups, dtype=torch.float16), torch.zeros(n, groups, dtype=torch.int32)
    for g in range(groups):
        x = w[:, index == g]
        low, high = x.amin(1).clamp(max=0), x.amax(1).clamp(min=0)
        if symmetric:
            scale[:, g] = (2 * torch.maximum(-low, high) / most).half()
            zero[:, g] = 1 << (bits - 1)
        else:
            scale[:, g] = ((high - low) / most).half()
            zero[:, g] = (-low / scale[:, g].float()).round().clamp(1, most).int()
    codes = ((w / scale.float()[:, index]).round() + zero[:, index]).clamp(0, most).int()
    return codes, scale, zero


def gptq(name, bits, group, v2, symmetric, act):
    tensors, weights = plain(torch.float16), {}
    for m in MODULES:
        w = tensors.pop(f"{m}.weight").float()
        k = w.shape[1]
        size = k if group < 0 else group
        index = torch.arange(k) // size
        if act:
            index = index[torch.randperm(k)]
        codes, scale, zero = rounded(w, bits, index, k // size, symmetric)
        tensors[f"{m}.qweight"] = words(codes.T, bits, 0)
        tensors[f"{m}.qzeros"] = words((zero if v2 else zero - 1).T, bits, 1)
        tensors[f"{m}.scales"] = scale.T
        tensors[f"{m}.g_idx"] = index.int()
        weights[m] = scale[:, index] * (codes - zero[:, index])
        assert weights[m].dtype == torch.float16
    write(name, tensors, {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act, "sym": symmetric,
                          "checkpoint_format": "gptq_v2" if v2 else "gptq", "pack_dtype": "int32", "true_sequential": True,
                          "meta": {"quantizer": ["gptqmodel:4.0.0"]}}, weights, torch.float16)


def awq(name):
    tensors, weights = plain(torch.float16), {}
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    for m in MODULES:
        w = tensors.pop(f"{m}.weight").float()
        index = torch.arange(w.shape[1]) // 32
        codes, scale, zero = rounded(w, 4, index, w.shape[1] // 32, False)
        tensors[f"{m}.qweight"] = words(codes.T, 4, 1, order)
        tensors[f"{m}.qzeros"] = words(zero.T, 4, 1, order)
        tensors[f"{m}.scales"] = scale.T
        weights[m] = (codes - zero[:, index]) * scale[:, index]
    write(name, tensors, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
                          "modules_to_not_convert": None}, weights, torch.float16)


def bitsandbytes(name, how, dtype):
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight
    with tempfile.TemporaryDirectory() as tmp:
        model.to(dtype).save_pretrained(tmp)
        model.to(torch.bfloat16)
        m = AutoModelForCausalLM.from_pretrained(tmp, quantization_config=how, dtype=dtype, device_map="cpu")
        (out / name).mkdir(parents=True, exist_ok=True)
        m.save_pretrained(tmp + "/q")
        for f in ("config.json", "model.safetensors"):
            shutil.copy(f"{tmp}/q/{f}", out / name / f)
        m = AutoModelForCausalLM.from_pretrained(tmp + "/q", dtype=dtype, device_map="cpu")
        weights = {n: dequantize_bnb_weight(x.weight, getattr(x, "state", None)).to(dtype) for n, x in m.named_modules()
                   if n in MODULES}
        write(name, None, None, weights, dtype)


def compressed(name, form, args):
    from compressed_tensors.compressors import IntQuantizationCompressor, PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    a = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=a)
    way = PackedQuantizationCompressor if form == "pack-quantized" else IntQuantizationCompressor
    tensors, weights = plain(torch.bfloat16), {}
    for m in MODULES:
        w = tensors.pop(f"{m}.weight")
        x = {"group": w.unflatten(1, (-1, a.group_size or 1)), "channel": w.unsqueeze(1), "tensor": w.view(1, -1)}[args["strategy"]]
        scale, zero = calculate_qparams(x.amin(-1), x.amax(-1), a)
        if args["strategy"] == "tensor":
            scale, zero = scale.view(1), zero.view(1)
        state = way.compress({"weight": w, "weight_scale": scale.to(torch.bfloat16), "weight_zero_point": zero}, scheme)
        tensors |= {f"{m}.{n}": t for n, t in state.items()}
        weights[m] = way.decompress(dict(state), scheme)["weight"]
        assert weights[m].dtype == torch.bfloat16
    write(name, tensors, {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
                          "config_groups": {"group_0": {"targets": ["Linear"], "weights": json.loads(a.model_dump_json())}},
                          "ignore": ["lm_head"], "kv_cache_scheme": None}, weights, torch.bfloat16)


def torchao(name, how, int4):
    """int4: an Int4Tensor, which the library makes and multiplies on a GPU alone (code * scale + zero_point: fbgemm's
    int4_row_quantize_zp and pack_int4); else a type that it dequantizes."""
    from torchao.core.config import config_to_dict
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Int4Tensor, quantize_
    state, weights = plain(torch.bfloat16), {}
    for m in MODULES:
        w = state[f"{m}.weight"]
        n, k = w.shape
        if int4:
            x = w.float().view(n, -1, 32)
            low = x.amin(-1)
            scale = ((x.amax(-1) - low) / 15).bfloat16()
            zero = (low + 8 * scale.float()).bfloat16()
            code = ((x - low[..., None]) / scale.float()[..., None]).round().clamp(0, 15) - 8
            weights[m] = (code * scale.float()[..., None] + zero.float()[..., None]).view(n, k).bfloat16()
            code = code.view(n, k).to(torch.int8)
            state[f"{m}.weight"] = Int4Tensor(code[:, ::2] & 15 | code[:, 1::2] << 4, scale.T.contiguous(), zero.T.contiguous(),
                                              [1, 32], torch.Size([n, k]))
        else:
            one = torch.nn.Sequential(torch.nn.Linear(k, n, bias=False)).bfloat16()
            one[0].weight = torch.nn.Parameter(w)
            quantize_(one, how)
            state[f"{m}.weight"] = one[0].weight.data
            weights[m] = one[0].weight.dequantize()
            assert weights[m].dtype == torch.bfloat16
    tensors, _ = flatten_tensor_state_dict(state)
    write(name, tensors, {"quant_method": "torchao", "quant_type": {"default": config_to_dict(how)}, "modules_to_not_convert": None,
                          "include_input_output_embeddings": False, "untie_embedding_weights": False}, weights, torch.bfloat16)


def ao(name, **kw):
    import torchao.quantization as t
    if "group" in kw:
        kw["granularity"] = t.PerGroup(kw.pop("group"))
        kw["mapping_type"] = t.quant_primitives.MappingType.ASYMMETRIC
    return getattr(t, name)(**kw)


def bnb4(**kw):
    return BitsAndBytesConfig(load_in_4bit=True, **kw)


def ternary(name, how, cfg, seed=5):
    """how: of BitNetQuantConfig. A seed is one with which no float32 of the model is so near to a half that other sums round it to
    another whole number: then results would differ by far more than their sums do. Weights are random; the scales and what stays plain are bfloat16, products in float32."""
    from transformers.integrations.bitnet import AutoBitLinear, BitLinear, WeightQuant, pack_weights, replace_with_bitnet_linear
    q = BitNetQuantConfig(**how)
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    m = AutoModelForCausalLM.from_config(cfg, attn_implementation="eager").float().eval()
    for n, p in m.named_parameters():
        p.data = (p.data + 0.12 * torch.randn(p.shape, generator=gen)).bfloat16().float()
    plain_state = {n: t.clone() for n, t in m.state_dict().items()}
    modules = [n for n, x in m.named_modules() if isinstance(x, torch.nn.Linear) and n != "lm_head"]
    m = replace_with_bitnet_linear(m, modules_to_not_convert=["lm_head"], quantization_config=q)
    tensors, weights, state = {}, {}, dict(plain_state)
    for n in modules:
        w = plain_state[f"{n}.weight"]
        if how.get("quantization_mode") == "online":
            weights[n] = WeightQuant.apply(w.bfloat16()) + 0.0  # a zero has no sign: pack_weights keeps none
            tensors[f"{n}.weight"] = w.bfloat16()
            continue
        mean = w.abs().mean()
        t = (w / mean).round().clamp(-1, 1) + 0.0
        scale = (mean if how["linear_class"] == "autobitlinear" else 1 / mean).bfloat16().view(1)
        tensors[f"{n}.weight"] = pack_weights(t.clone())
        tensors[f"{n}.weight_scale"] = scale
        state[f"{n}.weight"] = t if how["linear_class"] == "autobitlinear" else tensors[f"{n}.weight"]
        state[f"{n}.weight_scale"] = scale.float()
        weights[n] = t.bfloat16() * scale if how["linear_class"] == "autobitlinear" else t * (1.0 / scale.float())
    if how.get("quantization_mode") == "online":  # the library rounds to the dtype of the weights
        for n in modules:
            m.get_submodule(n).online_quant = False
            m.get_submodule(n).register_buffer("weight_scale", torch.ones(1))
            state |= {f"{n}.weight": weights[n].float(), f"{n}.weight_scale": torch.ones(1)}
    m = m.to_empty(device="cpu")
    m.model.rotary_emb = type(m.model.rotary_emb)(cfg)
    for n in modules:
        if isinstance(m.get_submodule(n), BitLinear):
            m.get_submodule(n).dtype = torch.float32
        else:
            assert isinstance(m.get_submodule(n), AutoBitLinear)
    m.load_state_dict(state, assign=True, strict=True)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for n, t in plain_state.items():
        if n.removesuffix(".weight") not in modules and not (n == "lm_head.weight" and cfg.tie_word_embeddings):
            tensors[n] = t.bfloat16()
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    c = cfg.to_diff_dict() | {"architectures": [type(m).__name__], "dtype": "bfloat16", "quantization_config": q.to_dict()}
    (folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    with torch.no_grad():
        logits = m(ids % cfg.vocab_size).logits[0].contiguous()
        text = ids[:, :8]
        for _ in range(12):
            text = torch.cat([text, m(text).logits[:, -1:].argmax(-1)], 1)
    save_file({"input_ids": ids.to(torch.int32), "logits": logits, "greedy": text[0, 8:].int()} |
              {f"{n}.weight": weights[n].contiguous() for n in (modules[1], modules[6])}, folder / "ref.safetensors")


def bit(**kw):
    return BitNetConfig(**(dict(vocab_size=64, hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                                num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
                                rope_parameters=dict(rope_type="default", rope_theta=100.0)) | kw))


AUTO = dict(linear_class="autobitlinear")
INT = dict(type="int")
make = {
    "llama-gptq": lambda n: gptq(n, 4, 32, False, False, False),
    "llama-gptq-act": lambda n: gptq(n, 4, 32, True, True, True),
    "llama-gptq-8": lambda n: gptq(n, 8, -1, False, True, False),
    "llama-awq": awq,
    "llama-bnb-nf4": lambda n: bitsandbytes(n, bnb4(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                                    bnb_4bit_compute_dtype=torch.bfloat16), torch.bfloat16),
    "llama-bnb-fp4": lambda n: bitsandbytes(n, bnb4(bnb_4bit_quant_type="fp4"), torch.float32),
    "llama-bnb-int8": lambda n: bitsandbytes(n, BitsAndBytesConfig(load_in_8bit=True), torch.float16),
    "llama-ct-int4": lambda n: compressed(n, "pack-quantized", dict(INT, num_bits=4, strategy="group", group_size=32, symmetric=False)),
    "llama-ct-int8": lambda n: compressed(n, "int-quantized", dict(INT, num_bits=8, strategy="channel", symmetric=True)),
    "llama-ct-pack8": lambda n: compressed(n, "pack-quantized", dict(INT, num_bits=8, strategy="tensor", symmetric=True)),
    "llama-ao-int4": lambda n: torchao(n, ao("Int4WeightOnlyConfig", group_size=32), True),
    "llama-ao-intx": lambda n: torchao(n, ao("IntxWeightOnlyConfig", weight_dtype=torch.int4, group=32), False),
    "llama-bitlinear": lambda n: ternary(n, dict(linear_class="bitlinear"), config),
    "llama-bitnet": lambda n: ternary(n, AUTO | dict(quantization_mode="offline"), config),
    "llama-bitnet-online": lambda n: ternary(n, AUTO | dict(quantization_mode="online"), config),
    "bitnet-packed": lambda n: ternary(n, AUTO | dict(quantization_mode="offline"), bit(), 6),
    "bitnet-online": lambda n: ternary(n, AUTO | dict(quantization_mode="online"), bit(hidden_size=32, intermediate_size=64, num_attention_heads=2)),
    "llama-ao-int8": lambda n: torchao(n, ao("Int8WeightOnlyConfig", version=2), False),
}
for name, fn in make.items():
    if not only or name in only:
        fn(name)
        print(name)
