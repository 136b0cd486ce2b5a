#!/usr/bin/env python3
"""The TEMPLATE and SYSTEM of `export --modelfile` in Go's own text/template, beside jinja2.

Each chat template of a folder (llama.cpp's models/templates, say) is put into a copy of the atlas. Where
the Modelfile has a TEMPLATE, Go's prompt of several conversations must be jinja2's, but for a first bos.

    FMSTORE=build/cli/fmstore python3 tests/peer/modelfile_go.py FOLDER...     needs go and jinja2"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import jinja2
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parents[2]
ATLAS = ROOT / "examples" / "atlas" / "base"
PROGRAM = str(pathlib.Path(os.environ["FMSTORE"]).resolve())
SPECIAL = {"bos_token": "<|endoftext|>", "eos_token": "<|end|>", "pad_token": "<|endoftext|>"}
TALKS = ["u", "uau", "uauau", "su", "suau"]
SAID = {"s": "Be brief.", "u": 'Why "so"?\n\nTell me {{ it }}.', "a": "No <b>reason</b>."}
ROLES = {"s": "system", "u": "user", "a": "assistant"}

# The values that Ollama gives: the system texts joined, and all messages.
GO = """package main

import (
	"encoding/json"
	"os"
	"text/template"
)

type Message struct{ Role, Content string }

func main() {
	var in struct {
		Template string
		Messages []*Message
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		panic(err)
	}
	system := ""
	for _, m := range in.Messages {
		if m.Role == "system" {
			system = m.Content
		}
	}
	t := template.Must(template.New("").Option("missingkey=zero").Parse(in.Template))
	if err := t.Execute(os.Stdout, map[string]any{"System": system, "Messages": in.Messages}); err != nil {
		panic(err)
	}
}
"""


def raised(text):
    raise jinja2.TemplateError(text)


def by_jinja(source, messages):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = lambda x, **kw: json.dumps(x, ensure_ascii=False)
    env.globals["raise_exception"] = raised
    return env.from_string(source).render(messages=messages, add_generation_prompt=True, **SPECIAL)


def value(text, command):
    found = re.search(rf'^{command} ("""|")(.*?)\1$', text, re.M | re.S)
    return found and found.group(2)


def check(path, go, at):
    model = at / "model"
    if model.exists():
        shutil.rmtree(model)
    shutil.copytree(ATLAS, model)
    source = path.read_text(encoding="utf-8")
    (model / "chat_template.jinja").write_text(source, encoding="utf-8")
    out = at / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(at / "repo", ignore_errors=True)
    for args in (
        ["init", at / "repo"],
        ["-C", at / "repo", "import", model, "--as", "x", "--no-gate"],
        ["-C", at / "repo", "export", "x", out / "x.gguf", "--modelfile"],
    ):
        out.mkdir(exist_ok=True)
        done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{path.name}: {done.stderr}")
    text = (out / "Modelfile").read_text(encoding="utf-8")
    template, default = value(text, "TEMPLATE"), value(text, "SYSTEM")
    if template is None:
        why = re.search("^# No TEMPLATE.*", text, re.M)
        print(f"{path.name}: {why and why.group()}")
        return 0
    compared = 0
    for talk in TALKS:
        messages = [{"role": ROLES[r], "content": SAID[r]} for r in talk]
        try:
            want = by_jinja(source, messages)
        except jinja2.TemplateError:
            continue
        if talk[0] == "s" and SAID["s"] not in want:
            continue
        given = list(messages)
        if default and talk[0] != "s":
            given.insert(0, {"role": "system", "content": default})
        ask = {"Template": template, "Messages": given}
        got = subprocess.run([go], input=json.dumps(ask), capture_output=True, text=True, check=True).stdout
        assert got == want.removeprefix(SPECIAL["bos_token"]) or got == want, (path.name, talk, got, want)
        compared += 1
    print(f"{path.name}: {compared} conversations{', SYSTEM' if default else ''}")
    return 1


def main():
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder)
        (at / "main.go").write_text(GO)
        subprocess.run(["go", "build", "-o", at / "go", at / "main.go"], check=True, env=dict(os.environ, GOCACHE=str(at / "c")))
        files = sorted(p for d in sys.argv[1:] for p in pathlib.Path(d).glob("*.jinja"))
        done = sum(check(p, str(at / "go"), at) for p in files)
        print(f"{done} of {len(files)} templates have a TEMPLATE, the same in both")


main()
