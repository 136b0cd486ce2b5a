#!/usr/bin/env python3
"""bench_remote.py FMSTORE GGUF [FOLDER]: bytes on the wire, and wall time, of a family that is shared.

The family is SmolLM2 in bf16 (made of its GGUF): the base, a LoRA child, a full fine-tune, a merge of
the two. At each step the same news goes by `fmstore push` and `fmstore clone` or `pull`, by git lfs, by
rsync and by a plain copy; what the peers move are the exports that a person would share: folders of
safetensors, the adapter as PEFT has it. Bytes are
fmstore's own count of its connection; the sizes of new LFS objects with git's pack; what rsync --stats
says it sent; the sizes of files. The wall time of transfers of the base, and of 512 MiB that cannot be
coded, stands beside `cp` and `sync` of the same repository, in turns (medians). On a busy machine
`chrt -r 1` before the command makes that comparable.
"""
import json, os, re, shutil, statistics, struct, subprocess, sys, tempfile, time
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


def noise():
    """A repository of one tensor of 32 MiB of random bytes, sixteen times."""
    each, count = 32 << 20, 16
    tensors = {f"t{i}": {"dtype": "U8", "shape": [each], "data_offsets": [i * each, (i + 1) * each]}
               for i in range(count)}
    head = json.dumps(tensors).encode()
    with open("noise.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for _ in range(count):
            f.write(os.urandom(each))
    fm("init", "noise")
    fm("-C", "noise", "import", f"{root}/noise.safetensors", "--as", "base", "--no-gate")
    os.remove("noise.safetensors")
    fm("init", "--bare", "noise.hub")
    fm("-C", "noise", "push", f"{root}/noise.hub", "base")


def server(repo):
    (root / "key").write_text("k\n")
    os.environ["FMSTORE_TOKEN"] = "k"
    s = subprocess.Popen([program, "-C", repo, "serve", "--port", "0", "--remote-write", "--api-key-file",
                          str(root / "key")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
    url = re.search(r"http://[\d.:]+", s.stdout.readline())
    if not url or "a remote at that URL" not in s.stdout.readline():
        sys.exit("fmstore serve does not start")
    return s, url[0]


def rates(what, repo, hub, turns=5):
    seconds, to = {}, f"{root}/to"

    def take(name, *commands, serves=None):
        process, url = server(serves) if serves else (None, None)
        run("sync")
        begin = time.perf_counter()
        for c in commands:
            run(*[url if word == "URL" else word for word in c])
        seconds.setdefault(name, []).append(time.perf_counter() - begin)
        if process:
            process.kill()
            process.wait()
        shutil.rmtree(to)

    for _ in range(turns):
        take("cp and sync", ("cp", "-r", hub, to), ("sync", "-f", to))
        take("clone of a folder", (program, "clone", hub, to))
        take("clone over HTTP", (program, "clone", "URL", to), serves=hub)
        run(program, "init", "--bare", to)
        take("push to a folder", (program, "-C", repo, "push", to, "base"))
        run(program, "init", "--bare", to)
        take("push over HTTP", (program, "-C", repo, "push", "URL", "base"), serves=to)
        run(program, "init", "--bucket", to)
        take("push to a folder bucket", (program, "-C", repo, "push", to, "base"))
        run(program, "init", "--bucket", to)
        run(program, "-C", repo, "push", to, "base")
        os.rename(to, "bucket")
        take("clone of a folder bucket", (program, "clone", "bucket", to))
        shutil.rmtree("bucket")
    cp = statistics.median(seconds["cp and sync"])
    for name, taken in seconds.items():
        t = statistics.median(taken)
        print(f"({what}, {size(hub) / 1e6:.1f} MB: {name} {t:.3f} s, {size(hub) / t / 1e6:.0f} MB/s, "
              f"{100 * cp / t:.0f} % of cp's rate)", flush=True)


print("| news | push, MB | clone or pull, MB | git lfs | rsync | copy | push | clone or pull |")
print("|---|---|---|---|---|---|---|---|")
step("the base", "base", lambda: shutil.copytree("base", peers.files / "base"))
rates("the base", "a", "hub")
noise()
rates("512 MiB of noise", "noise", "noise.hub")
fm("-C", "a", "derive", "base", "--as", "lora", "--method", "lora", "--data", str(data), "--set", "steps=2",
   "--set", "r=8", "--no-gate")
step("one LoRA more", "lora", lambda: add("lora", ["peft"]))
fm("-C", "a", "derive", "base", "--as", "full", "--method", "full", "--data", str(data), "--set", "steps=1",
   "--set", "batch=1", "--set", "lr=1e-5", "--no-gate")
step("one full fine-tune more", "full", lambda: add("full", ["hf", "--dtype", "bf16"]))
fm("-C", "a", "merge", "lora", "full", "--as", "both", "--no-gate")
step("one merge more", "both", lambda: add("both", ["hf", "--dtype", "bf16"]))
step("nothing new", None, lambda: None)
