#!/usr/bin/env python3
"""How much CPU time a command goes on for after a signal. Time on the clock says nothing on a busy machine.

usage: stop_cpu.py SIGNAL AFTER MOST INPUT COMMAND...
Runs COMMAND with the file INPUT as standard input, sends SIGNAL when the command has used AFTER seconds of CPU
time, and fails if it then uses more than MOST seconds, or ends otherwise than with code 128 and a line that
says so.
"""
import os
import signal
import subprocess
import sys
import time

TICKS = os.sysconf("SC_CLK_TCK")


def used(pid):
    """User and system time of a process that has not been waited for."""
    with open(f"/proc/{pid}/stat") as f:
        field = f.read().rsplit(")", 1)[1].split()
    return field[0] == "Z", (int(field[11]) + int(field[12])) / TICKS


def main():
    sig, after, most, stdin = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    command = sys.argv[5:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    with open(stdin, "rb") as f:
        p = subprocess.Popen(command, stdin=f, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ended, begin = False, 0.0
    while not ended and begin < after:
        time.sleep(0.01)
        ended, begin = used(p.pid)
    if ended:
        sys.exit(f"ended after {begin:.2f} s of CPU time, before the signal: {p.stderr.read()}")
    p.send_signal(getattr(signal, "SIG" + sig))
    said = p.stderr.read()
    _, status, usage = os.wait4(p.pid, 0)
    more = usage.ru_utime + usage.ru_stime - begin
    code = os.waitstatus_to_exitcode(status)
    print(f"  SIG{sig} at {begin:.2f} s of CPU time: {more:.2f} s more, code {code}")
    last = said.strip().splitlines()[-1] if said.strip() else ""
    if more > most:
        sys.exit(f"went on for {more:.2f} s of CPU time after SIG{sig}; {most} s are allowed: {last}")
    if code != 128 or "stopped" not in last:
        sys.exit(f"exit code {code}, last line: {last}")


main()
