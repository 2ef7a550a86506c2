"""docs/stages.md is what its generator prints, and names every command."""

import re
from pathlib import Path

from stages.catalogue import COMMANDS
from stages.reference import render

PAGE = (Path(__file__).parents[1] / "docs/stages.md").read_text()


def test_the_page_is_what_the_generator_prints_and_has_every_command() -> None:
    assert render() == PAGE
    assert sorted(re.findall(r"^\| `([\w-]+)`", PAGE, flags=re.M)) == sorted(COMMANDS)
