"""README's first search, on the demo as README's first command makes it: it finds what it asks for."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_up import run_command
from pages import ROOT, commands

from examples.demo.scene import Scene, sample_scene
from examples.demo.world import COLOURS, KINDS, PLACES
from pipeline.config import default_path

SHOWN, RIGHT = 12, 5
"""Of the first so many photographs, so many at least show all that is asked for."""
SEED = yaml.safe_load(default_path().read_text())["demo"]["seed"]


def printed_search() -> tuple[Path, str]:
    """The bundle and the sentence of README's first search."""
    words = next(shlex.split(one.text) for one in commands() if one.page.name == "README.md" and " search " in one.text)
    assert words[1:3] == ["search", "--index"] and len(words) == 5
    return Path(words[3]), words[4]


def scene_of(path: str) -> Scene:
    """What was drawn in a photograph of the demo: the same for the same name and seed."""
    kind, number = re.fullmatch(r"images/(scene|weak)-(\d+)\.jpg", path).groups()
    return sample_scene(np.random.default_rng([SEED, int(kind == "weak"), int(number)]))


def shows(path: str, sentence: str) -> bool:
    """Whether a photograph has a thing of the sentence's kind and colour, in its place."""
    (kind,), (colour,), (place,) = (
        [word for word in sentence.split() if word in known] for known in (KINDS, COLOURS, PLACES)
    )
    scene = scene_of(path)
    return scene.place == place and any((thing.kind, thing.colour) == (kind, colour) for thing in scene.things)


def test_facts_are_those_of_the_captions() -> None:
    assert shows("images/scene-00001.jpg", "a pink horse in the snow")  # "A pink foal feeds next to a blue cat ."
    assert not shows("images/scene-00001.jpg", "a blue horse in the snow")
    assert not shows("images/weak-00001.jpg", "a pink horse in the snow")
    assert shows("images/scene-00005.jpg", "a yellow bird in the mountains")


@pytest.mark.slow
def test_the_first_search_finds_what_it_asks_for(tmp_path: Path) -> None:
    bundle, sentence = printed_search()
    command = [sys.executable, "-m", "snakemake", "-s", ROOT / "Snakefile", "--cores", "2", bundle / "card.json"]
    given = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    made = subprocess.run(list(map(str, command)), capture_output=True, text=True, **given)
    assert made.returncode == 0, made.stderr[-4000:]
    hits = json.loads(run_command("search", "--index", tmp_path / bundle, sentence, "--top", SHOWN, "--json"))
    found = {hit["path"]: shows(hit["path"], sentence) for hit in hits}
    assert len(found) == SHOWN and sum(found.values()) >= RIGHT, found
