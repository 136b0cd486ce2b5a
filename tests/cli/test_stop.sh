#!/bin/bash
# Ctrl-C and SIGTERM end an import whatever it reads, and the repository stays as it was.
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
