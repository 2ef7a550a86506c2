"""A parser of the report's page: its text, its tables and its addresses."""

from html.parser import HTMLParser
from pathlib import Path

from synthetic_run import open_run

from pipeline.run.runner import run_stage
from stages.results import report as stage

VOID = {"meta", "img", "br"}


class Outline(HTMLParser):
    """Parser that checks that tags are closed in order.

    It collects the text, the tables, and the addresses of images and links.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.parts: dict[str, str] = {}
        self.heading = ""
        self.tables: list[tuple[str, list[list[str]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [] if tag in VOID else [tag]
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag in ("h2", "summary"):
            self.heading = ""
        elif tag == "table":
            self.tables.append((self.heading.strip(), []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            return
        self.text += data + " "
        if {"h2", "summary"} & set(self.open):
            self.heading += data
            return
        if {"td", "th"} & set(self.open):
            self.tables[-1][1][-1][-1] += data + " "
        heading = self.heading.strip()
        self.parts[heading] = self.parts.get(heading, "") + data + " "

    def lines(self, heading: str, number: int = 0) -> list[list[str]]:
        """Return the cells of each line of a table.

        `number` counts the tables below headings that start with `heading`, from 0.
        """
        found = [lines for above, lines in self.tables if above.startswith(heading)]
        return [[" ".join(cell.split()) for cell in line] for line in found[number]]

    def rows(self, heading: str, number: int = 0) -> list[dict[str, str]]:
        """Return the rows of the table that `lines` returns, without its header. A row maps a column name to a cell."""
        head, *rows = self.lines(heading, number)
        return [dict(zip(head, row, strict=True)) for row in rows]

    def below(self, heading: str) -> str:
        """Return the text between a heading and the next heading."""
        return " ".join(self.parts[heading].split())


def report(run: Path, *settings: dict) -> Outline:
    """Make the report of the run, with `settings` merged into its configuration, and return the parsed page."""
    run_stage(open_run(run, *settings), stage.report)
    outline = Outline()
    outline.feed((run / "report" / "index.html").read_text())
    assert outline.open == []
    return outline
