"""`ground-truth`: the exact neighbours of some vectors of one modality among all of the other."""

from pathlib import Path

import click

from pipeline.run import Run
from stages.commands import FILE, on_run, output


@click.command("ground-truth")
@click.argument("model")
@click.option("--gallery", type=click.Choice(["images", "sentences"]), required=True, help="What is searched.")
@click.option("--queries", "count", type=click.IntRange(min=1), required=True, help="Vectors of the other modality.")
@click.option("--neighbours", type=click.IntRange(min=1), required=True, help="Nearest ones of each.")
@on_run
@output(FILE, "The neighbours' ids and scores, an HDF5 file.")
def command(run: Run, model: str, gallery: str, count: int, neighbours: int, output: Path) -> None:
    """Search the embeddings of MODEL exactly, shard by shard, as ground truth for an index."""
    from functools import partial

    import numpy as np

    from pipeline.index.exact import ShardVectors, search_shards
    from pipeline.index.vectors import evenly_spaced
    from pipeline.storage.embeddings import read_vectors
    from pipeline.storage.shards import NEIGHBOURS, shard_path, write_shard

    embeddings = run.embeddings(model)
    other = "sentences" if gallery == "images" else "images"
    ids, folder = evenly_spaced(int(run.manifest.bounds(other)[-1]), count), embeddings.folder.absolute()
    parts = [
        ShardVectors(int(first), partial(read_vectors, shard_path(folder, number), gallery))
        for number, first in enumerate(run.manifest.bounds(gallery)[:-1])
    ]

    where = run.sums, run.config.device
    nearest = search_shards(embeddings.read(other, ids), parts, neighbours, embeddings.metric, *where)

    about = {"gallery": gallery, "queries": len(ids), "neighbours": neighbours}
    write_shard(
        output,
        NEIGHBOURS,
        {
            "query_id": ids,
            "ids": nearest.rows,
            "scores": np.nan_to_num(nearest.scores, neginf=np.finfo(np.float32).min),
        },
        rows=len(ids),
        details={**about, "metric": embeddings.metric, "inputs": embeddings.inputs},
    )
