"""Checks of a configuration whose keys are legal one by one, before any job runs."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipeline.config.architectures import require_detector
from pipeline.config.generator_checks import check_generators
from pipeline.config.phrase_checks import check_phrases
from pipeline.config.registry.encoders import TRAINED
from pipeline.config.registry.models import MODELS, model_spec
from pipeline.config.registry.trainings import TRAININGS
from pipeline.config.schema.variants import CSLS, PLAIN, REFIT, Model
from pipeline.config.text_checks import check_text_encoders, check_text_weights, require_documents
from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.config.root import Config


def check(config: "Config") -> None:
    """Raises ValueError, in one sentence, for the first thing that `config` cannot do."""
    _check_names(config)
    _check_encoders(config)
    check_text_encoders(config)
    _check_regions(config)
    try:
        models = {name: config.model(name) for name in config.every_model()}
    except UsageError as error:
        raise ValueError(f"models: {error}") from error
    for name, model in models.items():
        _check_model(config, name, model)
    check_text_weights(config, "study", config.study.fit.text_weights, config.study_text_weights)
    check_generators(config, models)
    check_phrases(config, models)
    _check_parser(config, models.values())


def _check_names(config: "Config") -> None:
    """Raises ValueError, in one sentence, for the first name or variant that is wrong."""
    _check_variants(config)
    _check_ensembles(config)
    for name in config.models:
        if reason := config.why_not(name):
            raise ValueError(f"models: {reason}" if reason.startswith("unknown") else reason)


def _check_variants(config: "Config") -> None:
    registered = {spec.name for spec in MODELS}
    encoders, texts = ([one.name for one in every] for every in (config.encoders, config.text_encoders))
    for name, variant in config.variants.items():
        if name.endswith((REFIT, CSLS, PLAIN)):
            raise ValueError(
                f"variants: {name} ends in a suffix with a meaning (-csls, -refit, -plain); choose another name"
            )
        if name in registered:
            raise ValueError(f"variants: {name} is the name of a registered model; choose another")
        spec = model_spec(variant.model)
        if spec.made_by == "combine":
            raise ValueError(f"variants.{name}: an {spec.name} cannot be a variant; name it in ensembles")
        for what, given, known in (
            ("encoder", variant.encoders, encoders),
            ("text encoder", variant.text_encoders, texts),
        ):
            if unknown := set(given or ()) - set(known):
                raise ValueError(f"variants.{name}: unknown {what} {min(unknown)}; there are {', '.join(known)}")
            if given is not None and len(set(given)) != max(1, len(given)):
                raise ValueError(f"variants.{name}: name at least one {what}, and each once")
        if variant.documents not in config.documents:
            known = ", ".join(config.documents)
            raise ValueError(f"variants.{name}: unknown documents {variant.documents}; there are {known}")
        words = config.model(name).word_vectors
        shared = {"dim", "window", "epochs"} if words.source == "corpus" else set()
        for part, used in (
            ("fit", spec.fit_keys),
            ("transfer", TRAININGS[variant.training]),
            ("word_vectors", set(type(words).model_fields) - shared if spec.words and not spec.starts_from else ()),
        ):
            if idle := set(getattr(variant, part)) - set(used):
                what = f"{spec.name} by training {variant.training}"
                raise ValueError(f"variants.{name}.{part}.{min(idle)} changes nothing for {what}; leave it out")


def _check_ensembles(config: "Config") -> None:
    for name, ensemble in config.ensembles.items():
        if name.endswith((REFIT, CSLS)):
            raise ValueError(
                f"ensembles: {name} ends in a suffix with a meaning (-csls, -refit, -plain); choose another name"
            )
        if name in config.single:
            raise ValueError(f"ensembles: {name} is the name of another model; choose another")
        members = {member: config.name_parts(member) for member in ensemble.members}
        if unknown := [m for m in members if m.removesuffix(CSLS) not in config.single or config.why_not(m)]:
            known = ", ".join(config.single)
            raise ValueError(f"ensembles.{name}: unknown member {unknown[0]}; there are {known}")
        if refits := [member for member, parts in members.items() if parts.refit]:
            raise ValueError(
                f"ensembles.{name}: {refits[0]} has learned from dev, on which weights are chosen; take"
                f" {config.refitted(refits[0])}, and name {name}{REFIT}"
            )
        if len(members) < len(ensemble.members):
            raise ValueError(f"ensembles.{name}: a member is named twice; name each once")
        if not any(ensemble.weights):
            raise ValueError(f"ensembles.{name}: no weight is positive; put one into weights")


def _check_encoders(config: "Config") -> None:
    names = [encoder.name for encoder in (*config.encoders, *config.query_encoders)]
    if len(set(names)) < len(names):
        raise ValueError(f"two encoders of one name among {', '.join(names)}")
    for key, encoders in (("study.encoders", config.study.encoders), ("query_encoders", config.query_encoders)):
        for encoder in encoders:
            if encoder.of is not None or encoder.weights in TRAINED:
                raise ValueError(f"{key}: {encoder.name} is made by another stage; give it among encoders")
    if unknown := config.reproduce.in_place_of.keys() - {encoder.name for encoder in config.encoders}:
        raise ValueError(f"reproduce.in_place_of: {min(unknown)} is not among encoders; name one of them")
    makers = {one.name for one in config.prepared_encoders if one.spec.reads == "pixels"}
    for encoder in config.every_encoder:
        if encoder.made_by not in (None, *makers):
            raise ValueError(
                f"encoder {encoder.name}: made_by {encoder.made_by} is no encoder of photographs; name one of"
                f" {', '.join(sorted(makers)) or 'query_encoders, where there is none'}"
            )


def _check_regions(config: "Config") -> None:
    regions, encoders = config.regions, {encoder.name: encoder for encoder in config.encoders}
    if unknown := set(regions.encoders) - set(encoders):
        raise ValueError(f"regions.encoders: unknown encoder {min(unknown)}; there are {', '.join(encoders)}")
    for encoder in encoders.values():
        if encoder.of is not None and encoder.of not in regions.encoders:
            known = ", ".join(regions.encoders) or "none"
            raise ValueError(f"encoder {encoder.name}: {encoder.of} is not in regions.encoders ({known}); add it")
        if encoder.of is not None and regions.score == "classifier":
            raise ValueError(f"encoder {encoder.name} pools regions; set regions.score to proposal")
    for encoder in map(encoders.__getitem__, regions.encoders):
        if not encoder.spec.regions:
            raise ValueError(f"regions.encoders: {encoder.name} describes whole images only; name a network")
        if regions.features == "roi-align" and encoder.layer != "average":
            raise ValueError(f"regions.features: roi-align needs layer average, not {encoder.layer} of {encoder.name}")
        if regions.score == "classifier" and encoder.weights != "finetuned":
            raise ValueError(
                f"regions.score: finetune makes the classifier; set weights of {encoder.name} to finetuned"
            )
    if regions.encoders and regions.proposals == "faster-rcnn":
        try:
            require_detector(regions.detector.architecture)
        except ValueError as error:
            raise ValueError(f"regions.detector: {error}") from None


def _check_model(config: "Config", name: str, model: Model) -> None:
    spec, described = model.spec, config.regions.encoders
    check_text_weights(config, name, model.fit.text_weights, model.text_weights)
    one_of_each = (len(model.encoders), len(model.text_encoders)) == (1, 1)
    if spec.made_by == "adopt" and not (one_of_each and not config.text_encoder(model.text_encoders[0]).spec.sparse):
        named = ", ".join((*model.encoders, *model.text_encoders))
        raise ValueError(
            f"{name} takes the vectors of one encoder and of one dense text encoder as they are, not of {named}; name"
            " one of each in a variant's encoders and text_encoders"
        )
    require_documents(config, name, model)
    if spec.made_by != "combine":
        _check_training(name, model)
    else:
        _check_members(config, name)
    whole = [one for one in model.text_encoders if not config.text_encoder(one).spec.adds_words]
    if spec.starts_from_terms and not config.scaled(name) and whole:
        raise ValueError(
            f"{name} starts from what each word adds to a sentence's vector, and those of {whole[0]} are not sums of"
            f" words; make it a variant, and {spec.starts_from} another, with text_encoders without {whole[0]}"
        )
    if config.scaled(name) and not model.unit:
        raise ValueError(f"{name}: {spec.name} does not compare by cosine, and cannot be scaled; take ncca")
    if spec.own_score and model.settings.score != "cosine":
        raise ValueError(f"{name}: {spec.name} has a score of its own; leave out score: {model.settings.score}")
    if spec.multi_vector and config.index.on_disk:
        raise ValueError(f"{name} is multi-vector: its lists stay in memory; set index.on_disk to false")
    if spec.regions != "none" and not described:
        raise ValueError(f"{name} needs regions; name their encoders in regions.encoders")
    if spec.regions == "all-encoders" and (missing := set(model.encoders) - set(described)):
        raise ValueError(f"{name} maps images and regions alike; add {min(missing)} to regions.encoders")
    if spec.regions == "all-encoders" and config.regions.reduced:
        raise ValueError(f"{name} maps images and regions alike; set regions.dimensions to null")
    if spec.regions == "its-encoders" and (others := set(described) - set(model.encoders)):
        raise ValueError(f"{name} takes regions of its own encoders; add {min(others)} to them, or take dvsa")
    if spec.phrases and (model.settings.loss == "squared" or model.settings.negatives == "sampled"):
        raise ValueError(f"{name} contrasts within the batch; set its loss to info-nce or ranking, negatives to all")


def _check_training(name: str, model: Model) -> None:
    if model.training in model.spec.trainings:
        return
    if model.spec.trainings == ("target",):
        made = f"{model.spec.name} learns from target pairs, not by training {model.training}; take ncca"
        raise ValueError(f"{name}: {made}")
    raise ValueError(f"{name}: training {model.training} stacks a normalized CCA; give it to model ncca")


def _check_members(config: "Config", name: str) -> None:
    members = {member: config.model(member) for member in config.members(name)}
    if others := [member for member, model in members.items() if not model.unit]:
        raise ValueError(f"{name}: {others[0]} does not compare by cosine; leave it out")
    sums = {model.settings.sum for model in members.values() if model.spec.multi_vector}
    if "positive" in sums and len(sums) > 1:
        raise ValueError(f"{name} joins members that score by words or by positive products, but not both")


def _check_parser(config: "Config", models: Iterable[Model]) -> None:
    parse = config.parse
    trees = any(model.spec.trees for model in models)
    described = config.generators and config.describe.boxes and not config.describe.region_texts
    parsed = trees or config.phrases.models or described
    if parsed and parse.engine == "spacy" and parse.pipeline is None:
        for part, file in parse.treebank.model_dump().items():
            if file is None:
                raise ValueError(f"parse.treebank.{part} is null; name a CoNLL-U file, or set parse.pipeline")
