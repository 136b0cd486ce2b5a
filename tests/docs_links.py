#!/usr/bin/env python3
"""docs_links.py ROOT - the Markdown of the repository holds together.

Every relative link leads to a file and, with #, to a heading of it. README.md has at most 8 KB and the
lines of its excerpt of the tour stand in docs/tour.md. No prose line has more than 100 columns (code,
tables and lines that are one link or one code span are no prose). Every breach is printed; the exit
code is 1 if there was any."""
import os
import re
import subprocess
import sys

COLUMNS = 100
README_BYTES = 8192
UNWRAPPED = {"store/README.md", "lineage/README.md"}
LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\(<?([^)\s>]+)>?\)")


def prose(text):
    """(line number, line) of what is neither fenced nor indented code, nor a table."""
    fence, blank, listed = "", True, False
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence:
            fence = "" if mark and line.strip() == fence else fence
            blank = False
        elif mark:
            fence = mark[1]
        elif not line.strip():
            blank = True
        else:
            indented = len(line) - len(line.lstrip()) >= 4 and not listed
            listed = bool(re.match(r"\s*([-*+]|\d+[.)])\s", line)) or (listed and line[0] == " ")
            if line.lstrip()[0] != "|" and not (indented and blank):
                yield number, line
                blank = False


def anchors(text):
    found = set()
    for _, line in prose(text):
        if re.match(r"#{1,6} ", line):
            words = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            found.add(words.replace(" ", "-"))
    return found


def check_links(name, text):
    bad = []
    bare = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
    bare = re.sub(r"`[^`\n]*`", "", bare)
    for match in LINK.finditer(bare):
        target = match[1]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        there = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
        line = bare.count("\n", 0, match.start()) + 1
        if not os.path.exists(there):
            bad.append(f"{name}:{line}: no such file: {target}")
        elif heading and heading not in anchors(open(there, encoding="utf-8").read()):
            bad.append(f"{name}:{line}: no such heading: {target}")
    return bad


def check_columns(name, text):
    return [f"{name}:{number}: {len(line)} columns, at most {COLUMNS}"
            for number, line in prose(text)
            if len(line) > COLUMNS and " " in line.strip().lstrip("-* ") and line[0] != "#"]


def check_excerpt():
    bad = []
    tour = open("docs/tour.md", encoding="utf-8").read()
    block = re.search(r"```console\n(.*?)```", open("README.md", encoding="utf-8").read(), re.S)
    for line in block[1].rstrip("\n").split("\n") if block else ["(no console block)"]:
        at = -1
        for part in line.split("..."):
            at = tour.find(part.strip(), at + 1)
            if at < 0:
                bad.append(f"README.md: not in docs/tour.md: {line}")
                break
    return bad


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), ".."))
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], capture_output=True,
                            text=True, check=False).stdout.split()
    if not listed:  # no git, or no repository: what the folders hold
        listed = [os.path.relpath(os.path.join(folder, f)) for folder, _, files in os.walk(".")
                  for f in files if f.endswith(".md") and "/build" not in folder and "/." not in folder]
    bad = check_excerpt()
    size = os.path.getsize("README.md")
    if size > README_BYTES:
        bad.append(f"README.md: {size} bytes, at most {README_BYTES}")
    for name in sorted(listed):
        text = open(name, encoding="utf-8").read()
        bad += check_links(name, text)
        if name not in UNWRAPPED:
            bad += check_columns(name, text)
    print("\n".join(bad) if bad else f"{len(listed)} files hold together")
    return 1 if bad or not listed else 0


sys.exit(main())
