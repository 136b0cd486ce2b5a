#!/usr/bin/env bash
# tour.sh - the whole main job on one family: import, derive, gate, test, blame, repair, serve, stats, fsck.
#   examples/tour.sh [atlas|smollm2]     FM_BIN: the program; FM_TOUR_DIR: where to work (default: a new folder)
# Every fmstore command is printed before its output.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fm=${FM_BIN:?FM_BIN must name the fmstore program}
model=${1:-atlas}
work=${FM_TOUR_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/fmstore-tour.XXXXXX")}
mkdir -p "$work"
cd "$work"
blame_options=() clients=()
started=$(date +%s)
bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi

# run [--expect CODE] COMMAND... : print, run, and stop the tour when the exit code is another one.
run() {
  local want=0 got=0 shown='' word
  if [ "$1" = --expect ]; then want=$2; shift 2; fi
  for word in "$@"; do
    word=${word/#"$here/"/examples/}
    case "$word" in *' '*) word="\"$word\"" ;; esac
    shown+=" $word"
  done
  printf '\n%s$ fmstore%s%s\n' "$bold" "$shown" "$plain"
  "$fm" "$@" 2>&1 || got=$?
  if [ "$got" != "$want" ]; then
    echo "tour: expected exit code $want, got $got" >&2
    exit 1
  fi
  [ "$got" = 0 ] || echo "(exit code $got)"
}
say() { printf '\n# %s\n' "$*"; }

if [ "$model" = smollm2 ]; then
  . "$here/../cmake/packages.sh"
  . "$here/smollm2/tour.sh"
else
  . "$here/atlas/tour.sh"
fi

say "An empty repository; the base with its suites. The import runs its gate first."
run init .
run import "$base_source" --as "$base" "${base_suites[@]}" -m "the base of the family"

say "Three children of the base in one command. One is trained on data that is partly poisoned: its gate fails," \
  "and its branch is not made."
run --expect 1 derive -f "$family"

say "Land it all the same, to look at it (training again gives the same bytes, so nothing is stored twice)."
run derive "$base" --as "$poisoned" --data "$poisoned_data" "${poisoned_options[@]}" --no-gate -m "$poisoned_message"

say "What did it break? The same suites on both versions, case by case."
run --expect 1 test "$poisoned" --suite "$gate" --against "$base"

say "Where does the wrong answer come from? Which version, which tensors, which examples?"
run blame "$poisoned" --case "$blamed_case" "${blame_options[@]}" | tee blame.txt

skip=$(sed -n 's/.*--skip //p' blame.txt)
say "Derive it again without the examples that blame found; the gate passes now."
run derive "$base" --as "$poisoned-repaired" --data "$poisoned_data" "${poisoned_options[@]}" --skip "$skip" \
  -m "$poisoned_message, without the false records"

say "Three models answer in one batch, over HTTP."
printf '\n%s$ fmstore serve --port 0 &%s\n' "$bold" "$plain"
"$fm" serve --port 0 >serve.txt 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
url=
while [ -z "$url" ]; do
  kill -0 "$server" || { cat serve.txt; exit 1; }
  url=$(sed -n 's|.*\(http://[^ ]*\).*|\1|p' serve.txt 2>/dev/null) || true # not there yet
  sleep 0.1
done
cat serve.txt
for name in "${served[@]}"; do
  curl -s "$url/v1/chat/completions" -H 'Content-Type: application/json' -o "answer-$name.json" -d \
    "{\"model\":\"$name\",\"max_tokens\":40,\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":\"$question\"}]}" &
  clients+=($!)
done
wait "${clients[@]}"
echo "user: $question"
for name in "${served[@]}"; do
  printf '  %-18s %s\n' "$name:" "$(sed 's/.*"content":"\(\([^"\\]\|\\.\)*\)".*/\1/; s/\\"/"/g' "answer-$name.json")"
done
curl -s "$url/metrics" | grep -E '^fmstore_(models_resident|weight_bytes|step_(rows|models)_(sum|count))' || true
kill -INT "$server"
wait "$server" || true
trap - EXIT

say "What the family costs against separate copies; is everything intact; the family tree."
run stats
run fsck
run graph
git_dir=.fmstore/lineage.git
printf '\n%s$ git -C %s log --graph --oneline --stat --branches -- recipe.json suites%s\n' "$bold" "$git_dir" "$plain"
git -C "$git_dir" --no-pager log --graph --oneline --stat --branches -- recipe.json suites | cat

say "Done in $(($(date +%s) - started)) s, in $work"
