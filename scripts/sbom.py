#!/usr/bin/env python3
"""sbom.py [FILE]: writes the software bill of materials of the packages, in CycloneDX 1.5 JSON; without FILE to stdout.

    sbom.py --self-test     checks the bill's form and that it has the dependencies of the programs

It lists the crates that are linked into the shipped programs and libraries or run while they are built, with their licences and the
digests that Cargo.lock records; not those of tests. The same sources give the same bytes.
"""

import json
import pathlib
import subprocess
import sys
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Packages of the workspace whose programs and libraries are shipped.
SHIPPED = ["vgpu-cli", "vgpu-dra", "vgpu-oci-hook", "vgpu-preload"]
TARGET = "x86_64-unknown-linux-gnu"


def shipped(metadata):
    """Returns the packages that the shipped ones depend on, and for each the packages that it depends on itself."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    found, queue = {}, [id for id in metadata["workspace_members"] if packages[id]["name"] in SHIPPED]
    while queue:
        id = queue.pop()
        if id in found:
            continue
        # A dependency of kind "dev" is one of tests.
        depends = [dep["pkg"] for dep in nodes[id]["deps"] if any(kind["kind"] != "dev" for kind in dep["dep_kinds"])]
        found[id] = depends
        queue += depends
    return {id: packages[id] for id in found}, found


def reference(package):
    """Returns the package URL, by which the bill refers to a package."""
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, digests):
    """Returns the entry of a package."""
    entry = {"type": "library", "bom-ref": reference(package), "name": package["name"], "version": package["version"]}
    entry["purl"] = reference(package)
    if package["license"]:
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ").replace("  ", " ")}]
    digest = digests.get((package["name"], package["version"]))
    if digest:
        entry["hashes"] = [{"alg": "SHA-256", "content": digest}]
    if package["source"] and package.get("repository"):
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def bill():
    """Returns the bill of materials."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={TARGET}"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    digests = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    packages, depends = shipped(metadata)
    version = next(package["version"] for package in packages.values() if package["name"] == "vgpu-cli")
    rustc = subprocess.run(["rustc", "--version"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()[1]
    # Rust's standard library is linked, too.
    rust = {"type": "library", "bom-ref": f"rust-std@{rustc}", "name": "rust-std", "version": rustc}
    rust["licenses"] = [{"expression": "MIT OR Apache-2.0"}]
    main = {"type": "application", "bom-ref": f"vgpu@{version}", "name": "vgpu", "version": version}
    main["licenses"] = [{"expression": "Apache-2.0"}]
    tops = [reference(package) for package in packages.values() if package["name"] in SHIPPED]
    graph = [{"ref": reference(packages[id]), "dependsOn": sorted({reference(packages[other]) for other in depends[id]})} for id in packages]
    graph.append({"ref": main["bom-ref"], "dependsOn": sorted([*tops, rust["bom-ref"]])})
    result = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main},
        "components": sorted([component(package, digests) for package in packages.values()] + [rust], key=lambda entry: entry["bom-ref"]),
        "dependencies": sorted(graph, key=lambda entry: entry["ref"]),
    }
    # A digest of the content, so that the same sources have the same number.
    result["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(result, sort_keys=True))}"
    return result


def self_test():
    """Checks the bill."""
    made = bill()
    assert made == bill(), "the same sources must give the same bill"
    names = {entry["name"] for entry in made["components"]}
    assert {"vgpu-preload", "vgpu-oci-hook", "rustls", "clap", "rust-std"} <= names, names
    assert not {"jsonschema", "vgpu-e2e", "vt100"} & names, "dependencies of tests"
    references = {entry["bom-ref"] for entry in made["components"]} | {made["metadata"]["component"]["bom-ref"]}
    for entry in made["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= references, entry
    foreign = [entry for entry in made["components"] if "externalReferences" in entry]
    assert foreign and all("hashes" in entry and "licenses" in entry for entry in foreign)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    text = json.dumps(bill(), indent=1, sort_keys=True) + "\n"
    if sys.argv[1:]:
        pathlib.Path(sys.argv[1]).write_text(text)
    else:
        sys.stdout.write(text)


main()
