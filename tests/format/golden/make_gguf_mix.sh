#!/bin/sh
# gguf_mix.txt: "SHA-256 MODEL MIX [IMATRIX]" of what a real llama-quantize makes of the F32 exports that the test
# writes, by the importance matrices that it writes too.
# usage: make_gguf_mix.sh FORMAT_GGUF_MIX LLAMA-QUANTIZE > gguf_mix.txt      (made with the llama.cpp of llama-cpp-python 0.3.36)
set -eu
test=$(realpath "$1") quantize=$(realpath "$2")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
FM_MIX_OUT=$dir "$test"
digest() { # MODEL MIX [IMATRIX]
    "$quantize" ${3:+--imatrix "$3"} "$1.f32.gguf" out.gguf "$2" 2 >&2
    echo "$(sha256sum < out.gguf | cut -d' ' -f1) $1 $2${3:+ $3}"
    rm out.gguf
}
all="Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ4_NL IQ4_XS"
for model in wide experts odd atlas; do
    for mix in $all; do digest $model $mix; done
    case $model in
    wide) by=$all ;;
    experts) by="Q2_K_S Q3_K_M Q4_0 Q4_K_M Q6_K IQ4_XS" ;;
    odd) by= ;;
    atlas) by="Q2_K_S Q4_1 Q5_0 Q5_K_M IQ4_NL IQ4_XS" ;;
    esac
    for mix in $by; do digest $model $mix $model.imatrix.gguf; done
    [ $model != wide ] || digest $model Q4_K_M $model.imatrix.dat
done
