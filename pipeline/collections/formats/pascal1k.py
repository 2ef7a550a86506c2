"""UIUC Pascal sentences (Rashtchian et al. 2010) as published: one HTML page whose rows have an image, `<img
src="CATEGORY/ID.jpg">`, and a table of its five sentences, and the images in a folder a category."""

import posixpath
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path

from pipeline.collections.formats import lists
from pipeline.collections.records import ImageRecord, Options, Record, SentenceRecord
from pipeline.collections.remote_files import open_collection
from pipeline.errors import InputError

PAGES = ("index.html", "pascal-sentences.html")
FILES = {"page": PAGES, "images": ("images", "dataset")}
LARGEST_PAGE = 1 << 26  # bytes; the published one has half a million
SPLITS = (*["train"] * 8, "dev", "test")
"""Of every ten images of a category, by their ids: 800, 100 and 100, as many as Socher et al. 2014 have (section 6)."""


class _Page(HTMLParser):
    """`found`: each image's source with its row and its sentences: the texts of the cells that follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int, list[str]]] = []
        self._cell: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "td":
            self._cell = []
        if tag == "img" and (source := dict(attrs).get("src")):
            self.found.append((source, self.getpos()[0], []))

    def handle_data(self, data: str) -> None:
        self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        text = re.sub(r"[ \t\r\n]+", " ", "".join(self._cell)).strip(" ")
        if tag == "td" and text and self.found:
            self.found[-1][2].append(text)
        if tag == "td":
            self._cell = []


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of the page, in its order. Raises InputError for a page without images."""
    folder = open_collection(root, options)
    where = folder.locate(FILES)
    path = folder.require(where["page"], "page", PAGES)
    prefix, page, label = folder.image_prefix(where["images"]), _Page(), folder.label(path)
    with folder.open(path, LARGEST_PAGE) as file:
        text = lists.decode_text(file.read())
    if isinstance(text, bytes):
        raise InputError(f"{path}: {lists.not_utf8(text)}")
    page.feed(text)
    if not page.found:
        raise InputError(f"{path} shows no image; is it the page of the Pascal sentences?")
    splits = _divide({source for source, _, _ in page.found})
    for source, row, sentences in page.found:
        yield ImageRecord(source, posixpath.join(prefix, source), splits[source], label, row)
        for number, sentence in enumerate(sentences):
            yield SentenceRecord(source, number, sentence, label, row)


def _divide(sources: set[str]) -> dict[str, str]:
    """The split of each image, by its place among those of its folder."""
    found = {}
    for _, own in groupby(sorted(sources, key=lambda source: (posixpath.dirname(source), source)), posixpath.dirname):
        found |= {source: SPLITS[place % len(SPLITS)] for place, source in enumerate(own)}
    return found
