"""Functions that make a synthetic run with features and tokens, train generators on it, and generate captions."""

import json
from pathlib import Path

import numpy as np
from synthetic_run import CONFIG, THINGS, by_colour, make_run, make_stage, write_config
from trainable_run import build_tokens

from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest

TAGGED = (
    (("the", "DET"), ("big", "ADJ"), ("{}", "NOUN"), ("number", "NOUN"), ("3", "NUM")),
    (("a", "DET"), ("{}", "NOUN")),
)
CONLLU = "\n".join(
    "".join(
        f"{i}\t{word.format(thing)}\t_\t{tag}\t_\t_\t{i - 1}\tdep\t_\t_\n" for i, (word, tag) in enumerate(sentence, 1)
    )
    for thing in THINGS
    for sentence in TAGGED
)
GENERATORS = ["nearest", "mrnn", "lbl", "mnlm", "sc-nlm", "gated"]
"""The generators that the run can train. `gated` is a variant of `mrnn`."""
FAST = {
    **CONFIG,
    "tokens": {"min_count": 1},
    "mrnn": {"dimensions": 16, "word_dim": 8, "epochs": 8, "batch_size": 8, "learning_rate": 0.02, "dropout": 0},
    "generator_variants": {"gated": {"generator": "mrnn", "cell": "gru", "seed": 1}},
    "language_defaults": {"averaging": 0, "batch_size": 8, "learning_rate": 0.005, "precision": "float32"},
    "describe": {"top": 2, "beam": 3, "candidates": 40, "meteor": False},
}


def make_described_run(folder: Path) -> Path:
    """Make a synthetic run of 48 images in `folder`, with features, tokens and an index, and return `folder`. Every
    third image belongs to the split dev. The configuration names all generators of GENERATORS.
    """
    make_run(folder, held_out="dev", images=48)
    manifest = Manifest(folder / "manifest")
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        features = np.eye(len(THINGS), dtype=np.float16)[ids % len(THINGS)]
        write_features(folder / f"features/colour/shard-{number:05d}.h5", features, ids, by_colour(folder), {})
    (folder / "bank.conllu").write_text(CONLLU)
    write_config(folder, FAST, {"generators": GENERATORS, "language_text": {"treebank": str(folder / "bank.conllu")}})
    build_tokens(folder)
    make_stage("build_index", folder, "ncca")
    (folder / "bundle").symlink_to("index/ncca")
    return folder


def link_run(run: Path, folder: Path, *without: str) -> Path:
    """Make the folder `folder` with links to all files and folders of `run`, except the generated captions, the
    evaluation and the names `without`. Return `folder`.
    """
    folder.mkdir()
    for path in run.iterdir():
        if path.name not in ("descriptions", "evaluation", *without):
            (folder / path.name).symlink_to(path)
    return folder


def describe(run: Path, name: str, subject: str, *more: object) -> dict:
    """Generate captions of `subject` with the generator `name`, and return the stored result. The generator is trained
    first if the run does not have it.

    `subject` is a split or, for the labelled boxes of a split, SPLIT.boxes. `more` are options of the stage `describe`.
    """
    make_stage("describe", run, train(run, name).name, subject, *more)
    folder = run / f"descriptions/{name}.{subject}"
    assert "<html" in (folder / "index.html").read_text() and (folder / "descriptions.txt").read_text().strip()
    return json.loads((folder / "descriptions.json").read_text())


def train(run: Path, name: str) -> Path:
    """Return the folder of the generator `name`. Train the generator first if the run does not have it."""
    folder = run / "generators" / name
    if not folder.exists():
        make_stage("train_generator", run, name)
    return folder
