"""What ingest makes of a collection, and when it is not good enough to go on with."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipeline.collections.records import Reject
from pipeline.errors import InputError, RejectLimitError


@dataclass(frozen=True)
class SplitSummary:
    """How many images a split was given and has kept; the file that names its first, and why one was not kept."""

    given: int
    kept: int
    file: str
    reason: str | None


@dataclass(frozen=True)
class Collection:
    """Tables `images`, `sentences`, `documents` and `boxes` in the order of a manifest, and what was left out.

    `counts` has {given, kept, rejected, duplicate} of each table; `rejects` has one entry for each thing not kept.
    """

    tables: Mapping[str, pa.Table]
    rejects: list[Reject]
    counts: Mapping[str, Mapping[str, int]]
    splits: Mapping[str, SplitSummary]

    def check(self, reject_limit: float, report: str) -> None:
        """Refuse a collection with an empty split (InputError), or with more than the share `reject_limit` of its
        images rejected (RejectLimitError). `report` is the file in which the rejects can be read."""
        if not self.splits:
            raise InputError(f"no image was found; {report} lists what was rejected")
        for split, summary in self.splits.items():
            if not summary.kept:
                raise InputError(
                    f"split {split} is empty: none of the {summary.given} images that {summary.file} gives it can be "
                    f"used ({summary.reason}); {report} lists the reasons"
                )
        if "train" not in self.splits:
            file = next(iter(self.splits.values())).file
            raise InputError(f"split train is empty: {file} gives it no image; name some, or set default_split")
        images = self.counts["images"]
        if images["rejected"] > reject_limit * images["given"]:
            raise RejectLimitError(
                f"{images['rejected']} of {images['given']} images are rejected, more than collection.reject_limit "
                f"{reject_limit:g} allows; {report} lists them: repair them or raise that key"
            )

    def describe(self) -> Iterator[str]:
        """What there is and what was left out, in lines for a person."""
        splits = ", ".join(f"{split} {summary.kept}" for split, summary in self.splits.items())
        for what, count in self.counts.items():
            if count["given"]:
                left_out = ", ".join(f"{count[fate]} {fate}" for fate in ("rejected", "duplicate") if count[fate])
                line = f"{count['kept']} {what}" + (f" ({splits})" if what == "images" else "")
                yield line + (f"; {left_out}" if left_out else "")
        reasons = Counter((reject.what, reject.reason.partition(":")[0]) for reject in self.rejects)
        for (what, reason), count in reasons.most_common(10):
            yield f"  {count} {what} left out: {reason}"
