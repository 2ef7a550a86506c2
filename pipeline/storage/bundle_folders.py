"""The folder of a bundle."""

import os
from pathlib import Path

from pipeline.errors import IntegrityError

CARD = "card.json"


def only_bundle(folder: Path) -> Path:
    """`folder`, or the one bundle below it. Raises IntegrityError where it has none, or several."""
    if os.path.lexists(folder / CARD):
        return folder
    cards = [*folder.glob(f"*/{CARD}"), *folder.glob(f"index/*/{CARD}")]
    if len(cards) == 1:
        return cards[0].parent
    if not folder.is_dir():
        raise IntegrityError(f"{folder} does not exist; give a folder that build-index wrote")
    if not cards:
        raise IntegrityError(f"{folder} is not a bundle: it has no {CARD}; give a folder that build-index wrote")
    names = sorted(card.parent.relative_to(folder).as_posix() for card in cards)
    raise IntegrityError(f"{folder} is not a bundle; it holds bundles: {', '.join(names)}: give {folder / names[-1]}")
