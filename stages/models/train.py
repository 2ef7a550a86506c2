"""`train`: a neural model from stored features and sentences, stopped where dev is best."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.run import Inputs, Job, Outside, Run, Stage
from stages.inputs import named, sentence_shards


def train(run: Run, job: Job, model: str) -> None:
    """Train MODEL: a registered neural model, one of the configuration's variants, or a refit of either.

    A killed training is resumed from its last checkpoint.
    """
    import logging

    from pipeline.models.neural.task import TrainingTask, train
    from stages.texts import open_sentences
    from stages.training import describe_model, follow_training

    settings, base = run.config, run.chosen(model)
    known = settings.model(model)
    spec, own = known.spec, known.settings
    if base:
        # Refit for dev's best number of epochs; dev is training data now, so there is no early stopping.
        own = own.model_copy(update={"epochs": base.details["training_log"]["best_epoch"] + 1, "patience": 0})
    splits = {"train": ("train", "dev") if base else ("train",), "dev": ("dev",)}
    stored = open_sentences(run, model)
    view, region_view, pairs = _read_pairs(run, model, splits, stored)
    features, regions = pairs["train"].features, pairs["train"].regions
    learned = {"encoders": {name: rows.origin for name, rows in features.items()}, **stored.learned}
    if regions is not None:
        learned["regions"] = regions.encoders
    words, start = None, None
    if spec.starts_from:
        start = _read_start(run, model)
    else:
        words = _read_words(run, known.word_vectors)

    task = TrainingTask(
        view, **pairs, text=stored.text, settings=own, seed=known.seed, precision=_precision(run, model),
        train_words=known.word_vectors.train, words=words, start=start, region_view=region_view,
        noun_phrase=_read_noun_phrase(run) if spec.sentences == "phrase-trees" else None,
        device=run.device,
    )  # fmt: skip
    with follow_training(model, own, job) as (checkpoint, after_step):
        trained = train(spec.load(), task, checkpoint, after_step)
        details = {
            **describe_model(run, model),
            **learned,
            "labels": stored.labels,
            "training_log": trained.log | ({"chosen": base.details["training_log"]["chosen"]} if base else {}),
        }
        run.write_model(job, trained.model, details)
    log = logging.getLogger(__name__)
    if base:
        log.info("%s on %d pairs, for %d epochs as %s", model, trained.log["pairs"], own.epochs, base.details["model"])
    else:
        log.info("%s on %d pairs: %s", model, trained.log["pairs"], trained.log["chosen"])


def _precision(run: Run, model: str) -> Any:
    """The dtype of the heaviest products, which `auto` chooses by the device."""
    from pipeline.precision import choose_precision

    return choose_precision(run.config.model(model).settings.precision, run.device)


def _read_pairs(run: Run, model: str, splits: Mapping, stored: Any) -> tuple[Any, Any, dict]:
    """The view of images, that of regions, if `model` needs these, and the pairs of `splits` (use -> splits)."""
    from pipeline.models.linear.views import ImageView
    from pipeline.models.neural.task import RegionView, TrainingPairs
    from pipeline.storage.features import FeatureRows, RegionRows

    settings, known = run.config, run.config.model(model)
    described = settings.regions.encoders if known.spec.regions != "none" else ()
    folders = {name: run.layout.regions(name, settings.regions.reduced).folder for name in described}
    pairs = {}
    for use, names in splits.items():
        found = run.pairs(*names)
        rows = {name: FeatureRows(run.features, name, found.image_id) for name in known.encoders}
        regions = RegionRows(run.manifest, folders, found.image_id) if described else None
        pairs[use] = TrainingPairs(rows, stored.take(found.sentence_id), found.owners, found.sentence_id, regions)
    steps = tuple(settings.image_view.normalise)
    view = ImageView(known.encoders, tuple(block.shape[1] for block in rows.values()), steps)
    if not described:
        return view, None, pairs
    return view, RegionView(ImageView(described, regions.dims, steps), settings.regions.geometry), pairs


def _read_noun_phrase(run: Run) -> int:
    """The number that noun phrases have in the label table."""
    from pipeline.errors import UsageError
    from pipeline.storage.records import read_labels

    path = run.layout.labels.path
    table = read_labels(path)
    if "NP" not in table["phrases"]:
        raise UsageError(f"{path} has no NP; parse with an engine that names noun phrases so")
    return table["phrases"].index("NP")


def _read_words(run: Run, chosen: Any) -> Any:
    """The first word vectors, (V + 1, d): from the file that is `chosen`, learned on the corpus, or drawn."""
    from pipeline.models.neural.networks import INITIAL
    from pipeline.text.wordvectors import random_vectors, read_binary_vectors, read_text_vectors
    from stages.texts import read_corpus_vectors, read_token_vocabulary

    settings, terms = run.config, read_token_vocabulary(run)[0].terms
    if chosen.source == "random":
        return random_vectors(len(terms), chosen.dim, INITIAL, settings.seed)
    if chosen.source == "corpus":
        return read_corpus_vectors(run)
    path, read = _word_file(settings, chosen), read_text_vectors if chosen.format == "text" else read_binary_vectors
    with open(path, "rb") as stream:
        return read(stream, str(path), terms).table(terms, settings.seed)


def _word_file(config, chosen) -> Path:
    return Path(config.weights_root) / chosen.file


def _read_start(run: Run, model: str) -> Any:
    """The model that `model` starts from, with the vectors of every word if it reads words and that one vectors."""
    from pipeline.config.registry.stored import restore, restore_text_encoder
    from pipeline.models.neural.word_towers import SAMPLE, WordStart
    from stages.texts import read_token_vocabulary

    name = run.config.start(model)
    folder, parameters = run.layout.model(name).path, run.model(name)
    start = restore(parameters.details["registered"], parameters.settings, parameters.tensors, folder)
    if run.config.model(model).spec.starts_from_terms:
        words = [*read_token_vocabulary(run)[0].terms, ""]
        stored = {name: run.text_encoder(name) for name in start.text_encoders}
        encoders = {name: restore_text_encoder(one.settings, one.tensors) for name, one in stored.items()}
        texts = list(run.manifest.texts_of("train"))
        start = WordStart.of(start, encoders, words, texts[:: max(1, len(texts) // SAMPLE)])
    return start


def _keys(config, model: str) -> dict:
    known = config.model(model)
    geometry = {"geometry": config.regions.geometry} if known.spec.regions != "none" else {}
    view, words = config.image_view.model_dump(), known.word_vectors.model_dump()
    steps = {name: config.text_encoder(name).normalise for name in known.text_encoders}
    texts = {"text_view": steps} if known.spec.sentences == "vectors" else {}
    about = {"seed": config.seed, "image_view": view, "word_vectors": words, **geometry, **texts}
    return {**about, "model": known.hyperparameters}


def _reads(config, layout, model: str) -> Inputs:
    known, start, base = config.model(model), config.start(model), config.refitted(model)
    spec, source = known.spec, known.word_vectors.source
    found: dict = {**named(layout.manifest, *sentence_shards(known, layout))}
    found |= {f"features/{name}": layout.features(name) for name in known.encoders}
    if spec.regions != "none":
        found |= {f"regions/{name}": layout.regions(name, config.regions.reduced) for name in config.regions.encoders}
    if spec.words:
        found["vocabulary"] = layout.token_vocabulary
    if spec.trees:
        found["labels"] = layout.labels
    if spec.starts_from_terms:
        found |= {f"text_encoders/{name}": layout.text_encoder(name) for name in known.text_encoders}
    if not start and source != "random":
        found["words"] = layout.word_vectors if source == "corpus" else Outside(_word_file(config, known.word_vectors))
    return found | {name: layout.model(one) for name, one in (("start", start), ("chosen", base)) if one}


STAGE = Stage(
    train,
    version=10,
    gpu=True,
    names=("model",),
    choices=lambda config: [(name,) for name in config.made_by("train")],
    keys=_keys,
    reads=_reads,
    also=lambda run, model: {"precision": str(_precision(run, model))},
    writes=lambda layout, model: layout.model(model),
)
