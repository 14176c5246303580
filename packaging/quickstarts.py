#!/usr/bin/env python3
"""quickstarts.py SYSTEM FOLDER: writes the commands that the book shows for this clean system into FOLDER, as they are.

Each command becomes a numbered pair of files: NNN.command, whose first line says where it is from and who types it (root or user), and
NNN.output, what the book shows after it, if it does ("..." stands for anything). A command is a line with a prompt ("# " root, "$ " another
user) in a block marked `console`, with the lines that complete it. packaging/test-quickstarts.sh runs them.

`quickstarts.py systems` prints the systems, `quickstarts.py --check` checks the tables below against the book.
"""

import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The clean systems, and the pages that a reader follows on each, in this order.
SYSTEMS = {
    "readme": ["README.md"],
    "docker": [
        "docs/install/README.md", "docs/README.md", "docs/install/docker.md", "docs/ask/variables.md", "docs/ask/examples.md",
        "docs/operate/running.md", "docs/operate/monitoring.md", "docs/run.md", "docs/troubleshoot/README.md", "docs/operate/upgrade.md",
        "docs/operate/uninstall.md",
    ],
    "podman": ["docs/install/podman.md", "docs/install/cdi.md", "docs/install/crio.md"],
    "containerd": ["docs/install/containerd.md"],
}  # fmt: skip

# What a page says is there already, and the commands of root that provide it.
BEFORE = {"readme": ["apt install docker.io"]}

# What a script cannot run there, and why: the page, the command (a pattern of the shell), and the reason. Everything else runs.
NOT_RUN = [
    ("docs/install/kubernetes.md", "*", "needs a cluster and a registry; dra/RESULTS.md has what was run there"),
    ("docs/install/containerd.md", "kubectl *", "needs a cluster"),
    ("docs/operate/upgrade.md", "helm *", "needs a cluster"),
    ("docs/operate/uninstall.md", "helm *", "needs a cluster"),
    ("docs/operate/uninstall.md", "kubectl *", "needs a cluster"),
    ("docs/install/crio.md", "systemctl restart crio*", "CRI-O is in no release of Debian and Ubuntu that is tested"),
    ("docs/install/containerd.md", "ctr images pull *", "no registry; the stand-in's image is there already"),
    ("docs/operate/policy.md", "*", "opens an editor"),
    ("docs/operate/monitoring.md", "vgpu monitor --listen *", "runs until it is ended, with files that a certificate authority issues"),
    ("README.md", "make *", "builds vgpu from its sources, which the other tests do"),
    ("docs/measure/README.md", "*", "needs a real GPU"),
    ("docs/run.md", "srun *", "needs Slurm"),
    ("docs/operate/transcripts.md", "*", "cli/tests/transcripts.rs runs it"),
    ("docs/troubleshoot/mistakes.md", "*", "cli/tests/transcripts.rs runs it"),
    ("docs/troubleshoot/README.md", "journalctl *", "no systemd, and so no journal"),
]

# What is typed instead, because a script has no terminal.
INSTEAD = [("vgpu top", "vgpu top --once")]


def blocks(text):
    """Yields (line number, lines) of each block marked `console`."""
    lines = text.split("\n")
    start = None
    for number, line in enumerate(lines, 1):
        if start is None and re.fullmatch(r"\s*```console", line):
            start, indent = number, len(line) - len(line.lstrip())
        elif start is not None and line.strip() == "```":
            yield start + 1, [each[indent:] for each in lines[start : number - 1]]
            start = None


def is_complete(command):
    return not command.endswith("\\") and subprocess.run(["bash", "-n", "-c", command], stderr=subprocess.PIPE, check=False).stderr == b""


def commands(page):
    """Yields (line number, user, command, output) of a page."""
    for first, lines in blocks((ROOT / page).read_text()):
        found = []
        for number, line in enumerate(lines, first):
            if found and not is_complete(found[-1][2]):
                found[-1][2] += "\n" + line
            elif line[:2] in ("# ", "$ "):
                found.append([number, "root" if line[0] == "#" else "user", line[2:], []])
            elif found:
                found[-1][3].append(line)
            else:
                sys.exit(f"{page}:{number}: {line!r}: expected a command after \"# \" or \"$ \"")
        yield from found


def reason(page, command):
    """Returns why a command is not run, or None."""
    return next((why for pages, what, why in NOT_RUN if fnmatch.fnmatch(page, pages) and fnmatch.fnmatch(command, what)), None)


def write(system, folder):
    folder.mkdir(parents=True)
    count = 0
    for command in BEFORE.get(system, []):
        count += 1
        (folder / f"{count:03}.command").write_text(f"before-{SYSTEMS[system][0]} root\n{command}\n")
    for page in SYSTEMS[system]:
        for number, user, command, output in commands(page):
            why = reason(page, command)
            if why:
                print(f"not run: {page}:{number}: {command.splitlines()[0]}: {why}")
                continue
            for shown, instead in INSTEAD:
                command = instead if command == shown else command
            count += 1
            (folder / f"{count:03}.command").write_text(f"{page}:{number} {user}\n{command}\n")
            if output:
                (folder / f"{count:03}.output").write_text("\n".join(output) + "\n")


def check():
    """Every page with commands belongs to a system or says why not, and every entry of the tables is used."""
    pages = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
    there = [(page, command) for page in pages for _, _, command, _ in commands(page)]
    run = {page for system in SYSTEMS.values() for page in system}
    wrong = [f"{page}: {command}: expected its page in a system, or a reason not to run it"
             for page, command in there if page not in run and not reason(page, command)]  # fmt: skip
    wrong += [f"{page}, {command}: no such command in the book" for page, command, _ in NOT_RUN
              if not any(fnmatch.fnmatch(a, page) and fnmatch.fnmatch(b, command) for a, b in there)]  # fmt: skip
    wrong += [f"{shown}: no such command in the book" for shown, _ in INSTEAD if shown not in [command for _, command in there]]
    wrong += [f"{system}: no such system" for system in BEFORE if system not in SYSTEMS]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    if sys.argv[1:] == ["systems"]:
        print(*SYSTEMS)
    elif sys.argv[1:] == ["--check"]:
        check()
    elif len(sys.argv) == 3 and sys.argv[1] in SYSTEMS:
        write(sys.argv[1], pathlib.Path(sys.argv[2]))
    else:
        sys.exit(__doc__)
