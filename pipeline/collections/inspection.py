"""Inspection of every photo, once and in blocks, so that a killed `ingest` continues where it was.

Photos are inspected by processes of this machine, or whole blocks by the workers of a cluster.
"""

import hashlib
import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar
from uuid import uuid4

from pipeline.compute.workers import Failure, isolated_map
from pipeline.errors import IntegrityError
from pipeline.storage.batch import remove_own
from pipeline.storage.json_files import CHECK, canonical_json, publish_json, read_json

BLOCK_IMAGES = 2048
"""Number of images in a block. A process that is killed loses the outcomes of at most one block, which takes less than
a minute on a slow core."""
BLOCK_FILES = re.compile(r"\d{5,}\.json")

Location = tuple[str, int | None, int | None]
"""The path of a photo or of the file that contains it, and in this file the offset (or row) and the size of the photo.
Offset and size are None if the file is the photo itself."""
Outcome = TypeVar("Outcome", bound=tuple)
Look = Callable[[Location], Outcome]


class Block(NamedTuple):
    """The block `number` of images, with the `locations` of its images and a digest of everything on which its outcomes
    depend."""

    number: int
    digest: str
    locations: list[Location]


class InspectedImages:
    """The stored outcomes of an inspection in `folder`, in blocks.

    A block remains valid as long as its images have the same locations, the texts that `state(path)` returns for their
    files are unchanged, and the `limits` of the inspection are the same.
    """

    def __init__(self, folder: Path, state: Callable[[str], str], limits: str) -> None:
        self.folder = Path(folder)
        self.state = state
        self.limits = limits

    def resume(
        self,
        locations: Callable[[], Iterable[Location]],
        look: Look[Outcome],
        restore: Callable[[list], Outcome],
        processes: int,
        on_cluster: Callable[["BlockTask", Iterator[Block]], Iterable[int]] | None = None,
    ) -> Iterator[Outcome | Failure]:
        """Yield the outcome for each location, in order: the result of `look(location)`, which is a tuple of plain
        values, or a Failure. `locations()` yields all locations, and is called several times.

        Outcomes that a killed run has stored are read again, and `restore` turns their plain values into outcomes. The
        other images are inspected by as many processes as `processes` says. If `on_cluster` is given, it runs a task
        for each missing block on a cluster first, and yields the number of each finished block.
        """
        digests = [self._digest(block) for block in _blocks(locations())]
        if on_cluster:
            blocks = map(Block, range(len(digests)), digests, _blocks(locations()))
            missing = (block for block in blocks if self._read(block.number, block.digest) is None)
            for _ in on_cluster(BlockTask(look, self.folder.absolute(), uuid4().hex), missing):
                pass
        kept = [self._read(number, digest) is not None for number, digest in enumerate(digests)]
        blocks = zip(_blocks(locations()), kept, strict=True)
        wanted = (location for block, is_kept in blocks if not is_kept for location in block)
        with closing(isolated_map(look, wanted, processes)) as new_outcomes:
            for number, digest in enumerate(digests):
                if kept[number]:
                    rows = self._read(number, digest)
                    assert rows is not None  # `_read` has found this block valid when `kept` was computed
                    yield from (Failure(row) if isinstance(row, str) else restore(row) for row in rows)
                else:
                    outcomes = list(islice(new_outcomes, BLOCK_IMAGES))
                    _write(self.folder, number, digest, outcomes)
                    yield from outcomes

    def _read(self, number: int, digest: str) -> list[Any] | None:
        """Return the stored outcomes of the block `number`, or None if the block was not stored, or was stored with
        another digest."""
        path = _path(self.folder, number)
        try:
            value = read_json(path)
        except IntegrityError:
            return None
        is_valid = isinstance(value, dict) and value.keys() == {"digest", "found", CHECK} and value["digest"] == digest
        return value["found"] if is_valid else None

    def _digest(self, block: Iterable[Location]) -> str:
        state = cache(self.state)
        values = [[*location, state(location[0])] for location in block]
        return hashlib.sha256(canonical_json([self.limits, values])).hexdigest()


@dataclass(frozen=True)
class BlockTask:
    """A task that inspects a block on another machine that sees the same files.

    `look(location)` returns the outcome of an image, and the outcomes are written to `folder`. `call` is a text that is
    unique for each call of `resume`, and `what` is the noun for one task.
    """

    look: Look
    folder: Path
    call: str
    what: ClassVar[str] = "block of images"

    def key(self, block: Block) -> str:
        return f"ingest-{self.call}-{block.number}"

    def __call__(self, block: Block) -> int:
        """Inspect the images of a block, write their outcomes to the folder, and return the number of the block."""
        # multiprocessing does not allow a daemonic process to start another process, such as the decoding process.
        multiprocessing.current_process().daemon = False
        _write(self.folder, block.number, block.digest, isolated_map(self.look, block.locations, 1))
        return block.number


def clear(folder: Path) -> None:
    """Remove the stored blocks from the folder. They are not needed after the manifest was written."""
    remove_own(folder, BLOCK_FILES)


def _blocks(locations: Iterable[Location]) -> Iterator[list[Location]]:
    locations = iter(locations)
    while block := list(islice(locations, BLOCK_IMAGES)):
        yield block


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.json"


def _write(folder: Path, number: int, digest: str, outcomes: Iterable[Outcome | Failure]) -> None:
    rows = [outcome.reason if isinstance(outcome, Failure) else list(outcome) for outcome in outcomes]
    publish_json(_path(folder, number), {"digest": digest, "found": rows})
