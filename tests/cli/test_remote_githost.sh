#!/bin/bash
# ctest: cost=60
# A lineage on git hosts where nothing of fmstore runs (a folder, `git daemon`, `git http-backend`, ssh), with the
# tensors in a bucket: clone, push, fetch, partial clones, repair; hosts that refuse and hosts that lie.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/bucket_lib.sh"
need_python
command -v git >/dev/null || { echo "skip: no git"; exit 77; }
cd "$tmp"
export HOME=$tmp GIT_CONFIG_NOSYSTEM=1
git config --global user.name t
git config --global user.email t@t
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$tmp"' EXIT

# host NAME: an empty git repository on the host and an empty bucket.
host() {
    git init -q --bare "hosts/$1.git"
    want 0 init --bucket "buckets/$1"
}
packs() { echo "$tmp/buckets/$1"; }
# is_clean NAME: git itself finds no fault in the host's repository.
is_clean() { git -C "hosts/$1.git" fsck --strict --full >fsck.log 2>&1 || die "git fsck of $1: $(cat fsck.log)"; }
# there_and_back NAME URL: the family goes there and comes back, and a member more after it.
there_and_back() {
    rm -rf back && "$fm" -C a remote rm it >/dev/null 2>&1 || true
    want 0 -C a remote add it "$2" --packs "$(packs "$1")"
    want 0 -C a push it --all
    want 0 clone "$2" --packs "$(packs "$1")" back
    for rev in base one two three v1; do same a back "$rev"; done
    want 0 -C back fsck
    want 0 -C a push it --all
    [ "$(travelled)" = 0 ] || die "$(cat err)"
    child back one "of-$1" 9
    want 0 -C back push origin "of-$1"
    want 0 -C a fetch it
    want 0 -C a branch "of-$1" "it/of-$1"
    same a back "of-$1"
    want 0 -C a branch -d "of-$1"
    is_clean "$1"
}

family
say "a folder with a bare git repository"
host plain
url=$tmp/hosts/plain.git
push_and_clone "$url" --packs "$(packs plain)"
two_at_once "$url" --packs "$(packs plain)"

say "results of three who push at once join"
for i in 1 2 3; do
    want 0 clone --branch base "$url" --packs "$(packs plain)" "r$i"
    child "r$i" base "tested-$i" "$((60 + i))"
    "$fm" -C "r$i" test "tested-$i" >out 2>err || [ $? = 1 ] || die "$(cat err)"
done
pushers=()
for i in 1 2 3; do
    "$fm" -C "r$i" push origin "tested-$i" >"r$i.out" 2>"r$i.err" &
    pushers+=($!)
done
for i in 1 2 3; do wait "${pushers[$((i - 1))]}" || die "pusher $i: $(cat "r$i.err")"; done
want 0 clone "$url" --packs "$(packs plain)" joined
for i in 1 2 3; do
    "$fm" -C "r$i" results ls "tested-$i" --json >left
    "$fm" -C joined results ls "tested-$i" --json >right
    [ "$(wc -c <left)" -gt 10 ] && cmp left right || die "results of tested-$i differ"
done
is_clean plain

say "of two who push one branch in the same moment one wins"
for i in 1 2 3 4; do
    pushers=() codes=
    for who in r1 r2; do
        "$fm" -C $who push origin "tested-${who#r}:contested-$i" >$who.out 2>$who.err &
        pushers+=($!)
    done
    for p in "${pushers[@]}"; do
        code=0
        wait "$p" || code=$?
        codes+=$code
    done
    [ "$codes" = 01 ] || [ "$codes" = 10 ] || die "exit codes $codes: $(cat r1.err r2.err)"
    loser=r$((1 + (codes == 1)))
    grep -q " ! refused .*-> contested-$i (.*\\(moved\\|not here; fetch\\)" $loser.err || die "$(cat $loser.err)"
done

say "the lineage is git's"
git clone -q --bare "$url" unchanged.git # git alone shows the lineage
git -C unchanged.git log --oneline --stat one >log
grep -q 'child one' log && grep -q 'tensors/' log || die "$(cat log)"
want 0 -C a remote --json
[ "$(python3 -c 'import json; print(json.load(open("out"))[0]["packs"])')" = "$(packs plain)" ] || die "$(cat out)"
[ -z "$(ls a/.fmstore/tmp b/.fmstore/tmp | grep git- || true)" ] || die "something is left in tmp"

say "the lineage alone, and tensors as they are needed"
want 0 clone --lineage-only "$url" --packs "$(packs plain)" history
[ -z "$(find history/.fmstore/packs -name '*.pack' -size +200k)" ] || die "tensors came"
want 0 -C history log one --oneline
want 0 -C history fetch one -- '*layers/0*'
[ "$(travelled)" -gt 0 ] || die "$(cat err)"
want 0 -C history run one -p 'Where is Lorendor?' -n 2
same a history one
want 0 -C history fsck

say "damage is mended from it"
want 0 clone "$url" --packs "$(packs plain)" hurt
find hurt/.fmstore/packs -name '*.pack' -exec rm {} +
want 1 -C hurt fsck
want 0 -C hurt fsck --repair origin
for rev in base one four; do same a hurt "$rev"; done

say "a version that a recipe names and no branch reaches travels by a ref of its own"
child a base teacher 8
teacher=$("$fm" -C a show teacher --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])')
want 0 -C a derive base --as student --method lora --set objective=distill --teacher teacher \
    --data "$atlas/pirate.jsonl" --set steps=1 --set r=2 --no-gate
want 0 -C a branch -d teacher
want 0 -C a push bucket student
git -C hosts/plain.git rev-parse -q --verify "refs/fmstore/kept/$teacher" >/dev/null || die "the teacher has no ref"
[ "$(git -C hosts/plain.git for-each-ref refs/fmstore/kept | wc -l)" = 1 ] || die "more than the teacher is kept"
want 0 clone --branch student "$url" --packs "$(packs plain)" school
git -C school/.fmstore/lineage.git cat-file -e "$teacher" || die "the teacher did not come"
same a school student
same a school "$teacher"
want 0 -C school fsck
want 0 -C a ls-remote bucket
grep -q kept out && die "kept refs are listed"

say "an unchanged git daemon"
if [ -x "$(git --exec-path)/git-daemon" ]; then
    host daemon
    for _ in 1 2 3 4 5 6 7 8; do
        port=$((20000 + RANDOM % 20000))
        "$(git --exec-path)/git-daemon" --verbose --listen=127.0.0.1 --port=$port --base-path="$tmp/hosts" --export-all \
            --enable=receive-pack >daemon.log 2>&1 &
        daemon=$!
        touch daemon.log
        until grep -q -e 'Ready to rumble' -e 'unable to' daemon.log || ! kill -0 $daemon 2>/dev/null; do sleep 0.02; done
        if grep -q 'Ready' daemon.log && kill -0 $daemon 2>/dev/null; then break; fi
    done
    pids+=($daemon)
    there_and_back daemon "git://127.0.0.1:$port/daemon.git"
    want 128 clone "git://127.0.0.1:$port/nowhere.git" --packs "$(packs daemon)" x
    [ ! -e x ] || die "a mistyped URL left a folder"
    kill $daemon
else
    echo "skip: git has no daemon here"
fi

say "an unchanged git http-backend, with a password from git's credential helper"
if [ -x "$(git --exec-path)/git-http-backend" ]; then
    host web
    python3 "$src/tests/cli/githost_server.py" "$tmp/hosts" me secret-word >web.port 2>web.log &
    pids+=($!)
    until_there $! web.port '[0-9]'
    url=http://127.0.0.1:$(cat web.port)/web.git
    want 0 -C a remote add web "$url" --packs "$(packs web)"
    want 128 -C a push web one
    grep -q 'could not read Username' err || die "$(cat err)"
    git config --global credential.helper '!f() { echo username=me; echo password=wrong-word; }; f'
    want 128 -C a push web one
    grep -q 'Authentication failed' err || die "$(cat err)"
    git config --global credential.helper '!f() { echo username=me; echo password=secret-word; }; f'
    there_and_back web "$url"
    grep -q -e secret-word -e wrong-word err && die "the password is shown"
    else
    echo "skip: git has no http-backend here"
fi

say "a git host behind ssh"
host shell
cat >ssh.sh <<'EOF2'
#!/bin/sh
while [ "$1" != models.example ]; do shift; done
exec sh -c "$2"
EOF2
chmod +x ssh.sh
(
    export GIT_SSH_COMMAND="$tmp/ssh.sh"
    there_and_back shell "models.example:$tmp/hosts/shell.git"
    want 0 -C back remote set-url origin "ssh://models.example$tmp/hosts/shell.git" --packs "$(packs shell)"
    want 0 -C back pull
)

say "what the host refuses is told by name, in its words; the others move"
cat >hosts/shell.git/hooks/update <<'EOF2'
#!/bin/sh
case $1 in *locked*) echo "the branch is under review" >&2; exit 1 ;; esac
EOF2
chmod +x hosts/shell.git/hooks/update
want 0 -C a remote add policy "$tmp/hosts/shell.git" --packs "$(packs shell)"
want 1 -C a push policy one:locked two:open
grep -q ' ! refused .*one -> locked (hook declined: the branch is under review' err || die "$(cat err)"
grep -q ' \* new .*two -> open' err || die "$(cat err)"
printf '#!/bin/sh\necho no more disk >&2\nexit 1\n' >hosts/shell.git/hooks/pre-receive
chmod +x hosts/shell.git/hooks/pre-receive
want 1 -C a push policy two:open2
grep -q 'pre-receive hook declined.*no more disk' err || die "$(cat err)"
rm hosts/shell.git/hooks/*
mkdir -p a/.fmstore/lineage.git/hooks
for hook in pre-push reference-transaction post-checkout; do # of whoever sends us a repository
    printf '#!/bin/sh\ntouch %s\n' "$tmp/ran" >a/.fmstore/lineage.git/hooks/$hook
    chmod +x a/.fmstore/lineage.git/hooks/$hook
done
want 0 -C a push policy two:open2
[ ! -e ran ] || die "a hook ran"
rm -r a/.fmstore/lineage.git/hooks

say "a pack that the bucket lost is named, and pushed again"
rm -rf x && mv buckets/shell lost && want 128 clone "$tmp/hosts/shell.git" --packs "$(packs shell)" x
grep -q 'init --bucket' err || die "$(cat err)"
mv lost buckets/shell
mkdir aside && mv buckets/shell/packs/*.pack aside/
want 128 clone "$tmp/hosts/shell.git" --packs "$(packs shell)" x
grep -q 'No such file' err || die "$(cat err)"
want 0 -C a push policy --all
[ "$(travelled)" -gt 0 ] || die "$(cat err)"
rm -rf x && want 0 clone --branch base "$tmp/hosts/shell.git" --packs "$(packs shell)" x
same a x base
rm -rf x && want 128 clone "$tmp/hosts/shell.git" --packs "$(packs plain)" x # another family's bucket
grep -q "buckets/plain: lacks [0-9]* object.* that the versions of $tmp/hosts/shell.git name" err || die "$(cat err)"
rm -rf x

say "two URLs that are no remote"
refused 128 "--packs names a bucket" -C a remote add y "$tmp/hosts/shell.git" --packs host:there
refused 128 "the first URL is that of a git repository" -C a remote add y s3://bucket/x --packs "$(packs shell)"
refused 128 "a git host has the lineage alone" -C a remote add y git://127.0.0.1/x
want 128 clone git://127.0.0.1/x x
want 129 -C a remote rm policy --packs x
want 0 -C a remote set-url policy "$tmp/hosts/shell.git" # the whole address: no packs any more
want 128 -C a fetch policy
want 0 -C a remote set-url policy "$tmp/hosts/shell.git" --packs "$(packs shell)"
want 0 -C a fetch policy

say "without git"
mkdir bin && ln -s "$(command -v timeout)" bin/timeout
PATH=$tmp/bin want 128 -C a ls-remote policy
grep -q 'git is not installed.*apt-get install git' err || die "$(cat err)"
want 0 -C a push "$(packs plain)" one # other remotes need none

say "hosts that lie"
want 0 init liar
want 0 -C liar import "$atlas/base" --as mine --no-gate
export GIT_SSH_COMMAND="python3 $src/tests/cli/githost_liar.py"
FM_LIE_OID=$(git -C hosts/plain.git rev-parse refs/heads/base)
export FM_LIE_OID
want 0 -C liar remote add it host:x --packs "$(packs plain)"
before=$(state_of liar)
FM_LIE=names want 0 -C liar ls-remote it
[ "$(cut -f2 out)" = refs/heads/good ] || die "$(cat out)"
for lie in endless garbage sha256 absent hole bomb blob pointer cut bits words; do
    FM_LIE=$lie want 128 -C liar fetch it
    [ "$(wc -l <err)" = 1 ] && [ "$(wc -c <err)" -lt 1200 ] || die "$lie: $(head -c 3000 err)"
    LC_ALL=C grep -q -P '[\x00-\x09\x0b-\x1f\x7f]' err && die "$lie: control bytes: $(cat -v err)"
    printf '  %s: %s\n' "$lie" "$(cut -c1-150 err)"
    [ "$(state_of liar)" = "$before" ] || die "$lie changed the repository"
    [ -z "$(ls liar/.fmstore/tmp | grep git- || true)" ] || die "$lie left something in tmp"
    want 0 -C liar fsck
done
unset GIT_SSH_COMMAND
want 0 -C liar remote set-url it "$tmp/hosts/plain.git" --packs "$(packs plain)"
want 0 -C liar fetch it base
want 0 -C liar fsck
is_clean plain
echo "all hold"
