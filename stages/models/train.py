"""`train`: a neural model from stored features and sentences, stopped where dev is best."""

import logging
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import UsageError
from pipeline.run import Inputs, Job, Outside, Run, stage
from pipeline.run.reading.inputs import region_shards, sentence_shards

if TYPE_CHECKING:
    from pipeline.run.reading.texts import Sentences


def _word_file(config, settings: Any) -> Path:
    return Path(config.weights_root) / settings.file


def _keys(config, model: str) -> dict:
    configured = config.model(model)
    keys = {
        "seed": config.seed,
        "image_view": {"normalise": config.image_steps(configured.encoders)},
        "word_vectors": configured.word_vectors.model_dump(),
        "model": configured.hyperparameters,
    }
    if configured.spec.regions != "none":
        keys["geometry"] = config.regions.geometry
    if configured.spec.sentences == "vectors":
        keys["text_view"] = {name: config.text_encoder(name).normalise for name in configured.text_encoders}
    return keys


def _reads(config, layout, model: str) -> Inputs:
    configured, start, base = config.model(model), config.start(model), config.refitted(model)
    spec, words = configured.spec, configured.word_vectors
    read = [layout.manifest, *sentence_shards(configured, layout), *map(layout.features, configured.encoders)]
    read += region_shards(config, layout) if spec.regions != "none" else []
    read += [layout.token_vocabulary] if spec.words else []
    read += [layout.labels] if spec.trees else []
    read += map(layout.text_encoder, configured.text_encoders) if spec.starts_from_terms else []
    read += [layout.model(name) for name in (start, base) if name]
    if start or words.source == "random":
        return read
    if words.source == "corpus":
        return [*read, layout.word_vectors]
    return [*read, Outside("words", _word_file(config, words))]


@stage(
    version=12,
    gpu=True,
    choices=lambda config: [(name,) for name in config.made_by("train")],
    keys=_keys,
    reads=_reads,
    also=lambda run, model: {"precision": str(run.precision(run.config.model(model).settings.precision))},
    writes=lambda layout, model: layout.model(model),
)
def train(run: Run, job: Job, model: str) -> None:
    """Train MODEL: a registered neural model, a variant from the configuration, or a refit of either.

    A killed training is resumed from its last checkpoint.
    """
    from pipeline.models.neural.task import TrainingTask, train
    from pipeline.run.reading.models import describe_model, follow_training
    from pipeline.run.reading.texts import open_sentences

    configured, base = run.config.model(model), run.chosen(model)
    spec, settings = configured.spec, configured.settings
    if base:
        # Refit for dev's best number of epochs; dev is training data now, so there is no early stopping.
        settings = settings.model_copy(update={"epochs": base.details["training_log"]["best_epoch"] + 1, "patience": 0})
    splits = {"train": ("train", "dev") if base else ("train",), "dev": ("dev",)}
    sentences = open_sentences(run, model)
    view, region_view, pairs = _read_pairs(run, model, splits, sentences)
    features, regions = pairs["train"].features, pairs["train"].regions
    task = TrainingTask(
        view,
        **pairs,
        settings=settings,
        seed=configured.seed,
        precision=run.precision(settings.precision),
        train_words=configured.word_vectors.train,
        words=None if spec.starts_from else _read_words(run, configured.word_vectors),
        start=_read_start(run, model) if spec.starts_from else None,
        region_view=region_view,
        noun_phrase=_read_noun_phrase(run) if spec.sentences == "phrase-trees" else None,
        device=run.device,
    )
    with follow_training(model, settings, job) as (checkpoint, after_step):
        trained = train(spec.load(), task, checkpoint, after_step)
        details = {
            **describe_model(run, model),
            "encoders": {name: rows.origin for name, rows in features.items()},
            **({"regions": regions.encoders} if regions is not None else {}),
            **sentences.learned,
            "labels": sentences.labels,
            "training_log": trained.log | ({"chosen": base.details["training_log"]["chosen"]} if base else {}),
        }
        run.write_model(job, trained.model, details)
    log, count = logging.getLogger(__name__), trained.log["pairs"]
    if base:
        log.info("%s on %d pairs, for %d epochs as %s", model, count, settings.epochs, base.details["model"])
    else:
        log.info("%s on %d pairs: %s", model, count, trained.log["chosen"])


def _read_pairs(
    run: Run, model: str, splits: Mapping[str, tuple[str, ...]], sentences: "Sentences"
) -> tuple[Any, Any, dict[str, Any]]:
    """The view of images, that of regions, if `model` needs these, and the pairs of `splits` (use -> splits)."""
    from pipeline.models.linear.views import ImageView
    from pipeline.models.neural.task import RegionView, TrainingPairs
    from pipeline.run.reading.models import open_region_rows
    from pipeline.storage.features import FeatureRows

    config, configured = run.config, run.config.model(model)
    region_encoders = config.regions.encoders if configured.spec.regions != "none" else ()
    pairs = {}
    for use, names in splits.items():
        rows = run.pairs(*names)
        features = {name: FeatureRows(run.features, name, rows.image_id) for name in configured.encoders}
        regions = open_region_rows(run, region_encoders, rows.image_id) if region_encoders else None
        forms = sentences.take(rows.sentence_id)
        pairs[use] = TrainingPairs(features, forms, rows.owners, rows.sentence_id, regions)
    dims = tuple(block.shape[1] for block in features.values())
    view = ImageView(configured.encoders, dims, config.image_steps(configured.encoders))
    if not region_encoders:
        return view, None, pairs
    of_regions = ImageView(region_encoders, regions.dims, config.image_steps(region_encoders))
    return view, RegionView(of_regions, config.regions.geometry), pairs


def _read_noun_phrase(run: Run) -> int:
    """The number that noun phrases have in the label table."""
    from pipeline.storage.commit import read_record

    path = run.layout.labels.path
    table = read_record(path)
    if "NP" not in table["phrases"]:
        raise UsageError(f"{path} has no NP; use a parser that labels noun phrases NP")
    return table["phrases"].index("NP")


def _read_words(run: Run, settings: Any) -> Any:
    """The first word vectors, (V + 1, d): from a file, learned on the corpus, or drawn, as `settings` say."""
    from pipeline.models.neural.networks import INITIAL
    from pipeline.run.reading.texts import read_corpus_vectors, read_token_vocabulary, read_word_file
    from pipeline.text.wordvectors import random_vectors

    terms, seed = read_token_vocabulary(run)[0].terms, run.config.seed
    if settings.source == "random":
        return random_vectors(len(terms), settings.dim, INITIAL, seed)
    if settings.source == "corpus":
        return read_corpus_vectors(run)
    return read_word_file(_word_file(run.config, settings), settings.format, terms).table(terms, seed)


def _read_start(run: Run, model: str) -> Any:
    """The model that `model` starts from, with the vectors of every word if it reads words and that one vectors."""
    from pipeline.models.neural.word_towers import SAMPLE, WordStart
    from pipeline.run.reading.texts import open_text_encoder, read_token_vocabulary

    start, _ = run.restored(run.config.start(model))
    if not run.config.model(model).spec.starts_from_terms:
        return start
    words = [*read_token_vocabulary(run)[0].terms, ""]
    encoders = {name: open_text_encoder(run, name) for name in start.text_encoders}
    count = sum(1 for _ in run.manifest.texts_of("train"))
    sample = islice(run.manifest.texts_of("train"), 0, None, max(1, count // SAMPLE))
    return WordStart.of(start, encoders, words, list(sample))
