#!/bin/bash
# clang.sh ROOT - the files that ask the processor what it can do are also read by clang, with which
# tests/fuzz/run.sh builds: its __builtin_cpu_supports knows fewer words than gcc's. 77: no clang.
# None of them reads a leaf of cpuid without asking whether the processor has it.
set -u
cd "${1:-$(dirname "$0")/..}" || exit 1
if grep -rnE '"cpuid|__cpuid(_count|ex)?[ (]' --include='*.[ch]' store infer train cli testing lineage; then
    echo "a processor without the leaf gives another leaf's bits: use __get_cpuid_count"
    exit 1
fi
command -v clang >/dev/null || { echo "skip: no clang"; exit 77; }
files=$(grep -rlE '__builtin_cpu_supports|__get_cpuid' --include='*.c' store infer train) || exit 1
failed=0
for f in $files; do
    clang -fsyntax-only -std=c17 -D_GNU_SOURCE -I. "$f" || failed=1
done
exit $failed
