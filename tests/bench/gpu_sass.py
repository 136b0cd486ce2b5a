#!/usr/bin/env python3
"""What the machine code of the CUDA module says of its kernels' speed, without a card.

    gpu_sass.py [options] build/cli/libfmstore-cuda.so      (or object files, or cubins)
    gpu_sass.py --text FILE                                  (recorded output of cuobjdump)

Runs `cuobjdump -sass -res-usage -elf` and prints for each kernel its registers, memory, spills and
how many blocks a multiprocessor holds; for each innermost loop what is in it, how many cycles of a
multiprocessor each resource needs for one warp's turn, which one needs most, and so the share of
the tensor peak, or of the rate of memory, that the loop can reach at most. Loops that hold others
are shown with what they have beside them, where that is tensor work or traffic.

What it cannot know: how often a loop turns, latencies (but for the bytes that are under way), bank
conflicts, whether lanes read the same address, which loads hit a cache. So every share is an upper
limit, and shared memory is counted as if each lane read bytes of its own. Of several ways through a
loop the one with the most tensor work is counted, then with the most wide loads, then the longest;
ways through a call (division and roots of odd values) are left out. A turn's own slots only: loops
inside of a loop are lines of their own, and what they take comes on top.

Options: --json; --kernel REGEX (of the short name); --dynamic REGEX=BYTES (dynamic shared memory,
which stands in no binary) and --threads REGEX=N (of kernels without launch bounds), both repeatable;
--loops all|busy (busy, the default: loops with tensor work, traffic, spills or 16 operations);
--flags (only what is suspicious)."""
import argparse
import json
import re
import subprocess
import sys

# An H100 SXM (H200: the same multiprocessors, more bandwidth). Sources:
#  [1] NVIDIA H100 Tensor Core GPU Architecture (white paper): 132 multiprocessors, 1,830 MHz at the
#      tensor peaks, 989.4 TFLOP/s dense bf16/fp16, 1,978.9 fp8/int8, 494.7 tf32, 3.35 TB/s; 228 KB
#      of shared memory, 65,536 registers, 64 warps, 32 blocks a multiprocessor.
#      989.4e12 / (132 * 1.83e9) = 4,096 operations a cycle.
#  [2] CUDA C++ Programming Guide, throughput of native arithmetic instructions, compute capability
#      9.0: results a cycle and multiprocessor: 128 fp32, 64 integer and logic, 64 fp64, 16 special
#      functions and other conversions, 32 shuffles; 32 banks of 4 bytes of shared memory: 128 B.
#  [3] Luo et al., Dissecting the NVIDIA Hopper Architecture (arXiv 2501.12084; 2402.13499): mma.sync
#      reaches some 62 % of the peak on the H100, wgmma more than 95; L2 about 64 B a cycle and
#      multiprocessor.
#  [4] NVIDIA H200 data sheet: 4.8 TB/s.
CARD = {
    "multiprocessors": 132, "clock_hz": 1.83e9, "tensor_flops_cycle": 4096, "mma_sync": 0.62,
    "fp32": 128, "alu": 64, "imad": 64, "fp64": 64, "xu": 16, "shuffle": 32, "shared_bytes": 128,
    "l2_bytes": 64, "schedulers": 4, "h100_bytes_s": 3.35e12, "h200_bytes_s": 4.8e12,
    "latency_s": 0.8e-6, "registers": 65536, "warps": 64, "blocks": 32, "shared_total": 228 * 1024,
    "shared_block": 1024,  # what the system takes of each block's; -res-usage counts it in [2]
}
NEEDED = CARD["h200_bytes_s"] * CARD["latency_s"] / CARD["multiprocessors"]  # bytes under way

ALU = set("LOP3 LOP SHF SHL SHR IADD3 IADD ISETP FSETP FSEL FMNMX SEL PRMT MOV LEA VIADD VIMNMX PLOP3 "
          "P2R R2P IABS FSET F2FP I2FP CS2R VABSDIFF BMSK SGXT VIADDMNMX FCHK ICMP".split())
XU = set("MUFU F2F F2I I2F POPC FLO BREV FRND".split())
FP32 = set("FFMA FMUL FADD".split())
HALF = set("HFMA2 HADD2 HMUL2 HSETP2 HMNMX2 HSET2".split())
FP64 = set("DFMA DADD DMUL DSETP".split())
SYNC = set("BAR DEPBAR LDGDEPBAR SYNCS WARPSYNC WARPGROUP ARRIVES MEMBAR FENCE ERRBAR CCTL NANOSLEEP "
           "WARPGROUPDEPBAR DEPBAR".split())
CONTROL = set("BRA BRX BSSY BSYNC CALL RET EXIT NOP BREAK JMP JMX YIELD COLLECTIVE ENDCOLLECTIVE "
              "BPT KILL".split())
LOADS = {"LDG": "global", "LD": "generic", "LDS": "shared", "LDSM": "shared", "LDL": "local",
         "LDGSTS": "async", "UBLKCP": "bulk", "UTMALDG": "bulk"}
STORES = {"STG": "global", "ST": "generic", "STS": "shared", "STSM": "shared", "STL": "local",
          "UTMASTG": "bulk", "RED": "global", "REDG": "global"}
MMA_SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)")
LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([^\s;]+)\s*([^;]*);")
RES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


class Ins:
    __slots__ = ("at", "pred", "op", "base", "args", "width")

    def __init__(self, at, pred, op, args):
        self.at, self.pred, self.op, self.args = at, pred, op, args.strip()
        self.base = op.split(".")[0]
        self.width = width_of(op)


def width_of(op):
    """Bytes of one lane of a load or store."""
    parts = op.split(".")
    if parts[0] in ("LDSM", "STSM"):  # x1, x2, x4 matrices of 128 bytes, over 32 lanes
        return 4 * int(parts[-1]) if parts[-1] in ("2", "4") else 4
    for p, w in (("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 1), ("S8", 1)):
        if p in parts:
            return w
    return 4


def tensor_flops(op):
    """Operations of one warp's instruction, HGMMA's of its share of a warp group; in units of bf16's
    rate: an int8 or fp8 operation counts half, a tf32 one double."""
    parts = op.split(".")
    base = parts[0]
    if base not in ("HMMA", "IMMA", "QMMA", "BMMA", "HGMMA", "IGMMA", "QGMMA"):
        return 0.0
    rate = 0.5 if base[0] in "IQ" else 2.0 if "TF32" in parts else 1.0
    wide = MMA_SHAPE.search(op)
    if wide:
        m, n, k = (int(v) for v in wide.groups())
        return 2.0 * m * n * k * rate / 4  # four warps share it
    shape = {"16816": (16, 8, 16), "1688": (16, 8, 8), "16832": (16, 8, 32), "8816": (8, 8, 16),
             "8832": (8, 8, 32), "1684": (16, 8, 4), "16864": (16, 8, 64)}.get(parts[1])
    return 2.0 * shape[0] * shape[1] * shape[2] * rate if shape else 0.0


def operand_bytes(ins):
    """Bytes of shared memory that a warp's share of wgmma reads: B, and A where it is no register."""
    wide = MMA_SHAPE.search(ins.op) if "GMMA" in ins.base else None
    if not wide:
        return 0
    a_too = ins.args.split(",")[1].strip().startswith("gdesc")
    return (int(wide.group(2)) + (int(wide.group(1)) if a_too else 0)) * 32 // 4  # k is 32 bytes


class Kernel:
    def __init__(self, name):
        self.name, self.short = name, short_name(name)
        self.regs = self.stack = self.shared = self.local = 0
        self.threads = None
        self.code = []
        self.indirect = {}  # address of a BRX: its targets


def short_name(name):
    """k_few<24,8> of _Z5k_fewILi24ELi8EEv..; what cannot be read stays as it is."""
    m = re.match(r"_Z(?:L|N)?(\d+)", name)
    if not m:
        return name
    end = m.end() + int(m.group(1))
    base, rest = name[m.end():end], name[end:]
    if not rest.startswith("I"):
        return base
    args, rest = [], rest[1:]
    while rest and not rest.startswith("E"):
        lit = re.match(r"L(?:[a-z]|\d+[A-Za-z_]+?)(n?\d+)E", rest)
        if lit:
            args.append(lit.group(1).replace("n", "-"))
            rest = rest[lit.end():]
            continue
        typ = re.match(r"(\d+)", rest)
        n = typ.end() + int(typ.group(1)) if typ else 1
        args.append(rest[typ.end():n] if typ else rest[:1])
        rest = rest[n:]
    return "%s<%s>" % (base, ",".join(args))


# ---- reading cuobjdump ----

def parse(lines):
    """Kernels by name, from the output of -sass, -res-usage and -elf in any order."""
    kernels = {}

    def get(name):
        return kernels.setdefault(name, Kernel(name))

    code = res = info = attribute = None
    branch = None
    for line in lines:
        m = code and LINE.match(line)
        if m:
            code.code.append(Ins(int(m.group(1), 16), m.group(2), m.group(3), m.group(4)))
            continue
        s = line.strip()
        if s.startswith("Function : "):
            code, info = get(s[11:]), None
        elif s.startswith("Function ") and s.endswith(":"):
            res = get(s[9:-1])
        elif res and s.startswith("REG:"):
            m = RES.match(s)
            res.regs, res.stack, res.shared, res.local = (int(v) for v in m.groups())
            res = None
        elif s.startswith(".nv.info."):
            info, code = get(s[9:]), None
        elif s.startswith(".") and " " not in s:
            info = None
        elif info and s.startswith("Attribute:"):
            attribute = s.split()[-1]
        elif info and attribute == "EIATTR_MAX_THREADS" and s.startswith("Value:"):
            x, y, z = (int(v, 16) for v in s.split()[1:4])
            info.threads = x * y * z
        elif info and s.startswith("Offset of Indirect Branch:"):
            branch = int(re.search(r"Branch: (0x[0-9a-f]+)", s).group(1), 16)
        elif info and branch is not None and s.startswith("Targets:"):
            info.indirect[branch] = [int(v, 16) for v in s.split()[1:]]
            branch = None
    return [k for k in kernels.values() if k.code]


def read_lines(path):
    with open(path, encoding="utf-8") as f:
        return f.read().splitlines()


def run_cuobjdump(path):
    lines = []
    for flag in ("-sass", "-res-usage", "-elf"):
        r = subprocess.run(["cuobjdump", flag, path], capture_output=True, text=True)
        if r.returncode != 0:
            sys.exit("gpu_sass: cuobjdump %s %s: %s" % (flag, path, r.stderr.strip()))
        lines += r.stdout.splitlines()
    return lines


# ---- control flow ----

def target_of(ins):
    m = re.search(r"(0x[0-9a-f]+)\s*$", ins.args)
    return int(m.group(1), 16) if m else None


def blocks_of(kernel):
    """[(first, last)] indices of instructions, and for each block its successors."""
    code = kernel.code
    index = {i.at: n for n, i in enumerate(code)}
    jumps, open_at, leaders = {}, {}, {0}
    for n, i in enumerate(code):
        to, falls = [], True
        if i.base == "BRA":
            t = target_of(i)
            to = [index[t]] if t in index else []
            falls = i.pred not in (None, "PT") or ".DIV" in i.op or ", " in i.args
        elif i.base in ("BRX", "JMX"):
            to, falls = [index[t] for t in kernel.indirect.get(i.at, []) if t in index], False
        elif i.base == "BSSY":
            open_at[i.args.split(",")[0]] = target_of(i)
            continue
        elif i.base == "BSYNC":
            t = open_at.get(i.args.split(",")[0])
            if t is None or t == i.at + 16 or t not in index:
                continue
            to, falls = [index[t]], i.pred is not None
        elif i.base in ("EXIT", "RET", "KILL"):
            falls = i.pred is not None
        else:
            continue
        jumps[n] = to + ([n + 1] if falls and n + 1 < len(code) else [])
        leaders.update(to)
        leaders.add(n + 1)
    first = sorted(v for v in leaders if v < len(code))
    place = {v: b for b, v in enumerate(first)}
    blocks, succ = [], []
    for b, v in enumerate(first):
        last = (first[b + 1] if b + 1 < len(first) else len(code)) - 1
        blocks.append((v, last))
        to = jumps.get(last, [last + 1] if last + 1 < len(code) else [])
        succ.append([place[t] for t in to])
    return blocks, succ


def order_of(succ):
    """Reverse postorder from block 0."""
    seen, out, stack = {0}, [], [(0, iter(succ[0]))]
    while stack:
        b, it = stack[-1]
        n = next((t for t in it if t not in seen), None)
        if n is None:
            out.append(b)
            stack.pop()
        else:
            seen.add(n)
            stack.append((n, iter(succ[n])))
    return out[::-1]


def loops_of(kernel):
    """How control flows, and the natural loops: [(header, set of blocks)]."""
    blocks, succ = blocks_of(kernel)
    order = order_of(succ)
    number = {b: n for n, b in enumerate(order)}
    pred = {b: [] for b in order}
    for b in order:
        for t in succ[b]:
            pred[t].append(b)
    idom = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for b in order[1:]:
            new = None
            for p in pred[b]:
                if p not in idom:
                    continue
                new = p if new is None else meet(idom, number, p, new)
            if idom.get(b) != new:
                idom[b], changed = new, True
    loops = {}
    for b in order:
        for h in succ[b]:
            if dominates(idom, h, b):
                body = loops.setdefault(h, {h})
                stack = [b]
                while stack:
                    n = stack.pop()
                    if n not in body:
                        body.add(n)
                        stack += pred[n]
    return Flow(blocks, succ, number), sorted(loops.items())


class Flow:
    def __init__(self, blocks, succ, number):
        self.blocks, self.succ, self.number = blocks, succ, number  # number: in reverse postorder

    def code(self, kernel, some):
        return [i for b in sorted(some)
                for i in kernel.code[self.blocks[b][0]:self.blocks[b][1] + 1]]


def weight(code):
    w = len(code)
    for i in code:
        w += 10000 * (tensor_flops(i.op) > 0)
        w += {16: 500, 8: 200}.get(i.width, 0) if i.base in LOADS else 0
        w -= 100000 * (i.base == "CALL")
    return w


def least_weight(code):
    return sum(1e6 * (tensor_flops(i.op) > 0) - 1 for i in code)


def way_through(kernel, flow, header, body, inner, weight=weight):
    """The blocks of one turn of a loop; those of inner loops weigh nothing."""
    best = {header: (0, None)}
    for b in sorted(body, key=lambda b: flow.number[b]):
        if b not in best:
            continue
        w = best[b][0] + (0 if b in inner else weight(flow.code(kernel, (b,))))
        best[b] = (w, best[b][1])
        for t in flow.succ[b]:
            if t in body and flow.number[t] > flow.number[b] and w > best.get(t, (-1e18,))[0]:
                best[t] = (w, b)
    ends = [b for b in best if header in flow.succ[b]]
    at, way = max(ends, key=lambda b: best[b][0]), set()
    while at is not None:
        way.add(at)
        at = best[at][1]
    return way


def meet(idom, number, a, b):
    while a != b:
        while number[a] > number[b]:
            a = idom[a]
        while number[b] > number[a]:
            b = idom[b]
    return a


def dominates(idom, a, b):
    while b != a and idom[b] != b:
        b = idom[b]
    return a == b


# ---- what a loop needs ----

REGISTER = re.compile(r"\bR(\d+)")


def under_way(code):
    """Bytes of one warp's loads into registers that are under way at most: in order, until the first
    instruction that reads one of them. Two turns."""
    pending, now, most = [], 0, 0
    for i in code + code:
        dest = None
        used = [int(v) for v in REGISTER.findall(i.args)]
        if i.base in ("LDG", "LD") and used:
            dest, used = used[0], used[1:]
        wide = 4 if i.base in ("HMMA", "IMMA") or "128" in i.op or ".64" in i.op else 2
        for n in range(len(pending) - 1, -1, -1):
            regs = pending[n][0]
            if any(u + e in regs for u in used for e in range(wide if u % 2 == 0 else 1)):
                now -= sum(p[1] for p in pending[:n + 1])
                del pending[:n + 1]
                break
        if dest is not None:
            pending.append((range(dest, dest + max(1, i.width // 4)), 32 * i.width))
            now += 32 * i.width
            most = max(most, now)
    return most


def async_under_way(code):
    """Bytes of one warp's copies that are under way beside the ones that are waited for."""
    total = sum(32 * i.width for i in code if i.base == "LDGSTS")
    groups = sum(i.base == "LDGDEPBAR" for i in code)
    waits = [int(i.args.split(",")[1], 16) for i in code if i.base == "DEPBAR" and "," in i.args]
    if not total:
        return 0
    return total if not groups or not waits else total // groups * (max(waits) + 1)


def count(code):
    """Counts of one warp's turn."""
    c = {"n": len(code), "tensor_flops": 0.0, "operand_bytes": 0, "mma": {}, "fp32": 0, "half": 0,
         "fp64": 0, "xu": 0, "alu": 0, "imad": 0, "uniform": 0, "shuffle": 0, "sync": 0,
         "barriers": 0, "control": 0, "calls": 0, "const": 0, "other": 0, "loads": {}, "stores": {},
         "spill": 0}
    for i in code:
        flops = tensor_flops(i.op)
        if i.pred == "!PT":  # never: what the assembler puts before LDGSTS
            c["control"] += 1
        elif flops:
            name = ".".join(p for p in i.op.split(".")[:2])
            c["mma"][name] = c["mma"].get(name, 0) + 1
            c["tensor_flops"] += flops
            c["operand_bytes"] += operand_bytes(i)
        elif i.base in LOADS or i.base in STORES:
            loads = i.base in LOADS
            kind = (LOADS if loads else STORES)[i.base]
            key = "%s%d" % ("LDSM" if i.base == "LDSM" else kind, 8 * i.width)
            table = c["loads" if loads else "stores"]
            table[key] = table.get(key, 0) + 1
            c["spill"] += kind == "local"
        elif i.base in FP32:
            c["fp32"] += 1
        elif i.base in HALF:
            c["half"] += 1
        elif i.base in FP64:
            c["fp64"] += 1
        elif i.base in XU:
            c["xu"] += 1
        elif i.base in ALU:
            c["alu"] += 1
        elif i.base == "IMAD" or i.base == "IDP":
            c["imad"] += 1
        elif i.base in ("SHFL", "VOTE", "MATCH", "REDUX"):
            c["shuffle"] += 1
        elif i.base in SYNC:
            c["sync"] += 1
            c["barriers"] += i.base == "BAR"
        elif i.base in CONTROL:
            c["control"] += 1
            c["calls"] += i.base == "CALL"
        elif i.base in ("LDC", "ULDC", "S2R", "S2UR", "LEPC"):
            c["const"] += 1
        elif i.base.startswith("U") or i.base in ("R2UR", "VOTEU"):
            c["uniform"] += 1
        else:
            c["other"] += 1
    return c


def bytes_of(table, kinds):
    total = 0
    for key, n in table.items():
        m = re.match(r"([A-Za-z]+)(\d+)$", key)
        if m.group(1) in kinds:
            total += 32 * n * int(m.group(2)) // 8
    return total


def cycles_of(c):
    """Cycles of a multiprocessor that one warp's turn takes of each resource."""
    lanes = 32.0
    shared = bytes_of(c["loads"], ("shared", "LDSM", "async")) + bytes_of(c["stores"], ("shared",))
    shared += c["operand_bytes"]
    moved = bytes_of(c["loads"], ("global", "generic", "async", "bulk"))
    written = bytes_of(c["stores"], ("global", "generic", "bulk"))
    peak = c["tensor_flops"] / CARD["tensor_flops_cycle"]
    wide = any("GMMA" in m for m in c["mma"])
    return {
        "tensor": peak if wide else peak / CARD["mma_sync"],
        "issue": c["n"] / CARD["schedulers"],
        "fp32": (c["fp32"] + c["half"]) * lanes / CARD["fp32"],
        "alu": c["alu"] * lanes / CARD["alu"],
        "imad": c["imad"] * lanes / CARD["imad"],
        "fp64": c["fp64"] * lanes / CARD["fp64"],
        "special": c["xu"] * lanes / CARD["xu"],
        "shuffle": c["shuffle"] * lanes / CARD["shuffle"],
        "shared": shared / CARD["shared_bytes"],
        "L2": (moved + written) / CARD["l2_bytes"],
    }, peak, moved + written


def resident(kernel, threads, dynamic):
    """Blocks of a multiprocessor, and what limits them."""
    warps = (threads + 31) // 32
    per_warp = (max(kernel.regs, 1) + 7) // 8 * 8 * 32
    shared = max(kernel.shared, CARD["shared_block"]) + dynamic
    by = {"registers": CARD["registers"] // (per_warp * warps), "warps": CARD["warps"] // warps,
          "shared": CARD["shared_total"] // shared, "blocks": CARD["blocks"]}
    least = min(by, key=lambda k: by[k])
    return by[least], least


def study_loop(kernel, flow, header, body, inner, warps):
    code = flow.code(kernel, way_through(kernel, flow, header, body, inner) - inner)
    c = count(code)
    c["spill"] = sum(i.base in ("LDL", "STL") for i in flow.code(kernel, body - inner))
    cycles, peak, moved = cycles_of(c)
    limit = max(cycles, key=lambda k: cycles[k])
    memory = moved / (CARD["h200_bytes_s"] / CARD["multiprocessors"] / CARD["clock_hz"])
    index = c["alu"] + c["imad"] + c["uniform"] + c["const"]
    work = c["fp32"] + c["half"] + c["fp64"] + c["xu"] + sum(c["mma"].values())
    out = {"at": "0x%x" % kernel.code[flow.blocks[header][0]].at, "inner": not inner, "counts": c,
           "cycles": {k: round(v, 2) for k, v in cycles.items() if v}, "limit": limit,
           "index_slots": index, "work_slots": work, "global_bytes": moved,
           "under_way_warp": max(under_way(code), async_under_way(code))}
    out["under_way"] = out["under_way_warp"] * warps
    if peak:
        out["tensor_share"] = round(peak / cycles[limit], 3)
        least = count(flow.code(kernel, way_through(kernel, flow, header, body, inner,
                                                    least_weight) - inner))
        if least["n"] < c["n"]:  # what most turns take, where some end a part of a sum
            out["least_slots"] = least["n"]
            least_cycles = max(cycles_of(least)[0].values())
            out["tensor_share_least"] = round(peak / least_cycles, 3)
        out["slots_per_tensor_cycle"] = round(c["n"] / cycles["tensor"], 2)
        out["shared_per_tensor_cycle"] = round(cycles["shared"] * 128 / cycles["tensor"], 1)
    if moved:
        out["bytes_share"] = round(min(1.0, memory / cycles[limit]), 3)
    out["flags"] = flags_of(out)
    return out


def flags_of(loop):
    c, flags = loop["counts"], []
    if c["spill"]:
        flags.append("spills: %d" % c["spill"])
    bound = loop.get("bytes_share", 0) > 0.5 and not c["mma"]
    narrow = sum(n for k, n in c["loads"].items() if k[:6] in ("global", "generi") and
                 int(re.sub(r"\D", "", k)) < 128)
    if bound and narrow:
        flags.append("%d loads below 16 bytes" % narrow)
    if loop["index_slots"] > loop["work_slots"] and loop["work_slots"] >= 8:
        flags.append("index %d, work %d" % (loop["index_slots"], loop["work_slots"]))
    if c["calls"]:
        flags.append("calls: %d" % c["calls"])
    if bound and loop["under_way"] < NEEDED:
        flags.append("%.0f KB under way" % (loop["under_way"] / 1024))
    return flags


def study(kernel, options):
    threads = kernel.threads or pick(options.threads, kernel.short, 256)
    dynamic = pick(options.dynamic, kernel.short, 0)
    blocks_sm, why = resident(kernel, threads, dynamic)
    flow, loops = loops_of(kernel)
    out = {"kernel": kernel.short, "symbol": kernel.name, "registers": kernel.regs,
           "shared": kernel.shared, "dynamic": dynamic, "stack": kernel.stack,
           "instructions": len(kernel.code), "threads": threads, "bounds": kernel.threads is not None,
           "blocks": blocks_sm, "blocks_by": why, "warps": blocks_sm * ((threads + 31) // 32),
           "spills": sum(i.base in ("LDL", "STL") for i in kernel.code), "loops": []}
    for h, body in loops:
        inner = set()
        for other, blocks_in in loops:
            if other != h and blocks_in < body:
                inner |= blocks_in
        loop = study_loop(kernel, flow, h, body, inner, out["warps"])
        c = loop["counts"]
        busy = c["mma"] or loop["global_bytes"] or c["spill"] or loop["work_slots"] >= 16
        if options.loops == "all" or busy:
            out["loops"].append(loop)
    return out


def pick(pairs, name, otherwise):
    for p in pairs:
        pattern, value = p.rsplit("=", 1)
        if re.search(pattern, name):
            return int(value)
    return otherwise


# ---- printing ----

def say_counts(c):
    parts = ["%s %d" % (k, n) for k, n in sorted(c["mma"].items())]
    for k in ("fp32", "half", "fp64", "xu", "alu", "imad", "uniform", "const", "shuffle", "control"):
        if c[k]:
            parts.append("%s %d" % (k, c[k]))
    parts += ["ld %s %d" % kv for kv in sorted(c["loads"].items())]
    parts += ["st %s %d" % kv for kv in sorted(c["stores"].items())]
    if c["barriers"]:
        parts.append("BAR %d" % c["barriers"])
    if c["calls"]:
        parts.append("CALL %d" % c["calls"])
    return ", ".join(parts)


def say(k, only_flags):
    loops = [l for l in k["loops"] if l["flags"] or not only_flags]
    if only_flags and not loops and not k["spills"]:
        return
    print("%s: %d registers, %d + %d B shared, %d B stack, %d LDL/STL, %d threads%s: %d blocks by %s, "
          "%d warps" % (k["kernel"], k["registers"], k["shared"], k["dynamic"], k["stack"],
                        k["spills"], k["threads"], "" if k["bounds"] else " (taken)", k["blocks"],
                        k["blocks_by"], k["warps"]))
    for l in loops:
        print("  %s %s: %d slots: %s" % ("loop" if l["inner"] else "outer loop, its own", l["at"],
                                         l["counts"]["n"], say_counts(l["counts"])))
        share = []
        if "tensor_share" in l:
            share.append("tensor peak <= %.0f %% (%.2f slots of 4, %.0f B of 128 shared a cycle)" %
                         (100 * l["tensor_share"], l["slots_per_tensor_cycle"],
                          l["shared_per_tensor_cycle"]))
            if "least_slots" in l:
                share.append("the shortest turn %d slots, <= %.0f %%" %
                             (l["least_slots"], 100 * l["tensor_share_least"]))
        if "bytes_share" in l:
            share.append("memory's rate <= %.0f %%, %.1f KB under way" %
                         (100 * l["bytes_share"], l["under_way"] / 1024))
        cycles = sorted(l["cycles"].items(), key=lambda kv: -kv[1])[:4]
        print("    %s: %s" % ("; ".join(share) or "cycles",
                              ", ".join("%s %.4g" % kv for kv in cycles)))
        if l["flags"]:
            print("    ! " + "; ".join(l["flags"]))


def main(argv=None):
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    a.add_argument("files", nargs="+")
    a.add_argument("--text", action="store_true")
    a.add_argument("--json", action="store_true")
    a.add_argument("--kernel", default="")
    a.add_argument("--dynamic", action="append", default=[])
    a.add_argument("--threads", action="append", default=[])
    a.add_argument("--loops", choices=["all", "busy"], default="busy")
    a.add_argument("--flags", action="store_true")
    options = a.parse_args(argv)
    out = []
    for path in options.files:
        lines = read_lines(path) if options.text else run_cuobjdump(path)
        out += [study(k, options) for k in parse(lines) if re.search(options.kernel, k.short)]
    out.sort(key=lambda k: k["kernel"])
    if not out:
        sys.exit("gpu_sass: no kernel in %s" % ", ".join(options.files))
    if options.json:
        json.dump({"card": CARD, "kernels": out}, sys.stdout, indent=1)
        print()
        return
    print("H100 SXM: %d multiprocessors, %d tensor operations a cycle (mma.sync %.0f %%), bytes against "
          "H200's 4.8 TB/s: %.1f a cycle, %.0f KB under way" %
          (CARD["multiprocessors"], CARD["tensor_flops_cycle"], 100 * CARD["mma_sync"],
           CARD["h200_bytes_s"] / CARD["multiprocessors"] / CARD["clock_hz"], NEEDED / 1024))
    for k in out:
        say(k, options.flags)


if __name__ == "__main__":
    main()
