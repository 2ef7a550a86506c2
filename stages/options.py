"""Options that several commands share, and what they mean."""

import importlib
from collections.abc import Callable
from functools import partial, wraps
from operator import add
from pathlib import Path
from typing import Any

import click

PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)

config = click.option(
    "--config", "config_path", type=FILE, help="Configuration laid over config/default.yaml. [default: none]"
)
manifest = click.option("--manifest", "manifest_folder", type=FOLDER, required=True, help="Folder that `ingest` wrote.")
shard = click.option("--shard", type=click.IntRange(min=0), required=True, help="Number of the shard.")

scheduler = click.option(
    "--scheduler", default="local", show_default=True,
    help="Where shards are worked on: local, threads, or a Dask scheduler's address, tcp://host:port.",
)  # fmt: skip

features = click.option(
    "--features", "features_root", type=FOLDER, required=True, help="Folder with one folder of shards for each encoder."
)
tfidf = click.option("--tfidf", "tfidf_folder", type=FOLDER, required=True, help="Folder of `encode-sentences` shards.")
tokens = click.option("--tokens", "tokens_folder", type=FOLDER, help="Folder of `encode-tokens` shards.")
trees = click.option("--trees", "trees_folder", type=FOLDER, help="Folder of `encode-trees` shards.")
parses = click.option("--parses", "parses_folder", type=FOLDER, required=True, help="Folder of `parse` shards.")
token_vocabulary = click.option(
    "--vocabulary", "vocabulary_path", type=FILE, required=True, help="What `build-token-vocabulary` wrote."
)

regions = click.option(
    "--regions", "regions_root", type=FOLDER, help="Folder with one folder of region shards for each encoder."
)
chosen = click.option(
    "--chosen", "chosen_folder", type=FOLDER, help="Model of the row that this row refits. [default: none]"
)

embeddings = click.option(
    "--embeddings", "embeddings_folder", type=FOLDER, required=True, help="Folder of one row's `embed` shards."
)
bundle = click.option(
    "--index", "bundle_folder", type=FOLDER, required=True, help="Bundle that `build-index` wrote, to start from."
)


def count(name: str, default: int, what: str) -> click.Option:
    """An option of a declared stage, a number above zero."""
    return click.Option([name], type=click.IntRange(min=1), default=default, show_default=True, help=what)


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
    """The option `--output`, a file, a folder, or either (path); `what` says what it becomes.

    A command that has it holds the lock of what it writes; a second run of it fails, naming the first.
    """
    types = {"file": FILE, "folder": FOLDER, "path": PATH}

    def lock(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def locked(output: Path, **arguments: Any) -> None:
            from pipeline.storage.locks import hold

            with hold(output):
                function(output=output, **arguments)

        return click.option("--output", type=types[kind], required=True, help=what)(locked)

    return lock


def sharded(function: Callable[..., None]) -> Callable[..., None]:
    """The options `--shard` and `--scheduler` of a command that makes one shard of a manifest into the file `output`.

    Without `--shard` it makes every shard, into the folder `output`, on one process, on threads or on Dask's workers.
    """

    @wraps(function)
    def over_shards(manifest_folder: Path, shard: int | None, scheduler: str, output: Path, **arguments: Any) -> None:
        arguments["manifest_folder"] = manifest_folder
        if shard is not None:
            function(shard=shard, output=output, **arguments)
            return
        from tqdm import tqdm

        from pipeline.mapreduce import map_reduce
        from pipeline.storage.manifest import Manifest

        # Workers may stand in another folder.
        arguments = {name: v.absolute() if isinstance(v, Path) else v for name, v in arguments.items()}
        make = partial(_make_shard, function.__module__, output.absolute(), arguments)
        shards, bar = range(Manifest(manifest_folder).n_shards), partial(tqdm, unit=" shards", disable=None)
        map_reduce(make, shards, add, scheduler, progress=bar)

    one = click.option("--shard", type=click.IntRange(min=0), help="Number of the shard. [default: all, into a folder]")
    return one(scheduler(over_shards))


def _make_shard(module: str, folder: Path, arguments: dict[str, Any], number: int) -> int:
    """Run the command of `module` for one shard; 1, the number of shards made."""
    from pipeline.storage.gather import shard_path

    command = importlib.import_module(module).command
    command.callback(shard=number, scheduler="local", output=shard_path(folder, number), **arguments)
    return 1
