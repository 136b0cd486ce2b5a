#!/bin/bash
# A chat template that would run for ever: run and import say which limit it met, and a server
# goes on answering others and ends on SIGTERM while several of them are rendered.
set -u
fm=${FM_BIN:?FM_BIN names the program under test}
src=${FM_SOURCE_DIR:?FM_SOURCE_DIR is the checkout}
base=$src/examples/atlas/base
[ -f "$base/model.safetensors" ] || { echo "skip: no atlas model"; exit 77; }
command -v curl >/dev/null || { echo "skip: no curl"; exit 77; }

tmp=$(mktemp -d) || exit 1
server=
cleanup() {
    [ -n "$server" ] && kill -KILL "$server" 2>/dev/null
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

cp -r "$base" evil && chmod -R u+w evil || exit 1
echo '{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y]' \
    '%}{% endfor %}{{ ns.x == ns.y }}' >evil/chat_template.jinja
"$fm" init repo >/dev/null || exit 1
"$fm" -C repo import "$base" --as atlas --no-gate >/dev/null || exit 1
"$fm" -C repo import "$tmp/evil" --as evil --no-gate >/dev/null || exit 1

limit='chat template: line 1: the template does too much: more than 1000 million units of work'
"$fm" -C repo run evil -p hi >run.out 2>run.err
check "run fails" [ $? = 128 ]
check "run names the limit" grep -q "$limit" run.err
cat >one.yaml <<'EOF'
suite: one
templates:
  - name: "case-{id}"
    chat: "Hello"
    expect: {"contains": "x"}
    slots:
      - {"id": "a"}
EOF
"$fm" -C repo import "$tmp/evil" --as gated --suite "$tmp/one.yaml" >import.out 2>&1
check "an import with a suite names the limit" grep -q "ERROR case-a: $limit" import.out

"$fm" -C repo serve --port 0 >serve.out 2>serve.err &
server=$!
url=
while [ -z "$url" ]; do
    kill -0 "$server" 2>/dev/null || { echo "the server ended at once"; cat serve.err; exit 1; }
    url=$(sed -n 's|.*\(http://[0-9.:]*\).*|\1|p' serve.out)
    sleep 0.05
done
ask() { # ask MODEL
    curl -s --max-time 600 "$url/v1/chat/completions" -H 'Content-Type: application/json' \
        -d "{\"model\":\"$1\",\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"
}
ask evil >first.json
check "the request is told the limit" grep -q "$limit" first.json
clients=()
for i in 1 2 3 4 5 6 7 8; do
    ask evil >"evil$i.json" &
    clients+=($!)
done
check "health is answered" grep -q ok <(curl -s --max-time 600 "$url/health")
check "another model answers" grep -q '"finish_reason":"\(stop\|length\)"' <(ask atlas)
kill -TERM "$server"
wait "$server"
code=$?
server=
check "SIGTERM ends it with 0, not $code" [ "$code" = 0 ]
check "nothing was printed to stderr" [ ! -s serve.err ]
wait "${clients[@]}"
exit $failed
