#!/bin/bash
# ctest: cost=60
# fmstore serve --remote over HTTP on loopback: clone, fetch, pull and push, keys, two pushers, gc and prompts
# meanwhile, and kills of either side at random moments, after which the next run goes on. REMOTE_KILLS: how
# many kills (28); REMOTE_SEED: other moments.
. "$(dirname "$0")/lib.sh"
need_python
command -v curl >/dev/null || { echo "skip: no curl"; exit 77; }
cd "$tmp"
export FMSTORE_TOKEN=open-sesame GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
echo open-sesame >key
server=0 port=0 waited=0
trap '[ "$server" = 0 ] || kill -9 "$server" 2>/dev/null || true; rm -rf "$tmp"' EXIT

# serve REPO [OPTION...]: starts the server; url and port are where it is. A second start takes the same port.
serve() {
    rm -f serve.out
    "$fm" -C "$1" serve --port "$port" "${@:2}" >serve.out 2>serve.err </dev/null &
    server=$!
    until_there "$server" serve.out 'a remote at that URL'
    url=$(sed -n 's|^serving on \(http://[0-9.:]*\) .*|\1|p' serve.out)
    port=${url##*:}
}
quit() {
    kill -INT "$server"
    wait "$server" || die "the server ended with $?: $(cat serve.err)"
    server=0
}
writable=(--remote-write --api-key-file "$tmp/key")
same() { # same A B REV: the version exports to the same bytes from both
    rm -rf one two
    "$fm" -C "$1" export "$3" "$tmp/one" >/dev/null 2>&1
    "$fm" -C "$2" export "$3" "$tmp/two" >/dev/null 2>&1
    diff -r one two || die "$3 differs"
}
digest() { # of what a version exports to
    "$fm" -C "$1" export big "$tmp/out.safetensors" --format safetensors >/dev/null 2>&1
    sha256sum <out.safetensors
}
travelled() { sed -n 's/^\([0-9]*\) objects, .*/\1/p' err; }
child() { # child REPO PARENT NAME SEED
    want 0 -C "$1" derive "$2" --as "$3" --method lora --data "$atlas/pirate.jsonl" --set steps=1 --set r=2 \
        --set "seed=$4" --no-gate
}

want 0 init a
want 0 -C a import "$atlas/base" --as base --no-gate
child a base one 1

say "--remote-write wants a key; a server without --remote is no remote"
want 129 -C a serve --port 0 --remote-write
grep -q -- '--remote-write wants --api-key-file' "$tmp/err" || die "$(cat "$tmp/err")"
want 129 -C a serve base --port 0 --remote # who fetches gets all, so a choice of models would mislead
"$fm" -C a serve --port 0 >serve.out 2>serve.err </dev/null &
server=$!
until_there "$server" serve.out 'serving on'
url=$(sed -n 's|^serving on \(http://[0-9.:]*\) .*|\1|p' serve.out)
want 128 clone "$url" x
grep -q "no fmstore server answers there" "$tmp/err" || die "$(cat "$tmp/err")"
[ ! -e x ] || die "a refused clone left a folder"
quit

say "a server without a key: who likes may fetch, nobody may push"
serve a --remote
want 0 clone "$url" b
for rev in base one; do same a b "$rev"; done
want 0 -C b fsck
want 0 ls-remote "$url"
grep -q 'refs/heads/one' out || die "$(cat out)"
want 1 -C b push origin one
grep -q "can only be read from here" "$tmp/err" || die "$(cat "$tmp/err")"
child a base two 2
want 0 -C b fetch
[ "$(travelled)" -gt 0 ] || die "$(cat err)"
want 0 -C b pull
[ "$(travelled)" = 0 ] || die "$(cat err)"
same a b two
# shellcheck disable=SC2016
code=$(curl -s -o body -w '%{http_code}' -X POST "$url/fmstore/wire" -H 'Origin: https://evil.example' -d x)
[ "$code" = 403 ] || die "a page of another site may ask: $code $(cat body)"
code=$(curl -s -o body -w '%{http_code}' -X POST "$url/fmstore/wire" --data-binary 'GET / HTTP/1.0')
[ "$code" = 400 ] && grep -q 'is no answer of fmstore' body || die "$code $(cat body)"
code=$(curl -s -o body -w '%{http_code}' -X POST "$url/fmstore/wire" -d '')
[ "$code" = 400 ] || die "$code $(cat body)"
code=$(curl -s -o body -w '%{http_code}' "$url/fmstore/wire/x/y")
[ "$code" = 405 ] || die "$code $(cat body)"
quit

say "a key: none, a wrong one, the right one, the one that git's credential helper knows"
serve a "${writable[@]}"
FMSTORE_TOKEN='' refused 1 "wants a key: set FMSTORE_TOKEN" ls-remote "$url"
FMSTORE_TOKEN=pass-w0rd refused 1 "does not take the key" ls-remote "$url"
grep -q w0rd "$tmp/err" && die "the key is in the error"
cat >helper <<END
#!/bin/sh
echo "\$1" >>$tmp/helped
cat >>$tmp/helped
[ "\$1" = get ] && printf 'username=me\npassword=%s\n' "\$(cat $tmp/helper.key)"
exit 0
END
chmod +x helper
printf '[credential]\n\thelper = %s\n\tuseHttpPath = true\n' "$tmp/helper" >gitconfig
echo open-sesame >helper.key
FMSTORE_TOKEN='' GIT_CONFIG_GLOBAL=$tmp/gitconfig want 0 ls-remote "$url"
grep -q '^get$' helped && grep -q '^store$' helped || die "$(cat helped)"
grep -q '^protocol=http$' helped && grep -q "^host=127.0.0.1:$port$" helped || die "$(cat helped)"
echo old-sesame >helper.key
: >helped
FMSTORE_TOKEN='' GIT_CONFIG_GLOBAL=$tmp/gitconfig refused 1 "does not take the key" ls-remote "$url"
grep -q '^erase$' helped || die "$(cat helped)"
[ "$(grep -c '^get$' helped)" = 1 ] || die "asked more than once: $(cat helped)"

say "push, and of two pushers at once one wins"
want 0 -C b branch mine one
want 0 -C b remote set-url origin "$url"
want 0 -C b push origin mine
want 0 -C a ls
grep -q '^mine ' out || die "$(cat out)"
want 0 clone "$url" c
child b mine new-b 5
child c mine new-c 6
"$fm" -C b push origin new-b:mine >b.out 2>b.err </dev/null &
left=$!
"$fm" -C c push origin new-c:mine >c.out 2>c.err </dev/null &
right=$!
codes=
for p in $left $right; do
    got=0
    wait "$p" || got=$?
    codes+=$got
done
case $codes in 01 | 10) ;; *) die "exit codes $codes: $(cat b.err c.err)" ;; esac
cat b.err c.err >both
grep -q ' ! refused' both || die "$(cat both)"
want 0 -C a fsck

say "prompts are answered and gc runs while versions are pushed"
python3 - <<'END'
import json, os, struct
head, at = {}, 0
for i in range(64):
    head["t%02d" % i] = {"dtype": "F32", "shape": [256, 1024], "data_offsets": [at, at + (1 << 20)]}
    at += 1 << 20
head = json.dumps(head).encode()
with open("big.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head)
    for i in range(64):
        f.write(os.urandom(1 << 20))
END
want 0 init big
want 0 -C big import "$tmp/big.safetensors" --as big --no-gate
want 0 -C big remote add origin "$url"
"$fm" -C big push origin big >push.out 2>push.err </dev/null &
pusher=$!
asked=0
while kill -0 "$pusher" 2>/dev/null || [ "$asked" = 0 ]; do
    want 0 -C a gc --prune=now
    curl -s --max-time 100 "$url/v1/chat/completions" -H "Authorization: Bearer open-sesame" \
        -d '{"model":"base","max_tokens":4,"messages":[{"role":"user","content":"What is the capital?"}]}' >answer
    grep -q '"finish_reason"' answer || die "$(cat answer)"
    asked=$((asked + 1))
done
wait "$pusher" || die "push: $(cat push.err)"
want 0 -C a fsck
whole=$(digest big)
[ "$(digest a)" = "$whole" ] || die "what was pushed differs"
rss=$(sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$server/status")
say "  $asked prompts; the server's memory at its highest: $((rss / 1024)) MiB"
quit

# slowed COUNT ADDRESS: a clone while so many clients from there hold places of the server.
slowed() {
    rm -rf slowed slow.in
    mkfifo slow.in
    python3 "$src/tests/cli/slow_clients.py" "$port" "$1" "$2" <slow.in >slow.out 2>&1 &
    local slow=$!
    exec 9>slow.in
    until_there "$slow" slow.out begun
    limit_s=60 want 0 clone "$url" slowed
    kill -0 "$slow" || die "the slow clients ended: $(cat slow.out)"
    exec 9>&-
    wait "$slow"
    want 0 -C slowed fsck
}
say "what gc deleted is given back while the server runs"
want 0 init room
want 0 -C room import "$atlas/base" --as base --no-gate
child room base gone 7
serve room --remote
want 0 clone "$url" whole
mapped() { grep -F "/room/.fmstore/packs/" "/proc/$server/maps" || true; }
[ -n "$(mapped)" ] || die "the server has mapped no pack"
want 0 -C room branch -d gone
have=$(mapped | awk '{print $6}' | sort -u)
want 0 -C room gc --prune=now
[ -n "$(for f in $have; do [ -e "$f" ] || echo "$f"; done)" ] || die "gc deleted no pack that is mapped"
until [ -z "$(mapped | grep -F '(deleted)')" ]; do
    [ $((waited += 1)) -lt 600 ] || die "it maps $(mapped)"
    sleep 0.1
done
want 0 clone "$url" whole2
quit

say "16 clients that trickle lose their places, 64 of one address have no more than its share of them"
serve a --remote
slowed 16 127.0.0.1
slowed 64 127.0.0.2
quit

say "kills of the client and of the server, in a push and in a fetch; the next run goes on"
kills=${REMOTE_KILLS:-28} seed=${REMOTE_SEED:-1}
RANDOM=$seed
want 0 init target
serve target "${writable[@]}"
want 0 -C big remote set-url origin "$url"
from=$(date +%s%N)
want 0 -C big push origin big
span=$((($(date +%s%N) - from) / 1000000)) # of a transfer that is not killed, in ms
[ "$span" -lt 999 ] || span=999
quit
# one push|fetch: the client's command, in the background
one() {
    if [ "$1" = push ]; then
        "$fm" -C big push origin big >>client.out 2>>client.err </dev/null &
    else
        "$fm" -C copy pull >>client.out 2>>client.err </dev/null &
    fi
    client=$!
}
done_kills=0 finished=0
while [ "$done_kills" -lt "$kills" ]; do
    for what in push fetch; do
        rm -rf target copy
        : >client.err
        want 0 init target
        [ "$what" = push ] || { rm -rf target; cp -r big target; }
        want 0 init copy
        serve target "${writable[@]}"
        want 0 -C copy remote add origin "$url"
        for victim in client server client server; do
            one "$what"
            sleep "$(printf '0.%03d' $((RANDOM % span)))"
            got=0
            if [ "$victim" = client ]; then
                kill -9 "$client" 2>/dev/null || true
                wait "$client" 2>/dev/null || got=$?
            else
                kill -9 "$server"
                wait "$server" 2>/dev/null || true
                serve target "${writable[@]}"
                wait "$client" 2>/dev/null || got=$?
            fi
            [ "$got" != 0 ] || finished=$((finished + 1))
            done_kills=$((done_kills + 1))
        done
        one "$what"
        wait "$client" || die "the last $what: $(tail -3 client.err)"
        at=copy
        [ "$what" = push ] && at=target
        [ "$(digest "$at")" = "$whole" ] || die "after kills of a $what the exports differ (REMOTE_SEED=$seed)"
        want 0 -C "$at" fsck
        quit
        want 0 -C "$at" gc --prune=now
        want 0 -C "$at" fsck
    done
done
say "  $done_kills kills within $span ms, $finished of them after the end; every export is equal, every fsck clean"
