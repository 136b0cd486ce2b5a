#!/bin/bash
# ctest: cost=6
# clone, push and fetch over the user's own ssh, against a real sshd on loopback; and what ssh alone can refuse.
. "$(dirname "$0")/lib.sh"
for tool in /usr/sbin/sshd ssh ssh-keygen; do
    command -v "$tool" >/dev/null || { echo "skip: no $tool"; exit 77; }
done
cd "$tmp"
ssh-keygen -q -t ed25519 -N '' -f host
ssh-keygen -q -t ed25519 -N '' -f user
cp user.pub authorized
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
mkdir bin
ln -s "$fm" bin/fmstore
start() { # a free port: sshd itself says whether it could have it
    local try
    for try in 1 2 3 4 5 6 7 8; do
        port=$((20000 + RANDOM % 20000))
        cat >config <<EOF2
ListenAddress 127.0.0.1
Port $port
HostKey $tmp/host
AuthorizedKeysFile $tmp/authorized
PidFile $tmp/pid
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv PATH=$tmp/bin:$PATH
EOF2
        rm -f log
        /usr/sbin/sshd -D -e -f config 2>log &
        sshd=$!
        until grep -q -e 'Server listening' -e 'annot bind' log || ! kill -0 $sshd 2>/dev/null; do sleep 0.05; done
        if grep -q 'Server listening' log && kill -0 $sshd 2>/dev/null; then return 0; fi
        wait $sshd || true
    done
    echo "skip: sshd does not start here: $(cat log)"
    exit 77
}
start
trap 'kill $sshd 2>/dev/null || true; rm -rf "$tmp"' EXIT
export GIT_SSH_COMMAND="ssh -F none -i $tmp/user -o UserKnownHostsFile=$tmp/known -o StrictHostKeyChecking=no -o LogLevel=ERROR"
me=$(id -un)
if ! $GIT_SSH_COMMAND -p "$port" "$me@127.0.0.1" true 2>err; then
    echo "skip: ssh to this machine is not allowed: $(cat err)"
    exit 77
fi

mkdir a
want 0 init a
want 0 -C a import "$atlas/base" --as base --no-gate
want 0 -C a derive base --as one --method lora --data "$atlas/pirate.jsonl" --set steps=2 --set r=2 --no-gate

say "clone, by ssh://"
url="ssh://$me@127.0.0.1:$port$tmp/a"
want 0 clone "$url" b
want 0 -C b fsck
for rev in base one; do
    "$fm" -C a export $rev "$tmp/x-$rev" >/dev/null 2>&1
    "$fm" -C b export $rev "$tmp/y-$rev" >/dev/null 2>&1
    diff -r "x-$rev" "y-$rev" || die "$rev differs"
done

say "push, into a path with blanks and quotes"
odd="it's a \$(touch evil) hub"
want 0 init --bare "$odd"
want 0 -C b remote add odd "ssh://$me@127.0.0.1:$port$tmp/$odd"
want 0 -C b push odd --all
want 0 -C "$odd" fsck
[ -z "$(find . -name evil)" ] || die "a path reached a shell"
want 0 -C b push odd --all
grep -q '^0 objects' err || die "$(cat err)"

say "the other form, host:path, and a folder of the home"
GIT_SSH_COMMAND="$GIT_SSH_COMMAND -p $port" want 0 clone "$me@127.0.0.1:$tmp/a" c
want 0 -C c fsck

say "the far fmstore is killed in the middle: what came is kept, and the next pull goes on"
cat >bin/fmstore-killed <<EOF2
#!/bin/sh
"$fm" "\$@" | { head -c \$CUT; kill -9 0; }
EOF2
chmod +x bin/fmstore-killed
for cut in 3000 60000 300000 2000000; do
    rm -rf d
    mkdir d
    want 0 init d
    want 0 -C d remote add origin "$url"
    git config -f d/.fmstore/config remote.origin.program "CUT=$cut fmstore-killed"
    want 128 -C d pull
    git config -f d/.fmstore/config --unset remote.origin.program
    want 0 -C d fsck
    want 0 -C d pull
    want 0 -C d fsck
    "$fm" -C d export one "$tmp/z" >/dev/null 2>&1
    diff -r x-one z || die "cut at $cut: one differs"
    rm -rf z
done

say "what cannot be is named"
want 128 clone "ssh://$me@127.0.0.1:$port$tmp/nothing" n
grep -q 'is no repository of fmstore on this machine' err || die "$(cat err)"
[ ! -e n ] || die "a refused clone left a folder"
want 128 clone "ssh://$me@127.0.0.1:1$tmp/a" n
grep -q 'no fmstore answers there' err || die "$(cat err)"
