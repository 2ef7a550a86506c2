"""Tests of the configurations of the papers, of their stored results, and of the pages that show the results."""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from workflow import NETWORK, TINY, rules_of, snakemake

from pipeline.config.loading import default_path, load, merge, read_mapping, validate
from pipeline.papers.published import every_table
from pipeline.papers.tables import refreshed, render_run
from stages.papers.reproduce import digest_configuration

FOLDER = Path(__file__).parents[1] / "config/papers"
CHANGES = ("coco", "flickr30k", "pascal1k")
"""Names of the files that change the configuration of a paper for another collection."""
PAPERS = [path for path in sorted(FOLDER.glob("*.yaml")) if path.stem not in CHANGES]
DOCS = FOLDER.parents[1] / "docs"
STORED = sorted((DOCS / "papers/results").glob("*.json"))


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_every_papers_configuration_is_valid_and_trains_each_network_once_or_thrice(path: Path) -> None:
    config = load(path)
    assert config.name == path.stem and config.reproduce.collection == "flickr8k"
    seeds = defaultdict(list)
    for name in config.models:
        if config.model(name).spec.made_by == "train":
            seeds[name.rpartition("-seed")[0]].append(config.model(name).seed)
    assert all(found in ([0], [0, 1, 2]) for found in seeds.values()), seeds
    assert [0, 1, 2] in seeds.values() or path.stem == "gong"
    labels = {name.partition("-seed")[0] for name in (*config.models, *config.generators)}
    assert config.reproduce.reproduced.keys() <= labels
    assert {*config.reproduce.reproduced.values()} <= {row.system for table in every_table() for row in table.rows}


def public_changes(path: Path) -> dict[str, Any]:
    """Return the changes that docs/papers.md lists for the public archives. Among the encoders in these changes, only
    the encoders that the paper's configuration `path` also names are kept.
    """
    block = (DOCS / "papers.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    public = yaml.safe_load(block)
    names = {encoder["name"] for encoder in read_mapping(path)["encoders"]}
    return {**public, "encoders": [encoder for encoder in public["encoders"] if encoder["name"] in names]}


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_the_documented_changes_of_a_paper_for_the_public_archives_are_valid(path: Path) -> None:
    paper = read_mapping(path)
    config = validate(merge(merge(read_mapping(default_path()), paper), public_changes(path)))
    assert {encoder["name"] for encoder in paper["encoders"]} == {encoder.name for encoder in config.encoders}


def write_archive(folder: Path, dataset: str, photos: dict[str, tuple[str, list[str]]], below: str = "") -> None:
    """Write the JSON file of Karpathy's archive `dataset` into `folder`. `photos` maps a file name to its split and
    captions.

    `below` is the folder of the photos inside the archive, as in the archive of COCO, or "" if there is none.
    """
    images = [
        {"filename": name, "split": split, "sentences": [{"raw": text, "tokens": text.split()} for text in texts]}
        for name, (split, texts) in photos.items()
    ]
    folder.mkdir(exist_ok=True)
    value = {"images": [{"filepath": below, **image} if below else image for image in images], "dataset": dataset}
    (folder / f"dataset_{dataset}.json").write_text(json.dumps(value))


@pytest.mark.slow
@pytest.mark.parametrize(("collection", "below"), [("flickr30k", ""), ("coco", "val2014")])
@pytest.mark.parametrize("paper", ["karpathy", "kiros", "niu"])
def test_a_papers_systems_are_planned_for_another_archive(
    paper: str, collection: str, below: str, tmp_path: Path
) -> None:
    """A dry run reads a collection in the layout of the archive, and plans the trainings of all systems of the
    paper.
    """
    splits = {"a.jpg": "train", "b.jpg": "restval", "c.jpg": "val", "d.jpg": "test"}
    photos = {name: (split, [f"a dog number {k}" for k in range(5)]) for name, split in splits.items()}
    write_archive(tmp_path / collection, collection, photos, below)
    folder = tmp_path / collection / (below or "flickr30k-images")
    folder.mkdir()
    for name in photos:
        Image.new("RGB", (8, 8)).save(folder / name)
    (tmp_path / "UD_English-EWT").mkdir()
    for part in ("train", "dev", "test"):
        (tmp_path / f"UD_English-EWT/en_ewt-ud-{part}.conllu").touch()
    path = FOLDER / f"{paper}.yaml"
    (tmp_path / "public.yaml").write_text(yaml.safe_dump(public_changes(path)))
    files = [path, "public.yaml", FOLDER / f"{collection}.yaml"]
    planned = snakemake(tmp_path, "reproduce", "-n", "--configfile", *map(str, files))
    assert {"ingest", "train", "evaluate", "report", "reproduce"} <= rules_of(planned)
    trained = set(re.findall(r"^ *wildcards: model=([\w-]+)$", planned.stdout, flags=re.M))
    config = load(path)
    assert trained >= {name for name in config.models if config.model(name).spec.made_by == "train"}


def test_pascal1k_has_the_settings_of_socher_for_other_photos() -> None:
    values = merge(read_mapping(default_path()), read_mapping(FOLDER / "socher.yaml"))
    flickr = validate(values)
    pascal = validate(merge(values, read_mapping(FOLDER / "pascal1k.yaml")))
    assert pascal.collection.format == "pascal1k" and pascal.reproduce.collection == "pascal1k"
    assert pascal.models == flickr.models and pascal.variants == flickr.variants
    assert pascal.evaluate.folds == 1 and flickr.evaluate.folds == 10


def test_the_pages_show_the_stored_results() -> None:
    """The pages have exactly the results that `python -m pipeline.papers.tables` would write into them."""
    pages = refreshed(DOCS)
    assert len(pages) == 6
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, path.name


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_result_has_the_configuration_of_the_repository(path: Path) -> None:
    run = json.loads(path.read_text())["run"]
    assert {"configuration", "commit", "clean", "data", "seeds", "seed", "versions"} <= run.keys()
    layers = ["socher", "pascal1k"] if path.stem == "pascal1k" else [path.stem]
    values = read_mapping(default_path())
    for name in layers:
        values = merge(values, read_mapping(FOLDER / f"{name}.yaml"))
    assert run["configuration"] == digest_configuration(validate(values)), f"{path} has another configuration"
    assert run["clean"], f"{path} was measured in a tree with changes that were not committed"


def test_a_line_about_a_run_says_whether_the_tree_was_clean() -> None:
    known = {
        "configuration": 64 * "c", "commit": "abc", "clean": False, "data": 64 * "d", "seeds": {}, "seed": 0,
        "machine": "2 cores", "seconds": 1234, "versions": {"python": "3"},
    }  # fmt: skip
    line = render_run({"run": known})
    assert "commit abc, with changes that were not committed, with the configuration cccccccccccc" in line
    assert "not committed" not in render_run({"run": {**known, "clean": True}})


def numbers_of(value: object) -> Iterator[float]:
    """Yield all numbers of a value from JSON or YAML: numbers in mappings and lists, keys that are numbers, and numbers
    inside strings.
    """
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            yield from numbers_of(item)
    elif isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, str):
        yield from (float(number.replace(",", "")) for number in NUMBER.findall(value))


NUMBER = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?![\w.]*\d)")
UNCHECKED = re.compile(
    r"<!-- .*?<!-- end -->|```.*?```|`[^`]*`|\]\(.*?\)|SqueezeNet 1\.0|[Ss]ections? \d(?:\.\d)?(?:(?:, | and )\d\.\d)*",
    re.DOTALL,
)
"""Parts of a page whose numbers are not checked: tables, which another test compares, code, addresses of links, one
version, and numbers of sections.
"""
PUBLISHED_IN_TEXT = {25.3, 0.0001}
"""Numbers that Socher et al. state outside of their tables: a rank in section 6.3, and the learning rate."""
PAGES = [DOCS / "papers.md", *sorted((DOCS / "papers").glob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_measured_number_in_the_text_of_a_page_is_stored(path: Path) -> None:
    """Each number with decimals or in percent must be in a result that the page shows, in a published table, or in a
    configuration.
    """
    page = path.read_text(encoding="utf-8")
    shown = set(re.findall(r"<!-- \w+ (\w+)", page))
    sources: list[object] = [json.loads(stored.read_text()) for stored in STORED if stored.stem in shown]
    sources += [read_mapping(table) for table in sorted((FOLDER.parents[1] / "pipeline/papers").glob("*.yaml"))]
    sources += [read_mapping(paper) for paper in PAPERS] + [read_mapping(default_path())["train_defaults"]]
    known = {*numbers_of(sources)} | PUBLISHED_IN_TEXT
    text = UNCHECKED.sub(" ", page)
    numbers = [match[0] for match in NUMBER.finditer(text) if "." in match[0] or text[match.end() :].startswith(" %")]
    unknown = [number for number in numbers if not is_known(number, known)]
    assert not unknown, f"{path.name} states numbers that no stored result has: {', '.join(unknown)}"


def is_known(number: str, known: set[float]) -> bool:
    """Return whether one of the numbers `known` rounds to `number`, with the decimals that `number` has."""
    value = float(number.replace(",", ""))
    digits = len(number.partition(".")[2])
    return any(abs(one - value) <= 0.5 * 10**-digits + 1e-9 for one in known)


def test_a_number_that_no_result_has_is_found() -> None:
    assert is_known("40.7", {40.667}) and not is_known("40.8", {40.667})
    text = UNCHECKED.sub(" ", "a `0.5` key of section 6.3, and 98.7 % of <!-- table x -->1.2<!-- end -->")
    assert NUMBER.findall(text) == ["98.7"]


SMOKE = {
    **{key: TINY[key] for key in ("fit", "transfer", "wsabie_sgd", "wsabie_adagrad", "shard_size")},
    "parse": {"engine": "files"}, "tokens": {"min_count": 1}, "regions": {"proposals": "boxes"},
    "evaluate": {"bootstrap": 50, "splits": ["test"], "folds": 1}, "describe": {"candidates": 5, "meteor": False},
    "study": {**TINY["study"], "encoders": []},
}  # fmt: skip
"""Settings that shorten all searches for parameters, and that need no detector and no parser."""
DEMO = {"data_root": "demo", "demo": {**TINY["demo"], "weak": 0, "generate": True}}
"""Settings of the demo whose photos and captions become the archive of a smoke test."""


def smoke(path: Path) -> dict[str, Any]:
    """Return the configuration of the paper `path` for a public archive, changed for a short run: untrained networks,
    and one seed and one epoch for each system that has several seeds.
    """
    paper = read_mapping(path)
    config = load(path)
    short = {"epochs": 1, "patience": 1}
    variants = {
        name: {"seeds": [0], **(short if config.model(f"{name}-seed0").spec.made_by == "train" else {})}
        for name, variant in paper.get("variants", {}).items()
        if "seeds" in variant
    }
    generators = {
        name: {"seeds": [0], **short} for name, one in paper.get("generator_variants", {}).items() if "seeds" in one
    }
    changes: dict[str, Any] = {"variants": variants, "generator_variants": generators}
    changes["encoders"] = [{"name": one["name"], **NETWORK} for one in paper["encoders"]]
    if "language_text" in paper:
        changes["language_text"] = {"file": None, "treebank": "demo/trees.conllu"}
    return merge(merge(merge(paper, public_changes(path)), SMOKE), changes)


def archive_demo(folder: Path) -> None:
    """Copy the photos and captions of the collection `demo` in `folder` to the collection `flickr8k` in `folder`, in
    the layout of Karpathy's archive. The parses and the boxes are copied too.
    """
    demo = folder / "demo"
    archive = folder / "flickr8k"
    rows = {name: (demo / name).read_text().splitlines() for name in ("splits.tsv", "captions.tsv")}
    photos = {
        name: ("val" if split == "dev" else split, [])
        for name, split in (row.split("\t") for row in rows["splits.tsv"])
    }
    for name, _, text in (row.split("\t") for row in rows["captions.tsv"]):
        photos[name][1].append(text)
    write_archive(archive, "flickr8k", photos)
    shutil.copytree(demo / "images", archive / "images")
    for name in ("trees.conllu", "trees.brackets", "boxes.tsv"):
        shutil.copy(demo / name, archive)


@pytest.mark.nightly
@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_papers_configuration_runs_from_the_public_archive_to_its_tables_and_report(
    path: Path, tmp_path: Path
) -> None:
    for name, values in (("demo", DEMO), ("smoke", smoke(path))):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
    snakemake(tmp_path, "demo/demo.json", "--configfile", "demo.yaml")
    archive_demo(tmp_path)
    snakemake(tmp_path, "reproduce", "--configfile", "smoke.yaml")
    run = tmp_path / "results" / path.stem
    assert (run / "reproduction.md").read_text().startswith("# ") and (run / "report/index.html").exists()
