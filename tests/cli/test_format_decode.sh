#!/bin/bash
# ctest: cost=15
# The second reader decodes the golden packs, and finds a flipped byte.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
command -v python3 >/dev/null || { echo "skip: no python3"; exit 77; }
packs=("$here"/format/golden/*.pack "$here"/format/golden/codecs/*.pack "$here"/format/golden_recipes/*.pack
    "$here"/format/golden_quantize/*.pack "$here"/format/golden_adamw/*.pack)
python3 "$here/format/decode.py" "${packs[@]}" || exit $?
python3 "$here/format/quantize_check.py" "$here/format/golden/quantize.bin" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
for pack in "${packs[@]}"; do
    name=$tmp/$(basename "$pack")
    cp "$pack" "$name"
    printf '\377' | dd of="$name" bs=1 seek=700 conv=notrunc status=none
    if python3 "$here/format/decode.py" "$name" 2>/dev/null; then
        echo "a damaged pack was taken for sound"
        exit 1
    fi
done
