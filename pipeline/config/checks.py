"""Checks of a configuration whose keys are valid, for choices that would fail hours later or have no effect."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pipeline.config.encoders import NetworkEntry
from pipeline.config.models import FragmentTrainSettings, Model, TrainSettings, Variant
from pipeline.config.names import Config
from pipeline.config.registry import GENERATORS, MODELS, TRAININGS, Named, model_spec
from pipeline.config.text import RESERVED
from pipeline.errors import UsageError, did_you_mean


def problems(config: Config) -> list[str]:
    """Return the problems of a configuration as texts.

    Models and generators are only checked if the names, encoders, regions and variants have no problem.
    """
    named = [*_names(config), *_encoders(config), *_text_encoders(config), *_regions(config), *_variants(config)]
    return [*_places(config), *(named or [*_models(config), *_generators(config)])]


def _names(config: Config) -> Iterator[str]:
    """Yield messages about unknown names, names that are used twice, and ensembles with refitted members."""
    models = [*config.single, *config.ensembles]
    encoders = [entry.name for entry in config.encoders]
    texts = [entry.name for entry in config.text_encoders]
    yield from _unknown("regions.encoders", "encoder", config.regions.encoders, encoders)
    yield from _unknown("reproduce.arithmetic", "model", config.reproduce.arithmetic, config.models)
    for where, section in {"fit": config.fit, "study.fit": config.study.fit}.items():
        yield from _unknown(f"{where}.text_weights", "text encoder", section.text_weights, texts)
    for name, variant in {**config.variants, **config.generator_variants}.items():
        where = f"{'variants' if isinstance(variant, Variant) else 'generator_variants'}.{name}"
        yield from _unknown(where, "encoder", variant.encoders or (), encoders)
        if isinstance(variant, Variant):
            yield from _unknown(where, "text encoder", variant.text_encoders or (), texts)
            yield from _unknown(where, "documents", [variant.documents], config.documents)
        if name in {spec.name for spec in (MODELS if isinstance(variant, Variant) else GENERATORS)}:
            kind = "model" if isinstance(variant, Variant) else "generator"
            yield f"{where}: {name} is the name of a registered {kind}. Choose another name"
    for name, ensemble in config.ensembles.items():
        if name in config.single:
            yield f"ensembles.{name}: {name} is the name of another model. Choose another name"
        yield from _unknown(f"ensembles.{name}", "member", ensemble.members, config.single)
        if refits := [
            member for member in ensemble.members if member in config.variants and config.variants[member].refit
        ]:
            yield (
                f"ensembles.{name}: the member {refits[0]} is refitted to dev, on which the weights are chosen. Use the"
                " member without refit, and set `refit: true` for the ensemble"
            )
    registered = [*(spec.name for spec in GENERATORS), *config.generator_variants]
    yield from _unknown("generators", "generator", config.generators, registered)
    yield from _unknown("evaluate.generators", "generator", config.evaluate.generators, config.generators)
    yield from _unknown("phrases.models", "model", config.phrases.models or (), config.models)
    yield from _unknown("models", "model", config.models, models, ". Define other models in variants")


def _unknown(where: str, kind: str, names: Iterable[str], known: Iterable[str], more: str = "") -> Iterator[str]:
    known = list(known)
    for name in names:
        if name not in known:
            listed = f"The known names are {', '.join(known)}" if known else "There is none"
            yield f"{where}: unknown {kind} {name}. {did_you_mean(name, known)}{listed}{more}"


def _encoders(config: Config) -> Iterator[str]:
    yield from _each_once("encoders", (*config.encoders, *config.query_encoders))
    for key, encoders in (("study.encoders", config.study.encoders), ("query_encoders", config.query_encoders)):
        for encoder in encoders:
            if encoder.finetuned or encoder.spec.reads == "regions":
                yield f"{key}: the encoder {encoder.name} is made by another stage. Move it to encoders"
    makers = {entry.name for entry in config.prepared_encoders if entry.spec.reads == "pixels"}
    for encoder in config.every_encoder:
        if encoder.spec.reads == "vectors" and encoder.base is not None and encoder.base not in makers:
            yield from _maker(f"encoder {encoder.name}", encoder.base, "image encoder of pixels", sorted(makers))


def _each_once(kind: str, encoders: Iterable[Named]) -> Iterator[str]:
    names = [encoder.name for encoder in encoders]
    if len(set(names)) < len(names):
        yield f"two {kind} have the same name, among {', '.join(names)}. Give each its own name"


def _maker(where: str, name: str, kind: str, makers: list[str]) -> Iterator[str]:
    remedy = f"Name one of {', '.join(makers)}" if makers else "Add such an encoder to the query encoders"
    yield f"{where}: made_by {name} is not a {kind}. {remedy}"


def _text_encoders(config: Config) -> Iterator[str]:
    every = (*config.text_encoders, *config.query_text_encoders)
    yield from _each_once("text encoders", every)
    makers = [one.name for one in every if one.spec.reads == "texts" and not one.spec.sparse]
    for encoder in every:
        where = f"text encoder {encoder.name}"
        if encoder.name.partition(".")[0].lower() in RESERVED:
            yield f"{where}: another artefact in the folder `text` of a run has this name. Choose another name"
        if encoder.centre != "none" and (encoder.spec.sparse or encoder.spec.reads == "vectors"):
            yield f"{where}: sparse vectors and precomputed vectors cannot be centred. Set centre to none"
        if encoder.base is not None and encoder.base not in makers:
            yield from _maker(where, encoder.base, "dense text encoder", makers)
    for encoder in config.query_text_encoders:
        if encoder.spec.reads == "vectors":
            yield f"query_text_encoders: {encoder.name} cannot encode texts. Move it to text_encoders"


def _regions(config: Config) -> Iterator[str]:
    regions = config.regions
    for encoder in config.encoders:
        pools = encoder.spec.reads == "regions"
        if pools and encoder.base not in regions.encoders:
            yield f"encoder {encoder.name}: {encoder.base} is not in regions.encoders. Add it to regions.encoders"
        if pools and regions.score == "classifier":
            yield f"regions.score: the encoder {encoder.name} pools regions. Set regions.score to proposal"
        if encoder.name not in regions.encoders:
            continue
        if not encoder.spec.regions:
            yield (
                f"regions.encoders: {encoder.name} can only encode whole images. Name an encoder of the kind network,"
                " timm, open_clip or transformers"
            )
        elif regions.features == "roi-align" and not isinstance(encoder, NetworkEntry):
            yield (
                f"regions.features: roi-align needs an encoder of the kind network, but {encoder.name} is not. Set"
                " regions.features to crops"
            )
        elif regions.features == "roi-align" and isinstance(encoder, NetworkEntry) and encoder.layer != "average":
            yield (
                f"regions.features: roi-align needs the layer average, but {encoder.name} has the layer"
                f" {encoder.layer}. Set regions.features to crops"
            )
        elif regions.score == "classifier" and not encoder.finetuned:
            yield (
                f"regions.score: only a finetuned encoder has a classifier. Set weights of {encoder.name} to finetuned"
            )


def _variants(config: Config) -> Iterator[str]:
    """Yield a message for each variant with a setting that the variant's model or generator does not have or use."""
    for name, variant in config.variants.items():
        try:
            words = config.meaning(name, variant).word_vectors
        except UsageError as error:
            yield str(error)
            continue
        spec = model_spec(variant.model)
        shared = {"dim"} if words.source == "corpus" else set()
        for part, used in (
            ("fit", spec.fit_keys),
            ("transfer", TRAININGS[variant.training]),
            ("word_vectors", set(type(words).model_fields) - shared if spec.words and not spec.starts_from else ()),
        ):
            if idle := set(getattr(variant, part)) - set(used):
                by = f"{spec.name} with training {variant.training}"
                yield f"variants.{name}.{part}.{min(idle)} has no effect on {by}. Remove the key"
    for name in config.generator_variants:
        try:
            config.generator(name)
        except UsageError as error:
            yield str(error)


def _models(config: Config) -> Iterator[str]:
    try:
        models = {name: config.model(name) for name in config.every_model()}
    except UsageError as error:
        yield f"models: {error}"
        return
    for name, model in models.items():
        yield from _model(config, name, model)
    yield from _weights("study", config.study_text_weights)
    yield from _phrases(config, models)


def _weights(name: str, weights: Mapping[str, Iterable[float]]) -> Iterator[str]:
    """Yield a message if no text encoder has a positive weight.

    `weights` has the weights to try for each text encoder. `name` is the name of the model, or `study`, for the
    message.
    """
    if not any(weight > 0 for tried in weights.values() for weight in tried):
        yield f"{name}: no text encoder has a positive weight. Give {' or '.join(weights)} a positive weight"


def _model(config: Config, name: str, model: Model) -> Iterator[str]:
    """Yield messages about the model `name` of the configuration."""
    known_texts = [entry.name for entry in config.text_encoders]
    yield from _unknown(f"{name}: fit.text_weights", "text encoder", model.fit.text_weights, known_texts)
    yield from _weights(name, model.text_weights)
    if model.spec.made_by == "combine":
        yield from _members(config, name)
    elif model.training not in model.spec.trainings:
        known = ", ".join(model.spec.trainings)
        yield f"{name}: {model.spec.name} supports training {known}, not {model.training}. Use ncca instead"
    yield from _model_encoders(config, name, model)
    if config.uncorrected(name):
        yield from _correction(config, name, model)
    yield from _model_regions(config, name, model)
    yield from _losses(name, model)


def _model_encoders(config: Config, name: str, model: Model) -> Iterator[str]:
    """Yield messages about encoders that the model cannot use."""
    spec = model.spec
    one_of_each = (len(model.encoders), len(model.text_encoders)) == (1, 1)
    if spec.made_by == "adopt" and (not one_of_each or config.text_encoder(model.text_encoders[0]).spec.sparse):
        named = ", ".join((*model.encoders, *model.text_encoders))
        yield (
            f"{name} needs one image encoder and one dense text encoder, but gets {named}. Define a variant of"
            " zero-shot that names one encoder in `encoders` and one in `text_encoders`"
        )
    whole = [text for text in model.text_encoders if not config.text_encoder(text).spec.adds_words]
    if spec.starts_from_terms and not config.uncorrected(name) and whole:
        yield (
            f"{name} needs text encoders whose vectors are sums over words, but {whole[0]} is not one of them. Define a"
            f" variant of {spec.name} and a variant of {spec.starts_from} whose text_encoders do not have {whole[0]}"
        )


def _correction(config: Config, name: str, model: Model) -> Iterator[str]:
    """Yield the reasons why the scores of the model cannot be corrected for hubs."""
    spec = model.spec
    if not model.unit:
        yield f"{name}: {spec.name} does not compare by cosine, so it cannot be corrected for hubs. Use ncca instead"
    imported = [text for text in model.text_encoders if not config.text_encoder(text).prepared]
    if config.hubness.queries and (spec.trees or (spec.sentences == "vectors" and imported)):
        yield (
            f"{name}: the queries in hubness.queries have no trees and no precomputed vectors, which this model needs."
            " Remove hubness.queries"
        )


def _model_regions(config: Config, name: str, model: Model) -> Iterator[str]:
    """Yield messages about regions that the model needs but does not get, and about regions that the model cannot
    use."""
    needed = model.spec.regions
    described = config.regions.encoders
    without_regions = set(model.encoders) - set(described)
    others = set(described) - set(model.encoders)
    if needed != "none" and not described:
        yield f"{name} needs regions. Name encoders in regions.encoders"
    if needed == "all-encoders" and without_regions:
        yield f"{name} needs regions of all of its encoders. Add {min(without_regions)} to regions.encoders"
    if needed == "its-encoders" and others:
        yield (f"{name} only uses regions of its own encoders. Add {min(others)} to its encoders, or use dvsa instead")


def _losses(name: str, model: Model) -> Iterator[str]:
    """Yield messages about choices of a loss that the model ignores or cannot compute."""
    settings = model.settings
    if not isinstance(settings, TrainSettings):
        return
    if model.spec.own_score and settings.score != "cosine":
        yield f"{name}: {model.spec.name} has a score of its own. Remove score: {settings.score}"
    if model.spec.phrases and (settings.loss == "squared" or settings.negatives == "sampled"):
        yield f"{name} needs negatives from the batch. Set its loss to info-nce or ranking, and negatives to all"


def _members(config: Config, name: str) -> Iterator[str]:
    """Yield messages about members whose scores an ensemble cannot add."""
    members = {member: config.model(member) for member in config.members(name)}
    if others := [member for member, model in members.items() if not model.unit]:
        yield f"{name}: the member {others[0]} does not compare by cosine. Remove this member"
    own = [model.settings.sum for model in members.values() if isinstance(model.settings, FragmentTrainSettings)]
    if len({chosen.endswith("positive") for chosen in own}) > 1:
        yield (
            f"{name} has members with sum: positive or mean-positive, and members with another sum, whose scores cannot"
            " be added. Remove one of the two kinds"
        )


def _phrases(config: Config, models: Mapping[str, Model]) -> Iterator[str]:
    """Yield messages about models of `phrases.models` that cannot compare phrases with regions."""
    for name in config.phrases.models or ():
        model = models[name]
        spec = model.spec
        reads_words = spec.made_by == "train" and spec.sentences == "tokens" and not spec.starts_from
        without_regions = set(model.encoders) - set(config.regions.encoders)
        if config.uncorrected(name) or not (spec.phrases or reads_words):
            yield (
                f"phrases.models: {name} does not have vectors of phrases and regions. Name a model such as hmlstm,"
                " dvsa or lstm"
            )
        elif isinstance(model.settings, FragmentTrainSettings) and model.settings.sum.endswith("positive"):
            yield f"phrases.models: {name} has sum: {model.settings.sum}, so a phrase has no vector. Remove {name}"
        elif without_regions and not spec.multi_vector:
            yield (
                f"phrases.models: {name} needs regions of all of its encoders. Add {min(without_regions)} to"
                " regions.encoders"
            )


def _generators(config: Config) -> Iterator[str]:
    """Yield messages about caption generators.

    The messages are about an input that a generator lacks, a generator in `evaluate.generators` that cannot compute the
    probability of a caption, and a model in `describe.space` that does not compare an image and words by cosine.
    """
    generators = {name: config.generator(name) for name in config.generators}
    models = {name: config.model(name) for name in config.models}
    for name in config.evaluate.generators:
        if not generators[name].spec.likelihood:
            known = ", ".join(spec.name for spec in GENERATORS if spec.likelihood)
            yield f"evaluate.generators: {name} cannot compute the probability of a caption. Name one of {known}"
    aligned = [name for name, model in models.items() if model.spec.aligned]
    for name, generator in generators.items():
        spec = generator.spec
        missing = [encoder for encoder in generator.encoders if encoder not in config.regions.encoders]
        if (spec.regions or config.describe.boxes) and missing:
            yield (
                f"{name} needs regions of each of its encoders. Add {missing[0]} to regions.encoders, or remove it from"
                f" the encoders of {name}"
            )
        if spec.regions and generator.snippets not in aligned:
            known = ", ".join(aligned) or "none"
            where = f"generator_variants.{name}" if name in config.generator_variants else spec.key
            yield (
                f"{where}.snippets: this is not a model among `models` with a vector for every word. Name such a model"
                f" (there are: {known})"
            )
        if spec.treebank and config.language_text.treebank is None:
            yield f"{name} needs a treebank with parts of speech. Name a CoNLL-U file in language_text.treebank"
    if any(generator.settings.in_space for generator in generators.values()):
        space = models.get(config.describe.space)
        yield from _unknown("describe.space", "model", [config.describe.space], models)
        if space and not (space.spec.joint_space and space.unit):
            yield f"describe.space: {space.spec.name} does not compare an image and words by cosine. Use ncca instead"


def _places(config: Config) -> Iterator[str]:
    """Yield a message if the folder of the run is in the folder of the collection, or contains it."""
    run = os.path.realpath(os.path.join(config.results_root, config.name))
    data = os.path.realpath(config.data_root)
    if Path(data).is_relative_to(run):
        yield f"data_root: {config.data_root} is in the folder of the run, {run}. Choose another results_root or name"
    elif Path(run).is_relative_to(data):
        yield (
            f"results_root: the folder of the run, {run}, would be in the collection, data_root {config.data_root}."
            " Choose a results_root outside the collection"
        )
