#!/usr/bin/env bash
# suite convert: what it prints hangs on a branch as it is, and is run; what has no meaning is refused.
. "$(dirname "$0")/lib.sh"
f=$src/tests/unit/testing/foreign
cd "$tmp"

say "each format, told by the file or by --from"
want 0 suite convert "$f/promptfoo.yaml" --chat
grep -q '^suite: promptfoo$' out || die "no suite: $(head -3 out)"
cp out capitals.yaml
want 0 suite convert "$f/lm_eval_choice.yaml" --data "$f/lm_eval_choice.jsonl" --suite arc
grep -q '^suite: arc$' out || die "--suite was not heard"
cp out arc.yaml
want 0 suite convert --from checklist "$f/checklist.json"
cp out sentiment.yaml
want 0 suite convert "$f/table.csv"

say "refusals name file, test and key"
refused 128 "--data" suite convert "$f/lm_eval_choice.yaml"
printf 'prompts: [a]\ntests:\n  - assert: [{type: javascript, value: "1"}]\n' >js.yaml
refused 128 "js.yaml: tests[0]: assert[0]: javascript: is not read" suite convert js.yaml
refused 128 "no.yaml" suite convert no.yaml
refused 128 "'xml' is no format" suite convert --from xml js.yaml
want 129 suite convert

say "a converted suite is run: choices, invariance and direction"
want 0 init repo
want 0 -C repo import "$atlas/base" --as base
want 0 -C repo suite add base ../sentiment.yaml ../arc.yaml ../capitals.yaml
got=0
timeout 600 "$fm" -C repo test base --json >out 2>err || got=$?
[ "$got" = 0 ] || [ "$got" = 1 ] || die "test: exit $got: $(cat err)"
need_python
python3 - out <<'E2'
import json, sys
doc = json.load(open(sys.argv[1]))
suites = {s["suite"]: s for s in doc["suites"]} if isinstance(doc, dict) else {s["suite"]: s for s in doc}
assert set(suites) == {"sentiment", "arc", "capitals" if "capitals" in suites else "promptfoo"}, suites.keys()
cases = {c["name"]: c for c in suites["sentiment"]["cases"]}
assert len(cases) == 8 and all(c["verdict"] in ("pass", "fail") for c in cases.values()), cases
assert cases["names"]["answer"] in (" negative", " neutral", " positive")
assert cases["adding praise"]["score"] is not None
E2
say ok
