"""Every photograph looked at once, in blocks, so that a killed `ingest` goes on where it was: by processes of this
machine, or whole blocks by the workers of a cluster."""

import hashlib
import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from uuid import uuid4

from pipeline.compute.workers import Failure, isolated_map
from pipeline.errors import IntegrityError
from pipeline.storage.batch import remove_own
from pipeline.storage.json_files import CHECK, canonical_json, publish_json, read_json

BLOCK = 2048
"""Images that a kill costs at most: on a slow core less than a minute."""
FILES = re.compile(r"\d{5,}\.json")

Location = tuple[str, int | None, int | None]
Look = Callable[[Location], Any]


class Block(NamedTuple):
    """The `number`-th images, where they are, and what vouches for what was found out about them."""

    number: int
    digest: str
    locations: list[Location]


class InspectedImages:
    """The blocks in `folder`. One counts as long as its images have the same locations, `state(path)` says the same of
    their files, and `limits` are those by which they were inspected."""

    def __init__(self, folder: Path, state: Callable[[str], str], limits: str) -> None:
        self.folder, self.state, self.limits = Path(folder), state, limits

    def resume(
        self,
        locations: Callable[[], Iterable[Location]],
        look: Look,
        restore: Callable[[list], Any],
        processes: int,
        on_cluster: Callable[["BlockTask", Iterator[Block]], Iterable[int]] | None = None,
    ) -> Iterator[Any]:
        """One outcome for each of `locations()`, in order: what `look` says of it, a tuple of plain values, or a
        Failure. Outcomes of a killed run are read and rebuilt by `restore`; the others are made on so many `processes`,
        those of whole blocks on a cluster, if there is one."""
        digests = [self._digest(block) for block in _blocks(locations())]
        if on_cluster:
            blocks = map(Block, range(len(digests)), digests, _blocks(locations()))
            missing = (block for block in blocks if self._read(block.number, block.digest) is None)
            for _ in on_cluster(BlockTask(look, self.folder.absolute(), uuid4().hex), missing):
                pass
        kept = [self._read(number, digest) is not None for number, digest in enumerate(digests)]
        blocks = zip(_blocks(locations()), kept, strict=True)
        wanted = (location for block, is_kept in blocks if not is_kept for location in block)
        with closing(isolated_map(look, wanted, processes)) as made:
            for number, digest in enumerate(digests):
                if kept[number]:
                    rows = self._read(number, digest)
                    yield from (Failure(row) if isinstance(row, str) else restore(row) for row in rows)
                else:
                    outcomes = list(islice(made, BLOCK))
                    _write(self.folder, number, digest, outcomes)
                    yield from outcomes

    def _read(self, number: int, digest: str) -> list[Any] | None:
        """The outcomes of a block; None if there are none of these images."""
        path = _path(self.folder, number)
        try:
            value = read_json(path)
        except IntegrityError:
            return None
        own = isinstance(value, dict) and value.keys() == {"digest", "found", CHECK} and value["digest"] == digest
        return value["found"] if own else None

    def _digest(self, block: Iterable[Location]) -> str:
        state = cache(self.state)
        values = [[*location, state(location[0])] for location in block]
        return hashlib.sha256(canonical_json([self.limits, values])).hexdigest()


@dataclass(frozen=True)
class BlockTask:
    """Looks at a block on another machine that sees the same files; `call` as that of a ShardTask."""

    look: Look
    folder: Path
    call: str
    what: ClassVar[str] = "block of images"

    def key(self, block: Block) -> str:
        return f"ingest-{self.call}-{block.number}"

    def __call__(self, block: Block) -> int:
        """Returns the block's number."""
        multiprocessing.current_process().daemon = False  # so that it may start a process that decodes
        _write(self.folder, block.number, block.digest, isolated_map(self.look, block.locations, 1))
        return block.number


def clear(folder: Path) -> None:
    """Remove the blocks in the folder, once there is a manifest."""
    remove_own(folder, FILES)


def _blocks(locations: Iterable[Location]) -> Iterator[list[Location]]:
    locations = iter(locations)
    while block := list(islice(locations, BLOCK)):
        yield block


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.json"


def _write(folder: Path, number: int, digest: str, outcomes: Iterable[Any]) -> None:
    rows = [outcome.reason if isinstance(outcome, Failure) else list(outcome) for outcome in outcomes]
    publish_json(_path(folder, number), {"digest": digest, "found": rows})
