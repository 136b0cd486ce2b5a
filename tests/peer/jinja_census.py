"""What real chat templates use of Jinja: the table that infer/jinja is cut to.

    python3 tests/peer/jinja_census.py FOLDER... [--names] [--run BUILD/tests/unit_infer_jinja]

Reads every *.jinja file and every tokenizer_config.json or chat_template.json below the folders, parses the templates with jinja2
(PyPI), and prints for each filter, test, method, function, statement, operator and argument the number of distinct templates
with it. --names adds the first three of them. --run has fmstore open each template, and prints what it refuses.
The templates are no part of this tree: they come with the models, and with the packages that jinja_census.md names.
"""

import argparse
import collections
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
from jinja2 import nodes

PLAIN = (nodes.Output, nodes.TemplateData, nodes.Template, nodes.Name, nodes.Keyword, nodes.Operand, nodes.Pair, nodes.Getattr,
         nodes.Getitem, nodes.Filter, nodes.Test, nodes.Call, nodes.Compare, nodes.NSRef, nodes.Const)
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "lteq": "<=", "gt": ">", "gteq": ">=", "in": "in", "notin": "not in"}


class Generation(jinja2.ext.Extension):
    """{% generation %}, as transformers has it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def environment():
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    for name in ("from_json", "strftime_now"):  # some servers add filters: they are counted, not refused
        env.filters[name] = str
    return env


def found(folders):
    """(name, source) of each distinct template."""
    seen = set()
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            sources = []
            if path.suffix in (".jinja", ".jinja2", ".j2"):
                sources = [path.read_text(errors="replace")]
            elif path.name in ("tokenizer_config.json", "chat_template.json"):
                t = json.loads(path.read_text()).get("chat_template") or []
                sources = [t] if isinstance(t, str) else [x["template"] for x in t]
            for source in sources:
                key = hashlib.sha256(source.strip().encode()).digest()
                if key not in seen:
                    seen.add(key)
                    yield str(path), source


def arguments(node):
    shape = ["*" if node.dyn_args is not None else "", "**" if node.dyn_kwargs is not None else ""]
    return [str(len(node.args))] + [k.key + "=" for k in node.kwargs] + [s for s in shape if s]


def of_call(node, own):
    """A method, a macro of the template, or what the environment gives."""
    keys = node.kwargs and isinstance(node.node, nodes.Name) and node.node.name in ("namespace", "dict")
    shape = "(key=..)" if keys else "(" + ", ".join(arguments(node)) + ")"
    if isinstance(node.node, nodes.Getattr):
        if isinstance(node.node.node, nodes.Name) and node.node.node.name == "loop":
            return "loop", node.node.attr + shape
        return "method", node.node.attr + shape
    if isinstance(node.node, nodes.Name):
        return ("macro call", shape) if node.node.name in own else ("function", node.node.name + shape)
    return "call of", type(node.node).__name__ + shape


def of_slice(node):
    return "[" + ":".join("n" if x is not None else "" for x in (node.start, node.stop)) + (":step" if node.step else "") + "]"


def of_node(node, own):
    """What one node uses: (kind, what)."""
    if isinstance(node, nodes.Filter):
        yield "filter", node.name + ("(" + ", ".join(arguments(node)) + ")" if node.args or node.kwargs else "")
        if node.name in ("map", "select", "reject") and node.args and isinstance(node.args[0], nodes.Const):
            yield "filter", f"{node.name}('{node.args[0].value}')"
        if node.name in ("selectattr", "rejectattr") and len(node.args) > 1 and isinstance(node.args[1], nodes.Const):
            yield "filter", f"{node.name}(.., '{node.args[1].value}')"
    elif isinstance(node, nodes.Test):
        yield "test", node.name
    elif isinstance(node, nodes.Call):
        yield of_call(node, own)
    elif isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "loop":
        yield "loop", node.attr
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        yield "slice", of_slice(node.arg)
    elif isinstance(node, nodes.Compare):
        for op in node.ops:
            yield "operator", COMPARE[op.op]
        if len(node.ops) > 1:
            yield "operator", "a < b < c"
    elif isinstance(node, nodes.Mod) and isinstance(node.left, nodes.Const) and isinstance(node.left.value, str):
        yield "operator", f"{node.left.value!r} % x"
    elif isinstance(node, (nodes.BinExpr, nodes.UnaryExpr)):
        yield "operator", node.operator if getattr(node, "operator", None) else type(node).__name__
    elif isinstance(node, nodes.For):
        yield "statement", "for" + (" if" if node.test else "") + (" else" if node.else_ else "") + (" recursive" if node.recursive else "")
    elif isinstance(node, nodes.Macro):
        yield "statement", "macro" + (" with defaults" if node.defaults else "")
    elif isinstance(node, nodes.If):
        yield "statement", "if" + (" elif" if node.elif_ else "")
    elif isinstance(node, nodes.AssignBlock):
        yield "statement", "set block" + (" with filter" if node.filter else "")
    elif isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Tuple):
        yield "statement", "set of several"
    elif isinstance(node, nodes.Scope):
        yield "statement", "generation"
    elif isinstance(node, (nodes.Stmt, nodes.Literal, nodes.CondExpr, nodes.Concat)) and not isinstance(node, PLAIN):
        yield "statement" if isinstance(node, nodes.Stmt) else "expression", type(node).__name__


def uses_of(tree, env, source):
    own = {m.name for m in tree.find_all(nodes.Macro)}
    names = {n.name for n in tree.find_all(nodes.Name) if n.ctx == "load"}
    for word in ("varargs", "kwargs", "caller", "self", "loop"):
        if word in names:
            yield "name", word
    for node in tree.find_all(nodes.Node):
        yield from of_node(node, own)
    before = ""
    for _, kind, text in env.lex(source):
        if kind == "integer" and before == ".":
            yield "expression", "a.0"
        before = text
        if kind == "raw_begin":
            yield "statement", "raw"
        elif kind in ("block_begin", "block_end", "variable_begin", "variable_end", "comment_begin", "comment_end"):
            yield "tag", text.strip()


def refused(program, templates):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for _, source in templates:
            f.write(json.dumps({"template": "{% if false %}" + source + "{% endif %}", "vars": {"messages": []}}) + "\n")
        f.flush()
        got = subprocess.run([program, "--render", f.name], capture_output=True, text=True, check=True)
    for (name, _), line in zip(templates, got.stdout.split("\n")):
        error = json.loads(line).get("error", "")
        if "not implemented" in error or "understood" in error or "expected" in error:
            print(f"refused: {name}: {error}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("folders", nargs="+")
    ap.add_argument("--names", action="store_true")
    ap.add_argument("--run", metavar="PROGRAM")
    a = ap.parse_args()
    env, count, where, templates = environment(), collections.Counter(), collections.defaultdict(list), []
    for name, source in found(a.folders):
        try:
            tree = env.parse(source)
        except jinja2.TemplateError as e:
            print(f"not parsed: {name}: {e}", file=sys.stderr)
            continue
        templates.append((name, source))
        for use in set(uses_of(tree, env, source)):
            count[use] += 1
            where[use].append(name)
    print(f"{len(templates)} distinct templates")
    for kind, what in sorted(count, key=lambda u: (u[0], -count[u], u[1])):
        print(f"{kind:12} {count[kind, what]:5}  {what}" + ("  " + " ".join(where[kind, what][:3]) if a.names else ""))
    if a.run:
        refused(a.run, templates)


if __name__ == "__main__":
    main()
