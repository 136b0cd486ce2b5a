#!/bin/bash
# ctest: long
# The whole recipe of the atlas base, replayed: its weights and its log come out byte for byte.
. "$(dirname "$0")/lib.sh"
need_python
limit_s=850
cd "$tmp"
mkdir repo && cd repo
want 0 init .

say "derive -f pretrain.yaml, all of it"
want 0 derive -f "$atlas/pretrain.yaml"

say "exported, it is the shipped folder byte for byte"
want 0 export atlas ../base --format hf
diff -r ../base "$atlas/base"

say "its log and recipe are the shipped ones"
"$fm" cat atlas:train_log.json | cmp - "$atlas/train_log.json"
"$fm" cat atlas:recipe.json | cmp - "$atlas/recipe.json"
want 0 fsck
echo "all hold"
