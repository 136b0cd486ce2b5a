#!/usr/bin/env python3
"""hub_server.py ROOT - stands in for a Hugging Face Hub and its CDN, on two ports of this machine.

ROOT/<org>/<name>/<branch>/... are models. Prints the two URLs on one line. What the Hub does with a
file of weights (LFS) is done here too: the Hub's port redirects to the CDN's. Each request is a line
of ROOT/log: port, method, path, range or -, and "token" where it carried one. ROOT/fault, read at
each request, has lines that say what goes wrong:

  pause NAME N     the CDN sends N bytes of that file, says "paused NAME N" in the log and waits until
                   the client has gone
  cut NAME N       the CDN closes the connection after N bytes of each answer
  bytes NAME       other bytes are sent
  redirect NAME U  the Hub redirects to U
  norange NAME     the CDN sends the whole where a part is asked for
  down             the Hub answers 503
  api TEXT         the answer of the API
A model org/gated needs the token "good"; "poor" is known and has no access."""
import hashlib
import http.server
import json
import pathlib
import sys
import threading
import time
import urllib.parse

ROOT = pathlib.Path(sys.argv[1])
LOCK = threading.Lock()
LFS = (".safetensors", ".bin", ".gguf", ".onnx", ".h5", ".pt")


def say(*words):
    with LOCK, open(ROOT / "log", "a") as out:
        print(*words, file=out, flush=True)


def faults(kind):
    try:
        lines = (ROOT / "fault").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line.split(" ", 2)[1:] for line in lines if line.split(" ")[0] == kind]


def fault(kind, name):
    for words in faults(kind):
        if words and words[0] == name:
            return words[1] if len(words) > 1 else ""
    return None


def files_of(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


KNOWN = {}


def digests(path):
    """SHA-256 and git's id of a file; kept until it changes."""
    stat = path.stat()
    key = (path, stat.st_mtime_ns, stat.st_size)
    if key not in KNOWN:
        data = path.read_bytes()
        KNOWN[key] = hashlib.sha256(data).hexdigest(), git_id(data)
    return KNOWN[key]


def commit_of(folder):
    h = hashlib.sha1()
    for p in files_of(folder):
        h.update(str(p.relative_to(folder)).encode() + digests(p)[1].encode())
    return h.hexdigest()


def revision(repo, rev):
    """The folder of a branch or commit."""
    model = ROOT / repo
    for branch in sorted(model.iterdir()) if model.is_dir() else []:
        if branch.is_dir() and rev in (branch.name, commit_of(branch)):
            return branch
    return None


class Base(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def note(self):
        token = "token" if self.headers.get("Authorization") else "-"
        say(self.kind, self.command, self.path, self.headers.get("Range", "-"), token)

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def send_file(self, data, etag, name, **headers):
        """A whole file or the part that is asked for."""
        begin, end, status = 0, len(data), 200
        asked = self.headers.get("Range")
        same = self.headers.get("If-Range") in (None, f'"{etag}"')
        if asked and same and fault("norange", name) is None:
            first, last = asked.removeprefix("bytes=").split("-")
            begin, end = int(first), min(len(data), int(last) + 1 if last else len(data))
            if begin >= len(data):
                return self.reply(416)
            status = 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Accept-Ranges", "bytes")
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if self.command != "HEAD":
            self.send_body(data[begin:end], name)

    def send_body(self, body, name):
        pause, cut = fault("pause", name), fault("cut", name)
        if pause is not None and int(pause) < len(body):
            self.wfile.write(body[: int(pause)])
            self.wfile.flush()
            say("paused", name, pause)
            self.connection.recv(1)  # until the client has gone
            self.close_connection = True
        elif cut is not None and int(cut) < len(body):
            self.wfile.write(body[: int(cut)])
            self.close_connection = True
        else:
            self.wfile.write(body)


class Hub(Base):
    kind = "hub"

    def refuse(self, status, code, text):
        body = json.dumps({"error": text}).encode()
        self.reply(status, body, X_Error_Code=code, X_Error_Message=text)

    def may(self, repo):
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in ("", "good", "poor"):
            self.reply(401, b"{}", X_Error_Message="Invalid credentials in Authorization header")
        elif not (ROOT / repo).is_dir():
            self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        elif repo == "org/gated" and token == "":
            self.refuse(401, "GatedRepo", "Access to model org/gated is restricted.")
        elif repo == "org/gated" and token == "poor":
            self.refuse(403, "GatedRepo", "You are not in the authorized list.")
        else:
            return True
        return False

    def do_GET(self):
        self.note()
        if faults("down"):
            return self.reply(503, b"busy", Retry_After="0")
        path = urllib.parse.urlsplit(self.path).path
        parts = [urllib.parse.unquote(p) for p in path.strip("/").split("/")]
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            return self.api("/".join(parts[2:4]), parts[4:])
        if len(parts) >= 5 and parts[2] == "resolve":
            return self.resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self.reply(404)

    def entry(self, folder, path):
        size, name = path.stat().st_size, str(path.relative_to(folder))
        digest, blob = digests(path)
        entry = {"rfilename": name, "size": size, "blobId": blob}
        if name.endswith(LFS):
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n"
            entry["blobId"] = git_id(pointer.encode())
            entry["lfs"] = {"sha256": digest, "size": size, "pointerSize": len(pointer)}
        return entry

    def api(self, repo, rest):
        if not self.may(repo):
            return None
        rev = rest[1] if len(rest) > 1 else "main"
        folder = revision(repo, rev)
        if folder is None:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {rev}")
        for words in faults("api"):
            return self.reply(200, " ".join(words).encode())
        entries = [self.entry(folder, p) for p in files_of(folder)]
        if rest[:1] == ["tree"]:
            out = [{"type": "file", "path": e["rfilename"], "size": e["size"], "oid": e["blobId"],
                    **({"lfs": {**e["lfs"], "oid": e["lfs"]["sha256"]}} if "lfs" in e else {})}
                   for e in entries]
        else:
            out = {"_id": "0", "id": repo, "modelId": repo, "sha": commit_of(folder), "gated": False,
                   "private": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0,
                   "lastModified": "2026-01-01T00:00:00.000Z", "siblings": entries}
        return self.reply(200, json.dumps(out).encode(), Content_Type="application/json")

    def resolve(self, repo, rev, name):
        if not self.may(repo):
            return None
        folder = revision(repo, rev)
        if folder is None:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {rev}")
        path = folder / name
        if not path.is_file():
            return self.refuse(404, "EntryNotFound", "Entry not found")
        data, commit = path.read_bytes(), commit_of(folder)
        to = fault("redirect", name)
        if to is not None:
            return self.reply(302, Location=to, X_Repo_Commit=commit)
        if name.endswith(LFS):
            digest, blob = digests(path)
            query = urllib.parse.urlencode({"file": str(path.relative_to(ROOT)), "sig": "secret"})
            return self.reply(302, b"Found. Redirecting to the CDN", Location=f"{CDN}/{digest}?{query}",
                              X_Repo_Commit=commit, X_Linked_Etag=f'"{digest}"',
                              X_Linked_Size=str(len(data)), ETag=f'"{blob}"')
        if fault("bytes", name) is not None:
            data = bytes(len(data))
        return self.send_file(data, digests(path)[1], name, X_Repo_Commit=commit)


class Cdn(Base):
    kind = "cdn"

    def do_GET(self):
        self.note()
        url = urllib.parse.urlsplit(self.path)
        if url.path.startswith("/plain/"):
            file = ROOT / url.path[1:]
            return self.send_file(file.read_bytes(), digests(file)[0], file.name)
        file = ROOT / urllib.parse.parse_qs(url.query)["file"][0]
        data = file.read_bytes()
        if fault("bytes", file.name) is not None:
            data = bytes(len(data))
        return self.send_file(data, hashlib.sha256(data).hexdigest(), file.name)


def start(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


CDN = start(Cdn)
print(start(Hub), CDN, flush=True)
while True:
    time.sleep(3600)
