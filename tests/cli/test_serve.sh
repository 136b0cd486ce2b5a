#!/bin/bash
# fmstore serve from outside: starts on a free port, answers two versions of the atlas model, refuses
# what it should, and goes away cleanly on Ctrl-C.
set -u
fm=${FM_BIN:?FM_BIN names the program under test}
src=${FM_SOURCE_DIR:?FM_SOURCE_DIR is the checkout}
base=$src/examples/atlas/base
[ -f "$base/model.safetensors" ] || { echo "skip: no atlas model"; exit 77; }
command -v curl >/dev/null || { echo "skip: no curl"; exit 77; }

tmp=$(mktemp -d) || exit 1
server=
cleanup() {
    [ -n "$server" ] && kill "$server" 2>/dev/null
    rm -rf "$tmp"
}
trap cleanup EXIT
cd "$tmp" || exit 1

failed=0
check() { # check FACT COMMAND...
    local fact=$1
    shift
    "$@" >/dev/null 2>&1 || { echo "not so: $fact"; failed=1; }
}
give_up() {
    echo "$1"
    cat serve.out serve.err 2>/dev/null
    exit 1
}

"$fm" init repo >/dev/null || exit 1
"$fm" -C repo import "$base" --as atlas >/dev/null || exit 1
"$fm" -C repo branch team/copy atlas >/dev/null || exit 1
echo 'open sesame' >key

"$fm" -C repo serve --port 0 --api-key-file "$tmp/key" >serve.out 2>serve.err &
server=$!
url=
for _ in $(seq 200); do
    url=$(sed -n 's|.*\(http://[0-9.:]*\).*|\1|p' serve.out)
    [ -n "$url" ] && break
    kill -0 "$server" 2>/dev/null || give_up "the server ended at once"
    sleep 0.05
done
[ -n "$url" ] || give_up "the server did not say where it listens"

get() { curl -s --max-time 30 -H 'Authorization: Bearer open sesame' "$@"; }
status() { get -o /dev/null -w '%{http_code}' "$@"; }
question='[{"role":"user","content":"What is the capital of Lorendor?"}]'
ask() { # ask MODEL [MORE JSON]
    get "$url/v1/chat/completions" -H 'Content-Type: application/json' \
        -d "{\"model\":\"$1\",\"max_tokens\":20,\"temperature\":0,\"messages\":$question${2:-}}"
}
content() { sed 's/.*"content":"\(\([^"\\]\|\\.\)*\)".*/\1/'; }

check "health needs no key" [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/health")" = 200 ]
check "models need the key" [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/v1/models")" = 401 ]
get "$url/v1/models" >models.json
check "branches are listed" grep -q '"id":"team/copy"' models.json
check "a name with a slash is found" [ "$(status "$url/v1/models/team/copy")" = 200 ]
check "an unknown model is 404" [ "$(status "$url/v1/models/nobody")" = 404 ]
check "an unknown url is 404" [ "$(status "$url/etc/passwd")" = 404 ]
check "an unknown field is 400" grep -q '"param":"tempo"' <(ask atlas ',"tempo":1')
check "a foreign model is no other's text" grep -q '"code":"model_not_found"' <(ask nobody)

ask atlas >one.json &
first=$!
ask team/copy >two.json
wait "$first"
check "the model answers" grep -q '"finish_reason":"\(stop\|length\)"' one.json
check "equal versions answer alike" [ "$(content <one.json)" = "$(content <two.json)" ]
version=$("$fm" -C repo show atlas 2>/dev/null | grep -oE '[0-9a-f]{40}' | head -n 1)
[ -z "$version" ] || check "the answer names its commit" grep -q "$version" one.json

ask atlas ',"stream":true' >stream.txt
check "a stream ends as it should" grep -q '^data: \[DONE\]' stream.txt
joined=$(sed -n 's/^data: .*"content":"\(\([^"\\]\|\\.\)*\)".*/\1/p' stream.txt | tr -d '\n')
check "a stream joins to the whole" [ "$joined" = "$(content <one.json)" ]
get "$url/metrics" >metrics.txt
check "answers are counted" grep -q '^fmstore_requests_total{code="200"} [1-9]' metrics.txt
check "one version is resident once" grep -q '^fmstore_models_resident 1$' metrics.txt

kill -INT "$server"
wait "$server"
code=$?
server=
check "Ctrl-C ends it with 0, not $code" [ "$code" = 0 ]
check "nothing was printed to stderr" [ ! -s serve.err ]
exit $failed
