"""`bench`: compares ways to join the frozen encoders of a run."""

import csv
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import UsageError
from pipeline.printable import printable
from pipeline.run import Run
from stages.commands import FOLDER, RUN, lock_output

if TYPE_CHECKING:
    from pipeline.models.bench import Bench

log = logging.getLogger(__name__)
PAIRS = (100, 300, 1000, 3000, 10_000, 25_000)
"""Default numbers of training pairs."""
SEEDS = (0, 1, 2)
"""Default seeds. Each of them draws other training pairs."""


@click.command("bench")
@click.argument("root", metavar="RUN", type=RUN)
@click.option("--encoder", "encoders", multiple=True, help="Image encoder of RUN. Repeat for several. [default: all]")
@click.option(
    "--text-encoder", "text_encoders", multiple=True, help="Text encoder of RUN. Repeat for several. [default: all]"
)
@click.option("--method", "methods", multiple=True, help="Method, such as ncca. Repeat for several. [default: all]")
@click.option("--pairs", multiple=True, type=click.IntRange(min=20), default=PAIRS, show_default=True,
              help="Number of training pairs. Repeat for several.")  # fmt: skip
@click.option("--seed", "seeds", multiple=True, type=click.IntRange(min=0), default=SEEDS, show_default=True,
              help="Seed of a draw of the training pairs. Repeat for several.")  # fmt: skip
@click.option("-o", "--output", type=FOLDER, default="bench", show_default=True, help="Folder of the results.")
@lock_output
def command(
    root: Path,
    encoders: tuple[str, ...],
    text_encoders: tuple[str, ...],
    methods: tuple[str, ...],
    pairs: tuple[int, ...],
    seeds: tuple[int, ...],
    output: Path,
) -> None:
    """Compare ways to join the frozen encoders of a run.

    All methods get the same stored training pairs of RUN, and choose their settings on the first caption of each dev
    photo. Recalls are measured on all test captions, without and with a hubness correction. bench.csv has a line for
    each measurement. bench.html has the means over the seeds, a plot, and paired 95% intervals of the difference from
    the first method without correction.
    """
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.models.bench import METHODS, align_encoders, compare_methods, line_of, summarise
    from pipeline.report.charts import Chart, Line
    from pipeline.report.page import render_page
    from pipeline.storage.batch import publish_text

    run = Run(root)
    methods = methods or tuple(METHODS)
    if unknown := [name for name in methods if name not in METHODS]:
        raise UsageError(f"The method {unknown[0]} is unknown. Choose from {', '.join(METHODS)}.")
    path = output / "bench.csv"
    remedy = "A bench cannot be continued. Measure what is missing with --method, --pairs, --seed and a new --output."
    if path.exists() and path.stat().st_size:
        if not (output / "bench.html").exists():
            raise UsageError(f"{path} has the measurements of a bench that did not finish. {remedy}")
        raise UsageError(f"{path} already exists. Name another folder with --output.")
    bench = _read(run, encoders, text_encoders)
    output.mkdir(parents=True, exist_ok=True)
    measured = []
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            for one in compare_methods(bench, {name: METHODS[name] for name in methods}, pairs, seeds):
                line = line_of(one)
                writer = csv.DictWriter(file, list(line))
                if not measured:
                    writer.writeheader()
                writer.writerow(line)
                file.flush()
                measured.append(one)
                log.info(
                    "%(method)s, hubness %(hubness)s, %(pairs)d pairs, seed %(seed)d: the sum of recalls is %(sum).1f",
                    line,
                )
    except KeyboardInterrupt:
        if measured:
            log.warning("%s has the %d finished measurements. %s", path, len(measured), remedy)
        raise
    rows = summarise(measured, Bootstrap(run.config.evaluate.bootstrap, run.config.seed))
    lines = [Line(row.name, [(pairs, cell.mean) for pairs, cell in row.cells.items()]) for row in rows]
    chart = Chart("Recalls by the number of pairs", "training pairs", "sum of six recalls", lines, logarithmic=True)
    alignments = align_encoders(bench)
    publish_text(output / "bench.html", render_page("bench.html", rows=rows, chart=chart, alignments=alignments))
    counts = " ".join(f"{count:8,}" for count in rows[0].cells)
    click.echo(f"{'Sum of recalls by pairs':30}{counts}")
    for row in rows:
        cells = " ".join(f"{cell.mean:8.1f}" for cell in row.cells.values())
        click.echo(f"{row.name:30}{cells}")
    click.echo(f"wrote {printable(output / 'bench.csv')} and {printable(output / 'bench.html')}")


def _read(run: Run, encoders: tuple[str, ...], text_encoders: tuple[str, ...]) -> "Bench":
    """Read the stored vectors of train, dev and test. Without names in `encoders`, all image encoders of the run are
    read, and without names in `text_encoders`, all text encoders of the run. If a text encoder has several weights, the
    first weight is used.

    Train has one row for each caption, with the features of its photo. Dev has the first caption of each photo, and
    test has all captions. Raises UsageError for an unknown encoder, and InputError if a split has no captions.
    """
    import numpy as np

    from pipeline.config.names import weighted
    from pipeline.models.bench import Bench
    from pipeline.models.linear.tuning import PairArrays
    from pipeline.models.linear.views import ImageView, TextView
    from pipeline.storage.pairs import read_split

    config = run.config
    encoders = tuple(config.encoder(name).name for name in encoders or [one.name for one in config.encoders])
    texts = [config.text_encoder(name) for name in text_encoders] or list(config.text_encoders)
    shards = {text.name: run.layout.sentences(text.name) for text in texts}
    splits = {}
    for split in ("train", "dev", "test"):
        run.pairs(split)  # Raises InputError if the split has no captions.
        rows = read_split(run.features, shards, encoders, split, run.manifest.n_images)
        features = rows.features
        sentences = rows.sentences
        owners = rows.owners
        if split == "train":
            features = {name: block[owners] for name, block in features.items()}
            owners = np.arange(len(owners))
        elif split == "dev":
            first = np.unique(owners, return_index=True)[1]
            sentences = {name: block[first] for name, block in sentences.items()}
            owners = np.arange(len(first))
        splits[split] = PairArrays(features, sentences, owners)
    dims = tuple(splits["train"].features[name].shape[1] for name in encoders)
    view = ImageView(encoders, dims, config.image_steps(encoders))
    steps = {text.name: weighted(text.normalise, text.weight[0]) for text in texts}
    return Bench(view, TextView.from_vectors(splits["train"].sentences, steps), splits)
