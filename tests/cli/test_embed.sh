#!/bin/bash
# embed: JSON lines in, vectors out, in order; what it cannot take is named.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"

want 0 init .
want 0 import "$src/tests/model/golden/arch/roberta" --as enc
want 0 import "$src/tests/model/golden/arch/qwen3_moe" --as dec

say "one vector a line: an encoder's has norm 1, a decoder's is its last state"
printf '{"ids":[0,5,9,2]}\n{"ids":[0,9,5,2]}\n{"ids":[0,5,9,2]}\n' >in
"$fm" embed enc <in >enc.out
"$fm" embed dec <in >dec.out
python3 - <<'PY'
import json, math
for name, unit in (("enc", True), ("dec", False)):
    x = [json.loads(l)["embedding"] for l in open(name + ".out")]
    assert len(x) == 3 and all(len(v) == 32 for v in x), name
    assert x[0] == x[2] and x[0] != x[1], name
    norm = math.sqrt(sum(a * a for a in x[0]))
    assert (abs(norm - 1) < 1e-6) == unit, (name, norm)
PY

say "refusals name the line and the reason"
fails() {
    local text=$1 rev=$2
    if "$fm" embed "$rev" <bad >out 2>err; then die "embed took: $(cat bad)"; fi
    grep -q "line 1.*$text" err || die "want '$text', got: $(cat err)"
}
echo '{"text":"hello"}' >bad && fails "no tokenizer" enc
echo '{"ids":[48]}' >bad && fails "no token" enc
echo '{"ids":[]}' >bad && fails "no tokens" enc
echo '{"word":1}' >bad && fails "want" enc
python3 -c 'print({"ids": [3] * 63})' | tr "'" '"' >bad && fails "at most 62" enc
if echo '{"ids":[1,2]}' | "$fm" score enc >out 2>err; then die "an encoder scored"; fi
grep -q "is an encoder" err || die "$(cat err)"
