#!/usr/bin/env python3
"""githost_server.py ROOT USER PASSWORD - `git http-backend` behind HTTP, as a git host has it.

The first line of the output is the port. Whoever has no password is answered 401."""
import base64
import http.server
import os
import socketserver
import subprocess
import sys

root, user, password = sys.argv[1:4]
right = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        out = b""
        while n := int(self.rfile.readline(), 16):
            out += self.rfile.read(n)
            self.rfile.readline()
        self.rfile.readline()
        return out

    def answer(self, status, headers, data):
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do(self):
        body = self.body()
        if self.headers.get("Authorization") != right:
            return self.answer(401, [("WWW-Authenticate", 'Basic realm="models"')], b"")
        path, _, query = self.path.partition("?")
        env = {"PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": root, "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path,
               "QUERY_STRING": query, "REQUEST_METHOD": self.command, "REMOTE_USER": user,
               "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body)),
               "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
               "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""), "GIT_CONFIG_NOSYSTEM": "1", "HOME": root}
        out = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True).stdout
        head, _, data = out.partition(b"\r\n\r\n")
        headers = [tuple(line.decode().split(": ", 1)) for line in head.split(b"\r\n") if line]
        status = [int(v.split()[0]) for k, v in headers if k == "Status"]
        self.answer(status[0] if status else 200, [h for h in headers if h[0] != "Status"], data)

    do_GET = do_POST = do


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
