"""README's searches by a sentence, on the demo as README's first command makes it: they find what they ask for."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up import run_command
from pages import ROOT, commands

from examples.demo.scene import Scene, sample_scene
from examples.demo.world import COLOURS, KINDS, PLACES
from pipeline.config import default_path, read_mapping
from pipeline.evaluate.summary import ranking

SHOWN, RIGHT = 12, 3
"""Of the first so many photographs, so many at least show all that is asked for, and the first of all does."""
QUERIES = 3
SEED = read_mapping(default_path())["demo"]["seed"]


def printed_searches() -> dict[str, Path]:
    """The sentences of README's searches, and the bundle that each is asked of."""
    printed = [shlex.split(one.text) for one in commands() if one.page.name == "README.md" and "index/sae" in one.text]
    return {
        words[4]: Path(words[3])
        for words in printed
        if words[1:3] == ["search", "--index"] and len(words) == 5 and not words[4].startswith("-")
    }


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
def test_the_searches_find_what_they_ask_for(tmp_path: Path) -> None:
    searches, summary = printed_searches(), Path("results/demo/evaluation/summary.json")
    assert len(searches) >= QUERIES and len(set(searches.values())) == 1
    bundle = next(iter(searches.values()))
    program = [sys.executable, "-m", "snakemake", "-s", ROOT / "Snakefile", "--cores", "2"]
    program += [bundle / "card.json", f"{summary}.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    made = subprocess.run(list(map(str, program)), capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert made.returncode == 0, made.stderr[-4000:]
    assert ranking(json.loads((tmp_path / summary).read_text()))[0]["model"] == bundle.name
    for sentence in searches:
        hits = json.loads(run_command("search", "--index", tmp_path / bundle, sentence, "--top", SHOWN, "--json"))
        right = [shows(hit["path"], sentence) for hit in hits]
        assert len(right) == SHOWN and right[0] and sum(right) >= RIGHT, (sentence, hits)
