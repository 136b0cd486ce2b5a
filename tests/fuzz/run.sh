#!/usr/bin/env bash
# run.sh SECONDS [TARGET...] - builds the fuzz targets with clang and libFuzzer and runs each for
# SECONDS, one after the other, at the lowest priority. Without targets: those of the store.
#
# New inputs gather in BUILD/found/<target> (BUILD: FM_FUZZ_BUILD, else build-fuzz beside the
# sources); a crash stops its target, is kept as BUILD/found/<target>-crash-*, and the exit is 1.
# What a crash needs to stay found: its input, made small, in corpora/<target>.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 2,9p "$0"; exit 129; }
seconds=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${FM_FUZZ_BUILD:-$root/build-fuzz}
targets=("$@")
[ $# -gt 0 ] || targets=(safetensors gguf pack record index intake torch codec entry)
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_C_FLAGS_DEBUG="-g -O1" -DFM_FUZZ=ON -DFM_TESTS=ON -DFM_WERROR=OFF -DFM_SANITIZE=address,undefined \
    ${FM_FUZZ_CMAKE:-} > /dev/null
nice -n 19 ninja -C "$build" "${targets[@]/#/fuzz_}" > "$build/fuzz-build.log" || {
    tail -30 "$build/fuzz-build.log"
    exit 2
}
[ -d /dev/shm ] && export TMPDIR=/dev/shm # fuzz_index makes files
failed=0
for t in "${targets[@]}"; do
    mkdir -p "$build/found/$t"
    log=$build/found/$t.log
    FM_SOURCE_DIR=$root nice -n 19 "$build/tests/fuzz_$t" -max_total_time="$seconds" -timeout=30 \
        -rss_limit_mb=4096 -max_len=65536 -print_final_stats=1 -verbosity=1 \
        -artifact_prefix="$build/found/$t-" "$build/found/$t" "$here/corpora/$t" \
        > "$log" 2>&1 && rc=0 || rc=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    cov=$(grep -o 'cov: [0-9]*' "$log" | tail -1)
    echo "$t: ${runs:-?} runs in $seconds s, ${cov:-cov: ?}, exit $rc"
    [ $rc -eq 0 ] || { failed=1; grep -m3 -E 'ERROR|runtime error|assertion|SUMMARY' "$log" || tail -5 "$log"; }
done
exit $failed
