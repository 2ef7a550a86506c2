"""What a server shows: each index with its searcher, its photos and example queries, as the index is now, and the
threads that work for it."""

import asyncio
import hashlib
import io
import logging
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import pyarrow.compute as pc
from PIL import Image

from pipeline.compute.multivectors import Items, several_vectors_each
from pipeline.errors import InputError, JointspaceError, UsageError
from pipeline.index.gallery import with_regions
from pipeline.index.search import Answer, Photograph, Searcher
from pipeline.serve.border import Limits, Metrics
from pipeline.storage.card import Card, Modality
from pipeline.storage.index_shard import MODALITIES

if TYPE_CHECKING:
    from pipeline.generate.generator import Generator, Sources

SAME = ("path", "sha256")
"""Columns that tell the same image in two indexes of a collection."""
EXAMPLES = 3
QUALITY = 82
LARGE_SIDE = 1600
"""Pixels of the longer side of a photograph that is looked at alone."""
WARM_SIDE = 64
CACHED = 2000
"""Thumbnails that are kept in memory, about 10 KB each."""
MOST_VALUES = 20
"""Different texts of a column that are offered as a choice."""


class ServedGallery:
    """Answers from one index. Its parts are all read at once, and threads may share it from then on.

    `features(data)` encodes a photograph's bytes as a Searcher takes it, and `read(row)` gives the bytes of one in the
    index's table, of which `decode(data)` makes an image. Encoders are loaded for the first photograph: have all that
    look at photographs called by one thread at a time.
    """

    def __init__(
        self,
        searcher: Searcher,
        features: Callable[[bytes], Mapping[str, np.ndarray]],
        read: Callable[..., bytes],
        decode: Callable[[bytes], Image.Image],
        side: int,
    ) -> None:
        searcher.open()
        self.searcher = searcher
        self._read = read
        self._decode = decode
        self._side = side
        self.features = features
        with suppress(InputError, UsageError):  # where it cannot be searched in words, each request is told so
            for sentence in self.examples[:1]:
                searcher.require_known(sentence)  # which loads the tokenizer
        self._table = searcher.rows("images")
        self.columns = searcher.columns
        self._sorted: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for modality in MODALITIES:
            if searcher.has(modality) and searcher.is_kept(modality):
                owners = searcher.table(modality)["image_id"].to_numpy()
                order = np.argsort(owners, kind="stable")
                self._sorted[modality] = owners[order], order
        self._thumbnails: dict[int, bytes] = {}

    @property
    def card(self) -> Card:
        return self.searcher.index.card

    @cached_property
    def examples(self) -> list[str]:
        """Some of the index's own sentences, evenly spaced."""
        if not self.searcher.has("sentences"):
            return []
        table = self.searcher.rows("sentences")
        rows = np.unique(np.linspace(0, table.num_rows - 1, EXAMPLES + 2).astype(int)[1:-1])
        return [record["text"] for record in self.searcher.records("sentences", rows) if record["text"]]

    @property
    def collection(self) -> str:
        """The name of its run, or of its folder where it is in none."""
        folder = self.searcher.index.folder.absolute()
        return folder.parent.parent.name if folder.parent.name == "index" else folder.name

    @property
    def collection_id(self) -> str:
        """The same for all indexes of one collection."""
        return self.card.inputs.get("manifest", str(self.searcher.index.folder))

    def count(self, modality: Modality) -> int:
        """The `images` or `sentences` that can be found."""
        if not self.searcher.has(modality):
            return 0
        allowed = self.searcher.allowed(modality, None)
        return len(self.searcher.gallery(modality)) if allowed is None else int(allowed.sum())

    @cached_property
    def facets(self) -> dict[str, dict[str, Any]]:
        """The choices of a filter for each column that a condition may use: its `kind`, and its `values` if they are
        few, or else `least` and `most`. Columns without a value are left out."""
        kinds = {name: kind for name, kind in self.columns.items() if kind != "nothing"}
        values: dict[str, set[Any]] = {name: set() for name in kinds}
        for group in self.searcher.groups("images"):
            for name, kind in kinds.items():
                column = group[name].drop_null()
                if kind in ("text", "truth") and len(values[name]) <= MOST_VALUES:
                    values[name].update(column.unique().to_pylist())
                elif kind not in ("text", "truth") and len(column):
                    ends = [*values[name], *pc.call_function("min_max", [column]).as_py().values()]
                    values[name] = {min(ends), max(ends)}
        offers = {name: _facet(values[name], kind) for name, kind in kinds.items() if values[name]}
        return {name: {"kind": kinds[name], **offer} for name, offer in offers.items() if offer}

    def warm(self) -> None:
        """Load what encodes photographs, so that the first one need not wait for it."""
        if not self.searcher.multi_vector:
            with suppress(JointspaceError):  # of imported features; a request is told so
                self.features(_jpeg(Image.new("RGB", (WARM_SIDE, WARM_SIDE))))

    def images(self, sentence: str, top: int, where: str | None = None) -> Answer:
        """Answers as Searcher.images does. With a multi-vector model, each hit has the `box` of its best region."""
        hits = self.searcher.images(sentence, top, where)
        if not self.searcher.multi_vector:
            return hits
        words = several_vectors_each(self.searcher.embed_sentence(sentence)).array.sum(axis=0)
        gallery = with_regions(self.searcher.gallery("images"))
        rows = self._find("images", [hit.row["image_id"] for hit in hits])
        boxes = {}
        for record, row in zip(self.searcher.records("images", rows), rows.tolist(), strict=True):
            item = gallery.item(row)
            boxes[record["image_id"]] = item.box_array[(item.array @ words).argmax()].tolist()
        return Answer(replace(hit, row={**hit.row, "box": boxes[hit.row["image_id"]]}) for hit in hits)

    def see(self, photograph: "bytes | OfGallery") -> Photograph:
        """An image as the searcher takes it. UnreadableImage is raised once it is looked at.

        One `OfGallery` that cannot be read or encoded is its vector here, where this gallery is of the same collection.
        """
        if isinstance(photograph, OfGallery):
            return partial(self._see_again, photograph)
        return photograph if self.searcher.multi_vector else partial(self.features, photograph)

    def _see_again(self, image: "OfGallery") -> Items:
        try:
            return self.searcher.embed_photograph(self.see(image.read()))
        except JointspaceError:
            row = image.gallery.row(image.image_id)  # which is not there any more where it was removed
            rows, index = self._find("images", [image.image_id]), self.searcher.gallery("images")
            # The ids of what was added to an index are those of other images in another index.
            same = [all(record[key] == row[key] for key in SAME) for record in self.searcher.records("images", rows)]
            if self.collection_id == image.gallery.collection_id and same == [True]:
                with suppress(RuntimeError):  # of an index that has no vectors to give
                    if self.searcher.multi_vector:
                        return with_regions(index).item(int(rows[0]))
                    return index.reconstruct(rows)
            raise

    def browse(self, top: int, where: str | None = None) -> tuple[int, list[tuple[Mapping[str, Any], str | None]]]:
        """Count the images that `where` allows, and return the rows and captions of at most `top` of them, which are
        far from each other in the table. A greater `top` gives the same images first."""
        allowed = self.searcher.allowed("images", where) if where and where.strip() else None
        if allowed is None:
            count = self.count("images")
            places = spread(self._table.num_rows, 2 * top)
        else:
            rows = np.flatnonzero(allowed)
            count = len(rows)
            places = rows[spread(count, top)]
        found = [row for row in self.searcher.records("images", places) if row["path"] is not None][:top]
        return count, list(zip(found, self.captions([row["image_id"] for row in found]), strict=True))

    def sentences_of(self, image_id: int) -> list[str]:
        """The image's own sentences."""
        return self._sentences([image_id]).get(image_id, [])

    def captions(self, image_ids: Sequence[int]) -> list[str | None]:
        """The first sentence of each image."""
        texts = self._sentences(image_ids)
        return [next(iter(texts.get(image_id, ())), None) for image_id in image_ids]

    def _sentences(self, image_ids: Sequence[int]) -> dict[int, list[str]]:
        """The sentences of some images, by image_id."""
        texts: dict[int, list[str]] = {}
        if self.searcher.has("sentences"):
            for record in self.searcher.records("sentences", self._find("sentences", image_ids)):
                if record["text"] is not None:
                    texts.setdefault(record["image_id"], []).append(record["text"])
        return texts

    def row(self, image_id: int) -> Mapping[str, Any]:
        """The image's row. Raises InputError where the index has no such image, or no longer."""
        rows = self._find("images", [image_id])
        if not len(rows):
            raise InputError(f"there is no image {image_id}; give the image_id of a result")
        row = self.searcher.records("images", rows)[0]
        if row["path"] is None:
            raise InputError(f"image {image_id} was removed; give the image_id of a result")
        return row

    def _find(self, modality: Modality, image_ids: Sequence[int]) -> np.ndarray:
        """Returns the rows (k,) of a table that are, or belong to, some images: ascending, and each row once."""
        if modality not in self._sorted:
            return self.searcher.rows(modality).find("image_id", np.array(image_ids, np.int64))
        owners, order = self._sorted[modality]
        firsts = np.searchsorted(owners, image_ids)
        lasts = np.searchsorted(owners, image_ids, "right")
        spans = zip(firsts, lasts, strict=True)
        return np.unique(np.concatenate([order[:0], *(order[first:last] for first, last in spans)]))

    def original(self, image_id: int) -> bytes:
        """The file of the index's image `image_id`. Raises InputError as `row`, and where the photograph cannot be
        read or is another one than was indexed."""
        row = self.row(image_id)
        data = self._read(row)
        if hashlib.sha256(data).hexdigest() != row["sha256"]:
            raise InputError(f"image {image_id} is no longer the photo that was indexed; build the index again")
        return data

    def thumbnail(self, image_id: int) -> bytes:
        """A small JPEG of an image, made of its pixels alone. Raises InputError as `original`, which is read each time,
        so that a deleted photograph is never shown."""
        data = self.original(image_id)
        if image_id not in self._thumbnails:
            while len(self._thumbnails) >= CACHED:
                del self._thumbnails[next(iter(self._thumbnails))]
            self._thumbnails[image_id] = self._shrink(data, self._side)
        return self._thumbnails[image_id]

    def large(self, image_id: int) -> bytes:
        """The same of at most LARGE_SIDE pixels a side."""
        return self._shrink(self.original(image_id), LARGE_SIDE)

    def _shrink(self, data: bytes, side: int) -> bytes:
        image = self._decode(data)
        image.thumbnail((side, side))
        return _jpeg(image)


class OfGallery(NamedTuple):
    """An image of a gallery that is asked about."""

    gallery: ServedGallery
    image_id: int

    def read(self) -> bytes:
        """The file of its photograph, as ServedGallery.original."""
        return self.gallery.original(self.image_id)


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def spread(count: int, top: int) -> np.ndarray:
    """At most `top` different places among `count`, far from each other; those for a smaller `top` come first.

    Steps of about the golden section of `count`, without a common divisor, so that every place is met once.
    """
    step = max(1, round(count * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, count) > 1:
        step += 1
    return np.arange(min(top, count), dtype=np.int64) * step % max(count, 1)


# Any: the values of an Arrow column, which are text, truth values, numbers or dates.
def _facet(values: set[Any], kind: str) -> dict[str, Any]:
    if kind in ("text", "truth"):
        return {"values": sorted(values) if len(values) <= MOST_VALUES else []}
    least, most = min(values), max(values)
    if kind == "dates":
        return {"least": least.isoformat()[:10], "most": most.isoformat()[:10]}
    return {"least": least, "most": most} if math.isfinite(least) and math.isfinite(most) else {}


P = ParamSpec("P")
R = TypeVar("R")
LOOK_SECONDS = 1.0
"""How long a gallery is shown before its index is looked at again."""


class ServedIndex:
    """The gallery that `open()` gives of the index `name`. It is opened again once `stamp()` has changed, which is
    another value for every index, and None while there is none.

    The index is looked at in a thread, at most once a second; requests for its gallery wait for that.
    """

    def __init__(
        self, name: str, open: Callable[[], ServedGallery], stamp: Callable[[], Hashable | None] = lambda: None
    ) -> None:
        self._name = name
        self._open = open
        self._stamp = stamp
        self._shown = stamp()
        self.gallery = open()
        self._looked = time.monotonic()
        self._lock = asyncio.Lock()
        self._warning = ""

    async def renewed(self) -> ServedGallery:
        """The gallery, as its index is now."""
        async with self._lock:
            if time.monotonic() - self._looked > LOOK_SECONDS:
                await asyncio.to_thread(self._renew)
                self._looked = time.monotonic()
            return self.gallery

    def _renew(self) -> None:
        """Open the index again if it is another one; what cannot be opened yet is tried again."""
        stamp = self._stamp()
        if stamp is None or stamp == self._shown:
            return
        log = logging.getLogger(__name__)
        try:
            self.gallery = self._open()
        except Exception as error:  # whatever is wrong with the new index must not end what the old one answers
            if str(error) != self._warning:
                log.warning("%s was replaced and cannot be opened (%s); the previous one is served", self._name, error)
            self._warning = str(error)
        else:
            self._shown = stamp
            log.info("%s was replaced and reopened", self._name)


@dataclass(frozen=True)
class Describer:
    """The `generator` of the name `registered` and its `sources`; `top` sentences where a request names no number.

    `features(data)` encodes a photograph's bytes, by at least the generator's encoders; have it called by the thread
    that encodes, and `describe` by one thread at a time.
    """

    registered: str
    generator: "Generator"
    sources: "Sources"
    features: Callable[[bytes], Mapping[str, np.ndarray]]
    top: int

    def describe(self, features: Mapping[str, np.ndarray], top: int) -> Sequence[Mapping[str, Any]]:
        """At most `top` sentences, best first, for the photograph that these features, encoder -> (1, dim), are of."""
        from pipeline.generate.generator import describe_images  # and torch, which searches do without

        return describe_images(self.generator, features, self.sources, top)[0]


@dataclass(frozen=True)
class Service:
    """The indexes and generators, by name, and the threads that work for them, each kind with a queue of its own:
    searches; one thread that looks at `uploads`, one that encodes photographs, one that describes them, and one that
    shows those of the index, so that nobody's upload holds up the thumbnails."""

    indexes: Mapping[str, ServedIndex]
    describers: Mapping[str, Describer]
    limits: Limits
    metrics: Metrics
    check: Callable[[bytes], None]
    """Raises InputError for an upload that is no photograph, or too large a one."""
    originals: bool
    """Whether photographs are given as their files are, with what cameras wrote into them."""
    searching: ThreadPoolExecutor
    checking: ThreadPoolExecutor
    encoding: ThreadPoolExecutor
    describing: ThreadPoolExecutor
    showing: ThreadPoolExecutor
    turns: asyncio.Semaphore
    """Of photographs that are described or wait for it."""

    async def run(
        self, pool: Executor, function: Callable[P, R], *arguments: P.args, **named: P.kwargs
    ) -> tuple[R, float]:
        """Call `function` in a thread of `pool`, and return its result and the seconds that it took there."""
        return await asyncio.get_running_loop().run_in_executor(pool, _timed, partial(function, *arguments, **named))


def _timed(function: Callable[[], R]) -> tuple[R, float]:
    start = time.perf_counter()
    return function(), time.perf_counter() - start
