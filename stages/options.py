"""Options that several commands share, and what they mean."""

from pathlib import Path

import click

PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)

config = click.option(
    "--config", "config_path", type=FILE, help="Configuration laid over config/default.yaml. [default: none]"
)
manifest = click.option("--manifest", "manifest_folder", type=FOLDER, required=True, help="Folder that `ingest` wrote.")
shard = click.option("--shard", type=click.IntRange(min=0), required=True, help="Number of the shard.")

features = click.option(
    "--features", "features_root", type=FOLDER, required=True, help="Folder with one folder of shards for each encoder."
)
tfidf = click.option("--tfidf", "tfidf_folder", type=FOLDER, required=True, help="Folder of `encode-sentences` shards.")
tokens = click.option("--tokens", "tokens_folder", type=FOLDER, help="Folder of `encode-tokens` shards.")

embeddings = click.option(
    "--embeddings", "embeddings_folder", type=FOLDER, required=True, help="Folder of one row's `embed` shards."
)


def study_inputs(function):
    """The folders that `study` and `sweep` measure with, as keyword arguments of their names."""
    folders = {
        "--documents": ("documents_root", "Folder with `encode-documents` shards for each documents."),
        "--auxiliary": ("auxiliary_root", "Folder with auxiliary moments, in folds, for each documents."),
        "--moments": ("moments_folder", "Target moments, in folds."),
    }
    for name, (argument, what) in folders.items():
        function = click.option(name, argument, type=FOLDER, required=True, help=what)(function)
    return manifest(features(tfidf(function)))


def output(kind: str, what: str):
    """The option `--output`, a FILE or FOLDER; `what` says what it becomes."""
    return click.option("--output", type={"file": FILE, "folder": FOLDER}[kind], required=True, help=what)
