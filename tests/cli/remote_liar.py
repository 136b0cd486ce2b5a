#!/usr/bin/env python3
"""remote_liar.py UPSTREAM MODE-FILE - stands before a true remote and lies as the file says.

The first line of the output is the port. MODE-FILE holds the lie, read anew at each request: none, or
NAME:OPERATION:NUMBER (remote/wire/message.h has the operations' numbers)."""
import http.client
import http.server
import random
import socketserver
import struct
import sys
import urllib.parse

TYPE = "application/x-fmstore-wire"


def frames(data):
    at = 0
    while at + 5 <= len(data):
        n = struct.unpack_from("<I", data, at)[0]
        yield at, data[at + 4:at + 5], data[at + 5:at + 5 + n]
        at += 5 + n


def frame(kind, payload=b""):
    return struct.pack("<I", len(payload)) + kind + payload


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            out = b""
            while True:
                n = int(self.rfile.readline(), 16)
                out += self.rfile.read(n)
                self.rfile.readline()
                if n == 0:
                    return out
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def true_answer(self, body):
        up = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=300)
        keep = {k: v for k, v in self.headers.items()
                if k.lower() in ("authorization", "content-type", "x-fmstore-session")}
        up.request(self.command, self.path, body, keep)
        r = up.getresponse()
        return r.status, dict(r.getheaders()), r.read()

    def plain(self, status, headers, data, length=None):
        self.send_response(status)
        for k, v in headers.items():
            if k.lower() in ("content-type", "x-fmstore-session", "location", "www-authenticate"):
                self.send_header(k, v)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)
        if length is not None and length > len(data):
            self.close_connection = True

    def endless(self, headers, first, again):
        self.send_response(200)
        self.send_header("Content-Type", headers["Content-Type"])
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        piece = first
        while True:
            self.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
            piece = again

    def lie(self, name, number, status, headers, data):
        rng = random.Random(number)
        all_frames = list(frames(data))
        if name == "flip":  # a bit of a payload
            at, _, payload = rng.choice([f for f in all_frames if f[2]] or all_frames)
            place = at + 5 + rng.randrange(max(1, len(payload)))
            data = data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1:]
            self.plain(status, headers, data)
        elif name == "cut":  # a whole answer of HTTP, half of the wire's
            self.plain(status, headers, data[:rng.randrange(1, len(data))])
        elif name == "short":  # fewer bytes than it announces
            self.plain(status, headers, data[:len(data) // 2], len(data))
        elif name == "extra":
            self.plain(status, headers, data + frame(b"L", b"x" * 9))
        elif name == "nothing":
            self.plain(status, headers, b"")
        elif name == "huge":
            self.plain(status, headers, struct.pack("<I", 0xffffffff) + data[4:])
        elif name == "kind":
            self.plain(status, headers, data[:4] + b"Z" + data[5:])
        elif name == "data":  # bytes without end, after what is true
            self.endless(headers, data[:-5 - len(all_frames[-1][2])], frame(b"D", bytes(1 << 20)))
        elif name == "lists":
            self.endless(headers, frame(b"L"), frame(b"L") * 1000)
        elif name == "refs":
            ref = struct.pack("<H", 20) + b"refs/heads/%09d" + b"\1" * 20 + bytes(20)
            self.endless(headers, frame(b"L", b"".join(ref.replace(b"%09d", b"%09d" % i)
                                                       for i in range(20000))),
                         frame(b"L", ref.replace(b"%09d", b"000000000") * 20000))
        elif name == "html":
            self.plain(200, {"Content-Type": "text/html"}, b"<html>welcome</html>")
        elif name == "file":
            self.plain(302, {"Location": "file:///etc/passwd"}, b"")
        elif name == "moved":
            self.plain(307, {"Location": "http://user:pass@elsewhere.example/repo" + self.path}, b"")
        elif name == "escape":
            self.plain(200, headers, frame(b"F", struct.pack("<I", 3) + b"\x1b[2Jno\r\nfmstore: yes"))
        elif name == "has":  # everything is there already
            self.plain(200, headers, b"".join(
                frame(k, b"\1" * len(p)) if k == b"L" else frame(k, p) for _, k, p in all_frames))
        else:
            raise ValueError(name)

    def do_POST(self):
        body = self.body()
        status, headers, data = self.true_answer(body)
        with open(mode_file, encoding="utf-8") as f:
            lie = f.read().strip().split(":")
        if lie[0] != "none" and (lie[1] == "*" or body[5] == int(lie[1])):
            try:
                self.lie(lie[0], int(lie[2]), status, headers, data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
        else:
            self.plain(status, headers, data)

    do_DELETE = do_POST


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


upstream = urllib.parse.urlparse(sys.argv[1])
mode_file = sys.argv[2]
server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
