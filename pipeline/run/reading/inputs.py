"""What the declarations of several stages read. Nothing heavy is imported here, since every command imports it."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.run import Inputs, Outside

if TYPE_CHECKING:
    from pipeline.config.models import Model
    from pipeline.config.names import Config
    from pipeline.run.layout import Artefact, Layout, Shards


def sentence_shards(model: "Model", layout: "Layout") -> "list[Shards]":
    """The sentences that a model reads: the vectors of its text encoders, or tokens or trees."""
    forms = model.text_encoders if model.spec.sentences == "vectors" else [model.spec.form]
    return list(map(layout.sentences, forms))


def region_shards(config: "Config", layout: "Layout") -> "list[Shards]":
    """The regions that models read."""
    return list(map(layout.regions, config.regions.encoders))


def joint_space(config: "Config", layout: "Layout", generator: str) -> "Artefact | None":
    """The index whose joint space a generator uses; None where it uses none."""
    if not config.generator(generator).settings.in_space:
        return None
    return layout.index(config.bundle_names(config.describe.space)[0])  # each has the model


def generator_inputs(config: "Config", layout: "Layout", generator: str) -> Inputs:
    """What is read to train a generator and to judge it, beside features: sentences with their vocabulary, and its
    joint space."""
    space = joint_space(config, layout, generator)
    return [layout.manifest, layout.token_vocabulary, layout.sentences("tokens"), *filter(None, [space])]


def text_files(config: "Config", generator: str, *kinds: str) -> Inputs:
    """The files of `language_text` that a generator learns from: of `kinds`, lines and treebank."""
    spec, texts = config.generator(generator).spec, config.language_text
    used = {"lines": texts.file if spec.text else None, "treebank": texts.treebank if spec.treebank else None}
    return [Outside(kind, Path(used[kind])) for kind in kinds if used[kind]]


def region_texts_path(config: "Config") -> Path | None:
    """The file of texts that people wrote for boxes, `describe.region_texts`; None where there is none."""
    return Path(config.data_root) / config.describe.region_texts if config.describe.region_texts else None


def label_names(config: "Config") -> Inputs:
    """The file that says what labels of boxes may be called, or that of texts for boxes."""
    root = Path(config.data_root)
    if texts := region_texts_path(config):
        return [Outside("region_texts", texts)]
    if config.demo.generate:  # the table is drawn with the rest
        return [Outside("names", root / "demo.json")]
    path = root / (config.phrases.names or "")
    return [Outside("names", path)] if path.is_file() else []


def vocabulary_of(config: "Config", layout: "Layout", model: str) -> "Artefact | None":
    """The words of a model that reads tokens or trees; an ensemble of such has its own."""
    members = config.members(model)
    if not any(config.model(member).spec.words for member in members or [model]):
        return None
    return layout.model_vocabulary(model) if members else layout.token_vocabulary
