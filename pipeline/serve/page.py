"""The page that the server shows, and what it may load."""

import base64
import hashlib
import re
from functools import cache
from importlib import resources

SCRIPTS = ("state", "uploads", "results", "ask", "detail", "filters", "page")
"""In the order in which they run; together they are one script."""


@cache
def read_page() -> str:
    """The page with its style and its script inside."""
    folder = resources.files("pipeline.serve").joinpath("templates")
    page, style, *scripts = (
        folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", *(f"{script}.js" for script in SCRIPTS))
    )
    page = page.replace("<style></style>", f"<style>\n{style}</style>")
    return page.replace("<script></script>", f"<script>\n{''.join(scripts)}</script>")


def content_policy(page: str) -> str:
    """The Content-Security-Policy of `page`: its own script and style by their hashes, images of this server, of the
    visitor's disk and of `data:`, and nothing from elsewhere."""
    script, style = (
        " ".join(map(_hash, re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S))) for tag in ("script", "style")
    )
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self';"
        " img-src 'self' data: blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
