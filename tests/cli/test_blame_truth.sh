#!/bin/bash
# ctest: cost=10
# Blame against planted truth, in small: bench_blame's planter makes one poisoned chain and one merge of two
# innocent parents, and the command must name what was planted.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo
python3 "$src/tests/bench/blame_plant.py" --repo "$tmp/repo" --fmstore "$fm" --atlas "$atlas" --families 2 --only ac \
    --seed 5 --short || die "nothing could be planted"
cd repo
python3 - "$fm" <<'PY' || die "blame does not find what was planted"
import json, subprocess, sys
plan = json.load(open("plan.json"))
assert len(plan["families"]) == 2, plan["failed"]
for f in plan["families"]:
    case = "%s/case" % f["id"] if f["kind"] == "a" else "facts/capital-" + f["asked"].split()[-1].rstrip("?").lower()
    r = subprocess.run([sys.argv[1], "blame", f["tip"], "--case", case, "--data", "--json"], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    said = json.loads(r.stdout)
    show = subprocess.run([sys.argv[1], "show", f["culprit"], "--json"], capture_output=True, text=True, check=True)
    print("  %s (%s): %s" % (f["id"], f["what"], said["verdict"]))
    assert said["culprit"] == json.loads(show.stdout)["id"], (f["culprit"], said)
    assert said["verdict"] == f["verdict"], said["verdict"]
    if f["kind"] == "a":
        first = [e["record"] for e in said["data"]["examples"][:len(f["poisoned"])]]
        hits = len(set(first) & set(f["poisoned"]))
        print("  %d of %d poisoned examples among the first as many, of %d" % (hits, len(first), f["records"]))
        assert hits >= 0.8 * len(first), (first, f["poisoned"])
PY
