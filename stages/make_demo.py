"""make-demo: the embedded demo collection, in the form that a folder of the user's own has."""

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from stages import options

logger = logging.getLogger(__name__)

MARK = ".jointspace-demo"
"""This file in a folder says that what lies there is ours to replace."""


@click.command("make-demo")
@options.output("folder", "The collection: a new or empty folder, or one that this command has made.")
@options.config
@click.option("--processes", type=click.IntRange(min=0), help="Processes that draw; 0 for none. [default: --threads]")
def command(output: Path, config_path: Path | None, processes: int | None) -> None:
    """Draw the demo collection: images, sentences and their trees, boxes, weak text."""
    from dataclasses import asdict
    from functools import partial

    from tqdm import tqdm

    from pipeline import runtime
    from pipeline.collections.demo import VERSION, DemoSettings, collection_texts, scene_record
    from pipeline.config import load
    from pipeline.storage.atomic import publish_json, publish_text
    from pipeline.workers import isolated_map

    settings = DemoSettings(**load(config_path).demo.model_dump(exclude={"generate"}))
    commit = output / "demo.json"
    if _is_complete(output, VERSION, asdict(settings)):
        logger.info("%s is there already", commit)
        return
    _claim(output)
    commit.unlink(missing_ok=True)

    draw = partial(scene_record, settings)
    outcomes = isolated_map(draw, range(settings.images), runtime.threads() if processes is None else processes)
    progress = tqdm(outcomes, "make-demo", settings.images, unit=" images", disable=None)
    hashes: dict[str, str] = {}
    texts = collection_texts(_write_images(progress, output, hashes))

    _settle(output, hashes)
    for name, text in texts.items():
        publish_text(output / name, text)
    value = {
        "version": VERSION,
        "settings": asdict(settings),
        "images": len(hashes),
        "lines": {name: text.count("\n") for name, text in texts.items()},
        "sha256": _digests(output, texts),
    }
    publish_json(commit, value)
    logger.info("%d images with sentences and %d with weak text", settings.targets, settings.weak)


def _write_images(outcomes: Iterable[Any], output: Path, hashes: dict[str, str]) -> Iterator[Any]:
    """Write each record's image, note its sha256 in `hashes`, and hand the record on without it."""
    import hashlib
    from dataclasses import replace

    from pipeline.errors import JointspaceError
    from pipeline.workers import Failure

    for number, record in enumerate(outcomes):
        if isinstance(record, Failure):
            raise JointspaceError(
                f"image {number} of the demo could not be drawn ({record.reason}); run make-demo again"
            )
        path = output / "images" / record.name
        try:
            path.write_bytes(record.jpeg)
        except OSError as error:
            raise JointspaceError(f"cannot write {path}: {error.strerror}; make room or move data_root") from error
        hashes[record.name] = hashlib.sha256(record.jpeg).hexdigest()
        yield replace(record, jpeg=b"")


def _settle(output: Path, hashes: dict[str, str]) -> None:
    """Remove the images of an earlier demo, and check that those of this one are on the disk as they were drawn."""
    from pipeline.errors import JointspaceError

    for path in _drawn(output):
        if path.name not in hashes:
            path.unlink()
    # One sync for all: thousands of small files synced one by one take minutes, and a killed run begins again anyway.
    os.sync()
    if _image_hashes(output) != hashes:
        raise JointspaceError(
            f"images in {output} differ from what was written; check its disk and run make-demo again"
        )


def _claim(output: Path) -> None:
    """Mark `output` as ours. Raises UsageError when it holds somebody else's files."""
    from pipeline.errors import UsageError
    from pipeline.storage.atomic import sweep

    if output.is_dir() and any(output.iterdir()) and not (output / MARK).exists():
        raise UsageError(f"{output} holds files that are no demo; name another folder, or set demo.generate to false")
    (output / "images").mkdir(parents=True, exist_ok=True)
    (output / MARK).touch()
    sweep(output)


def _is_complete(output: Path, version: int, settings: dict[str, Any]) -> bool:
    """Whether `output` holds the demo of `settings`, every byte of it."""
    from pipeline.errors import IntegrityError
    from pipeline.storage.atomic import read_json

    try:
        value = read_json(output / "demo.json")
        same = value["version"] == version and value["settings"] == settings
        return same and value["sha256"] == _digests(output, value["sha256"])
    except (IntegrityError, OSError, TypeError, KeyError):
        return False


def _digests(output: Path, names: Iterable[str]) -> dict[str, str]:
    """The sha256 of each of the text files `names`, and one of all images."""
    from pipeline.storage.atomic import file_sha256
    from pipeline.storage.fingerprint import fingerprint

    texts = {name: file_sha256(output / name) for name in names if name != "images"}
    return {**texts, "images": fingerprint("demo-images", 1, _image_hashes(output))}


def _image_hashes(output: Path) -> dict[str, str]:
    from pipeline.storage.atomic import file_sha256

    return {path.name: file_sha256(path) for path in _drawn(output)}


def _drawn(output: Path) -> list[Path]:
    """The images that this or an earlier run has drawn."""
    return [path for pattern in ("scene-*.jpg", "weak-*.jpg") for path in (output / "images").glob(pattern)]
