#!/bin/bash
# An Ollama Modelfile beside a GGUF: files, template in Go's syntax where it can be given, default system text, stop
# tokens, context. What Ollama's parser would not give back is left out, with a comment that says so.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
mkdir repo && cd repo && atlas_repo

say "the atlas: a row of turns, with and without a system message"
mkdir ../one
want 0 export atlas "../one/the atlas.gguf" --modelfile --dtype bf16
cat >../want <<'EOF'
# Written by fmstore of atlas
FROM "./the atlas.gguf"
TEMPLATE """{{ if .System }}<|system|>
{{ .System }}<|end|>
<|user|>
{{ else }}<|user|>
{{ end }}{{ range $i, $m := .Messages }}{{ if eq $m.Role "user" }}{{ $m.Content }}<|end|>
<|assistant|>
{{ else if eq $m.Role "assistant" }}{{ $m.Content }}{{ if gt (len (slice $.Messages $i)) 1 }}<|end|>
<|user|>
{{ end }}{{ end }}{{ end }}"""
PARAMETER stop "<|end|>"
PARAMETER num_ctx 256
EOF
diff ../want ../one/Modelfile || die "another Modelfile"
refused 128 "one/Modelfile: is there already" export atlas ../one/second.gguf --modelfile
[ ! -e ../one/second.gguf ] || die "a refused export left a file"

say "other templates: a default system text, none at all, the first token of the tokenizer, and what cannot be written"
with() { # NAME: the atlas with the template of standard input, and its Modelfile in ../$1
    cp -r "$atlas/base" "../$1-hf" && cat >"../$1-hf/chat_template.jinja"
    want 0 import "../$1-hf" --as "$1" --no-gate
    mkdir "../$1"
    want 0 export "$1" "../$1/x.gguf" --modelfile
}
has() { grep -qxF -- "$2" "../$1/Modelfile" || die "$1: no line '$2' in: $(cat "../$1/Modelfile")"; }
lacks() { ! grep -q -- "$2" "../$1/Modelfile" || die "$1: a line '$2' in: $(cat "../$1/Modelfile")"; }
turns='{% for m in messages %}<|im_start|>{{ m.role }}{{ "\n" + m.content }}<|im_end|>{{ "\n" }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ "\n" }}{% endif %}'
system() { printf '%s' "{% if messages[0].role != 'system' %}<|im_start|>system{{ \"\\n\" }}$1<|im_end|>{{ \"\\n\" }}{% endif %}$turns"; }
system 'You are "calm".' | with default
has default 'SYSTEM """You are "calm"."""'
has default 'TEMPLATE """{{ if .System }}<|im_start|>system'
system 'Three """ quotes.' | with quotes
has quotes "# No SYSTEM: the default's text holds what a Modelfile cannot"
has quotes "# No TEMPLATE: its text holds what a Modelfile cannot"
system 'A {brace}.' | with brace
has brace 'SYSTEM "A {brace}."'
has brace "# No TEMPLATE: its text holds what a Modelfile cannot"
system $'A zero width\xe2\x80\x8bspace.' | with hidden
lacks hidden '^SYSTEM'
lacks hidden '^TEMPLATE'
printf '%s' "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% else %}{{ raise_exception('no system') }}{% endif %}{% endfor %}" | with inst
has inst 'TEMPLATE """<|endoftext|>[INST] {{ range $i, $m := .Messages }}{{ if eq $m.Role "user" }}{{ $m.Content }}{{ if gt (len (slice $.Messages $i)) 1 }} [/INST] {{ else }} [/INST]{{ end }}{{ else if eq $m.Role "assistant" }}{{ $m.Content }}{{ if gt (len (slice $.Messages $i)) 1 }}<|end|>[INST] {{ end }}{{ end }}{{ end }}"""'
printf '%s' "{% for m in messages %}{{ loop.index }}: {{ m.content }} {% endfor %}" | with counted
has counted "# No TEMPLATE, so Ollama takes what it knows for the GGUF's own: it does not put the same text around each message"
printf '%s' "{{ messages[-1].content }}" | with last
has last "# No TEMPLATE, so Ollama takes what it knows for the GGUF's own: it changes or leaves out a message"
printf '%s' "{{ now() }}" | with broken
has broken "# No TEMPLATE, so Ollama takes what it knows for the GGUF's own: chat template: line 1: 'now' is undefined, so it cannot be called"
has broken 'PARAMETER stop "<|end|>"'

say "an adapter: FROM is the base's GGUF, ADAPTER the file; several are refused, and so are other formats"
derive() { want 0 derive "$1" --as "$2" --method lora --data "$atlas/pirate.jsonl" --set steps=2 --set r=2 --no-gate -m x; }
derive atlas kid
mkdir ../lora
want 0 export kid ../lora/kid.gguf --format gguf-lora --modelfile
has lora 'FROM ./base.gguf'
has lora 'ADAPTER ./kid.gguf'
derive kid grandkid
mkdir ../several
refused 128 "has 2 adapters, and a Modelfile names one" export grandkid ../several/x --format gguf-lora --modelfile
refused 128 "a Modelfile cannot name the file" export kid $'../several/a\nb.gguf' --modelfile
[ -z "$(ls -A ../several)" ] || die "a refused export left $(ls ../several)"
refused 129 "--modelfile wants --format gguf or gguf-lora" export kid ../hf --modelfile
