#!/bin/bash
# A merged model beside its adapter, casts, averages: found with nothing told, stored as all but nothing, and
# given back byte for byte.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
atlas_repo

# stored BRANCH PERCENT MADE : its tensors take at most that share of their bytes, and one is made so. Those
# that it shares with atlas, where they stand alone, are not counted.
stored() {
    want 0 stats --codecs "$1" --json
    python3 - "$tmp/out" "$2" "$3" "$(ids atlas)" "$(ids "$1")" <<'PY' || die "$1 is not stored as it should"
import json, sys
shared = {l.split()[0] for l in set(sys.argv[4].splitlines()) & set(sys.argv[5].splitlines())}
rows = [r for r in json.load(open(sys.argv[1])) if r["bytes"] >= 8192 and r["path"] not in shared]
share = 100 * sum(r["stored_bytes"] for r in rows) / sum(r["bytes"] for r in rows)
made = sorted({r["made"] for r in rows})
print("  %.3f %% of raw, made by %s" % (share, ", ".join(made)))
sys.exit(not (share <= float(sys.argv[2]) and sys.argv[3] in made))
PY
}
# same_out BRANCH FILE : what came in comes out.
same_out() {
    want 0 export "$1" ../back --format source
    diff -r "$2" ../back
    rm -rf ../back
}

say "an adapter merged in f32 and imported beside it, nothing told"
want 0 derive atlas --as child --data "$atlas/pirate.jsonl" --set r=4 --set steps=3 --set batch=2 --no-gate
want 0 export child ../merged --dtype f32
want 0 import ../merged --as merged --no-gate
stored merged 2 lora
same_out merged ../merged

say "the same in bf16"
want 0 export child ../merged16 --dtype bf16
want 0 import ../merged16 --as merged16 --no-gate
stored merged16 1 cast
same_out merged16 ../merged16

say "a cast"
want 0 export atlas ../wide --dtype f32
want 0 import ../wide --as wide --no-gate
stored wide 0.5 cast
same_out wide ../wide

say "every version passes fsck, and its recipes are told of"
want 0 fsck
want 0 stats --codecs
grep -q '^lora ' "$tmp/out" || die "no lora in: $(cat "$tmp/out")"
want 0 stats --codecs merged
grep -q 'from child:adapters/0-lora/' "$tmp/out" || die "parents are not named: $(head "$tmp/out")"
refused 129 "--codecs" stats merged
