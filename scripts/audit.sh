#!/bin/sh
# audit.sh: checks the dependencies with cargo-deny by deny.toml. Without RustSec's database, which comes from GitHub, the advisories are
# those of scripts/audit.py.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
cargo_deny
cargo deny --locked check licenses bans sources
if ! timeout 60 git ls-remote https://github.com/rustsec/advisory-db HEAD >/dev/null 2>&1; then
    echo "RustSec's database cannot be reached; checking the list in packaging/advisories.json" >&2
    exec scripts/audit.py
fi
cargo deny --locked check advisories
