#!/bin/bash
# fmstore serve from outside: starts on a free port, answers two versions of the atlas model, refuses
# what it should, and goes away cleanly on Ctrl-C.
set -u
fm=${FM_BIN:?FM_BIN names the program under test}
src=${FM_SOURCE_DIR:?FM_SOURCE_DIR is the checkout}
base=$src/examples/atlas/base
[ -f "$base/model.safetensors" ] || { echo "skip: no atlas model"; exit 77; }
command -v curl >/dev/null || { echo "skip: no curl"; exit 77; }
command -v python3 >/dev/null || { echo "skip: no python3"; exit 77; }

tmp=$(mktemp -d) || exit 1
server= ranks=
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
"$fm" -C repo import "$src/tests/model/golden/arch/roberta" --as enc >/dev/null || exit 1
echo 'open sesame' >key

"$fm" -C repo serve --port 0 --api-key-file "$tmp/key" >serve.out 2>serve.err &
server=$!
url=
while [ -z "$url" ]; do
    kill -0 "$server" 2>/dev/null || give_up "the server ended at once"
    url=$(sed -n 's|.*\(http://[0-9.:]*\).*|\1|p' serve.out)
    sleep 0.05
done

get() { curl -s --max-time 600 -H 'Authorization: Bearer open sesame' "$@"; }
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
version=$("$fm" -C repo show atlas 2>/dev/null | grep -oE '[0-9a-f]{40}' | sed -n 1p)
[ -z "$version" ] || check "the answer names its commit" grep -q "$version" one.json

ask atlas ',"stream":true' >stream.txt
check "a stream ends as it should" grep -q '^data: \[DONE\]' stream.txt
joined=$(sed -n 's/^data: .*"content":"\(\([^"\\]\|\\.\)*\)".*/\1/p' stream.txt | tr -d '\n')
check "a stream joins to the whole" [ "$joined" = "$(content <one.json)" ]
embed() { # embed MODEL INPUT [MORE JSON]
    get "$url/v1/embeddings" -H 'Content-Type: application/json' -d "{\"model\":\"$1\",\"input\":$2${3:-}}"
}
embed enc '[[0,5,9,2],[0,9,5,2],[0,5,9,2]]' >vectors.json
embed enc '[0,5,9,2]' ',"encoding_format":"base64"' >base64.json
echo '{"ids":[0,5,9,2]}' | "$fm" -C repo embed enc >embed.out
check "vectors are those of embed, in order" python3 - <<'PY'
import base64, json, struct
data = json.load(open("vectors.json"))["data"]
want = json.load(open("embed.out"))["embedding"]
near = lambda a, b: len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < 5e-3
assert [d["index"] for d in data] == [0, 1, 2] and data[0]["embedding"] == data[2]["embedding"]
assert near(data[0]["embedding"], want) and not near(data[1]["embedding"], want)
raw = base64.b64decode(json.load(open("base64.json"))["data"][0]["embedding"], validate=True)
assert near(struct.unpack("<%df" % len(want), raw), want)
PY
check "inputs are counted" grep -q '"usage":{"prompt_tokens":12,"total_tokens":12}' vectors.json
check "no input is named" grep -q '"param":"input"' <(embed enc '[]')
check "too long an input is named" grep -q 'at most 62' <(embed enc "[$(seq -s, 1 40),$(seq -s, 1 40)]")
check "dimensions are refused" grep -q '"param":"dimensions"' <(embed enc '[0,5]' ',"dimensions":8')
check "a decoder embeds beside chat" grep -q '"object":"embedding"' <(embed atlas '"What is the capital?"')
get "$url/metrics" >metrics.txt
check "answers are counted" grep -q '^fmstore_requests_total{code="200"} [1-9]' metrics.txt
check "versions are resident once" grep -q '^fmstore_models_resident 2$' metrics.txt

# A long answer with all of its alternatives takes little memory: its text is written as it leaves.
peak() { sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$server/status"; }
before=$(peak)
get "$url/v1/completions" -o long.json -d '{"model":"atlas","prompt":"x","n":128,"max_tokens":120,
    "ignore_eos":true,"logprobs":20}'
check "the answer is long" [ "$(stat -c %s long.json)" -gt 6000000 ]
check "it takes little memory" [ $(($(peak) - before)) -lt 40000 ]

# One prompt is kept once, however many answers it gets.
python3 -c 'print("{\"model\":\"atlas\",\"n\":128,\"prompt\":[" + "5," * 500000 + "5]}")' >ids.json
before=$(peak)
check "too long a prompt is 400" [ "$(status "$url/v1/completions" -d @ids.json)" = 400 ]
check "it is not copied for each answer" [ $(($(peak) - before)) -lt 120000 ]

kill -INT "$server"
wait "$server"
code=$?
server=
check "Ctrl-C ends it with 0, not $code" [ "$code" = 0 ]
check "nothing was printed to stderr" [ ! -s serve.err ]
# start ARGUMENT...: another server, of $ranks processes where that is set; its address in $url once it listens, "" where it ended.
start() {
    url=
    : >serve.out
    "$fm" ${ranks:+--ranks "$ranks"} -C repo serve --port 0 "$@" >serve.out 2>serve.err &
    server=$!
    while [ -z "$url" ] && kill -0 "$server" 2>/dev/null; do
        url=$(sed -n 's|.*\(http://[^ ]*\).*|\1|p' serve.out)
        sleep 0.05
    done
}
stop() {
    kill -INT "$server"
    wait "$server"
    server=
}

printf ' \t \n' >blank
start --api-key-file "$tmp/blank"
check "a key of blanks is refused" grep -q 'holds no key' serve.err
[ -z "$url" ] || stop
server=

start --host 0.0.0.0
check "a server that anybody reaches says so" grep -q 'api-key-file' serve.err
mv repo away
check "a repository that is away is 503" [ "$(status "${url/0.0.0.0/127.0.0.1}/v1/completions" -d '{"model":"atlas","prompt":"x"}')" = 503 ]
mv away repo
check "and is read when it is back" [ "$(status "${url/0.0.0.0/127.0.0.1}/v1/completions" -d '{"model":"atlas","prompt":"x","max_tokens":1}')" = 200 ]
check "an unknown name stays 404" [ "$(status "${url/0.0.0.0/127.0.0.1}/v1/completions" -d '{"model":"nobody","prompt":"x"}')" = 404 ]
stop

if grep -q "^0*1 " /proc/net/if_inet6 2>/dev/null; then
    start --host ::1
    check "an IPv6 address has brackets" grep -q 'http://\[::1\]:[0-9]' serve.out
    check "and is one that can be asked" [ "$(status -g "$url/health")" = 200 ]
    check "loopback says nothing more" [ ! -s serve.err ]
    stop
fi
# Limits: the options and the config's keys, and errors that name them.
mkdir wide
cp "$base"/* wide/
sed -i 's/"max_position_embeddings": 256/"max_position_embeddings": 4096/' wide/config.json
"$fm" -C repo import "$tmp/wide" --as wide >/dev/null || exit 1
words() { # words N: a prompt of N ids
    python3 -c "print('{\"model\":\"wide\",\"max_tokens\":2,\"prompt\":[' + '5,' * $(($1 - 1)) + '5]}')"
}
text() { get "$url/v1/completions" -d "$1"; }
holds='the KV cache (serve --kv-memory, config compute.kvMemory) holds at most 319'
start --mode exact --kv-memory 1 --max-tokens 7 --max-queue 0 --max-running 1
check "a short text has room" grep -q '"choices"' <(text "$(words 300)")
check "a long one names the setting" grep -qF "$holds" <(text "$(words 400)")
check "its vector too" grep -qF "${holds/319/320}" <(get "$url/v1/embeddings" -d "{\"model\":\"wide\",\"input\":[$(seq -s, 1 400)]}")
check "the cap of answers" grep -q '"param":"max_tokens"' <(text '{"model":"wide","prompt":"x","max_tokens":8}')
check "no place to wait" grep -qF 'serve --max-queue' <(text '{"model":"wide","prompt":"x","max_tokens":2,"n":2}')
stop
printf '[compute]\n\tkvMemory = 2\n[serve]\n\tmaxTokens = 9\n\tmaxQueue = 1\n\tmaxModels = 1\n' >>repo/.fmstore/config
start --mode exact --max-running 1
check "config's memory is more" grep -q '"choices"' <(text "$(words 400)")
check "and ends too" grep -qF 'holds at most 671' <(text "$(words 700)")
check "config's cap" grep -q '"param":"max_tokens"' <(text '{"model":"wide","prompt":"x","max_tokens":10}')
check "config's queue: one waits" grep -q '"choices"' <(text '{"model":"wide","prompt":"x","max_tokens":9,"n":2}')
check "two do not" grep -qF 'serve --max-queue' <(text '{"model":"wide","prompt":"x","max_tokens":2,"n":3}')
check "another version is answered" grep -q '"choices"' <(text '{"model":"atlas","prompt":"x","max_tokens":2}')
get "$url/metrics" >metrics.txt
check "config's models: one at a time" grep -q '^fmstore_models_resident 1$' metrics.txt
stop
start --kv-memory 8 --max-models 2 --max-tokens 10
check "options come before config" grep -q '"choices"' <(text "$(words 700)")
text '{"model":"atlas","prompt":"x","max_tokens":10}' >ten.json
check "for each of them" grep -q '"choices"' ten.json
get "$url/metrics" >metrics.txt
check "two versions" grep -q '^fmstore_models_resident 2$' metrics.txt
stop
ranks=2
start --mode exact --kv-memory 1
check "ranks agree on one budget" grep -qF "$holds" <(text "$(words 400)")
[ -z "$url" ] || stop
server= ranks=
"$fm" -C repo serve --max-models 0 >serve.out 2>serve.err
check "no number of models" [ $? = 129 ]
check "is refused by name" grep -qF -- '--max-models wants 1 to 65536' serve.err
sed -i 's/maxTokens = 9/maxTokens = many/' repo/.fmstore/config
"$fm" -C repo serve --port 0 >serve.out 2>serve.err
check "a bad key is named" grep -qF "config serve.maxTokens is 'many', not a number of tokens" serve.err
sed -i 's/kvMemory = 2/kvMemory = 0/' repo/.fmstore/config
"$fm" -C repo run wide -p x >serve.out 2>serve.err
check "in other commands too" grep -qF "config compute.kvMemory is '0', not a number of MiB" serve.err
exit $failed
