"""Checks of a configuration whose keys are legal one by one: what would fail, or mean nothing, hours later."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config.encoders import EncoderEntry, NetworkEntry
from pipeline.config.generators import ChosenGenerator
from pipeline.config.models import Model, Variant
from pipeline.config.names import Config
from pipeline.config.registry import GENERATORS, MODELS, TRAININGS, model_spec
from pipeline.config.text import RESERVED
from pipeline.errors import UsageError, meant


def problems(config: Config) -> list[str]:
    """What `config` cannot do, a sentence each. Where names mean nothing, only these are looked at."""
    named = [*_names(config), *_encoders(config), *_text_encoders(config), *_regions(config), *_variants(config)]
    return [*_places(config), *(named or [*_models(config), *_generators(config)])]


def _names(config: Config) -> Iterator[str]:
    """Each list of names that refer to other names."""
    models, encoders = [*config.single, *config.ensembles], [one.name for one in config.encoders]
    texts, fit = [one.name for one in config.text_encoders], [config.fit, config.study.fit]
    yield from _unknown("regions.encoders", "encoder", config.regions.encoders, encoders)
    yield from _unknown("reproduce.in_place_of", "encoder", config.reproduce.in_place_of, encoders)
    for where, one in zip(("fit", "study.fit"), fit, strict=True):
        yield from _unknown(f"{where}.text_weights", "text encoder", one.text_weights, texts)
    for name, variant in {**config.variants, **config.generator_variants}.items():
        where = f"{'variants' if isinstance(variant, Variant) else 'generator_variants'}.{name}"
        yield from _unknown(where, "encoder", variant.encoders or (), encoders)
        if isinstance(variant, Variant):
            yield from _unknown(where, "text encoder", variant.text_encoders or (), texts)
            yield from _unknown(where, "documents", [variant.documents], config.documents)
        if name in {spec.name for spec in (MODELS if isinstance(variant, Variant) else GENERATORS)}:
            yield f"{where}: this is the name of a registered one; choose another"
    for name, ensemble in config.ensembles.items():
        if name in config.single:
            yield f"ensembles.{name}: this is the name of another model; choose another"
        yield from _unknown(f"ensembles.{name}", "member", ensemble.members, config.single)
        if refits := [one for one in ensemble.members if one in config.variants and config.variants[one].refit]:
            yield (
                f"ensembles.{name}: {refits[0]} has learned from dev, on which weights are chosen; take what it refits,"
                " and give the ensemble `refit: true`"
            )
    registered = [*(spec.name for spec in GENERATORS), *config.generator_variants]
    yield from _unknown("generators", "generator", config.generators, registered)
    yield from _unknown("evaluate.generators", "generator", config.evaluate.generators, config.generators)
    yield from _unknown("phrases.models", "model", config.phrases.models or (), config.models)
    yield from _unknown("models", "model", config.models, models, "; write others into variants")


def _unknown(where: str, kind: str, names: Iterable[str], known: Iterable[str], more: str = "") -> Iterator[str]:
    known = list(known)
    for name in names:
        if name not in known:
            there = ", ".join(known) or "none"
            yield f"{where}: unknown {kind} {name}; {meant(name, known)}there are {there}{more}"


def _encoders(config: Config) -> Iterator[str]:
    yield from _each_once("encoders", (*config.encoders, *config.query_encoders))
    for key, encoders in (("study.encoders", config.study.encoders), ("query_encoders", config.query_encoders)):
        for encoder in encoders:
            if encoder.finetuned or encoder.spec.reads == "regions":
                yield f"{key}: {encoder.name} is made by another stage; give it among encoders"
    makers = {one.name for one in config.prepared_encoders if one.spec.reads == "pixels"}
    for encoder in config.every_encoder:
        if encoder.spec.reads == "vectors" and encoder.base not in (None, *makers):
            yield from _maker(f"encoder {encoder.name}", encoder.base, "encoder of photos", sorted(makers))


def _each_once(kind: str, encoders: Iterable[EncoderEntry]) -> Iterator[str]:
    names = [encoder.name for encoder in encoders]
    if len(set(names)) < len(names):
        yield f"two {kind} of one name among {', '.join(names)}"


def _maker(where: str, name: str, kind: str, makers: list[str]) -> Iterator[str]:
    known = ", ".join(makers) or "query encoders, and there is none"
    yield f"{where}: made_by {name} is no {kind}; name one of {known}"


def _text_encoders(config: Config) -> Iterator[str]:
    every = (*config.text_encoders, *config.query_text_encoders)
    yield from _each_once("text encoders", every)
    makers = [one.name for one in every if one.spec.reads == "texts" and not one.spec.sparse]
    for encoder in every:
        where = f"text encoder {encoder.name}"
        if encoder.name.partition(".")[0].lower() in RESERVED:
            yield f"{where}: this is the name of something else among a run's texts; choose another"
        if encoder.centre != "none" and (encoder.spec.sparse or encoder.spec.reads == "vectors"):
            yield f"{where}: vectors that are sparse, or made elsewhere, are not centred; set centre to none"
        if encoder.base not in (None, *makers):
            yield from _maker(where, encoder.base, "dense encoder of texts", makers)
    for encoder in config.query_text_encoders:
        if encoder.spec.reads == "vectors":
            yield f"query_text_encoders: {encoder.name} encodes no text; give it among text_encoders"


def _regions(config: Config) -> Iterator[str]:
    regions = config.regions
    for encoder in config.encoders:
        pools = encoder.spec.reads == "regions"
        if pools and encoder.base not in regions.encoders:
            yield f"encoder {encoder.name}: {encoder.base} is not in regions.encoders; add it"
        if pools and regions.score == "classifier":
            yield f"encoder {encoder.name} pools regions; set regions.score to proposal"
        if encoder.name not in regions.encoders:
            continue
        if not encoder.spec.regions:
            yield f"regions.encoders: {encoder.name} describes whole images only; name a network"
        elif regions.features == "roi-align" and not isinstance(encoder, NetworkEntry):
            yield f"regions.features: roi-align needs a network of torchvision's, not {encoder.name}; choose crops"
        elif regions.features == "roi-align" and isinstance(encoder, NetworkEntry) and encoder.layer != "average":
            yield f"regions.features: roi-align needs layer average, not {encoder.layer} of {encoder.name}"
        elif regions.score == "classifier" and not encoder.finetuned:
            yield f"regions.score: finetune makes the classifier; set weights of {encoder.name} to finetuned"


def _variants(config: Config) -> Iterator[str]:
    """Settings that a variant's model, or generator, does not have or does not use."""
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
                by = f"{spec.name} by training {variant.training}"
                yield f"variants.{name}.{part}.{min(idle)} changes nothing for {by}; leave it out"
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
    if not any(weight > 0 for tried in weights.values() for weight in tried):
        yield f"{name}: no text encoder has a positive weight; give one to {' or '.join(weights)}"


def _model(config: Config, name: str, model: Model) -> Iterator[str]:
    spec, described = model.spec, config.regions.encoders
    texts = [entry.name for entry in config.text_encoders]
    yield from _unknown(f"{name}: fit.text_weights", "text encoder", model.fit.text_weights, texts)
    yield from _weights(name, model.text_weights)
    if spec.made_by == "combine":
        yield from _members(config, name)
    elif model.training not in spec.trainings:
        known = ", ".join(spec.trainings)
        yield f"{name}: {spec.name} learns by training {known}, not {model.training}; take ncca"
    one_of_each = (len(model.encoders), len(model.text_encoders)) == (1, 1)
    if spec.made_by == "adopt" and (not one_of_each or config.text_encoder(model.text_encoders[0]).spec.sparse):
        named = ", ".join((*model.encoders, *model.text_encoders))
        yield (
            f"{name} takes the vectors of one encoder and of one dense text encoder as they are, not of {named}; name"
            " one of each in a variant's encoders and text_encoders"
        )
    whole = [one for one in model.text_encoders if not config.text_encoder(one).spec.adds_words]
    if spec.starts_from_terms and not config.uncorrected(name) and whole:
        yield (
            f"{name} starts from what each word adds to a sentence's vector, and those of {whole[0]} are not sums of"
            f" words; make it a variant, and {spec.starts_from} another, with text_encoders without {whole[0]}"
        )
    if config.uncorrected(name) and not model.unit:
        yield f"{name}: {spec.name} does not compare by cosine, and cannot be corrected for hubs; take ncca"
    if config.hubness_method(name) == "dual-softmax" and spec.multi_vector:
        yield f"{name}: {spec.name} does not compare images with images, as dual-softmax does; take sinkhorn"
    if config.hubness.queries and config.uncorrected(name):
        imported = [text for text in model.text_encoders if not config.text_encoder(text).prepared]
        if spec.trees or (spec.sentences == "vectors" and imported):
            yield f"{name}: queries of hubness.queries have no trees and no imported vectors; leave them out"
    if spec.own_score and model.settings.score != "cosine":
        yield f"{name}: {spec.name} has a score of its own; leave out score: {model.settings.score}"
    if spec.regions != "none" and not described:
        yield f"{name} needs regions; name their encoders in regions.encoders"
    if spec.regions == "all-encoders" and (missing := set(model.encoders) - set(described)):
        yield f"{name} maps images and regions alike; add {min(missing)} to regions.encoders"
    if spec.regions == "its-encoders" and (others := set(described) - set(model.encoders)):
        yield f"{name} takes regions of its own encoders; add {min(others)} to them, or take dvsa"
    if spec.phrases and (model.settings.loss == "squared" or model.settings.negatives == "sampled"):
        yield f"{name} contrasts within the batch; set its loss to info-nce or ranking, negatives to all"


def _members(config: Config, name: str) -> Iterator[str]:
    members = {member: config.model(member) for member in config.members(name)}
    if others := [member for member, model in members.items() if not model.unit]:
        yield f"{name}: {others[0]} does not compare by cosine; leave it out"
    sums = {model.settings.sum for model in members.values() if model.spec.multi_vector}
    if "positive" in sums and len(sums) > 1:
        yield f"{name} joins members that score by words or by positive products, but not both"


def _phrases(config: Config, models: Mapping[str, Model]) -> Iterator[str]:
    for name in config.phrases.models or ():
        spec, own = models[name].spec, models[name].encoders
        reads_words = spec.made_by == "train" and spec.sentences == "tokens" and not spec.starts_from
        if config.uncorrected(name) or not (spec.phrases or reads_words):
            yield f"phrases.models: {name} has no vectors of phrases and regions; take one such as hmlstm, dvsa or lstm"
        elif spec.multi_vector and models[name].settings.sum == "positive":
            yield f"phrases.models: {name} adds up positive products, so a phrase has no vector; leave it out"
        elif missing := set(() if spec.multi_vector else own) - set(config.regions.encoders):
            yield f"phrases.models: {name} looks at regions as images; add {min(missing)} to regions.encoders"


def _generators(config: Config) -> Iterator[str]:
    generators = {name: config.generator(name) for name in config.generators}
    for name in config.evaluate.generators:
        if not generators[name].spec.likelihood:
            known = ", ".join(spec.name for spec in GENERATORS if spec.likelihood)
            yield f"evaluate.generators: {name} does not say how probable a sentence is; name one of {known}"
    models: dict[str, Any] = {name: config.model(name) for name in config.models}
    for name, generator in generators.items():
        yield from _generator(config, models, name, generator)
    if any(one.settings.in_space for one in generators.values()):
        space = models.get(config.describe.space)
        yield from _unknown("describe.space", "model", [config.describe.space], models)
        if space and not (space.spec.joint_space and space.unit):
            yield f"describe.space: {space.spec.name} has no cosine of an image and words; take one such as ncca"


def _generator(config: Config, models: Mapping[str, Any], name: str, generator: ChosenGenerator) -> Iterator[str]:
    spec = generator.spec
    missing = [one for one in generator.encoders if one not in config.regions.encoders]
    if (spec.regions or config.describe.boxes) and missing:
        yield f"{name} takes regions of each of its encoders; add {missing[0]} to regions.encoders, or leave it out"
    aligned = [one for one in models if models[one].spec.aligned]
    if spec.regions and generator.settings.snippets not in aligned:
        known = ", ".join(aligned) or "none"
        where = f"generator_variants.{name}" if name in config.generator_variants else spec.key
        yield f"{where}.snippets: not a model in models with a vector for every word ({known}); name one"
    if spec.treebank and config.language_text.treebank is None:
        yield f"{name} needs parts of speech; name a CoNLL-U file in language_text.treebank"


def _places(config: Config) -> Iterator[str]:
    """Where the run and its collection lie: not in each other."""
    run, data = map(os.path.realpath, (os.path.join(config.results_root, config.name), config.data_root))
    if Path(data).is_relative_to(run):
        yield f"data_root: {config.data_root} lies in the run's own folder {run}; choose another results_root or name"
    elif Path(run).is_relative_to(data):
        yield (
            f"results_root: the run's folder {run} would lie in the collection, data_root {config.data_root}; choose a"
            " results_root outside of it"
        )
