#!/usr/bin/env bash
# build_llama.sh FOLDER - the peers that `bench_infer` is held against: llama.cpp as the sdist of
# PyPI `llama-cpp-python` carries it, built Release with upstream's defaults (native, OpenMP), nothing
# fetched while it builds; OpenVINO GenAI of PyPI; ik_llama.cpp of the source folder $FM_IK, where it
# is given. Then SmolLM2 and two larger shapes in the forms of the table, and the small programs of
# tests/peer that speak to libllama. Every step is left out where its result is there already.
#
#   FOLDER/bin/       llama-bench llama-batched-bench llama-quantize llama-perplexity, peer programs
#   FOLDER/ik/bin/    llama-bench llama-batched-bench of ik_llama.cpp
#   FOLDER/openvino/  a Python environment with openvino-genai and gguf
#   FOLDER/models/    {smollm2,shape-1b,shape-4b}-{q4_1,q8_0,bf16,q4_k_m,iq4_xs,mxfp4}.gguf; the
#                     shapes are made where $FM_SHAPES is set ("1b 4b"): 12 and 25 GB with their bf16
#   FOLDER/version    version of the sdist and of llama.cpp, compiler
#
# The sdist is looked for in FOLDER, then in $FM_LLAMA_SDIST (a file), else downloaded by name.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=../../cmake/packages.sh
. "$source_dir/cmake/packages.sh"
[ $# -eq 1 ] || { echo "usage: build_llama.sh FOLDER" >&2; exit 129; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
jobs=$(nproc)

# fetch_source : unpacks the sdist once; sets src.
fetch_source() {
  local sdist
  src=$(echo "$folder"/src/llama_cpp_python-*/vendor/llama.cpp)
  [ -d "$src" ] && return 0
  sdist=$(find "$folder" -maxdepth 1 -name 'llama_cpp_python-*.tar.gz' | sort | tail -n 1)
  sdist=${sdist:-${FM_LLAMA_SDIST:-}}
  if [ -z "$sdist" ]; then
    python3 -m pip download -q --disable-pip-version-check --no-deps \
      --no-binary :all: -d "$folder" llama-cpp-python
    sdist=$(find "$folder" -maxdepth 1 -name 'llama_cpp_python-*.tar.gz' | sort | tail -n 1)
  fi
  mkdir -p "$folder/src"
  tar -xzf "$sdist" -C "$folder/src"
  src=$(echo "$folder"/src/llama_cpp_python-*/vendor/llama.cpp)
}

# build_llama : upstream's defaults but for what is never run here (tests, server, network).
build_llama() {
  local tools=(llama-bench llama-batched-bench llama-quantize llama-perplexity)
  if [ ! -f "$folder/build/build.ninja" ]; then
    cmake -S "$src" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
      -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
      -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF \
      -DFETCHCONTENT_FULLY_DISCONNECTED=ON >"$folder/configure.log"
  fi
  ninja -C "$folder/build" -j "$jobs" "${tools[@]}" llama >"$folder/build.log"
  ln -sfn build/bin "$folder/bin"
  { basename "$(dirname "$(dirname "$src")")"; g++ --version | head -n 1
    grep -E '^(CMAKE_BUILD_TYPE|GGML_NATIVE|GGML_OPENMP|GGML_LLAMAFILE|GGML_CPU_REPACK)' \
      "$folder/build/CMakeCache.txt"; } >"$folder/version"
}

# build_programs : tests/peer/llama_*.cpp, each against libllama alone.
build_programs() {
  local source name
  for source in "$source_dir"/tests/peer/llama_*.cpp; do
    name=$(basename "$source" .cpp)
    name=${name//_/-}
    [ "$folder/bin/$name" -nt "$source" ] && continue
    g++ -std=c++17 -O2 -Wall -Wextra -I"$src/include" -I"$src/ggml/include" "$source" \
      -o "$folder/bin/$name" -L"$folder/bin" -lllama -lggml -lggml-base -Wl,-rpath,"$folder/bin"
  done
}

# build_ik : with its own defaults for this CPU.
build_ik() {
  mkdir -p "$folder/ik/bin"
  ln -sfn "$(command -v python3)" "$folder/ik/bin/python3"
  if [ -n "${FM_IK:-}" ] && [ ! -x "$folder/ik/bin/llama-bench" ]; then
    cmake -S "$FM_IK" -B "$folder/ik/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
      -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF >"$folder/ik/configure.log"
    ninja -C "$folder/ik/build" -j "$jobs" llama-bench llama-batched-bench >"$folder/ik/build.log"
    ln -sfn ../build/bin/llama-bench ../build/bin/llama-batched-bench "$folder/ik/bin/"
  fi
}

build_openvino() {
  [ -x "$folder/openvino/bin/python3" ] && return 0
  python3 -m venv "$folder/openvino"
  "$folder/openvino/bin/pip" install -q --disable-pip-version-check openvino-genai gguf
}

# quantize STEM FROM KIND [OPTION] : models/STEM-kind.gguf of the file FROM.
quantize() {
  local lower
  lower=$(echo "${3%_MOE}" | tr '[:upper:]' '[:lower:]')
  [ -f "$folder/models/$1-$lower.gguf" ] && return 0
  # shellcheck disable=SC2086
  "$folder/bin/llama-quantize" --allow-requantize ${4-} "$2" "$folder/models/part.gguf" "$3" \
    >"$folder/quantize-$1-$lower.log" 2>&1
  mv "$folder/models/part.gguf" "$folder/models/$1-$lower.gguf"
}

# quantize_all STEM FROM : MXFP4 in all matrices (--pure), which llama-quantize gives experts alone.
quantize_all() {
  local kind
  for kind in Q4_1 Q8_0 Q4_K_M IQ4_XS; do quantize "$1" "$2" "$kind"; done
  quantize "$1" "$2" MXFP4_MOE --pure
}

# make_models : SmolLM2 of shared/data/README's table, and the shapes.
make_models() {
  local q4 shape
  q4=$(fetch_smollm2)
  mkdir -p "$folder/models"
  ln -sfn "$q4" "$folder/models/smollm2-q4_1.gguf"
  quantize smollm2 "$q4" BF16
  quantize_all smollm2 "$folder/models/smollm2-bf16.gguf"
  for shape in ${FM_SHAPES:-}; do
    if [ ! -f "$folder/models/shape-$shape-bf16.gguf" ]; then
      "$folder/openvino/bin/python3" "$source_dir/tests/bench/make_shapes.py" "$q4" \
        "$folder/models/part.gguf" "$shape"
      mv "$folder/models/part.gguf" "$folder/models/shape-$shape-bf16.gguf"
    fi
    quantize_all "shape-$shape" "$folder/models/shape-$shape-bf16.gguf"
  done
}

fetch_source
build_llama
build_programs
build_ik
build_openvino
make_models
echo "peer: $(tr '\n' ' ' <"$folder/version")in $folder"
