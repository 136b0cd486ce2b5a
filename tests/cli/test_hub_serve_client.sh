#!/bin/bash
# ctest: cost=60
# Hugging Face's own clients against fmstore serve --hub: huggingface_hub's snapshots are what export writes, a
# second revision costs what changed, transformers and PEFT compute what they compute of exported folders. Skipped
# without huggingface_hub: python3 with it, FM_HF_PYTHON, or pip and a network. The part of transformers and PEFT
# needs torch too, in FM_HF_PYTHON (pip install torch transformers peft): gigabytes, so it is not made here.
# FM_LLAMA_CLI: llama.cpp's llama-completion, for `-hf`; FM_SMOLLM2_GGUF: a GGUF for it.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_python
cd "$tmp"
need_hub_client
export HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TOKENIZERS_PARALLELISM=false
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
client() {
    "$python" "$src/tests/cli/hub_serve_client.py" "$@" 2>client.err || die "$1: $(tail -5 client.err)"
}

want 0 init r
want 0 -C r import "$atlas/base" --as atlas --no-gate
want 0 -C r tag v0 atlas
derive() { want 0 -C r derive "$1" --as "$2" --method "$3" --data "$atlas/pirate.jsonl" --set steps=3 --set lr=0.01 --no-gate; }
derive atlas pirate lora
derive atlas team/full full
want 0 -C r tag v1 team/full
derive team/full next full
want 0 -C r tag v2 next
id() { "$fm" -C r show "$1" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["id"])'; }
for rev in atlas team/full pirate; do
    want 0 -C r export "$rev" "$tmp/out.${rev//\//_}" --format hf
done
want 0 -C r export pirate "$tmp/out.peft" --format peft
"$fm" -C r serve --port 0 --hub >serve.out 2>serve.err </dev/null &
server=$!
trap 'kill -9 $server 2>/dev/null || true; rm -rf "$tmp"' EXIT
until_there $server serve.out 'a Hub at that URL'
HF_ENDPOINT=$(sed -n 's|^serving on \(http://[0-9.:]*\) .*|\1|p' serve.out)
export HF_ENDPOINT HF_HOME=$tmp/home

say "snapshots are what export writes"
client same fmstore/atlas "$atlas/base"
client same fmstore/team__full "$tmp/out.team_full"
client same fmstore/pirate-merged "$tmp/out.pirate"
client same "me/$(id atlas)" "$atlas/base"
python3 - out.peft/adapter_config.json "fmstore/$(id atlas)" <<'PY'
import json, sys
config = json.load(open(sys.argv[1]))
config["base_model_name_or_path"] = sys.argv[2]
open(sys.argv[1], "w").write(json.dumps(config, indent=2))
PY
client same fmstore/pirate "$tmp/out.peft"

say "what HfApi asks"
client api "$(id atlas)"

say "a second revision costs the files that changed"
client second fmstore/next

hf=$(dirname "$python")/hf
if [ -x "$hf" ]; then
    say "hf download"
    "$hf" download fmstore/atlas --local-dir hf.atlas >hf.out 2>&1 || die "$(tail -3 hf.out)"
    rm -rf hf.atlas/.cache
    diff -r hf.atlas "$atlas/base"
fi

if "$python" -c 'import torch, transformers, peft' 2>/dev/null; then
    say "transformers and PEFT"
    client models "$tmp/out.atlas" "$tmp/out.team_full" "$tmp/out.pirate" "$(id atlas)"
else
    say "left out: no torch, transformers and peft in $python"
fi

if [ -n "${FM_LLAMA_CLI:-}" ] && [ -e "${FM_SMOLLM2_GGUF:-}" ]; then
    say "llama.cpp -hf"
    cp "$FM_SMOLLM2_GGUF" small-Q4_1.gguf
    want 0 -C r import "$tmp/small-Q4_1.gguf" --as small --no-gate
    for name in fmstore/small-GGUF fmstore/small-GGUF:Q4_1; do
        rm -rf llama
        LLAMA_CACHE=$tmp/llama "$FM_LLAMA_CLI" -hf $name -p 'The sky is' -n 4 --temp 0 -no-cnv \
            >llama.out 2>llama.err </dev/null || die "$name: $(tail -5 llama.err)"
        cmp "$(find llama -name 'small-Q4_1.gguf')" small-Q4_1.gguf
        [ "$(wc -c <llama.out)" -gt 12 ] || die "no answer: $(cat llama.out)"
    done
else
    say "left out: llama.cpp (FM_LLAMA_CLI, FM_SMOLLM2_GGUF)"
fi
kill -INT $server
wait $server || die "the server ended with $?: $(cat serve.err)"
echo "all well"
