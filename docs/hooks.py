"""A hook of mkdocs that lists all keys on the page configuration.md. Each key is a heading whose id is its name."""

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from pipeline.config.keys import rows  # noqa: E402  the packages are in the folder above

MARKER = "<!-- keys -->"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the marker of a page with the list of all keys. Other pages have no marker and stay the same."""
    return markdown.replace(MARKER, "\n".join(key_lines())) if MARKER in markdown else markdown


def key_lines() -> Iterator[str]:
    """Yield the Markdown of all keys in the order of config/default.yaml.

    A key of several kinds of encoders has one heading, followed by a line for each default and description.
    """
    every = list(rows())
    sections = {row.path[:-1] for row in every}
    seen: set[str] = set()
    for row in every:
        if row.title:
            yield f"\n## {row.title}\n"
        name = ".".join(row.path)
        if name not in seen:
            seen.add(name)
            yield f'\n<h3 id="{name}"><code>{name}</code></h3>\n'
        missing = "" if row.path in sections else "required"
        default = missing if row.default is None else f"<code>{escape(row.default)}</code>"
        yield f"<p>{escape(row.sentence)}{f' ({default})' if default else ''}</p>\n"
