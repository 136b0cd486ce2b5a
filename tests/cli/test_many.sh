#!/usr/bin/env bash
# Several versions tested as one batch give what each gives alone; results of two clones are one.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
atlas_repo
want 0 suite add atlas "$atlas/suites/facts.yaml"

# Other weights in the first layer: another model that shares the rest.
other() {
    cp -r "$atlas/base" "$1"
    chmod -R u+w "$1"
    python3 - "$1/model.safetensors" "$2" <<'PY'
import json, struct, sys
path, share = sys.argv[1], float(sys.argv[2])
raw = bytearray(open(path, "rb").read())
n = struct.unpack("<Q", raw[:8])[0]
e = json.loads(raw[8:8 + n])["model.layers.0.self_attn.o_proj.weight"]
at, to = (8 + n + o for o in e["data_offsets"])
raw[at:at + int((to - at) * share) // 256 * 256] = bytes(int((to - at) * share) // 256 * 256)
open(path, "wb").write(raw)
PY
}
other half 0.5
other most 0.9
want 0 import half --as half --parent atlas --no-gate
want 0 import most --as most --parent half --no-gate
want 0 suite add most "$atlas/suites/manners.yaml"
want 0 branch twin half
want 0 import "$atlas/base" --as stranger --no-gate
forget() { # what was kept of results
    rm -f .fmstore/lineage.sqlite*
    git -C .fmstore/lineage.git update-ref -d refs/fmstore/results
}

say "one batch of three equals three runs"
forget
want 1 test atlas half most --json
cp out many.json
for v in atlas half most; do
    forget
    timeout 600 "$fm" test $v --json >$v.json || true
done
python3 - <<'PY'
import json
many = json.load(open("many.json"))
assert [v["rev"] for v in many] == ["atlas", "half", "most"], many
outputs = []
for v in many:
    one = json.load(open(v["rev"] + ".json"))
    for x in (v, one):
        for s in x["suites"]:
            del s["seconds"]
            assert not any(c["cached"] for c in s["cases"])
    assert v == one, v["rev"]
    outputs.append([c["output"] for c in v["suites"][0]["cases"]])
assert outputs[0] != outputs[1] != outputs[2], "the versions do not differ"
PY

say "descendants are those that come from it, each commit once"
want 1 test atlas --descendants --json
python3 - "$tmp/out" <<'PY'
import json, sys
revs = [v["rev"] for v in json.load(open(sys.argv[1]))]
assert revs == ["atlas", "half, twin", "most"], revs
PY
want 1 test most half --suite manners
! grep -q facts "$tmp/out" || die "--suite did not choose"
refused 128 "none of these versions has a suite with a case named nowhere" test half most --case nowhere
want 129 test half most --against atlas

say "a clone takes over what was run here"
cp -r .fmstore there
rm -f there/lineage.sqlite*
git -C there/lineage.git update-ref -d refs/fmstore/results
want 0 -C there results ls half
grep -q '0 of 40 results are kept' "$tmp/err" || die "$(cat "$tmp/err")"
want 0 -C there results merge "$tmp"
grep -q ' new here$' "$tmp/out" || die "$(cat "$tmp/out")"
want 0 -C there results ls half
grep -q '40 of 40 results are kept' "$tmp/err" || die "$(cat "$tmp/err")"
want 0 results merge there
grep -q ', 0 of them new here' "$tmp/out" || die "$(cat "$tmp/out")"
refused 128 "'atlas' holds no results" results merge atlas
refused 128 "is no repository" results merge half
want 0 fsck
echo ok
