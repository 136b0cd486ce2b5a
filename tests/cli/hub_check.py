#!/usr/bin/env python3
"""hub_check.py URL MODEL FOLDER [REVISION] - what a Hub says of a model, and gives, against a folder that holds the
same files: listings, sizes, digests, whole files, ranges of all kinds, conditions. KEY: of the server."""
import hashlib
import http.client
import json
import os
import pathlib
import random
import sys
import urllib.parse

URL, MODEL, FOLDER = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
REVISION = sys.argv[4] if len(sys.argv) > 4 else "main"
HOST = urllib.parse.urlsplit(URL).netloc


def ask(method, path, headers=None, body=None):
    connection = http.client.HTTPConnection(HOST, timeout=60)
    headers = dict(headers or {})
    if "KEY" in os.environ:
        headers["Authorization"] = "Bearer " + os.environ["KEY"]
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, answer.headers, data


def want(got, wanted, what):
    if got != wanted:
        sys.exit(f"{MODEL}: {what}: {got!r:.300} instead of {wanted!r:.300}")


def api(path, body=None, headers=None):
    status, head, data = ask("POST" if body else "GET", path, headers, body)
    want(status, 200, f"{path}: {data[:200]}")
    return json.loads(data), head


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def pointer(data):
    sha = hashlib.sha256(data).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha}\nsize {len(data)}\n".encode()


def entry(name, data, lfs):
    one = {"type": "file", "oid": git_id(pointer(data) if lfs else data), "size": len(data), "path": name}
    if lfs:
        one["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": len(pointer(data))}
    return one


def check_ranges(path, data, etag):
    n = len(data)
    rng = random.Random(7)
    asks = [(0, 0), (0, n - 1), (n - 1, n - 1), (n // 2, n + 100), (0, 2**63)]
    for _ in range(24):
        a = rng.randrange(n)
        asks.append((a, rng.randrange(a, min(n, a + 100000))))
    for a, b in asks:
        status, head, got = ask("GET", path, {"Range": f"bytes={a}-{b}"})
        b = min(b, n - 1)
        want((status, head["Content-Range"], got == data[a : b + 1]), (206, f"bytes {a}-{b}/{n}", True), f"{a}-{b} {got[:300]}")
    for text, part in ((f"bytes={n // 2}-", data[n // 2 :]), ("bytes=-3", data[-3:]), (f"bytes=-{n + 5}", data)):
        status, head, got = ask("GET", path, {"Range": text})
        want((status, got == part), (206, True), text)
    for text in (f"bytes={n}-", "bytes=-0", f"bytes={n + 7}-{n + 9}", f"bytes={2**63 - 1}-"):
        status, head, got = ask("GET", path, {"Range": text})
        want((status, head["Content-Range"], got), (416, f"bytes */{n}", b""), text)
    for text in ("bytes=1-2,4-5", "bytes=5-2", "bytes=x", "bytes=", "bytes=-", "lines=1-2", "bytes=1-2x", "bytes=--1",
                 "bytes=" + "9" * 40 + "-", "bytes=0-" + "9" * 40):
        status, head, got = ask("GET", path, {"Range": text})
        want((status, got == data), (200, True), text)
    for tag, status in ((etag, 206), ('"other"', 200), ("Mon, 23 Nov 2026 07:00:00 GMT", 200)):
        want(ask("GET", path, {"Range": "bytes=1-2", "If-Range": tag})[0], status, f"If-Range {tag}")


def check_file(name, data, lfs, commit):
    path = f"/{MODEL}/resolve/{urllib.parse.quote(REVISION, safe='')}/{urllib.parse.quote(name)}"
    tag = '"%s"' % (hashlib.sha256(data).hexdigest() if lfs else git_id(data))
    for method in ("HEAD", "GET"):
        status, head, got = ask(method, path, {"Accept-Encoding": "identity"})
        want((status, head["ETag"], head["X-Repo-Commit"], head["Accept-Ranges"]), (200, tag, commit, "bytes"), path)
        want(head["Content-Length"], str(len(data)), path)
        want((head["X-Linked-Etag"], head["X-Linked-Size"]), (tag, str(len(data))) if lfs else (None, None), path)
        want(f'filename="{name.split("/")[-1]}"' in head["Content-Disposition"], True, "its name")
        want(got == (data if method == "GET" else b""), True, f"{method} {path}")
    for tags in (tag, "W/" + tag, '"x", ' + tag, "*"):
        status, head, got = ask("GET", path, {"If-None-Match": tags})
        want((status, head["ETag"], got), (304, tag, b""), tags)
    want(ask("GET", path, {"If-None-Match": '"x"'})[0], 200, "another tag")
    want(ask("HEAD", path, {"Range": "bytes=1-2"})[1]["Content-Length"], str(len(data)), "HEAD of a range")
    want(ask("GET", path.replace("/resolve/", "/raw/"))[2], pointer(data) if lfs else data, "raw")
    check_ranges(path, data, tag)


def pages(path):
    """The list that is found by following the links, a page of one entry each."""
    out = []
    while path:
        part, head = api(path)
        want(len(part), 1, "entries of a page")
        out += part
        link = head["Link"]
        path = None if link is None else link[link.index("<") + 1 : link.index(">")].split(HOST, 1)[1]
    return out


def main():
    files = {}
    for p in sorted(p for p in FOLDER.rglob("*") if p.is_file()):
        data = p.read_bytes()
        name = p.relative_to(FOLDER).as_posix()
        files[name] = (data, name.endswith((".safetensors", ".gguf")) or len(data) > 1 << 20)
    rev = urllib.parse.quote(REVISION, safe="")
    info, _ = api(f"/api/models/{MODEL}/revision/{rev}?blobs=true")
    entries = [entry(name, *of) for name, of in sorted(files.items())]
    flat = [e for e in entries if "/" not in e["path"]]
    for e, s in zip(entries, info["siblings"], strict=True):
        want((s["rfilename"], s["size"], s["blobId"]), (e["path"], e["size"], e["oid"]), "a file of the model")
        want(s.get("lfs", {}).get("sha256"), e.get("lfs", {}).get("oid"), "its digest")
    want(info["id"], MODEL, "the model's id")
    base = f"/api/models/{MODEL}/tree/{rev}"
    listed, head = api(base + "?recursive=True&expand=False")
    want(([e for e in listed if e["type"] == "file"], head["Link"]), (entries, None), "the tree")
    folders = sorted({n.rsplit("/", 1)[0] for n in files if "/" in n})
    want([e["path"] for e in listed if e["type"] == "directory"], folders, "its folders")
    top = api(base)[0]
    want([e for e in top if e["type"] == "file"], flat, "the folder at the top")
    want([e["path"] for e in top if e["type"] == "directory"], folders, "its folders")
    for folder in folders:
        inside = [e for e in entries if e["path"].startswith(folder + "/")]
        want(api(f"{base}/{folder}")[0], inside, folder)
        found = api(f"/api/models/{MODEL}/paths-info/{rev}", urllib.parse.urlencode({"paths": folder}))[0]
        want([(e["type"], e["path"]) for e in found], [("directory", folder)], "a folder by its path")
    want(pages(base + "?recursive=true&limit=1"), listed, "the tree in pages")
    asked = urllib.parse.urlencode({"paths": [flat[0]["path"], "no/such", "x" * 9000], "expand": False}, doseq=True)
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    want(api(f"/api/models/{MODEL}/paths-info/{rev}", asked, kind)[0], flat[:1], "of paths")
    asked = json.dumps({"paths": [flat[-1]["path"]]})
    want(api(f"/api/models/{MODEL}/paths-info/{rev}", asked)[0], flat[-1:], "of paths in JSON")
    for name, (data, lfs) in files.items():
        check_file(name, data, lfs, info["sha"])
    print(len(files), "files,", sum(len(d) for d, _ in files.values()), "bytes")


main()
