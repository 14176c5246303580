#!/usr/bin/env python3
"""charts.py [--check]: draws docs/images/*.svg from the results in tests/gpu/results and the screens of `vgpu top`, and writes the tables of
figures in docs from these results and those in tests/e2e/results.

A table stands between `<!-- scripts/charts.py: NAME -->` and `<!-- end -->`. With --check charts.py writes nothing, and exits with 1 if a
picture or a table is not what it would write. The pictures follow the reader's colour scheme.
"""

import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests/gpu/results"
HOST = ROOT / "tests/e2e/results"
IMAGES = ROOT / "docs/images"

# Colours of the light and the dark scheme, by class. The series are distinct to colour-blind readers, too (after Okabe and Ito).
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; font-size: 15px; } .note { font-size: 11px; fill: #57606a; }
.mono { font: 13px ui-monospace, monospace; white-space: pre; }
.paper { fill: #ffffff; } .screen { fill: #f6f8fa; stroke: #d0d7de; } .selected { fill: #d8e6f6; } .box { fill: #f6f8fa; stroke: #57606a; }
.line { stroke: #57606a; fill: none; } .grid { stroke: #d0d7de; } .limit { stroke: #24292f; stroke-dasharray: 5 3; }
tspan { stroke: none !important; } .s0 { fill: #009e73; stroke: #009e73; } .s1 { fill: #d55e00; stroke: #d55e00; } .s2 { fill: #0072b2; stroke: #0072b2; } .s3 { fill: #a37800; stroke: #a37800; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .note { fill: #9da7b1; }
.paper { fill: #0d1117; } .screen { fill: #161b22; stroke: #30363d; } .selected { fill: #24374d; } .box { fill: #161b22; stroke: #9da7b1; }
.line { stroke: #9da7b1; } .grid { stroke: #30363d; } .limit { stroke: #e6edf3; }
.s0 { fill: #2ec79b; stroke: #2ec79b; } .s1 { fill: #ff8a3d; stroke: #ff8a3d; } .s2 { fill: #58a6ff; stroke: #58a6ff; } .s3 { fill: #e3b341; stroke: #e3b341; }
}
"""


def table(file, heading, folder=RESULTS):
    """Returns the rows of the first table below a heading, or that begins with it, each as a list of cells without emphasis."""
    text = (folder / file).read_text()
    start = text.index(f"\n{heading}\n") if heading else 0
    rows = []
    for line in text[start:].splitlines():
        if line.startswith("|"):
            rows.append([cell.strip().strip("*") for cell in line.strip("|").split("|")])
        elif rows:
            break
    return rows[2:]


def cell(rows, name, column, part=0):
    """Returns a number: the cell's `part`, counted from 0, of those separated by slashes; None where nothing was measured."""
    found = next((row for row in rows if row[0] == name), None)
    if found is None:
        sys.exit(f"charts.py: {name!r}: expected a row of this name")
    parts = found[column].split("/")
    number = re.match(r"\d*\.?\d+", parts[part].strip()) if part < len(parts) else None
    return float(number.group()) if number else None


def svg(width, height, label, parts):
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{html.escape(label)}">\n<style>{STYLE}</style>\n<rect class="paper" width="{width}" height="{height}" rx="6"/>\n{body}\n</svg>\n'
    )


def text(x, y, words, kind="", anchor="start"):
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{html.escape(words)}</text>'


def line(x1, y1, x2, y2, kind):
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


def mark(x, y, series):
    """A mark of each series' own shape, so that colour is not all that tells them apart."""
    if series == 0:
        return f'<circle cx="{x:g}" cy="{y:g}" r="6" class="s0"/>'
    if series == 1:
        return f'<rect x="{x - 5:g}" y="{y - 5:g}" width="10" height="10" class="s1"/>'
    if series == 2:
        return f'<path d="M{x:g} {y - 6:g} l6 11 h-12 z" class="s2"/>'
    return f'<path d="M{x:g} {y - 7:g} l6 7 l-6 7 l-6 -7 z" class="s3"/>'


def dots(title, label, rows, series, scale, limit, ticks, notes, width=560):
    """Draws a row of marks for each name: `rows` has names with one value for each series, `scale` maps a value to 0..1."""
    left, top, step = 190, 76, 34
    plot = width - left - 30
    height = top + step * len(rows) + 30 + 16 * len(notes)
    place = lambda value: left + plot * scale(value)
    bottom = top + step * len(rows) - 10
    parts = [text(20, 28, title, "title")]
    at = left
    for number, name in enumerate(series):
        parts += [mark(at + 6, 48, number), text(at + 18, 52, name)]
        at += 34 + 8 * len(name)
    for value, words in ticks:
        parts += [line(place(value), top - 12, place(value), bottom, "grid"), text(place(value), bottom + 16, words, "note", "middle")]
    parts.append(line(place(limit), top - 14, place(limit), bottom, "limit"))
    for number, (name, values) in enumerate(rows):
        y = top + 6 + step * number
        parts.append(text(left - 14, y + 5, name, anchor="end"))
        # Marks of the same value stay apart. vgpu's is drawn last.
        spread = lambda which: y + 5 * (which - (len(series) - 1) / 2)
        parts += [mark(place(value), spread(which), which) for which, value in reversed(list(enumerate(values))) if value is not None]
    parts += [text(20, bottom + 38 + 16 * number, note, "note") for number, note in enumerate(notes)]
    return svg(width, height, label, parts)


# The current library, of one container, by kernel and limit.
EXACT = "C, 2.5 s after the first second; sd is over windows of 100 ms:"


def time():
    ours, peers = table("compute.md", EXACT), table("peers.md", "## Share of GPU time")
    rows = []
    for name, theirs in [("20 us", "20 us"), ("200 us", "200 us"), ("2 ms", "2 ms"), ("100 ms", "50 ms")]:
        shown = name if name == theirs else f"{name} ({theirs} for the others)"
        rows.append((shown.replace("us", "µs"), [cell(ours, name, 3)] + [cell(peers, theirs, column, 1) for column in (1, 2, 3)]))
    return dots(
        "Share of the GPU's time with a limit of 50%",
        "Share of GPU time obtained with a limit of 50 percent, by length of kernel, for vgpu, HAMi-core, vgpu-manager and MPS",
        rows,
        ["vgpu", "HAMi-core", "vgpu-manager", "MPS"],
        lambda value: value,
        0.5,
        [(tick / 100, f"{tick}%") for tick in (0, 25, 50, 75, 100)],
        ["H200, kernels of one length back to back, one program alone. MPS: 200 µs only.", "tests/gpu/results/compute.md (library C), peers.md"],
    ).replace("100 ms (50 ms for the others)", "100 ms (others: 50 ms)")


def memory():
    peers, ours = table("peers.md", "## Memory with a limit of 2 GiB"), [row for row in table("ways.md", "") if len(row) > 6]
    peak = lambda method, chunk: next(float(row[6]) for row in ours if row[:2] == [method, chunk])
    measured = {
        "chunks of 1 MiB + 4 KiB": peak("cuMemAlloc", "1 MiB + 4096 B"),
        "chunks of 2 MiB + 512 B": peak("cuMemAlloc", "2 MiB + 512 B"),
        "malloc heap of 4 GiB": peak("cuCtxSetLimit, malloc heap", "4096 MiB"),
        "stack of 64 KiB": peak("cuCtxSetLimit, stack", "16896 MiB"),
        "modules with large arrays": peak("cuModuleLoadData, large arrays", "64 MiB"),
    }
    rows = [(name, [value / 1024, cell(peers, name, 1) / 1024, cell(peers, name, 2) / 1024]) for name, value in measured.items()]
    return dots(
        "Device memory held with a limit of 2 GiB",
        "Device memory that a program held with a limit of 2 GiB, by way of allocating, for vgpu, HAMi-core and vgpu-manager",
        rows,
        ["vgpu", "HAMi-core", "vgpu-manager"],
        lambda value: value / 18,
        2,
        [(tick, f"{tick} GiB") for tick in (0, 2, 4, 8, 12, 16)],
        ["H200; what NVML listed for the process at most. tests/gpu/results/ways.md, peers.md"],
    )


def latency():
    """Response times of a small tenant beside a busy one, in multiples of those alone."""
    rows = []
    alone = found = None
    for row in table("sharing.md", "## One tenant that works now and then (30%) beside a busy one (70%)"):
        if row[0].startswith(".5 ms"):
            break
        native, ours = ([float(part) for part in row[column].split("/")] for column in (2, 3))
        if row[1] == "nobody":
            alone = native
        elif row[1] in ("200 us", "2 ms", "100 ms"):
            found = (ours[0] / alone[0], ours[2] / alone[1], native[0] / alone[0], native[1] / alone[1])
            name = row[1].replace("us", "µs")
            rows += [(f"{name}: median", [found[0], found[2]]), (f"{name}: 99th percentile", [found[1], found[3]])]
    return dots(
        "Response time beside a busy neighbour, in multiples of that alone",
        "Response time of requests of 1 ms beside a neighbour that is always busy, in multiples of the time alone, with vgpu and with the driver's time slices",
        rows,
        ["vgpu, 30% beside 70%", "driver's time slices"],
        lambda value: value / 4,
        1,
        [(tick, f"x {tick}") for tick in (0, 1, 2, 3, 4)],
        ["H100; 50 requests of 1 ms a second; neighbour's kernels of 200 µs, 2 ms and 100 ms. tests/gpu/results/sharing.md"],
        width=760,
    )


def request():
    """The way of a request, from the annotation to the refusal."""
    boxes = [
        (20, "Request", ["annotation", "claim", "environment"]),
        (170, "vgpu-runtime", ["policy decides", "limits, mounts", "edits the bundle"]),
        (320, "Container", ["limits: read-only", "accounts: shared", "libvgpu.so"]),
        (470, "libvgpu.so", ["counts memory", "measures time", "before the driver"]),
        (620, "Answer", ["memory", "or CUDA_ERROR_", "OUT_OF_MEMORY"]),
    ]
    parts = []
    for number, (x, name, lines) in enumerate(boxes):
        parts.append(f'<rect x="{x}" y="14" width="125" height="92" rx="6" class="box"/>')
        parts.append(text(x + 62, 36, name, "title", "middle"))
        parts += [text(x + 62, 57 + 18 * at, words, "", "middle") for at, words in enumerate(lines)]
        if number:
            parts.append(f'<path d="M{x - 25} 60 h19 m-6 -5 l6 5 l-6 5" class="line"/>')
    parts.append('<rect x="170" y="136" width="575" height="44" rx="6" class="box"/>')
    parts.append(text(457, 155, "vgpu monitor, on the host", "title", "middle"))
    parts.append(text(457, 172, "compares NVML with the limits, lets busy containers take turns, has metrics", "", "middle"))
    parts += [f'<path d="M{x} 132 v-22 m-5 6 l5 -6 l5 6" class="line"/>' for x in (382, 532)]
    return svg(765, 194, "An annotation is read by vgpu-runtime, which writes limits into the container, where libvgpu.so enforces them", parts)


# Bars and sparklines in a terminal's text: the characters, and the class that they are drawn in.
BLOCKS = re.compile("(?P<s2>[▁▂▃▄▅▆▇█]*[▁▂▃▄▅▆▇][▁▂▃▄▅▆▇█]*|(?<=busy )█+)|(?P<s0>[█▏▎▍▌▋▊▉]+)|(?P<note>·+)")


def coloured(words):
    """Returns a line of a terminal as SVG text, with bars and sparklines in colour."""
    span = lambda found: f'<tspan class="mono {found.lastgroup}">{found.group()}</tspan>'
    return BLOCKS.sub(span, html.escape(words))


def terminal(snapshot, label):
    """Draws a screen of `vgpu top`, as its tests store it."""
    lines = (ROOT / "cli/src/top/snapshots" / snapshot).read_text().rstrip("\n").split("\n")
    # Empty lines between the list and the last two lines say nothing in a picture.
    while len(lines) > 4 and not lines[-3].strip() and not lines[-4].strip():
        del lines[-3]
    width, height = 80 * 8 + 40, len(lines) * 18 + 32
    parts = [f'<rect class="screen" x="8" y="8" width="{width - 16}" height="{height - 16}" rx="6"/>']
    # The last but one line names the selected row.
    name = lines[-2].split("  ")[0].rsplit("/", 1)[-1]
    selected = next((number for number, words in enumerate(lines[:-2]) if name and words[2:].startswith(name)), None)
    if selected is not None:
        parts.append(f'<rect class="selected" x="14" y="{32 + 18 * selected - 14}" width="{width - 28}" height="18"/>')
    parts += [
        f'<text xml:space="preserve" x="20" y="{32 + 18 * number}" class="mono" textLength="{8 * len(words):g}">{coloured(words)}</text>'
        for number, words in enumerate(lines)
        if words.strip()
    ]
    return svg(width, height, label, parts)


def found(file, pattern, folder=RESULTS):
    """Returns the groups of the only place in a file of results that matches, with white space as one space."""
    places = re.findall(pattern, " ".join((folder / file).read_text().split()))
    if len(places) != 1:
        sys.exit(f"charts.py: {file}: expected one place with {pattern!r}, found {len(places)}")
    return places[0]


def row(rows, *first):
    """Returns the row whose first cells are these."""
    rows = [each for each in rows if each[: len(first)] == list(first)]
    if not rows:
        sys.exit(f"charts.py: {first}: expected a row of this name")
    return rows[0]


def markdown(heading, rows):
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" if cells[0] != "---" else "|" + "---|" * len(cells) + "\n" for cells in lines)


def exact():
    rows = table("compute.md", EXACT)
    kernels = ["20 us", "200 us", "2 ms", "20 ms", "100 ms", "graph of 20 x 100 us", "four streams of 200 us"]
    # Some cells have a remark on another build.
    shares = [[kernel, *(cell.split(",")[0].strip("*") for cell in row(rows, kernel)[1:7])] for kernel in kernels]
    return markdown(["kernel", "10%", "25%", "50%", "75%", "90%", "sd over 100 ms, max"], [cells[:6] + [cells[6].split(" (")[0].strip("*")] for cells in shares])


def costs():
    compute, sharing, calls = ("[compute.md](../../tests/gpu/results/compute.md#{})".format, "[sharing.md](../../tests/gpu/results/sharing.md)",
                               table("costs.md", ""))  # fmt: skip
    launch = {words: row(table("compute.md", "An empty launch, `launch`, three runs each, one build after the other, median and 99th percentile in ns (native in the same run):"), words)[1].split(",")[0].strip("*")
              for words in ("native", "no limit", "90%")}  # fmt: skip
    beside = {stream: row(table("compute.md", "### Launches"), stream)[1:3] for stream in ("its own; 2945", "the default stream; 3138")}
    cost = lambda cells: cells.split(" (")[0].strip("*") + " ns"
    own, default = beside.values()
    rows = [
        ["launch of an empty kernel, no limit on GPU time", f"{launch['native']} ns", f"{launch['no limit']} ns (noise about 200)", compute("after-the-simplification-of-2026-11-24") + ", H200, library D"],
        ["the same, limit of 90%", f"{launch['native']} ns", f"{launch['90%']} ns", "the same"],
        ["the same, by an earlier library, both in turn in one process", "2945 ns", f"{cost(own[0])} without a limit, {cost(own[1])} with 90% (error about 30); {cost(default[1])} on the default stream", compute("launches") + ", H200, build A"],
    ]  # fmt: skip
    call = lambda name: row(calls, name)
    ns = lambda value: f"{int(value) / 1e6:.0f} ms" if int(value) >= 1e7 else f"{int(value) / 1000:.1f} us" if int(value) >= 10000 else f"{value} ns"
    for number, (words, name) in enumerate([
        ("`cuMemAlloc` of 4 KiB, 10,000 live", "cuMemAlloc 4 KiB, 10000 live"),
        ("`cuMemAlloc` of 4 MiB, 500 live", "cuMemAlloc 4 MiB, 500 live"),
        ("`cuMemAllocAsync` and `cuMemFreeAsync` of 2 MiB", "cuMemAllocAsync + cuMemFreeAsync, 2 MiB"),
        ("first CUDA call of a process", "first CUDA call and context"),
        ("start of any program", "start of /bin/true"),
    ]):  # fmt: skip
        cells = call(name)
        where = "the same" if number else "[costs.md](../../tests/gpu/results/costs.md), H200, build " + found("costs.md", r"^.*? build (\w+), one GPU")
        # An empty library has the same ratio where the difference is noise.
        rows.append([words, ns(cells[1]), f"{cells[3].split()[0].lstrip('0')} times (an empty library: {cells[5].split()[0].lstrip('0')})", where])
    first = row(table("scale.md", "", HOST), "10 (5)")
    replaced = [row(table("create.md", "", HOST), kind)[3] for kind in ["runc", 'vgpu, `"preload"`', 'vgpu, `"both"`']]
    rows += [
        ["PyTorch matmul, no limit", "", found("compute.md", r"matmul (-[0-9.]+ \([0-9.]+\)%), training step \+0.2") + ", in brackets the error", compute("pytorch") + ", build A"],
        ["start of a container, median", first[2].split(" / ")[0] + " ms", first[2].split(" / ")[1] + " ms", "[scale.md](../../tests/e2e/results/scale.md), 10 containers, simulated GPU"],
        ["the same with a driver, with `intercept` as `\"preload\"`, and as `\"both\"`", f"{replaced[0]} ms", f"{replaced[1]} and {replaced[2]} ms", "[create.md](../../tests/e2e/results/create.md), load 4 to 5, simulated GPU"],
        ["CPU of a container at 50%, kernels of 2 ms", "", row(table("compute.md", EXACT), "2 ms")[7] + " of a core", compute("after-the-simplification-of-2026-11-24") + ", library C"],
        ["turns for busy tenants", "", found("sharing.md", r"Jain 1.00000 \(build 4\). The arbiter took ([.0-9]+ to [.0-9]+%) of a core") + " of a core", sharing + ", H200"],
    ]  # fmt: skip
    return markdown(["what", "natively", "with vgpu", "where"], rows)


def sharing():
    pairs, h200 = table("sharing.md", "## Two busy tenants"), row(table("sharing.md", "| busy tenants, 500 us | sum | Jain | got / share | arbiter, of a core | build, seconds |"), "16 of 6%")
    two, now = row(pairs, "200 us"), row(table("sharing.md", "## One tenant that works now and then (30%) beside a busy one (70%)"), "", "200 us")
    rows = [
        ["two busy ones, 30 and 70, kernels of 200 us", f"{two[2]} of the GPU; the driver's slices give {two[1]}", "H100"],
        ["sixteen busy ones of 6%, kernels of 500 us", f"{h200[1].lstrip('0')} in sum, each {h200[3]} of its share", "H200"],
        ["one that works now and then beside a busy one, 1 ms, 50 a second", f"{now[3].split(' / ')[0]} ms instead of {now[2].split(' / ')[0]} ms for a request (median)", "H100"],
    ]  # fmt: skip
    return markdown(["containers", "measured", "on"], rows)


def scale():
    rows = [[cells[0].split()[0], cells[2], cells[6], cells[8].split(" / ")[1] + " / " + cells[9]] for cells in table("scale.md", "", HOST)]
    return markdown(["containers", "container start, runc / vgpu, median, ms", "monitor, CPU of one core", "scrape, median, ms / KiB"], rows)


# The tables of figures: page and name.
TABLES = {("docs/measure/README.md", "exact"): exact, ("docs/measure/README.md", "costs"): costs,
          ("docs/operate/capacity.md", "sharing"): sharing, ("docs/operate/capacity.md", "scale"): scale}  # fmt: skip


def with_tables(page):
    """Returns the text of a page with its tables as they should be."""
    words = (ROOT / page).read_text()
    for (where, name), make in TABLES.items():
        begin = f"<!-- scripts/charts.py: {name} -->\n"
        if where == page:
            if words.count(begin) != 1:
                sys.exit(f"charts.py: {page}: expected {begin.strip()} once")
            before, after = words.split(begin)
            words = before + begin + "\n" + make() + "\n" + after[after.index("<!-- end -->") :]
    return words


def main():
    pages = {page: with_tables(page) for page, _ in TABLES}
    drawn = {
        "request": request(),
        "top": terminal("80x24.txt", "Screen of vgpu top: two GPUs, three containers with memory and time against their limits, and a process without limits"),
        "top-detail": terminal("detail-80x24.txt", "Details of a container in vgpu top: memory, time, their history, and its processes with user and command"),
        "time": time(),
        "memory": memory(),
        "latency": latency(),
    }
    if "--check" in sys.argv[1:]:
        stale = [name for name, words in drawn.items() if not (IMAGES / f"{name}.svg").is_file() or (IMAGES / f"{name}.svg").read_text() != words]
        if stale:
            sys.exit(f"charts.py: docs/images: {', '.join(stale)}: expected what scripts/charts.py draws; run it")
        stale = [page for page, words in pages.items() if (ROOT / page).read_text() != words]
        if stale:
            sys.exit(f"charts.py: {', '.join(stale)}: expected the figures of the results; run scripts/charts.py")
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, words in drawn.items():
        (IMAGES / f"{name}.svg").write_text(words)
    for page, words in pages.items():
        (ROOT / page).write_text(words)


main()
