#!/bin/bash
# ctest: cost=30
# States of training in the repository: killed anywhere, training goes on and ends with the same ids; the
# policy keeps what it says; gc takes the rest; a full disk loses nothing; two do not disturb each other.
#   FM_KILLS=n: so many kills at random times (4); FM_KILL_SEED=n: of those times.
. "$(dirname "$0")/lib.sh"
need_python
RANDOM=${FM_KILL_SEED:-7}
cd "$tmp"
mkdir repo && cd repo
atlas_repo
refs=.fmstore/lineage.git/refs/fmstore/checkpoints
how=(--data "$atlas/pirate.jsonl" --set r=2 --set lr=0.003 --set batch=1 --set max_tokens=24 --set steps=24 --set seed=5 --no-gate)
want 0 derive atlas --as whole "${how[@]}"
states() { (cd "$refs" 2>/dev/null && find . -type f ! -name '*.lock' | sed 's|.*/||; s|^0*||' | sort -n | tr '\n' ' ') || true; }
check_states() { [ "$(states)" = "$1" ] || die "states '$(states)' instead of '$1'"; }

say "no state is left of a short run, nor a lock"
check_states ""
[ -z "$(find .fmstore/tmp -type f)" ] || die "left: $(find .fmstore/tmp -type f)"

say "stopped: one state; the same command goes on after it, ends with the same tree, and the state is gone"
want 128 derive atlas --as part "${how[@]}" --stop-after 7
check_states "7 "
want 0 fsck
want 0 derive atlas --as part "${how[@]}"
grep -q 'part  goes on after step 7$' "$tmp/err" || die "it does not go on: $(cat "$tmp/err")"
[ "$(tree_of whole)" = "$(tree_of part)" ] || die "resuming gives another tree"
check_states ""

say "another setting, data or parent does not take the state"
want 128 derive atlas --as part2 "${how[@]}" --stop-after 5
want 0 derive atlas --as other "${how[@]}" --set seed=6
grep -q 'goes on' "$tmp/err" && die "it took another run's state"
want 0 derive whole --as onwhole "${how[@]}"
grep -q 'goes on' "$tmp/err" && die "it took another run's state"
check_states "5 "

say "the policy: the newest two and every tenth, and --keep-checkpoints"
want 0 derive atlas --as kept "${how[@]}" --checkpoint-every 4 --checkpoint-last 2 --checkpoint-each 8 --keep-checkpoints
check_states "8 16 20 24 "
want 0 derive atlas --as kept2 "${how[@]}" --keep-checkpoints
grep -q 'goes on after step 24' "$tmp/err" || die "the end is not taken: $(cat "$tmp/err")"
[ "$(tree_of whole)" = "$(tree_of kept2)" ] || die "from the last state another tree"
cp .fmstore/config ../config
printf '\tcheckpointevery = 6\n' >>.fmstore/config
want 128 derive atlas --as byconfig "${how[@]}" --set seed=8 --stop-after 13
[ "$(states | wc -w)" = 5 ] || die "config: $(states)"
sed -i 's/= 6/= often/' .fmstore/config
refused 128 "fmstore.checkpointevery" derive atlas --as never "${how[@]}"
cp ../config .fmstore/config

say "a state is a version: fsck decodes it, show and cat tell of it; gc keeps what a ref reaches, prunes the rest"
want 0 fsck
ref=$(cd .fmstore/lineage.git && find refs/fmstore/checkpoints -name 0000000020 | sed -n 1p)
state=$(cat ".fmstore/lineage.git/$ref")
want 0 cat "$state:checkpoint.json"
python3 -c 'import json,sys; c=json.load(open(sys.argv[1])); assert c["step"] == 20 and c["child"] == "kept", c' "$tmp/out"
"$fm" ls "$state" --json >"$tmp/entries"
python3 - "$tmp/entries" <<'PY'
import json, sys
t = [e for e in json.load(open(sys.argv[1])) if e["kind"] == "tensor"]
assert len(t) % 3 == 0 and len(t) > 30 and {e["path"][:2] for e in t} == {"p/", "m/", "v/"}
assert all(e["dtype"] == "F32" for e in t)
PY
before=$(du -sb .fmstore/packs | cut -f1)
want 0 gc --prune now
want 0 show "$state"
runs=$(find $refs -mindepth 1 -type d | wc -l)
want 0 gc --prune now --dry-run
grep -q '^training ' "$tmp/out" && die "young states would go: $(cat "$tmp/out")"
want 0 gc --prune now --dry-run --checkpoints now
[ "$(grep -c '^training .*, would be dropped$' "$tmp/out")" = "$runs" ] || die "$runs runs, but: $(cat "$tmp/out")"
grep -q "^training     checkpoint of kept2* after step 24: 4 states, .*, would be dropped$" "$tmp/out" || die "$(cat "$tmp/out")"
want 0 show "$state"
want 0 gc --prune now --checkpoints now
[ "$(grep -c '^training .*, dropped$' "$tmp/out")" = "$runs" ] || die "$runs runs, but: $(cat "$tmp/out")"
check_states ""
refused 128 "" show "$state"
after=$(du -sb .fmstore/packs | cut -f1)
[ "$after" -lt $((before * 2 / 3)) ] || die "gc leaves $after of $before bytes"
want 0 fsck
[ "$(ids whole)" = "$(ids part)" ] || die "gc took what a branch reaches"

say "killed at random times, again and again: the same tree in the end, fsck clean each time"
began=$(date +%s%N)
want 0 derive atlas --as timed "${how[@]}" --set seed=9 --checkpoint-every 3
span=$((($(date +%s%N) - began) / 1000000))
killed=0
for ((k = 0; killed < ${FM_KILLS:-4} && k < 40; k++)); do
    "$fm" derive atlas --as "rand" "${how[@]}" --checkpoint-every 3 >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    sleep "$(printf '0.%03d' $(((RANDOM % (span / 2 + 1)) % 1000)))"
    kill -9 $pid 2>/dev/null || true
    code=0
    wait $pid 2>/dev/null || code=$?
    [ $code = 0 ] && break
    [ $code = 137 ] || die "exit code $code: $(cat "$tmp/err")"
    killed=$((killed + 1))
    want 0 fsck --quick
    "$fm" show rand >/dev/null 2>&1 && break # killed when all was done
done
"$fm" show rand >/dev/null 2>&1 || want 0 derive atlas --as rand "${how[@]}"
[ "$(tree_of whole)" = "$(tree_of rand)" ] || die "killed $killed times, it ends with another tree"
check_states ""
echo "  $killed killed"

say "killed at each call that changes the file system while a state is written: what was done counts"
killed=0
for ((n = 3; n < 400; n += 19)); do
    code=0
    { FM_KILL_AT=$n timeout 600 "${FM_KILLED:?}" derive atlas --as "at" "${how[@]}" --checkpoint-every 3 >"$tmp/out" 2>"$tmp/err" </dev/null; } 2>/dev/null || code=$?
    [ $code = 0 ] && break
    [ $code = 137 ] || die "exit code $code at call $n: $(cat "$tmp/err")"
    killed=$((killed + 1))
    "$fm" show at >/dev/null 2>&1 && break
done
[ $killed -ge 3 ] || die "only $killed were killed"
echo "  $killed killed"
want 0 fsck
"$fm" show at >/dev/null 2>&1 || want 0 derive atlas --as at "${how[@]}"
[ "$(tree_of whole)" = "$(tree_of at)" ] || die "killed at calls, it ends with another tree"

if [ -n "${FM_INJECT:-}" ]; then
    say "the disk full from some call on: one line says so, what was stored is there, and with room it goes on"
    full=0
    for n in 4 75 165 230; do
        code=0
        FM_FAULT_ROOT=$(realpath .fmstore) FM_FAULT_AT=$n FM_FAULT_HOW=ENOSPC FM_FAULT_FOREVER=1 LD_PRELOAD=$FM_INJECT \
            timeout 600 "$fm" derive atlas --as full "${how[@]}" --checkpoint-every 3 >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
        [ $code = 0 ] && break
        [ $code = 128 ] || die "exit code $code at call $n: $(cat "$tmp/err")"
        grep -q '^fmstore: .*\(space\|full\|room\)' "$tmp/err" || die "call $n: it says: $(cat "$tmp/err")"
        full=$((full + 1))
        want 0 fsck
        want 0 show whole
    done
    [ $full -ge 3 ] || die "only $full runs met a full disk"
    "$fm" show full >/dev/null 2>&1 || want 0 derive atlas --as full "${how[@]}"
    [ "$(tree_of whole)" = "$(tree_of full)" ] || die "after a full disk, it ends with another tree"
    echo "  $full met it"
fi

say "two that are the very same: the second says so and leaves the first alone"
long=(--set seed=11 --set steps=100000) # it is still at it, however slow we are
"$fm" derive atlas --as one "${how[@]}" "${long[@]}" --checkpoint-every 2 >"$tmp/one.out" 2>"$tmp/one.err" </dev/null &
pid=$!
until_there $pid "$tmp/one.err" 'step 1/100000'
refused 128 "another process is training just this" derive atlas --as two "${how[@]}" "${long[@]}"
want 0 derive atlas --as beside "${how[@]}" --set seed=12
until [ "$(states | wc -w)" -ge 1 ]; do
    kill -0 $pid || die "the first ended: $(cat "$tmp/one.err")"
    sleep 0.05
done
want 0 gc --prune now --checkpoints now # beside the training: the states that it has dropped go, the last one stays
grep -q '^training ' "$tmp/out" && die "it dropped the states of a training that runs: $(cat "$tmp/out")"
kill -INT $pid
code=0
wait $pid || code=$?
[ $code = 128 ] || die "the first ends with $code: $(cat "$tmp/one.err")"
want 0 fsck
want 128 derive atlas --as one "${how[@]}" "${long[@]}" --stop-after 1
grep -q 'one  goes on after step' "$tmp/err" || die "gc took the state: $(cat "$tmp/err")"

say "a training that was killed and is not gone on with: its states go after their grace, and its lock's file"
age() { find .fmstore/lineage.git/refs/fmstore -type f -exec touch -d "$1" {} +; }
want 0 gc --prune now --checkpoints now
check_states ""
export SOURCE_DATE_EPOCH=1700000000 # the commits are old, the names as old as age makes them
want 128 derive atlas --as dead "${how[@]}" --set seed=21 --stop-after 7
want 0 derive atlas --as stays "${how[@]}" --set seed=22 --checkpoint-every 12 --keep-checkpoints
unset SOURCE_DATE_EPOCH
run=$(find $refs -name 0000000007 | sed 's|/[0-9]*$||; s|.*/||')
: >".fmstore/tmp/train-$run.lock"
age '13 days ago'
want 0 gc --prune now
grep -q '^training ' "$tmp/out" && die "within its grace: $(cat "$tmp/out")"
[ -z "$(find .fmstore/tmp -type f)" ] || die "left: $(find .fmstore/tmp -type f)"
check_states "7 24 "
age '15 days ago'
flock ".fmstore/tmp/train-$run.lock" "$fm" gc --prune now >"$tmp/out" # as a training that runs holds it
grep -q '^training ' "$tmp/out" && die "it runs: $(cat "$tmp/out")"
check_states "7 24 "
git config -f .fmstore/config gc.checkpointExpire 30.days.ago
want 0 gc -n --prune now
grep -q '^training ' "$tmp/out" && die "config says 30 days: $(cat "$tmp/out")"
git config -f .fmstore/config --unset gc.checkpointExpire
before=$(du -sb .fmstore/packs | cut -f1)
want 0 gc -n --prune now
grep -q '^training     checkpoint of dead after step 7: 1 state, [0-9.]* kB, would be dropped$' "$tmp/out" || die "$(cat "$tmp/out")"
check_states "7 24 "
want 0 gc --prune now
grep -q '^training     checkpoint of dead after step 7: 1 state, [0-9.]* kB, dropped$' "$tmp/out" || die "$(cat "$tmp/out")"
[ "$(grep -c '^training ' "$tmp/out")" = 1 ] || die "kept ones go by age alone: $(cat "$tmp/out")"
check_states "24 "
[ "$(du -sb .fmstore/packs | cut -f1)" -lt "$before" ] || die "no byte is free"
want 0 fsck
want 0 derive atlas --as dead "${how[@]}" --set seed=21
grep -q 'goes on' "$tmp/err" && die "it went on after a state that is gone"
want 0 gc --checkpoints now --json
python3 - "$tmp/out" <<'PY'
import json, sys
t = json.load(open(sys.argv[1]))["trainings_dropped"]
assert [(x["last_state"], x["states"]) for x in t] == [("checkpoint of stays after step 24", 1)] and t[0]["bytes"] > 0, t
PY
check_states ""

say "a damaged state is told of and not used"
want 128 derive atlas --as harmed "${how[@]}" --set seed=13 --stop-after 9
pack=$(ls -t .fmstore/packs/*.pack | sed -n 1p)
python3 - "$pack" <<'PY'
import sys
f = open(sys.argv[1], "r+b"); b = f.read(); f.seek(len(b) // 2); f.write(bytes([b[len(b) // 2] ^ 255])); f.close()
PY
want 0 derive atlas --as harmed "${how[@]}" --set seed=13
grep -q 'the checkpoint after step 9 cannot be used' "$tmp/err" || die "it says nothing: $(cat "$tmp/err")"
want 0 derive atlas --as sound "${how[@]}" --set seed=13
[ "$(tree_of harmed)" = "$(tree_of sound)" ] || die "a damaged state changes the result"
echo "all hold"
