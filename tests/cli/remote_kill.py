#!/usr/bin/env python3
"""remote_kill.py FMSTORE ATLAS KILLS SEED folder|pipe|s3|githost - kill -9 during push, pull and clone.

A family of four versions goes from one repository to another. At a random moment the process that
transfers is killed, or the one that answers (pipe: GIT_SSH_COMMAND starts a process of its own at
the other end; s3: what stands between the client and the server, which is started anew at once, so
that requests and answers are cut at any byte; githost: a git that fmstore has started, the family
being on a git host in a folder, with a bucket). Then both sides must pass fsck, the receiver's
branches must read, and the same command must finish the transfer; every version exports to the same
bytes on both sides. The moments are spread over the time that an undisturbed transfer takes.

s3 finds the server (AWS_ENDPOINT_URL, its credentials, the bucket "models") in the environment and
needs a Python that has boto3. There the family has a model of 40 MiB too, whose pack is uploaded in
parts, and beside two of three pushes another repository pushes a branch.
"""
import hashlib, json, os, random, re, shutil, signal, struct, subprocess, sys, tempfile, time
from pathlib import Path

program, atlas = os.path.abspath(sys.argv[1]), Path(sys.argv[2]).resolve()
kills, seed, kind = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
rng = random.Random(seed)
work = Path(tempfile.mkdtemp(prefix="fmstore-kill-"))
os.chdir(work)
versions = ["base", "one", "two", "three"]
round_number = 0
NOTHING = "there is no repository of fmstore"


def run(*argv):
    return subprocess.run([program, *argv], capture_output=True, text=True, errors="replace")


def stop(text):
    sys.exit(f"seed {seed}, transfer {round_number}: {text}")


def fm(*argv, code=0):
    done = run(*argv)
    if done.returncode != code:
        stop(f"{argv}: {done.returncode}: {done.stdout[-600:]}{done.stderr[-900:]}")
    return done.stdout


def digests(repo, names=None):
    found = {}
    for name in names or versions:
        shutil.rmtree("out", ignore_errors=True)
        if name == "big":  # it came as one file
            Path("out").mkdir()
            fm("-C", repo, "export", name, str(work / "out/big.safetensors"), "--format", "source")
        else:
            fm("-C", repo, "export", name, str(work / "out"))
        found[name] = {p.name: hashlib.sha256(p.read_bytes()).hexdigest()
                       for p in Path("out").rglob("*") if p.is_file()}
    return found


def derive(repo, name, n, *more):
    fm("-C", repo, "derive", "base", "--as", name, "--data", str(atlas / "pirate.jsonl"), "--set", "steps=2",
       "--set", f"seed={n}", *more, "--no-gate")


# ==== where the far side is ====

relay, target = None, 0
RELAY = """
import os, socket, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()  # the test has ended
def pump(a, b):
    try:
        while data := a.recv(16384):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass
door = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
print("ready", flush=True)
while True:
    near, _ = door.accept()
    far = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    for pair in (near, far), (far, near):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


def start_relay(port):
    global relay
    relay = subprocess.Popen([sys.executable, "-c", RELAY, str(port), str(target)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
    if relay.stdout.readline() != b"ready\n":
        stop("the relay does not start")


def url(repo):
    if kind == "s3":
        return f"s3://models/kills-{seed}/{repo}-{round_number if repo == 'b' else 'whole'}"
    return f"host:{work}/{repo}" if kind == "pipe" else f"{work}/{repo}"


if kind == "pipe":  # what sshd does: a shell runs the command, in a session of its own
    ssh = work / "ssh"
    ssh.write_text(f"#!/bin/sh\nshift\nPATH={work}/bin:$PATH\nexport PATH\nexec setsid -w sh -c \"$1\"\n")
    ssh.chmod(0o755)
    (work / "bin").mkdir()
    (work / "bin/fmstore").symlink_to(program)
    os.environ["GIT_SSH_COMMAND"] = str(ssh)
if kind == "s3":
    import socket
    import boto3
    client = boto3.client("s3")  # past the relay: what lies there
    target = int(os.environ["AWS_ENDPOINT_URL"].rsplit(":", 1)[1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        relay_port = free.getsockname()[1]
    start_relay(relay_port)
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{relay_port}"

fm("init", "a")
fm("-C", "a", "import", str(atlas / "base"), "--as", "base", "--no-gate")
for n, name in enumerate(versions[1:]):
    derive("a", name, n, *(["--method", "lora", "--set", "r=2"] if n else ["--method", "full"]))
if kind == "s3":
    header, at, each = {}, 0, 4 << 20
    for i in range(10):
        header[f"w{i}"] = {"dtype": "F32", "shape": [each // 4], "data_offsets": [at, at + each]}
        at += each
    head = json.dumps(header).encode()
    Path("big.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + rng.randbytes(at))
    fm("-C", "a", "import", str(work / "big.safetensors"), "--as", "big", "--no-gate")
    versions.append("big")
    fm("init", "c")  # who pushes at the same time
    fm("-C", "c", "import", str(atlas / "base"), "--as", "base", "--no-gate")
    derive("c", "theirs", 99, "--method", "lora", "--set", "r=2")
truth = digests("a")
theirs = digests("c", ["theirs"]) if kind == "s3" else {}


def prepare(way):
    global round_number
    if kind == "githost":
        return prepare_host(way)
    round_number += 1
    shutil.rmtree("b", ignore_errors=True)
    if way == "push":
        if kind != "s3":
            fm("init", "b")
        fm("-C", "a", "remote", "add", "r", url("b"))
        return ["-C", "a", "push", "r", "--all"]
    fm("init", "b")
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
    """The process at the other end, or the git that fmstore has started."""
    if kind == "s3":
        return relay.pid
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


def revive():
    if kind == "s3" and relay.poll() is not None:
        start_relay(relay_port)
    while kind in ("pipe", "githost") and far_side():
        time.sleep(0.01)


# ==== what lies in a bucket ====

def objects(prefix, suffix):
    found = []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="models", Prefix=prefix):
        found += [(o["Key"], o["Size"]) for o in page.get("Contents", []) if o["Key"].endswith(suffix)]
    return found


def uploads(prefix):
    left = client.list_multipart_uploads(Bucket="models").get("Uploads", [])
    return [u for u in left if u["Key"].startswith(prefix)]


def check_bucket():
    """Whatever a kill left: every pack is what its name says, and what a reader sees is whole."""
    prefix = url("b").removeprefix("s3://models/")
    for key, _ in objects(prefix, ".pack"):
        body = client.get_object(Bucket="models", Key=key)["Body"].read()
        if hashlib.sha256(body).hexdigest() not in key:
            stop(f"{key} is not the bytes of its name")
    seen = run("ls-remote", url("b"))
    if seen.returncode:
        if seen.returncode != 128 or NOTHING not in seen.stderr:
            stop(f"ls-remote: {seen.stderr}")
        return
    shutil.rmtree("seen", ignore_errors=True)
    fm("clone", url("b"), "seen")
    fm("-C", "seen", "fsck")
    whole = truth | theirs
    for name, seen_bytes in digests("seen", re.findall(r"refs/heads/(\S+)", seen.stdout)).items():
        if seen_bytes != whole.get(name):
            stop(f"a reader sees another {name}")


def kept_bytes():
    if kind == "s3" and not Path("b").exists():
        prefix = url("b").removeprefix("s3://models/")
        parts = 0
        for u in uploads(prefix):
            try:
                listed = client.list_parts(Bucket="models", Key=u["Key"], UploadId=u["UploadId"])
            except client.exceptions.NoSuchUpload:  # the server has completed it since
                continue
            parts += sum(p["Size"] for p in listed.get("Parts", []))
        return sum(size for _, size in objects(prefix, ".pack")) + parts
    return sum(f.stat().st_size for f in Path("b/.fmstore").rglob("*.pack") if f.is_file())


# ==== a transfer that is killed ====

def once(way, after, far, beside):
    """Kills the transfer; whether it was still running, and what it left."""
    command = prepare(way)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    other = subprocess.Popen([program, "-C", "c", "push", url("b"), "theirs"], **quiet) if beside else None
    p = subprocess.Popen([program, *command], **quiet)
    time.sleep(after)
    victim = far_side(p.pid) if far else p.pid
    if kind == "githost" and victim is None:  # no git works for it just now
        victim = p.pid
    running = p.poll() is None and victim is not None
    if running:
        try:
            os.kill(victim, signal.SIGKILL)
            if kind == "s3" and far:
                relay.wait()
        except ProcessLookupError:
            running = False
    revive()
    p.wait()
    if other:
        other.wait()
    kept = kept_bytes()
    bucket = kind == "s3" and way == "push"
    if bucket:
        check_bucket()
    for repo in "a" if bucket else "ab":
        if Path(repo).exists():
            fm("-C", repo, "fsck")
    if kind == "githost":
        check_host()
    fm(*command)
    if beside:
        fm("-C", "c", "push", url("b"), "theirs")
    if bucket:
        fm("clone", url("b"), "b")
        # What another pushed meanwhile need not travel again: then the pack is another one.
        if not beside and (left := uploads(url("b").removeprefix("s3://models/"))):
            stop(f"an upload is left: {left}")
    if kind == "githost" and way == "push":
        check_host()
        Path("any").rename("b")
    fm("-C", "b", "fsck")
    fm("-C", "b", "gc")
    if left := list(Path("b/.fmstore/tmp").glob("git-*")):
        stop(f"{left} is left in tmp/")
    if digests("b") != truth or beside and digests("b", ["theirs"]) != theirs:
        stop(f"a version differs after a kill of {way} at {after:.3f} s")
    if list(Path("b/.fmstore/incoming").glob("*")) if Path("b/.fmstore/incoming").exists() else []:
        stop("something is left in incoming/")
    if bucket:
        for key, _ in objects(url("b").removeprefix("s3://models/"), ""):
            client.delete_object(Bucket="models", Key=key)
    finish(way)
    return running, kept


if kind == "githost":
    prepare("push")
    fm("-C", "a", "push", "r", "--all")
    fm("-C", "a", "remote", "rm", "r")
    shutil.copytree("host.git", "full.git")
    shutil.copytree("bucket", "full")
length = {}
if kind == "s3":
    fm("-C", "a", "push", url("a"), "--all")
for way in "push", "pull":
    command = prepare(way)
    begin = time.perf_counter()
    fm(*command)
    length[way] = time.perf_counter() - begin
    finish(way)
hit = resumed = 0
for n in range(kills):
    way = ("push", "pull")[n % 2]
    running, kept = once(way, rng.uniform(0, length[way]), kind != "folder" and n % 4 > 1,
                         kind == "s3" and n % 6 in (0, 2))
    hit += running
    resumed += running and kept > 0
print(f"{kind}, seed {seed}: {kills} transfers, {hit} killed, {resumed} with bytes kept; nothing lost")
if relay:
    relay.kill()
shutil.rmtree(work)
sys.exit(0 if hit else 1)
