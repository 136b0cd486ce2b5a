# lib.sh - sourced by the tests of this folder: a scratch folder that goes away, and checks that say
# what they check. FM_BIN is the program, FM_SOURCE_DIR the checkout (ctest sets both).
# shellcheck shell=bash
set -euo pipefail
fm=${FM_BIN:?FM_BIN must name the fmstore program}
src=${FM_SOURCE_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
atlas=$src/examples/atlas
export LC_ALL=C
tmp=$(mktemp -d "${TMPDIR:-/tmp}/fmstore-test.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'echo "FAILED at ${BASH_SOURCE[0]##*/} line $LINENO: $BASH_COMMAND" >&2' ERR

say() { printf -- '- %s\n' "$*"; }
die() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}
need_python() {
    command -v python3 >/dev/null || { echo "skip: no python3"; exit 77; }
}

# Sets $python to one that has Hugging Face's client, FM_HF_PYTHON first, or makes one in ./venv with pip; skips
# the test where neither can be. The caller's settings of the client and its proxies are taken away.
need_hub_client() {
    unset HF_HUB_CACHE HF_HUB_OFFLINE HF_TOKEN HF_TOKEN_PATH HUGGING_FACE_HUB_TOKEN HUGGINGFACE_HUB_CACHE
    unset http_proxy all_proxy ALL_PROXY
    python=${FM_HF_PYTHON:-python3}
    if ! has_hub_client "$python"; then
        python=$PWD/venv/bin/python
        if ! { python3 -m venv venv && timeout 180 venv/bin/pip install -q huggingface_hub; } >pip.log 2>&1 ||
            ! has_hub_client "$python"; then
            echo "skip: no huggingface_hub, and pip cannot get it: $(tail -1 pip.log)"
            exit 77
        fi
    fi
    "$python" -c 'import huggingface_hub; print("- huggingface_hub", huggingface_hub.__version__)'
}
has_hub_client() { "$1" -c 'import huggingface_hub' 2>/dev/null; }

# want CODE COMMAND... : run fmstore, for limit_s at most; its output goes to $tmp/out and $tmp/err.
want() {
    local code=$1 got=0
    shift
    timeout "${limit_s:-600}" "$fm" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || got=$?
    [ "$got" = "$code" ] && return 0
    head -c 2000 "$tmp/out" "$tmp/err" >&2
    die "exit code $got instead of $code: fmstore $*"
}

# refused CODE TEXT COMMAND... : exit CODE, nothing on stdout, one line "fmstore: ...TEXT..." on stderr (129
# adds the command's usage).
refused() {
    local code=$1 text=$2
    shift 2
    want "$code" "$@"
    [ ! -s "$tmp/out" ] || die "stdout is not empty: fmstore $*: $(head -3 "$tmp/out")"
    grep -v -e '^usage: ' -e '^data: ' -e '^  ' "$tmp/err" >"$tmp/line" || true # derive's report comes first
    [ "$(wc -l <"$tmp/line")" = 1 ] || die "want one line, got: $(cat "$tmp/err")"
    grep -q '^fmstore: ' "$tmp/line" || die "no 'fmstore: ': $(cat "$tmp/err")"
    grep -qF -- "$text" "$tmp/line" || die "want '$text' in: $(cat "$tmp/err")"
}

# What must not change when a command fails: every ref, every pack, the format.
state_of() {
    (cd "$1/.fmstore" && { find lineage.git/refs packs -type f | sort
        cat lineage.git/packed-refs format 2>/dev/null || true
        find lineage.git/refs packs -type f | sort | xargs -r sha256sum; } | sha256sum)
}

# has PATTERN...: grep -q for the end of a pipe. It reads all of its input: a writer that met a closed pipe would
# fail, and with it the pipe. For the same reason no pipe here ends in head.
has() { [ -n "$(grep "$@")" ]; }

# until_there PID FILE PATTERN: waits for a line of FILE, as long as process PID lives: how long that takes says
# nothing, ctest's own limit is the only one.
until_there() {
    until grep -q -- "$3" "$2" 2>/dev/null; do
        if ! kill -0 "$1" 2>/dev/null && ! grep -q -- "$3" "$2"; then
            die "it ended before it said '$3': $(cat "$2")"
        fi
        sleep 0.02
    done
}

# field FILE KEY: a top-level value of a JSON object.
field() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"; }

# ids REV [PREFIX]: path and id of every tensor.
ids() {
    "$fm" ls "$1" --json | python3 -c '
import json, sys
for e in json.load(sys.stdin):
    if e["kind"] == "tensor":
        print(e["path"], e["id"])'
}
tree_of() { "$fm" show "$1" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["tree"])'; }

# A repository in the current folder with the atlas base on branch atlas.
atlas_repo() {
    want 0 init .
    want 0 import "$atlas/base" --as atlas --no-gate
}
