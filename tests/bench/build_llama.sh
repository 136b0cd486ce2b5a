#!/usr/bin/env bash
# build_llama.sh FOLDER - the peer that `bench_infer` is held against: llama.cpp as the sdist of
# PyPI `llama-cpp-python` carries it, built Release with upstream's defaults (native, OpenMP), nothing
# fetched while it builds. Then SmolLM2 in the forms of the table, and the small programs of
# tests/peer that speak to libllama. Every step is left out where its result is there already.
#
#   FOLDER/bin/       llama-bench llama-batched-bench llama-quantize llama-perplexity, peer programs
#   FOLDER/models/    smollm2-{q4_1,q8_0,bf16}.gguf
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
    python3 -m pip download -q --disable-pip-version-check --no-deps --no-build-isolation \
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

# make_models : the files of shared/data/README's table.
make_models() {
  local q4 kind lower
  q4=$(fetch_smollm2)
  mkdir -p "$folder/models"
  ln -sfn "$q4" "$folder/models/smollm2-q4_1.gguf"
  for kind in Q8_0 BF16; do
    lower=$(echo "$kind" | tr '[:upper:]' '[:lower:]')
    [ -f "$folder/models/smollm2-$lower.gguf" ] && continue
    "$folder/bin/llama-quantize" --allow-requantize "$q4" "$folder/models/part.gguf" "$kind" \
      >"$folder/quantize-$lower.log" 2>&1
    mv "$folder/models/part.gguf" "$folder/models/smollm2-$lower.gguf"
  done
}

fetch_source
build_llama
build_programs
make_models
echo "peer: $(tr '\n' ' ' <"$folder/version")in $folder"
