"""The reference of all keys, made from the commented defaults."""

import re
import sys
from collections.abc import Iterator

from pipeline.config.loading import default_path

SECTION = re.compile(r"^# --- (?P<title>.+?) -*$")
KEY = re.compile(r"^(?P<indent> *)(?P<item>- )?(?P<key>[\w-]+):(?P<value> .*?)??(?:\s+# (?P<comment>.*))?$")
HEAD = """# Configuration

Every key with its default. A configuration of your own names only what differs; mappings are merged, lists replaced
as a whole, and an unknown key is an error that names the nearest legal one; so is a key that is given twice. This page
is made from `config/default.yaml` by `python -m pipeline.config.reference > docs/configuration.md`.
"""


def render(text: str) -> str:
    """The page, from the text of the defaults: a table for each of its sections."""
    parts = [HEAD]
    for title, rows in _sections(text):
        parts += [f"\n## {title}\n", "| key | default | |", "|---|---|---|"]
        parts += [f"| `{key}` | {f'`{value}`' if value else ''} | {comment} |" for key, value, comment in rows]
    return "\n".join(parts) + "\n"


def _sections(text: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    title, rows, above = "", [], []
    for line in text.splitlines():
        if heading := SECTION.match(line):
            if rows:
                yield title, rows
            title, rows, above = heading["title"], [], []
        elif not line.lstrip().startswith("#") and (found := KEY.match(line)):
            indent = len(found["indent"]) + len(found["item"] or "")
            above = [(depth, key) for depth, key in above if depth < indent]
            if found["item"]:
                above[-1] = (above[-1][0], above[-1][1].removesuffix("[]") + "[]")
            path = [key for _, key in above] + [found["key"]]
            above.append((indent, found["key"]))
            value, comment = (found["value"] or "").strip(), found["comment"] or ""
            rows.append((".".join(path), value.replace("|", "\\|"), comment.replace("|", "\\|")))
    yield title, rows


if __name__ == "__main__":
    sys.stdout.write(render(default_path().read_text(encoding="utf-8")))
