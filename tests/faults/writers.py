"""Writers of all kinds of artefacts, for the tests on a full disk.

Each writer has the form `write(folder, run, collection)`, and makes its artefacts in `folder`. The inputs come from
`run`, which is the finished run of `tiny_run`, and from the run's collection.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tiny_run

from pipeline.storage.commit import Provenance
from pipeline.storage.features import UnfinishedShard
from pipeline.storage.parameters import Checkpoints

STAGES = ("ingest", "fit", "embed", "summarise", "build_index")
"""One stage for each kind of file: tables, tensors, shards with images and sentences, JSON, and an index."""


def stage(name: str) -> Callable[[Path, Path, Path], None]:
    """Return a writer that calls the stage `name` with the inputs of the finished run. The output of the stage goes to
    `folder`."""

    def write(folder: Path, run: Path, collection: Path) -> None:
        calls, _ = tiny_run.stages(collection, run)[name]
        tiny_run.call(name, tiny_run.elsewhere(name, calls[0], folder))

    return write


def demo(folder: Path, run: Path, collection: Path) -> None:
    """Generate a demo collection of five scenes."""
    config = folder.parent / "demo.json"
    config.write_text(json.dumps({"demo": {"train": 2, "dev": 1, "test": 1, "weak": 1}}))
    tiny_run.call("make_demo", ["--config", str(config), "--processes", "0", "--output", str(folder / "demo")])


def unfinished(folder: Path, run: Path, collection: Path) -> None:
    """Write a complete shard with the features of ten images. An UnfinishedShard keeps blocks of four images and then
    joins the blocks, as in `extract`. `run` and `collection` are not used."""
    features = np.random.default_rng(0).random((10, 900), np.float32)
    shard = UnfinishedShard(folder / "shard-00000.h5", Provenance(folder, "extract", 1), np.arange(10), 4)
    for rows in shard.missing:
        shard.keep(rows, {"features": features[rows.start : rows.stop]})
    shard.publish({})


def checkpoint(folder: Path, run: Path, collection: Path) -> None:
    """Write a checkpoint of a training."""
    tensors = {"weight": np.random.default_rng(0).random(5000, np.float32)}
    Checkpoints(folder / "checkpoints", "f", 0).offer(lambda: (tensors, {"step": 1}))


def export(folder: Path, run: Path, collection: Path) -> None:
    """Export the index of the run as NumPy arrays."""
    arguments = [run / "index/ncca", "--to", "npy", "--output", folder / "arrays"]
    tiny_run.call("export", list(map(str, arguments)))


WRITERS = {
    **{name: stage(name) for name in STAGES},
    **{one.__name__: one for one in (demo, unfinished, checkpoint, export)},
}
"""Name of a writer -> its function."""
ONE_BY_ONE = {"unfinished", "demo", "embed"}
"""Writers that publish several files one after another. If one fails, the earlier files are complete and stay."""
RESUMED = {"unfinished", "demo", "export"}
"""Writers that do not replace their own complete output: they keep it, or raise an error."""
