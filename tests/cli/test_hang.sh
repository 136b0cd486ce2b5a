#!/bin/bash
# A card that hangs while its process lives (SIMT_FAULT=hang, an emulated card's launch that never ends),
# and an exchange between cards that never moves: config compute.stepTimeout ends the wait. Requests are told
# which rank and card it was, servers end, and what can go on does.
. "$(dirname "$0")/lib.sh"
[ -e "${FM_CUDA_EMULATED:-}" ] && [ -e "${FM_NCCL_EMULATED:-}" ] || { echo "skip: no emulated card"; exit 77; }
command -v curl >/dev/null || { echo "skip: no curl"; exit 77; }
cd "$tmp"
export FMSTORE_CUDA_MODULE=$FM_CUDA_EMULATED FMSTORE_NCCL=$FM_NCCL_EMULATED SIMT_DEVICES=2
want 0 init .
want 0 import "$atlas/base" --as atlas
ask=(run atlas --mode exact -p "What is the capital of Arden?" -n 6)
want 0 "${ask[@]}"
cp out one
export FMSTORE_DEVICE=cuda

say "the config"
printf '[compute]\n\tstepTimeout = long\n' >>.fmstore/config
refused 128 "config compute.stepTimeout is 'long', not a number of seconds" "${ask[@]}"
sed -i 's/stepTimeout = long/stepTimeout = 2/' .fmstore/config

# who hangs, what stderr says: within seconds, and not by this test's own limit
hangs() {
    local fault=$1 text=$2 code=0
    shift 2
    SIMT_FAULT=$fault timeout -k 1 20 "$fm" "$@" "${ask[@]}" >out 2>err || code=$?
    [ $code = 128 ] || die "$fault: exit code $code: $(cat err)"
    grep -q "$text" err || die "$fault: not '$text' but $(cat err)"
}
say "a command"
hangs hang:0:100 "device cuda: a step does not end within 2 s (config compute.stepTimeout)"
# with ranks, the one whose card hangs or the one that waits for it: whoever lost patience first
hangs hang:1:100 "rank \([01]\) of 2, cuda:\1: a step does not end within 3 s" --ranks 2
hangs starve:1:100 "^fmstore: rank 1: cuda:1: .*: out of memory$" --ranks 2

say "an exchange that never moves is given up, and the step taken again"
SIMT_NCCL_FAULT=mute:1:9 timeout -k 1 20 "$fm" --ranks 2 "${ask[@]}" >out 2>err || die "$(cat err)"
cmp out one || die "after an exchange that hung 2 cards answer otherwise"

# who hangs, ranks, what the request and what stderr are told
serve_hangs() {
    local fault=$1 ranks=$2 text=$3 word=$4 code=0
    SIMT_FAULT=$fault timeout -k 1 40 "$fm" --ranks "$ranks" serve atlas --port 0 --mode exact >out 2>err &
    local job=$!
    for _ in $(seq 200); do
        grep -q "^serving on" out && break
        sleep 0.1
    done
    local url
    url=$(sed -n 's/^serving on \(http[^ ]*\).*/\1/p' out)
    curl -s --max-time 30 -w '\n%{http_code}\n' "$url/v1/completions" -H 'Content-Type: application/json' \
        -d '{"model":"atlas","prompt":"The capital of Arden is","max_tokens":8}' >answer || die "no answer: $(cat err)"
    wait $job || code=$?
    [ $code = 128 ] || die "$fault: exit code $code of the server: $(cat err)"
    grep -Eq '^50[03]$' answer || die "$fault: $(cat answer)"
    grep -q "$text" answer || die "$fault: the request is told $(cat answer)"
    grep -q "$word" err || die "$fault: not '$word' but $(cat err)"
}
say "a server"
serve_hangs hang:0:150 1 "device cuda: a step does not end within 2 s" "device cuda: a step does not end"
serve_hangs hang:0:150 2 "rank [01]" "rank \([01]\) of 2, cuda:\1: a step does not end"
serve_hangs hang:1:150 2 "rank [01]" "rank \([01]\) of 2, cuda:\1: a step does not end"
