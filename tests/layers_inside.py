#!/usr/bin/env python3
"""layers_inside.py ROOT [BUILD] - the order of the sub-folders inside each top folder (rooms.py).

Without BUILD it reads the includes; with BUILD it reads the calls, from the objects of that build. A file may use what
stands in its own sub-folder or to the left of it, never what stands to the right. What breaks this today is in
layers_allowed.txt, one pair a line under their number. A line that no longer holds is an error too: the list only
shrinks."""
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import rooms


def allowed(path, kind):
    """The pairs that the list names of one kind; as many as its line `number KIND N` says."""
    pairs, number = [], None
    for line in path.read_text().splitlines():
        words = line.split("#")[0].split()
        if words[:2] == ["number", kind]:
            number = int(words[2])
        elif words and words[0] == kind:
            pairs.append((words[1], words[2]))
    if number != len(pairs):
        raise SystemExit(f"{path.name}: {len(pairs)} lines of {kind}, and 'number {kind} {number}'")
    return pairs


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    listing = pathlib.Path(__file__).resolve().parent / "layers_allowed.txt"
    files = rooms.sources(root)
    said = []
    if len(sys.argv) > 2:
        kind, verb = "call", "calls"
        edges = rooms.calls(root, pathlib.Path(sys.argv[2]).resolve())
    else:
        kind, verb = "include", "includes"
        edges = {pair: set() for pair in rooms.includes(root, files)}
        for name in files:
            if name.split("/")[0] in rooms.ORDER and rooms.level(name) is None:
                said.append(f"{name}: its sub-folder has no place in the order of tests/rooms.py")
    upward = {}
    for (name, to), symbols in edges.items():
        low, high = rooms.level(name), rooms.level(to)
        if name.split("/")[0] == to.split("/")[0] and None not in (low, high) and high > low:
            upward[name, to] = symbols
    listed = allowed(listing, kind)
    for name, to in sorted(set(upward) - set(listed)):
        what = f" ({', '.join(sorted(upward[name, to]))})" if upward[name, to] else ""
        said.append(f"{name} {verb} {to}{what}, which stands to its right in the order of tests/rooms.py")
    for name, to in sorted(set(listed) - set(upward)):
        said.append(f"layers_allowed.txt: '{kind} {name} {to}' no longer holds: take the line out")
    for pair in sorted({p for p in listed if listed.count(p) > 1}):
        said.append(f"layers_allowed.txt: '{kind} {pair[0]} {pair[1]}' stands there twice")
    print("\n".join(said + [f"{len(listed)} {kind}s to the right are allowed, {len(upward)} found"]))
    return 1 if said else 0


sys.exit(main())
