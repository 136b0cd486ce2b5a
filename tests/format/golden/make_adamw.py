#!/usr/bin/env python3
"""adamw_torch.bin: two neighbouring steps of a run of torch.optim.AdamW on a CPU, twice.

usage: make_adamw.py > adamw_torch.bin      needs: torch numpy
A two-layer network learns a fixed map; lr falls as a cosine. For steps 20 -> 21 and 200 -> 201: count u32, then
count float32 of each of w0 m0 v0 w1 m1 v1 (one weight matrix).
"""
import math
import struct
import sys

import torch

torch.manual_seed(1)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.GELU(), torch.nn.Linear(48, 64))
goal = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 64))
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05, betas=(0.9, 0.99))
w = net[0].weight
kept = {}
for step in range(1, 202):
    opt.param_groups[0]["lr"] = 1e-3 * (1 + math.cos(math.pi * step / 300))
    x = torch.randn(32, 64)
    loss = (net(x) - goal(x).detach()).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    kept[step] = [t.detach().numpy().astype("<f4").tobytes()
                  for t in (w, opt.state[w]["exp_avg"], opt.state[w]["exp_avg_sq"])]
for a in (20, 200):
    sys.stdout.buffer.write(struct.pack("<I", w.numel()) + b"".join(kept[a]) + b"".join(kept[a + 1]))
