"""Writing an index of vectors that a FittedSpace has embedded. Such an index does not belong to a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from pipeline.compute.multivectors import one_vector_each
from pipeline.config import loading
from pipeline.index.build import QUERIES, choose_and_build
from pipeline.index.chooser import Requirements
from pipeline.index.condition_recall import measure_conditions
from pipeline.index.exact import Vectors, evenly_spaced
from pipeline.index.tuning_queries import TuningQueries, choose_queries
from pipeline.storage.card import IndexCard, MeasuredIndexes
from pipeline.storage.index_folder import COLUMNS
from pipeline.storage.index_shard import IndexWriter
from pipeline.storage.json_files import fingerprint
from pipeline.storage.parameters import MODEL, digest_tensors, read_parameters

SPLIT = "gallery"
"""Name of the split of all images of the index. The table of the index has this name in each row."""


@dataclass(frozen=True)
class Items:
    """Images and texts in the joint space.

    Images have `names` (n,), `digests` (n,) of their vectors, and vectors `images` (n, c). Texts have `words` (m,),
    which are the texts themselves, vectors `texts` (m, c), and `owners` (m,), the rows of their images in ascending
    order. Without `owners`, text j belongs to image j. Without texts, `words` is empty and `texts` is None.
    """

    names: Sequence[str]
    digests: Sequence[str]
    images: np.ndarray
    owners: np.ndarray | None = None
    words: Sequence[str] = ()
    texts: np.ndarray | None = None

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables of the index by name: `images`, and `sentences`, which is empty if there are no texts."""
        n = len(self.names)
        columns = {
            "image_id": np.arange(n), "path": self.names, "split": [SPLIT] * n, "sha256": self.digests,
            **dict.fromkeys(("member", "offset", "size"), [None] * n),
        }  # fmt: skip
        sentences = {"sentence_id": np.arange(len(self.words)), "image_id": self.owners, "text": self.words}
        if self.owners is None:
            sentences["image_id"] = sentences["sentence_id"]
        return {
            modality: pa.table(values, schema=COLUMNS[modality])
            for modality, values in (("images", columns), ("sentences", sentences))
        }


def write_index(folder: Path, save: Callable[[Path], None], items: Items) -> None:
    """Write an index of `items` to `folder`, in place of an older index there.

    `save` is called with a temporary folder, and must write the model there. The vectors of the items must have unit
    length, so that a search by inner product finds the nearest items by cosine.
    """
    requirements = Requirements.from_settings(loading.load().index)
    sides = {"images": items.images} | ({} if items.texts is None else {"sentences": items.texts})
    writer = IndexWriter(folder)
    indexes: dict[str, IndexCard] = {}
    samples = {modality: side[evenly_spaced(len(side), QUERIES)] for modality, side in sides.items()}
    queries = {
        "images": choose_queries(samples["images"], "inner_product", samples.get("sentences")),
        "sentences": TuningQueries(samples["images"], "images"),
    }
    for modality, vectors in sides.items():
        asked = one_vector_each(queries[modality].vectors)
        built = choose_and_build(Vectors(vectors), asked, "inner_product", requirements)
        writer.add(f"{modality}.faiss", built.write)
        if built.tradeoff:
            writer.add_json(f"{modality}.tradeoff.json", built.tradeoff)
        conditions = measure_conditions(built.index, Vectors(vectors), asked, "inner_product")
        changes = {"measured_with": queries[modality].measured_with, "conditions": conditions}
        indexes[modality] = built.card.model_copy(update=changes)
        del built  # The memory is freed before the next index is built.
    for modality, table in items.tables().items():
        writer.add_table(f"{modality}.parquet", table)
    with TemporaryDirectory() as temporary:
        save(Path(temporary))
        model = read_parameters(Path(temporary) / "model.safetensors", MODEL)
        writer.add_parameters(Path(temporary))
    inputs = {"model": model.fingerprint, "vectors": digest_tensors(sides)}
    writer.commit(
        MeasuredIndexes(kind="global").model_copy(update=indexes),
        model=model.details["registered"],
        registered=model.details["registered"],
        metric="inner_product",
        dim=sides["images"].shape[1],
        splits=[SPLIT],
        name=folder.absolute().name,
        data_root=str(folder.absolute()),
        encoders={},
        text_encoders={},
        inputs=inputs,
        fingerprint=fingerprint("fitted", 1, None, inputs),
    )
