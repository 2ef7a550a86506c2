"""The page of all stages: which keys of the configuration each command reads, and what a run of it costs.

python -m pipeline.plan.reference > docs/stages.md
"""

import sys
from dataclasses import dataclass

from pipeline import config
from pipeline.plan.needs import NEEDS
from pipeline.plan.sizes import Sizes, sizes_of
from pipeline.specs.models import made_by


@dataclass(frozen=True)
class Stage:
    """A command: the top `keys` of the configuration that it reads, one job for `each` of what, and what the time of
    all jobs `grows` with. Keys of a model and of a generator are those of its own section, laid over the one named."""

    keys: tuple[str, ...]
    each: str
    grows: str


FITTED = tuple(spec.key for spec in made_by("fit") if spec.section)
PARTS = ("shards_per_job", "workers", "scheduler", "cluster")
STUDY = ("study", "transfer", "auxiliary", *FITTED, "encoders", "seed", "device")
MODELS = ("models", "variants", "variant_defaults")
STAGES = {
    "make-demo": Stage(("demo",), "run", "images"),
    "ingest": Stage(("data_root", "collection", "shard_size"), "run", "images, each decoded once"),
    "prepare-encoder": Stage(
        ("encoders", "encoder_defaults", "weights_root", "seed", "study", "regions", "collection", "extract"),
        "encoder", "a download; for `standard` the train images that it learns from",
    ),
    "finetune": Stage(
        ("finetune", "encoders", "encoder_defaults", "regions", "extract", "collection", "weights_root", "seed",
         "device"),
        "encoder", "`finetune.iterations` times the regions of a batch",
    ),
    "extract": Stage(("extract", "collection", "device", *PARTS), "part and encoder", "images over the encoder's rate"),
    "extract-regions": Stage(
        ("regions", "extract", "collection", "weights_root", "device", *PARTS), "part and encoder",
        "images times regions (`crops`) or the pixels of a map (`roi-align`), and proposals",
    ),
    "pool-regions": Stage(("extract", *PARTS), "part and encoder", "images times regions"),
    "reduce-regions": Stage(("regions", "extract"), "encoder", "regions times D squared"),
    "show-regions": Stage(("collection", "data_root"), "encoder", "the few images shown"),
    "import-features": Stage(("extract",), "encoder", "bytes of the features"),
    "build-vocabulary": Stage(("text",), "run", "training sentences"),
    "encode-sentences": Stage(PARTS, "part", "sentences"),
    "simulate-documents": Stage(("documents", "auxiliary", "seed"), "documents", "sentences"),
    "encode-documents": Stage(("documents", *PARTS), "part and documents", "documents"),
    "build-token-vocabulary": Stage(("tokens",), "run", "training sentences"),
    "encode-tokens": Stage(PARTS, "part", "sentences"),
    "train-word-vectors": Stage(("word_vectors", "language_text", "seed"), "run", "words times `word_vectors.epochs`"),
    "train-parser": Stage(("parse", "weights_root", "seed"), "run", "words of the treebank times epochs"),
    "parse": Stage(("parse", "data_root", "weights_root", *PARTS), "part", "sentences over the parser's rate"),
    "build-label-table": Stage((), "run", "sentences"),
    "encode-trees": Stage(PARTS, "part", "sentences"),
    "accumulate": Stage(
        ("image_view", "encoders", "auxiliary", "study", "seed", "device", *PARTS), "part; again for each documents",
        "images times D squared; bytes of the moments, which do not grow with a shard",
    ),
    "fit": Stage(
        ("fit", "transfer", *FITTED, *MODELS, "device"), "model",
        "ridges times the cubes of D and of the terms; shards; not images (kcca, wsabie and `sae`: images too)",
    ),
    "train": Stage(
        ("train_defaults", "word_vectors", "image_view", "regions", "weights_root", "seed", *MODELS, "device"), "model",
        "sentences times epochs",
    ),
    "embed": Stage(("device", *PARTS), "part and model", "images times D times dimensions"),
    "fit-csls": Stage(("csls", "fit", "seed", *MODELS), "model", "dev pairs and the bank times the grid"),
    "combine": Stage(("ensembles", "ensemble_defaults", "fit"), "ensemble", "dev pairs times members times weights"),
    "join-embeddings": Stage(PARTS, "part and ensemble", "bytes of the members' vectors"),
    "align": Stage(("align", "collection", "data_root"), "model and split", "words of the split times regions"),
    "list-magnitudes": Stage(("align", "collection", "data_root"), "model and split", "words of the split"),
    "embed-phrases": Stage(("device",), "model and split", "noun phrases of the split"),
    "rank-phrases": Stage(("phrases", "data_root", "evaluate", "seed"), "model and split", "phrases times regions"),
    "show-phrases": Stage(("collection", "data_root", "seed"), "model and split", "the few images shown"),
    "build-index": Stage(
        ("index", "parse", "weights_root", "device"), "model",
        "vectors times dimensions, for the exact search that measures it; candidates ten times that"
    ),
    "index-add": Stage(("index",), "call", "vectors added, and the copy of the bundle"),
    "index-remove": Stage(("index",), "call", "the copy of the bundle"),
    "search": Stage(("collection",), "call", "a second's start, and the index's sha256"),
    "serve": Stage(("serve", "collection", "describe", "seed", "device"), "call", "requests"),
    "show-words": Stage(("collection", "data_root"), "call", "the words and images shown"),
    "evaluate": Stage(
        ("evaluate", "seed", "device"), "model, split and protocol",
        "images times sentences of the split; `evaluate.bootstrap`"
    ),
    "summarise": Stage((), "run", "evaluations"),
    "train-generator": Stage(
        ("generators", "language_defaults", "nearest", "language_text", "describe", "image_view", "encoders", "seed",
         "device"),
        "generator", "words times epochs",
    ),
    "describe": Stage(
        ("describe", "collection", "phrases", "data_root", "seed", "device"), "generator and split; again for boxes",
        "images times `describe.beam`, or times `describe.candidates`",
    ),
    "describe-photographs": Stage(("describe", "collection", "data_root", "seed", "device"), "call", "photographs"),
    "evaluate-descriptions": Stage(
        ("describe", "language_text", "phrases", "data_root", "seed", "device"), "generator and split; again for boxes",
        "images of the split",
    ),
    "report": Stage(("name", "data_root", "models", "encoders", "reproduce", "collection"), "run", "models"),
    "reproduce": Stage(("reproduce", "name", "encoders", "regions", *MODELS), "run", "models"),
    "verify": Stage((), "call", "bytes of the run"),
    "explain": Stage((), "call", "shards"),
    "study": Stage(STUDY, "run", "draws times sizes of sets times what `fit` does"),
    "tabulate": Stage(("evaluate", "seed", "name", "device"), "run", "cells of the study"),
    "sweep": Stage((*STUDY, "fit", "variants", "variant_defaults"), "call", "combinations of the grids"),
    "ground-truth": Stage(("device",), "call", "queries times vectors times dimensions"),
    "plan": Stage(
        ("plan", "encoders", "extract", "regions", "text", "collection", "seed", "weights_root", "device"), "run",
        "`plan.sample`",
    ),
    "doctor": Stage(("results_root",), "call", "the imports that it tries"),
}  # fmt: skip
MILLION = Sizes(
    images=1_000_000, sentences=150_000, shard_images=16384, terms=3000, dimensions=128, rows=3,
    splits={"train": 28_000, "dev": 1000, "test": 1000, "weak": 970_000}, dims={"resnet50": 2048}, batch_images=32,
)  # fmt: skip
HEAD = """# Stages: their keys and what they cost

A command reads the keys named here (each is explained in [configuration.md](configuration.md)); a run has one job of it
for each of what the third column says. A part is a range of shards. D is the number of dimensions of the image view.
The last two columns are what a job (of a part, each of its shards) asks its scheduler for, in MB of memory and in
minutes after which it may be killed: generous bounds by `pipeline/plan/needs.py`, no forecasts, for the demo and for a
million images, 30,000 of them with five sentences each, at 2,048 dimensions and 16,384 images a shard. Forecasts are
`jointspace plan`'s; what stages took is in [measured.md](measured.md) and [scaling.md](scaling.md), and of a run of
yours in its report. Made by `python -m pipeline.plan.reference > docs/stages.md`.

| command | keys | a job for each | its cost grows with | demo | a million |
|---|---|---|---|---|---|
"""


def render() -> str:
    """The page."""
    demo = sizes_of(config.load(), None)
    return HEAD + "".join(_row(command, stage, demo) for command, stage in STAGES.items())


def _row(command: str, stage: Stage, demo: Sizes) -> str:
    keys = ", ".join(f"`{key}`" for key in stage.keys)
    asked = " | ".join(_asked(command.replace("-", "_"), sizes) for sizes in (demo, MILLION))
    return f"| `{command}` | {keys} | {stage.each} | {stage.grows} | {asked} |\n"


def _asked(rule: str, sizes: Sizes) -> str:
    if rule not in NEEDS:
        return ""
    return f"{NEEDS[rule].memory(sizes):,.0f} MB, {NEEDS[rule].minutes(sizes):,.0f} min"


if __name__ == "__main__":
    sys.stdout.write(render())
