#!/usr/bin/env bash
# The exact kernels for NEON: compiled by the cross compiler, and run under qemu where it is
# installed: the same bits as plain C. Exit 77 (a skip) without the compiler.
set -euo pipefail
src=${FM_SOURCE_DIR:?}
cc=aarch64-linux-gnu-gcc
command -v "$cc" >/dev/null || { echo "no $cc (Debian: gcc-aarch64-linux-gnu)"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
flags=(-std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno -I"$src")
"$cc" -O2 "${flags[@]}" -DFMI_ISA_NEON -c "$src/infer/cpu/kern/kern.c" -o "$tmp/NEON.o"
"$cc" -O1 "${flags[@]}" -DFMI_ISA_GENERIC -c "$src/infer/cpu/kern/kern.c" -o "$tmp/GENERIC.o"
# The rest of the backend at least compiles.
"$cc" "${flags[@]}" -DFMI_ISA_GENERIC -c "$src/infer/cpu/fast/kern_fast.c" -o "$tmp/kern_fast.o"
for file in cpu cpu_util exact/{product,attention,attention_train,elem,elem_train,act,loss,terms,route,weight} fast/{fast,weight,product,lora,attention,elem}; do
  "$cc" "${flags[@]}" -c "$src/infer/cpu/$file.c" -o "$tmp/${file//\//_}.o"
done
"$cc" -O2 "${flags[@]}" -static "$src/tests/cross/kern_bits.c" "$src/store/base/math/detmath.c" \
  "$tmp/NEON.o" "$tmp/GENERIC.o" -lm -o "$tmp/kern_bits"
command -v qemu-aarch64-static >/dev/null || { echo "compiled; no qemu-user-static to run it"; exit 0; }
qemu-aarch64-static "$tmp/kern_bits"
