#!/bin/bash
# Hugging Face's own client against hub_server.py: that the stand-in speaks the Hub's protocol, that what it
# downloads is what fmstore downloads, and that fmstore reads its cache in place. Skipped without the client:
# python3 with huggingface_hub, FM_HF_PYTHON, or pip and a network to make one with.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_python
cd "$tmp"
need_hub_client

mkdir -p root/org/atlas root/org/gated/main
cp -r "$atlas/base" root/org/atlas/main
cp "$atlas"/base/config.json root/org/gated/main
echo '# A card' >root/org/atlas/main/README.md
mkdir root/org/atlas/main/1_Pooling
echo '{}' >root/org/atlas/main/1_Pooling/config.json
cp -r root/org/atlas/main root/org/atlas/v2
echo '# Another card' >root/org/atlas/v2/README.md
python3 "$src/tests/cli/hub_server.py" root >urls 2>hub.err &
hub=$!
trap 'kill $hub 2>/dev/null; rm -rf "$tmp"' EXIT
until_there $hub urls http
read -r HF_ENDPOINT cdn <urls
: "$cdn"
export HF_ENDPOINT HF_HUB_DISABLE_XET=1 HF_HUB_DISABLE_TELEMETRY=1

say "the client's snapshot and fmstore's download are the same files"
export HF_HOME=$tmp/home
cat >get.py <<'PY'
import sys
from huggingface_hub import snapshot_download
print(snapshot_download(sys.argv[1], revision=sys.argv[2]))
PY
snapshot=$("$python" get.py org/atlas main 2>client.err) || die "the client fails: $(tail -3 client.err)"
want 0 init r
HF_HOME=$tmp/none want 0 -C r import hf:org/atlas --as a --no-gate
want 0 -C r export a "$tmp/exported" --format source
diff -r "$snapshot" exported || die "other files"
grep -q '^cdn' root/log || die "the client did not go to the CDN"
[ "$(grep -c 'token$' root/log || true)" = 0 ] || die "a token from nowhere"

say "the client's cache is read in place, and for another revision by its digests"
rm root/log
want 0 init r2
want 0 -C r2 import hf:org/atlas --as a --no-gate
grep -q 'read in place' "$tmp/err" || die "$(cat "$tmp/err")"
[ "$(grep -c resolve root/log || true)" = 0 ] || die "downloaded what the client had: $(cat root/log)"
rm -rf r2
want 0 init r2
want 0 -C r2 import hf:org/atlas@v2 --as a --no-gate
[ "$(grep -c resolve root/log)" = 1 ] || die "want the card alone: $(cat root/log)"
want 0 -C r2 export a "$tmp/exported2" --format source
diff -r root/org/atlas/v2 exported2

say "the client finds its cache as it was"
rm root/log
[ "$("$python" get.py org/atlas main 2>client.err)" = "$snapshot" ]
[ "$(grep -c '^cdn' root/log || true)" = 0 ] || die "the client downloads again: $(cat root/log)"

say "both call the same refusals by the same names"
cat >refused.py <<'PY'
import sys
import huggingface_hub
try:
    huggingface_hub.snapshot_download(sys.argv[1], revision=sys.argv[2], token=sys.argv[3] or False)
except Exception as e:
    print(type(e).__name__)
PY
name() { "$python" refused.py "$1" "$2" "$3" 2>/dev/null; }
[ "$(name org/gated main '')" = GatedRepoError ] || die "$(name org/gated main '')"
[ "$(name org/gated main poor)" = GatedRepoError ] || die "$(name org/gated main poor)"
[ "$(name org/none main good)" = RepositoryNotFoundError ] || die "$(name org/none main good)"
[ "$(name org/atlas nope good)" = RevisionNotFoundError ] || die "$(name org/atlas nope good)"
refused 128 "is gated: accept" -C r import hf:org/gated --as x
HF_TOKEN=poor refused 128 "has no access yet" -C r import hf:org/gated --as x
HF_TOKEN=good refused 128 "no such model" -C r import hf:org/none --as x
HF_TOKEN=good refused 128 "no such revision" -C r import hf:org/atlas@nope --as x

say "a token that the client saved is found"
printf 'good' >"$HF_HOME/token"
want 0 init r3
cp "$atlas/base/model.safetensors" root/org/gated/main
want 0 -C r3 import hf:org/gated --as g --no-gate
grep -q '^hub .*token$' root/log || die "no token was sent"
[ "$(grep -c '^cdn .*token$' root/log || true)" = 0 ] || die "the token went to the CDN"
echo "all well"
