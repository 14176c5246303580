#!/usr/bin/env python3
"""audit.py: checks the dependencies in Cargo.lock: licences, bans and sources by deny.toml, and known vulnerabilities.

    audit.py                      checks, and exits with 1 if a rule is broken
    audit.py --refresh FOLDER     rewrites packaging/advisories.json from a clone of https://github.com/rustsec/advisory-db
    audit.py --self-test          tests the comparison of versions and licences

The list of advisories is in the repository, because the database cannot be reached from every machine that builds vgpu. It names its
date and commit. cargo-deny (`make audit`) reads the same deny.toml.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "packaging/advisories.json"
LICENSE = "CC0-1.0; entries with a license of their own are adapted from GitHub Security Advisories"


def version(text):
    """Returns a version as a tuple that compares as semantic versions do; a pre-release is before its release."""
    core, _, pre = text.split("+")[0].partition("-")
    numbers = [int(part) for part in core.split(".")]
    numbers += [0] * (3 - len(numbers))
    parts = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in pre.split(".")] if pre else []
    return (*numbers, 0 if pre else 1, parts)


def matches(found, requirement):
    """Returns whether a version fulfils a requirement such as ">= 1.2, < 2", "^0.9.8" or "=1.0.0"."""
    return all(matches_one(found, part.strip()) for part in requirement.split(","))


def matches_one(found, requirement):
    if requirement == "*":
        return True
    operator, text = re.fullmatch(r"(>=|<=|>|<|=|\^|~)?\s*(\S+)", requirement).groups()
    have, want, parts = version(found), version(text), len(text.split("-")[0].split("."))
    if operator in (">=", "<=", ">", "<"):
        return {">=": have >= want, "<=": have <= want, ">": have > want, "<": have < want}[operator]
    if operator == "=":
        return have == want if parts == 3 else have[:parts] == want[:parts]
    if operator == "~":
        return have >= want and have[: min(parts, 2)] == want[: min(parts, 2)]
    # "^" or none: the leftmost number that is not 0 stays the same.
    fixed = next((index + 1 for index in range(parts) if want[index]), parts)
    return have >= want and have[:fixed] == want[:fixed]


def is_allowed(expression, allowed):
    """Returns whether an SPDX expression can be fulfilled with the allowed licences. "/" is an old way to write OR."""
    tokens = re.findall(r"[()]|[^\s()/]+|/", expression)
    tokens = ["OR" if token == "/" else token for token in tokens]

    def either():
        result = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            result = both() or result
        return result

    def both():
        result = single()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            result = single() and result
        return result

    def single():
        token = tokens.pop(0)
        if token == "(":
            result = either()
            tokens.pop(0)
            return result
        if tokens and tokens[0] == "WITH":
            token = f"{token} WITH {tokens[1]}"
            del tokens[:2]
        return token in allowed

    result = either()
    if tokens:
        raise ValueError(f"licence {expression!r}: expected an SPDX expression")
    return result


def check(rules, packages, advisories):
    """Returns the broken rules. `packages` are those of `cargo metadata` that are not of the workspace."""
    problems = []
    licences, banned, sources = rules["licenses"], rules["bans"]["deny"], rules["sources"]["allow-registry"]
    exceptions = {entry["crate"]: entry["allow"] for entry in licences["exceptions"]}
    reasons = {entry["crate"]: entry["reason"] for entry in banned}
    ignored = {entry if isinstance(entry, str) else entry["id"] for entry in rules["advisories"]["ignore"]}
    by_package = {}
    for advisory in advisories:
        by_package.setdefault(advisory["package"], []).append(advisory)
    for package in packages:
        name = f"{package['name']} {package['version']}"
        allowed = licences["allow"] + exceptions.get(package["name"], [])
        if not package["license"] or not is_allowed(package["license"], allowed):
            problems.append(f"{name}: licence {package['license']!r}: expected one that deny.toml allows")
        if package["name"] in reasons:
            problems.append(f"{name}: banned by deny.toml: {reasons[package['name']]}")
        if package["source"] not in [f"registry+{source}" for source in sources]:
            problems.append(f"{name}: source {package['source']!r}: expected one of {sources}")
        for advisory in by_package.get(package["name"], []):
            is_fixed = any(matches(package["version"], good) for good in advisory["patched"] + advisory["unaffected"])
            if not is_fixed and advisory["id"] not in ignored:
                fix = " or ".join(advisory["patched"]) or "another package"
                problems.append(f"{name}: {advisory['id']} ({advisory['kind']}): {advisory['title']}: expected {fix}")
    return problems


def refresh(folder):
    """Writes the list of advisories from a clone of the database: what is needed to check versions, one line for each."""
    entries = []
    for path in sorted(folder.glob("crates/*/RUSTSEC-*.md")):
        head, text = re.fullmatch(r"```toml\n(.*?)\n```\n(.*)", path.read_text(), re.DOTALL).groups()
        parsed = tomllib.loads(head)
        advisory, versions = parsed["advisory"], parsed["versions"]
        if "withdrawn" in advisory:
            continue
        licence = {"license": advisory["license"], "url": advisory.get("url", "")} if "license" in advisory else {}
        entries.append({
            "id": advisory["id"],
            "package": advisory["package"],
            "kind": advisory.get("informational", "vulnerability"),
            "title": re.search(r"^# (.*)$", text, re.MULTILINE).group(1),
            "patched": versions.get("patched", []),
            "unaffected": versions.get("unaffected", []),
            **licence,
        })
    git = ["git", "-C", folder, "log", "-1"]
    commit, date = subprocess.run([*git, "--format=%H %cs"], capture_output=True, text=True, check=True).stdout.split()
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    source = json.dumps({"source": "https://github.com/rustsec/advisory-db", "license": LICENSE, "commit": commit, "date": date})
    LIST.write_text(f'{{"database": {source},\n"advisories": [\n{lines}\n]}}\n')
    print(f"{LIST}: {len(entries)} advisories of {date}")


def self_test():
    """Tests the comparisons."""
    for found, requirement, expected in [
        ("1.2.3", ">= 1.2.3", True), ("1.2.3", "> 1.2.3", False), ("1.2.3", ">=1.0, <1.2", False), ("1.2.3", "^1.1", True),
        ("2.0.0", "^1.1", False), ("0.3.5", "^0.3.4", True), ("0.4.0", "^0.3.4", False), ("0.0.3", "^0.0.2", False),
        ("1.2.9", "~1.2.3", True), ("1.3.0", "~1.2.3", False), ("1.0.0-rc.1", ">= 1.0.0", False), ("1.0.0-rc.2", "> 1.0.0-rc.1", True),
        ("1.0.0+x", "=1.0.0", True), ("1.10.0", "> 1.9.0", True), ("1.2.3", "1", True), ("1.2.3", "*", True), ("1.2.3", "=1.2", True),
    ]:
        assert matches(found, requirement) == expected, (found, requirement)
    for expression, expected in [
        ("MIT", True), ("GPL-3.0", False), ("GPL-3.0 OR MIT", True), ("MIT AND GPL-3.0", False), ("Apache-2.0/MIT", True),
        ("(GPL-3.0 OR MIT) AND ISC", True), ("MIT OR GPL-3.0 AND GPL-2.0", True), ("Apache-2.0 WITH LLVM-exception", False),
    ]:
        assert is_allowed(expression, ["MIT", "Apache-2.0", "ISC"]) == expected, expression
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    registry = "registry+" + rules["sources"]["allow-registry"][0]
    bad = [
        {"name": "a", "version": "1.0.0", "license": "GPL-3.0", "source": registry},
        {"name": "openssl-sys", "version": "1.0.0", "license": "MIT", "source": registry},
        {"name": "b", "version": "1.0.0", "license": "MIT", "source": "git+https://example.org/b"},
        {"name": "c", "version": "1.0.0", "license": "MIT", "source": registry},
    ]
    advisory = {"id": "RUSTSEC-0", "package": "c", "kind": "vulnerability", "title": "t", "patched": [">= 1.0.1"], "unaffected": ["< 0.9"]}
    problems = check(rules, bad, [advisory])
    assert [problem.split(":")[0] for problem in problems] == ["a 1.0.0", "openssl-sys 1.0.0", "b 1.0.0", "c 1.0.0"], problems
    good = [{**bad[3], "version": "1.0.1"}]
    assert check(rules, good, [advisory]) == []


def main():
    if sys.argv[1:2] == ["--refresh"]:
        return refresh(pathlib.Path(sys.argv[2]))
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    command = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={rules['graph']['targets'][0]}"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    listed = json.loads(LIST.read_text())
    # The metadata lists packages for other platforms, too. What is built is in the resolved graph.
    resolved = {node["id"] for node in metadata["resolve"]["nodes"]}
    packages = [package for package in metadata["packages"] if package["source"] and package["id"] in resolved]
    problems = check(rules, packages, listed["advisories"])
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(1)
    print(f"{len(packages)} packages; {len(listed['advisories'])} advisories of {listed['database']['date']}")


main()
