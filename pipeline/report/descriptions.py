"""Descriptions for people: a page that needs nothing else, and plain text."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipeline.printable import printable


def templates() -> Environment:
    """The templates of this package, which escape every text from outside."""
    blocks = {"trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=PackageLoader("pipeline.report"), autoescape=True, undefined=StrictUndefined, **blocks)


def render(value: Mapping[str, Any], pictures: Sequence[str | None]) -> str:
    """The page of the first images of `value`, what `describe` writes; `pictures` are their `data:` addresses."""
    pairs = list(zip(value["images"], pictures, strict=False))
    return templates().get_template("descriptions.html").render(value=value, pairs=pairs)


def as_text(value: Mapping[str, Any]) -> str:
    """The name and box of every image, then its sentences with their scores and the nearest training sentences,
    without what a terminal would obey."""
    lines = []
    for image in value["images"]:
        box = "" if image["box"] is None else f" [{' '.join(f'{side:g}' for side in image['box'])}]"
        lines.append(f"{image['image']}{box}")
        for sentence in image["sentences"]:
            nearest = sentence["nearest"]
            near = "copied" if sentence["verbatim"] else f"{nearest['cosine']:.2f}"
            lines.append(f"  {sentence['score']:>8.3f}  {sentence['text']}  ({near}: {nearest['text']})")
    return "".join(f"{printable(line)}\n" for line in lines)
