"""The configurations of the papers."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from workflow import NETWORK, TINY, snakemake

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


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_the_documented_changes_of_a_paper_for_the_public_archives_are_valid(path: Path) -> None:
    block = (FOLDER.parents[1] / "docs/papers.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    paper, public = read_mapping(path), yaml.safe_load(block)
    names = {encoder["name"] for encoder in paper["encoders"]}
    public["encoders"] = [encoder for encoder in public["encoders"] if encoder["name"] in names]
    config = validate(merge(merge(read_mapping(default_path()), paper), public))
    assert names == {encoder.name for encoder in config.encoders}


def test_pascal1k_is_socher_on_other_photos() -> None:
    values = merge(read_mapping(default_path()), read_mapping(FOLDER / "socher.yaml"))
    flickr, pascal = validate(values), validate(merge(values, read_mapping(FOLDER / "pascal1k.yaml")))
    assert pascal.collection.format == "pascal1k" and pascal.reproduce.collection == "pascal1k"
    assert pascal.models == flickr.models and pascal.variants == flickr.variants
    assert pascal.evaluate.folds == 1 and flickr.evaluate.folds == 10


def test_the_pages_show_the_stored_results() -> None:
    """`python -m pipeline.papers.page` writes these pages."""
    pages = refreshed(FOLDER.parents[1] / "docs")
    assert len(pages) == 6
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, path.name


SMOKE = {
    **{key: TINY[key] for key in ("fit", "transfer", "wsabie_sgd", "wsabie_adagrad", "shard_size")},
    "data_root": "demo", "weights_root": ".", "demo": {**TINY["demo"], "generate": True},
    "parse": {"engine": "files"}, "tokens": {"min_count": 1},
    "evaluate": {"bootstrap": 50, "splits": ["test"], "folds": 1}, "describe": {"candidates": 5, "meteor": False},
    "study": {**TINY["study"], "encoders": []}, "auxiliary": {"splits": ["weak"]},
}  # fmt: skip
"""Settings that replace Flickr8k by the demo and shorten all grids and trainings."""


def smoke(path: Path, folder: Path) -> dict[str, Any]:
    """Return the configuration of a paper in `folder` with untrained networks, one seed per system and one epoch."""
    (folder / "text").mkdir()
    (folder / "text/glove.6B.50d.5k.txt").write_text("".join(f"{word}{f' {n}' * 50}\n" for n, word in enumerate("ab")))
    paper, config = read_mapping(path), load(path)
    short = {"epochs": 1, "patience": 1}
    variants = {
        name: {"seeds": [0], **(short if config.model(f"{name}-seed0").spec.made_by == "train" else {})}
        for name, variant in paper.get("variants", {}).items()
        if "seeds" in variant
    }
    generators = {
        name: {"seeds": [0], **short} for name, one in paper.get("generator_variants", {}).items() if "seeds" in one
    }
    changes = {"variants": variants, "generator_variants": generators}
    changes["encoders"] = [{"name": one["name"], **NETWORK} for one in paper["encoders"]]
    if "language_text" in paper:
        changes["language_text"] = {"file": None, "treebank": "demo/trees.conllu"}
    return merge(merge(paper, SMOKE), changes)


@pytest.mark.nightly
@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_papers_configuration_runs_to_its_tables(path: Path, tmp_path: Path) -> None:
    (tmp_path / "smoke.yaml").write_text(yaml.safe_dump(smoke(path, tmp_path)))
    for target in ("demo/demo.json", "reproduce"):  # the run reads trees of the demo
        snakemake(tmp_path, target, "--configfile", "smoke.yaml")
    assert (tmp_path / f"results/{path.stem}/reproduction.md").read_text().startswith("# ")
