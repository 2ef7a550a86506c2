"""Everything that writes, in one form: `write(folder, run, collection)` makes an artefact in the folder `folder`.

Its inputs are those of the finished tiny run `run` of `collection`.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tiny_run

from pipeline.storage.atomic import publish_json
from pipeline.storage.checkpoints import Checkpoints
from pipeline.storage.features import UnfinishedShard
from pipeline.storage.parsers import publish_parser

STAGES = (
    "ingest", "import_features", "prepare_text_encoder", "encode_sentences", "encode_documents",
    "build_token_vocabulary", "encode_tokens", "accumulate", "fit", "embed", "evaluate", "summarise", "build_index",
)  # fmt: skip


def stage(name: str) -> Callable[[Path, Path, Path], None]:
    """The command of module `name` on the inputs of a finished run, its output going to `folder`."""

    def write(folder: Path, run: Path, collection: Path) -> None:
        calls, _ = tiny_run.stages(collection, run)[name]
        tiny_run.call(name, tiny_run.elsewhere(name, calls[0], folder))

    return write


def report(folder: Path, run: Path, collection: Path) -> None:
    call = ["--run", str(run), "--config", str(collection / "config.yaml")]
    tiny_run.call("report", tiny_run.elsewhere("report", call, folder))


def demo(folder: Path, run: Path, collection: Path) -> None:
    config = folder.parent / "demo.json"
    config.write_text(json.dumps({"demo": {"train": 2, "dev": 1, "test": 1, "weak": 1}}))
    tiny_run.call("make_demo", ["--config", str(config), "--processes", "0", "--output", str(folder / "demo")])


def unfinished(folder: Path, run: Path, collection: Path) -> None:
    """What `extract` does with the features of ten images, four at a time."""
    features = np.random.default_rng(0).random((10, 900), np.float32)
    shard = UnfinishedShard(folder / "shard-00000.h5", "f", np.arange(10), 4)
    for rows in shard.missing():
        shard.write(rows, features[rows.start : rows.stop])
    shard.publish({"inputs": {"images": "i"}})


def checkpoint(folder: Path, run: Path, collection: Path) -> None:
    tensors = {"weight": np.random.default_rng(0).random(5000, np.float32)}
    Checkpoints(folder / "checkpoints", "f", 0).offer(lambda: (tensors, {"step": 1}))


def parser(folder: Path, run: Path, collection: Path) -> None:
    trained = folder / "parser/.training/model-best"
    for name in ("vocab", "parser/model"):
        (trained / name).parent.mkdir(parents=True, exist_ok=True)
        (trained / name).write_bytes(bytes(12_000))
    publish_parser(folder / "parser", trained, "digest", {"dev": {}})


def export(folder: Path, run: Path, collection: Path) -> None:
    given = [run / "index/ncca", "--to", "npy", "--output", folder / "arrays"]
    tiny_run.call("export", list(map(str, given)))


def init(folder: Path, run: Path, collection: Path) -> None:
    tiny_run.call("init", [str(collection), "--output", str(folder / "mine.yaml")])


def cell(folder: Path, run: Path, collection: Path) -> None:
    publish_json(folder / "cells/0.json", {"recalls": list(range(3000))})


def other_kinds(folder: Path, run: Path, collection: Path) -> None:
    """A region shard, tree shard and parses, one after the other."""
    tiny_run.add_other_kinds(run, folder)


WRITERS = {
    **{name: stage(name) for name in STAGES},
    **{one.__name__: one for one in (report, demo, unfinished, checkpoint, parser, export, init, cell, other_kinds)},
}
SHARDED = {"import_features", "encode_sentences", "encode_documents", "encode_tokens", "accumulate", "embed"}
ONE_BY_ONE = {"other_kinds", "unfinished", "demo", *SHARDED}
"""Writers of several artefacts, or of parts, each of which is whole or not there."""
RESUMED = {"unfinished", "demo", "export", "init"}
"""Writers that leave alone, or refuse, what is there already."""


WITHOUT_LOCK = {"unfinished", "checkpoint", "parser", "init", "cell", "other_kinds"}
"""Writers that take no lock, which takes a page."""
