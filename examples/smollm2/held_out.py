#!/usr/bin/env python3
"""Mean loss of a version on records that it was not trained on: nats a token of the answers, the prompts not counted.

    held_out.py REPO REV RECORDS.json FMSTORE [--threads N]      (Python's standard library alone)"""
import json
import subprocess
import sys

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def texts(record):
    """The prompt as SmolLM2's template writes it, and the whole conversation."""
    asked = record["instruction"] + ("\n" + record["input"] if record.get("input") else "")
    prompt = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
    return prompt, prompt + record["output"] + "<|im_end|>\n"


def main():
    repo, rev, path, *program = sys.argv[1:]
    with open(path, encoding="utf-8") as f:
        records = json.load(f)

    def ask(command, lines):
        out = subprocess.run(
            [*program, "-C", repo, command, rev],
            input="".join(json.dumps(x) + "\n" for x in lines),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        return [json.loads(x) for x in out.splitlines()]

    pairs = [texts(r) for r in records]
    prompts = [len(x["ids"]) for x in ask("tokenize", [{"text": p} for p, _ in pairs])]
    scored = ask("score", [{"text": t} for _, t in pairs])
    counted = [p for n, s in zip(prompts, scored, strict=True) for p in s["logprobs"][n:]]
    print(f"{rev}: {-sum(counted) / len(counted):.4f} nats a token over {len(counted)} tokens of {len(pairs)} answers")


if __name__ == "__main__":
    main()
