#!/bin/bash
# What docs/ shows is what the program prints: the `console` blocks of its pages, each page in a repository with
# the atlas. gpu.md wants the emulated GPU and is left out, visibly, where that is not built.
. "$(dirname "$0")/lib.sh"
need_python
export FM_SOURCE_DIR=$src
mkdir "$tmp/bin"
ln -s "$fm" "$tmp/bin/fmstore"
export PATH=$tmp/bin:$PATH

check_page() {
    say "docs/$1.md"
    rm -rf "$tmp/repo"
    mkdir "$tmp/repo"
    cd "$tmp/repo"
    cp "$atlas"/{clerk,pirate}.jsonl .
    want 0 init .
    git config -f .fmstore/config fmstore.checkpointevery 1000000 # else by time, and packs with it
    want 0 import "$atlas/base" --as atlas
    python3 "$src/tests/cli/doc_outputs.py" run "$tmp/repo" "$src/docs/$1.md" >"$tmp/page" ||
        die "docs/$1.md shows something else than this: $(cat "$tmp/page")"
}
for page in commands storage distributed remotes hub; do
    check_page $page
done
if [ -e "${FM_CUDA_EMULATED:-}" ]; then
    export FMSTORE_CUDA_MODULE=$FM_CUDA_EMULATED
    check_page gpu
else
    say "docs/gpu.md is left out: no emulated GPU is built"
fi
echo "all hold"
