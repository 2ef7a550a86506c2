"""A small collection ready for `fit` and `train`: features, tf-idf and tokens of all shards, with a dev split."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml
from made_up import MADE_BY, THINGS, features_of, make_run, run_command

from pipeline.config import merge
from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest, write_manifest
from pipeline.storage.parameters import MODEL, Parameters, read_parameters
from pipeline.storage.sentences import write_tfidf
from pipeline.text.tfidf import encode
from pipeline.text.vocabulary import Vocabulary

CONFIG = {
    "encoders": [{"name": "colour", "architecture": "squeezenet1_1", "weights": "untrained"}],
    "image_view": {"normalise": []},
    "tokens": {"min_count": 1},
    "word_vectors": {"dim": 16},
    "train_defaults": {
        "dimensions": 16, "batch_size": 16, "epochs": 20, "patience": 20, "learning_rate": 0.02, "dropout": 0.0,
        "precision": "float32", "checkpoint_seconds": 0,
    },
}  # fmt: skip


def make_trainable(folder: Path) -> Path:
    """A run of 48 images in five shards in `folder`; every third image is of the dev split."""
    make_run(folder, images=48)
    manifest, vocabulary = with_dev(folder), json.loads((folder / "vocabulary.json").read_text())
    (folder / "c.yaml").write_text(yaml.safe_dump(CONFIG))
    about = ("--manifest", folder / "manifest")
    run_command("build_token_vocabulary", *about, "--config", folder / "c.yaml", "--output", folder / "tokens.json")
    for number in range(manifest.n_shards):
        name, rows = f"shard-{number:05d}.h5", manifest.shard(number)
        ids, texts = np.arange(rows.first_image, rows.last_image), slice(rows.first_sentence, rows.last_sentence)
        features = np.concatenate([features_of(THINGS[i % 8])["colour"] for i in ids])
        features += np.random.default_rng(number).normal(0, 0.1, features.shape).astype(np.float32)
        made_from = {"inputs": {**MADE_BY, "images": rows.fingerprints["images"]}}
        write_features(folder / "features/colour" / name, features, ids, f"features {number}", made_from)
        matrix = encode(manifest.sentences["text"][texts].to_pylist(), Vocabulary.from_dict(vocabulary))
        inputs = {"vocabulary": vocabulary["fingerprint"], "sentences": rows.fingerprints["sentences"]}
        write_tfidf(
            folder / "tfidf" / name, matrix, np.arange(rows.first_sentence, rows.last_sentence),
            manifest.sentence_images[texts], fingerprint=f"tfidf {number}", inputs=inputs,
        )  # fmt: skip
        tokens = ("--vocabulary", folder / "tokens.json", "--output", folder / "tokens" / name)
        run_command("encode_tokens", *about, "--shard", number, *tokens)
    return folder


def with_dev(folder: Path) -> Manifest:
    """The manifest in `folder`, its test split become dev."""
    old = Manifest(folder / "manifest")
    splits = pa.array(["dev" if split == "test" else split for split in old.splits])
    images = old.images.set_column(old.images.schema.get_field_index("split"), "split", splits)
    tables = {"images": images, "sentences": old.sentences, "documents": old.documents, "boxes": old.boxes}
    write_manifest(folder / "manifest", old.root, tables, old.rejects, old.summary["counts"], old.shard_size)
    return Manifest(folder / "manifest")


def train(run: Path, row: str, output: str, *more: object, config: dict | None = None) -> Path:
    """The model that the command `train` makes of `row`, in `run / output`."""
    path = run / f"{output}.yaml"
    path.write_text(yaml.safe_dump(merge(CONFIG, config or {})))
    given = options(run, "manifest", "features", "tfidf", "tokens")
    run_command("train", row, *given, "--config", path, "--output", run / output, *more)
    return run / output


def options(run: Path, *parts: str) -> list[object]:
    """The options of a command that are called as their artefacts in `run`."""
    return [argument for name in parts for argument in (f"--{name}", run / name)]


def add_moments(run: Path, rows: dict) -> None:
    """The configuration CONFIG | `rows` as `rows.yaml`, and the moments of both splits."""
    (run / "rows.yaml").write_text(yaml.safe_dump(CONFIG | rows))
    given = (*options(run, "manifest", "features", "tfidf"), "--config", run / "rows.yaml")
    for pairs in ("target", "dev"):
        run_command("accumulate", *given, "--pairs", pairs, "--output", run / "moments" / pairs)


def fit(run: Path, row: str, *more: object) -> None:
    """The model of `row` by `rows.yaml`, in `run / models`."""
    given = (*options(run, "manifest", "features", "tfidf"), "--moments", run / "moments/target")
    run_command("fit", row, *given, "--config", run / "rows.yaml", "--output", run / "models" / row, *more)


def embed(run: Path, row: str) -> None:
    given = options(run, "manifest", "features", "tfidf", "tokens")
    run_command("embed", *given, "--model", run / "models" / row, "--output", run / "embeddings" / row)


def read_model(run: Path, row: str) -> Parameters:
    return read_parameters(run / "models" / row / "model.safetensors", MODEL)
