#!/usr/bin/env python3
"""Activation patching by PyTorch hooks on tiny pairs of models: writes tests/model/golden/trace, which tests/model/infer_trace.c reads.

usage: trace_golden.py ARCH_DIR OUT_DIR       made with torch 2.15, transformers 5.23
ARCH_DIR is tests/model/golden/arch, whose models are the parents. OUT/<name>/model.safetensors (bfloat16) and config.json: a child, the parent
plus noise. OUT/<name>/ref.safetensors: wrong, right [T] i32 (texts that part at a token), margin [2] f64 (of child, of parent), and for each site
<direction>.<site> [rows, common] f64: the margin log P(wrong's rest) - log P(right's rest) of the model that runs, with the other's state put in at
that layer and token. Directions: to_child (the child runs), to_parent. Computed in float64.
"""
import json, os, shutil, sys, torch
from safetensors.torch import save_file
import transformers as tf

arch, out = sys.argv[1:3]
torch.set_num_threads(1)
NAMES = ["gemma2", "gpt_neox", "qwen3_moe", "olmo2"]
COMMON = 9

def parts(m):
    inner = m.gpt_neox if hasattr(m, "gpt_neox") else m.model
    attn = [getattr(l, "attention", None) or l.self_attn for l in inner.layers]
    return inner.layers, attn, [l.mlp for l in inner.layers], getattr(inner, "final_layer_norm", None) or inner.norm

def first(x):
    return x[0] if isinstance(x, tuple) else x

class Site:
    """The state at a site: read it (self.seen) or put other's rows in."""
    def __init__(self, m, site, layer):
        layers, attn, mlp, norm = parts(m)
        self.seen, self.put = None, None
        if site == "residual":
            self.h = (layers[layer] if layer < len(layers) else norm).register_forward_pre_hook(self.before, with_kwargs=True)
        else:
            self.h = (attn if site == "attention" else mlp)[layer].register_forward_hook(self.after)
    def change(self, x):
        self.seen = x.detach().clone()
        if self.put is not None:
            token, row = self.put
            x = x.clone(); x[0, token] = row
        return x
    def before(self, mod, args, kw):
        if args: return (self.change(args[0]),) + args[1:], kw
        return args, dict(kw, hidden_states=self.change(kw["hidden_states"]))
    def after(self, mod, args, y):
        x = self.change(first(y))
        return (x,) + y[1:] if isinstance(y, tuple) else x

def rest(m, ids):
    with torch.no_grad():
        lp = m(input_ids=ids[None].long(), use_cache=False).logits[0].double().log_softmax(-1)
    return sum(lp[i - 1, ids[i]].item() for i in range(COMMON, len(ids)))

def margin(m, wrong, right):
    return rest(m, wrong) - rest(m, right)

for name in NAMES:
    src, dst = os.path.join(arch, name), os.path.join(out, name)
    os.makedirs(dst, exist_ok=True)
    load = lambda d: tf.AutoModelForCausalLM.from_pretrained(d, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager").eval()
    parent = load(src)
    child = load(src)
    g = torch.Generator().manual_seed(3)
    for n, p in child.named_parameters():
        p.data += 0.2 * p.data.std() * torch.randn(p.shape, generator=g, dtype=torch.float64)
        p.data = p.data.bfloat16().double()
    shutil.copy(os.path.join(src, "config.json"), dst)
    child.to(torch.bfloat16).save_pretrained(dst + ".tmp")
    shutil.move(os.path.join(dst + ".tmp", "model.safetensors"), os.path.join(dst, "model.safetensors"))
    shutil.rmtree(dst + ".tmp")
    child = load(dst)
    g = torch.Generator().manual_seed(4)
    wrong = torch.randint(3, 48, (COMMON + 3,), generator=g).int()
    right = torch.cat([wrong[:COMMON], torch.randint(3, 48, (2,), generator=g).int()])
    assert wrong[COMMON] != right[COMMON]
    ref = {"wrong": wrong, "right": right,
           "margin": torch.tensor([margin(child, wrong, right), margin(parent, wrong, right)], dtype=torch.float64)}
    layers = len(parts(child)[0])
    for word, to, frm in (("to_child", child, parent), ("to_parent", parent, child)):
        for site in ("residual", "attention", "mlp"):
            grid = []
            for layer in range(layers + (site == "residual")):
                s = Site(frm, site, layer)
                rest(frm, wrong)
                state = s.seen[0]
                s.h.remove()
                row = []
                for token in range(COMMON):
                    s = Site(to, site, layer)
                    s.put = (token, state[token])
                    row.append(margin(to, wrong, right))
                    s.h.remove()
                grid.append(row)
            ref[f"{word}.{site}"] = torch.tensor(grid, dtype=torch.float64)
    save_file(ref, os.path.join(dst, "ref.safetensors"))
    print(name, ref["margin"].tolist(), "changes by up to", (ref["to_child.residual"] - ref["margin"][0]).abs().max().item())
