"""`train`: trains a neural model on stored features and captions. The epoch that is best on dev is kept."""

import logging
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.errors import UsageError
from pipeline.run import Inputs, Job, Layout, Outside, StageRun, stage
from pipeline.run.reading.inputs import feature_shards, region_shards, sentence_shards

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config.names import Config
    from pipeline.config.text import WordVectorsSettings
    from pipeline.models.joint_model import JointModel
    from pipeline.models.linear.projection import WordStart
    from pipeline.models.linear.views import ImageView
    from pipeline.models.neural.task import RegionView, TrainingPairs
    from pipeline.run.reading.texts import Sentences
    from pipeline.storage.features import FeatureRows
    from pipeline.storage.pairs import SplitPairs
    from pipeline.storage.regions import RegionRows


def _keys(config: "Config", model: str) -> dict[str, object]:
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


def _reads(config: "Config", layout: Layout, model: str) -> Inputs:
    configured = config.model(model)
    start = config.start(model)
    base = config.refitted(model)
    first = config.rate_source(model)
    spec = configured.spec
    words = configured.word_vectors
    source = words.source if spec.words and not start else None
    encoders = configured.text_encoders if spec.starts_from_terms else ()
    return {
        "manifest": layout.manifest,
        "sentences": sentence_shards(configured, layout),
        "features": feature_shards(configured.encoders, layout),
        "regions": region_shards(config.regions.encoders, layout) if spec.regions != "none" else {},
        "vocabulary": layout.token_vocabulary if spec.words else None,
        "labels": layout.labels if spec.trees else None,
        "text_encoders": {name: layout.text_encoder(name) for name in encoders},
        "start": layout.model(start) if start else None,
        "base": layout.model(base) if base else None,
        "rate": layout.model(first) if first else None,
        "corpus_vectors": layout.word_vectors if source == "corpus" else None,
        "words": Outside("words", Path(config.weights_root) / str(words.file)) if source == "file" else None,
    }


@stage(
    version=12,
    gpu=True,
    threads=8,
    memory=6000,
    choices=lambda config: [(name,) for name in config.made_by("train")],
    keys=_keys,
    reads=_reads,
    also=lambda run, model: {"precision": str(run.precision(run.config.model(model).settings.precision))},
    writes=lambda layout, model: layout.model(model),
)
def train(run: StageRun, job: Job, model: str) -> None:
    """Train MODEL: a registered neural model, a variant from the configuration, or a refit of either.

    A killed training is resumed from its last checkpoint.
    """
    from pipeline.models.neural.task import TrainingTask, train
    from pipeline.run.reading.models import describe_model, follow_training
    from pipeline.run.reading.texts import open_sentences

    configured = run.config.model(model)
    base = run.chosen(model)
    spec = configured.spec
    settings = configured.train_settings
    rates = settings.rates
    first = run.config.rate_source(model)
    has_choice = len(rates) > 1
    if has_choice and (source := base or (run.model(first) if first else None)):
        rates = (source.details["training_log"]["chosen"]["learning_rate"],)
    if base:
        # A refit trains for as many epochs as were best on dev. Dev is training data now, so it cannot stop a training.
        settings = settings.model_copy(update={"epochs": base.details["training_log"]["best_epoch"] + 1, "patience": 0})
    sentences = open_sentences(run, model)
    training = _open_pairs(run, model, "train", "dev") if base else _open_pairs(run, model, "train")
    view, region_view = _make_views(run, training)
    task = TrainingTask(
        view,
        train=training.read_pairs(sentences),
        dev=_open_pairs(run, model, "dev").read_pairs(sentences),
        settings=settings,
        seed=configured.seed,
        precision=run.precision(settings.precision),
        train_words=configured.word_vectors.train,
        words=_read_words(run, configured.word_vectors) if spec.words and not spec.starts_from else None,
        start=_read_start(run, model) if spec.starts_from else None,
        region_view=region_view,
        noun_phrase=_read_noun_phrase(run) if spec.sentences == "phrase-trees" else None,
        text_steps={name: run.config.text_encoder(name).normalise for name in configured.text_encoders},
        device=run.device,
    )
    with ExitStack() as followed:
        trials = {}
        for rate in rates:
            own = settings.model_copy(update={"learning_rate": rate})
            part = f"{rate:g}" if len(rates) > 1 else ""
            checkpoint, after_step = followed.enter_context(follow_training(model, own, job, part))
            trials[rate] = train(spec.load(), replace(task, settings=own), checkpoint, after_step)
        rate, trained = max(trials.items(), key=lambda trial: trial[1].score)
        chosen = {**trained.log["chosen"], **({"learning_rate": rate} if has_choice else {})}
        details = {
            **describe_model(run, model),
            "encoders": {name: rows.origin for name, rows in training.features.items()},
            **({"regions": training.regions.encoders} if training.regions is not None else {}),
            **sentences.learned,
            "labels": sentences.labels,
            "training_log": {
                **trained.log,
                "chosen": base.details["training_log"]["chosen"] if base else chosen,
                **({"rates": {f"{one:g}": trial.score for one, trial in trials.items()}} if len(trials) > 1 else {}),
            },
        }
        run.write_model(job, trained.model, details)
    log = logging.getLogger(__name__)
    count = trained.log["pairs"]
    if base:
        log.info(
            "%s was trained on %d pairs for %d epochs, because this number of epochs was best on dev for %s",
            model,
            count,
            settings.epochs,
            base.details["model"],
        )
    else:
        log.info("%s was trained on %d pairs: %s", model, count, chosen)


class OpenedPairs(NamedTuple):
    """The pairs of some splits. `rows` has the ids of the images and captions, `features` the features of the images by
    encoder, and `regions` the regions of the images, or None if the model reads no regions."""

    rows: "SplitPairs"
    features: "dict[str, FeatureRows]"
    regions: "RegionRows | None"

    def read_pairs(self, sentences: "Sentences") -> "TrainingPairs":
        """Return the pairs in the form in which training reads them. `sentences` has the captions of the run, in the
        form that the model reads. Only the captions of these pairs are taken from `sentences`."""
        from pipeline.models.neural.task import TrainingPairs

        rows = self.rows
        forms = sentences.take(rows.sentence_id)
        return TrainingPairs(self.features, forms, rows.owners, rows.sentence_id, self.regions)


def _open_pairs(run: StageRun, model: str, *splits: str) -> OpenedPairs:
    """Open the pairs of some splits, with the features of the model's encoders and, if the model reads regions, the
    regions."""
    from pipeline.run.reading.models import open_region_rows
    from pipeline.storage.features import FeatureRows

    rows = run.pairs(*splits)
    region_encoders = tuple(run.inputs.all_shards("regions"))
    features = {name: FeatureRows(run.features, name, rows.image_id) for name in run.config.model(model).encoders}
    regions = open_region_rows(run, region_encoders, rows.image_id) if region_encoders else None
    return OpenedPairs(rows, features, regions)


def _make_views(run: StageRun, pairs: OpenedPairs) -> "tuple[ImageView, RegionView | None]":
    """Return the image view of whole images, and the view of regions or None if the pairs have no regions."""
    from pipeline.models.linear.views import ImageView
    from pipeline.models.neural.task import RegionView

    config = run.config
    encoders = tuple(pairs.features)
    dims = tuple(block.shape[1] for block in pairs.features.values())
    view = ImageView(encoders, dims, config.image_steps(encoders))
    if pairs.regions is None:
        return view, None
    region_encoders = tuple(pairs.regions.encoders)
    of_regions = ImageView(region_encoders, pairs.regions.dims, config.image_steps(region_encoders))
    return view, RegionView(of_regions, config.regions.geometry)


def _read_noun_phrase(run: StageRun) -> int:
    """Return the number of the label NP (noun phrase) among the phrase labels of the label table.

    Raises UsageError if the table does not have this label.
    """
    from pipeline.storage.commit import read_record

    path = run.inputs.artefact("labels").path
    table = read_record(path)
    if "NP" not in table["phrases"]:
        raise UsageError(
            f"{path} has no label NP, so the captions have no noun phrases. Use a parser that labels noun phrases NP."
        )
    return table["phrases"].index("NP")


def _read_words(run: StageRun, settings: "WordVectorsSettings") -> "np.ndarray":
    """Return the word vectors (V + 1, d) from which training starts, for the V words of the token vocabulary and, in
    the last row, for unknown words. As `settings.source` says, the vectors come from a file, from the stage
    `train-word-vectors`, or are random."""
    from pipeline.models.neural.networks import INITIAL_RANGE
    from pipeline.run.reading.texts import read_corpus_vectors, read_token_vocabulary, read_word_file
    from pipeline.text.wordvectors import random_vectors

    terms = read_token_vocabulary(run)[0].terms
    seed = run.config.seed
    if settings.source == "random":
        return random_vectors(len(terms), settings.dim, INITIAL_RANGE, seed)
    if settings.source == "corpus":
        return read_corpus_vectors(run)
    path = run.inputs.path("words")
    assert path is not None
    return read_word_file(path, settings.format, terms).table(terms, seed)


def _read_start(run: StageRun, model: str) -> "JointModel | WordStart":
    """Return the model from which the training of `model` starts. If `model` reads words and starts from a linear model
    of vectors, return a WordStart: the linear model with a vector for each word of the token vocabulary."""
    from pipeline.models.linear.projection import LinearModel, WordStart
    from pipeline.models.neural.word_towers import SCALE_SAMPLE
    from pipeline.run.reading.texts import open_text_encoder, read_token_vocabulary

    name = run.config.start(model)
    assert name is not None
    start, _ = run.restored(name)
    if not run.config.model(model).spec.starts_from_terms:
        return start
    assert isinstance(start, LinearModel), "models that start from terms start from a linear model"
    words = [*read_token_vocabulary(run)[0].terms, ""]
    encoders = {name: open_text_encoder(run, name) for name in start.text_encoders}
    count = sum(1 for _ in run.manifest.texts_of("train"))
    sample = islice(run.manifest.texts_of("train"), 0, None, max(1, count // SCALE_SAMPLE))
    return WordStart.encode_words(start, encoders, words, list(sample))
