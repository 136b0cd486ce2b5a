#!/bin/bash
# The tiny models of each architecture: in, and out again byte for byte; those that GGUF has no words for here are not
# written as one.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm # so many imports would wait for a disk
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"

types() { # of each folder: its name and model_type
    python3 - "$src"/tests/model/golden/arch/*/config.json <<'EOP'
import json, os, sys
for path in sys.argv[1:]:
    config = json.load(open(path))
    print(os.path.basename(os.path.dirname(path)), config.get("text_config", config)["model_type"])
EOP
}

want 0 init .
types >types
while read -r name type; do
    dir=$src/tests/model/golden/arch/$name
    say "$name"
    want 0 import "$dir" --as "$name"
    want 0 export "$name" "exported-$name" --format source
    for file in config.json model.safetensors; do
        cmp "$dir/$file" "exported-$name/$file" || die "$name: $file came out otherwise"
    done
    grep -q "\.model_type = \"$type\"" "$src/store/import/gguf_arch.c" ||
        refused 128 "field 'model_type': '$type' cannot be written as GGUF" export "$name" x.gguf
done <types
[ "$(wc -l <types)" = "$(find "$src/tests/model/golden/arch" -mindepth 1 -maxdepth 1 -type d | wc -l)" ] || die "a folder is left out"
