"""What a configuration cannot do although each of its keys is legal: said before any job runs, as ValueError."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipeline.config.architectures import HIDDEN_LAYERS, WITHOUT_MAPS, require_detector, require_network
from pipeline.config.images import Encoder
from pipeline.config.models import Variant
from pipeline.errors import UsageError
from pipeline.specs import (
    BY_DISTANCE,
    COMBINED,
    PHRASAL,
    REGION_GENERATORS,
    REGIONAL,
    SETS,
    SPACE_GENERATORS,
    STACKING,
    TRANSFERRING,
    TREES,
)

if TYPE_CHECKING:
    from pipeline.config.root import Config


def check(config: "Config") -> None:
    """Raises ValueError, in one sentence, for the first thing that `config` cannot do."""
    _check_encoders(config)
    _check_regions(config)
    try:
        rows = {name: config.row(name) for name in config.every_row()}
    except UsageError as error:
        raise ValueError(f"models: {error}") from error
    for name, row in rows.items():
        _check_row(config, name, row)
    _check_generators(config, rows)
    _check_parser(config, rows.values())


def _check_encoders(config: "Config") -> None:
    names = [encoder.name for encoder in config.encoders]
    if len(set(names)) < len(names):
        raise ValueError(f"two encoders of one name among {', '.join(names)}")
    for encoder in (*config.encoders, *config.study.encoders):
        if encoder.architecture == "standard":
            if encoder.weights == "finetuned":
                raise ValueError(f"encoder {encoder.name}: standard features are not finetuned; give no `weights`")
        elif encoder.of is None:
            _check_network(encoder)
    for encoder in config.study.encoders:
        if encoder.of is not None or encoder.weights == "finetuned":
            raise ValueError(f"study.encoders: {encoder.name} is made by another stage; give it among encoders")


def _check_network(encoder: Encoder) -> None:
    try:
        require_network(encoder.architecture)
    except ValueError as error:
        raise ValueError(f"encoder {encoder.name}: {error}") from None
    hidden = encoder.layer != "average"
    if hidden and not encoder.architecture.startswith(HIDDEN_LAYERS):
        raise ValueError(
            f"encoder {encoder.name}: {encoder.architecture} has no layer {encoder.layer}, only AlexNet and VGG do; set"
            " layer to average"
        )
    if not hidden and encoder.architecture.startswith(WITHOUT_MAPS):
        raise ValueError(
            f"encoder {encoder.name}: {encoder.architecture} has no map of activations to average; choose a"
            " convolutional network"
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
        if encoder.of is not None:
            raise ValueError(f"regions.encoders: {encoder.name} pools regions and describes none; leave it out")
        if encoder.architecture == "standard":
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


def _check_row(config: "Config", name: str, row: Variant) -> None:
    if row.model not in COMBINED:
        _check_training(name, row)
    else:
        _check_members(config, name)
    if config.scaled(name) and row.model in BY_DISTANCE:
        raise ValueError(f"{name}: {row.model} compares by distance, and cannot be scaled; take ncca")
    of_sets = row.model in (*SETS, "fragment-ensemble")
    if of_sets and config.index.on_disk:
        raise ValueError(f"{name} has fragments, whose lists stay in memory; set index.on_disk to false")
    if row.model not in REGIONAL:
        return
    described = config.regions.encoders
    if not described:
        raise ValueError(f"{name} looks at regions; name the encoders of these in regions.encoders")
    if row.model in PHRASAL and (missing := set(row.encoders) - set(described)):
        raise ValueError(f"{name} maps images and regions alike; add {min(missing)} to regions.encoders")
    if row.model == "fragments" and (others := set(described) - set(row.encoders)):
        raise ValueError(f"{name} takes regions of its own encoders; add {min(others)} to them, or take dvsa")
    if row.model in PHRASAL:
        own = config.own_section(row.model)
        if own["loss"] == "squared" or own["negatives"] == "sampled":
            raise ValueError(
                f"{row.model} contrasts within the batch; set its loss to info-nce or ranking, negatives to all"
            )


def _check_training(name: str, row: Variant) -> None:
    if row.training == "target":
        return
    if row.model not in TRANSFERRING:
        raise ValueError(f"{name}: {row.model} learns from target pairs, not by training {row.training}; take ncca")
    if row.training in STACKING and row.model in BY_DISTANCE:
        raise ValueError(f"{name}: training {row.training} stacks a normalized CCA; give it to model ncca")


def _check_members(config: "Config", name: str) -> None:
    members = {member: config.row(member).model for member in config.members(name)}
    if distant := [member for member, model in members.items() if model in BY_DISTANCE]:
        raise ValueError(f"{name}: {distant[0]} scores by distance, not by inner products; leave it out")
    sums = {config.own_section(model)["sum"] for model in members.values() if model in SETS}
    if "positive" in sums and len(sums) > 1:
        raise ValueError(f"{name} joins members that score by words or by positive products, but not both")


def _check_generators(config: "Config", rows: dict[str, Variant]) -> None:
    generators = set(config.generators)
    learning = generators & set(REGION_GENERATORS)
    if learning or (generators and config.describe.boxes):
        missing = {encoder.name for encoder in config.encoders} - set(config.regions.encoders)
        if missing:
            raise ValueError(
                f"generators take regions of every encoder; add {min(missing)} to regions.encoders, or leave it out"
            )
    fragments = [row for row in config.models if rows[row].model in SETS]
    if learning and config.mrnn_regions.snippets not in fragments:
        known = ", ".join(fragments) or "none"
        raise ValueError(f"mrnn_regions.snippets: not a row of fragments in models ({known}); name one")
    if "sc-nlm" in generators and config.language_text.treebank is None:
        raise ValueError("sc-nlm needs parts of speech; name a CoNLL-U file in language_text.treebank")
    by_space = config.nearest.by != "features"
    if generators & set(SPACE_GENERATORS) or ("nearest" in generators and by_space):
        _check_space(config, rows)


def _check_space(config: "Config", rows: dict[str, Variant]) -> None:
    space = config.describe.space
    if space not in config.models:
        raise ValueError(f"describe.space: {space} is not among models ({', '.join(config.models)}); add it")
    if rows[space].model in (*BY_DISTANCE, *SETS, *COMBINED, *TREES):
        raise ValueError(
            f"describe.space: a {rows[space].model} gives no cosine of an image and words; name a row such as ncca"
        )


def _check_parser(config: "Config", rows: Iterable[Variant]) -> None:
    parse = config.parse
    parsed = any(row.model in TREES for row in rows) or (config.generators and config.describe.boxes)
    if parsed and parse.engine == "spacy" and parse.pipeline is None:
        for part, file in parse.treebank.model_dump().items():
            if file is None:
                raise ValueError(f"parse.treebank.{part} is null; name a CoNLL-U file, or set parse.pipeline")
