"""`audit`: captions that are probably wrong, near copies, and copies in several splits."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.compute import runtime
from pipeline.run import Inputs, Job, Run, stage
from pipeline.run.reading.inputs import feature_shards
from stages.commands import FILE, FOLDER

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from pipeline.config.names import Config
    from pipeline.models.linear.cross_fit import Scores
    from pipeline.run.jobs import StageRun
    from pipeline.run.layout import Layout

KEPT = ("test", "dev", "train", "weak", "gallery")
"""Of copies the one in the first of these splits is kept, and of these the first."""
BLOCK_ROWS = 4096
FEW = 1000
"""Photographs below which the space is too weak for the estimate of wrong captions."""
TITLES = {
    **dict.fromkeys(("leak", "copy"), "Near-duplicates. Of each pair, the photo that stays is not listed."),
    "caption": "Captions that are probably wrong. Remove the # from further lines to leave these out, too.",
    "captions": "Photos whose captions are probably all wrong. Many of these captions are right: look at each photo.",
}
"""Kinds of findings -> the comment above their lines in a takedown list."""
WORST = 50
"""Photographs, and captions, that are listed even if none is probably wrong."""


@click.command("audit")
@click.argument("root", type=FOLDER, metavar="RUN")
@click.option(
    "--exclude", type=FILE, metavar="FILE",
    help="Write a list for the key collection.takedown. Less reliable findings are comments in it.",
)  # fmt: skip
def command(root: Path, exclude: Path | None) -> None:
    """Find wrong captions, near-duplicates and split leakage in a run.

    The command finds captions that probably do not describe their photo, photos that are near-duplicates, and
    near-duplicates in different splits. It writes RUN/audit/audit.parquet with one row per finding, and adds a
    section to the report.
    """
    from pipeline.models.linear.cross_fit import MIN_PHOTOS
    from pipeline.report.tables import FINDINGS
    from pipeline.run.runner import run_stage
    from pipeline.storage.batch import publish_text
    from pipeline.storage.tables import read_table
    from stages.catalogue import declared

    run = Run(root)
    run_stage(run, audit, again=True)
    table, commit = read_table(run.layout.audit.path, "audit")
    counts = Counter(finding["kind"] for finding in _probable(table))
    for kind, description in FINDINGS.items():
        if commit.details["scored"] or kind in ("leak", "copy"):
            click.echo(f"{counts[kind]:>7,}  {description}")
    if not commit.details["scored"]:
        click.echo(f"captions were not checked: that needs {MIN_PHOTOS} photos with captions")
    elif run.manifest.n_images < FEW:
        click.echo(f"with fewer than {FEW:,} photos, many right captions look wrong: check each")
    if exclude:
        publish_text(exclude, "".join(f"{line}\n" for line in _exclusions(_probable(table))))
        click.echo(
            f"wrote {exclude}, in which less reliable findings are comments (#); look through it, then set"
            " collection.takedown to it, and ingest leaves out these photos and captions"
        )
    if run.layout.report.path.exists():
        run_stage(Run(root), declared()["report"], again=True)
        click.echo(f"shown in {run.layout.report.path}")


def _reads(config: "Config", layout: "Layout") -> Inputs:
    """The features of whole photos, and the vectors of captions that the run has."""
    texts = {encoder.name: layout.sentences(encoder.name) for encoder in config.text_encoders}
    return {
        "manifest": layout.manifest,
        "features": feature_shards([encoder.name for encoder in config.encoders], layout),
        "texts": {name: shards for name, shards in texts.items() if shards.part(config.parts - 1).exists()},
    }


@stage(
    version=2,
    keys=lambda config: {
        "normalise": config.image_steps([encoder.name for encoder in config.encoders]),
        "seed": config.seed,
    },
    reads=_reads,
    writes=lambda layout: layout.audit,
    has_rule=False,
)
def audit(run: "StageRun", job: Job) -> None:
    """Compare the photographs with each other, and their captions with those of others."""
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
        findings = chain(findings, _worst_captions(*_score_captions(run, pairs)))
    fields = {
        **dict.fromkeys(("kind", "image", "split"), pa.string()),
        **dict.fromkeys(("image_id", "sentence_id", "other_image_id", "rank", "rivals"), pa.int64()),
        "captions": pa.list_(pa.string()),
        **dict.fromkeys(("rather", "other_image", "other_split"), pa.string()),
        **dict.fromkeys(("score", "threshold"), pa.float64()),
        "reliable": pa.bool_(),
    }
    schema = pa.schema(list(fields.items()))
    blocks = iter(lambda: list(islice(findings, BLOCK_ROWS)), [])
    tables = [pa.Table.from_pylist(list(_name(run, block)), schema) for block in blocks]
    table = pa.concat_tables([schema.empty_table(), *tables])
    write_table(job.path, "audit", table, provenance=job.provenance, details={"scored": described >= MIN_PHOTOS})


def _find_copies(run: Run) -> "tuple[np.ndarray, np.ndarray]":
    """Find the near-duplicates: their image_id (p, 2), the lower first, and their correlations (p,), the greatest
    first. Features and thumbnails are read block by block."""
    import numpy as np

    from pipeline.compute.lazy_rows import DiskRows
    from pipeline.images.copies import MIN_COPY_CORRELATION, SIDE, grey, near_pairs, verify
    from pipeline.images.preprocess import Photograph, Preprocessing
    from pipeline.models.linear.views import normalise
    from pipeline.run.reading.photos import photograph_reader
    from pipeline.storage.features import FeatureRows

    encoder = run.config.encoders[0].name
    steps = [step for step in run.config.image_steps([encoder]) if isinstance(step, str)]  # of one encoder all are
    features = FeatureRows(run.features, encoder, np.arange(run.manifest.n_images))
    pairs = near_pairs(features, lambda rows: normalise(rows, steps))
    shown, thumbnails = np.unique(pairs), DiskRows(SIDE**2)
    reader, squashed = photograph_reader(run, run.photographs), Preprocessing(SIDE, None, (0, 0, 0), (1, 1, 1))
    blocks = (shown[start : start + BLOCK_ROWS] for start in range(0, len(shown), BLOCK_ROWS))
    photographs = (Photograph.from_row(row) for block in blocks for row in run.manifest.pick(block))
    for pixels in reader.pixels(photographs, squashed):
        thumbnails.append(grey(pixels).reshape(1, -1))
    correlations = verify(np.searchsorted(shown, pairs), thumbnails)
    order = np.argsort(-correlations, kind="stable")
    order = order[correlations[order] >= MIN_COPY_CORRELATION]
    return pairs[order], correlations[order]


def _score_captions(run: "StageRun", copies: "np.ndarray") -> "tuple[Scores, Scores]":
    """The scores of photographs with all their captions, and of single captions; `copies` (p, 2) stay together."""
    import numpy as np

    from pipeline.models.linear.cross_fit import TERMS, cross_fit, draw_folds
    from pipeline.models.linear.sets import Restriction
    from pipeline.models.linear.views import ImageView, TextView
    from pipeline.storage.pairs import read_pairs
    from pipeline.storage.texts import open_texts

    config, manifest, features, texts = run.config, run.manifest, run.features, run.inputs.all_shards("texts")
    encoders = tuple(run.inputs.all_shards("features"))
    dims = tuple(features.open(name, 0)["features"].shape[1] for name in encoders)
    view = ImageView(encoders, dims, config.image_steps(encoders))
    vectors = {name: shard.matrix for name, shard in open_texts(texts, 0).items()}
    restriction = Restriction(encoders, dict.fromkeys(texts, 1.0), TERMS)
    text = restriction.text(TextView.of(vectors, {name: config.text_encoder(name).normalise for name in texts}))
    folds = draw_folds(copies, manifest.n_images, config.seed)
    by_shard = np.split(folds, manifest.bounds("images")[1:-1])

    def blocks(fold: int) -> Iterator[Any]:
        for block in read_pairs(features, texts, encoders, lambda number: by_shard[number] == fold, BLOCK_ROWS):
            yield replace(block, sentences=restriction.cut(block.sentences))

    return cross_fit(blocks, view, text, runtime.threads(), run.gpu)


def _worst_captions(photographs: "Scores", captions: "Scores") -> Iterator[dict[str, Any]]:
    """Yields photos with all their captions, then single captions of other photos. The worst come first: all that are
    probably wrong, by a score of at most `threshold`, and WORST at least. The findings with the lowest scores are
    `reliable`. Single captions of photos that are listed reliably are left out."""
    import numpy as np

    from pipeline.models.linear.cross_fit import PAIR_COLUMNS

    whole: set[int] = set()
    for kind, scores in (("captions", photographs), ("caption", captions)):
        order = np.argsort(scores.scores, kind="stable")
        threshold = scores.scores[order[scores.wrong - 1]] if scores.wrong else -np.inf
        likely = scores.likely_wrong
        listed = order[: max(scores.wrong, WORST)]
        for place, (pair, score) in enumerate(zip(scores.pairs[listed], scores.scores[listed], strict=True)):
            finding = dict(zip(PAIR_COLUMNS, pair.tolist(), strict=True))
            if finding["image_id"] not in whole:
                numbers = {"score": float(score), "threshold": float(threshold)}
                yield {"kind": kind, **finding, **numbers, "reliable": place < likely}
        whole = set(scores.pairs[order[:likely]][:, 0].tolist())


def _name(run: Run, findings: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:  # Any: rows of the table
    """Yield the findings with names, splits and texts. Copies in different splits are leaks.

    Each shard of the manifest is read once.
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
    """Return the sentence_ids of the captions that a finding lists; `owners` (m,) are the image_ids of all captions."""
    if "rather" not in finding:
        return range(0)
    if finding["sentence_id"] >= 0:
        return range(finding["sentence_id"], finding["sentence_id"] + 1)
    first, last = owners.searchsorted([finding["image_id"], finding["image_id"] + 1]).tolist()
    return range(first, last)


def _probable(table: "pa.Table") -> Iterator[Mapping[str, Any]]:  # Any: rows of the table
    """Yield the findings that are copies or probably wrong captions."""
    from pipeline.report.tables import is_probable

    for batch in table.to_batches(BLOCK_ROWS):
        yield from filter(is_probable, batch.to_pylist())


def _exclusions(findings: Iterable[Mapping[str, Any]]) -> Iterator[str]:  # Any: rows of the table
    """Yield the lines of a takedown list, in which findings that are not reliable are comments."""
    yield "# `ingest` leaves out what the lines without # name: a photo, or PHOTO TAB CAPTION a single caption."
    for title, below in groupby(findings, lambda finding: TITLES[finding["kind"]]):
        yield f"# {title}"
        for finding in below:
            mark = "" if finding["reliable"] else "# "
            match finding["kind"]:
                case "copy" | "leak":
                    sides = [(finding["split"], finding["image_id"], finding["image"])]
                    sides.append((finding["other_split"], finding["other_image_id"], finding["other_image"]))
                    yield max(sides, key=lambda side: (KEPT.index(side[0]), side[1]))[2]
                case "captions":
                    yield f"{mark}{finding['image']}"
                case "caption":
                    yield f"{mark}{finding['image']}\t{' '.join(finding['captions'][0].split())}"
