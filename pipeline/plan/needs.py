"""What one job of each rule needs of the machine that it runs on: memory, disk, minutes, a GPU.

The table is one for the scheduler, which must not kill a job for a few megabytes, and for the plan. Most of it is
counted from the arrays that a job holds and rounded up generously; docs/scaling.md says what was measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.plan.sizes import Sizes

MB = 1 << 20
BLOCK_ROWS = 4096
"""Images in a block of `accumulate`, as in pipeline.models.linear.accumulation, which takes a second to import."""
PYTHON, TORCH = 350, 1100
"""MB of a process with numpy and Parquet, and of one that has loaded torch too."""
IMAGE_ROW, SENTENCE_ROW = 400, 350
"""Bytes of memory that a manifest takes a process, for each image and for each sentence. Measured: a million images
with a sentence of 11 words each took 460 to 580 bytes an image at the peak, 300,000 with five of them 1,620 to 2,150.
"""
GPU_CONTEXT, GPU_NETWORK, GPU_IMAGE = 600, 300, 60
"""Estimates: MB of a GPU that a process takes before it computes, a network, and each image of 224 x 224 pixels in a
batch."""


@dataclass(frozen=True)
class Need:
    """Of one job: `memory` and `disk` in MB, `minutes`, and MB of a `gpu` (None: it cannot use one), each by the sizes
    of the run.

    `minutes` are what a slow core may take, for a scheduler that kills what is late; the plan's forecast is another
    matter.
    """

    memory: Callable[[Sizes], float]
    disk: Callable[[Sizes], float]
    minutes: Callable[[Sizes], float]
    gpu: Callable[[Sizes], float] | None = None


def _shard(rate: float) -> Callable[[Sizes], float]:
    """Minutes for a shard at `rate` images a second, and the start of a process."""
    return lambda s: 5 + s.shard_images / rate / 60


def _all(rate: float) -> Callable[[Sizes], float]:
    """Minutes for all images at `rate` a second."""
    return lambda s: 10 + s.images / rate / 60


def _described(rate: float) -> Callable[[Sizes], float]:
    """Minutes for all images that have sentences at `rate` a second."""
    return lambda s: 10 + s.described / rate / 60


def _fixed(value: float) -> Callable[[Sizes], float]:
    return lambda s: value


def _manifest(s: Sizes) -> float:
    """MB of the manifest's images and sentences, which a job reads even if it is about one shard of them."""
    return (IMAGE_ROW * s.images + SENTENCE_ROW * s.sentences) / MB


def _blocks(s: Sizes) -> float:
    """MB of the accumulator's blocks: features as stored, in single precision, and about their mean."""
    return 3 * 4 * BLOCK_ROWS * s.dim / MB


def _encoder(s: Sizes) -> float:
    """MB of a GPU for an image encoder."""
    return GPU_CONTEXT + GPU_NETWORK + GPU_IMAGE * s.batch_images


def _sums(s: Sizes) -> float:
    """MB of a GPU for moments: X'X, Y'X and a block's part of that."""
    return GPU_CONTEXT + _blocks(s) + 4 * s.dim * (s.dim + 2 * s.terms) / MB


def _network(s: Sizes) -> float:
    """MB of a GPU for a network of sentences in training, or for vectors and their products in portions."""
    return GPU_CONTEXT + 2000


def _joint(s: Sizes) -> float:
    """MB of all embeddings of a row."""
    return 4 * s.dimensions * (s.images + s.sentences) / MB


NEEDS: dict[str, Need] = {
    "make_demo": Need(_fixed(1500), lambda s: 0.03 * s.images, _all(20)),
    "ingest": Need(lambda s: PYTHON + 600 + 0.006 * s.images, lambda s: 0.001 * s.images, _all(100)),
    "plan": Need(lambda s: TORCH + 1500 + 0.002 * s.images + _manifest(s), _fixed(5), _fixed(20), gpu=_encoder),
    "prepare_encoder": Need(lambda s: TORCH + 2000 + _manifest(s), _fixed(600), _fixed(120)),
    "finetune": Need(lambda s: 3500 + _manifest(s), _fixed(600), _fixed(240), gpu=_encoder),
    "extract": Need(
        lambda s: TORCH + 2500 + _manifest(s) + 8 * s.shard_images * max(s.dims.values()) / MB,
        lambda s: 4 * s.shard_images * max(s.dims.values()) / MB,
        _shard(2), gpu=_encoder,
    ),
    "extract_regions": Need(
        lambda s: TORCH + 3000 + _manifest(s) + 8 * 20 * s.shard_images * max(s.dims.values()) / MB,
        lambda s: 4 * 20 * s.shard_images * max(s.dims.values()) / MB,
        _shard(0.3), gpu=_encoder,
    ),
    "pool_regions": Need(
        lambda s: TORCH + 1000 + _manifest(s) + 12 * s.shard_images * max(s.dims.values()) / MB,
        lambda s: 4 * s.shard_images * max(s.dims.values()) / MB, _shard(100),
    ),
    "reduce_regions": Need(
        lambda s: 4000 + _manifest(s), lambda s: 4 * 20 * s.images * max(s.dims.values()) / MB, _all(500)
    ),
    "show_regions": Need(lambda s: TORCH + 900 + _manifest(s), _fixed(20), _fixed(15)),
    "build_vocabulary": Need(lambda s: PYTHON + 500 + 0.002 * s.sentences + _manifest(s), _fixed(10), _all(300)),
    "build_token_vocabulary": Need(lambda s: PYTHON + 500 + 0.002 * s.sentences + _manifest(s), _fixed(10), _all(300)),
    "encode_sentences": Need(
        lambda s: PYTHON + 500 + _manifest(s), lambda s: 0.0005 * s.shard_images * s.texts, _shard(50)
    ),
    "encode_tokens": Need(
        lambda s: PYTHON + 500 + _manifest(s), lambda s: 0.0005 * s.shard_images * s.texts, _shard(50)
    ),
    "simulate_documents": Need(
        lambda s: PYTHON + 500 + 0.006 * s.images + _manifest(s), lambda s: 0.001 * s.images, _all(300)
    ),
    "encode_documents": Need(
        lambda s: PYTHON + 500 + 0.002 * s.images + _manifest(s), lambda s: 0.001 * s.shard_images, _shard(50)
    ),
    "accumulate": Need(
        lambda s: TORCH + _manifest(s) + _blocks(s) + 2.5 * s.moments_bytes / MB,
        lambda s: s.moments_bytes / MB, _shard(100), gpu=_sums,
    ),
    "accumulate_auxiliary": Need(
        lambda s: TORCH + _manifest(s) + _blocks(s) + 2.5 * s.moments_bytes / MB,
        lambda s: s.moments_bytes / MB, _shard(100), gpu=_sums,
    ),
    "fit": Need(
        lambda s: TORCH + 1000 + _manifest(s) + 12 * s.moments_bytes / MB,
        lambda s: 8 * s.dimensions * (s.dim + s.terms) / MB, _all(200), gpu=_sums,
    ),
    "train_word_vectors": Need(lambda s: PYTHON + 500 + 0.003 * s.sentences + _manifest(s), _fixed(100), _all(50)),
    "train": Need(lambda s: TORCH + 3000 + 0.004 * s.images + _manifest(s), _fixed(500), _described(2), gpu=_network),
    "fit_csls": Need(lambda s: TORCH + 1000 + _manifest(s) + 0.1 * _joint(s), _fixed(100), _fixed(60)),
    "combine": Need(lambda s: TORCH + 500 + _manifest(s) + 0.1 * _joint(s), _fixed(50), _fixed(60)),
    "embed": Need(
        lambda s: TORCH + _manifest(s) + 12 * s.shard_images * (s.dim + s.texts * s.dimensions) / MB,
        lambda s: 4 * s.dimensions * s.shard_images * (1 + s.texts) / MB, _shard(100), gpu=_network,
    ),
    "join_embeddings": Need(
        lambda s: TORCH + 500 + _manifest(s),
        lambda s: 8 * s.dimensions * s.shard_images * (1 + s.texts) / MB, _shard(500),
    ),
    "evaluate": Need(lambda s: TORCH + 600 + _manifest(s), _fixed(5), _all(300)),
    "align": Need(
        lambda s: PYTHON + 1500 + _manifest(s) + 0.01 * s.described, lambda s: 0.002 * s.sentences, _described(300)
    ),
    "list_magnitudes": Need(lambda s: PYTHON + 1500 + _manifest(s) + 0.05 * s.described, _fixed(5), _described(300)),
    "embed_phrases": Need(
        lambda s: TORCH + 1500 + _manifest(s) + 0.05 * s.described, lambda s: 0.05 * s.sentences, _described(100),
        gpu=_network,
    ),
    "rank_phrases": Need(lambda s: PYTHON + 1500 + _manifest(s) + 0.3 * s.described, _fixed(5), _described(50)),
    "show_phrases": Need(lambda s: PYTHON + 1500 + _manifest(s) + 0.1 * s.described, _fixed(20), _fixed(30)),
    "summarise": Need(_fixed(500), _fixed(5), _fixed(10)),
    "build_index": Need(lambda s: TORCH + 600 + _manifest(s) + 3 * _joint(s), _joint, _all(200), gpu=_network),
    "train_generator": Need(
        lambda s: TORCH + 3000 + 0.004 * s.images + _manifest(s), _fixed(500), _described(2), gpu=_network
    ),
    "describe": Need(
        lambda s: TORCH + 3000 + _manifest(s) + 4 * 20 * s.described * max(s.dims.values()) / MB,
        _fixed(50), _described(2), gpu=_network,
    ),
    "evaluate_descriptions": Need(
        lambda s: 2000 + _manifest(s) + 0.1 * s.described, _fixed(5), lambda s: 60 + s.described / 50 / 60, gpu=_network
    ),
    "study": Need(
        lambda s: TORCH + 1500 + _manifest(s) + 16 * s.moments_bytes / MB, _fixed(200), _all(2), gpu=_sums
    ),
    "tabulate": Need(_fixed(800), _fixed(5), _fixed(15)),
    "train_parser": Need(_fixed(2500), _fixed(200), _fixed(240)),
    "parse": Need(lambda s: 1500 + _manifest(s), lambda s: 0.002 * s.shard_images * s.texts, _shard(5)),
    "build_label_table": Need(lambda s: 1000 + _manifest(s), _fixed(10), _fixed(30)),
    "encode_trees": Need(lambda s: 1000 + _manifest(s), lambda s: 0.001 * s.shard_images * s.texts, _shard(50)),
    "reproduce": Need(_fixed(2500), _fixed(50), _fixed(60)),
    "report": Need(lambda s: TORCH + 600 + 0.002 * s.images + _manifest(s), _fixed(50), _fixed(30)),
}  # fmt: skip


def needs_of(stage: Any) -> Need:
    """What a job of a declared stage needs: its own word, or its line in this table."""
    return stage.needs or NEEDS[stage.name]
