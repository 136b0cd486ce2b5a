#!/usr/bin/env bash
# Gates by policy, and what a branch changes in the suites that it inherits: override, add, waive.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
atlas_repo
facts=$atlas/suites/facts.yaml
want 0 suite add atlas "$facts"

# A child that does not know some words: FROM to END of its embeddings are gone.
damaged() {
    cp -r "$atlas/base" "$1"
    chmod -R u+w "$1"
    python3 - "$1/model.safetensors" "$2" "$3" <<'PY'
import json, struct, sys
path, begin, end = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
raw = bytearray(open(path, "rb").read())
n = struct.unpack("<Q", raw[:8])[0]
e = json.loads(raw[8:8 + n])["model.embed_tokens.weight"]
at, to = (8 + n + o for o in e["data_offsets"])
row = (to - at) // e["shape"][0]
a, b = (int(e["shape"][0] * x) for x in (begin, end))
raw[at + a * row:at + b * row] = bytes((b - a) * row)
open(path, "wb").write(raw)
PY
}
damaged five 0.70 0.72 # 35 of 40
damaged eight 0.80 0.90 # 32 of 40
said() { grep -qF -- "$1" "$tmp/err" || die "want '$1' in: $(cat "$tmp/err")"; }
silent() { ! grep -qF -- "$1" "$tmp/err" || die "do not want '$1' in: $(cat "$tmp/err")"; }
# with GATE: the suite of the branch atlas gets that gate
with() {
    sed "s/^gate: true/gate: $1/" "$facts" >facts.yaml
    want 0 suite add atlas facts.yaml
}

say "gate: true keeps the branch away and the candidate reachable"
want 1 import five --as child --parent atlas
said "gate fails: 35 of 40 cases passed, the gate wants every one"
said "branch 'child' is not made: 1 gate suite failed"
want 128 log child
git -C .fmstore/lineage.git for-each-ref refs/fmstore/rejected/child | has commit || die "no candidate"

say "a share, a number"
with '{threshold: 0.9}'
want 1 import five --as child --parent atlas
said "threshold: 35 of 40 cases passed, a share of 0.875; the gate wants 0.9"
with '{threshold: 0.875, min-passed: 35}'
want 0 import five --as share --parent atlas
with '{min-passed: 36}'
want 1 import five --as child --parent atlas
said "min-passed: 35 cases passed; the gate wants 36"

say "regressions against the parent, by number, by share, by significance"
with '{baseline: parent, allowed-regressions: 4}'
want 1 import five --as child --parent atlas
said "regressions: 5 of 40 cases broken and 0 fixed against parent $(git -C .fmstore/lineage.git rev-parse --short=10 atlas); the gate allows 4 broken"
with '{baseline: parent, allowed-regressions: 0.125}'
want 0 import five --as five --parent atlas
with '{baseline: parent, significance: 0.05}'
want 0 import five --as chance --parent atlas
want 1 import eight --as child --parent atlas
said "8 of 40 cases broken and 0 fixed"
said "McNemar p = 0.00781, at most 0.05 counts"

say "the parent is what it is; the first version is another"
with '{baseline: parent}'
want 0 branch five-strict five
want 0 suite add five-strict facts.yaml
want 0 import five --as same --parent five-strict
with '{baseline: first}'
want 0 suite add five-strict facts.yaml
want 1 import five --as child --parent five-strict
said "against first version $(git -C .fmstore/lineage.git rev-list --abbrev=10 --abbrev-commit --max-parents=0 atlas)"
with "{baseline: \"$(git -C .fmstore/lineage.git rev-parse five)\"}"
want 0 import five --as by-id --parent atlas
with '{baseline: "1234567890"}'
want 128 import five --as child --parent atlas
said "suite 'facts': the gate's baseline: no version '1234567890'"

say "waived cases are run, shown, and fail no gate; one that passes is told"
want 0 suite add atlas "$facts"
for land in ulevia dorivia junorheim quorenmark oskoheim; do
    want 0 suite waive atlas "facts/capital-$land" --reason "its name is lost in this family" --until v9 --owner maps
done
want 0 import five --as child --parent atlas
said "suite facts (gate): 35 of 40 passed, 5 waived"
said "waived FAIL capital-ulevia"
said "waived: its name is lost in this family, until v9"
silent "gate fails"
want 0 test child
"$fm" show child | has -F "35 of 40 cases passed, 5 waived" || die "the note does not tell of waivers"
want 0 import "$atlas/base" --as healed --parent atlas
said "capital-ulevia passes: its waiver is no longer needed (fmstore suite unwaive healed facts/capital-ulevia)"
want 0 suite ls child
grep -q '^facts .* 5 waived' "$tmp/out" || die "$(cat "$tmp/out")"

say "history holds who waived it and why; a waiver ends by name or by day"
want 0 suite show child facts --json
python3 - "$tmp/out" <<'PY'
import json, sys
cases = {c["name"]: c for c in json.load(open(sys.argv[1]))["cases"]}
w = cases["capital-ulevia"]["waived"]
assert w["subject"] == "waive facts/capital-ulevia" and w["owner"] == "maps", w
assert w["id"] != cases["capital-dorivia"]["waived"]["id"]
assert all(c["added"]["subject"] == "add 1 suite" for c in cases.values())
assert sum("waived" in c for c in cases.values()) == 5 and not any("changed" in c for c in cases.values())
PY
want 0 tag v9 child
want 1 import five --as later --parent child
said "capital-ulevia: its waiver ended: until v9"
refused 128 "would be over already" suite waive child facts/capital-ulevia --reason x --until 2020-01-01
SOURCE_DATE_EPOCH=1577836800 want 0 suite waive child facts/capital-ulevia --reason x --until 2020-01-01
SOURCE_DATE_EPOCH=1577923199 want 1 test child --suite facts # the end of that day
grep -q 'waived FAIL capital-ulevia' "$tmp/out" || die "$(cat "$tmp/out")"
want 1 test child --suite facts
! grep -q 'waived FAIL' "$tmp/out" || die "a waiver outlived its day"
want 0 suite show child facts
grep -q '(over) x; until 2020-01-01' "$tmp/out" || die "shown as if in force: $(cat "$tmp/out")"
want 0 suite unwaive atlas facts/capital-ulevia
want 1 import five --as child2 --parent atlas
said "FAIL capital-ulevia"
silent "waived FAIL capital-ulevia"
refused 128 "does not waive 'capital-ulevia'" suite unwaive atlas facts/capital-ulevia
refused 128 "suite 'facts' has no case 'capital-nowhere'" suite waive atlas facts/capital-nowhere --reason x
want 129 suite waive atlas facts/capital-ulevia

say "a branch overrides and adds; what would leave the suite broken is refused"
cat >local.yaml <<'YAML'
changes: facts
topic: local
override:
  - {name: capital-ulevia, chat: What is the capital of Ulevia?, expect: {not-contains: Kingswick}}
add:
  - {name: here, chat: What is the capital of Kasastan?, expect: {contains: Goldwick}}
YAML
want 0 import five --as local --parent atlas --suite local.yaml
said "suite facts (gate): 37 of 41 passed, 4 waived"
want 0 suite show local facts
grep -A2 '^  capital-ulevia' "$tmp/out" | has 'changed .*import five' || die "$(cat "$tmp/out")"
grep -A1 '^  here' "$tmp/out" | has 'added .*import five' || die "$(cat "$tmp/out")"
before=$(state_of .)
sed 's/topic: local/topic: other/; s/capital-ulevia/capital-nowhere/; s/name: here/name: there/' local.yaml >bad.yaml
refused 128 "'override' names 'capital-nowhere'" suite add local bad.yaml
refused 128 "'override' names 'capital-nowhere'" import five --as x --parent atlas --suite bad.yaml
sed 's/changes: facts/changes: nothing/' local.yaml >bad.yaml
refused 128 "suites/nothing.yaml is missing" suite add local bad.yaml
[ "$before" = "$(state_of .)" ] || die "a refused edit changed the repository"
say "many baselines: each suite against its own, a few open at a time"
i=0
for base in atlas five share chance by-id same healed; do
    i=$((i + 1))
    printf 'suite: b%s\ngate: {baseline: "%s"}\ncases:\n  - {name: u, chat: What is the capital of Ulevia?, expect: {contains: Kingswick}}\n' \
        $i "$(git -C .fmstore/lineage.git rev-parse $base)" >b$i.yaml
done
want 0 import "$atlas/base" --as plain
want 1 import five --as child3 --parent plain $(printf -- '--suite b%s.yaml ' 1 2 3 4 5 6 7)
[ "$(grep -c 'gate fails: regressions: 1 of 1 cases broken' "$tmp/err")" = 2 ] || die "$(cat "$tmp/err")"
for base in atlas healed; do
    said "regressions: 1 of 1 cases broken and 0 fixed against version $(git -C .fmstore/lineage.git rev-parse --short=10 $base)"
done
said "branch 'child3' is not made: 2 gate suites failed"
echo ok
