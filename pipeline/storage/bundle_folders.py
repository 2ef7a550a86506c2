"""The folder of a bundle, and the names of what is in it in pieces."""

import os
import re
from collections.abc import Collection
from pathlib import Path

from pipeline.errors import IntegrityError, meant
from pipeline.storage.batch import is_regular

CARD = "card.json"
OWN = re.compile(
    r"(images|sentences)(-\d{5,})?\.(faiss|lists|parquet)|(regions|words)\.faiss"
    r"|fragments\.safetensors|image_regions\.parquet"
)
"""Indices and tables, with what tells of the items in them, and encoders' graphs."""


def piece_file(name: str, number: int, suffix: str) -> str:
    """The file of one piece of the index, or of the table, `name`."""
    return f"{name}-{number:05d}{suffix}"


def remove_former(folder: Path, kept: Collection[str]) -> None:
    """Remove the indices, tables and graphs of a former bundle whose names are not among those `kept`."""
    for path in (*folder.iterdir(), *folder.glob("encoders/*/*")):
        name = path.relative_to(folder).as_posix()
        if OWN.fullmatch(name) and name not in kept and is_regular(path):
            path.unlink()


def only_bundle(folder: Path) -> Path:
    """`folder`, or the one bundle below it. Raises IntegrityError where it has none, or several."""
    if os.path.lexists(folder / CARD):
        return folder
    cards = _below(folder)
    if len(cards) == 1:
        return cards[0].parent
    if not cards:
        reason = f"is not a bundle: it has no {CARD}" if folder.is_dir() else "does not exist"
        near = [card.parent for above in folder.absolute().parents[:2] for card in _near(above)]
        known = {str(one) if folder.is_absolute() else os.path.relpath(one) for one in near}
        remedy = meant(str(folder), known) or f"did you mean {min(known)}? " if known else ""
        raise IntegrityError(f"{folder} {reason}; {remedy}give a folder that build-index wrote")
    names = sorted(card.parent.relative_to(folder).as_posix() for card in cards)
    raise IntegrityError(f"{folder} is not a bundle; it holds bundles: {', '.join(names)}: give {folder / names[-1]}")


def _below(folder: Path) -> list[Path]:
    """The cards of the bundles of a run, or of a folder of bundles."""
    return [*folder.glob(f"*/{CARD}"), *folder.glob(f"index/*/{CARD}")]


def _near(folder: Path) -> list[Path]:
    """The card in `folder`, or those of the bundles below it."""
    return [folder / CARD] if (folder / CARD).is_file() else sorted(_below(folder))
