"""`audit`: finds captions that are probably wrong, near-duplicates, and near-duplicates in different splits."""

import logging
import shlex
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.compute import runtime
from pipeline.errors import IntegrityError, UsageError
from pipeline.printable import counted
from pipeline.run import Inputs, Job, Layout, Run, StageRun, stage
from pipeline.run.reading.inputs import feature_shards
from stages.commands import FILE, RUN

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from pipeline.config.names import Config
    from pipeline.models.linear.cross_fit import Scores
    from pipeline.storage.decisions import Pair
    from pipeline.storage.manifest import Manifest

log = logging.getLogger(__name__)
SPLITS_BY_PRIORITY = ("test", "dev", "train", "weak", "gallery")
"""Splits by priority. Of two near-duplicates, the takedown list names the photo in the split that comes later here. In
the same split, the list names the photo with the greater image_id."""
BLOCK_ROWS = 4096
"""Number of photos, pairs or findings that are in memory at a time."""
MIN_PHOTOS_FOR_ESTIMATE = 1000
"""Number of photos below which the command warns that the list can have more right captions than --rate says."""
TITLES = {
    **dict.fromkeys(("leak", "copy"), "Near-duplicates. Of each pair, the photo that stays is not listed."),
    "caption": "Captions that are probably wrong. Remove the # to leave out further captions, too.",
    "captions": "Photos whose captions are probably all wrong. Remove the # to leave out further photos, too.",
}
"""Kind of finding -> the comment above its lines in a takedown list."""
FALSE_DISCOVERY_RATE = 0.1
"""Default of --rate: largest estimated share of right captions among the captions that the takedown list leaves out.
Findings up to this share are called reliable in the table of findings, whatever --rate is."""
MIN_LISTED_CAPTIONS = 50
"""Minimum number of photos, and of single captions, in the table of findings. The items with the lowest scores are
listed, even if fewer are probably wrong."""


@click.command("audit")
@click.argument("root", type=RUN, metavar="RUN")
@click.option(
    "--exclude", type=FILE, metavar="FILE",
    help="Write the findings as a takedown list, which the key collection.takedown can name. Less reliable findings are"
    " comments.",
)  # fmt: skip
@click.option(
    "--rate", type=click.FloatRange(0, 0.5), default=FALSE_DISCOVERY_RATE, show_default=True,
    help="Largest estimated share of right captions among the captions that the takedown list removes.",
)  # fmt: skip
def command(root: Path, exclude: Path | None, rate: float) -> None:
    """Find wrong captions, near-duplicates and split leakage.

    The command finds captions that probably do not describe their photo, photos that are near-duplicates, and
    near-duplicates in different splits. It writes RUN/audit/audit.parquet with one row per finding, and adds a
    section to the report. If an index was changed by `remove` or `add`, the next `run` adds this section.
    Captions on which you have decided with `serve --review` are not listed again.
    """
    from pipeline.models.linear.cross_fit import MIN_PHOTOS
    from pipeline.report.tables import FINDINGS
    from pipeline.run.runner import run_stage
    from pipeline.storage.batch import publish_text
    from pipeline.storage.decisions import CHOICES, latest, read_decisions
    from pipeline.storage.locks import hold
    from pipeline.storage.tables import read_table
    from stages.catalogue import declared

    if exclude and exclude.exists():
        raise UsageError(
            f"{exclude} already exists. A new list would not have the captions that the last run has left out. Name a"
            " new file, and add its lines to the list that the run uses."
        )
    run = Run(root)
    run_stage(run, audit, again=True)
    table, commit = read_table(run.layout.audit.path, "audit")
    path = run.layout.decisions
    decisions = latest(read_decisions(path))
    counts = Counter(finding["kind"] for finding in _probable(table, decisions))
    for kind, description in FINDINGS.items():
        if commit.details["scored"] or kind in ("leak", "copy"):
            click.echo(f"{counts[kind]:>7,}  {description}")
    if not commit.details["scored"]:
        click.echo(f"Captions were not checked, because the check needs at least {MIN_PHOTOS} photos with captions.")
    elif run.manifest.n_images < MIN_PHOTOS_FOR_ESTIMATE:
        click.echo(
            f"With fewer than {MIN_PHOTOS_FOR_ESTIMATE:,} photos, more of the listed captions can be right than --rate"
            " says. Look at each listed caption."
        )
    if decisions:
        counts = Counter(decisions.values())
        decided = ", ".join(f"{counts[choice]:,} {choice}" for choice in CHOICES)
        click.echo(f"{len(decisions):>7,}  pairs with a decision, which are not listed again: {decided}")
        if missing := _count_missing(run.manifest, decisions):
            pairs = counted(missing, "right or unsure pair")
            log.warning("The collection no longer has %s of %s. You can delete the rows of these pairs.", pairs, path)
    if exclude:
        with hold(exclude):
            publish_text(exclude, "".join(f"{line}\n" for line in _exclusions(_probable(table, decisions), rate)))
        click.echo(
            f"The list {exclude} was written. Less reliable findings are comments (#) in this list. Check the lines,"
            " and set the key collection.takedown to the path of the list. The next run then leaves out the photos and"
            " captions on the lines without #."
        )
    if run.layout.report.path.exists():
        try:
            run_stage(Run(root), declared()["report"], again=True)
        except IntegrityError as error:  # For example, `remove` has changed an index of the run.
            rerun = shlex.join(["jointspace", "run", str(run.layout.config)])
            log.warning("The report does not show the findings yet: %s Make the report with `%s`.", error, rerun)
        else:
            click.echo(f"The report shows the findings: {run.layout.report.path}")


def _reads(config: "Config", layout: Layout) -> Inputs:
    """Return the inputs: the manifest, image features, and the caption vectors of some text encoders.

    These text encoders have encoded the last chunk of captions, and so probably all captions.
    """
    texts = {encoder.name: layout.sentences(encoder.name) for encoder in config.text_encoders}
    return {
        "manifest": layout.manifest,
        "features": feature_shards([encoder.name for encoder in config.encoders], layout),
        "texts": {name: shards for name, shards in texts.items() if shards.part_record(config.parts - 1).exists()},
    }


@stage(
    version=3,
    keys=lambda config: {
        "normalise": config.image_steps([encoder.name for encoder in config.encoders]),
        "seed": config.seed,
    },
    reads=_reads,
    writes=lambda layout: layout.audit,
    has_rule=False,
)
def audit(run: StageRun, job: Job) -> None:
    """Find near-duplicates among the photos, and captions whose photo fits captions of other photos better.

    Write a table with one row per finding. Captions are only checked if at least MIN_PHOTOS photos have captions.
    """
    import numpy as np
    import pyarrow as pa

    from pipeline.images.copies import MIN_COPY_CORRELATION
    from pipeline.models.linear.cross_fit import MIN_PHOTOS
    from pipeline.storage.tables import write_table

    pairs, correlations = _find_copies(run)
    findings: Iterator[dict[str, Any]] = (
        {"kind": "copy", "image_id": first, "other_image_id": second, "score": score, "threshold": MIN_COPY_CORRELATION}
        for (first, second), score in zip(pairs.tolist(), correlations.tolist(), strict=True)
    )
    texts = run.inputs.all_shards("texts")
    described = len(np.unique(run.manifest.sentence_images)) if texts else 0
    if described >= MIN_PHOTOS:
        findings = chain(findings, worst_captions(*_score_captions(run, pairs)))
    fields = {
        **dict.fromkeys(("kind", "image", "split"), pa.string()),
        **dict.fromkeys(("image_id", "sentence_id", "other_image_id", "rank", "rivals"), pa.int64()),
        "captions": pa.list_(pa.string()),
        **dict.fromkeys(("rather", "other_image", "other_split"), pa.string()),
        **dict.fromkeys(("score", "threshold", "false_discovery_rate"), pa.float64()),
        "reliable": pa.bool_(),
    }
    schema = pa.schema(list(fields.items()))
    blocks = iter(lambda: list(islice(findings, BLOCK_ROWS)), [])
    tables = [pa.Table.from_pylist(list(_name(run, block)), schema) for block in blocks]
    table = pa.concat_tables([schema.empty_table(), *tables])
    write_table(job.path, "audit", table, provenance=job.provenance, details={"scored": described >= MIN_PHOTOS})


def _find_copies(run: Run) -> "tuple[np.ndarray, np.ndarray]":
    """Find the pairs of near-duplicates: photos with similar features of the first image encoder, whose grey thumbnails
    have a correlation of at least MIN_COPY_CORRELATION.

    Return the image_ids (p, 2) of each pair, the lower id first, and the correlations (p,). The pairs are sorted by
    correlation, the greatest first. Features and thumbnails are read block by block.
    """
    import numpy as np

    from pipeline.compute.lazy_rows import DiskRows
    from pipeline.images.copies import MIN_COPY_CORRELATION, SIDE, grey, near_pairs, verify
    from pipeline.images.preprocess import Photograph, Preprocessing
    from pipeline.models.linear.views import normalise
    from pipeline.run.reading.photos import photograph_reader
    from pipeline.storage.features import FeatureRows

    encoder = run.config.encoders[0].name
    # For a single encoder, all items are str. The condition only tells this to the type checker.
    steps = [step for step in run.config.image_steps([encoder]) if isinstance(step, str)]
    features = FeatureRows(run.features, encoder, np.arange(run.manifest.n_images))
    pairs = near_pairs(features, lambda rows: normalise(rows, steps))
    shown = np.unique(pairs)
    thumbnails = DiskRows(SIDE**2)
    reader = photograph_reader(run, run.photographs)
    squashed = Preprocessing(SIDE, None, (0, 0, 0), (1, 1, 1))
    blocks = (shown[start : start + BLOCK_ROWS] for start in range(0, len(shown), BLOCK_ROWS))
    photographs = (Photograph.from_row(row) for block in blocks for row in run.manifest.pick(block))
    for pixels in reader.pixels(photographs, squashed):
        thumbnails.append(grey(pixels).reshape(1, -1))
    correlations = verify(np.searchsorted(shown, pairs), thumbnails)
    order = np.argsort(-correlations, kind="stable")
    order = order[correlations[order] >= MIN_COPY_CORRELATION]
    return pairs[order], correlations[order]


def _score_captions(run: StageRun, copies: "np.ndarray") -> "tuple[Scores, Scores]":
    """Score each photo with all of its captions, and each caption alone, by cross-fitting. Low scores are suspicious.

    `copies` (p, 2) has the image_ids of pairs of near-duplicates. Both images of a pair are in the same fold. Return
    the scores of photos and the scores of captions.
    """
    import numpy as np

    from pipeline.models.linear.cross_fit import TERMS, cross_fit, draw_folds
    from pipeline.models.linear.sets import Restriction
    from pipeline.models.linear.views import ImageView, TextView
    from pipeline.storage.pairs import read_pairs
    from pipeline.storage.texts import open_texts

    config = run.config
    manifest = run.manifest
    features = run.features
    texts = run.inputs.all_shards("texts")
    encoders = tuple(run.inputs.all_shards("features"))
    dims = tuple(features.open(name, 0)["features"].shape[1] for name in encoders)
    view = ImageView(encoders, dims, config.image_steps(encoders))
    vectors = {name: shard.matrix for name, shard in open_texts(texts, 0).items()}
    restriction = Restriction(encoders, dict.fromkeys(texts, 1.0), TERMS)
    text = restriction.text(
        TextView.from_vectors(vectors, {name: config.text_encoder(name).normalise for name in texts})
    )
    folds = draw_folds(copies, manifest.n_images, config.seed)
    by_shard = np.split(folds, manifest.bounds("images")[1:-1])

    def blocks(fold: int) -> Iterator[Any]:
        for block in read_pairs(features, texts, encoders, lambda number: by_shard[number] == fold, BLOCK_ROWS):
            yield replace(block, sentences=restriction.cut(block.sentences))

    return cross_fit(blocks, view, text, runtime.threads(), run.gpu)


def worst_captions(photographs: "Scores", captions: "Scores") -> Iterator[dict[str, Any]]:
    """Yield the findings about captions: photos with all of their captions first, and then single captions.

    `photographs` has the scores of photos and `captions` of single captions. In both groups, the findings are sorted by
    score, the lowest first. All items that are probably wrong are listed, and always at least the MIN_LISTED_CAPTIONS
    items with the lowest scores. In a finding, `threshold` is the greatest score of the items that are probably
    wrong, or -inf if there are none. `false_discovery_rate` is the least estimated share of right items in a list of
    the lowest scores that includes the finding. A finding is `reliable` if this share is at most FALSE_DISCOVERY_RATE.
    Single captions of photos with a reliable finding are left out.
    """
    import numpy as np

    from pipeline.models.linear.cross_fit import PAIR_COLUMNS

    whole: set[int] = set()
    for kind, scores in (("captions", photographs), ("caption", captions)):
        order, rates = scores.lowest()
        reliable = int(np.searchsorted(rates, FALSE_DISCOVERY_RATE, side="right"))
        probable = max(scores.wrong, reliable)
        threshold = scores.scores[order[probable - 1]] if probable else -np.inf
        listed = order[: max(probable, MIN_LISTED_CAPTIONS)]
        for rank, (pair, score) in enumerate(zip(scores.pairs[listed], scores.scores[listed], strict=True)):
            finding = dict(zip(PAIR_COLUMNS, pair.tolist(), strict=True))
            if finding["image_id"] not in whole:
                numbers = {"score": float(score), "threshold": float(threshold)}
                numbers["false_discovery_rate"] = float(rates[rank])
                yield {"kind": kind, **finding, **numbers, "reliable": rank < reliable}
        whole = set(scores.pairs[order[:reliable]][:, 0].tolist())


def _name(run: Run, findings: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:  # Any: rows of the table
    """Yield the findings with the names, splits and captions of their photos added.

    Near-duplicates get the kind `leak` if their splits differ, and otherwise the kind `copy`.
    """
    import numpy as np

    from pipeline.foreign.image_names import listed_name

    manifest = run.manifest
    ids = [finding[column] for finding in findings for column in ("image_id", "other_image_id") if column in finding]
    images = dict(zip(ids, manifest.pick(ids), strict=True))
    owners = manifest.sentence_images
    captions = [_captions_of(finding, owners) for finding in findings]
    rather = [finding["rather"] for finding in findings if "rather" in finding]
    numbers = np.unique(np.array([*chain(*captions), *rather], np.int64))
    texts = dict(zip(numbers.tolist(), manifest.rows("sentences", numbers)["text"].to_pylist(), strict=True))
    for finding, own in zip(findings, captions, strict=True):
        image = images[finding["image_id"]]
        named = {**finding, "image": listed_name(image), "split": image["split"]}
        if "other_image_id" in finding:
            copy = images[finding["other_image_id"]]
            named |= {"other_image": listed_name(copy), "other_split": copy["split"]}
            named["kind"] = "copy" if copy["split"] == image["split"] else "leak"
        if "rather" in finding:
            named["captions"] = [texts[number] for number in own]
            named["rather"] = texts[finding["rather"]]
        yield named


def _captions_of(finding: Mapping[str, Any], owners: "np.ndarray") -> range:  # Any: a row of the table
    """Return the sentence_ids of the captions that a finding is about, or none for near-duplicates.

    `owners` (m,) are the image_ids of all captions.
    """
    if "rather" not in finding:
        return range(0)
    if finding["sentence_id"] >= 0:
        return range(finding["sentence_id"], finding["sentence_id"] + 1)
    first, last = owners.searchsorted([finding["image_id"], finding["image_id"] + 1]).tolist()
    return range(first, last)


def _count_missing(manifest: "Manifest", decisions: "Mapping[Pair, str]") -> int:
    """Count the pairs of photo and caption that were decided to be right or unsure, and are no longer in the manifest.

    Pairs that were decided to be wrong are not counted, because `ingest` counts them. If all captions of a photo were
    decided to be wrong, no pair of this photo is counted."""
    from pipeline.foreign.image_names import listed_name
    from pipeline.storage.decisions import one_line

    wrong = {pair for pair, decision in decisions.items() if decision == "wrong"}
    missing = {pair for pair in decisions.keys() - wrong if (pair[0], "") not in wrong}
    for number in range(manifest.n_shards) if missing else ():
        names = {row["image_id"]: listed_name(row) for row in manifest.table("images", number).to_pylist()}
        sentences = manifest.table("sentences", number).to_pylist()
        missing.difference_update((name, "") for name in names.values())
        missing.difference_update((names[row["image_id"]], one_line(row["text"])) for row in sentences)
    return len(missing)


def _probable(table: "pa.Table", decisions: "Container[Pair | None]") -> Iterator[Mapping[str, Any]]:  # Any: table rows
    """Yield the findings in the table that are near-duplicates, and the captions that are probably wrong. Captions on
    which the user has decided are left out."""
    from pipeline.report.tables import is_probable
    from pipeline.storage.decisions import pair_of

    for batch in table.to_batches(BLOCK_ROWS):
        for finding in filter(is_probable, batch.to_pylist()):
            if pair_of(finding) not in decisions:
                yield finding


def _exclusions(findings: Iterable[Mapping[str, Any]], rate: float) -> Iterator[str]:  # Any: rows of the table
    """Yield the lines of a takedown list. The lines of findings with a false discovery rate above `rate` are comments.

    Of two near-duplicates, the list names the photo whose split is later in SPLITS_BY_PRIORITY or, in the same split,
    the photo with the greater image_id.
    """
    yield "# A run leaves out the photos on lines without #. A line PHOTO TAB CAPTION leaves out this caption only."
    yield f"# On average, at most about {100 * rate:g}% of these captions are right. This estimate assumes that each"
    yield "# wrong caption belongs to another photo at random. Captions with a wrong detail are mostly not found."
    for title, below in groupby(findings, lambda finding: TITLES[finding["kind"]]):
        yield f"# {title}"
        for finding in below:
            mark = "" if (finding["false_discovery_rate"] or 0) <= rate else "# "
            match finding["kind"]:
                case "copy" | "leak":
                    sides = [(finding["split"], finding["image_id"], finding["image"])]
                    sides.append((finding["other_split"], finding["other_image_id"], finding["other_image"]))
                    line = max(sides, key=lambda side: (SPLITS_BY_PRIORITY.index(side[0]), side[1]))[2]
                case "captions":
                    line = f"{mark}{finding['image']}"
                case _:
                    line = f"{mark}{finding['image']}\t{' '.join(finding['captions'][0].split())}"
            yield " ".join(line.splitlines())  # A name with a line break must not add a line.
