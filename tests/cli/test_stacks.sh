#!/bin/bash
# Encoder-decoders from the prompt's text: run, score and serve give what transformers gives for the same tokenizer
# (generate with do_sample false, 12 new tokens; log-softmax of the logits with labels).
. "$(dirname "$0")/lib.sh"
need_python
command -v curl >/dev/null || { echo "skip: no curl"; exit 77; }
cd "$tmp"
arch=$src/tests/model/golden/arch
server=
given() { # given CODE COMMAND...: with the file ask for its input
    local code=$1 got=0
    shift
    "$fm" "$@" <ask >"$tmp/out" 2>"$tmp/err" || got=$?
    [ "$got" = "$code" ] || die "exit code $got instead of $code: fmstore $*: $(cat "$tmp/err")"
}
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$tmp"' EXIT

want 0 init repo
cd repo
want 0 import "$arch/t5-gated" --as t5
cp -r "$arch/t5-gated-encoder" ../alone && cp "$arch/t5-gated/tokenizer.json" ../alone/
want 0 import ../alone --as enc
want 0 import "$arch/bart" --as bart

say "run answers a prompt, each line of the input by itself"
want 0 run t5 -p "the cat in the sun" -n 12 --mode exact
[ "$(cat "$tmp/out")" = "c c the ofkp c the ofkp a" ] || die "answer: $(cat "$tmp/out")"
printf 'red dog\na big cat\n' >lines
"$fm" run t5 -n 12 --mode exact <lines >"$tmp/out" || die "run: $?"
[ "$(cat "$tmp/out")" = "f c c c c c c c c c c c
c cu cu cu cu chh" ] || die "lines: $(cat "$tmp/out")"
want 0 run t5 -p "red dog" -n 12 --mode fast
want 0 run bart -p "sun" -n 10 --mode exact # behind the token that generation_config forces
[ "$(cat "$tmp/out")" = "b dogsssssyyy" ] || die "answer: $(cat "$tmp/out")"
refused 128 "t5 is an encoder" run enc -p "red dog"

say "score gives the probabilities of an answer to a prompt"
echo '{"prompt":"the cat in the sun","text":"red dog"}
{"prompt_ids":[45,44,2],"ids":[45,44,2]}' >ask
given 0 score t5
python3 - "$tmp/out" <<'END' || die "score: $(cat "$tmp/out")"
import json, sys
want = [[-5.64517, -4.7289, -11.07705], [-6.63613, -8.63873, -11.83288]]
rows = [json.loads(line) for line in open(sys.argv[1])]
assert [r["ids"][-3:] for r in rows] == [[45, 44, 2]] * 2
for r, w in zip(rows, want):
    n = len(r["logprobs"]) - 3
    assert r["logprobs"][:n] == [None] * n and n in (6, 3)
    assert all(abs(a - b) < 2e-5 for a, b in zip(r["logprobs"][n:], w))
END
echo '{"text":"red dog"}' >ask
given 128 score t5
grep -q 'want {"prompt": ...}' "$tmp/err" || die "score: $(cat "$tmp/err")"

say "embed gives the vectors of the encoder, in the whole model and alone"
given 0 embed t5
cp "$tmp/out" whole
echo '{"ids":[45,44,2]}' >ask
given 0 embed t5
cmp "$tmp/out" whole || die "a text and its ids have other vectors"
given 0 embed enc
cmp "$tmp/out" whole || die "the encoder alone gives other vectors"

say "serve answers completions, several at a time"
"$fm" serve --port 0 --mode exact >serve.out 2>serve.err &
server=$!
url=
while [ -z "$url" ]; do
    kill -0 "$server" 2>/dev/null || die "the server ended: $(cat serve.err)"
    url=$(sed -n 's|.*\(http://[0-9.:]*\).*|\1|p' serve.out)
    sleep 0.05
done
curl -s --max-time 120 "$url/v1/completions" -o got.json -H 'Content-Type: application/json' -d \
    '{"model":"t5","prompt":["the cat in the sun","red dog","sun","a big cat"],"max_tokens":12,"temperature":0}'
python3 - got.json <<'END' || die "serve: $(cat got.json)"
import json, sys
got = json.load(open(sys.argv[1]))
want = ["c c the ofkp c the ofkp a", "f c c c c c c c c c c c", "h c d of of of of of e d e d", "c cu cu cu cu chh"]
assert [c["text"] for c in sorted(got["choices"], key=lambda c: c["index"])] == want
assert got["usage"]["prompt_tokens"] == 6 + 3 + 2 + 6 and got["usage"]["completion_tokens"] == 48
END
kill "$server" && wait "$server"
server=

say "suites generate, and choose an answer to a prompt"
cat >tiny.yaml <<'END'
suite: tiny
cases:
  - {name: says, prompt: red dog, generate: {max-tokens: 12}, expect: {contains: c c c c}}
  - {name: likely, prompt: the cat in the sun, choices: [red dog, c c the, cat the dog], answer: c c the}
  - {name: unlikely, prompt: the cat in the sun, choices: [red dog, c c the, cat the dog], answer: cat the dog}
END
want 0 suite add t5 tiny.yaml
want 1 test t5 --json -v
python3 - "$tmp/out" <<'END' || die "test: $(cat "$tmp/out")"
import sys
text = open(sys.argv[1]).read()
for p in ("8.00098", "-33.6008"): assert p in text, p # of -10.37407, -2.37309 and -35.97397
END

say "what is not computed is refused by name"
echo '{"text":"the red dog in the sun"}' >data.jsonl
refused 128 "t5: training of an encoder and a decoder" derive t5 --as kid --method lora --data data.jsonl --set steps=1 --no-gate -m x
refused 128 "'t5' cannot be written as GGUF" export t5 x.gguf
