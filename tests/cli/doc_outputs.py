"""doc_outputs.py - what the documents show is what the program prints.

    doc_outputs.py tour TOUR.md OUTPUT     compares docs/tour.md with what examples/tour.sh printed
    doc_outputs.py run FOLDER DOC...       runs the `$` lines of each ```console block of DOC in FOLDER,
                                           in their order, and compares what they print

Times, sizes, rates, ids of versions and ports differ from run to run and are compared as such, and so
are counts of packs and objects (checkpoints are kept by time); every other word and number is equal. A line `...` stands for lines that are left out.
A block that needs what the test has not got carries another word than console (```text)."""
import os
import re
import subprocess
import sys

UNSTABLE = [
    (r"\b[0-9a-f]{10}\b|(?<=^\* )[0-9a-f]{7}\b", "ID"),
    (r"127\.0\.0\.1:\d+", "HOST"),
    (r"\b\d[\d.,e+-]* ?(s|ms|us|B|kB|MB|GB|GB/s|TFLOP/s|tokens/s|objects|packs)(?![\w/])", r"N \1"),
    (r"^(fmstore_step_\w+) \d+", r"\1 N"),
    (r"(?<=: )[\d.]+ %$", "N %"),
]
# What the tour prints of each data set and of each training run, but for a line of each.
LEFT_OUT = re.compile(
    r"  \S+\.jsonl: |  every answer ends|  \d+ repeated|  \d+ texts of suites| +32 tokens or less"
    r"|  first example|  \| |  warning: \d+ examples|# Done in")


def stable(line):
    line = re.sub(r"^[|*/\\ ]*\* (?=[0-9a-f]{7} )", "* ", line.rstrip())  # git log --graph
    line = re.sub(r"^[|*/\\ ]+(?=recipe\.json|suites/|\d+ files? changed)", "", line)
    for pattern, word in UNSTABLE:
        line = re.sub(pattern, word, line)
    return re.sub(r"\s+", " ", re.sub(r"^[|`]-- ", "", line)).strip()


def blocks(path):
    """The ```console blocks of a document, each a list of (line number, line)."""
    found, inside = [], False
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        if line.startswith("```"):
            inside = not inside and line.strip() == "```console"
            if inside:
                found.append([])
        elif inside:
            found[-1].append((number, line.rstrip("\n")))
    return found


def last_steps_only(lines):
    """Progress lines of a training run: only that of its last step stays."""
    for line in lines:
        step = re.match(r"  \S+  step (\d+)/(\d+) ", line)
        if not LEFT_OUT.match(line) and (not step or step[1] == step[2]):
            yield line


def sections(lines):
    """The lines of each command. Children that train beside each other report in any order."""
    found = [("", [])]
    for line in lines:
        if line.startswith(("$ ", "# ")):
            found.append((line, []))
        elif line.strip(" |/\\"):
            found[-1][1].append(stable(line))
    return [(head, sorted(body)) for head, body in found]


def tour(document, output):
    told = sections(line for block in blocks(document) for _, line in block)
    printed = sections(last_steps_only(open(output, encoding="utf-8").read().split("\n")))
    bad = [f"  the page has '{a[0]}', the tour '{b[0]}'" for a, b in zip(told, printed) if a[0] != b[0]]
    if len(told) != len(printed):
        bad.append(f"  the page has {len(told)} parts, the tour {len(printed)}")
    for (head, want), (_, got) in zip(told, printed):
        bad += [f"  {head}\n    not printed: {line}" for line in want if line not in got]
        bad += [f"  {head}\n    not on the page: {line}" for line in got if line not in want]
    return bad


def as_told(want, got):
    """Whether the lines got are those wanted; '...' is any number of lines, or the rest of one."""
    if not want:
        return not got
    if want[0] == "...":
        return any(as_told(want[1:], got[i:]) for i in range(len(got) + 1))
    if not got:
        return False
    head = want[0]
    equal = got[0].startswith(head[:-3]) if head.endswith("...") else got[0] == head
    return equal and as_told(want[1:], got[1:])


def run(folder, document):
    bad, count = [], 0
    for block in blocks(document):
        commands = []
        for number, line in block:
            if line.startswith("$ "):
                commands.append((number, [line[2:]], []))
            elif commands and commands[-1][1][-1].endswith("\\") and not commands[-1][2]:
                commands[-1][1].append(line)
            elif commands:
                commands[-1][2].append(line)
        for number, command, want in commands:
            done = subprocess.run(["bash", "-c", "\n".join(command)], cwd=folder, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ)
            got = [stable(line) for line in last_steps_only(done.stdout.split("\n")) if line.strip()]
            count += 1
            if not as_told([stable(line) for line in want if line.strip()], got):
                bad.append(f"{document}:{number}: {command[0]}\n" + "".join(f"    {g}\n" for g in got))
    if not count:
        bad.append(f"{document}: no console block")
    return bad


def main():
    if sys.argv[1] == "tour":
        bad = tour(sys.argv[2], sys.argv[3])
    else:
        bad = [b for document in sys.argv[3:] for b in run(sys.argv[2], document)]
    print("\n".join(bad))
    return 1 if bad else 0


sys.exit(main())
