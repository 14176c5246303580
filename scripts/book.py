"""Hook of MkDocs for the book in docs/ (mkdocs.yml).

Links from the book to files outside of docs/ become links to the repository. If there is no such file, or no such heading in it, that is a
warning, which scripts/book.sh turns into a failure. Links inside of docs/ are checked by MkDocs itself.
"""

import logging
import os
import re

from markdown.extensions import Extension
from markdown.extensions.toc import slugify

LOG = logging.getLogger("mkdocs.hooks.book")
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")


class TwoSpaces(Extension):
    """Nested lists are indented by two spaces, as on GitHub."""

    def extendMarkdown(self, md):
        md.tab_length = 2


def on_config(config):
    config.markdown_extensions.append(TwoSpaces())
    return config


def has_heading(path, anchor):
    """Returns whether a Markdown file has the heading that an anchor names."""
    with open(path, encoding="utf-8") as file:
        return anchor in (slugify(heading, "-") for heading in re.findall(r"^#+ (.*)", file.read(), re.MULTILINE))


def on_page_markdown(markdown, page, config, files):
    root = os.path.dirname(os.path.abspath(config.config_file_path))
    folder = os.path.dirname(page.file.abs_src_path)

    def outside(match):
        path, anchor = os.path.normpath(os.path.join(folder, match[1])), match[2] or ""
        if os.path.commonpath([path, config.docs_dir]) == config.docs_dir:
            return match[0]
        if not os.path.exists(path):
            LOG.warning("%s: link to %s: expected a file that exists", page.file.src_uri, match[1])
        elif anchor and not has_heading(path, anchor[1:]):
            LOG.warning("%s: link to %s%s: expected a heading of that file", page.file.src_uri, match[1], anchor)
        kind = "tree" if os.path.isdir(path) else "blob"
        return f"]({config.repo_url}/{kind}/main/{os.path.relpath(path, root)}{anchor})"

    return LINK.sub(outside, markdown)
