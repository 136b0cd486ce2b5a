#!/usr/bin/env python3
"""The real `openai` client against a running server: pip install openai, then

    fmstore serve --port 8080 &
    python3 tests/peer/openai_client.py http://127.0.0.1:8080/v1 [KEY]

Asks every listed model, whole and streamed, alone and together; exits 1 at the first surprise."""
import concurrent.futures
import sys

import openai

if len(sys.argv) < 2:
    sys.exit(__doc__)
key = sys.argv[2] if len(sys.argv) > 2 else "none"
client = openai.OpenAI(base_url=sys.argv[1], api_key=key, max_retries=0)
checks = 0


def check(fact, what):
    global checks
    checks += 1
    if not fact:
        sys.exit(f"FAILED: {what}")


def refused(status, param, call):
    try:
        call()
    except openai.APIStatusError as e:
        check(e.status_code == status, f"wanted {status}, got {e.status_code}: {e}")
        check(e.param == param, f"wanted param {param}, got {e.param}: {e}")
        check(e.request_id, "an error carries a request id")
        return
    check(False, f"nothing was refused where {status} was due")


models = [m.id for m in client.models.list()]
check(models, "the server lists models")
print("models:", ", ".join(models))
say = [{"role": "user", "content": "What is the capital of France?"}]


def chat(model, **more):
    return client.chat.completions.create(model=model, messages=say, max_tokens=24, **more)


greedy = {}
for name in models:
    check(client.models.retrieve(name).id == name, "retrieve gives the model")
    whole = chat(name, temperature=0)
    greedy[name] = whole.choices[0].message.content
    print(f"{name}: {greedy[name]!r} ({whole.choices[0].finish_reason})")
    check(whole.choices[0].finish_reason in ("stop", "length"), "finish_reason")
    check(whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens,
          "usage adds up")
    check(whole.system_fingerprint, "the answer names its version")
    check(whole._request_id, "the answer has a request id")

    stream = chat(name, temperature=0, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check(text == greedy[name], f"{name}: streamed {text!r}")
    check(chunks[0].choices[0].delta.role == "assistant", "the first chunk names the role")
    check(chunks[-1].usage == whole.usage, "the last chunk has the usage")
    check([c.choices[0].finish_reason for c in chunks if c.choices][-1]
          == whole.choices[0].finish_reason, "finish_reason of the stream")

    drawn = [chat(name, temperature=1, top_p=0.9, seed=5).choices[0].message.content
             for _ in range(2)]
    check(drawn[0] == drawn[1], "a seed repeats")

    lp = chat(name, temperature=0, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    check(len(lp) == whole.usage.completion_tokens, "one logprob per token")
    check(all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in lp), "logprobs and the best three")

    plain = client.completions.create(model=name, prompt=["The sun", "Once upon"], max_tokens=8,
                                      temperature=0, logprobs=2)
    check(len(plain.choices) == 2, "two prompts, two choices")
    check(len(plain.choices[0].logprobs.tokens) <= 8, "completion logprobs")
    one = client.completions.create(model=name, prompt="The sun", max_tokens=8, temperature=0)
    check(one.choices[0].text == plain.choices[0].text, "a prompt alone or beside another")
    stopped = client.completions.create(model=name, prompt="The sun", max_tokens=8, temperature=0,
                                        stop=[one.choices[0].text[3:5]])
    check(stopped.choices[0].text == one.choices[0].text[:one.choices[0].text.index(
        one.choices[0].text[3:5])], "stop strings cut before themselves")

with concurrent.futures.ThreadPoolExecutor(12) as pool:
    asked = [(name, pool.submit(chat, name, temperature=0)) for name in models * 4]
    for name, answer in asked:
        check(answer.result().choices[0].message.content == greedy[name], f"{name} in a crowd")

refused(404, "model", lambda: chat("no-such-model"))
refused(404, "model", lambda: client.models.retrieve("no-such-model"))
refused(400, "temperature", lambda: chat(models[0], temperature=9))
refused(400, "n", lambda: chat(models[0], n=2))
refused(400, "tools", lambda: chat(models[0], tools=[
    {"type": "function", "function": {"name": "f", "parameters": {}}}]))
refused(400, "response_format", lambda: chat(models[0], response_format={"type": "json_object"}))
refused(400, "echo", lambda: client.completions.create(model=models[0], prompt="a", echo=True))
if key != "none":
    wrong = openai.OpenAI(base_url=sys.argv[1], api_key=key + "x", max_retries=0)
    refused(401, None, lambda: wrong.models.list())

long = client.completions.create(model=models[0], prompt="a", max_tokens=200, stream=True,
                                 extra_body={"ignore_eos": True})
next(iter(long))
long.close()
print(f"{checks} checks passed with openai {openai.__version__}")
