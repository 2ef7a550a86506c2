"""`rank-phrases`: how well the noun phrases and the regions of a split find each other."""

import logging
from pathlib import Path

import click

from stages import options

log = logging.getLogger(__name__)


@click.command("rank-phrases")
@options.manifest
@options.phrases
@click.option(
    "--boxes", "boxes_path", type=options.PATH,
    help="Boxes with labels, a file or a folder of them, as `extract-regions` reads them. [default: the manifest's]",
)  # fmt: skip
@options.config
@options.output("file", "The ranking, a JSON file.")
def command(
    manifest_folder: Path, phrases_folder: Path, boxes_path: Path | None, config_path: Path | None, output: Path
) -> None:
    """Rank regions for noun phrases and noun phrases for regions, and count right correspondences."""
    from pipeline import config
    from pipeline.evaluate.phrase_ranking import Phrases, Regions, measure_phrases
    from pipeline.metrics.retrieval import TIES, Bootstrap
    from pipeline.storage.atomic import publish_record
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.phrases import PhraseVectors
    from stages.boxes import read_gold

    settings, manifest, stored = config.load(config_path), Manifest(manifest_folder), PhraseVectors(phrases_folder)
    require_same(
        "manifest", {str(manifest_folder): manifest.fingerprint, str(phrases_folder): stored.inputs["manifest"]}
    )
    parts = stored.regions["number"].to_numpy() > 0
    phrases = Phrases(
        [text.lower() for text in stored.phrases["text"].to_pylist()],
        [head.lower() for head in stored.phrases["head"].to_pylist()],
        stored.phrases["image_id"].to_numpy(),
        stored.phrase_vectors,
    )
    regions = Regions(stored.regions["image_id"].to_numpy()[parts], stored.boxes[parts], stored.region_vectors[parts])
    bootstrap, chosen = Bootstrap(settings.evaluate.bootstrap, settings.seed), settings.phrases
    gold = read_gold(settings, manifest, boxes_path)
    about = {"split": stored.split, "ties": TIES, "least_overlap": chosen.least_overlap, "bootstrap": vars(bootstrap)}
    inputs = {**stored.inputs, "phrases": stored.fingerprint}
    digest = fingerprint("phrase-ranking", 1, about, inputs)
    unlabelled = boxes_path is None and not gold.labels
    if unlabelled:  # a collection may have no labels; whoever names boxes wants them ranked
        measured = {"left_out": "no box of the manifest has a label"}
    else:
        measured = measure_phrases(phrases, regions, gold, chosen.least_overlap, bootstrap)
    publish_record(output, {"model": stored.row, **about, **measured, "inputs": inputs, "fingerprint": digest})
    if unlabelled:
        log.warning(
            "%s: nothing is ranked, since %s; give boxes with labels as --boxes", stored.row, measured["left_out"]
        )
        return
    log.info(
        "%s: %.1f %% of %d named phrases have the right region, %.1f %% by chance", stored.row,
        measured["correspondence"]["right"], measured["n_named"], measured["correspondence"]["chance"],
    )  # fmt: skip
