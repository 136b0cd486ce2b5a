#!/bin/bash
# ctest: cost=8
# The HTML report as a browser draws it: marks with boxes, nothing sticking out, colours in both schemes.
# Skipped where there is no chromium.
. "$(dirname "$0")/lib.sh"
need_python
command -v chromium >/dev/null || { echo "skip: no chromium"; exit 77; }
cd "$tmp"

cat >odd.yaml <<'YAML'
suite: odd
cases:
  - name: "</title><script>document.title = 1</script><img src=x onerror=alert(1)>"
    prompt: "The capital of Lorendor is"
    expect: {contains: "@@"}
    generate: {max-tokens: 6}
  - name: a-name-that-is-long-and-has-no-place-where-a-line-could-be-broken-a-name-that-is-long-and-has-no-place-where
    prompt: "The capital of Lorendor is"
    expect: {contains: "@@"}
    generate: {max-tokens: 6}
YAML
want 0 init .
want 0 import "$atlas/base" --as atlas --suite "$atlas/suites/manners.yaml" --suite odd.yaml --no-gate
want 0 derive atlas --as pirate --method lora --data "$atlas/pirate.jsonl" --set r=2 --set lr=0.01 --set max_tokens=96 \
    --set seed=7 --set epochs=1 --no-gate
want 1 test pirate --ancestors --html page.html --json
python3 "$src/tests/cli/report_page.py" page.html >drawn.json
python3 - page.html drawn.json out <<'PY'
import json, sys
page, drawn = open(sys.argv[1]).read(), json.load(open(sys.argv[2]))
print(drawn)
assert drawn["cells"] == 6 and drawn["dots"] == 2, drawn       # manners MFT, INV and odd, on two versions
assert drawn["heads"] == ["atlas", "pirate"], drawn            # parents first
assert drawn["broken"] == 1 and drawn["tokens"] >= 6, drawn
assert drawn["svg"][:3] == ["0 to 100 %", "0 to 100 %", "broken to the left, fixed to the right"], drawn
assert "<img" not in page and "http:" not in page
for anchor in ("versions", "matrix", "flips", "flipped", "worst", "cases"):
    assert page.count(f'id="{anchor}"') == 1, anchor
PY
say "two versions: every mark has a box, nothing sticks out, both schemes have their colours"
