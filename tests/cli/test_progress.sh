#!/bin/bash
# Bars are drawn on a terminal's stderr and nowhere else, and are gone when the work is done.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
atlas_repo

cat >../on_terminal.py <<'E'
import os, pty, sys
# argv: file for stderr's bytes, command. stderr is a terminal, stdout is not.
master, slave = pty.openpty()
pid = os.fork()
if pid == 0:
    os.dup2(slave, 2)
    os.close(master)
    os.execv(sys.argv[2], sys.argv[2:])
os.close(slave)
seen = b""
while True:
    try:
        part = os.read(master, 65536)
    except OSError:
        break
    if not part:
        break
    seen += part
open(sys.argv[1], "wb").write(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
E
python3 - <<'E'
import json, os, struct
n = 3 << 20
head = json.dumps({"model.norm.weight": {"dtype": "F32", "shape": [n], "data_offsets": [0, 4 * n]}}).encode()
head += b" " * (-len(head) % 8)
open("../big.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + os.urandom(4 * n))
E

say "an import on a terminal shows a bar with rate, and takes it away"
python3 ../on_terminal.py ../seen "$fm" import ../big.safetensors --as big --no-gate >../out
grep -aq 'hashing .*big.safetensors' ../seen || die "no word of hashing: $(cat -v ../seen)"
grep -aqE 'storing \[[#-]{24}\] .* of 12\.6 MB  .*B/s' ../seen || die "no bar: $(cat -v ../seen)"
cat -v ../seen | tail -c 6 | has -F '^[[K' || die "the bar stays: $(tail -c 40 ../seen | cat -v)"
grep -q 'objects new' ../out || die "stdout lacks the result"

say "so does an export"
python3 ../on_terminal.py ../seen "$fm" export big ../back.safetensors --format source >../out
grep -aqE 'writing \[[#-]{24}\] .* of 12\.6 MB' ../seen || die "no bar: $(cat -v ../seen)"
cmp ../big.safetensors ../back.safetensors

say "without a terminal nothing is drawn"
want 0 export big ../again.safetensors --format source
[ ! -s "$tmp/err" ] || die "stderr is not empty: $(cat "$tmp/err")"
