"""What `ingest` has found out about images so far, in blocks, so that a killed one goes on where it was."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import IntegrityError
from pipeline.storage.batch import remove_own
from pipeline.storage.files import is_there
from pipeline.storage.json_files import CHECK, canonical_json, publish_json, read_json
from pipeline.workers import Failure

BLOCK = 2048
"""Images that a kill costs at most: on a slow core less than a minute."""
FILES = re.compile(r"\d{5,}\.json")

Location = tuple[str, int | None, int | None]


class Block(NamedTuple):
    """The `number`-th images, where they are, and what vouches for what was found out about them."""

    number: int
    digest: str
    locations: list[Location]


def _blocks(locations: Iterable[Location]) -> Iterator[list[Location]]:
    locations = iter(locations)
    while block := list(islice(locations, BLOCK)):
        yield block


class InspectedImages:
    """The blocks in `folder`. One counts as long as its images have the same locations, `state(path)` says the same of
    their files, and `limits` are those by which they were inspected."""

    def __init__(self, folder: Path, state: Callable[[str], str], limits: str) -> None:
        self.folder, self.state, self.limits = Path(folder), state, limits

    def resume(
        self,
        locations: Callable[[], Iterable[Location]],
        inspect: Callable[[Iterator[Location]], Iterator[Any]],
        restore: Callable[[list], Any],
        elsewhere: Callable[[Iterator[Block]], Iterable[int]] = lambda blocks: (),
    ) -> Iterator[Any]:
        """For each of `locations()` what `inspect` gives for it, or gave before it was killed: a tuple of plain values,
        which `restore` makes of a list of them, or a Failure. Others may do blocks first: `elsewhere` has them `write`
        what they found, and gives the numbers of these blocks."""
        digests = [self._digest(block) for block in _blocks(locations())]
        kept = [self._read(number, digest) is not None for number, digest in enumerate(digests)]
        blocks = zip(range(len(kept)), digests, _blocks(locations()), tuple(kept), strict=True)
        for number in elsewhere(Block(number, digest, own) for number, digest, own, known in blocks if not known):
            kept[number] = self._read(number, digests[number]) is not None
        blocks = zip(_blocks(locations()), kept, strict=True)
        wanted = (location for block, known in blocks if not known for location in block)
        with closing(inspect(wanted)) as outcomes:
            for number, digest in enumerate(digests):
                if kept[number]:
                    rows = self._read(number, digest)
                    yield from (Failure(row) if isinstance(row, str) else restore(row) for row in rows)
                    continue
                found = list(islice(outcomes, BLOCK))
                self.write(number, digest, found)
                yield from found

    def write(self, number: int, digest: str, found: Iterable[Any]) -> None:
        """Keep what was found out about the images of a block: tuples of plain values, or Failures."""
        rows = [one.reason if isinstance(one, Failure) else list(one) for one in found]
        publish_json(self._path(number), {"digest": digest, "found": rows})

    def clear(self) -> None:
        remove_own(self.folder, FILES)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}.json"

    def _read(self, number: int, digest: str) -> list[Any] | None:
        """The results of a block; None if there are none of these images."""
        try:
            value = read_json(self._path(number)) if is_there(self._path(number)) else {}
        except IntegrityError:
            return None
        own = isinstance(value, dict) and value.keys() == {"digest", "found", CHECK} and value["digest"] == digest
        return value["found"] if own else None

    def _digest(self, block: Iterable[Location]) -> str:
        state = cache(self.state)
        values = [[*location, state(location[0])] for location in block]
        return hashlib.sha256(canonical_json([self.limits, values])).hexdigest()
