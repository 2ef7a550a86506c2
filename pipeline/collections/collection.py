"""What ingest makes of a collection, and when it is not good enough to go on with."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipeline.collections.records import Reject
from pipeline.errors import InputError, RejectLimitError

HARMLESS = ("empty", "duplicate")
"""What the reasons begin with of rejected sentences that no limit counts."""


@dataclass(frozen=True)
class SplitSummary:
    """How many images the collection gives a split, how many it has, and how many of those given are in `gallery`
    instead, since they have no sentence; the file that names its first, and why one is not in it."""

    given: int
    kept: int
    silent: int
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
        """Refuse a collection from which nothing can be learned or judged (InputError), or with more than the share
        `reject_limit` of its images, or of its sentences that are not empty, rejected (RejectLimitError). `report` is
        the file that has any rejects."""
        reasons = f"; {report} lists the reasons" if self.rejects else ""
        images, sentences = self.counts["images"], self.counts["sentences"]
        if not self.splits:
            raise InputError(f"no image was found{reasons}; set data_root to the folder of your collection")
        if images["kept"] and not sentences["kept"]:
            usable = f" that can be used, of {sentences['given']} given" if sentences["given"] else ""
            raise InputError(
                f"none of the {images['kept']} images has a sentence{usable}, and without any there is nothing to learn"
                f" from: write some{reasons}"
            )
        for split, summary in self.splits.items():
            if not summary.kept and split != "gallery":
                raise InputError(
                    f"split {split} is empty: none of the {summary.given} images that {summary.file} gives it can be "
                    f"used ({summary.reason}){reasons}"
                )
        if "train" not in self.splits:
            file = next(iter(self.splits.values())).file
            raise InputError(f"split train is empty: {file} gives it no image; name some, or set default_split")
        broken = sum(one.what == "sentences" and not one.reason.startswith(HARMLESS) for one in self.rejects)
        for what, count, given in (
            ("images", images["rejected"], images["given"]), ("sentences", broken, sentences["given"]),
        ):  # fmt: skip
            if count > reject_limit * given:
                raise RejectLimitError(
                    f"{count} of {given} {what} are rejected, more than collection.reject_limit {reject_limit:g}"
                    f" allows; {report} lists them: repair them or raise that key"
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
        if silent := {split: summary.silent for split, summary in self.splits.items() if summary.silent}:
            count = " and ".join(f"{count} of {split}" for split, count in silent.items())
            yield f"{count} have no sentence: they are in the split gallery, to be found and not to be learned from"
