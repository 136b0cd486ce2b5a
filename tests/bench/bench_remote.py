#!/usr/bin/env python3
"""bench_remote.py FMSTORE GGUF [FOLDER]: bytes on the wire, and wall time, of a family that is shared.

The family is SmolLM2 in bf16 (made of its GGUF): the base, a LoRA child, a full fine-tune, a merge of
the two. At each step the same news goes by `fmstore push` and `fmstore clone` or `pull`, by git lfs, by
rsync and by a plain copy; what the peers move are the exports that a person would share: folders of
safetensors, the adapter as PEFT has it. Bytes are
fmstore's own count of its connection; the sizes of new LFS objects with git's pack; what rsync --stats
says it sent; the sizes of files. The wall time of a clone stands beside `cp` and `sync` of
the packs.
"""
import os, re, shutil, subprocess, sys, tempfile, time
from pathlib import Path

program, gguf = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
root = Path(sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp(prefix="fmstore-remote-"))
root.mkdir(parents=True, exist_ok=True)
os.chdir(root)
units = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def run(*argv, cwd=None):
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"{argv}: {done.returncode}: {done.stdout[-500:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def fm(*argv):
    begin = time.perf_counter()
    text = run(program, *argv)
    wire = re.search(r"([\d.]+) (B|kB|MB|GB) on the wire", text)
    return (float(wire[1]) * units[wire[2]] if wire else 0, time.perf_counter() - begin)


def size(path):
    return sum(p.stat().st_size for p in Path(path).rglob("*") if p.is_file())


def lfs_objects(repo):
    return {p.name: p.stat().st_size for p in Path(repo, "lfs/objects").rglob("*") if p.is_file()}


class Peers:
    """A folder of exports, sent by each tool to a place of its own."""

    def __init__(self):
        self.files = root / "files"
        self.files.mkdir()
        run("git", "init", "-q", "--bare", "lfs.git")
        run("git", "init", "-q", "lfs")
        for key, value in ("user.name", "x"), ("user.email", "x@x"):
            run("git", "config", key, value, cwd="lfs")
        run("git", "lfs", "install", "--local", cwd="lfs")
        run("git", "lfs", "track", "*.gguf", "*.safetensors", cwd="lfs")
        run("git", "remote", "add", "origin", f"file://{root}/lfs.git", cwd="lfs")
        self.copied = set()

    def send(self):
        run("rsync", "-a", f"{self.files}/", "lfs/")
        before, packs = lfs_objects("lfs.git"), size("lfs.git/objects")
        run("git", "add", "-A", cwd="lfs")
        run("git", "commit", "-q", "--allow-empty", "-m", "news", cwd="lfs")
        run("git", "push", "-q", "origin", "HEAD:main", cwd="lfs")
        after = lfs_objects("lfs.git")
        lfs = sum(n for name, n in after.items() if name not in before) + size("lfs.git/objects") - packs
        stats = run("rsync", "-a", "--no-whole-file", "--stats", f"{self.files}/", "rsynced/")
        sent = sum(int(re.search(rf"Total bytes {w}: ([\d,]+)", stats)[1].replace(",", ""))
                   for w in ("sent", "received"))
        new = {p for p in self.files.rglob("*") if p.is_file()} - self.copied
        self.copied |= new
        return lfs, sent, sum(p.stat().st_size for p in new)


fm("init", "a")
fm("init", "--bare", "hub")
fm("-C", "a", "remote", "add", "origin", f"{root}/hub")
data = Path(__file__).resolve().parents[2] / "examples" / "atlas" / "clerk.jsonl"
fm("init", "made")
fm("-C", "made", "import", gguf, "--as", "base", "--no-gate")
fm("-C", "made", "export", "base", f"{root}/base", "--format", "hf", "--dtype", "bf16")
shutil.rmtree("made")
fm("-C", "a", "import", "../base", "--as", "base", "--no-gate")
peers = Peers()
rows = []


def step(name, branch, export):
    export()
    push, push_s = fm("-C", "a", "push", "origin", *([branch] if branch else ["--all"]))
    if Path("b").exists():
        pull, pull_s = fm("-C", "b", "pull")
    else:
        pull, pull_s = fm("clone", "hub", "b")
    rows.append((name, push, push_s, pull, pull_s, *peers.send()))
    print(f"| {name} | {push / 1e6:.3f} | {pull / 1e6:.3f} | "
          + " | ".join(f"{n / 1e6:.3f}" for n in rows[-1][5:])
          + f" | {push_s:.2f} s | {pull_s:.2f} s |", flush=True)


def add(branch, form):
    fm("-C", "a", "export", branch, str(peers.files / branch), "--format", *form)


print("| news | push, MB | clone or pull, MB | git lfs | rsync | copy | push | clone or pull |")
print("|---|---|---|---|---|---|---|---|")
step("the base", "base", lambda: shutil.copytree("base", peers.files / "base"))
cold = time.perf_counter()
run("cp", "-r", "hub", "hub.copy")
run("sync", "-f", "hub.copy")
cp_s = time.perf_counter() - cold
print(f"(cp -r and sync of the bare repository, {size('hub') / 1e6:.1f} MB: {cp_s:.2f} s; "
      f"clone / cp = {cp_s / rows[0][4]:.2f} of its rate)")
fm("-C", "a", "derive", "base", "--as", "lora", "--method", "lora", "--data", str(data), "--set", "steps=2",
   "--set", "r=8", "--no-gate")
step("one LoRA more", "lora", lambda: add("lora", ["peft"]))
fm("-C", "a", "derive", "base", "--as", "full", "--method", "full", "--data", str(data), "--set", "steps=1",
   "--set", "batch=1", "--set", "lr=1e-5", "--no-gate")
step("one full fine-tune more", "full", lambda: add("full", ["hf", "--dtype", "bf16"]))
fm("-C", "a", "merge", "lora", "full", "--as", "both", "--no-gate")
step("one merge more", "both", lambda: add("both", ["hf", "--dtype", "bf16"]))
step("nothing new", None, lambda: None)
