"""What one job of a stage needs of the machine that it runs on: memory, disk, minutes, a GPU.

Each stage's declaration says so in the words below, for the scheduler, which must not kill a job for a few megabytes,
and for the plan. Most of it is counted from the arrays that a job holds and rounded up generously; docs/scaling.md says
what was measured.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.plan.sizes import Sizes

Amount = Callable[[Sizes], float]
MB = 1 << 20
BLOCK_ROWS = 4096
"""Images in a block of `accumulate`, as in pipeline.models.linear.accumulation, which takes a second to import."""
PYTHON, TORCH = 350, 1100
"""MB of a process with numpy and Parquet, and of one that has loaded torch too."""
IMAGE_ROW, SENTENCE_ROW = 400, 350
"""Bytes of memory that a manifest takes a process, for each image and for each sentence. Measured: a million images
with a sentence of 11 words each took 460 to 580 bytes an image at the peak, 300,000 with five of them 1,620 to 2,150.
"""
OBJECTS, SHARD_ENTRY = 4, 500
"""Times as many bytes as in Arrow that rows take as Python objects; bytes of a shard's entry in `manifest.json`."""
COMMITS = 2000
"""Bytes of what a process keeps of a shard that it has looked at; 1,000 to 1,500 were measured."""
TABLES, TABLE_ENTRY = 350, 6
"""MB of tables on the disk (pipeline.disk_tables) and of rows on their way to them, and bytes of what is remembered of
an image there. Measured, with Python: 358 MB with 200,000 images, 427 with 2 million, 442 with 8 million.
"""
WAITING_SUMS = 3
"""Sums in temporary files, of pipeline.mapreduce, at most."""
COUNTS = 200
"""Bytes on disk, while terms are counted, for each sentence and word of the longest term. Up to 69 were measured for a
sentence with words, 342 with pairs of them, 461 with triples, of up to a million sentences; new terms become rare."""
LIST, COPIES = 160, 3
"""Bytes that FAISS takes for each list of each piece that is open, however few vectors it has (measured); copies of a
piece that a worker holds, as in pipeline.index.pieces."""
LISTS = ((300_000_000, 1 << 18), (10_000_000, 1 << 17))
"""From how many vectors on an index in pieces has so many lists at most, as in pipeline.index.candidates."""
GPU_CONTEXT, GPU_NETWORK, GPU_IMAGE = 600, 300, 60
"""Estimates: MB of a GPU that a process takes before it computes, a network, and each image of 224 x 224 pixels in a
batch."""


@dataclass(frozen=True)
class Need:
    """Of one job: `memory` and `disk` in MB, `minutes`, and MB of a `gpu` (None: it cannot use one), each by the sizes
    of the run. `grows` says in words what the time of all jobs grows with.

    `minutes` are what a slow core may take, for a scheduler that kills what is late; the plan's forecast is another
    matter. A sharded stage's disk and minutes are those of a shard.
    """

    memory: Amount
    disk: Amount
    minutes: Amount
    grows: str
    gpu: Amount | None = None


def fixed(value: float) -> Amount:
    return lambda s: value


def per_shard(rate: float) -> Amount:
    """Minutes for a shard at `rate` images a second, and the start of a process."""
    return lambda s: 5 + s.shard_images / rate / 60


def per_image(rate: float) -> Amount:
    """Minutes for all images at `rate` a second."""
    return lambda s: 10 + s.images / rate / 60


def per_described(rate: float) -> Amount:
    """Minutes for all images that have sentences at `rate` a second."""
    return lambda s: 10 + s.described / rate / 60


def process(base: float, images: float = 0, sentences: float = 0, described: float = 0) -> Amount:
    """`base` MB and the manifest, and so many MB for each image, sentence, and image that has sentences."""
    return lambda s: base + manifest_mb(s) + images * s.images + sentences * s.sentences + described * s.described


def manifest_mb(s: Sizes) -> float:
    """All images and sentences of the manifest."""
    return (IMAGE_ROW * s.images + SENTENCE_ROW * s.sentences) / MB


def rows_mb(s: Sizes) -> float:
    """Those of a shard, which become Python objects, and the list of the shards' fingerprints."""
    rows = IMAGE_ROW * s.shard_images + SENTENCE_ROW * s.shard_sentences
    return (OBJECTS * rows + SHARD_ENTRY * s.shards) / MB


def shards_mb(s: Sizes) -> float:
    """The rows of a shard, one shard after another, and the commits of all."""
    return rows_mb(s) + COMMITS * s.shards / MB


def counts_mb(s: Sizes, words: int) -> float:
    """Files of the counts of terms of at most so many `words`."""
    return COUNTS * words * s.sentences / MB


def tables_mb(s: Sizes) -> float:
    """The tables of `ingest`, and the manifest that is written shard by shard."""
    return TABLES + TABLE_ENTRY * s.images / MB + shards_mb(s)


def columns_mb(s: Sizes) -> float:
    """The same, which images and sentences are wanted, and the ids of these."""
    return shards_mb(s) + (2 * s.images + 16 * s.sentences) / MB


def blocks_mb(s: Sizes) -> float:
    """The accumulator's blocks: features as stored, in single precision, and about their mean."""
    return 3 * 4 * BLOCK_ROWS * s.dim / MB


def embeddings_mb(s: Sizes) -> float:
    """All embeddings of a model."""
    return 4 * s.dimensions * (s.images + s.sentences) / MB


def index_mb(s: Sizes) -> float:
    """What `build-index` holds: of an index in pieces a worker's memory, the rows of a piece before and after they are
    packed, a bit for each row of shards of which not all are indexed, and the lists of all pieces; else the manifest
    and the embeddings."""
    if max(s.images, s.sentences) > s.piece:
        bits = (s.images + s.sentences) / 8 / MB
        return s.worker_memory + 2 * IMAGE_ROW * s.piece / MB + shards_mb(s) + bits + lists_mb(s)
    return manifest_mb(s) + 3 * embeddings_mb(s)


def lists_mb(s: Sizes) -> float:
    """The empty lists of an index in pieces whose codes have a byte for each dimension."""
    count, rows = max(s.images, s.sentences), min(s.piece, s.worker_memory * MB / COPIES / (s.dimensions + 8))
    lists = next((lists for least, lists in LISTS if count >= least), 4 * count**0.5)
    return LIST * lists * count / rows / MB


def encoder_gpu(s: Sizes) -> float:
    """MB of a GPU for an image encoder."""
    return GPU_CONTEXT + GPU_NETWORK + GPU_IMAGE * s.batch_images


def moments_gpu(s: Sizes) -> float:
    """MB of a GPU for moments: X'X, Y'X and a block's part of that."""
    return GPU_CONTEXT + blocks_mb(s) + 4 * s.dim * (s.dim + 2 * s.terms) / MB


def network_gpu(s: Sizes) -> float:
    """MB of a GPU for a network of sentences in training, or for vectors and their products in portions."""
    return GPU_CONTEXT + 2000
