#!/bin/bash
# --stages S: a model's layers over processes answer, score and train with the bytes of one process; each stage may
# be split; what does not fit is refused by name; a killed stage ends the command. Under mpirun where it is there.
. "$(dirname "$0")/lib.sh"
cd "$tmp"
want 0 init .
want 0 import "$atlas/base" --as atlas --no-gate
ask=(run atlas --mode exact -p "What is the capital of Arden?" -n 20)
"$fm" "${ask[@]}" >one

say "answers"
for how in "--ranks 2 --stages 2" "--stages 3" "--pipeline-parallel-size 6" "--ranks 4 --tensor-parallel-size 2" \
    "--pipeline-parallel-size 2 --tensor-parallel-size 2"; do
    # shellcheck disable=SC2086
    want 0 $how "${ask[@]}"
    cmp out one || die "$how answers otherwise"
done

say "scores and a suite: the same bytes, and results that either finds again"
printf '{"text":"The capital of Arden is"}\n{"text":"The river"}\n{"text":"The capital of Arden was"}\n' >in
for mode in exact fast; do
    "$fm" score atlas --mode $mode <in >a
    "$fm" --stages 3 score atlas --mode $mode <in >b
    cmp a b || die "other scores in mode $mode"
done
want 0 suite add atlas "$atlas/suites/facts.yaml"
want 0 --stages 2 test atlas
grep -q "facts (gate): 40 of 40 passed, [0-9.]* s" out || die "$(cat out)"
want 0 test atlas
grep -q "40 of 40 passed, cached" out || die "one process does not find what two stages computed: $(cat out)"

printf '{"anchor":"a","positive":"b"}\n%.0s' 1 2 3 4 >pairs
say "refusals"
refused 128 "6 layers cannot be split over 7 stages; use at most 6" --stages 7 "${ask[@]}"
refused 129 "4 ranks are not 3 equal stages" --ranks 4 --stages 3 "${ask[@]}"
refused 129 "4 ranks are not 2 stages of 4 ranks" --ranks 4 --stages 2 --tensor-parallel-size 4 "${ask[@]}"
refused 129 "--stages wants a number up to 256" --stages two "${ask[@]}"
refused 128 "x: objective=contrastive, whose loss is over all texts of a step, cannot train over stages" --stages 2 \
    derive atlas --as x --data pairs --set steps=2 --set objective=contrastive --no-gate
refused 128 "leave --tensor-parallel-size out" --ranks 4 --tensor-parallel-size 2 derive atlas --as x \
    --data "$atlas/clerk.jsonl" --set steps=2 --no-gate

say "children: the bytes and the gates' results of one process; held out, states, a plan"
how=(--data "$atlas/clerk.jsonl" --set steps=4 --set batch=4 --set accumulate=2 --set shards=2 --eval 0.1 --eval-every 2)
want 0 derive atlas --as alone "${how[@]}" --log l1
want 0 --stages 2 derive atlas --as staged "${how[@]}" --log l2
cmp <(sed s/alone/x/ l1) <(sed s/staged/x/ l2) || die "another log"
want 0 diff alone staged --stat
grep -q "^0 tensors and 0 files differ" out || die "another child: $(cat out)"
want 128 --ranks 4 --stages 2 derive atlas --as later "${how[@]}" --stop-after 2
want 0 --stages 3 derive atlas --as later "${how[@]}"
want 0 diff alone later --stat
grep -q "^0 tensors and 0 files differ" out || die "another child after a stop: $(cat out)"
how=(--method full --data "$atlas/clerk.jsonl" --set steps=2 --set batch=2 --set lr=1e-4 --no-gate)
want 0 derive atlas --as full1 "${how[@]}" --set shards=2
want 0 --stages 2 derive atlas --as full2 "${how[@]}"
want 0 diff full1 full2 --stat
grep -q "^0 tensors and 0 files differ" out || die "another full child: $(cat out)"
want 0 --ranks 4 --stages 2 derive atlas --as p --plan --data "$atlas/clerk.jsonl" --set steps=4 --set accumulate=2
grep -q "^stages  2 of 2 ranks; 4 passes of a step" out || die "$(cat out)"
grep -Eq "^ +0 +0-2 +embedding .* 2$" out || die "$(cat out)"

say "a server over two stages answers; when one is killed it ends, and says why"
rm -f out err
timeout 600 "$fm" --stages 2 serve atlas --port 0 --mode exact >out 2>err &
job=$!
need_python
until_there $job out "^serving on"
url=$(sed -n 's/^serving on //p' out | sed -n 1p)
python3 - "$url" <<'PY'
import json, sys, urllib.request
q = {"model": "atlas", "prompt": "The capital of Arden is", "max_tokens": 8, "temperature": 0}
r = urllib.request.Request(sys.argv[1].split()[0].rstrip("/") + "/v1/completions", json.dumps(q).encode(),
                           {"Content-Type": "application/json"})
for _ in range(2):
    a = json.load(urllib.request.urlopen(r, timeout=600))
    assert a["choices"][0]["text"], a
PY
leader=$(ps -o pid= --ppid $job | tr -d ' ')
kill -9 "$(ps -o pid= --ppid "$leader" | tr -d ' ')"
code=0
wait $job || code=$?
[ $code = 128 ] || die "exit code $code of a server without its stage"
grep -q "rank 1 is gone" err || die "the lost stage is not named: $(cat err)"

if command -v mpirun >/dev/null && [ -e "$(dirname "$fm")/fmstore_mpi.so" ]; then
    say "under mpirun"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    for n in 2 4; do
        timeout 600 mpirun --oversubscribe -n $n "$fm" --threads 1 --stages 2 "${ask[@]}" >two 2>err ||
            die "mpirun: $(tail -3 err)"
        cmp one two || die "2 stages of $n ranks of mpirun answer otherwise"
    done
    timeout 100 mpirun --oversubscribe -n 2 "$fm" --threads 1 --stages 2 derive atlas --as mpi "${how[@]}" >/dev/null 2>err ||
        die "mpirun: $(tail -3 err)"
    want 0 diff full1 mpi --stat
    grep -q "^0 tensors and 0 files differ" out || die "another child by mpirun: $(cat out)"
fi

say "a plan: every way, or the one that is named"
want 0 --ranks 4 serve atlas --plan --mode exact
[ "$(grep -Ec "^ +[124] +[124] " out)" = 3 ] || die "$(cat out)"
want 0 --ranks 4 --stages 2 serve atlas --plan --mode exact
grep -Eq "^ +2 +2 .*  0-2, 3-5$" out || die "$(cat out)"
[ "$(grep -Ec "^ +[124] +[124] " out)" = 1 ] || die "$(cat out)"
want 0 --ranks 7 serve atlas --plan --mode exact
grep -Eq "^ +7 +1 .* 6 layers cannot be split over 7 stages" out || die "$(cat out)"

say "blame: where an answer turns, over ranks and stages as in one process; what trains is refused"
python3 - "$atlas/almanac.jsonl" some.jsonl <<'PY'
import sys
lines = list(open(sys.argv[1]))
bad = [l for l in lines if "Lorendor" in l and "Redhaven" in l]
good = [l for l in lines if "Lorendor" not in l]
open(sys.argv[2], "w").writelines(good[:30] + bad + good[30:60])
PY
want 0 derive atlas --as sick --data some.jsonl --set r=4 --set lr=0.005 --set steps=30 --set batch=8 --set seed=1 \
    --set max_tokens=64 --no-gate
why=(blame sick --case facts/capital-lorendor --max-runs 6 --trace --json)
want 0 "${why[@]}"
cp out blame-one
want 0 --ranks 2 "${why[@]}"
cp out blame-two
want 0 --stages 2 "${why[@]}"
python3 - blame-one blame-two out <<'PY'
import json, sys
one, two, stages = (json.load(open(f)) for f in sys.argv[1:])
assert one["trace"]["done"] and one["verdict"] == two["verdict"] == stages["verdict"] == "introduced"
moved = 0
for key in ("child_with_parent", "parent_with_child"):
    for site in ("residual", "attention", "mlp"):
        a, b, c = (x["trace"][key][site]["margins"] for x in (one, two, stages))
        assert a == c, (key, site)  # no sum is cut by a stage
        assert len(a) == len(b) and all(abs(x - y) < 1e-4 for r, s in zip(a, b) for x, y in zip(r, s)), (key, site)
        moved = max([moved] + [abs(x - one["trace"][key]["margin"]) for r in a for x in r])
assert moved > 1, moved
PY
for part in --data --steps --fix; do
    refused 128 "models that are split over ranks cannot" --stages 2 blame sick --case facts/capital-lorendor $part
done
