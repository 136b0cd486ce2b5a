#!/usr/bin/env python3
"""layers_inside.py ROOT [BUILD] - the order of the sub-folders inside each top folder (rooms.py).

Without BUILD it reads the includes; with BUILD it reads the calls, from the objects of that build.
A file may use what stands in its own sub-folder or to the left of it, never what stands to the
right. Every breach is printed; the exit code is 1 if there was any."""
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import rooms


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
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
    for (name, to), symbols in sorted(edges.items()):
        low, high = rooms.level(name), rooms.level(to)
        if name.split("/")[0] == to.split("/")[0] and None not in (low, high) and high > low:
            what = f" ({', '.join(sorted(symbols))})" if symbols else ""
            said.append(f"{name} {verb} {to}{what}, to its right in the order of tests/rooms.py")
    print("\n".join(said + [f"{len(edges)} {kind}s between files, {len(said)} breaches"]))
    return 1 if said else 0


sys.exit(main())
