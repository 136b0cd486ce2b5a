"""Random templates rendered by jinja2 (PyPI) and by fmstore: every difference is printed.

    python3 tests/peer/jinja_diff.py BUILD/tests/unit_infer_jinja [--count 20000] [--seed 1] [--show 20] [--save FILE]

The environment is the one transformers sets up: ImmutableSandboxedEnvironment, trim_blocks,
lstrip_blocks, loop controls, its tojson, raise_exception. Kinds of difference:
    text     both render, to different texts
    named    jinja2 renders, fmstore refuses what it has not, and says so
    refused  jinja2 renders, fmstore fails otherwise
    lenient  jinja2 raises, fmstore renders
Drawn is what fmstore has (jinja_census.py counts what real templates use), so there are few of the second kind. Exits 1 where
there is one of kind text or refused.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """{% generation %}: prints its body, as transformers' tracker of answers does."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_caller"), [], [], body).set_lineno(line)

    def _caller(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


VARS = {
    "n": 7, "neg": -3, "z": 0, "f": 2.5, "g": -0.75, "big": 123456789, "t": True, "no": False, "nil": None,
    "s": "Hello wörld", "e": "", "sp": "  a b\tc \n", "ml": "one\ntwo\r\n\nthree", "q": "it's \"x\" <&>", "num": " 42 ",
    "fl": "3.75", "uni": "Straße ΑΣ ǅ İx ﬁ \u200b\u00a0é", "words": "the quick-brown (fox) jumps", "pct": "%s-%d",
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "mixed": [1, "a", None, True, 2.5, [1]], "empty": [], "nested": [[1, 2], [3], []],
    "d": {"a": 1, "b": "x", "C": [1, 2], "z": None}, "ed": {}, "dd": {"k": {"m": {"x": [10, 20]}}},
    "users": [{"name": "Ann", "age": 31, "tags": ["x"]}, {"name": "bob", "age": 25, "tags": []},
              {"name": "Cid", "age": 31, "tags": ["y", "z"], "nick": "C"}],
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}, {"v": 5, "kids": []}],
}


DUMPS = ["", "(indent=2)", "(ensure_ascii=true)", "(sort_keys=true)", "(separators=(',', ':'))", "(indent=0)"]
SPLITS = ["none, 1", "' ', 1", "'o', 1", "maxsplit=1"]
NAMED = ("not implemented", "cannot be printed", "overflow", "is used without a call", "in templates", "length of a generator")


class Gen:
    """Draws expressions by rough type, so that most of them mean something."""

    def __init__(self, rng):
        self.r = rng
        self.locals = []

    def one(self, *choices):
        return self.r.choice(choices)

    def lit_str(self):
        return self.one("'a'", "'x y'", "''", "', '", "'é'", "\"it's\"", "'A\\nb'", "'\\x41\\u00e9'", "'o'", "'%5.2f|'", "'{}'", "'-'", "'l'")

    def int_(self, d):
        if d <= 0:
            return self.one("n", "neg", "z", "big", "1", "2", "0", "5", "-1", "l[0]", "users[0].age", "nested.0.1", "d.a")
        k = self.r.randrange(9)
        if k < 3:
            return f"({self.int_(d-1)} {self.one('+', '-', '*', '//', '%')} {self.int_(d-1)})"
        return [
            lambda: f"({self.seq(d-1)} | length)", lambda: f"({self.str_(d-1)} | length)", lambda: f"({self.str_(d-1)} | int)",
            lambda: f"({self.num(d-1)} | int)", lambda: f"({self.str_(d-1)}.find({self.lit_str()}))",
            lambda: "ls.index('c')",
        ][k - 3]()

    def num(self, d):
        if d <= 0 or self.r.random() < 0.5:
            return self.one("f", "g", "2.5", "1e3", "0.1") if d <= 0 or self.r.random() < 0.5 else self.int_(d)
        return self.one(
            f"({self.num(d-1)} {self.one('+', '-', '*', '/')} {self.num(d-1)})", f"({self.str_(d-1)} | float)", f"-{self.num(d-1)}", f"({self.seq(d-1)} | {self.one('max', 'min')})",
        )

    def str_(self, d):
        if d <= 0:
            return self.one("s", "e", "sp", "ml", "q", "num", "fl", "uni", "words", "users[1].name", "d.b", self.lit_str(), *self.locals)
        x = self.str_(d - 1)
        k = self.r.randrange(16)
        if k < 5:
            return f"({x} | {self.filter_str(d)})"
        if k < 10:
            return f"({x}).{self.method_str(d)}" if k < 9 else f"({x})[{self.slice_(d)}]"
        return [
            lambda: f"({x} ~ {self.any_(d-1)})", lambda: f"({x} + {self.str_(d-1)})", lambda: f"({self.seq(d-1)} | join({self.lit_str()}))",
            lambda: f"({self.any_(d-1)} | tojson{self.one(*DUMPS)})",
            lambda: f"({self.str_(d-1)} * {self.one('2', '0', 'n', 't')})", lambda: self.format_(d),
        ][k - 10]()

    def format_(self, d):
        return self.one(
            f"'{{}} {{}}'.format({self.any_(d-1)}, {self.int_(d-1)})", f"'{{0}}{{1}}{{0}}'.format({self.str_(d-1)}, {self.num(d-1)})",
            f"'{{{{{{}}}}}}|'.format({self.any_(d-1)})", "'{a} {b}{}'.format(s, a=n, b=users[0])",
        )

    def filter_str(self, d):
        return self.one(
            "upper", "lower", "title", "capitalize", "trim", "string", "reverse", "indent", "indent(2, true)", "indent('> ', blank=true)", "indent(1, first=true)",
            f"replace({self.lit_str()}, {self.lit_str()})", f"replace('a', 'bb', 1)", f"trim({self.lit_str()})", f"default({self.lit_str()})", f"default({self.lit_str()}, true)",
            "first | string", "last | string",
        )

    def method_str(self, d):
        a = self.lit_str()
        return self.one(
            "upper()", "lower()", "title()", "capitalize()", "strip()", "lstrip()", "rstrip()", f"strip({a})", f"lstrip({a})", f"rstrip({a})", f"replace({a}, {self.lit_str()})", f"replace('', '.')", "replace('l', 'L', 1)",
            f"join(ls)", "join(['p', 'q'])", "format(n)",
        )

    def slice_(self, d):
        p = lambda: self.one("", "", "0", "1", "2", "-1", "-2", "5", "100", "-100", self.int_(0))
        return self.one(f"{p()}:{p()}", f"{p()}:{p()}:{self.one('1', '2', '-1', '-2', '3')}", ":", "::-1")

    def seq(self, d):
        if d <= 0:
            return self.one("l", "ls", "empty", "(users | map(attribute='age') | list)", "range(4)", "range(5, 0, -2)", "[1, 2, 3]", "(1, 2)", "nested[0]", "[n, f, t]")
        x = self.seq(d - 1)
        return self.one(
            f"({x})", f"({x} | list)", f"({x} | sort)", f"({x} | sort(reverse=true))", f"({x} | reverse | list)", f"({x} | unique | list)", f"({x} | list)[{self.slice_(d)}]", f"({x} | map('string') | list)", f"({x} | select | list)",
            f"({x} | reject('odd') | list)", f"({x} | select('gt', 1) | list)", f"({x} | list + {self.seq(d-1)} | list)", f"({x} | map('upper') | list)", f"({x} | map('replace', 'a', 'b') | list)",
            f"({self.str_(d-1)}).split({self.one('', self.lit_str(), *SPLITS)})", f"({self.str_(d-1)}).splitlines()", f"({self.str_(d-1)} | list)",
            "(users | map(attribute='name') | list)", "(users | selectattr('tags') | map(attribute='name') | list)", "(users | selectattr('age', 'gt', 30) | map(attribute='name') | list)", "(users | rejectattr('nick', 'defined') | map(attribute='age') | list)",
            "(users | sort(attribute='age') | map(attribute='name') | list)", "(users | sort(attribute='name', reverse=true) | map(attribute='tags.0') | list)", "(d.keys() | list)", "(d.values() | list)", "(d | dictsort)", "(d | items | list)",
            f"[{self.any_(d-1)}, {self.any_(d-1)}]", f"({self.any_(d-1)},)", "d.items() | list", "(dd.k.m.x)",
        )

    def bool_(self, d):
        if d <= 0:
            return self.one("t", "no", "true", "false", "(nil is none)", "(missing is defined)", "(n is odd)")
        return self.one(
            f"({self.num(d-1)} {self.one('<', '>', '<=', '>=', '==', '!=')} {self.num(d-1)})", f"({self.str_(d-1)} {self.one('<', '==', '!=', 'in', 'not in')} {self.str_(d-1)})", f"({self.any_(d-1)} in {self.seq(d-1)})",
            f"(not {self.any_(d-1)})", f"({self.bool_(d-1)} {self.one('and', 'or')} {self.bool_(d-1)})",
            f"({self.any_(d-1)} is {self.one('', 'not ')}{self.one('string', 'number', 'mapping', 'iterable', 'sequence', 'none', 'defined', 'undefined', 'boolean', 'integer', 'float', 'true', 'false', 'eq(1)', 'ne(none)', 'in([1, 2])')})",
            f"({self.str_(d-1)}).{self.one('startswith', 'endswith')}({self.lit_str()})",
            f"({self.str_(d-1)}).{self.one('startswith', 'endswith')}(('a', {self.lit_str()}))", f"({self.int_(d-1)} is {self.one('odd', 'even')})", f"(1 < {self.int_(d-1)} <= 5)", f"({self.seq(d-1)} == {self.seq(d-1)})",
        )

    def any_(self, d):
        if d <= 0 and self.r.random() < 0.4:
            return self.one("nil", "missing", "d", "ed", "mixed", "nested", "d.missing", "users[0]", "dd['k']", "d.get('q', 3)", "d.get('a')", "mixed[-1]", "l[10]", "{'k': n, 's': s}", "{1: 2, none: t}", "namespace(a=1).a", "dict(a=1)", "dict(d, b=n)")
        return self.r.choice([self.int_, self.num, self.str_, self.seq, self.bool_])(d)

    def cond(self, d):
        return self.one(self.any_(d), f"({self.any_(d-1)} if {self.bool_(d-1)} else {self.any_(d-1)})", f"({self.any_(d-1)} if {self.bool_(d-1)})", f"({self.any_(d-1)} or {self.any_(d-1)})", f"({self.any_(d-1)} and {self.any_(d-1)})")

    def tag(self, body):
        l, r = self.one("{%", "{%", "{%-", "{%+", "  {%", "\n {%"), self.one("%}", "%}", "-%}", "%}\n", "-%}\n\n", "+%}\n")
        return f"{l} {body} {r}"

    def out(self, d):
        l, r = self.one("{{", "{{", "{{-"), self.one("}}", "}}", "-}}", "}}\n")
        return f"{l} {self.cond(d)} {r}" if self.r.random() < 0.95 else f"{l} {self.str_(d)} | safe {r}"

    def text(self):
        return self.one("", " ", "\n", "  x\n", "A", "\t\n\n", "{ } %", "{# note #}", "{#- note -#}\n", "é\n")

    def block(self, d):
        k = self.r.randrange(14)
        b = lambda: self.body(d - 1)
        t = self.tag
        if k == 0:
            return t(f"if {self.bool_(1)}") + b() + t(f"elif {self.bool_(1)}") + b() + t("else") + b() + t("endif")
        if k <= 2:
            extra = self.one("", "", f" if x {self.one('is string', 'is number', '!= 2')}")
            inner = self.one("{{ loop.index }}{{ x }}", "{{ loop.first }}{{ loop.last }}{{ loop.revindex0 }}", "{{ loop.previtem }}|{{ loop.nextitem }}", "{% if loop.index == 2 %}{% break %}{% endif %}{{ x }}", "{% if loop.first %}{% continue %}{% endif %}{{ x }},", "{{ loop.length }}{{ loop.index0 }}{{ loop.revindex }}")
            return t(f"for x in {self.seq(1)}{extra}") + inner + b() + self.one("", t("else") + b()) + t("endfor")
        if k == 3:
            return t("for k, v in d.items()") + "{{ k }}={{ v }};" + b() + t("endfor")
        if k == 4:
            return t("macro show(i)") + "<{{ i.v }}" + t("for kid in i.kids") + "{{ show(kid) }}" + t("endfor") + ">" + t("endmacro") + t("for i in tree") + "{{ show(i) }}" + t("endfor")
        if k == 5:
            return t(f"set y = {self.cond(2)}") + "{{ y }}"
        if k == 6:
            return t("set y" + self.one("", " | upper", " | trim | length")) + b() + t("endset") + "[{{ y }}]"
        if k == 7:
            return t("macro m(a, b=2, c='z')") + "{{ a }}{{ b }}{{ c }}" + b() + t("endmacro") + "{{ m(%s) }}{{ m(1, c=%s) }}{{ m(*[1, 2]) }}{{ m(1, *(2, 3)) }}" % (self.cond(1), self.cond(1))
        if k == 8:
            return t("macro w(x)") + "<{{ x }}{{ caller(%s) }}>" % self.one("1", "x", "'q'") + t("endmacro") + t("call(p) w(%s)" % self.cond(1)) + "{{ p }}" + b() + t("endcall")
        if k == 9:
            return t("filter " + self.one("upper", "trim", "replace('a', 'b') | title", "indent(2)", "length")) + b() + t("endfilter")
        if k == 10:
            return t("set ns = namespace(c=0, l=[])") + t("for x in l") + t("set ns.c = ns.c + x") + t("set ns.l = ns.l + [x]") + t("endfor") + "{{ ns.c }}{{ ns.l }}"
        if k == 11:
            return t("for u in users") + t("macro mm(x)") + "{{ u.name }}{{ x }}" + t("endmacro") + "{{ mm(loop.index) }}" + t("endfor")
        if k == 12:
            return t("generation") + b() + t("endgeneration")
        return t("set a, b = " + self.one("1, 2", "(n, s)", "'xy'", "l[:2]")) + "{{ a }}{{ b }}" + t("for (p, (q, r)) in [(1, (2, 3))]") + "{{ p }}{{ q }}{{ r }}" + t("endfor")

    def body(self, d):
        parts = [self.text()]
        for _ in range(self.r.randint(1, 2)):
            parts.append(self.block(d) if d > 0 and self.r.random() < 0.6 else self.out(self.r.randint(0, 2)))
            parts.append(self.text())
        return "".join(parts)

    def template(self):
        return self.out(self.r.randint(1, 3)) if self.r.random() < 0.5 else self.body(2)


def steady(text):
    """No addresses, and no reprs that a template cannot use: escaped text is a plain string in fmstore."""
    return not any(x in text for x in (" at 0x", "<generator", "<bound method", "<built-in", "<class", "<function", "Markup(", "dict_", "range(", "<Namespace", "<Macro", "<LoopContext"))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("program")
    ap.add_argument("--count", type=int, default=20000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--show", type=int, default=20)
    ap.add_argument("--save", help="write the cases that differ here")
    a = ap.parse_args()
    env, rng = environment(), random.Random(a.seed)
    cases = []
    while len(cases) < a.count:
        source = Gen(rng).template()
        try:
            want = env.from_string(source).render(**VARS)
        except RecursionError:
            continue
        except Exception as e:  # whatever a template may raise
            want = None
            why = f"{type(e).__name__}: {e}"
        if want is None or steady(want):
            cases.append((source, want, None if want is not None else why))
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for source, _, _ in cases:
            f.write(json.dumps({"template": source, "vars": VARS}) + "\n")
        f.flush()
        got = subprocess.run([a.program, "--render", f.name], capture_output=True, text=True)
    if got.returncode:
        sys.exit(f"{a.program} ended with {got.returncode}: {got.stderr[-2000:]}")
    kinds = {"text": [], "named": [], "refused": [], "lenient": []}
    for (source, want, why), line in zip(cases, got.stdout.split("\n")):
        o = json.loads(line)
        if want is None:
            if "text" in o:
                kinds["lenient"].append((source, why, o["text"]))
        elif "error" in o:
            kinds["named" if any(x in o["error"] for x in NAMED) else "refused"].append((source, want, o["error"]))
        elif o["text"] != want:
            kinds["text"].append((source, want, o["text"]))
    for kind, list_ in kinds.items():
        for source, want, have in sorted(list_, key=lambda x: len(x[0]))[: a.show]:
            print(f"{kind}\n  template {source!r}\n  jinja2   {want!r}\n  fmstore  {have!r}")
    both = sum(1 for c in cases if c[1] is not None)
    print(f"{len(cases)} templates, {both} that jinja2 renders: " + ", ".join(f"{len(v)} {k}" for k, v in kinds.items()))
    if a.save:
        json.dump([{"template": s, "text": w} for s, w, _ in kinds["text"] + kinds["refused"]], open(a.save, "w"), indent=1)
    sys.exit(1 if kinds["text"] or kinds["refused"] else 0)


if __name__ == "__main__":
    main()
