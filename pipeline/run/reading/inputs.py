"""What the declarations of several stages read. Nothing heavy is imported here, since every command imports it."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.run import Inputs, Outside

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.config.models import Model
    from pipeline.config.names import Config
    from pipeline.run.layout import Artefact, Layout, Shards


def sentence_shards(model: "Model", layout: "Layout") -> "dict[str, Shards]":
    """The sentences that a model reads, by form: the vectors of its text encoders, or tokens or trees."""
    forms = model.text_encoders if model.spec.sentences == "vectors" else [model.spec.form]
    return {form: layout.sentences(form) for form in forms}


def region_shards(encoders: "Iterable[str]", layout: "Layout") -> "dict[str, Shards]":
    """The regions of some encoders, by encoder."""
    return {name: layout.regions(name) for name in encoders}


def feature_shards(encoders: "Iterable[str]", layout: "Layout") -> "dict[str, Shards]":
    """The features of some encoders, by encoder."""
    return {name: layout.features(name) for name in encoders}


def generator_inputs(config: "Config", layout: "Layout", generator: str) -> Inputs:
    """What is read to train a generator and to judge it, beside features: sentences with their vocabulary, and the
    index whose joint space it uses, if it uses one."""
    space = None
    if config.generator(generator).settings.in_space:
        space = layout.index(config.bundle_names(config.describe.space)[0])  # each has the model
    return {
        "manifest": layout.manifest,
        "vocabulary": layout.token_vocabulary,
        "tokens": layout.sentences("tokens"),
        "space": space,
    }


def text_files(config: "Config", generator: str, *kinds: str) -> dict[str, Outside]:
    """The files of `language_text` that a generator learns from: of `kinds`, lines and treebank."""
    spec, texts = config.generator(generator).spec, config.language_text
    used = {"lines": texts.file if spec.text else None, "treebank": texts.treebank if spec.treebank else None}
    return {kind: Outside(kind, Path(path)) for kind in kinds if (path := used[kind])}


def region_texts_path(config: "Config") -> Path | None:
    """The file of texts that people wrote for boxes, `describe.region_texts`; None where there is none."""
    return Path(config.data_root) / config.describe.region_texts if config.describe.region_texts else None


def label_names(config: "Config") -> Outside | None:
    """Return the file that says what labels of boxes may be called; None where there is none."""
    root = Path(config.data_root)
    if config.demo.generate:  # the table is drawn with the rest
        return Outside("names", root / "demo.json")
    path = root / (config.phrases.names or "")
    return Outside("names", path) if path.is_file() else None


def box_texts(config: "Config") -> Outside | None:
    """Return the file of texts that people wrote for boxes, or else the file of names for their labels."""
    texts = region_texts_path(config)
    return Outside("region_texts", texts) if texts else label_names(config)


def vocabulary_of(config: "Config", layout: "Layout", model: str) -> "Artefact | None":
    """The words of a model that reads tokens or trees; an ensemble of such has its own."""
    members = config.members(model)
    if not any(config.model(member).spec.words for member in members or [model]):
        return None
    return layout.model_vocabulary(model) if members else layout.token_vocabulary
