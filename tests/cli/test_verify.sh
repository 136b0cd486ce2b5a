#!/bin/bash
# `export --verify` opens the GGUF again and runs it beside the version: it has its name only once it has passed.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo && atlas_repo
derive() { want 0 derive "$1" --as "$2" --method lora --data "$atlas/pirate.jsonl" --set steps=20 --set seed=1 --set r=4 --no-gate -m x; }
derive atlas kid

say "a merged child passes in each type, and its figures are told"
for d in f32 bf16 f16 q8_0; do
    mkdir ../$d
    want 0 export kid ../$d/kid.gguf --dtype $d --verify --modelfile
    [ "$(ls ../$d | tr '\n' ' ')" = "Modelfile kid.gguf " ] || die "$d: $(ls ../$d)"
    grep -q '^  the file  *KL [0-9.e-]* (most [0-9.e-]*), best token [0-9]* of [0-9]*, greedy answers 8 of 8$' "$tmp/out" ||
        die "$d: $(cat "$tmp/out")"
    grep -q '^  limit  *KL ' "$tmp/out" || die "$d: no limit"
done
want 0 export kid ../plain.gguf --dtype f32
cmp ../plain.gguf ../f32/kid.gguf || die "--verify writes another file"
refused 128 "f32/kid.gguf: is there already" export kid ../f32/kid.gguf --verify

say "adapters alone are laid on the version's base again, one file or several"
want 0 export kid ../kid-lora.gguf --format gguf-lora --verify
grep -q '^  the file  *KL 0 (most 0), best token ' "$tmp/out" || die "lora: $(cat "$tmp/out")"
want 0 export kid ../kid-bf16.gguf --format gguf-lora --dtype bf16 --verify
! grep -q '^  the file  *KL 0 ' "$tmp/out" || die "BF16 factors change nothing: $(cat "$tmp/out")"
derive kid grandkid
want 0 export grandkid ../two --format gguf-lora --verify
grep -q '^  the file  *KL 0 (most 0), best token ' "$tmp/out" || die "two: $(cat "$tmp/out")"
[ "$(ls ../two | tr '\n' ' ')" = "0-lora.gguf 1-lora.gguf " ] && [ ! -e ../two.unverified ] || die "two: $(ls .. ../two)"
refused 128 "name a folder" export grandkid ../two.gguf --format gguf-lora --verify

say "a file that does not do as the version does stays under a name that says so, and nothing else is written"
cp -r "$atlas/base" ../ends && python3 - ../ends/generation_config.json <<'EOF'
import json, sys
json.dump({"eos_token_id": [4, 77]}, open(sys.argv[1], "w"))
EOF
want 0 import ../ends --as ends --no-gate
mkdir ../no
want 1 export ends ../no/ends.gguf --verify --modelfile
grep -q "ends.unverified.gguf: is not 'ends': the version ends answers at token 77, the file does not" "$tmp/err" ||
    die "stops: $(cat "$tmp/err")"
[ "$(ls ../no)" = "ends.unverified.gguf" ] || die "left: $(ls ../no)"
want 0 export ends ../no/ends.gguf
cmp ../no/ends.gguf ../no/ends.unverified.gguf || die "another file was kept"
rm ../no/ends.gguf
refused 128 "ends.unverified.gguf: is there already" export ends ../no/ends.gguf --verify
refused 129 "--verify wants --format gguf or gguf-lora" export kid ../hf --verify
