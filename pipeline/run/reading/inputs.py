"""Inputs that several stages declare. Every command imports this module, so it must not import large libraries."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.run import Artefact, Inputs, Layout, Outside, Shards

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.config.models import Model
    from pipeline.config.names import Config


def sentence_shards(model: "Model", layout: Layout) -> dict[str, Shards]:
    """Return the shards of the sentences that a model reads, by form.

    The forms are the names of the text encoders if the model reads vectors. Otherwise, the form is `tokens` or `trees`.
    """
    forms = model.text_encoders if model.spec.sentences == "vectors" else [model.spec.form]
    return {form: layout.sentences(form) for form in forms}


def region_shards(encoders: "Iterable[str]", layout: Layout) -> dict[str, Shards]:
    """Return the stored regions, with their features, of each of some encoders, by the name of the encoder."""
    return {name: layout.regions(name) for name in encoders}


def feature_shards(encoders: "Iterable[str]", layout: Layout) -> dict[str, Shards]:
    """Return the stored features of each of some encoders, by the name of the encoder."""
    return {name: layout.features(name) for name in encoders}


def generator_inputs(config: "Config", layout: Layout, generator: str) -> Inputs:
    """Return the inputs for training and evaluating a generator, except features.

    The inputs are the `manifest`, the `tokens` of the sentences, their `vocabulary`, and `space`. `space` is the index
    whose joint space the generator uses, or None for a generator without a joint space.
    """
    space = None
    if config.generator(generator).settings.in_space:
        space = layout.index(config.bundle_names(config.describe.space)[0])  # Each index shard has the whole model.
    return {
        "manifest": layout.manifest,
        "vocabulary": layout.token_vocabulary,
        "tokens": layout.sentences("tokens"),
        "space": space,
    }


def text_files(config: "Config", generator: str, *kinds: str) -> dict[str, Outside]:
    """Return the files of `language_text` on which a generator is trained, as kind -> file.

    `kinds` are the requested kinds: `lines` for the file of further sentences, and `treebank` for the file of tagged
    sentences. The result has only requested kinds. It lacks a requested kind if the generator does not use this kind,
    or if no such file is configured.
    """
    spec = config.generator(generator).spec
    texts = config.language_text
    used = {"lines": texts.file if spec.text else None, "treebank": texts.treebank if spec.treebank else None}
    return {kind: Outside(kind, Path(path)) for kind in kinds if (path := used[kind])}


def region_texts_path(config: "Config") -> Path | None:
    """Return the path of the file `describe.region_texts`, which has texts for boxes, or None if none is configured."""
    return Path(config.data_root) / config.describe.region_texts if config.describe.region_texts else None


def label_names(config: "Config") -> Outside | None:
    """Return the file `phrases.names`, which lists names for the labels of boxes, or None if it does not exist.

    For a generated demo, return the commit record `demo.json` of the demo instead. `make-demo` writes both files.
    """
    root = Path(config.data_root)
    if config.demo.generate:  # `make-demo` writes the table of names together with the collection.
        return Outside("names", root / "demo.json")
    path = root / (config.phrases.names or "")
    return Outside("names", path) if path.is_file() else None


def box_texts(config: "Config") -> Outside | None:
    """Return the file with texts for boxes. If none is configured, return what `label_names` returns: the file with
    names for the labels of boxes, or None."""
    texts = region_texts_path(config)
    return Outside("region_texts", texts) if texts else label_names(config)


def vocabulary_of(config: "Config", layout: Layout, model: str) -> Artefact | None:
    """Return the vocabulary of a model that reads tokens or trees, or None if the model reads neither.

    For an ensemble, the result is the file with the vocabularies of its members.
    """
    members = config.members(model)
    if not any(config.model(member).spec.words for member in members or [model]):
        return None
    return layout.model_vocabulary(model) if members else layout.token_vocabulary
