"""The configurations of the papers."""

from collections import defaultdict
from pathlib import Path

import pytest

from pipeline.config.loading import default_path, load, merge, read_mapping, validate
from pipeline.papers.page import refreshed

FOLDER = Path(__file__).parents[1] / "config/papers"
PAPERS = [path for path in sorted(FOLDER.glob("*.yaml")) if path.stem != "pascal1k"]


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_every_papers_configuration_is_valid_and_trains_each_network_thrice(path: Path) -> None:
    config = load(path)
    assert config.name == path.stem and config.reproduce.collection == "flickr8k"
    seeds = defaultdict(list)
    for name in config.models:
        if config.model(name).spec.made_by == "train":
            seeds[name.rpartition("-seed")[0]].append(config.model(name).seed)
    assert all(found == [0, 1, 2] for found in seeds.values()), seeds
    assert seeds or path.stem == "gong"


def test_pascal1k_is_socher_on_other_photographs() -> None:
    values = merge(read_mapping(default_path()), read_mapping(FOLDER / "socher.yaml"))
    flickr, pascal = validate(values), validate(merge(values, read_mapping(FOLDER / "pascal1k.yaml")))
    assert pascal.collection.format == "pascal1k" and pascal.reproduce.collection == "pascal1k"
    assert pascal.models == flickr.models and pascal.variants == flickr.variants
    assert pascal.evaluate.folds == 1 and flickr.evaluate.folds == 10


def test_the_pages_show_the_stored_results() -> None:
    """Written again by python -m pipeline.papers.page."""
    pages = refreshed(FOLDER.parents[1] / "docs")
    assert len(pages) == 6
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, path.name
