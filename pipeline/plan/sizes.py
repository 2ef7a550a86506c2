"""The sizes of a run that its cost depends on, from the configuration and, once it is there, the manifest."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from pipeline.device import GPU_BATCH
from pipeline.specs.models import made_by

if TYPE_CHECKING:
    from pipeline.config import Config

WIDEST = 2048
"""Dimensions that features have at most, where nobody says how many."""
WORD = 300
"""Dimensions of word vectors in a file: the published ones of word2vec, GloVe and fastText have no more."""
SIDE = 224
"""Pixels of a picture's side, where the model itself says how many."""
TEXTS = 5
"""Sentences of an image where no manifest says how many there are."""


@dataclass(frozen=True)
class Sizes:
    """Counts of `images` and `sentences`; `shard_images` of the largest shard; the `splits`' images; the dimension of
    each encoder's features (`dims`), and of each text encoder's vectors (`text_dims`); the largest number of joint
    `dimensions`; the `batch_images` of 224 x 224 pixels that have as many as what goes through a network at once;
    the most vectors of a `piece` of an index (infinite where a model has several vectors an image, whose index is
    whole), and the MiB of `worker_memory` for it; the `text_bytes` that making a text encoder holds for each sentence,
    and the words of the longest terms that it counts (`counted`); whether an encoder `learns` from the images or is
    compared with given features, and whether documents are `simulated`."""

    images: int
    sentences: int
    shard_images: int
    splits: Mapping[str, int]
    dims: Mapping[str, int]
    text_dims: Mapping[str, int]
    dimensions: int
    batch_images: float
    piece: float
    worker_memory: int
    text_bytes: int
    counted: int
    learns: bool
    simulated: bool

    @property
    def shards(self) -> int:
        return -(-self.images // self.shard_images)

    @property
    def dim(self) -> int:
        """D of the image view: all encoders side by side."""
        return sum(self.dims.values())

    @property
    def terms(self) -> int:
        """d of the text view: all text encoders side by side."""
        return sum(self.text_dims.values())

    @property
    def widest_text(self) -> int:
        """The dimensions of the text encoder that has the most."""
        return max(self.text_dims.values())

    @property
    def widest(self) -> int:
        """The dimensions of the encoder that has the most."""
        return max(self.dims.values())

    @property
    def described(self) -> int:
        """Images of the splits whose images have sentences."""
        from pipeline.settings.section import DESCRIBED  # which loads pydantic

        return sum(self.splits.get(split, 0) for split in DESCRIBED)

    @property
    def texts(self) -> float:
        """Sentences of an image, on average."""
        return self.sentences / self.images

    @property
    def shard_sentences(self) -> float:
        """Sentences of the fullest shard, if the images that have some stand together."""
        return min(self.sentences, self.shard_images * self.sentences / max(1, self.described))

    @property
    def moments_bytes(self) -> int:
        """Of X'X, X'Y and Y'Y in memory, in single precision."""
        return 4 * (self.dim**2 + self.dim * self.terms + self.terms**2)


def sizes_of(
    config: "Config",
    summary: Mapping[str, Any] | None,
    dims: Mapping[str, int] | None = None,
    text_dims: Mapping[str, int] | None = None,
) -> Sizes:
    """The sizes of a run whose manifest says `summary` (None: there is none yet, and the demo's are taken); `dims` are
    the known dimensions of encoders, `text_dims` of text encoders; the others are taken from their entries."""
    demo = config.demo
    splits = summary["splits"] if summary else {name: getattr(demo, name) for name in ("train", "dev", "test", "weak")}
    images = max(1, sum(splits.values()))
    sentences = summary["counts"]["sentences"]["kept"] if summary else TEXTS * (images - splits.get("weak", 0))
    known = {encoder.name: width(config, encoder) for encoder in config.encoders} | dict(dims or {})
    texts = {one.name: text_width(config, one) for one in config.text_encoders} | dict(text_dims or {})
    side = max(encoder.crop or encoder.resize or SIDE for encoder in config.encoders)
    return Sizes(
        images=images,
        sentences=max(1, sentences),
        shard_images=min(config.shard_size, images),
        splits=splits,
        dims={encoder.name: known[encoder.name] for encoder in config.encoders},
        text_dims={one.name: texts[one.name] for one in config.text_encoders},
        dimensions=max([*config.fit.dimensions, *(config.section(spec).dimensions for spec in made_by("train"))]),
        piece=inf if any(config.model(name).spec.multi_vector for name in config.models) else config.index.piece,
        worker_memory=config.index.worker_memory,
        text_bytes=max((one.own.held for one in config.text_encoders), default=0),
        counted=max((one.own.counted for one in config.text_encoders), default=0),
        batch_images=(config.extract.batch_size or GPU_BATCH) * (side / 224) ** 2,
        learns=any(one.spec.learned or one.made_by for one in config.prepared_encoders),
        simulated=any(one.simulate is not None for one in config.documents.values()),
    )


def width(config: "Config", encoder: Any) -> int:
    """The dimension of an encoder's features, or the most that it can be."""
    if encoder.of is not None:
        return width(config, config.encoder(encoder.of))
    return encoder.spec.dim(encoder) or WIDEST


def text_width(config: "Config", encoder: Any) -> int:
    """The dimension of a text encoder's vectors, or the most that it can be."""
    return encoder.spec.dim(encoder, config.word_vectors.dim if encoder.own.corpus else WORD) or WIDEST
