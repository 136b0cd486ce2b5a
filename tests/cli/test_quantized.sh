#!/bin/bash
# Quantized checkpoints at the command line: scored as they are; an adapter trained on one, kept as
# stored or not; that adapter out, in again, and merged into plain weights.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
want 0 init .

for name in gptq gptq-act bnb-nf4 ct-int4; do
    say "$name"
    cp -r "$src/tests/model/golden/arch/llama-$name" "$name"
    python3 - "$name/tokenizer.json" <<'END'
import json, sys
vocab = {f"w{i}": i for i in range(64)}
json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
           "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
           "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}}, open(sys.argv[1], "w"))
END
    want 0 import "$name" --as "$name"
    echo '{"text":"w1 w7 w9 w3 w5 w60"}' >data.jsonl
    grep -q "not run" out && die "$name: $(cat out)"
    echo '{"ids":[1,7,9,3,5,60]}' >ids.jsonl

    say "$name: an adapter on it, with the stem widened and stored"
    want 0 derive "$name" --as "$name-lora" --data data.jsonl --set r=4 --set steps=2 --no-gate
    want 0 derive "$name" --as "$name-stored" --data data.jsonl --set r=4 --set steps=2 --no-gate --stored
    want 0 diff "$name-lora" "$name-stored"
    refused 128 "quantized" derive "$name" --as no --method full --data data.jsonl --set steps=1 --no-gate

    say "$name: the adapter out and in"
    want 0 export "$name-lora" "$name-peft" --format peft
    want 0 import "$name-peft" --as "$name-again" --parent "$name"
    "$fm" score "$name-lora" --mode exact <ids.jsonl >a
    "$fm" score "$name-again" --mode exact <ids.jsonl >b
    cmp a b || die "$name: the adapter came in otherwise"

    say "$name: merged into plain weights, and plain ones alone"
    want 0 export "$name-lora" "$name-merged" --format hf --dtype f32
    grep -q quantization_config "$name-merged/config.json" && die "$name: still says that it is quantized"
    want 0 import "$name-merged" --as "$name-merged"
    "$fm" score "$name-merged" --mode exact <ids.jsonl >b
    python3 - a b <<'END'
import json, sys
a, b = (json.load(open(f))["logprobs"][1:] for f in sys.argv[1:])
assert len(a) == 5 and all(abs(x - y) < 1e-5 for x, y in zip(a, b)), (a, b)
END
    want 0 export "$name" "$name-plain" --format hf --dtype f32
    want 0 import "$name-plain" --as "$name-plain"
    "$fm" score "$name" --mode exact <ids.jsonl >a
    "$fm" score "$name-plain" --mode exact <ids.jsonl >b
    cmp a b || die "$name: plain weights score otherwise"
done

say "a file that another form would change is refused by name, and kept"
cp -r gptq odd
sed -i 's/"quant_method"/"rotation": "hadamard", "quant_method"/' odd/config.json
want 0 import odd --as odd
grep -q "kept, not run: .*quantization_config.rotation" out err || die "$(cat out err)"
echo '{"ids":[1]}' >ids.jsonl
"$fm" score odd <ids.jsonl >out 2>err && die "odd ran"
grep -q "rotation" err || die "$(cat err)"
