#!/bin/sh
# book.sh [serve]: builds the book in docs/ as HTML in target/book, and checks its links and anchors. serve: shows it on 127.0.0.1:8000, and
# builds it again when a page changes.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
mkdocs
case ${1:-build} in
build) "$target/mkdocs/bin/python" -m mkdocs build --strict --clean --site-dir "$target/book" && echo "$target/book" ;;
serve) exec "$target/mkdocs/bin/python" -m mkdocs serve ;;
*)
    echo "usage: $0 [serve]" >&2
    exit 2
    ;;
esac
