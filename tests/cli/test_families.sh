#!/bin/bash
# The tiny models of each architecture: in, and out again byte for byte.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm # so many imports would wait for a disk
. "$(dirname "$0")/lib.sh"
cd "$tmp"

want 0 init .
for dir in "$src"/tests/model/golden/arch/*/; do
    name=$(basename "$dir")
    say "$name"
    want 0 import "$dir" --as "$name"
    want 0 export "$name" "exported-$name" --format source
    for file in config.json model.safetensors; do
        cmp "$dir/$file" "exported-$name/$file" || die "$name: $file came out otherwise"
    done
done
