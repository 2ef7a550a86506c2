"""Finds similar photos with FAISS and pyarrow only.

    python examples/nearest_photos.py results/demo/index/ncca 0

The arguments are the folder of an index and the row of a photo in its table. The script prints the scores and paths of
the five nearest photos, best first. The photo itself is usually the first.
"""

import json
import sys
from pathlib import Path

import faiss
import numpy as np
import pyarrow.parquet as pq


def main(folder: Path, row: int, top: int = 5) -> None:
    card = json.loads((folder / "card.json").read_text())
    if card["kind"] == "fragments":
        sys.exit(f"The index {folder} has one vector per region, not per photo. Use the index of another model.")
    index = faiss.read_index(str(folder / "images.faiss"))
    table = pq.read_table(folder / "images.parquet")
    if index.ntotal != card["images"]["count"] or index.d != card["dim"]:
        sys.exit(
            f"{folder}/images.faiss and card.json differ in the number or length of the vectors. Build the index again."
        )
    if (inverted := faiss.try_extract_index_ivf(index)) is not None:
        inverted.set_direct_map_type(faiss.DirectMap.Hashtable)
    query = np.array([index.reconstruct(row)], np.float32)
    for score, found in zip(*(part[0] for part in index.search(query, top)), strict=True):
        print(f"{score:.4f}", table["path"][int(found)].as_py())


main(Path(sys.argv[1]), int(sys.argv[2]))
