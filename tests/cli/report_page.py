"""What a browser draws of a report: report_page.py PAGE.html, with chromium in PATH.

A copy of the page gets a measuring script; the page itself has none. Checked in the light and the
dark scheme: nothing on the console, every mark of the pictures has a box and lies inside its
picture, nothing sticks out of the page (narrow windows too), the colours of the matrix where it is
drawn, by the pixels of a screenshot of the unchanged page."""
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import zlib

MEASURE = """<script>
const errors = [];
window.addEventListener('error', e => errors.push(String(e.message)));
window.addEventListener('load', () => {
  const box = e => { const r = e.getBoundingClientRect();
    return [r.left + scrollX, r.top + scrollY, r.width, r.height].map(v => Math.round(v * 10) / 10); };
  const out = {errors, width: document.documentElement.clientWidth,
    scroll: document.documentElement.scrollWidth, paper: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color, marks: [], svg: [], tables: document.querySelectorAll('table').length};
  document.querySelectorAll('svg').forEach((s, i) => {
    out.svg.push({box: box(s), says: s.querySelector('title').textContent});
    s.querySelectorAll('rect, circle, line, text').forEach(m => out.marks.push({svg: i, tag: m.tagName,
      css: m.getAttribute('class') || '', box: box(m)}));
  });
  out.cells = [...document.querySelectorAll('td.cell')].map(c => ({text: c.textContent, box: box(c)}));
  out.heads = [...document.querySelectorAll('th.head')].map(h => h.textContent);
  out.tokens = [...document.querySelectorAll('.tok')].map(t => box(t));
  const pre = document.createElement('pre');
  pre.id = 'measured'; pre.hidden = true; pre.textContent = JSON.stringify(out);
  document.body.appendChild(pre);
});
</script></body>"""


def browser(page, dark, size, *more):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--force-device-scale-factor=1", "--enable-logging=stderr", "--log-level=0",
               f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--window-size={size}", *more,
               page.as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=600)
    said = [l for l in done.stderr.decode(errors="replace").splitlines() if "CONSOLE" in l]
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    assert not said, said
    return done.stdout.decode()


def measured(page, folder, dark, width):
    text = page.read_text()
    assert "<script" not in text and text.count("</body>") == 1
    copy = folder / "measured.html"
    copy.write_text(text.replace("</body>", MEASURE))
    dom = browser(copy, dark, f"{width},800", "--dump-dom")
    found = re.search(r'<pre id="measured" hidden="">(.*?)</pre>', dom, re.S)
    assert found, dom[-2000:]
    unescaped = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u00a0").replace("&amp;", "&")
    return json.loads(unescaped)


def pixels(path):
    """RGB rows of an 8-bit PNG without interlace, by the standard alone."""
    data, at, packed = path.read_bytes(), 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
            assert depth == 8 and colour in (2, 6) and not interlace
        packed += body if kind == b"IDAT" else b""
        at += 12 + size
    raw, step, rows = zlib.decompress(packed), {2: 3, 6: 4}[colour], []
    line = width * step
    before = bytearray(line)
    for y in range(height):
        how, now = raw[y * (line + 1)], bytearray(raw[y * (line + 1) + 1:(y + 1) * (line + 1)])
        for x in range(line if how else 0):
            left = now[x - step] if x >= step else 0
            corner = before[x - step] if x >= step else 0
            if how == 4:
                guess = left + before[x] - corner
                near = [abs(guess - v) for v in (left, before[x], corner)]
                add = (left, before[x], corner)[near.index(min(near))]
            else:
                add = {1: left, 2: before[x], 3: (left + before[x]) // 2}[how]
            now[x] = now[x] + add & 255
        rows.append(now)
        before = now
    return lambda x, y: tuple(rows[y][x * step:x * step + 3])


def check_marks(m, wide):
    frame = [s["box"] for s in m["svg"]]
    for s in m["svg"]:
        assert s["says"] and s["box"][2] > 0 and s["box"][3] > 0, s
    for mark in m["marks"]:
        x, y, w, h = mark["box"]
        assert w > 0 or h > 0, mark
        assert (w > 0 and h > 0) or mark["tag"] == "line", mark
        fx, fy, fw, fh = frame[mark["svg"]]
        assert x >= fx - 1 and y >= fy - 1 and x + w <= fx + fw + 1 and y + h <= fy + fh + 1, (mark, frame[mark["svg"]])
    assert m["scroll"] <= m["width"], f"the page is {m['scroll']} wide in a window of {m['width']}"
    assert not m["errors"], m["errors"]
    assert m["tables"] >= 4 and m["tokens"] and all(w > 0 and h > 0 for _, _, w, h in m["tokens"])
    assert wide != (m["width"] < 600)


def check_colours(page, folder, m, dark):
    shot = folder / "shot.png"
    broken = [k for k in m["marks"] if m["svg"][k["svg"]]["says"].startswith("broken") and k["css"] == "bad"]
    bottom = max(k["box"][1] + k["box"][3] for k in m["cells"] + broken)
    browser(page, dark, f"1100,{int(bottom) + 20}", "--run-all-compositor-stages-before-draw",
            f"--screenshot={shot}")
    pixel = pixels(shot)
    at = lambda x, y: pixel(int(x), int(y))
    paper = at(8, 8)
    assert (max(paper) < 60) if dark else (min(paper) > 240), paper
    seen = set()
    for cell in m["cells"]:
        x, y, w, h = cell["box"]
        r, g, b = at(x + 4, y + 4)
        passed, of = (int(n) for n in cell["text"].split(",")[0].split(" of "))
        seen.add(passed / of)
        if passed == of:
            assert g > r + 40 and g > b + 20, (cell, r, g, b)
        elif passed / of < 0.2:
            assert r > g + 80 and r > b + 80, (cell, r, g, b)
    assert 1 in seen and min(seen) < 0.2, seen
    for mark in broken:
        x, y, w, h = mark["box"]
        r, g, b = at(x + w / 2, y + h / 2)
        assert r > g + 60 and r > b + 60, (mark, r, g, b)
    return len(m["cells"]), len(broken)


def main():
    page = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        light = measured(page, folder, False, 1100)
        narrow = measured(page, folder, True, 500)
        check_marks(light, True)
        check_marks(narrow, False)
        assert light["paper"] != narrow["paper"] and light["ink"] != narrow["ink"]
        count = lambda css: sum(css in k["css"].split() for k in light["marks"])
        cells, broken = check_colours(page, folder, light, False)
        print(json.dumps({"cells": cells, "dots": count("dot"), "broken": broken,
                          "svg": [s["says"] for s in light["svg"]], "tokens": len(light["tokens"]),
                          "heads": light["heads"]}))
        check_colours(page, folder, light, True)


main()
