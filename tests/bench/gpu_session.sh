#!/usr/bin/env bash
# gpu_session.sh - all that a short lease of a card is for, in one command: tests on the card, the
# benchmark, compute-sanitizer; within ten minutes, the most telling first. What cannot run is skipped
# and counted.
#
#   gpu_session.sh [--build DIR] [--emulated] [OUT]   builds below DIR (build-gpu), then runs
#   gpu_session.sh pack FILE.tar.xz [--build DIR]     builds here, for a machine that cannot: programs,
#                                                     libraries and the list of tests
#   gpu_session.sh --packed FILE.tar.xz [OUT]         runs what was packed, from a checkout of the same commit
#
# OUT: a folder ($OUT, else gpu-session) that gets machine.txt, tests.log, bench.json, bench.log,
# sanitizer.log and session.txt, which says what became of each. --emulated: the emulated card instead,
# to try this script. GPU_SESSION_SECONDS: the limit of it all (570). FM_CUDA_ARCH: as for cmake
# (90-real).
# Exit code 0: nothing failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
root=$PWD began=$SECONDS limit=${GPU_SESSION_SECONDS:-570}
build=build-gpu packed="" out=${OUT:-gpu-session} label=gpu mode=run

while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=$2; shift ;;
    --packed) packed=$2; shift ;;
    --emulated) label=cuda ;;
    pack) mode=pack; packed=$2; shift ;;
    -h|--help) sed -n '2,15p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    -*) echo "gpu_session.sh: $1 is not known (see --help)" >&2; exit 2 ;;
    *) out=$1 ;;
  esac
  shift
done

# ---- what is built: the module, the programs of the tests, bench_gpu ----

# list_tests BUILD : name, program and environment of each test with the label, a line each.
list_tests() {
  ctest --test-dir "$1" -L "^$label\$" -LE long --show-only=json-v1 | python3 -c '
import json, sys
for t in json.load(sys.stdin)["tests"]:
    env = [p["value"] for p in t["properties"] if p["name"] == "ENVIRONMENT"]
    keep = [e for e in (env[0] if env else []) if e.startswith("KK_")]
    if t.get("command"):
        print(t["name"], t["command"][0], *t["command"][1:], *keep, sep="\t")
'
}

module_of() { # BUILD
  if [ $label = cuda ]; then echo "$1/tests/cuda/libfmstore-cuda-emulated.so"; else echo "$1/cli/libfmstore-cuda.so"; fi
}

build_all() {
  local module=fm_cuda
  [ $label = cuda ] && module=fm_cuda_emulated
  if [ ! -f "$build/CMakeCache.txt" ]; then
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFM_TESTS=ON -DFM_BENCH=ON \
      -DFM_CUDA=AUTO -DFM_CUDA_ARCH="${FM_CUDA_ARCH:-90-real}" || return 1
  fi
  cmake --build "$build" --target "$module" card_tests bench_gpu
}

if [ -z "$packed" ] || [ $mode = pack ]; then
  if ! build_all >"${TMPDIR:-/tmp}/gpu-session-build.$$" 2>&1; then
    tail -n 30 "${TMPDIR:-/tmp}/gpu-session-build.$$" >&2
    echo "gpu_session.sh: the build failed; where libraries are missing, pack on a machine that has them" >&2
    exit 1
  fi
  rm -f "${TMPDIR:-/tmp}/gpu-session-build.$$"
fi

if [ $mode = pack ]; then
  file=$packed packed=$(mktemp -d)
  mkdir -p "$packed/bin" "$packed/lib" "$(dirname "$file")" || exit 1
  list_tests "$build" | grep -v bench_gpu | awk -F '\t' -v OFS='\t' '{ sub(".*/", "", $2); print }' >"$packed/tests.txt"
  cp "$(module_of "$build")" "$packed/lib/module.so" || exit 1
  cp "$build/tests/bench/bench_gpu" "$packed/bin/"
  cut -f 2 "$packed/tests.txt" | sort -u | while read -r program; do cp "$build/tests/$program" "$packed/bin/"; done
  strip "$packed"/bin/* "$packed/lib/module.so"
  # Libraries but the C library's own, which the other machine has as old or newer.
  ldd "$packed"/bin/* | awk '$2 == "=>" && $3 ~ "^/" { print $3 }' | sort -u |
    grep -Ev '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so' | while read -r lib; do cp -L "$lib" "$packed/lib/"; done
  tar -C "$packed" -cJf "$file" . || exit 1
  echo "$file: $(($(wc -c <"$file") >> 20)) MiB, $(wc -l <"$packed/tests.txt") tests"
  rm -rf "$packed"
  exit 0
fi

# ---- running ----

mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
: >"$out/session.txt"
left() { local l=$((limit - (SECONDS - began))); echo $((l > 0 ? l : 1)); }
say() { echo "$*" | tee -a "$out/session.txt"; }
# Seconds for a step that wants $1: never more than are left.
within() { local l; l=$(left); echo $(($1 < l ? $1 : l)); }

list=$(mktemp)
if [ -n "$packed" ]; then
  file=$packed packed=$(mktemp -d)
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$file" "$packed" || exit 1
  export LD_LIBRARY_PATH="$packed/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export FMSTORE_CUDA_MODULE="$packed/lib/module.so"
  bench=$packed/bin/bench_gpu
  awk -F '\t' -v OFS='\t' -v at="$packed/bin/" '{ $2 = at $2; print }' "$packed/tests.txt" >"$list"
else
  build=$(cd "$build" && pwd)
  FMSTORE_CUDA_MODULE=$(module_of "$build")
  export FMSTORE_CUDA_MODULE
  bench=$build/tests/bench/bench_gpu
  list_tests "$build" | grep -v '^bench_gpu' >"$list"
fi
export FM_SOURCE_DIR="$root" GB_TORCH="$root/tests/bench/gpu_torch.py" out list

{
  date -u; uname -srm; nproc; git rev-parse HEAD 2>/dev/null
  nvidia-smi 2>&1 || echo "no nvidia-smi"
  nvidia-smi topo -m 2>/dev/null
  (nvcc --version || true) 2>&1 | tail -n 2
  timeout 60 python3 -c 'import torch; print("torch", torch.__version__, torch.cuda.is_available())' 2>&1 | tail -n 1
} >"$out/machine.txt" 2>&1
card=no; { [ $label = cuda ] || nvidia-smi -L 2>/dev/null | grep -q GPU; } && card=yes
say "card: $card; $(grep -m 1 -o 'NVIDIA [A-Z0-9][^|]*' "$out/machine.txt" | head -c 60)"

# run_test LINE : one test into tests.log, its outcome to stdout.
run_test() {
  local name program rc words began=$SECONDS log
  IFS=$'\t' read -r name program words <<<"$1"
  log=$(mktemp)
  local -a more=()
  IFS=$'\t' read -r -a more <<<"$words"
  timeout "$test_seconds" env "${more[@]+"${more[@]}"}" "$program" >"$log" 2>&1
  rc=$?
  { flock 9; echo "== $name: $rc after $((SECONDS - began)) s"; tail -n 60 "$log"; } 9>>"$out/tests.log" >>"$out/tests.log"
  rm -f "$log"
  case $rc in 0) echo "passed $name" ;; 77) echo "skipped $name" ;; 124) echo "failed $name (time)" ;; *) echo "failed $name" ;; esac
}
export -f run_test
: >"$out/tests.log"
outcome=$(mktemp)
test_seconds=$(within 120)
export test_seconds
# shellcheck disable=SC2016
tr '\n' '\0' <"$list" | timeout "$(within 240)" xargs -0 -r -P "${GPU_SESSION_JOBS:-4}" -I {} bash -c 'run_test "$1"' _ {} >"$outcome"
passed=$(grep -c '^passed' "$outcome") failed=$(grep -c '^failed' "$outcome") skipped=$(grep -c '^skipped' "$outcome")
missing=$(($(wc -l <"$list") - passed - failed - skipped))
say "tests: $passed passed, $failed failed, $skipped skipped, $missing out of time ($((SECONDS - began)) s so far)"
grep '^failed' "$outcome" | while read -r line; do say "  $line"; done

# ---- the benchmark, alone on the card ----
tiny=""; [ $label = cuda ] && tiny=--tiny
timeout "$(within 270)" "$bench" --json $tiny >"$out/bench.json" 2>"$out/bench.log"
rc=$?
case $rc in
  0) say "bench: $(grep -c '"what"' "$out/bench.json") figures ($((SECONDS - began)) s so far)" ;;
  77) say "bench: skipped: $(tail -n 1 "$out/bench.log")" ;;
  *) say "bench: failed with $rc: $(tail -n 1 "$out/bench.log")"; failed=$((failed + 1)) ;;
esac

# ---- compute-sanitizer on programs that reach most kernels ----
: >"$out/sanitizer.log"
clean=0 dirty=0 left_out=0
for pair in memcheck:graph memcheck:sample memcheck:experts racecheck:elem racecheck:experts memcheck:card_fast \
  memcheck:product racecheck:product initcheck:elem synccheck:sample memcheck:fast_attention; do
  tool=${pair%%:*} name=${pair#*:}
  line=$(grep -m 1 "^${label}_$name"$'\t' "$list")
  if [ $label = cuda ] || [ $card = no ] || [ -z "$line" ] || ! command -v compute-sanitizer >/dev/null || [ "$(left)" -lt 15 ]; then
    left_out=$((left_out + 1))
    continue
  fi
  echo "== $tool $name" >>"$out/sanitizer.log"
  timeout "$(within 60)" env KK_DEVICE=cuda compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 \
    "$(cut -f 2 <<<"$line")" 2>&1 | tail -n 80 >>"$out/sanitizer.log"
  rc=${PIPESTATUS[0]}
  case $rc in
    0) clean=$((clean + 1)) ;;
    124) left_out=$((left_out + 1)) ;;
    *) dirty=$((dirty + 1)); say "  sanitizer: $tool of $name ended with $rc" ;;
  esac
done
say "sanitizer: $clean clean, $dirty with findings, $left_out left out"
say "took $((SECONDS - began)) s; everything is in $out"
rm -rf "$list" "$outcome" ${packed:+"$packed"}
[ $((failed + dirty)) -eq 0 ]
