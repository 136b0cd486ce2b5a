#!/bin/sh
# gguf_mix.txt: "SHA-256 MODEL MIX" of what a real llama-quantize makes of the F32 exports that the test writes.
# usage: make_gguf_mix.sh FORMAT_GGUF_MIX LLAMA-QUANTIZE > gguf_mix.txt      (made with the llama.cpp of llama-cpp-python 0.3.36)
set -eu
test=$(realpath "$1") quantize=$(realpath "$2")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
FM_MIX_OUT=$dir "$test"
for model in wide experts odd atlas; do
    for mix in Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ4_NL IQ4_XS; do
        "$quantize" "$model.f32.gguf" out.gguf "$mix" 2 >&2
        echo "$(sha256sum < out.gguf | cut -d' ' -f1) $model $mix"
        rm out.gguf
    done
done
