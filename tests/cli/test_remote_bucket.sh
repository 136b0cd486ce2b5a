#!/bin/bash
# ctest: cost=25
# A bucket in a folder: a family goes there and comes back equal, of two pushers one wins, a killed push or clone
# loses nothing, and a bucket that lies is refused by name.
#   FM_KILLS=n: so many kills of a push and of a fetch (30); FM_KILL_SEED=n: of their times.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/bucket_lib.sh"
need_python
kills=${FM_KILLS:-30}
RANDOM=${FM_KILL_SEED:-19}
cd "$tmp"

family
want 0 init --bucket bucket
refused 128 "is a bucket already" init --bucket bucket
refused 129 "exclude each other" init --bucket --bare x
push_and_clone "$tmp/bucket"
two_at_once "$tmp/bucket"
[ -z "$(find bucket/incoming -type f)" ] || die "a push left a temporary"
for pack in bucket/packs/*.pack bucket/lineage/*.pack; do
    [ "$(sha256sum <"$pack")" = "$(basename "$pack" .pack)  -" ] || die "$pack is not named by its digest"
done
git init -q --bare outside.git # git itself reads the lineage
for pack in bucket/lineage/*.pack; do
    git -C outside.git index-pack --stdin <"$pack" >/dev/null || die "git cannot read $pack"
done

say "$kills kills of a push and of a fetch"
# milliseconds COMMAND...: how long it takes, so that kills meet any moment of it.
milliseconds() {
    local begin=${EPOCHREALTIME/./}
    want 0 "$@"
    ms=$(((${EPOCHREALTIME/./} - begin) / 1000))
}
# kill_one COMMAND...: kills it at a random moment of $ms; whole=1: it came to its end before.
kill_one() {
    "$fm" "$@" >out 2>err &
    local pid=$! at=$((RANDOM % ms))
    sleep "$((at / 1000)).$(printf '%03d' $((at % 1000)))"
    if kill -9 $pid 2>/dev/null; then lost=$((lost + 1)); fi
    whole=1
    { wait $pid; } 2>/dev/null || whole=0
}
lost=0 whole=1
want 0 init --bucket unharmed
milliseconds -C a push "$tmp/unharmed" --all
for _ in $(seq "$kills"); do
    [ $whole = 0 ] || { rm -rf other && want 0 init --bucket other; }
    kill_one -C a push "$tmp/other" --all
    want 0 ls-remote "$tmp/other" # what is there can always be read
done
want 0 -C a push "$tmp/other" --all
[ -z "$(find other/incoming -type f)" ] || die "temporaries of the dead stay"
milliseconds clone "$tmp/other" unharmed-clone
whole=1
for _ in $(seq "$kills"); do
    [ $whole = 0 ] || { rm -rf e && want 0 init e && want 0 -C e remote add origin "$tmp/other"; }
    kill_one -C e pull
    want 0 -C e fsck
done
want 0 -C e pull
for rev in base one two four; do same a e "$rev"; done
want 0 -C e fsck
say "of $((2 * kills)), $lost were killed"
[ "$lost" -gt 0 ] || die "no kill met its process"

say "a pack of a push that ended before its manifest is found by its name"
rm -rf early && cp -r unharmed early && rm early/fmstore-bucket.json
want 0 init --bucket early
packs() { (cd "$1/packs" && stat -c '%n %i %Y' ./*.pack); }
before=$(packs early)
want 0 -C a push "$tmp/early" --all
[ "$(packs early)" = "$before" ] || die "packs were written again: $before, $(packs early)"
diff -r early/packs unharmed/packs || die "the packs differ"

say "a pack that vanished is brought again; a lost git pack is named"
cp -r other gone
rm gone/packs/*.pack
want 128 clone "$tmp/gone" x
grep -q 'No such file' err || die "$(cat err)"
rm -rf x
want 0 -C a push "$tmp/gone" base:again
[ "$(travelled)" -gt 0 ] || die "$(cat err)"
want 0 clone --branch again "$tmp/gone" x
want 0 -C a branch again base
same a x again
rm -rf x
rm "$(ls gone/lineage/*.pack | sed -n 1p)"
want 128 -C a push "$tmp/gone" one:more
grep -q 'which its list names, is not there' err || die "$(cat err)"

say "a bucket that lies"
# lie WHAT: a copy of the bucket that the python on standard input changes; a clone of it must fail with the text.
lie() {
    rm -rf lying x
    cp -r other lying
    (cd lying && python3 -c "
import glob, hashlib, json, os
m = json.load(open('fmstore-bucket.json'))
def flip(path, at):
    b = bytearray(open(path, 'rb').read()); b[at] ^= 1; open(path, 'wb').write(b)
pack = 'packs/' + m['packs'][0]['sha256']
$2
json.dump(m, open('fmstore-bucket.json', 'w'))")
    want 128 clone "$tmp/lying" x
    grep -qF -- "$1" err || die "want '$1' in: $(cat err)"
    [ ! -e x ] || { want 0 -C x fsck; "$fm" -C x ls >out 2>/dev/null; [ ! -s out ] || die "a branch moved: $(cat out)"; }
}
lie '"sha256" is none' "m['packs'][0]['sha256'] = '../../../../etc/passwd'"
lie '"sha256" is none' "m['lineage'][0]['sha256'] = '../x'"
lie '"heads_bytes" is none' "m['packs'][0]['heads_bytes'] = 1 << 60"
lie 'not the bytes' "m['packs'][0]['heads_bytes'] -= 64"
lie 'bytes up to' "m['packs'][0]['heads_bytes'] += 64"
lie 'its records end' "m['packs'][0]['bytes'] += 64"
lie 'leaves the pack' "m['packs'][0]['bytes'] -= 64"
lie 'not the bytes' "flip(pack + '.heads', 40)"
lie 'is wrong' "
flip(pack + '.heads', 40)
m['packs'][0]['heads_sha256'] = hashlib.sha256(open(pack + '.heads', 'rb').read()).hexdigest()"
lie 'object' "flip(pack + '.pack', 64 + 400)"
lie 'bytes up to' "os.truncate(pack + '.pack', os.path.getsize(pack + '.pack') - 4096)"
lie 'not the bytes' "flip('lineage/' + m['lineage'][0]['sha256'] + '.pack', 20)"
lie 'is not here' "m['lineage'] = []"
lie 'lacks' "m['packs'] = []"
lie 'of version 2' "m['fmstore_bucket'] = 2"
rm -rf lying x # a name that climbs is no ref's, and is passed over
cp -r other lying
sed -i 's|"refs/heads/one"|"refs/heads/../../climbed"|' lying/fmstore-bucket.json
want 0 clone "$tmp/lying" x
[ -z "$(find . -name climbed)" ] || die "$(find . -name climbed)"
echo ok
