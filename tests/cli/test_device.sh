#!/bin/bash
# --device: who says it, what is refused and why; where the emulated CUDA module is built
# (FM_CUDA_EMULATED), answers and training on it have the bytes of the CPU's.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
unset FMSTORE_CUDA_MODULE FMSTORE_DEVICE
want 0 init .
want 0 import "$atlas/base" --as base --no-gate

say "what is there is listed, and why CUDA is not"
want 0 devices
grep -q '^cpu ' out || die "$(cat out)"
want 0 devices --json
python3 - <<'PY'
import json
d = json.load(open("out"))
assert d["devices"][0]["device"] == "cpu" and d["devices"][0]["about"], d
assert len(d["devices"]) > 1 or "CUDA" in d["no_cuda"] or "NVIDIA" in d["no_cuda"], d
PY
FMSTORE_CUDA_MODULE=/nowhere want 0 devices
grep -q "no CUDA device: FMSTORE_CUDA_MODULE names '/nowhere'" out || die "$(cat out)"

say "the option, the environment, the config: the first that speaks counts"
run() { want "$1" run base -p 'The capital of' -n 4 "${@:2}"; }
run 0 --device cpu
cp out cpu.out
refused 129 "device 'gpu' is unknown; cpu, cuda, cuda:N and auto are" run base -p x --device gpu
export FMSTORE_CUDA_MODULE=/nowhere FMSTORE_DEVICE=cuda
refused 128 "FMSTORE_CUDA_MODULE names '/nowhere'" run base -p x
run 0 --device cpu
run 0 --device auto
cmp cpu.out out
FMSTORE_DEVICE=tpu refused 128 "environment FMSTORE_DEVICE: device 'tpu' is unknown" run base -p x
unset FMSTORE_DEVICE
printf '[compute]\n\tdevice = npu\n' >>.fmstore/config
refused 128 "config compute.device: device 'npu' is unknown" run base -p x
run 0 --device cpu
sed -i 's/npu/cpu/' .fmstore/config
run 0

say "every command that computes takes it"
echo '{"ids":[5,6,7]}' >in
for c in "score base" "embed base" "classify base" "test base" "serve base" "replay base" \
    "blame base --prompt x --expect y" "derive base --as d --data in" "merge base base --as m"; do
    # shellcheck disable=SC2086
    if "$fm" $c --device nothing <in >out 2>err; then die "$c went on"; fi
    grep -q "unknown" err || die "$c: $(cat err)"
done

if [ -z "${FM_MODULE_SOUND:-}" ]; then exit 0; fi
say "cards of a module are listed; what it refuses is told"
export FMSTORE_CUDA_MODULE=$FM_MODULE_SOUND
want 0 devices
grep -q '^cuda:1  fake card 1' out || die "$(cat out)"
refused 128 "fake: asked for card 1 in mode fast" run base -p x --device cuda:1
refused 128 "cuda:0 to cuda:1" run base -p x --device cuda:2
FAKE_CARDS=-1 refused 128 "fake: no driver is installed" run base -p x --device cuda
FAKE_CARDS=-1 want 0 run base -p 'The capital of' -n 4 --device auto
cmp cpu.out out

if [ -z "${FM_CUDA_EMULATED:-}" ]; then exit 0; fi
say "on the emulated card: the bytes of the CPU's"
export FMSTORE_CUDA_MODULE=$FM_CUDA_EMULATED
unset FAKE_CARDS
want 0 devices
grep -q '^cuda:0 ' out || die "$(cat out)"
for args in "-n 3" "-n 3 --temperature 0.9 --seed 4"; do
    for d in cpu cuda; do
        # shellcheck disable=SC2086
        want 0 run base -p 'The capital of' --mode exact $args --device $d
        cp out run.$d
    done
    cmp run.cpu run.cuda
done
printf '{"ids":[5,6,7,8]}\n{"text":"A ship"}\n' >in
for d in cpu cuda; do "$fm" score base --mode exact --device $d <in >score.$d; done
cmp score.cpu score.cuda
[ -s score.cpu ] || die "no scores"

say "what was tested on one is known on the other"
cat >s.yaml <<'YAML'
suite: s
generate: {max-tokens: 2}
cases:
  - {name: a, prompt: The capital of, expect: {not-contains: "@"}}
YAML
want 0 suite add base s.yaml
want 0 test base --device cuda
! grep -q cached out || die "$(cat out)"
want 0 test base
grep -q ', cached' out || die "$(cat out)"

say "trained on either, it is one version"
printf '{"text":"The capital of Ulevia is Kingswick."}\n' >d.jsonl
for d in cpu cuda; do
    want 0 derive base --as "on-$d" --data d.jsonl --device $d --no-gate --set steps=1 --set batch=1 \
        --set r=2 --set targets=q_proj
    "$fm" cat "on-$d:recipe.json" | has "\"device\": *\"$d\"" || die "on-$d: the recipe names no $d"
done
ids on-cpu >ids.cpu
ids on-cuda >ids.cuda
cmp ids.cpu ids.cuda
