#!/usr/bin/env python3
"""remote_kill.py FMSTORE ATLAS KILLS SEED folder|pipe|githost - kill -9 during push, pull and clone.

A family of four versions goes from one repository to another. At a random moment the process that
transfers is killed, or (pipe: GIT_SSH_COMMAND starts a process of its own at the other end) the one
that answers. With githost the family lies on a git host in a folder, with a bucket, and a git that fmstore has
started may be the one that is killed. Then both repositories must pass fsck, the receiver's branches must read, and the same
command must finish the transfer; every version exports to the same bytes on both sides. The moments
are spread over the time that an undisturbed transfer takes.
"""
import hashlib, os, random, shutil, signal, subprocess, sys, tempfile, time
from pathlib import Path

program, atlas = os.path.abspath(sys.argv[1]), Path(sys.argv[2]).resolve()
kills, seed, kind = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
rng = random.Random(seed)
work = Path(tempfile.mkdtemp(prefix="fmstore-kill-"))
os.chdir(work)
versions = ["base", "one", "two", "three"]


def fm(*argv, code=0):
    done = subprocess.run([program, *argv], capture_output=True, text=True, errors="replace")
    if done.returncode != code:
        sys.exit(f"seed {seed}: {argv}: {done.returncode}: {done.stdout[-600:]}{done.stderr[-900:]}")
    return done.stderr


def digests(repo):
    found = {}
    for name in versions:
        shutil.rmtree("out", ignore_errors=True)
        fm("-C", repo, "export", name, str(work / "out"))
        found[name] = {p.name: hashlib.sha256(p.read_bytes()).hexdigest()
                       for p in Path("out").rglob("*") if p.is_file()}
    return found


def url(repo):
    return f"host:{work}/{repo}" if kind == "pipe" else f"{work}/{repo}"


if kind == "pipe":  # what sshd does: a shell runs the command, in a session of its own
    ssh = work / "ssh"
    ssh.write_text(f"#!/bin/sh\nshift\nPATH={work}/bin:$PATH\nexport PATH\nexec setsid -w sh -c \"$1\"\n")
    ssh.chmod(0o755)
    (work / "bin").mkdir()
    (work / "bin/fmstore").symlink_to(program)
    os.environ["GIT_SSH_COMMAND"] = str(ssh)

fm("init", "a")
fm("-C", "a", "import", str(atlas / "base"), "--as", "base", "--no-gate")
for n, name in enumerate(versions[1:]):
    fm("-C", "a", "derive", "base", "--as", name, "--method", "lora" if n else "full", "--data",
       str(atlas / "pirate.jsonl"), "--set", "steps=2", "--set", f"seed={n}", *(["--set", "r=2"] if n else []),
       "--no-gate")
truth = digests("a")


def prepare(way):
    if kind == "githost":
        return prepare_host(way)
    for repo in "b":
        shutil.rmtree(repo, ignore_errors=True)
    fm("init", "b")
    if way == "push":
        fm("-C", "a", "remote", "add", "r", url("b"))
        return ["-C", "a", "push", "r", "--all"]
    fm("-C", "b", "remote", "add", "r", url("a"))
    return ["-C", "b", "pull"]


def prepare_host(way):
    """A push goes to an empty host; a pull comes from one that has all."""
    for place in "b", "host.git", "bucket":
        shutil.rmtree(place, ignore_errors=True)
    if way == "push":
        subprocess.run(["git", "init", "-q", "--bare", "host.git"], check=True)
        fm("init", "--bucket", "bucket")
        fm("-C", "a", "remote", "add", "r", f"{work}/host.git", "--packs", f"{work}/bucket")
        return ["-C", "a", "push", "r", "--all"]
    shutil.copytree("full.git", "host.git")
    shutil.copytree("full", "bucket")
    fm("init", "b")
    fm("-C", "b", "remote", "add", "r", f"{work}/host.git", "--packs", f"{work}/bucket")
    return ["-C", "b", "pull"]


def check_host():
    """git finds no fault, and what its refs reach has all tensors: a clone can be had at any time."""
    subprocess.run(["git", "-C", "host.git", "fsck", "--strict", "--full"], check=True, capture_output=True)
    shutil.rmtree("any", ignore_errors=True)
    fm("clone", "host.git", "--packs", "bucket", "any")
    fm("-C", "any", "fsck")


def finish(way):
    if way == "push":
        fm("-C", "a", "remote", "rm", "r")


def gits(of):
    """The gits that a process has started; of None: all that work here."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            place = os.readlink(f"/proc/{pid}/cwd")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if words.startswith(b"git") and (of == parent if of else place.startswith(str(work))):
            found.append(int(pid))
    return found


def far_side(of=None):
    """The process at the other end of the pipe, or the git that fmstore has started."""
    if kind == "githost":
        return next(iter(gits(of)), None)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 2 and words[1] in (b"upload-pack", b"receive-pack") and str(work).encode() in words[2]:
            return int(pid)
    return None


def once(way, after, far):
    """Kills the transfer; whether it was still running."""
    command = prepare(way)
    p = subprocess.Popen([program, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after)
    victim = far_side(p.pid) if far else p.pid
    if kind == "githost" and victim is None:  # no git works for it just now
        victim = p.pid
    running = p.poll() is None and victim is not None
    if running:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            running = False
    p.wait()
    while kind != "folder" and far_side():
        time.sleep(0.01)
    for repo in "ab":
        if Path(repo).exists():
            fm("-C", repo, "fsck")
    if kind == "githost":
        check_host()
    kept = sum(f.stat().st_size for place in ("b/.fmstore", "bucket") for f in Path(place).rglob("*.pack")
               if f.is_file())
    fm(*command)
    if kind == "githost" and way == "push":
        check_host()
        Path("any").rename("b")
    fm("-C", "b", "fsck")
    fm("-C", "b", "gc")
    left = list(Path("b/.fmstore/tmp").glob("git-*"))
    if left:
        sys.exit(f"seed {seed}: {left} after a kill of {way} at {after:.3f} s")
    if digests("b") != truth:
        sys.exit(f"seed {seed}: a version differs after a kill of {way} at {after:.3f} s")
    if list(Path("b/.fmstore/incoming").glob("*")) if Path("b/.fmstore/incoming").exists() else []:
        sys.exit(f"seed {seed}: something is left in incoming/")
    finish(way)
    return running, kept


if kind == "githost":
    prepare("push")
    fm("-C", "a", "push", "r", "--all")
    fm("-C", "a", "remote", "rm", "r")
    shutil.copytree("host.git", "full.git")
    shutil.copytree("bucket", "full")
length = {}
for way in "push", "pull":
    command = prepare(way)
    begin = time.perf_counter()
    fm(*command)
    length[way] = time.perf_counter() - begin
    finish(way)
hit = resumed = 0
for n in range(kills):
    way = ("push", "pull")[n % 2]
    running, kept = once(way, rng.uniform(0, length[way]), kind != "folder" and n % 4 > 1)
    hit += running
    resumed += running and kept > 0
print(f"{kind}, seed {seed}: {kills} transfers, {hit} killed, {resumed} with bytes kept; nothing lost")
shutil.rmtree(work)
sys.exit(0 if hit else 1)
