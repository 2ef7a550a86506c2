"""The checklists of docs/extending.md: one new part of each kind, added as they say to a copy of the checkout."""

import json
import subprocess
from pathlib import Path

import pytest
import warm
import yaml
from PIL import Image
from warm import ROOT

from pipeline.storage.json_files import read_json
from pipeline.storage.parameters import ENCODER, MODEL, read_parameters

MIRRORED = '''"""The registered model `mirrored`: a normalized CCA whose space is turned round."""

from pipeline.models.linear.cca import NormalizedCCA


class Mirrored(NormalizedCCA):
    def embed_images(self, features):
        return -super().embed_images(features)

    def embed_sentences(self, sentences):
        return -super().embed_sentences(sentences)
'''
COLOURS = '''"""The image encoder `cell-colours`: the mean colour of each cell of a grid."""

from dataclasses import asdict

from torch.nn import functional

from pipeline.images.image_encoder import ImageEncoder
from pipeline.images.preprocess import Preprocessing


class CellColours(ImageEncoder):
    def __init__(self, preprocessing, cells):
        super().__init__(preprocessing)
        self.cells = cells

    def forward(self, pixels):
        colours = pixels.permute(0, 3, 1, 2).float() / 255
        return functional.adaptive_avg_pool2d(colours, self.cells).flatten(1)

    def settings(self):
        own = {"preprocessing": asdict(self.preprocessing), "cells": self.cells}
        return {"architecture": "cell-colours", "layer": "cells", "weights": {"origin": "none"}, **own}

    def tensors(self):
        return {}

    @classmethod
    def from_parts(cls, settings, tensors):
        return cls(Preprocessing.from_dict(settings["preprocessing"]), settings["cells"])

    @classmethod
    def prepare(cls, entry, material):
        return cls(Preprocessing.from_entry(entry), entry.cell_colours.cells)
'''
CELLS = '''

class Cells(Section):
    """`cells` on each side of the picture."""

    cells: Positive = 2
'''
LETTERS = '''"""The text encoder `letters`: how often each letter stands in a text."""

import numpy as np

from pipeline.text.text_encoder import TextEncoder


class LetterCounts(TextEncoder):
    kind = "letters"
    dim = 26

    def encode(self, texts):
        counts = [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        return np.array(counts, np.float32).reshape(len(texts), 26)

    def settings(self):
        return {"kind": "letters"}

    def tensors(self):
        return {}

    @classmethod
    def prepare(cls, entry, material):
        return cls()

    @classmethod
    def from_parts(cls, settings, tensors):
        return cls()
'''
LENGTHS = '''"""`count-lengths`: how many words the sentences have."""

from pipeline.run.run import Run
from pipeline.run.stage import Job, Stage


def count_lengths(run: Run, job: Job) -> None:
    """Count the words of the sentences."""
    from pipeline.storage.commit import publish_record

    texts = run.manifest.sentences["text"].to_pylist()
    publish_record(job.path, {"lengths": [len(text.split()) for text in texts]}, provenance=job.provenance)


STAGE = Stage(
    count_lengths,
    version=1,
    wanted=lambda config: [()],
    reads=lambda config, layout: {"manifest": layout.manifest},
    writes=lambda layout: layout.file("lengths.json"),
)
'''
REDS = '''"""A collection of red photographs."""

from pipeline.collections.records import ImageRecord, SentenceRecord


def read(root, options):
    yield ImageRecord("red.png", "red.png", options.default_split, "list")
    yield SentenceRecord("red.png", 0, "a red thing", "list", 1)
'''
FILES = {
    "pipeline/models/linear/mirrored.py": MIRRORED,
    "pipeline/images/cell_colours.py": COLOURS,
    "pipeline/text/letters.py": LETTERS,
    "stages/results/count_lengths.py": LENGTHS,
    "pipeline/collections/formats/reds.py": REDS,
}
RULE = """

rule count_lengths:
    input: reads("count_lengths")
    output: LAYOUT.file("lengths.json").commit
    params: decides=decides("count_lengths")
    log: LOGS / "count_lengths.log"
    benchmark: BENCHMARKS / "count_lengths/all.tsv"
    threads: 1
    resources: mem_mb=megabytes(1000)
    shell: jointspace("count-lengths")
"""
LINES = {
    "pipeline/config/registry.py": (
        "MODELS: tuple[ModelSpec, ...] = (\n",
        '_fitted("mirrored", "mirrored:Mirrored", grid=GRID),\n',
        '_encoder("pooled", "regions:PooledEncoder", reads="regions"),\n',
        '_encoder("cell-colours", "cell_colours:CellColours", section="pipeline.config.images:Cells"),\n',
        "TEXT_ENCODERS: tuple[TextEncoderSpec, ...] = (\n",
        '_text("letters", "letters:LetterCounts"),\n',
    ),
    "stages/rules/results.smk": ("", RULE),
    "pipeline/config/images.py": ('"""Keys of features made elsewhere."""\n', CELLS),
    "pipeline/collections/formats/__init__.py": (
        "formats import folder", ", reds", "Iterator[Record]]] = {\n", '"reds": reds.read,\n',
    ),
    "pipeline/config/collection.py": ("    format: Literal[\n", '        "reds",\n'),
}  # fmt: skip
"""File -> what stands in it, and what is added behind that; behind nothing: at the end."""
TINY = {
    "name": "tiny",
    "models": ["mirrored"],
    "encoders": [{"name": "colours", "kind": "cell-colours", "resize": 32, "crop": 32, "cell_colours": {"cells": 3}}],
    "text_encoders": [{"name": "tfidf", "kind": "tf-idf"}, {"name": "letters", "kind": "letters"}],
    "shard_size": 40,
    "demo": {"train": 50, "dev": 10, "test": 10, "weak": 0},
    "data_root": "data",
    "fit": {"dimensions": [8], "image_ridge": [0.1], "text_ridge": [1], "eigenvalue_power": [1]},
    "evaluate": {"bootstrap": 20, "splits": ["test"], "protocols": ["all-sentences"]},
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git has, with the new files and lines."""
    copy = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    for name, text in FILES.items():
        (copy / name).write_text(text)
    for name, added in LINES.items():
        text = (copy / name).read_text()
        for before, line in zip(added[::2], added[1::2], strict=True):
            start = text.index(before) + len(before) if before else len(text)
            text = text[:start] + line + text[start:]
        (copy / name).write_text(text)
    return copy


def printed(result: subprocess.CompletedProcess) -> str:
    """What a program has printed, which must not have failed."""
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
    return result.stdout


def test_a_model_an_encoder_and_a_stage_are_files_and_a_line_each(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    words = ["-s", checkout / "Snakefile", "all", "--cores", 2, "--configfile", "tiny.yaml"]
    printed(warm.snakemake(tmp_path, *words, root=checkout))
    results = tmp_path / "results/tiny"
    assert read_parameters(results / "encoders/colours/model.safetensors", ENCODER).details["dim"] == 27
    assert len(list((results / "features/colours").glob("shard-*.h5"))) == 2
    assert len(list((results / "text/letters").glob("shard-*.h5"))) == 2
    assert read_parameters(results / "models/mirrored/model.safetensors", MODEL).details["registered"] == "mirrored"
    found = read_json(results / "evaluation/mirrored.test.all-sentences.json")
    assert found["sentence_to_image"]["median_rank"] < 5  # by chance 5.5 of 10: turned round, both sides still agree
    lengths = read_json(results / "lengths.json")["lengths"]
    assert len(lengths) == read_json(results / "manifest/manifest.json")["counts"]["sentences"]["kept"]
    page = (results / "report/index.html").read_text()
    assert "mirrored" in page and "cell-colours" in page

    def search(*words: object) -> list[dict]:
        given = ["search", "--index", results / "index/mirrored", "--json", "--top", 3, *words]
        return json.loads(printed(warm.jointspace(tmp_path, *given, root=checkout)))

    assert len(search("a dog on the grass")) == 3
    photograph = next((tmp_path / "data/images").iterdir())
    sentences = search("--image", photograph)
    assert len(sentences) == 3 and all(found["text"] for found in sentences)


def test_a_format_is_a_reader_in_a_table(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{data_root: data, demo: {generate: false}, collection: {format: reds}}")
    (tmp_path / "data").mkdir()
    Image.new("RGB", (32, 32), "red").save(tmp_path / "data" / "red.png")
    printed(warm.jointspace(tmp_path, "ingest", "--run", tmp_path, "--processes", 0, root=checkout))
    assert read_json(tmp_path / "manifest" / "manifest.json")["counts"]["images"]["kept"] == 1
