"""What ingest makes of a collection, and when that is not usable."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline.collections.records import Reject
from pipeline.collections.tables import RejectSummary
from pipeline.errors import InputError, RejectLimitError

HARMLESS = ("empty", "duplicate")
"""First words of the reasons for rejected sentences that do not count towards the limit."""


@dataclass(frozen=True)
class SplitSummary:
    """The number of images that the collection gives a split, that it has, and that are in `gallery` instead because
    they have no sentence; the file that names its first image, and why that is left out."""

    given: int
    kept: int
    silent: int
    file: str
    reason: str | None


@dataclass(frozen=True)
class Collection:
    """Tables `images`, `sentences`, `documents` and `boxes` in the manifest's order, in the `parts` of an iterator that
    can be made again, and what was left out.

    `counts` has {given, kept, rejected, duplicate} of each table; `rejects` has one entry for each thing not kept.
    """

    parts: Callable[[], Iterator[Mapping[str, pa.Table]]]
    rejects: Iterable[Reject]
    left_out: RejectSummary
    counts: Mapping[str, Mapping[str, int]]
    splits: Mapping[str, SplitSummary]
    notes: Sequence[str] = ()
    """How images were read that are out of the ordinary, and what became of the user's own columns, in lines."""

    def check(self, reject_limit: float, report: str, learned_from: bool = True) -> None:
        """Raises InputError if there is no image, or, where some have sentences and are to be `learned_from`, if these
        are of no use for it; and RejectLimitError if more than the share `reject_limit` of the images, or of the
        non-empty sentences, was rejected. `report` is the file of rejects."""
        reasons = f"; {report} lists the reasons" if self.left_out.counts else ""
        images, sentences = self.counts["images"], self.counts["sentences"]
        if not self.splits:
            raise InputError(f"no image was found{reasons}; set data_root to the folder of your collection")
        if not images["kept"]:
            reason, count = self.left_out.images
            raise InputError(f"none of the {images['given']} images can be used; of {count}: {reason}{reasons}")
        if learned_from and (sentences["kept"] or sentences["given"]):
            self._require_pairs(reasons)
        broken = self.left_out.of("sentences", "") - self.left_out.of("sentences", *HARMLESS)
        for what, count, given in (
            ("images", images["rejected"], images["given"]), ("sentences", broken, sentences["given"]),
        ):  # fmt: skip
            if count > reject_limit * given:
                reason, most = self.left_out.most_frequent(what)
                raise RejectLimitError(
                    f"{count} of {given} {what} are rejected, more than collection.reject_limit {reject_limit:g} allows"
                    f" ({most}: {reason}); {report} lists them: repair them or raise that key"
                )

    def _require_pairs(self, reasons: str) -> None:
        images, sentences = self.counts["images"], self.counts["sentences"]
        if not sentences["kept"]:
            raise InputError(
                f"none of the {images['kept']} images has a sentence that can be used, of {sentences['given']} given"
                f"{reasons}"
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

    def describe(self) -> Iterator[str]:
        """What was kept and left out, in lines for the user."""
        splits = ", ".join(f"{split} {summary.kept}" for split, summary in self.splits.items())
        for what, count in self.counts.items():
            if count["given"]:
                left_out = ", ".join(f"{count[fate]} {fate}" for fate in ("rejected", "duplicate") if count[fate])
                line = f"{count['kept']} {what}" + (f" ({splits})" if what == "images" else "")
                yield line + (f"; {left_out}" if left_out else "")
        yield from self.notes
        for (what, reason), count in Counter(self.left_out.counts).most_common(10):
            yield f"  {count} {what} left out: {reason}"
        if silent := {split: summary.silent for split, summary in self.splits.items() if summary.silent}:
            count = " and ".join(f"{count} of {split}" for split, count in silent.items())
            yield f"{count} have no sentence: they are in the split gallery, to be found but not learned from"
