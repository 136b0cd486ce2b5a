#!/bin/bash
# ctest: cost=15
# Killed at any moment, import and derive leave a repository that opens, passes fsck, and holds every
# version that it held before.
#   FM_KILLS=n: so many kills at random times (12); FM_KILL_SEED=n: of those times.
# Before them, a kill at each FM_KILL_EACH-th (3) of the calls by which fmstore changes the file system
# (FM_KILLED, the program with a switch for that). test_kill_slow.sh takes all of them.
. "$(dirname "$0")/lib.sh"
need_python
killed=${FM_KILLED:?FM_KILLED must name the program that can be killed}
kills=${FM_KILLS:-12}
each=${FM_KILL_EACH:-3}
RANDOM=${FM_KILL_SEED:-20}
cd "$tmp"
mkdir repo && cd repo
atlas_repo
want 0 derive atlas --as child --data "$atlas/pirate.jsonl" --set r=2 --set steps=2 --set batch=2 --no-gate
want 0 export atlas "$tmp/f32" --format hf --dtype f32
heads_of() { (cd "$1" && find .fmstore/lineage.git/refs/heads -type f | sort | xargs grep . /dev/null); }
kept=$(heads_of .)
cp -r "$tmp/repo" "$tmp/sound"

# check WHAT: the repository in the current folder is whole.
check() {
    local line heads
    want 0 fsck
    heads=$(heads_of .)
    while read -r line; do
        grep -qxF -- "$line" <<<"$heads" || die "$1: lost $line"
    done <<<"$kept"
    want 0 cat atlas:model.json
}

# 0 = it came to its end, 137 = killed; anything else is a failure of its own.
ended() {
    case $2 in
        0 | 137) return 0 ;;
        *) die "$1 exits $2: $(cat "$tmp/err")" ;;
    esac
}

say "killed at each $each. call of import that changes the file system"
last=0
for ((n = 1; ; n += each)); do
    rm -rf "$tmp/repo" && cp -r "$tmp/sound" "$tmp/repo" && cd "$tmp/repo"
    code=0
    { FM_KILL_AT=$n timeout 300 "$killed" import "$tmp/f32" --as wide --no-gate >"$tmp/out" 2>"$tmp/err"; } 2>/dev/null || code=$?
    ended "import" $code
    check "call $n of import"
    if [ $code = 0 ]; then
        [ $n -gt 10 ] || die "nothing was killed"
        break
    fi
    last=$n
    if [ $((n / each % 6)) = 1 ]; then # a killed import can be done again over what it left
        want 0 branch
        grep -q '^wide ' "$tmp/out" || want 0 import "$tmp/f32" --as wide --no-gate
        want 0 show wide
        check "import again after call $n"
    fi
done
echo "  the last call killed was $last"

say "killed at each $each. such call of derive"
for ((n = each > 1 ? 2 : 1; ; n += each)); do
    rm -rf "$tmp/repo" && cp -r "$tmp/sound" "$tmp/repo" && cd "$tmp/repo"
    code=0
    { FM_KILL_AT=$n timeout 300 "$killed" derive atlas --as wide --data "$atlas/pirate.jsonl" --set r=1 \
        --set steps=1 --set batch=1 --no-gate >"$tmp/out" 2>"$tmp/err"; } 2>/dev/null || code=$?
    ended "derive" $code
    check "call $n of derive"
    [ $code = 0 ] && break
    last=$n
done
echo "  the last call killed was $last"

say "$kills kills at random times, half of imports, half of derivations, in one repository all along"
rm -rf "$tmp/repo" && cp -r "$tmp/sound" "$tmp/repo" && cd "$tmp/repo"
commands=("import $tmp/f32 --no-gate --as" "derive atlas --data $atlas/pirate.jsonl --set r=2 --set steps=4 --set batch=1 --no-gate --as")
longest=(0 0)
for i in 0 1; do # how long each takes undisturbed, in ms
    began=$(date +%s%N)
    # shellcheck disable=SC2086
    want 0 ${commands[i]} "whole$i"
    longest[i]=$((($(date +%s%N) - began) / 1000000))
done
kept=$(heads_of .)
killed=0 ended=0
for ((k = 0; killed < kills; k++)); do
    i=$((k % 2))
    [ "${longest[i]}" -gt 2 ] || longest[i]=2
    wait_ms=$(((RANDOM * 32768 + RANDOM) % longest[i]))
    # shellcheck disable=SC2086
    "$fm" ${commands[i]} "new$k" >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    sleep "$(printf '%d.%03d' $((wait_ms / 1000)) $((wait_ms % 1000)))"
    kill -9 $pid 2>/dev/null || true
    code=0
    wait $pid 2>/dev/null || code=$?
    ended "${commands[i]}" $code
    if [ $code = 137 ]; then
        killed=$((killed + 1))
    else # it is quicker than it was when it was timed
        ended=$((ended + 1))
        longest[i]=$wait_ms
    fi
    check "random kill $k"
    if "$fm" show "new$k" >/dev/null 2>&1; then # it had landed: whole, and from now on to be kept
        want 1 diff atlas "new$k"
        kept=$(heads_of .)
    fi
done
echo "  $killed killed, $ended had ended by then"

say "fsck with everything decoded, the indexes made anew, and a last import"
want 0 fsck --rebuild-index
want 0 import "$tmp/f32" --as last --no-gate
check "the end"
echo "all hold"
