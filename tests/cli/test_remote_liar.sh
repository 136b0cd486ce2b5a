#!/bin/bash
# ctest: cost=40
# A server that lies to a clone and to a push: wrong bytes, wrong lengths, answers without end, redirects, web
# pages. Nothing wrong is accepted, each lie is named, and the true server is gone on with. LIES: flipped bits (30).
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
export FMSTORE_TOKEN=open-sesame GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
echo open-sesame >key
server=0 liar=0
trap 'for p in $server $liar; do [ "$p" = 0 ] || kill -9 "$p" 2>/dev/null || true; done; rm -rf "$tmp"' EXIT

want 0 init a
want 0 -C a import "$atlas/base" --as base --no-gate
"$fm" -C a export base "$tmp/whole" >/dev/null 2>&1
"$fm" -C a serve --port 0 --remote-write --api-key-file "$tmp/key" >serve.out 2>serve.err </dev/null &
server=$!
until_there "$server" serve.out 'a remote at that URL'
url=$(sed -n 's|^serving on \(http://[0-9.:]*\) .*|\1|p' serve.out)
echo none >mode
python3 "$src/tests/cli/remote_liar.py" "$url" "$tmp/mode" >liar.out 2>liar.err &
liar=$!
until_there "$liar" liar.out '[0-9]'
lying=http://127.0.0.1:$(cat liar.out)

whole_at() { # the version at REPO exports to what was imported
    rm -rf out.d
    "$fm" -C "$1" export base "$tmp/out.d" >/dev/null 2>&1 && diff -r out.d whole >/dev/null
}
# believes MODE TEXT: a clone from the liar fails by name and leaves nothing wrong; the true server completes it.
believes() {
    rm -rf x
    echo "$1" >mode
    limit_s=60 want 128 clone "$lying" x
    grep -qF -- "$2" "$tmp/err" || die "$1: no '$2' in: $(cat "$tmp/err")"
    echo none >mode
    [ -e x ] || return 0
    want 0 -C x ls
    [ ! -s "$tmp/out" ] || die "$1: a branch was made"
    want 0 -C x remote set-url origin "$url"
    want 0 -C x pull
    whole_at x || die "$1: what a later pull completes differs"
    want 0 -C x fsck
}

say "the liar as an honest proxy"
want 0 clone "$lying" honest
whole_at honest || die "the proxy differs"

say "answers of another kind"
believes html:*:0 'no fmstore server answers there, but something with text/html'
believes file:*:0 "sends on to 'file:///etc/passwd', which is not followed"
believes moved:*:0 "sends on to http://elsewhere.example/repo; if you trust that"
grep -q pass@ "$tmp/err" && die "credentials of a redirect are shown"
believes nothing:*:0 'the connection ended before the answer'
believes huge:*:0 'is no answer of fmstore'
believes kind:*:0 'is no answer of fmstore'
believes escape:2:0 'no'
grep -q "$(printf '\033')" "$tmp/err" && die "an escape sequence reached the terminal"
believes extra:2:0 'sends more than an answer'

say "lengths, and answers without end"
for op in 2 3 4 5; do
    believes "short:$op:0" 'announced'
    for n in 1 2 3; do believes "cut:$op:$n" 'ended'; done
done
believes data:3:0 ''
believes data:5:0 ''
believes lists:2:0 ''
believes lists:4:0 ''
believes refs:2:0 ''

say "wrong bytes"
flips=${LIES:-30}
for ((n = 1; n <= flips; n++)); do
    for op in 3 4 5; do
        rm -rf x
        echo "flip:$op:$n" >mode
        got=0
        timeout 60 "$fm" clone "$lying" x >out 2>err </dev/null || got=$?
        echo none >mode
        if [ "$got" = 0 ]; then # a bit without a meaning: then the bytes must be right
            whole_at x || die "flip:$op:$n: wrong bytes were accepted"
            continue
        fi
        [ "$got" = 128 ] && grep -q '^fmstore: ' err || die "flip:$op:$n: $got $(cat err)"
        [ -e x ] || continue
        want 0 -C x fsck
        want 0 -C x remote set-url origin "$url"
        want 0 -C x pull
        whole_at x || die "flip:$op:$n: what a later pull completes differs"
    done
done

say "a push to a server that says it has everything moves no branch"
want 0 -C honest derive base --as child --method lora --data "$atlas/pirate.jsonl" --set steps=1 --set r=2 --no-gate
echo has:6:0 >mode
want 1 -C honest push origin child
grep -q ' ! refused' "$tmp/err" || die "$(cat "$tmp/err")"
echo none >mode
want 0 ls-remote "$url"
grep -q child "$tmp/out" && die "the branch moved"
want 0 -C a fsck
want 0 -C honest push origin child
want 0 -C a fsck
