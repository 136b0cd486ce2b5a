"""Write tests/unit/infer/tokenizer_cases/<kind>.json: small vocabularies and what PyPI tokenizers
(and sentencepiece) make of texts with them, so that the C tests hold without Python.

    VENV/bin/python tests/peer/tok_golden.py tests/unit/infer/tokenizer_cases"""
import json
import os
import sys
import tempfile

import tok_kinds
import tok_text

PER_KIND = 40


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    texts = [t for t in tok_text.texts(99, 2000) if 0 < len(t) < 60][:PER_KIND]
    with tempfile.TemporaryDirectory() as tmp:
        for make in tok_kinds.small(tmp):
            kind = make()
            feed = kind.texts or texts
            ids = kind.encode(feed)
            back = kind.decode(ids) if kind.decode else [None] * len(ids)
            case = {"name": kind.name, "plain": "--plain" in kind.flags}
            case.update(tok_kinds.file_of(kind))
            case["cases"] = [list(x) for x in zip(feed, ids, back)]
            with open(os.path.join(out, kind.name + ".json"), "w") as f:
                json.dump(case, f, ensure_ascii=True, separators=(",", ":"))
                f.write("\n")


main()
