#!/usr/bin/env python3
"""gpu_sass.py reads gpu_sass.txt (two kernels, recorded from cuobjdump) as counted by hand, and small
texts that show one thing each. Needs no CUDA tool."""
import contextlib
import io
import json
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import gpu_sass  # noqa: E402


def run(*args):
    """0 and what it printed, or what it ends with."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            gpu_sass.main(list(args))
    except SystemExit as e:
        return e.code, out.getvalue()
    return 0, out.getvalue()


def kernel_of(*lines):
    """A kernel of these instructions, 16 bytes each."""
    text = ["Function : k_text"]
    text += ["  /*%04x*/ %s ;" % (16 * n, line) for n, line in enumerate(lines)]
    return gpu_sass.parse(text)[0]


class Options:
    threads, dynamic, loops = [], [], "busy"


def loops(kernel):
    flow, found = gpu_sass.loops_of(kernel)
    return [(flow.blocks[h][0], sorted({n for b in body for n in range(flow.blocks[b][0],
                                                                       flow.blocks[b][1] + 1)}))
            for h, body in found]


class Recorded(unittest.TestCase):
    def setUp(self):
        code, out = run("--json", "--text", os.path.join(HERE, "gpu_sass.txt"))
        self.assertEqual(code, 0)
        self.kernels = {k["kernel"]: k for k in json.loads(out)["kernels"]}

    def test_names_and_resources(self):
        self.assertEqual(sorted(self.kernels), ["k_ring", "k_roots<3,1>"])
        ring, roots = self.kernels["k_ring"], self.kernels["k_roots<3,1>"]
        self.assertEqual((ring["registers"], ring["shared"], ring["threads"]), (24, 9216, 128))
        self.assertEqual((roots["registers"], roots["bounds"]), (23, False))
        # 64 warps / 4; 24 blocks' worth of shared memory and 21 of registers would fit.
        self.assertEqual((ring["blocks"], ring["blocks_by"]), (16, "warps"))

    def test_ring(self):
        (loop,) = self.kernels["k_ring"]["loops"]
        c = loop["counts"]
        self.assertEqual(loop["at"], "0x1f0")
        self.assertEqual(c["n"], 24)  # 0x1f0 .. 0x360
        self.assertEqual(c["mma"], {"HMMA.16816": 1})
        self.assertEqual(c["tensor_flops"], 4096)  # 2 * 16 * 8 * 16
        self.assertEqual((c["alu"], c["imad"], c["sync"]), (10, 4, 2))
        self.assertEqual(c["loads"], {"LDSM128": 1, "async128": 1})  # no LDS that never runs
        # 512 bytes arrive, 512 are read; four groups are under way.
        self.assertEqual(loop["cycles"]["shared"], 8)
        self.assertEqual(loop["under_way_warp"], 2048)
        self.assertEqual(loop["tensor_share"], 0.125)

    def test_roots(self):
        (loop,) = self.kernels["k_roots<3,1>"]["loops"]
        c = loop["counts"]
        # 0xa0 .. 0x250 are 28; the call's four (MOV, CALL, MOV, BRA) are left out.
        self.assertEqual((c["n"], c["calls"]), (24, 0))
        self.assertEqual((c["fp32"], c["xu"]), (8, 1))
        self.assertEqual(loop["under_way_warp"], 2 * 32 * 16)
        self.assertEqual(loop["global_bytes"], 3 * 32 * 16)
        self.assertEqual(loop["flags"], [])

    def test_table_and_flags(self):
        code, out = run("--text", os.path.join(HERE, "gpu_sass.txt"))
        self.assertEqual(code, 0)
        self.assertIn("k_ring: 24 registers", out)
        self.assertIn("tensor peak <= 12 %", out)
        code, out = run("--flags", "--kernel", "roots", "--text", os.path.join(HERE, "gpu_sass.txt"))
        self.assertNotIn("k_ro", out)

    def test_dynamic_memory_lowers_blocks(self):
        _, out = run("--json", "--dynamic", "ring=50000", "--text",
                        os.path.join(HERE, "gpu_sass.txt"))
        ring = [k for k in json.loads(out)["kernels"] if k["kernel"] == "k_ring"][0]
        self.assertEqual((ring["blocks"], ring["blocks_by"]), (3, "shared"))  # 233472 / 59216

    def test_no_kernel_is_an_error(self):
        code, _ = run("--text", "--kernel", "no_such", os.path.join(HERE, "gpu_sass.txt"))
        self.assertIn("no kernel", str(code))


class Flow(unittest.TestCase):
    def test_nested_loops(self):
        k = kernel_of("MOV R0, RZ", "MOV R1, RZ", "IADD3 R1, R1, 0x1, RZ", "@P0 BRA 0x20",
                      "IADD3 R0, R0, 0x1, RZ", "@P1 BRA 0x10", "EXIT")
        self.assertEqual(loops(k), [(1, [1, 2, 3, 4, 5]), (2, [2, 3])])

    def test_a_backward_branch_that_is_no_loop(self):
        # The slow way stands behind and jumps back in front of nothing that leads to it again.
        k = kernel_of("@P0 BRA 0x30", "FADD R0, R0, R1", "EXIT", "FMUL R0, R0, R0", "BRA 0x10")
        self.assertEqual(loops(k), [])

    def test_bsync_goes_where_bssy_says(self):
        # The way out of line (4, 5) meets again at 3 and belongs to the loop.
        k = kernel_of("BSSY B0, 0x30", "@P0 BRA 0x50", "BSYNC B0", "@P1 BRA 0x0", "EXIT",
                      "FMUL R0, R0, R0", "BSYNC B0")
        self.assertEqual(loops(k), [(0, [0, 1, 2, 3, 5, 6])])

    def test_branch_table(self):
        text = ["Function : k_t", "/*0000*/ BRX R2 -0x10 ;", "/*0010*/ BRA 0x0 ;", "/*0020*/ EXIT ;",
                ".nv.info.k_t", "Attribute: EIATTR_INDIRECT_BRANCH_TARGETS",
                "Offset of Indirect Branch: 0x0 Number of targets: 2", "Targets: 0x10 0x20"]
        k = gpu_sass.parse([text[0]] + ["  " + t if t[0] == "/" else t for t in text[1:]])[0]
        self.assertEqual(loops(k), [(0, [0, 1])])

    def test_the_way_with_tensor_work_is_counted(self):
        k = kernel_of("@P0 BRA 0x40", "FADD R0, R0, R0", "FADD R0, R0, R0", "BRA 0x50",
                      "HMMA.16816.F32.BF16 R4, R8, R2, R4", "@P1 BRA 0x0", "EXIT")
        flow, ((header, body),) = gpu_sass.loops_of(k)
        way = gpu_sass.way_through(k, flow, header, body, set())
        self.assertEqual([i.base for i in flow.code(k, way)], ["BRA", "HMMA", "BRA"])

    def test_turns_that_end_a_part_and_turns_that_do_not(self):
        k = kernel_of("HMMA.16816.F32.BF16 R4, R8, R2, R4", "@P0 BRA 0x40", "FADD R0, R0, R0",
                      "FADD R1, R1, R1", "@P1 BRA 0x0", "EXIT")
        (loop,) = gpu_sass.study(k, Options)["loops"]
        self.assertEqual((loop["counts"]["n"], loop["least_slots"]), (5, 3))


class Counting(unittest.TestCase):
    def test_widths(self):
        for op, width in (("LDG.E.128", 16), ("LDG.E.64.CONSTANT", 8), ("LDS.U16", 2), ("LDG.E.U8", 1),
                          ("LDG.E", 4), ("LDSM.16.M88.4", 16), ("LDSM.16.MT88.2", 8),
                          ("LDGSTS.E.BYPASS.128.ZFILL", 16)):
            self.assertEqual(gpu_sass.width_of(op), width, op)

    def test_tensor_operations(self):
        # In units of bf16's rate; wgmma's are shared by four warps.
        for op, flops in (("HMMA.16816.F32.BF16", 4096), ("HMMA.1688.F32.TF32", 4096),
                          ("IMMA.16832.S8.S8", 4096), ("FFMA", 0),
                          ("HGMMA.64x128x16.F32.BF16", 64 * 128 * 16 * 2 / 4)):
            self.assertEqual(gpu_sass.tensor_flops(op), flops, op)

    def test_operands_of_wgmma_in_shared_memory(self):
        k = kernel_of("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24, gsb0",
                      "HGMMA.64x128x16.F32.BF16 R24, R4, gdesc[UR4], R24, gsb0", "@P0 BRA 0x0", "EXIT")
        # B is 128 x 16 bf16, A 64 x 16, each warp's share a quarter.
        self.assertEqual([gpu_sass.operand_bytes(i) for i in k.code[:3]], [1536, 1024, 0])
        cycles, peak, _ = gpu_sass.cycles_of(gpu_sass.count(k.code))
        self.assertEqual((cycles["tensor"], peak), (32, 32))  # 2 * 2 * 64 * 128 * 16 / 4 / 4096
        self.assertEqual(cycles["shared"], 20)

    def test_loads_wait_for_their_first_use(self):
        k = kernel_of("LDG.E R4, [R2.64]", "FADD R5, R4, R4", "LDG.E.128 R8, [R2.64]",
                      "LDG.E.128 R12, [R2.64]", "FADD R5, R8, R12")
        self.assertEqual(gpu_sass.under_way(k.code[:2]), 128)
        self.assertEqual(gpu_sass.under_way(k.code), 1024)

    def test_spills_and_narrow_loads_are_told(self):
        k = kernel_of("LDL R9, [R1]", "LDG.E R4, [R2.64]", "STG.E [R2.64], R4", "@P0 BRA 0x0", "EXIT")

        (loop,) = gpu_sass.study(k, Options)["loops"]
        self.assertIn("spills: 1", loop["flags"])
        self.assertIn("1 loads below 16 bytes", loop["flags"])

    def test_names(self):
        for symbol, short in (("_Z5k_fewILi24ELi8EEv8fmc_listI8few_taskE", "k_few<24,8>"),
                              ("_Z5k_addPfPKfmb", "k_add"), ("_Z3k_bILb1EEvv", "k_b<1>"),
                              ("_Z3k_tIL8fm_dtype3E5thingEvv", "k_t<3,thing>"), ("main", "main")):
            self.assertEqual(gpu_sass.short_name(symbol), short)


if __name__ == "__main__":
    unittest.main()
