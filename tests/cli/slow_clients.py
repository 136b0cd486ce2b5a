#!/usr/bin/env python3
"""slow_clients.py PORT COUNT ADDRESS - so many clients from ADDRESS, each of which sends a remote's
server a message of a gigabyte, one byte in a fifth of a second, and comes back when it is cut off.
It prints a line when all have begun, and ends with its standard input."""
import os, socket, sys, threading, time

port, count, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
HEAD = b"POST /fmstore/wire HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n" \
    b"\0\0\x10\0A"  # a frame of a mebibyte begins


def open_one():
    s = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
    s.sendall(HEAD)
    return s


clients = [open_one() for _ in range(count)]
time.sleep(0.5)  # their heads are read
print("begun", flush=True)
while True:
    for n, s in enumerate(clients):
        try:
            s.sendall(b"F")
        except OSError:
            s.close()
            try:
                clients[n] = open_one()
            except OSError:
                pass
    time.sleep(0.2)
