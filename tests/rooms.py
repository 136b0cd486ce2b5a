"""rooms.py - the files of the product, the order of the sub-folders inside each top folder, and who calls whom.

Shared by layers_inside.py (the test of that order) and house.py (figures). Calls are read from the objects of a
build with nm: an undefined symbol of one object that another object defines. That is exact, and counts the
functions that a table names as well."""
import json
import pathlib
import re
import subprocess

TOPS = ["store", "lineage", "infer", "train", "testing", "remote", "cli"]

# Lowest first. What stands to the right may include and call what stands to its left. A dot is what lies in the
# top folder itself: its public headers. An entry is a folder with all below it, or one file; the longest one wins.
ORDER = {
    "store": "base . entropy tensor quant codec formats recipe adapt import export lease pack gc search txn exchange",
    "infer": ". arch cpu device comm cuda kv tokenizer jinja text grammar model engine plan sched tasks serve",
    "train": ". params net data pass objective run attribution",
    "testing": ". assert cases stats suite foreign run report search",
    "remote": ". http wire bucket link githost sync hub hubserve",
    "cli": "ops ops/base ops/remote ops/version ops/derive ops/blame ops/blame/report ops/replay ops/test base . report cmd main.c",
}


def level(path):
    """The place of a file in its folder's order; None where the folder has none, or does not name the sub-folder."""
    top, _, rest = path.partition("/")
    entries = ORDER.get(top, "").split()
    best = None
    for place, entry in enumerate(entries):
        if entry == ".":
            hit = "/" not in rest
        else:
            hit = rest == entry or rest.startswith(entry + "/")
        if hit and (best is None or len(entry) > len(entries[best])):
            best = place
    return best


def sources(root):
    """The product's C and CUDA files, as paths from the root."""
    found = []
    for top in TOPS:
        for path in (root / top).rglob("*"):
            if path.suffix in (".c", ".h", ".cu", ".cuh"):
                found.append(path.relative_to(root).as_posix())
    return sorted(found)


def includes(root, files):
    """Pairs (file, included file) inside one top folder."""
    line = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
    pairs = set()
    for name in files:
        for to in line.findall((root / name).read_text(encoding="utf-8")):
            if to.split("/")[0] == name.split("/")[0]:
                pairs.add((name, to))
    return pairs


def objects(root, build):
    """Each C file of the product with its objects: a file that is compiled once per instruction set has several."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["file"])
        if not source.is_relative_to(root):
            continue
        name = source.relative_to(root).as_posix()
        if name.split("/")[0] not in TOPS or source.suffix != ".c" or not source.exists():
            continue
        output = entry.get("output") or re.search(r" -o (\S+)", entry["command"]).group(1)
        if output.startswith("tests/"): # another build of the file, for a test
            continue
        found.setdefault(name, []).append(pathlib.Path(entry["directory"]) / output)
    return found


def is_module(name):
    """What is loaded at run time and is no part of the program: its symbols are its own, and it may not be built."""
    return name.endswith("_module.c")


def calls(root, build):
    """Pairs (file, file that defines a symbol which the first one needs), each with the symbols."""
    defined, wanted = {}, {}
    table = objects(root, build)
    if not table:
        raise SystemExit(f"{build}: compile_commands.json names no file of the product: configure the build first")
    owner = {}
    for name, outputs in table.items():
        for output in outputs:
            if output.exists():
                owner[str(output)] = name
            elif not is_module(name):
                raise SystemExit(f"{output} is missing: build the target fmstore first")
    text = subprocess.run(["nm", "-g", "-A", *sorted(owner)], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        output, _, symbol = line.partition(":")
        name, (kind, symbol) = owner[output], symbol.split()[-2:]
        if kind == "U":
            wanted.setdefault(name, set()).add(symbol)
        elif not is_module(name):
            defined[symbol] = name
    edges = {}
    for name, symbols in wanted.items():
        for symbol in symbols:
            to = defined.get(symbol)
            if to and to != name:
                edges.setdefault((name, to), set()).add(symbol)
    return edges
