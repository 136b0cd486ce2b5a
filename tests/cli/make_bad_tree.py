"""make_bad_tree.py REPO BRANCH KIND - a branch whose tree is atlas's (or child's, for what is made here) with one fault.

Trees are written as raw git objects, since git's and libgit2's own builders refuse some of them. Prints the commit's id.
"""

import json
import re
import subprocess
import sys

repo, branch, kind = sys.argv[1:4] # "x list": the kinds; "x base KIND": what that one is made from
GIT = ["git", "-c", "safe.directory=*", "-C", repo + "/.fmstore/lineage.git"]


def git(*args, data=None):
    return subprocess.run(GIT + list(args), input=data, check=True, stdout=subprocess.PIPE).stdout


def put(kind, data):
    return git("hash-object", "-t", kind, "--literally", "-w", "--stdin", data=data).decode().strip()


def read(name):
    """The tree as nested lists of [mode, name, id or list]."""
    out = []
    for row in git("ls-tree", "-z", name).split(b"\0")[:-1]:
        head, path = row.split(b"\t", 1)
        mode, what, oid = head.decode().split()
        out.append([mode.lstrip("0"), path, read(oid) if what == "tree" else oid])
    return out


def write(tree):
    rows = b""
    for mode, name, child in tree:
        oid = write(child) if isinstance(child, list) else child
        rows += mode.encode() + b" " + name + b"\0" + bytes.fromhex(oid)
    return put("tree", rows)


def find(tree, path):
    """The list that holds the entry, and its place there."""
    first, _, rest = path.partition("/")
    for at, row in enumerate(tree):
        if row[1] == first.encode():
            return find(row[2], rest) if rest else (tree, at)
    raise SystemExit("no " + path)


def remove(tree, path):
    rows, at = find(tree, path)
    del rows[at]


def blob(tree, path, data):
    rows, at = find(tree, path)
    rows[at][2] = put("blob", data)


def called(tree, path, name):
    rows, at = find(tree, path)
    rows[at][2] = put("blob", re.sub(rb"\nname .*", b"\nname " + name, git("cat-file", "blob", rows[at][2])))


def rename(tree, path, name):
    rows, at = find(tree, path)
    rows[at][1] = name


def text_of(tree, path):
    rows, at = find(tree, path)
    return git("cat-file", "blob", rows[at][2])


def source(tree, change):
    spec = json.loads(text_of(tree, "source/source.json"))
    change(spec)
    blob(tree, "source/source.json", json.dumps(spec).encode())


def name_is(name):
    def change(spec):
        spec["files"][0]["name"] = name
    return change


def twice(spec):
    spec["files"].append(spec["files"][0])


def folder(spec):
    spec["files"].append({**spec["files"][0], "name": spec["files"][0]["name"] + "/x"})


def bytes_are(n):
    def change(spec):
        spec["files"][0]["bytes"] = n
    return change


def literal(spec):
    for f in spec["files"]:
        for p in f["pieces"]:
            if "literal" in p:
                p["literal"] = "source/files/nowhere"
                return


def entry(spec):
    for f in spec["files"]:
        for p in f["pieces"]:
            if "entry" in p:
                p["entry"] = "tensors/nowhere"
                return


def sha(spec):
    spec["files"][0]["sha256"] = "no digest"


def double(tree, path):
    rows, at = find(tree, path)
    rows.insert(at, list(rows[at]))


def mode(tree, path, value):
    rows, at = find(tree, path)
    rows[at][0] = value


TENSOR = "tensors/model/norm.weight"
ADAPTER = "adapters/0-lora/adapter_config.json"
LORA = "adapters/0-lora/tensors/base_model/model/model/layers/2/self_attn/v_proj"
DANGLING = b"fmstore tensor 1\nid sha256:" + b"7" * 64 + b"\ndtype BF16\nshape 128\nbytes 256\nname model.norm.weight\n"
SUITE = "suites/manners.yaml"
faults = {
    "escape": ("atlas", lambda t: rename(t, "tokenizer/tokenizer.json", b"\x1b[31m")),
    "twice": ("atlas", lambda t: double(t, "tokenizer/tokenizer.json")),
    "exec": ("atlas", lambda t: mode(t, "model.json", "100755")),
    "link": ("atlas", lambda t: mode(t, "model.json", "120000")),
    "module": ("atlas", lambda t: mode(t, "model.json", "160000")),
    "dots": ("atlas", lambda t: source(t, name_is("../evil"))),
    "absolute": ("atlas", lambda t: source(t, name_is("/abs"))),
    "nul": ("atlas", lambda t: source(t, name_is("x\0y"))),
    "name_twice": ("atlas", lambda t: source(t, twice)),
    "folder_too": ("atlas", lambda t: source(t, folder)),
    "huge": ("atlas", lambda t: source(t, bytes_are(10**15))),
    "small": ("atlas", lambda t: source(t, bytes_are(1))),
    "negative": ("atlas", lambda t: source(t, bytes_are(-1))),
    "literal": ("atlas", lambda t: source(t, literal)),
    "entry": ("atlas", lambda t: source(t, entry)),
    "sha": ("atlas", lambda t: source(t, sha)),
    "source_text": ("atlas", lambda t: blob(t, "source/source.json", b"{")),
    "source_gone": ("atlas", lambda t: remove(t, "source/source.json")),
    "model_gone": ("atlas", lambda t: remove(t, "model.json")),
    "model_text": ("atlas", lambda t: blob(t, "model.json", b"{")),
    "model_empty": ("atlas", lambda t: blob(t, "model.json", b"{}")),
    "dangling": ("atlas", lambda t: blob(t, TENSOR, DANGLING)),
    "pointer": ("atlas", lambda t: blob(t, TENSOR, DANGLING.replace(b"dtype", b"type"))),
    "no_tensor": ("child", lambda t: blob(t, TENSOR, b"plain text")),
    "tensor_gone": ("child", lambda t: remove(t, TENSOR)),
    "renamed": ("atlas", lambda t: called(t, TENSOR, b"model.other.weight")),
    "moved": ("child", lambda t: rename(t, LORA, b"zz_proj")),
    "lone_b": ("child", lambda t: remove(t, LORA + "/lora_A.weight")),
    "config_gone": ("child", lambda t: remove(t, ADAPTER)),
    "config_text": ("child", lambda t: blob(t, ADAPTER, b"[")),
    "recipe_text": ("child", lambda t: blob(t, "recipe.json", b"{")),
    "recipe_other": ("child", lambda t: blob(t, "recipe.json", b"{}")),
    "recipe_gone": ("child", lambda t: remove(t, "recipe.json")),
    "suite_text": ("atlas", lambda t: blob(t, SUITE, b"cases: [")),
}
if kind == "list":
    print("\n".join(faults))
    raise SystemExit
if kind == "base":
    print(faults[sys.argv[4]][0])
    raise SystemExit
base, change = faults[kind]
tree = read(base)
change(tree)
commit = git("cat-file", "commit", base).split(b"\n", 1)
oid = put("commit", b"tree " + write(tree).encode() + b"\n" + commit[1])
git("update-ref", "refs/heads/" + branch, oid)
print(oid)
