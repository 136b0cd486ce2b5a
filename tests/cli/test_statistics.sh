#!/bin/bash
# fmstore test: rates with intervals, flips with adjusted p-values, slices, repeats, sequential stops,
# and the files that other tools read.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
want 0 init .
want 0 import "$atlas/base" --as atlas --suite "$atlas/suites/manners.yaml" --suite "$atlas/suites/facts.yaml" --no-gate
want 0 derive atlas --as pirate --method lora --data "$atlas/pirate.jsonl" --set r=2 --set lr=0.01 --set max_tokens=96 \
    --set seed=7 --set epochs=1 --no-gate
cat >many.yaml <<'YAML'
suite: many
gate: {threshold: 0.5}
templates:
  - name: "n-{a}-{b}"
    prompt: "The capital {a} {b}"
    expect: {not-contains: "@@"}
    generate: {max-tokens: 1}
    slots: {a: [a, b, c, d, e, f, g, h, i, j, k, l], b: [a, b, c, d, e, f, g, h, i, j, k, l]}
YAML
sed 's/suite: many/suite: none/; s/not-contains/contains/' many.yaml >none.yaml
cat >shaky.yaml <<'YAML'
suite: shaky
cases:
  - {name: coin, prompt: The, expect: {regex: "^ ?[a-m]"}, generate: {temperature: 3, max-tokens: 1, seed: 1}}
  - {name: sure, prompt: The, expect: {not-contains: "@@"}, generate: {temperature: 3, max-tokens: 1, seed: 1}}
  - {name: greedy, prompt: The, expect: {not-contains: "@@"}, generate: {max-tokens: 1}}
YAML
cat >filed.yaml <<'YAML'
suite: filed
measures:
  - {measure: pass-rate, over: {group: b}, at-least: 0.9}
cases:
  - {name: one, capability: speech, tags: {group: a}, prompt: The, expect: {not-contains: "@@"}, generate: {max-tokens: 1}}
  - {name: two, capability: speech, tags: {group: b}, prompt: The, expect: {not-contains: "@@"}, generate: {max-tokens: 1}}
YAML
sed 's/suite: filed/suite: broken/; s/at-least: 0.9/at-most: 0.1/' filed.yaml >broken.yaml
want 0 suite add pirate filed.yaml broken.yaml
want 0 suite add pirate many.yaml none.yaml shaky.yaml

want 1 test pirate --against atlas --suite facts --json
cp out one.json
want 1 test pirate --against atlas --json
python3 - out one.json <<'PY'
import json, math, sys
d, one = (json.load(open(f)) for f in sys.argv[1:])
flips = d["flips"]
assert [f["suite"] for f in flips] == ["broken", "facts", "filed", "manners", "many", "none", "shaky"], flips
passes = lambda side, name: {c["name"]: c["verdict"] == "pass" for s in side["suites"] if s["suite"] == name
                             for c in s["cases"]}
for f in flips:
    was, now = passes(d["against"], f["suite"]), passes(d, f["suite"])
    fixed, broken = (sum(now[c] and not was[c] for c in now), sum(was[c] and not now[c] for c in now))
    n = fixed + broken
    p = min(1, 2 * sum(math.comb(n, k) for k in range(min(fixed, broken) + 1)) / 2**n) if n else 1
    assert (f["fixed"], f["broken"]) == (fixed, broken) and abs(f["p_value"] - p) < 1e-12, (f, p)
    assert abs(f["difference"]["value"] - (fixed - broken) / len(now)) < 1e-12
    assert f["difference"]["low"] <= f["difference"]["value"] <= f["difference"]["high"]
    assert {c["name"] for c in f["cases"]} == {c for c in now if was[c] != now[c]}
assert flips[1]["broken"] >= 2, flips[1]
order = sorted(flips, key=lambda f: f["p_value"])
most = 0
for i, f in enumerate(order):  # Holm by hand
    most = max(most, min(1, f["p_value"] * (len(order) - i)))
    assert abs(f["p_adjusted"] - most) < 1e-12, (f, most)
assert one["flips"][0]["p_adjusted"] == one["flips"][0]["p_value"] == flips[1]["p_value"]
for s in d["suites"]:
    n, k, z = len(s["cases"]), s["passed"], 1.959963984540054
    if s["waived"] or s["flaky"]:
        continue
    mid, half = (k / n + z * z / (2 * n)), z * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n))
    assert abs(s["rate"]["low"] - max(0, (mid - half) / (1 + z * z / n))) < 1e-9, s["rate"]
    assert (s["detectable_change"] is None) == (n < 6), s["suite"]
PY
want 1 test pirate --against atlas --adjust bh --json
python3 - out <<'PY'
import json, sys
flips = sorted(json.load(open(sys.argv[1]))["flips"], key=lambda f: f["p_value"])
least = 1
for i in range(len(flips), 0, -1):
    least = min(least, flips[i - 1]["p_value"] * len(flips) / i)
    assert abs(flips[i - 1]["p_adjusted"] - least) < 1e-12
PY
say "flips, McNemar, Holm and Benjamini-Hochberg are what the outcomes say; Wilson's interval and what n cases show"

want 0 test pirate --suite shaky --repeat 12
grep -q 'shaky: 2 of 3 passed, 1 flaky' out && grep -Eq 'flaky coin +\([0-9]+ of 12 repeats passed\)' out
want 0 test pirate --suite shaky --repeat 12 --junit j.xml --sarif s.sarif --tap t.tap --markdown m.md --json
python3 - out j.xml s.sarif t.tap m.md <<'PY'
import json, re, sys, xml.etree.ElementTree as X
run = json.load(open(sys.argv[1]))["suites"][0]
coin, sure, greedy = run["cases"]
assert coin["flaky"] and coin["repeats"] == 12 and 0 < coin["repeats_passed"] < 12
assert sure["flaky"] is False and sure["repeats_passed"] == 12
assert "repeats" not in greedy  # another seed could not change it: asked once
assert (run["passed"], run["failed"], run["errors"], run["flaky"]) == (2, 0, 0, 1)
suite = X.parse(sys.argv[2]).getroot()[0]
assert suite.get("skipped") == "1" and len(suite.findall("testcase/skipped")) == 1
log = json.load(open(sys.argv[3]))
assert log["version"] == "2.1.0" and log["runs"][0]["tool"]["driver"]["name"] == "fmstore"
result, = log["runs"][0]["results"]
assert result["ruleId"] == "shaky/coin" == log["runs"][0]["tool"]["driver"]["rules"][result["ruleIndex"]]["id"]
assert result["suppressions"][0]["kind"] == "external" and "flaky" in result["suppressions"][0]["justification"]
tap = open(sys.argv[4]).read().splitlines()
assert tap[:2] == ["TAP version 14", "1..3"] and sum(bool(re.match(r"(not )?ok \d+ - ", l)) for l in tap) == 3
assert any("# TODO flaky" in l for l in tap) and "- flaky shaky/coin" in open(sys.argv[5]).read()
PY
want 0 suite waive pirate facts/capital-ulevia --reason "said \"so\" <here>"
want 1 test pirate --sarif all.sarif # failures, a measure, a flaky and a waived case
python3 "$src/tests/cli/sarif_check.py" s.sarif all.sarif >checked || die "not SARIF: $(cat checked)"
grep -q '^s.sarif: 1 results' checked && grep -Eq '^all.sarif: 1[0-9]{2} results' checked
python3 - all.sarif "$src/tests/cli/sarif_check.py" <<'PY'
import copy, json, subprocess, sys
log = json.load(open(sys.argv[1]))
results = log["runs"][0]["results"]
assert any("measure: " in r["ruleId"] for r in results) and any("suppressions" in r for r in results)
def broken(change):  # the check sees what it is for
    bad = copy.deepcopy(log)
    change(bad["runs"][0])
    json.dump(bad, open("bad.sarif", "w"))
    return subprocess.run([sys.executable, sys.argv[2], "bad.sarif"], capture_output=True).returncode == 1
assert broken(lambda r: r["results"][0].pop("message"))
assert broken(lambda r: r["results"][0].update(level="fatal"))
assert broken(lambda r: r["results"][0].update(extra=1))
assert broken(lambda r: r["results"][0].update(ruleIndex=1))
assert broken(lambda r: r["tool"]["driver"]["rules"].append(r["tool"]["driver"]["rules"][0]))
PY
say "a case that disagrees with itself under other seeds is flaky: named, counted apart, in every report"

# one of the two fails, whatever the seed; on another version, before and after they are known
cat >doubt.yaml <<'YAML'
suite: doubt
gate: true
cases:
  - {name: heads, prompt: The, expect: {regex: "^ ?[a-n]"}, generate: {temperature: 3, max-tokens: 1, seed: 1}}
  - {name: tails, prompt: The, expect: {not-regex: "^ ?[a-n]"}, generate: {temperature: 3, max-tokens: 1, seed: 1}}
YAML
want 1 import "$atlas/base" --as doubted --suite doubt.yaml
grep -q "gate fails: 1 of 2 cases passed" "$tmp/err"
want 0 import "$atlas/base" --as doubted --suite doubt.yaml --no-gate
want 1 test doubted
want 0 test doubted --repeat 12
grep -q "gates do not count it; 'fmstore results lift REV doubt/heads' lets them" "$tmp/out"
want 0 test doubted --json
python3 - out <<'PY'
import json, sys
run = json.load(open(sys.argv[1]))["suites"][0]
assert run["flaky"] == 2 and run["passed"] == run["failed"] == 0, run
assert all(c["quarantined"] and c["flaky"] and 0 < c["repeats_passed"] < c["repeats"] == 12 for c in run["cases"])
PY
cp -r "$atlas/base" other && chmod -R u+w other && python3 - other/model.safetensors <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:  # another model: a bit of the last weight
    f.seek(-2, 2); b = f.read(1); f.seek(-2, 2); f.write(bytes([b[0] ^ 1]))
PY
want 0 import other --as trusted --parent doubted
grep -q "suite doubt (gate): 0 of 2 passed, 2 quarantined" "$tmp/err"
grep -Eq "quarantined heads: [0-9]+ of 12 repeats passed; 'fmstore results lift REV doubt/heads'" "$tmp/err"
"$fm" show trusted | has "0 of 2 cases passed, 2 quarantined"
want 0 results ls trusted
[ "$(grep -c '(quarantined)' out)" = 2 ]
want 0 results lift trusted doubt/heads
refused 128 "doubt/heads is not quarantined" results lift trusted doubt/heads
refused 128 "suite 'doubt' has no case 'edge'" results lift trusted doubt/edge
want 129 results merge a b
want 0 results lift doubted doubt/tails
want 1 import other --as again --parent doubted
grep -q "gate fails: 1 of 2 cases passed" "$tmp/err"
sed 's/seed: 1/seed: 2/' doubt.yaml >changed.yaml # known cases, changed ones: they begin anew
want 0 test doubted --repeat 12
want 1 import other --as changed --parent doubted --suite changed.yaml
say "a flaky case is kept as quarantined: gates show it and do not count it, until it is lifted or changed"

want 0 test pirate --suite many --sequential --json
python3 - out <<'PY'
import json, sys
run = json.load(open(sys.argv[1]))["suites"][0]
s = run["sequential"]
assert s["decision"] == "reached" and s["threshold"] == 0.5 and s["of"] == 144 and s["asked"] < 60, s
assert len(run["cases"]) == s["asked"] and s["low"] > 0.5 and s["high"] == 1
PY
want 1 test pirate --suite none --sequential
grep -Eq 'stopped after [0-9]{2} of 144 cases: less than 50 % pass' out
want 1 test pirate --suite manners --sequential --threshold 1
grep -q 'all 10 cases asked: less than 100 % pass' out
say "--sequential stops when the share is decided"

want 0 test atlas --slice kind=INV --suite manners --json
python3 - out <<'PY'
import json, sys
cases = json.load(open(sys.argv[1]))["suites"][0]["cases"]
assert cases and all(c["kind"] == "INV" for c in cases)
PY
want 0 test pirate --suite filed --slice group=b --matrix
grep -q 'filed: 1 of 1 passed' out && grep -Eq '^speech +MFT +1/1' out
want 0 test pirate --suite filed
grep -q 'holds measure' out
want 1 test pirate --suite broken # every case passes, the measure does not hold
grep -q 'broken: 2 of 2 passed' out && grep -q 'FAILS measure' out
refused 128 "no case lies in the slice" test atlas --slice kind=DIR --suite facts
refused 128 "want KEY=VALUE" test atlas --slice kind
for bad in "--threshold 2 --sequential" "--threshold 0.5" "--alpha 0" "--adjust none" "--repeat 2000" \
    "--sequential --against atlas" "--descendants --against atlas" "--descendants --ancestors"; do
    # shellcheck disable=SC2086
    want 129 test pirate $bad
done
want 1 test pirate --ancestors
python3 - out <<'PY'
import re, sys
rows = [l.split() for l in open(sys.argv[1]) if re.match(r"(capability|facts|many|none) ", l)]
assert rows[0][:2] == ["capability", "kind"] and rows[0][2] == "atlas" and rows[0][-1] == "pirate", rows
assert ["facts", "MFT", "40/40"] in [r[:3] for r in rows], rows
assert [r for r in rows if r[0] == "none"][0][2] == "0/144", rows
PY
say "slices, refusals, the matrix over the lineage"
