#!/usr/bin/env python3
"""models_page.py [--write] [ROOT] - docs/models.md: which test covers which family of models, and how.

Rows are the families of infer/arch, columns what the tests below do with their recorded references. Every cell is
read from the tests: from the names that they give to the functions which compare. --write writes the page. Without
it the page has to be what would be written, every family has to have its row, and a name that is taken out of a
test has to be missed. A new family needs nothing here; a new test program needs a line in SOURCES.
"""
import functools
import json
import os
import pathlib
import re
import struct
import sys

PAGE = "docs/models.md"
COLUMNS = {"hf": "Hugging Face folder", "in": "GGUF in", "out": "GGUF out", "train": "train", "adapters": "adapters",
           "card": "card (emulated)"}

# Test programs: the column, the file, the functions whose arguments name references, what it holds.
SOURCES = [
    ("hf", "tests/model/infer_golden.c", "check", "logits or last states of transformers, in modes exact and fast"),
    ("hf", "tests/model/infer_stacks.c", "check|folder_open", "logits, states and answers of transformers' encoder-decoders"),
    ("hf", "tests/model/infer_arch.c", "check_arch|ik_ref_open", "logits or last states of transformers"),
    ("hf", "tests/model/infer_classify.c", "golden_open", "outputs of transformers' heads that classify or rank"),
    ("train", "tests/model/train_golden.c", "check_family|check_encoder", "gradients of transformers, of all tensors"),
    ("train", "tests/model/train_arch.c", "check_gradients", "gradients of transformers, of all tensors"),
    ("train", "tests/model/train_objectives.c", "golden_open|case_of", "gradients of torch for each objective"),
    ("adapters", "tests/model/infer_adapter.c", "snprintf|ik_source", "PEFT's logits of LoRA, DoRA, IA3, prefixes, prompts"),
    ("adapters", "tests/model/peft_kinds.c", "check_case", "PEFT's logits and merged weights of its other kinds"),
    ("adapters", "tests/model/infer_golden.c", "check_adapter", "PEFT's logits of a LoRA"),
    ("adapters", "tests/model/infer_stacks.c", "check_adapter", "PEFT's logits of LoRA, DoRA and IA3"),
    ("adapters", "tests/model/train_peft.c", "peft_open", "PEFT's gradients and steps, and its files"),
    ("adapters", "tests/model/train_methods.c", "fm_asprintf|same_as_plain|tiny_open", "methods and their settings"),
    ("adapters", "tests/model/lora_families.c", "check_lora|check_lora_of_classes", "a LoRA runs as it trained: the same losses"),
    ("out", "tests/model/verify.c", "tk_source", "`export --verify` passes sound files and fails spoiled ones"),
    ("card", "tests/model/card.c", "folder", "logits, answers and training with the CPU's bits"),
]
# Scripts: the column, the file, where its references lie, what it holds, and the lines that do it.
SCRIPTS = [
    ("in", "tests/cli/test_gguf.sh", "gguf", "files of llama.cpp's converter score as transformers does, and come back",
     [r'golden=\$src/tests/model/golden/gguf\n', r'for f in "\$golden"/\*\.gguf; do\n.*\n +want 0 import "\$f" --as "g/\$name"',
      r'"\$golden/logprobs\.jsonl"', r'assert error < ']),
    ("out", "tests/cli/test_gguf.sh", "gguf", "files are written as llama.cpp's converter writes them",
     [r'golden=\$src/tests/model/golden/gguf\n', r'want 0 export "c/\$name" "\.\./\$name-c\.gguf"',
      r'same "\$f" "\.\./\$name-c\.gguf" tensors']),
    ("adapters", "tests/cli/test_gguf_lora.sh", "gguf_lora", "LoRA as GGUF, as llama.cpp's converter writes it",
     [r'for f in "\$golden"/gguf_lora/\*\.gguf; do', r'want 0 export "p/\$name" \.\./lora\.gguf --format gguf-lora']),
]
UNWRITTEN = ("out", "tests/cli/test_families.sh", r"refused 128 \"field 'model_type': '\$type' cannot be written as GGUF\"")

GOLDEN = "tests/model/golden"
KEPT = [ # what is stored and not run: a sentence, and the test and the words in it that show it
    ("a folder whose `model_type` has no row above, or with a setting that is not known and may change the result",
     "tests/model/infer_config.c", "unknown_fields_are_refused_by_name"),
    ("a GGUF of another architecture, with unknown types or fields, big-endian, or without tensors",
     "tests/cli/test_gguf.sh", "'outlandish' does not run"),
    ("a PEFT adapter of another kind", "tests/cli/test_roundtrip.sh", "kept, not run: .*adapter kind poly"),
    ("a quantized checkpoint of another form", "tests/cli/test_quantized.sh", "kept, not run: .*quantization_config.rotation"),
]


class Tree:
    """The files of the repository, some of them changed."""

    def __init__(self, root, changed=None):
        self.root, self.changed = pathlib.Path(root), changed or {}

    def text(self, path):
        return self.changed[path] if path in self.changed else read(self.root / path)

    def files(self, pattern):
        return found_files(self.root, pattern)


@functools.cache
def read(path):
    return path.read_text(encoding="utf-8")


@functools.cache
def found_files(root, pattern):
    return sorted(p.relative_to(root).as_posix() for p in root.glob(pattern))


# ---- families ----

@functools.cache
def bare(text):
    """C without comments."""
    return re.sub(r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')|/\*.*?\*/|//[^\n]*""", lambda m: m[1] or " ", text, flags=re.S)


def families_of(tree):
    """Each model_type with the name of its row."""
    found = {}
    for path in tree.files("infer/arch/*.c"):
        for name, also in re.findall(r'\{\.name = "([\w-]+)"(?:,\s*\.also = "([\w-]+)")?', bare(tree.text(path))):
            found[name] = found[also or name] = name
    return found


def gguf_of(tree):
    """Pairs (GGUF's architecture, model_type)."""
    return set(re.findall(r'\.prefix = "([^"]+)",\s*\.model_type = "([^"]+)"', bare(tree.text("store/import/gguf_arch.c"))))


read_json = functools.cache(json.loads)


def config_family(tree, families, path):
    config = read_json(tree.text(path))
    for of in (config, config.get("text_config") or {}):
        if of.get("model_type") in families:
            return families[of["model_type"]]
    if path.startswith(GOLDEN + "/arch/"):
        raise SystemExit(f"{path}: its model_type {config.get('model_type')} has no row in infer/arch")
    return None


def spelt_family(families, name):
    """Of reference data outside of the repository, whose folders are named by their families: llama3 is llama's."""
    for guess in (name, name + "_text", name.rstrip("0123456789")):
        if guess in families:
            return families[guess]
    return None


def references_of(tree, families):
    """Recorded references in the repository: name and family."""
    found = {}
    for path in tree.files(GOLDEN + "/*/*/config.json") + tree.files("examples/*/base/config.json"):
        folder, of = os.path.dirname(path), config_family(tree, families, path)
        if of:
            found[folder] = found[folder.split("/")[-1]] = of
    for path in tree.files(GOLDEN + "/*/*/case.json"):
        base = read_json(tree.text(path)).get("base")
        if base:
            found.setdefault(path.split("/")[-2], found.get(base) or spelt_family(families, base))
    found.pop("base", None) # of examples/*/base, which tests name by their path
    return found


def inside(name):
    """The name of a reference in a path of it."""
    found = re.match(r"(?:tests/model/golden/)?arch/([^/]+)", name)
    return found[1] if found else name


class World:
    def __init__(self, tree):
        self.tree, self.families = tree, families_of(tree)
        self.references = references_of(tree, self.families)

    def family(self, name):
        name = inside(name)
        return self.references.get(name) or (None if "/" in name else spelt_family(self.families, name))


# ---- what a test program names ----

def arrays_of(text):
    """Arrays of strings, or of structs with strings in them."""
    return {name: re.findall(r'"((?:\\.|[^"\\])*)"', body) for name, body in re.findall(r"\b(\w+)\[\] = \{(.*?)\};", text, re.S)}


def arguments(text, at):
    """The arguments of the call whose parenthesis opens at `at`, as text."""
    depth, begin, out = 0, at + 1, []
    for m in re.compile(r'"(?:\\.|[^"\\])*"|[(){}\[\],]').finditer(text, at):
        depth += m[0] in "([{"
        if m[0] == "," and depth == 1 or m[0] in ")]}" and depth == 1:
            out.append(text[begin:m.start()].strip())
            begin = m.end()
        depth -= m[0] in ")]}"
        if depth == 0:
            return out
    return out


class Program:
    """A test program: its functions and tests, those that run, and what they name."""

    def __init__(self, text):
        self.head = text.split("\n", 1)[0]
        text = bare(text)
        found = re.findall(r"^(?:TEST\((\w+)\)|[a-z][\w *]*?\b(\w+)\([^;{}]*\))\n\{\n(.*?)^\}", text, re.M | re.S)
        self.body = {test or name: body for test, name, body in found}
        self.tests = {test for test, _, _ in found if test}
        self.global_arrays = arrays_of(re.sub(r"^\{\n.*?^\}", "", text, flags=re.M | re.S))
        self.runs, more = set(), ["main"]
        while more:
            name = more.pop()
            if name in self.body and name not in self.runs:
                self.runs.add(name)
                more += re.findall(r"\w+", self.body[name])

    @functools.cache
    def said(self, function, callee):
        """The texts that a function gives to one of these functions, by themselves or by an array."""
        body, texts = self.body[function], set()
        arrays = {**self.global_arrays, **arrays_of(body)}
        for call in re.finditer(rf"\b(?:{callee})\(", body):
            for argument in arguments(body, call.end() - 1):
                at = re.fullmatch(r"&?(\w+)\[[^\]]+\](?:\.\w+)?", argument)
                texts.update(arrays.get(at[1], []) if at else re.findall(r'"((?:\\.|[^"\\])*)"', argument))
        return texts

    def named(self, world, function, callee):
        """The references among them."""
        return {inside(text) for text in self.said(function, callee) if world.family(text)}

    def covered(self, world, callee):
        return set().union(*(self.named(world, f, callee) for f in self.runs))

    def refused(self, world):
        """References that do not train, which a test checks."""
        return set().union(*(self.named(world, f, "fm_asprintf|golden") for f in self.runs & self.tests
                             if re.search(r"tk_fails\(\s*fm_train_gradients\(", self.body[f])))


program_of = functools.cache(Program)


# ---- cards ----

@functools.cache
def card_words(root):
    return {word for path in found_files(root, "infer/cuda/**/*.cu") for word in re.findall(r"\w+", bare(read(root / path)))}


def on_card(world, program, callee):
    """The references of these calls that a card computes, and those that it is seen to refuse."""
    computed, refused, never = set(), set(), set()
    asks = {}
    for f in program.runs:
        features = re.findall(r"\bFM_ATTENDS_\w+|(?<=e\)->)(?!attends|name)\w+", program.body[f])
        if not set(features) <= card_words(world.tree.root):
            asks[f] = "tk_fails(" in program.body[f]
    for f, tells in asks.items(): # the names in the function that asks are those that it asks for
        body = program.body[f]
        prefixes = re.findall(r'str(?:n?)cmp\(\w+, "([^"]+)"', body)
        said = {name for names in arrays_of(body).values() for name in names}
        said |= {name for name in world.references for p in prefixes if name.startswith(p)}
        if said and f not in program.tests:
            never |= said
            refused |= said if tells else set()
    for f in program.runs:
        names = program.named(world, f, callee)
        without = [g for g in asks if g == f or re.search(rf"\b{g}\(", program.body[f]) and not arrays_of(program.body[g])
                   and "cmp(" not in program.body[g]]
        if without:
            refused |= names if any(asks[g] for g in without) else set()
        else:
            computed |= names - never
    return computed, refused - computed


# ---- the page ----

@functools.cache
def gguf_architecture(path):
    data = path.read_bytes()
    at = data.index(b"general.architecture") + len(b"general.architecture")
    kind, n = struct.unpack_from("<IQ", data, at)
    assert kind == 8
    return data[at + 12:at + 12 + n].decode()


def script_names(world, folder):
    """Files of golden/FOLDER: name, family, architecture. What they were made from is recorded beside them."""
    configs = {}
    for line in world.tree.text(GOLDEN + "/gguf/logprobs.jsonl").splitlines():
        line = read_json(line)
        configs[line["name"]] = line["config"]["model_type"]
    for path in world.tree.files(f"{GOLDEN}/{folder}/*.gguf"):
        name = path.split("/")[-1].removesuffix(".gguf")
        if name in configs:
            yield name, world.families[configs[name]], gguf_architecture(world.tree.root / path)


class Cells:
    def __init__(self):
        self.tests = {}  # (family, column): {test: set of architectures}
        self.refuses = {}
        self.names = {}  # (test file, what it holds): names

    def add(self, family, column, path, word=None):
        self.tests.setdefault((family, column), {}).setdefault(path, set()).update({word} if word else set())

    def refuse(self, family, column, path):
        self.refuses.setdefault((family, column), set()).add(path)

    def text(self, family, column):
        has = self.tests.get((family, column), {})
        if has:
            words = "".join(f"`{w}` " for w in sorted(set().union(*has.values())))
            return words + ", ".join(link(path) for path in has)
        refused = self.refuses.get((family, column), ())
        return "refused by name: " + ", ".join(map(link, sorted(refused))) if refused else ""


def link(path):
    return f"[{stem(path)}]"


def stem(path):
    return os.path.splitext(os.path.basename(path))[0]


def gather(world):
    cells = Cells()
    for column, path, callee, holds in SOURCES:
        program = program_of(world.tree.text(path))
        names = program.covered(world, callee)
        cells.names[path, holds] = names
        for name in sorted(names):
            cells.add(world.family(name), column, path)
        for name in program.refused(world):
            cells.refuse(world.family(name), "train", path)
        if re.search(r"ctest:.*\bcard\b(?!=)", program.head):
            computed, refused = on_card(world, program, callee)
            for name in computed:
                cells.add(world.family(name), "card", path)
            for name in refused:
                cells.refuse(world.family(name), "card", path)
    for column, path, folder, holds, lines in SCRIPTS:
        does = all(re.search(line, world.tree.text(path)) for line in lines)
        found = list(script_names(world, folder)) if does else []
        cells.names[path, holds] = {name for name, _, _ in found}
        for _, family, architecture in found:
            cells.add(family, column, path, architecture if folder == "gguf" else None)
    column, path, line = UNWRITTEN
    if re.search(line, world.tree.text(path)):
        written = {world.families[of] for _, of in gguf_of(world.tree) if of in world.families}
        folders = {os.path.dirname(p) for p in world.tree.files(GOLDEN + "/arch/*/config.json")}
        for family in {world.references[f] for f in folders} - written:
            cells.refuse(family, column, path)
    return cells


HEAD = """# Models: what runs, by test

This page is generated: `python3 tests/models_page.py --write` reads the families of
[infer/arch/table.c](../infer/arch/table.c) and what the tests do with each, and the ctest
`models_page` compares it with them. A cell names the tests that cover it; what a test compares
stands [below](#what-each-test-compares). An empty cell means that no such test names the family;
where a test checks that something is refused by name, the cell says so.

- **family**: the `model_type` of `config.json`, or of its `text_config` where the model also takes
  pictures. Other settings that a family's name does not imply are refused by name if unknown.
- **Hugging Face folder**: it runs as it is, and its outputs are those of transformers.
- **GGUF in**: a file of this architecture runs, with the outputs of transformers. A GGUF of another
  architecture is stored and given back.
- **GGUF out**: what is written is what llama.cpp's converter writes.
- **train**: gradients of all tensors are those of transformers or torch.
- **adapters**: adapters of PEFT run or are trained.
- **card**: these tests also run on an emulated GPU, in the modes that it has for the family
  ([gpu.md](gpu.md)). No test has run on a real one.

"""


def row_of(cells):
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


def table(head, rows):
    return row_of(head) + "|---" * len(head) + "|\n" + "".join(map(row_of, rows))


def page_of(world):
    cells = gather(world)
    page = HEAD
    rows = []
    for family in sorted(set(world.families.values())):
        names = [family] + sorted(n for n, of in world.families.items() if of == family and n != family)
        rows.append([", ".join(f"`{n}`" for n in names)] + [cells.text(family, column) for column in COLUMNS])
    page += table(["family", *COLUMNS.values()], rows)
    page += "\n## What each test compares\n\n"
    page += "The names are those of recorded references, most of them tiny random models in\n" \
            "[tests/model/golden](../tests/model/golden). A test with a star needs references that are no part\n" \
            "of the repository; where they are missing it is skipped, and ctest counts it.\n\n"
    rows = []
    for (path, holds), names in cells.names.items():
        starred = "\\*" if "tk_skip(" in world.tree.text(path) else ""
        rows.append([f"{link(path)}{starred}", f"`{path.split('/')[1]}_{stem(path)}`", holds,
                     ", ".join(sorted(names))])
    page += table(["test", "ctest", "what", "names"], rows)
    page += "\n## Stored and not run\n\nAnything else that is sound is stored too, and comes out byte for byte. One line says why it does\n" \
            "not run, at import or where a command would have to run it:\n\n"
    for says, path, words in KEPT:
        if words not in world.tree.text(path):
            raise SystemExit(f"{path}: '{words}' is no longer in it, which {PAGE} rests on")
        page += wrap(f"- {says} ({link(path)});")
    page = page[:-2] + ".\n\nQuantized checkpoints that run and train, and what does not: [quantized.md](quantized.md).\n"
    paths = {path for path, _ in cells.names} | {path for _, path, _ in KEPT} | {UNWRITTEN[1]}
    page += "\n" + "".join(f"[{stem(p)}]: ../{p}\n" for p in sorted(paths, key=stem))
    return page, cells


def wrap(text):
    out, line = "", ""
    for word in text.split(" "):
        if len(line) + len(word) > 99:
            out, line = out + line + "\n", " "
        line += (" " if line else "") + word
    return out + line + "\n"


# ---- checks ----

def without(world, path, names):
    """The page where a test does not name these references."""
    text = world.tree.text(path)
    for name in names:
        text = re.sub(rf'"([\w/]*/)?{re.escape(name)}(["/])', r'"\1nothing-\2', text)
    return gather(World(Tree(world.tree.root, {path: text})))


def missed(world, cells):
    """Each column of each test, with one family's names taken out of the test: the cell no longer names it."""
    bad = []
    for path in sorted({path for path, _ in cells.names if path.endswith(".c")}):
        names = set().union(*(n for (p, _), n in cells.names.items() if p == path))
        seen = sorted({(column, family) for (family, column), tests in cells.tests.items() if path in tests})
        for column in COLUMNS:
            family = next((f for c, f in seen if c == column), None)
            if not family:
                continue
            less = without(world, path, {n for n in names if world.family(n) == family})
            if path in less.tests.get((family, column), {}):
                bad.append(f"{path}: column '{COLUMNS[column]}' names it for {family}, though it does not name {family}")
    for column, path, _, _, lines in SCRIPTS:
        for line in lines:
            text = re.sub(line, "", world.tree.text(path))
            less = gather(World(Tree(world.tree.root, {path: text})))
            if any(path in tests for (_, c), tests in less.tests.items() if c == column):
                bad.append(f"{path}: column '{COLUMNS[column]}' names it without its line {line}")
    return bad


def check(world, page, cells):
    bad = []
    path = world.tree.root / PAGE
    if not path.exists() or path.read_text(encoding="utf-8") != page:
        bad.append(f"{PAGE} is not what the tests say: run python3 tests/models_page.py --write")
    for name in world.families:
        if f"`{name}`" not in page:
            bad.append(f"{PAGE} has no row of {name}")
    for path in {path for path, _ in cells.names}:
        if not any(path in tests for tests in cells.tests.values()):
            bad.append(f"{path}: no cell rests on it")
    for column, title in COLUMNS.items():
        if not any(c == column for _, c in cells.tests):
            bad.append(f"column '{title}' is empty")
    return bad + missed(world, cells)


def main():
    arguments_given = [a for a in sys.argv[1:] if a != "--write"]
    world = World(Tree(arguments_given[0] if arguments_given else pathlib.Path(__file__).resolve().parents[1]))
    page, cells = page_of(world)
    if "--write" in sys.argv[1:]:
        (world.tree.root / PAGE).write_text(page, encoding="utf-8")
    bad = check(world, page, cells)
    print("\n".join(bad) if bad else f"{len(set(world.families.values()))} families, each with its row")
    return 1 if bad else 0


sys.exit(main())
