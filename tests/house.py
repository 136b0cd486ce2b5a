#!/usr/bin/env python3
"""house.py [ROOT [BUILD]] - figures of the source tree: lines, files per folder, circles of files, double type names.

Circles are files that call each other, directly or through others. They need BUILD, in which fmstore is built: calls
are read from its objects (rooms.py), so functions that a table names count, and what .cu files call does not."""
import collections
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import rooms


def lines(path):
    return path.read_bytes().count(b"\n")


def say_lines(root, files):
    print("lines of the product")
    for top in rooms.TOPS:
        mine = [name for name in files if name.split("/")[0] == top]
        print(f"  {top:8} {len(mine):4} files {sum(lines(root / n) for n in mine):8}")
    print(f"  {'all':8} {len(files):4} files {sum(lines(root / n) for n in files):8}")
    print("lines of tests")
    sorts = {"C, C++": (".c", ".h", ".cpp", ".cu"), "shell": (".sh",), "Python": (".py",)}
    for sort, suffixes in sorts.items():
        mine = [p for p in (root / "tests").rglob("*") if p.suffix in suffixes and p.is_file()]
        print(f"  {sort:8} {len(mine):4} files {sum(map(lines, mine)):8}")


def say_folders(root, files):
    print("files per folder, and lines")
    count, size = collections.Counter(), collections.Counter()
    for name in files:
        folder = name.rsplit("/", 1)[0]
        count[folder] += 1
        size[folder] += lines(root / name)
    for folder in sorted(count):
        print(f"  {folder:24} {count[folder]:4} {size[folder]:7}")


def circles(edges):
    """Strongly connected groups of more than one file (Tarjan's, without recursion), the largest first."""
    follow = collections.defaultdict(list)
    for name, to in sorted(edges):
        follow[name].append(to)
    order, low, on, stack, found = {}, {}, set(), [], []
    for start in sorted(follow):
        if start in order:
            continue
        work = [(start, iter(follow[start]))]
        order[start] = low[start] = len(order)
        stack.append(start)
        on.add(start)
        while work:
            name, rest = work[-1]
            for to in rest:
                if to not in order:
                    order[to] = low[to] = len(order)
                    stack.append(to)
                    on.add(to)
                    work.append((to, iter(follow[to])))
                    break
                if to in on:
                    low[name] = min(low[name], order[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == order[name]:
                    group = []
                    while not group or group[-1] != name:
                        group.append(stack.pop())
                        on.discard(group[-1])
                    if len(group) > 1:
                        found.append(sorted(group))
    return sorted(found, key=lambda g: (-len(g), g))


def say_circles(root, build):
    groups = circles(rooms.calls(root, build))
    print(f"circles of files, by calls: {len(groups)}, of {sum(map(len, groups))} files")
    by_top = collections.defaultdict(list)
    for group in groups:
        by_top["/".join(sorted({name.split("/")[0] for name in group}))].append(group)
    for top in sorted(by_top):
        print(f"  {top}: {' + '.join(str(len(g)) for g in by_top[top])}")
        for group in by_top[top]:
            print(f"    {len(group):3}: {' '.join(name.split('/', 1)[1] for name in group)}")


def type_names(text):
    """The types that a source defines: tags of struct, union and enum with a body, and names of typedefs."""
    text = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', " ", text, flags=re.S)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", " ", text, flags=re.M)
    text = re.sub(r"\bextern\s*\{", " ", text)
    names = set(re.findall(r"\b(?:struct|union|enum)\s+(\w+)\s*\{", text))
    flat, depth = [], 0
    for c in text:
        depth = max(0, depth + (c == "{") - (c == "}"))
        flat.append(c if depth == 0 or c == "{" else " ")
    for found in re.finditer(r"\btypedef\b([^;]*);", "".join(flat)):
        body = re.sub(r"\{\s*\}?", " {} ", found.group(1))
        alias = re.match(r"\s*(?:struct|union|enum)\s+(\w+)\s+(\w+)\s*$", body)
        if alias and alias.group(1) == alias.group(2):
            continue  # a name made known, not a type defined
        function = re.search(r"\(\s*\*?\s*(\w+)\s*\)\s*\(", body)
        last = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*|\([^()]*\)\s*)*$", body)
        name = function or last
        if name:
            names.add(name.group(1))
    return names


def say_types(root, files):
    where = collections.defaultdict(list)
    for name in files:
        for kind in type_names((root / name).read_text(encoding="utf-8")):
            where[kind].append(name)
    double = {kind: at for kind, at in where.items() if len(at) > 1}
    ours = {kind: at for kind, at in double.items() if re.match(r"fm[a-z]?_|fmc_", kind)}
    print(f"type names that are defined in more than one file: {len(double)}, of these with a prefix: {len(ours)}")
    for kind in sorted(ours):
        print(f"  {kind}: {' '.join(ours[kind])}")
    rest = sorted(set(double) - set(ours))
    print("  without a prefix: " + " ".join(f"{kind} ({len(double[kind])})" for kind in rest))


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    files = rooms.sources(root)
    say_lines(root, files)
    say_folders(root, files)
    if len(sys.argv) > 2:
        say_circles(root, pathlib.Path(sys.argv[2]).resolve())
    say_types(root, files)


main()
