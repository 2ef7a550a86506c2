"""The folders of bundles, and what of a former bundle goes."""

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pipeline.errors import IntegrityError, meant
from pipeline.storage.files import inside, is_regular
from pipeline.storage.json_files import read_json

CARD = "card.json"
OWN = re.compile(
    r"(images|sentences)\.(faiss|parquet)|(regions|words)\.faiss|fragments\.safetensors|image_regions\.parquet"
)
"""Indices and tables, with what tells of the items in them."""
NUMBERED = re.compile(r"\d{2,}")
"""The folders of several bundles of one model."""


def numbered(folder: Path, number: int) -> Path:
    """The folder of one of several bundles in `folder`."""
    return folder / f"{number:02d}"


def remove_former(folder: Path, kept: Collection[str]) -> None:
    """Remove the indices and tables of a former bundle whose names are not among those `kept`."""
    for path in folder.iterdir():
        if OWN.fullmatch(path.name) and path.name not in kept and is_regular(path):
            path.unlink()


def remove_bundle(folder: Path) -> None:
    """Remove the bundle in `folder`, the card first, and then the files that it lists; what else is there stays."""
    card = folder / CARD
    if not is_regular(card):
        return
    files = [inside(folder, name, card) for name in read_json(card)["files"]]
    card.unlink(missing_ok=True)
    for path in files:
        path.unlink(missing_ok=True)
    folders = {parent for path in files for parent in path.parents if folder in (parent, *parent.parents)}
    for parent in sorted(folders, reverse=True):
        with suppress(OSError):  # not empty
            parent.rmdir()


def bundles_in(folder: Path) -> list[Path]:
    """`folder`, or the bundles below it, in the order of their numbers or names. Raises IntegrityError where there is
    none."""
    if os.path.lexists(folder / CARD):
        return [folder]
    if below := [card.parent for card in _below(folder)]:
        return below
    reason = f"is not a bundle: it has no {CARD}" if folder.is_dir() else "does not exist"
    near = [card.parent for above in folder.absolute().parents[:2] for card in _near(above)]
    known = {str(path) if folder.is_absolute() else os.path.relpath(path) for path in near}
    remedy = meant(str(folder), known) or f"did you mean {min(known)}? " if known else ""
    raise IntegrityError(f"{folder} {reason}; {remedy}give a folder that build-index wrote")


def only_bundle(folder: Path) -> Path:
    """The same where there is one. Raises IntegrityError for several."""
    bundles = bundles_in(folder)
    if len(bundles) > 1:
        raise several(folder, bundles)
    return bundles[0]


def several(folder: Path, bundles: Collection[Path]) -> IntegrityError:
    """The error for a folder with `bundles` of which one has to be chosen."""
    names = sorted(bundle.relative_to(folder).as_posix() for bundle in bundles)
    return IntegrityError(f"{folder} is not a bundle; it holds bundles: {', '.join(names)}: give {folder / names[-1]}")


def _below(folder: Path) -> list[Path]:
    """The cards of the bundles of a run, of a folder of bundles, or of several bundles of one model."""
    patterns = ("*", "*/*", "index/*/*")
    cards = {card for pattern in patterns for card in folder.glob(f"{pattern}/{CARD}")}
    shown = [card for card in cards if not any(part.startswith(".") for part in card.relative_to(folder).parts)]
    return sorted(shown, key=lambda card: [(len(part) if part.isdecimal() else 0, part) for part in card.parts])


def _near(folder: Path) -> list[Path]:
    """The card in `folder`, or those of the bundles below it."""
    return [folder / CARD] if (folder / CARD).is_file() else _below(folder)
