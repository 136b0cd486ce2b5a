#!/usr/bin/env python3
"""bench_start.py FMSTORE [RUNS]: milliseconds of short commands, beside `git log` on the same lineage.

Each command runs RUNS times (100), one command after another in each round, on a warm disk. Printed
are the least and the median of the wall clock and the median of CPU time (user and kernel).
"""
import os, statistics, subprocess, sys, tempfile, time
from pathlib import Path

program = os.path.abspath(sys.argv[1])
runs = int(sys.argv[2]) if len(sys.argv) > 2 else 100
atlas = Path(__file__).resolve().parents[2] / "examples" / "atlas" / "base"
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]


def once(argv):
    begin = time.perf_counter()
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=quiet)
    _, status, used = os.wait4(pid, 0)
    wall = time.perf_counter() - begin
    if status:
        sys.exit(f"{argv}: status {status}")
    return 1e3 * wall, 1e3 * (used.ru_utime + used.ru_stime)


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for argv in ["init", "."], ["import", str(atlas), "--as", "base", "--no-gate"]:
        subprocess.run([program, *argv], check=True, stdout=subprocess.DEVNULL)
    asked = {
        "git log": ["git", "--git-dir", ".fmstore/lineage.git", "log", "base"],
        "fmstore version": [program, "version"],
        "fmstore log": [program, "log"],
        "fmstore ls": [program, "ls"],
        "fmstore show base": [program, "show", "base"],
    }
    took = {name: [] for name in asked}
    for round in range(runs + 3):
        for name, argv in asked.items():
            took[name].append(once(argv))
    print(f"{'':18} {'least':>7} {'median':>7} {'CPU':>7}  ms, {runs} runs")
    for name, all_runs in took.items():
        wall, cpu = zip(*all_runs[3:])
        print(f"{name:18} {min(wall):7.1f} {statistics.median(wall):7.1f} {statistics.median(cpu):7.1f}")
