"""`rank-phrases`: how well the noun phrases and the regions of a split find each other."""

from pipeline.run import Job, Run, Stage
from stages.inputs import label_names, named


def rank_phrases(run: Run, job: Job, model: str, split: str) -> None:
    """Rank regions for noun phrases and the reverse, and count correct correspondences."""
    import logging

    from pipeline.evaluate.phrases import PhraseSet, RegionSet, measure_phrases
    from pipeline.metrics.retrieval import TIES, Bootstrap
    from pipeline.storage.phrases import PhraseVectors
    from pipeline.storage.records import write_measured
    from stages.boxes import read_gold

    log, settings = logging.getLogger(__name__), run.config
    stored = PhraseVectors(run.layout.phrases(model, split).path)
    phrases = PhraseSet(
        [text.lower() for text in stored.phrases["text"].to_pylist()],
        [head.lower() for head in stored.phrases["head"].to_pylist()],
        stored.phrases["image_id"].to_numpy(),
        stored.phrase_vectors,
    )
    parts = stored.regions["number"].to_numpy() > 0  # region 0 is the whole image
    regions = RegionSet(stored.regions["image_id"].to_numpy()[parts], stored.boxes[parts], stored.region_vectors[parts])
    bootstrap, least_overlap = Bootstrap(settings.evaluate.bootstrap, settings.seed), settings.phrases.least_overlap
    gold = read_gold(run)
    if not gold.labels:
        measured, ranks = {"left_out": "no box of the manifest has a label"}, {}
    else:
        measured, ranks = measure_phrases(phrases, regions, gold, least_overlap, bootstrap)
    about = {"split": split, "ties": TIES, "least_overlap": least_overlap, "bootstrap": vars(bootstrap)}
    write_measured(job.path, {"model": model, **about, **measured}, "ranks", ranks, job.provenance)
    if not gold.labels:
        log.warning("%s: nothing was ranked: %s; add labelled boxes to the collection", model, measured["left_out"])
        return
    log.info(
        "%s: %.1f %% of %d named phrases have the right region, %.1f %% by chance", model,
        measured["correspondence"]["right"], measured["n_named"], measured["correspondence"]["chance"],
    )  # fmt: skip


STAGE = Stage(
    rank_phrases,
    version=3,
    names=("model", "split"),
    choices=lambda config: config.phrase_splits(),
    wanted=lambda config: config.phrase_splits(config.phrases.splits),
    keys=lambda config, model, split: {
        "seed": config.seed,
        "bootstrap": config.evaluate.bootstrap,
        "phrases": config.phrases.model_dump(exclude={"splits"}),
    },
    reads=lambda config, layout, model, split: {
        **named(layout.manifest, layout.phrases(model, split)),
        **label_names(config),
    },
    writes=lambda layout, model, split: layout.phrase_ranking(model, split),
)
