"""Opening the indices of a bundle."""

from typing import Any

import faiss

from pipeline.index.format import from_bytes, map_lists, view_bytes
from pipeline.index.pieces import assemble


def open_index(bundle: Any, what: str) -> faiss.Index:
    """The index `what` of a pipeline.storage.bundle.Bundle, for searching only; its large parts stay in their files.

    Raises IntegrityError.
    """
    name, card = f"{bundle.folder}/{what}.faiss", bundle.card[what]
    if card.get("pieces"):
        trained = from_bytes(bundle.index(what), name, {**card, "count": 0})
        return assemble(trained, bundle.index_pieces(what), card, name)
    if f"{what}.lists" in bundle.card["files"]:
        return map_lists(bundle.index(what), name, card, bundle.require_whole(f"{what}.lists"))
    return view_bytes(bundle.index(what), name, card)
