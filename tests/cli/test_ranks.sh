#!/bin/bash
# ctest: cost=10
# --ranks N: a model split over processes answers as one rank does; what cannot be split is refused by
# name; a killed rank ends the command with an error that names it. Under mpirun where it is there.
. "$(dirname "$0")/lib.sh"
cd "$tmp"
want 0 init .
want 0 import "$atlas/base" --as atlas

say "answers"
ask=(run atlas --mode exact -p "What is the capital of Arden?" -n 20)
want 0 "${ask[@]}"
cp out one
for n in 2 4; do
    want 0 --ranks $n "${ask[@]}"
    cmp out one || die "$n ranks answer otherwise"
done

say "refusals"
refused 128 "4 query heads do not go into 3 equal parts" --ranks 3 "${ask[@]}"
refused 129 "--ranks wants a number up to 256" --ranks many "${ask[@]}"

say "scores: near, and the same in every run"
printf '{"text":"The capital of Arden is"}\n{"text":"The river"}\n' >in
timeout 600 "$fm" score atlas <in >one
timeout 600 "$fm" --ranks 2 score atlas <in >two
timeout 600 "$fm" --ranks 2 score atlas <in >again
cmp two again || die "two runs with 2 ranks differ"
need_python
python3 - one two <<'PY'
import json, sys
a, b = ([json.loads(l) for l in open(f)] for f in sys.argv[1:])
assert len(a) == len(b) == 2
for x, y in zip(a, b):
    assert x["ids"] == y["ids"]
    for p, q in zip(x["logprobs"][1:], y["logprobs"][1:]):
        assert abs(p - q) <= 1e-5 * max(1.0, abs(p)), (p, q)
PY

say "a killed rank"
mkfifo feed
rm -f out err
timeout 600 "$fm" --ranks 2 score atlas <feed >out 2>err &
job=$!
exec 9>feed
printf '{"text":"The capital"}\n' >&9
until_there $job out .
leader=$(ps -o pid= --ppid $job | tr -d ' ')
other=$(ps -o pid= --ppid "$leader" | tr -d ' ')
kill -9 "$other"
(trap '' PIPE; printf '{"text":"of Arden"}\n' >&9) 2>/dev/null || true # it may have ended already
exec 9>&-
code=0
wait $job || code=$?
[ $code != 0 ] && [ $code != 124 ] || die "exit code $code after a rank was killed"
grep -q "rank 1 is gone" err out || die "the lost rank is not named: $(cat err)"

say "a server whose rank is killed ends, and says why"
rm -f out err
timeout 600 "$fm" --ranks 2 serve atlas --port 0 --mode exact >out 2>err &
job=$!
until_there $job out "^serving on"
leader=$(ps -o pid= --ppid $job | tr -d ' ')
kill -9 "$(ps -o pid= --ppid "$leader" | tr -d ' ')"
code=0
wait $job || code=$?
[ $code = 128 ] || die "exit code $code of a server without its rank"
grep -q "rank 1 is gone" err || die "the lost rank is not named: $(cat err)"

say "training: the same version by 1 and by 2 ranks, stopped and gone on with"
how=(--data "$atlas/clerk.jsonl" --set steps=4 --set batch=4 --set lr=0.005 --no-gate)
want 0 derive atlas --as alone --set shards=2 "${how[@]}"
want 0 --ranks 2 derive atlas --as shared "${how[@]}"
want 0 diff alone shared --stat
grep -q "^0 tensors and 0 files differ" out || die "2 ranks made other bytes: $(cat out)"
want 0 cat alone:recipe.json
cp out one
want 0 cat shared:recipe.json
cmp out one || die "2 ranks wrote another recipe"
want 128 --ranks 2 derive atlas --as again --set seed=1 --stop-after 2 "${how[@]}"
want 0 derive atlas --as again --set seed=1 --set shards=2 "${how[@]}"
grep -q "goes on after step 2" err || die "1 rank does not go on where 2 stopped: $(cat err)"
want 0 --ranks 2 derive atlas --as straight --set seed=1 "${how[@]}" --message x
want 0 diff again straight --stat
grep -q "^0 tensors" out || die "a stopped run differs: $(cat out)"
want 0 replay shared

say "training: children that stand on others, what is held out"
cat >family.yaml <<YAML
parent: atlas
children:
  - {as: NAMEa, data: $atlas/clerk.jsonl, set: {steps: 2, batch: 4, r: 2, shards: 2}}
  - {as: NAMEb, on: NAMEa, data: $atlas/pirate.jsonl, set: {steps: 2, batch: 4, r: 2, shards: 2}}
  - {as: NAMEc, on: NAMEb, data: $atlas/clerk.jsonl, eval: 0.3, set: {steps: 2, batch: 4, r: 2, shards: 2}}
YAML
sed s/NAME/one-/g family.yaml >one.yaml
sed s/NAME/two-/g family.yaml >two.yaml
want 0 derive -f one.yaml --no-gate
want 0 --ranks 2 derive -f two.yaml --no-gate
for of in a b c; do
    want 0 diff one-$of two-$of --stat
    grep -q "^0 tensors and 0 files differ" out || die "2 ranks made other bytes of $of: $(cat out)"
done
grep -q "eval_loss" <("$fm" cat two-c:train_log.json) || die "nothing was measured on what is held out"
printf 'suite: never\ngate: true\ncases:\n  - {name: impossible, prompt: Hello, expect: [{contains: "~~~~"}]}\n' >never.yaml
cat >gated.yaml <<YAML
parent: atlas
children:
  - {as: base-g, data: $atlas/clerk.jsonl, suites: [never.yaml], set: {steps: 1, batch: 2, r: 1, shards: 2}}
  - {as: on-g, on: base-g, data: $atlas/clerk.jsonl, set: {steps: 1, batch: 2, r: 1, shards: 2}}
YAML
want 1 --ranks 2 derive -f gated.yaml
[ "$(grep -c "'on-g' was not trained: 'base-g', on which it stands, was refused" err)" = 1 ] || die "$(cat err)"
want 128 show on-g

say "training: what cannot be shared"
want 128 --ranks 2 derive atlas --as odd --set shards=3 "${how[@]}"
grep -q "3 shards cannot be split over 2 ranks" err || die "$(cat err)"
want 128 --ranks 2 replay shared
grep -q "exact-f32-1/2 ranks" err || die "$(cat err)"

say "training: a killed rank"
rm -f out err
timeout 600 "$fm" --ranks 2 derive atlas --as never --set steps=100000 --set batch=4 \
    --data "$atlas/clerk.jsonl" --no-gate >out 2>err &
job=$!
until_there $job err "step 1/"
leader=$(ps -o pid= --ppid $job | tr -d ' ')
other=$(ps -o pid= --ppid "$leader" | tr -d ' ')
kill -9 "$other"
code=0
wait $job || code=$?
[ $code = 128 ] || die "exit code $code after a rank was killed: $(cat err)"
grep -q "rank 1 is gone" err || die "the lost rank is not named: $(cat err)"
want 128 show never

if command -v mpirun >/dev/null && [ -e "$(dirname "$fm")/fmstore_mpi.so" ]; then
    say "under mpirun"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    "$fm" "${ask[@]}" >one
    timeout 600 mpirun --oversubscribe -n 2 "$fm" --threads 1 "${ask[@]}" >two 2>err ||
        die "mpirun: $(tail -3 err)"
    cmp one two || die "2 ranks of mpirun answer otherwise"
    if [ -e "${FM_CUDA_EMULATED:-}" ]; then # a CPU and a card in one run
        full=(--method full --data "$atlas/clerk.jsonl" --set steps=1 --set batch=2
            --set max_tokens=24 --set shards=2 --no-gate)
        want 0 derive atlas --as one-cpu "${full[@]}"
        FMSTORE_CUDA_MODULE=$FM_CUDA_EMULATED timeout 600 mpirun --oversubscribe \
            -n 1 env FMSTORE_DEVICE=cpu "$fm" --threads 1 derive atlas --as mixed "${full[@]}" : \
            -n 1 env FMSTORE_DEVICE=cuda "$fm" --threads 1 derive atlas --as mixed "${full[@]}" \
            >/dev/null 2>err || die "a CPU and a card: $(tail -3 err)"
        want 0 diff one-cpu mixed --stat
    fi
    test=$(dirname "$fm")/../tests/unit_infer_comm
    if [ -x "$test" ]; then
        for what in go leave; do
            FM_MPI_MODULE=$(dirname "$fm")/fmstore_mpi.so timeout 600 mpirun --oversubscribe -n 3 \
                "$test" $what 2>err || die "unit_infer_comm $what over MPI: $(tail -3 err)"
        done
    fi
fi

if [ -e "${FM_CUDA_EMULATED:-}" ] && [ -e "${FM_NCCL_EMULATED:-}" ]; then
    say "on cards of their own, with what stands in for NCCL between them"
    export FMSTORE_CUDA_MODULE=$FM_CUDA_EMULATED FMSTORE_NCCL=$FM_NCCL_EMULATED SIMT_DEVICES=2
    "$fm" "${ask[@]}" >one
    on_cards() { FMSTORE_DEVICE=cuda timeout 600 "$fm" --ranks 2 "$@"; }
    on_cards "${ask[@]}" >two || die "2 cards do not answer"
    cmp one two || die "2 cards answer otherwise"
    SIMT_NCCL_FAULT=async:1:9 on_cards "${ask[@]}" >two || die "a failed step is not taken again"
    cmp one two || die "after a failed step 2 cards answer otherwise"
    code=0
    SIMT_NCCL_FAULT=init:1:1 on_cards "${ask[@]}" >two 2>err || code=$?
    [ $code = 128 ] || die "exit code $code without a communicator"
    grep -q "rank 1: NCCL: no communicator: unhandled system error" err || die "$(cat err)"
    unset FMSTORE_CUDA_MODULE FMSTORE_NCCL SIMT_DEVICES
fi

say "plans"
want 0 --ranks 4 serve atlas --plan --mode exact
grep -q "^plan    atlas, mode exact, 4 ranks, a step of 32 rows" out || die "$(cat out)"
grep -Eq "^ +1 +4 .*  0-5$" out || die "no line for a split over 4: $(cat out)"
grep -q "^machine .* for all ranks" out || die "$(cat out)"
want 0 --ranks 8 serve atlas --plan
grep -Eq "^ +1 +8 .* atlas: 4 query heads do not go into 8 equal parts" out || die "$(cat out)"
refused 129 "topology" serve atlas --plan --topology ranks=8
refused 129 "topology" derive atlas --as p --plan "${how[@]}" --topology ranks=8
want 0 --ranks 2 derive atlas --as p --plan "${how[@]}"
grep -q "^split   2 shards of each micro-batch, 1 a rank" out || die "$(cat out)"
grep -q "^memory  a rank: .* of what trains (moments .*, shards that wait .*)" out || die "$(cat out)"
want 128 show p
