"""How stored features are: what they hold, what looks wrong in a sample of them, and how fast they were made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.storage.benchmarks import Job
from pipeline.storage.gather import Features
from pipeline.storage.shards import Shard

SHARDS, ROWS = 4, 512
"""How many shards are opened and checked, evenly spaced, and how many rows of each are looked at."""


@dataclass(frozen=True)
class FeatureHealth:
    """Of one encoder: `rows` in `shards`, of `dim` columns as `dtype`, `bytes` on disk; in the `sampled` rows, their
    mean `length` and its standard deviation `spread`, how many are zero, equal to another, and how many columns are
    `constant`; and `rate`, images a second of the jobs that wrote them, or None."""

    encoder: str
    dim: int
    dtype: str
    shards: int
    rows: int
    bytes: int
    sampled: int
    length: float
    spread: float
    zero: int
    equal: int
    constant: int
    rate: float | None


def read_health(features: Features, encoders: Sequence[str], jobs: Mapping[str, Sequence[Job]]) -> list[FeatureHealth]:
    """The health of the feature shards of `encoders`; those without any are left out.

    `jobs` are those of the rule that wrote the shards, encoder -> its jobs. The files that are opened are checked
    against their sha256 and the manifest; `jointspace verify` checks all of them. Raises IntegrityError.
    """
    return [
        _health(features, encoder, jobs.get(encoder, ())) for encoder in encoders if (features.root / encoder).is_dir()
    ]


def _health(features: Features, encoder: str, jobs: Sequence[Job]) -> FeatureHealth:
    count = features.manifest.n_shards
    opened = [features.open(encoder, int(number)) for number in _evenly(count, SHARDS)]
    sample = np.concatenate([_rows(shard) for shard in opened])
    lengths = np.linalg.norm(sample, axis=1)
    total = features.manifest.images.num_rows
    seconds = sum(job.seconds for job in jobs)
    return FeatureHealth(
        encoder=encoder,
        dim=sample.shape[1],
        dtype=str(opened[0]["features"].dtype),
        shards=count,
        rows=total,
        bytes=round(sum(shard.sidecar.bytes for shard in opened) / sum(shard.rows for shard in opened) * total),
        sampled=len(sample),
        length=float(lengths.mean()),
        spread=float(lengths.std()),
        zero=int((lengths == 0).sum()),
        equal=len(sample) - len(np.unique(sample, axis=0)),
        constant=int((sample.min(axis=0) == sample.max(axis=0)).sum()) if len(sample) > 1 else 0,
        rate=total / seconds if seconds and len(jobs) == count else None,
    )


def _rows(shard: Shard) -> np.ndarray:
    return shard["features"][_evenly(shard.rows, ROWS)].astype(np.float32)


def _evenly(n: int, most: int) -> np.ndarray:
    """At most `most` of the numbers 0 to n - 1, in order."""
    return np.unique(np.linspace(0, n - 1, most, dtype=int))
