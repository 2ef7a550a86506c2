"""Everything that writes, in one form: `write(folder, run, collection)` makes an artefact in the folder `folder`.

Its inputs are those of the finished tiny run `run` of `collection`.
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
"""A writer of each kind: of tables, tensors, shards of two sides, JSON, and a folder."""


def stage(name: str) -> Callable[[Path, Path, Path], None]:
    """The command of module `name` on the inputs of a finished run, its output going to `folder`."""

    def write(folder: Path, run: Path, collection: Path) -> None:
        calls, _ = tiny_run.stages(collection, run)[name]
        tiny_run.call(name, tiny_run.elsewhere(name, calls[0], folder))

    return write


def demo(folder: Path, run: Path, collection: Path) -> None:
    config = folder.parent / "demo.json"
    config.write_text(json.dumps({"demo": {"train": 2, "dev": 1, "test": 1, "weak": 1}}))
    tiny_run.call("make_demo", ["--config", str(config), "--processes", "0", "--output", str(folder / "demo")])


def unfinished(folder: Path, run: Path, collection: Path) -> None:
    """What `extract` does with the features of ten images, four at a time."""
    features = np.random.default_rng(0).random((10, 900), np.float32)
    shard = UnfinishedShard(folder / "shard-00000.h5", Provenance(folder, "extract", 1), np.arange(10), 4)
    for rows in shard.missing:
        shard.keep(rows, {"features": features[rows.start : rows.stop]})
    shard.publish({})


def checkpoint(folder: Path, run: Path, collection: Path) -> None:
    tensors = {"weight": np.random.default_rng(0).random(5000, np.float32)}
    Checkpoints(folder / "checkpoints", "f", 0).offer(lambda: (tensors, {"step": 1}))


def export(folder: Path, run: Path, collection: Path) -> None:
    given = [run / "index/ncca", "--to", "npy", "--output", folder / "arrays"]
    tiny_run.call("export", list(map(str, given)))


WRITERS = {
    **{name: stage(name) for name in STAGES},
    **{one.__name__: one for one in (demo, unfinished, checkpoint, export)},
}
ONE_BY_ONE = {"unfinished", "demo", "embed"}
"""Writers of several artefacts, or of parts, each of which is whole or not there."""
RESUMED = {"unfinished", "demo", "export"}
"""Writers that leave alone, or refuse, what is there already."""
