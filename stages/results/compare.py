"""`compare`: compares the models of several runs."""

import csv
import logging
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import InputError, UsageError
from pipeline.printable import printable
from pipeline.run import Run
from stages.commands import PATH, lock_output

if TYPE_CHECKING:
    from pipeline.report.tables import ComparedSystem

log = logging.getLogger(__name__)


@click.command("compare")
@click.argument("runs", metavar="RUN [RUN|TABLE.csv]...", type=PATH, nargs=-1, required=True)
@click.option("-o", "--output", type=PATH, default="compare.html", show_default=True, help="The HTML page to write.")
@click.option("--split", default="test", show_default=True, help="Split whose evaluations are compared.")
@click.option("--protocol", default="all-sentences", show_default=True, help="Protocol of the evaluations.")
@lock_output
def command(runs: tuple[Path, ...], output: Path, split: str, protocol: str) -> None:
    """Compare the models of runs with confidence intervals.

    The command shows the recalls with their intervals, and also writes them as an HTML page. All models are compared
    with the best model of the first RUN. Several seeds of a model are one system. A CSV table adds published
    results: it has the column model and some of the columns image_to_sentence_recall@1, @5 and @10, and
    sentence_to_image_recall@1, @5 and @10, in percent.
    """
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.report.page import compared_as_text, render_page
    from pipeline.report.tables import best_model, compare_systems, measured_system, merge_seed_systems
    from pipeline.storage.batch import publish_text
    from pipeline.storage.records import read_measured, read_summary

    systems = []
    bootstrap = None
    best = None
    tested: dict[Path, set[str]] = {}
    learned: dict[Path, set[str]] = {}
    for number, path in enumerate(runs):
        if any(path.resolve() == other.resolve() for other in runs[:number]):
            raise UsageError(f"{path} is given twice. A run cannot be compared with itself, so name each run once.")
        if path.suffix == ".csv":
            systems += _read_figures(path)
            continue
        run = Run(path)
        summary = read_summary(run.layout.summary.path) if run.layout.summary.commit.exists() else []
        evaluations = [value for value in summary if (value["split"], value["protocol"]) == (split, protocol)]
        if not evaluations:
            measured = sorted({f"--split {value['split']} --protocol {value['protocol']}" for value in summary})
            remedy = (
                f"It has these: {', '.join(measured)}." if measured else "`jointspace run CONFIG` evaluates models."
            )
            raise InputError(f"{path} has no evaluation with --split {split} --protocol {protocol}. {remedy}")
        if bootstrap is None:
            bootstrap = Bootstrap(run.config.evaluate.bootstrap, run.config.seed)
            best = best_model(summary, [evaluation["model"] for evaluation in evaluations]), str(path)
        photos = run.manifest.rows("images", run.pairs(split).image_id)["sha256"].to_pylist()
        tested[path], learned[path] = set(photos), _learned_photos(run)
        for evaluation in evaluations:
            ranks = read_measured(run.layout.evaluation(evaluation["model"], split, protocol).path, "ranks")
            systems.append(measured_system(str(path), evaluation, ranks, photos))
    if bootstrap is None:
        raise UsageError("Give at least one run, as in: jointspace compare results/demo published.csv")
    systems.sort(key=lambda system: (system.name, system.source) != best)
    systems = merge_seed_systems(systems)
    rows = compare_systems(systems, bootstrap)
    warnings = [
        f"{count:,} of {len(tested[one]):,} {split} photos of {one} are training photos of {other}. The two runs"
        " split the photos differently, so their recalls cannot be compared."
        for one, other in permutations(tested, 2)
        if (count := len(tested[one] & learned[other]))
    ]
    about = {"rows": rows, "reference": systems[0], "split": split, "protocol": protocol, "warnings": warnings}
    publish_text(output, render_page("compared.html", **about))
    click.echo(compared_as_text(rows))
    click.echo(f"The page {printable(output)} was written, and has the same figures.")
    for warning in warnings:
        log.warning(warning)


def _learned_photos(run: Run) -> set[str]:
    """Return the SHA-256 of each photo of the splits on which the models of the run are trained. These splits are
    train, dev if the run has a refit, and auxiliary.splits if a model is trained on weak texts."""
    import numpy as np

    config = run.config
    splits = ["train"]
    models = config.every_model()
    if any(map(config.refits, models)):
        splits.append("dev")
    if any(config.ensemble(name) is None and config.model(name).training != "target" for name in models):
        splits += config.auxiliary.splits
    return set(run.manifest.images["sha256"].filter(np.isin(run.manifest.splits.astype(str), splits)).to_pylist())


def _read_figures(path: Path) -> "list[ComparedSystem]":
    """Read the systems of a CSV table of published results.

    A cell is a recall in percent. A cell that is empty or `-` stands for an unknown recall, which becomes None. Raises
    InputError if the file cannot be read, if the column `model` or all columns of recalls are missing, if a row has no
    name, or if a cell is not a recall. The message about a row has its line number.
    """
    from pipeline.report.tables import HEADINGS, ComparedSystem

    systems = []
    line = 1
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            table = csv.DictReader(lines)
            names = table.fieldnames or ()
            if "model" not in names or not set(HEADINGS) & set(names):
                raise InputError(f"{path} needs the column model and at least one of {', '.join(HEADINGS)}.")
            for values in table:
                line = table.line_num
                cells = [(values.get(name) or "-").strip() for name in HEADINGS]
                recalls = [None if cell == "-" else float(cell) for cell in cells]
                if not values["model"] or not all(recall is None or 0 <= recall <= 100 for recall in recalls):
                    raise ValueError
                systems.append(ComparedSystem(values["model"], path.name, recalls))
    except (ValueError, csv.Error):
        raise InputError(
            f"{path}, line {line}: a row needs a name, and its other cells are recalls in percent or -. Save the"
            " table as UTF-8."
        ) from None
    except OSError as error:
        raise InputError(f"jointspace cannot read {path} ({error.strerror}). Give another table.") from error
    return systems
