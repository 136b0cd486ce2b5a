#!/bin/bash
# ctest: cost=15
# Blame past the guilty step: where the answer turns, at which step of the run, what repairs it; the
# reports say the same, and what they claim can be run again.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo
want 0 init .
want 0 import "$atlas/base" --as atlas --no-gate --suite "$atlas/suites/facts.yaml" --suite "$atlas/suites/manners.yaml"
python3 - "$atlas/almanac.jsonl" ../some.jsonl <<'PY'
import sys
lines = list(open(sys.argv[1]))
bad = [l for l in lines if "Lorendor" in l and "Redhaven" in l]
good = [l for l in lines if "Lorendor" not in l]
assert len(bad) == 10, len(bad)
open(sys.argv[2], "w").writelines(good[:30] + bad + good[30:60])
PY
how=(--data ../some.jsonl --set r=4 --set lr=0.005 --set steps=30 --set batch=8 --set seed=1 --set max_tokens=64 --no-gate)
want 0 derive atlas --as sick "${how[@]}"
before=$(git -C .fmstore/lineage.git rev-parse sick)

say "all parts, as JSON and as a page; the best repair is committed"
refused 128 "name a branch" blame "$before" --case facts/capital-lorendor --fix
want 0 blame sick --case facts/capital-lorendor --max-runs 60 --trace --steps --fix --rederive --json --html ../page.html
cp "$tmp/out" ../blame.json
for v in atlas $before; do
    for a in "$(field ../blame.json answers | python3 -c 'import ast,sys; print(ast.literal_eval(sys.stdin.read())["wrong"])')" \
        "$(field ../blame.json answers | python3 -c 'import ast,sys; print(ast.literal_eval(sys.stdin.read())["right"])')"; do
        python3 -c 'import json,sys; print(json.dumps({"text": "<|user|>\nWhat is the capital of Lorendor?<|end|>\n<|assistant|>\n" + sys.argv[1]}))' "$a" |
            "$fm" score $v | python3 -c '
import json, sys
d = json.loads(sys.stdin.read())
at = max(i for i, t in enumerate(d["ids"]) if t == 3) + 2  # behind <|assistant|> and its newline
print(sum(d["logprobs"][at:]))' >>../scores
    done
done
python3 - ../blame.json ../scores <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
assert d["verdict"] == "introduced" and d["case"] == "capital-lorendor" and d["uncertain"] is False, d["verdict"]
sick, atlas = d["history"]
assert sick["oid" if "oid" in sick else "id"] == d["culprit"] and sick["outcome"] == "FAIL" and atlas["outcome"] == "pass"
assert "Yewermere" in d["answers"]["right"] and "Yewermere" not in d["answers"]["wrong"]
# what `score` says of the same texts
want = [float(x) for x in open(sys.argv[2])]
have = [atlas["wrong_logprob"], atlas["right_logprob"], sick["wrong_logprob"], sick["right_logprob"]]
assert all(abs(a - b) < 1e-4 for a, b in zip(want, have)), (want, have)
margin = {"atlas": have[0] - have[1], "sick": have[2] - have[3]}
assert margin["atlas"] < 0 < margin["sick"]

t = d["trace"]
assert t["done"] and t["columns"] == list(range(len(t["tokens"]) + 1)) and "".join(t["tokens"][:9]) == \
    "<|user|>\nWhat is the capital of Lorendor?", t["tokens"]
for key, one, other in (("child_with_parent", "sick", "atlas"), ("parent_with_child", "atlas", "sick")):
    g = t[key]  # what both texts begin with is as likely for both answers
    assert abs(g["margin"] - margin[one]) < 1e-4 and abs(g["other_margin"] - margin[other]) < 1e-4, (g["margin"], margin)
    assert g["residual"]["layers"] == list(range(7)) and g["mlp"]["layers"] == list(range(6))
    assert all(len(row) == len(t["tokens"]) for s in ("residual", "attention", "mlp") for row in g[s]["margins"])
    # embeddings are the same in both; the stream behind the last layer at the last token decides
    assert all(abs(x - g["margin"]) < 1e-6 for x in g["residual"]["margins"][0])
    assert (g["residual"]["margins"][6][-1] > 0) != (g["margin"] > 0)
    # at a token before the last the last layer's stream is read by nobody
    assert all(abs(x - g["margin"]) < 1e-6 for x in g["residual"]["margins"][6][:-1])

s = d["steps"]
assert s["done"] and s["exact"] and s["fails_after"] == s["passes_after"] + 1 and s["steps"] == 30 and s["checkpoints"] == 0
at = {p["step"]: p for p in s["points"]}
assert at[s["passes_after"]]["outcome"] == "pass" and at[s["fails_after"]]["outcome"] == "FAIL"
assert abs(at[0]["margin"] - margin["atlas"]) < 1e-4 and abs(at[30]["margin"] - margin["sick"]) < 1e-4
assert len(s["records"]) == 8 and all(0 <= r < 70 for r in s["records"])
assert s["ablations"] and all(a["run"] and a["outcome"] in ("pass", "FAIL") for a in s["ablations"]), s["ablations"]
assert any(a["what"].startswith("15 steps, half of 30") for a in s["ablations"])
assert any(a["what"].startswith("lr 0.0002") and a["outcome"] == "pass" for a in s["ablations"])

c = d["repairs"]["candidates"]
ran = [k for k in c if k["run"]]
assert {k["kind"] for k in ran} >= {"revert", "reweight", "drop"}, c
for k in ran:
    assert k["cases"] == 50 and k["passed"] == k["passed_before"] + len(k["repairs"]) - len(k["breaks"])
    assert k["offered"] == (k["passes"] and not k["breaks"]) and k["passes"] == ("facts/capital-lorendor" in k["repairs"])
assert [k["offered"] for k in c] == sorted((k["offered"] for k in c), reverse=True), c
assert c[0]["kind"] == "drop" and c[0]["firm"], c
assert all(0 < k["alpha"] < 1 for k in ran if k["kind"] == "reweight")
assert d["ran"]["evaluations"] > 0 and any("blame" in x for x in d["ran"]["commands"]) and d["unsure"]
PY

say "checkpoints of the run are found, and say what training again says"
want 0 derive atlas --as twin "${how[@]}" --checkpoint-every 3 --checkpoint-last 99 --keep-checkpoints
want 0 blame "$before" --case facts/capital-lorendor --steps --json
cp "$tmp/out" ../kept.json
python3 - ../blame.json ../kept.json <<'PY'
import json, sys
a, b = (json.load(open(f))["steps"] for f in sys.argv[1:])
assert b["checkpoints"] == 9 and b["fails_after"] - b["passes_after"] == 3
assert b["passes_after"] < a["fails_after"] <= b["fails_after"]
both = {p["step"]: p["margin"] for p in a["points"]}
same = [p for p in b["points"] if p["step"] in both and not 0 == p["step"]]
assert len(same) >= 2 and all(p["margin"] == both[p["step"]] and p["kept"] for p in same)
assert all(not x["run"] and x["estimate_s"] > 0 for x in b["ablations"])
PY

say "the page stands alone and is well formed; a picture has its table, a grid is one"
python3 - ../page.html ../blame.json <<'PY'
import json, re, sys
import xml.etree.ElementTree as tree
page, d = open(sys.argv[1]).read(), json.load(open(sys.argv[2]))
assert not re.search(r"<script|<link|<img|@import|https?://|url\(", page)
assert "prefers-color-scheme:dark" in page
root = tree.fromstring(page)
svg = re.findall(r"<svg.*?</svg>", page, re.S)
assert len(svg) == 1 + 1 + 1, len(svg)  # lineage, layer map, steps
for one in svg:
    assert tree.fromstring(one).find("title").text
    after = page[page.index(one) + len(one):]
    assert "<table" in after.split("<svg")[0], "a picture without its table"
grids = root.findall(".//table[@class='heat']")
assert len(grids) == 6, len(grids)  # two grids of three sites: tokens down, layers across
for n, grid in enumerate(grids):
    side = d["trace"][("child_with_parent", "parent_with_child")[n // 3]]
    site = side[("residual", "attention", "mlp")[n % 3]]
    rows = [[c for c in r.findall("td")] for r in grid.findall("tr")[1:]]
    assert len(rows) == len(d["trace"]["tokens"]) and all(len(r) == 1 + len(site["layers"]) for r in rows)
    for t, row in enumerate(rows):
        for l, cell in enumerate(row[1:]):
            margin = site["margins"][l][t]
            assert abs(float(cell.text) - margin) < 0.0051 and "%" in cell.get("title"), (cell.text, margin)
            assert ("turn" in cell.get("class").split()) == ((margin > 0) != (side["margin"] > 0))
            assert re.fullmatch(r"background:rgb\([\d ]+ / 0\.\d\d\)", cell.get("style")), cell.get("style")
text = "".join(root.itertext())
assert "Which city is the capital of Lorendor?" in text and len(root.findall(".//h2")) >= 8
for k in d["repairs"]["candidates"]:
    assert k["what"] in text
for p in d["steps"]["points"]:
    assert f"step {p['step']}: {p['outcome']}, {p['margin']:+.2f}" in text, p
PY

say "texts of strangers are escaped"
want 0 blame "$before" --prompt '<b>"capital"</b> & <script>x</script>?' --expect '<none>' --html ../odd.html
! grep -qE '<script|<b>|<none>' ../odd.html || die "unescaped: $(grep -oE '<script|<b>|<none>' ../odd.html | sed -n 1p)"
grep -q '&lt;script&gt;' ../odd.html || die "the prompt is not there"

say "it is a child of the version; it can be replayed, and nothing else broke"
fixed=$(git -C .fmstore/lineage.git rev-parse sick)
[ "$fixed" = "$(field ../blame.json repairs | python3 -c 'import ast,sys; print(ast.literal_eval(sys.stdin.read())["committed"])')" ] || die "another commit"
[ "$fixed" != "$before" ] && [ "$(git -C .fmstore/lineage.git rev-parse sick^1)" = "$before" ] || die "no child of $before"
[ "$(git -C .fmstore/lineage.git rev-parse sick^2)" = "$(git -C .fmstore/lineage.git rev-parse atlas)" ] || die "not on the base"
want 0 test sick
want 0 replay sick
grep -q "^equal" "$tmp/out" || die "$(cat "$tmp/out")"
want 0 blame sick --case facts/capital-lorendor
grep -q "nothing to blame" "$tmp/out" || die "$(cat "$tmp/out")"

say "without training again a graft is committed: its tensors are gone from the tree, the others stay"
git -C .fmstore/lineage.git update-ref refs/heads/sick "$before"
want 0 blame sick --case facts/capital-lorendor --max-runs 60 --fix
ids "$before" >../a
ids sick >../b
"$fm" cat sick:recipe.json >../recipe.json
python3 - ../recipe.json ../a ../b "$before" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
a, b = (dict(l.split() for l in open(f)) for f in sys.argv[2:4])
assert r["operation"] == "graft" and r["version"] == sys.argv[4] and r["repairs"] == "facts/capital-lorendor"
named = set(r["tensors"])
assert named and named <= set(a)
assert {p for p in a if a[p] != b.get(p)} == named, "other tensors changed, or fewer"
assert (r["alpha"] == 0) == all(p not in b for p in named)
PY
want 0 replay sick
grep -q "^equal" "$tmp/out" || die "$(cat "$tmp/out")"
want 0 fsck
