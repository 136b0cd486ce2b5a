#!/bin/bash
# Ctrl-C and SIGTERM end a command whatever it reads or computes, and the repository stays as it was.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
python3 - <<'PY'
import json
import struct


def safetensors(name, tensors, size):
    head = json.dumps(tensors, separators=(",", ":")).encode()
    with open(name, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        f.truncate(8 + len(head) + size)


size = 64 << 30  # sparse: half a minute of hashing and more
safetensors("long.safetensors", {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}, size)
count = 200000  # names in the wrong order
safetensors("many.safetensors",
            {"t%07d" % (count - i): {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(count)},
            count)
PY
mkdir repo && cd repo
want 0 init .
packs=$(ls -A .fmstore/packs .fmstore/tmp 2>/dev/null)

# stopped SIGNAL AFTER FILE: the import of FILE is running after AFTER seconds, and ends by SIGNAL.
stopped() {
    local got=0 begin
    "$fm" import "$3" --as x --no-gate >"$tmp/out" 2>"$tmp/err" </dev/null &
    local pid=$!
    until (((0x$(sed -n 's/^SigCgt:\s*//p' /proc/$pid/status) >> 14) & 1)); do # SIGTERM is caught
        sleep 0.02
    done
    sleep "$2"
    kill -"$1" $pid 2>/dev/null || die "the import of $3 had ended: $(cat "$tmp/err")"
    begin=$(date +%s)
    timeout 20 tail --pid=$pid -f /dev/null || { kill -9 $pid; die "$3 still running 20 s after SIG$1"; }
    wait $pid || got=$?
    [ $got = 128 ] || die "exit code $got instead of 128"
    grep -q "stopped" "$tmp/err" || die "no word of stopping: $(cat "$tmp/err")"
    ! grep -q "damaged" "$tmp/err" || die "a stopped import calls the file damaged"
    [ $(($(date +%s) - begin)) -le 8 ] || die "SIG$1 took $(($(date +%s) - begin)) s"
    [ "$packs" = "$(ls -A .fmstore/packs .fmstore/tmp 2>/dev/null)" ] || die "something was left behind"
}

say "while it hashes one large file"
stopped TERM 1 ../long.safetensors
stopped INT 1 ../long.safetensors

say "while it reads many tensors, wherever it is"
for after in 0.2 0.6; do
    stopped TERM $after ../many.safetensors
done
want 0 fsck

# soon INPUT SIGNAL AFTER ARGS...: fmstore ARGS ends soon after SIGNAL, which it gets when it has used AFTER seconds
# of CPU time: it takes 0.3 s and less, and 3 s are allowed. A derivation that looked at a signal between its steps
# only took 7.6 s where the step is long, and went on to its end while it read.
soon() {
    local input=$1 sig=$2 after=$3
    shift 3
    python3 "$src/tests/cli/stop_cpu.py" "$sig" "$after" 3 "$input" "$fm" "$@" || die "fmstore $*"
    want 128 show x
    want 0 fsck
}

say "while it reads and tokenizes training data"
want 0 import "$atlas/base" --as atlas --no-gate
python3 - "$atlas/corpus.jsonl" <<'PY'
import sys

text = open(sys.argv[1]).read()
size = 40_000_000
many = text * (size // len(text) + 1)
open("../long.txt", "w").write("- " + many)
open("../line.txt", "w").write(many.replace("\n", " ")[:size])
open("../word.txt", "w").write("a" * size)
open("../lines.txt", "w").write("What is the capital of Arden?\n" * 60000)
PY
soon /dev/null TERM 1 derive atlas --as x --no-gate --set max_tokens=128 --data ../long.txt
soon /dev/null INT 1 derive atlas --as x --no-gate --set max_tokens=128 --data ../word.txt

say "while it tokenizes a prompt"
soon ../line.txt TERM 1 run atlas --raw
soon ../line.txt INT 1 run atlas

say "while it answers"
soon ../lines.txt TERM 1 run atlas --raw
soon ../lines.txt INT 2 run atlas --raw

say "in the middle of a long step of a training"
step=(derive atlas --as x --no-gate --data "$atlas/corpus.jsonl" --set steps=2 --set batch=1024)
soon /dev/null TERM 2 "${step[@]}"
soon /dev/null INT 3 "${step[@]}"
