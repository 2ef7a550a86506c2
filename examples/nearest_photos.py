"""Find the five photos that are nearest to a photo of an index, here to the photo in row 0. Prints scores and paths.

python examples/nearest_photos.py results/demo/index/ncca 0
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
        sys.exit(f"{folder} has no vectors of whole photos. Name the index of a model that compares whole photos.")
    index = faiss.read_index(str(folder / "images.faiss"))
    table = pq.read_table(folder / "images.parquet")
    if index.ntotal != card["images"]["count"] or index.d != card["dim"]:
        sys.exit(f"{folder}/images.faiss is not the index of card.json")
    if (inverted := faiss.try_extract_index_ivf(index)) is not None:
        inverted.set_direct_map_type(faiss.DirectMap.Hashtable)
    query = np.array([index.reconstruct(row)], np.float32)
    for score, found in zip(*(part[0] for part in index.search(query, top)), strict=True):
        print(f"{score:.4f}", table["path"][int(found)].as_py())


main(Path(sys.argv[1]), int(sys.argv[2]))
