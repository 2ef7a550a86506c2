"""A stored generator and what it draws on: the training sentences, a joint space, a trigram."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.config import Config
    from pipeline.generate.corpus import Corpus
    from pipeline.generate.describing import Generator, Sources
    from pipeline.generate.trigram import Trigram
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import Parameters
    from pipeline.storage.provenance import Origin


class StoredGenerator(NamedTuple):
    """The `generator` of the registered `name` in `folder`, what was stored of it, and the precision that it computes
    in, None where it has none."""

    folder: Path
    name: str
    generator: "Generator"
    parameters: "Parameters"
    precision: str | None

    @property
    def vocabulary(self) -> str:
        """The fingerprint of the vocabulary of its words."""
        return self.parameters.details["vocabulary"]

    @property
    def encoders(self) -> "Mapping[str, Origin]":
        """The origins of the features that it learned from."""
        return self.parameters.details["encoders"]

    @property
    def space(self) -> str | None:
        """The fingerprint of the joint space that it stands on, None where it stands on none."""
        return self.parameters.details["space"]


def read_generator(folder: Path, settings: "Config") -> StoredGenerator:
    """What `train-generator` wrote into `folder`."""
    from pipeline.device import find_device
    from pipeline.precision import choose_precision
    from pipeline.specs.generators import generator_spec
    from pipeline.storage.parameters import MODEL, read_parameters

    parameters = read_parameters(folder / "model.safetensors", MODEL)
    name = parameters.details["generator"]
    generator: Any = generator_spec(name).load().from_parts(parameters.settings, parameters.tensors)
    device = find_device(settings.device)
    generator.to(device)
    precision = getattr(settings.section(generator_spec(name)), "precision", None)
    if precision:  # `nearest` has none
        generator.network.precision = choose_precision(precision, device)
        precision = str(generator.network.precision)
    return StoredGenerator(folder, name, generator, parameters, precision)


def read_bundled_encoders(stored: StoredGenerator, bundle: "Bundle") -> "dict[str, Parameters]":
    """The encoders of a bundle that make what the generator takes. UsageError where it lacks one, IntegrityError where
    one is not what made the features that the generator learned from."""
    from pipeline.errors import UsageError
    from pipeline.storage.provenance import require_origins

    found = {}
    for name in stored.generator.encoders:
        if name not in bundle.card["encoders"]:
            raise UsageError(
                f"{bundle.folder} has no encoder {name}, which the generator takes (it has"
                f" {', '.join(bundle.card['encoders'])}); give an index of a model on all of its encoders"
            )
        found[name] = bundle.encoder(name)
        made_by = {str(bundle.folder): {"encoder": found[name].fingerprint}}
        require_origins(stored.encoders, stored.folder, {name: made_by})
    return found


@dataclass(frozen=True)
class TrainingText:
    """The training sentences of a manifest, and the fingerprints of the `vocabularies` that their words are of, by the
    files that say so."""

    corpus: "Corpus"
    vocabularies: dict[str, str]

    @cached_property
    def trigram(self) -> "Trigram":
        from pipeline.generate.trigram import Trigram

        return Trigram(self.corpus.tokens, len(self.corpus.vocabulary.terms) + 1)


def read_training_text(manifest: "Manifest", tokens_folder: Path | None, vocabulary_path: Path) -> TrainingText:
    """The sentences of the train split with their words."""
    import numpy as np

    from pipeline.generate.corpus import Corpus
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.rows import TokenRows
    from pipeline.text.sequences import Tokens
    from pipeline.text.vocabulary import Vocabulary

    value, stored = read_vocabulary(vocabulary_path), TokenRows(manifest, tokens_folder)
    rows = np.flatnonzero((manifest.splits == "train")[manifest.sentence_images])
    tokens = Tokens(stored.ids, stored.offsets).take(rows)
    corpus = Corpus(manifest.training_texts, tokens, Vocabulary.from_dict(value))
    return TrainingText(corpus, {str(vocabulary_path): value["fingerprint"], str(tokens_folder): stored.vocabulary})


def gather_sources(
    stored: StoredGenerator, text: TrainingText, bundle: "Bundle | None", settings: "Config"
) -> "Sources":
    """What the generator draws on. IntegrityError where it was trained on other words or in another joint space than
    that of `bundle`, UsageError where it needs one and there is none."""
    from pipeline.device import find_gpu
    from pipeline.errors import UsageError
    from pipeline.generate.beam import Search
    from pipeline.generate.describing import Sources
    from pipeline.generate.space import JointSpace
    from pipeline.storage.fingerprint import require_same

    require_same("vocabulary", {str(stored.folder): stored.vocabulary, **text.vocabularies})
    space = trigram = None
    if stored.space is not None:
        if bundle is None:
            raise UsageError(
                f"{stored.folder} stands on a joint space; give the index that it was trained with as --index"
            )
        space, trigram = JointSpace(bundle, find_gpu(settings.device)), text.trigram
        require_same("joint space", {str(stored.folder): stored.space, str(bundle.folder): space.fingerprint})
    chosen = settings.describe
    search = Search(chosen.beam, chosen.length_power, chosen.longest)
    return Sources(text.corpus, search, chosen.temperature, chosen.candidates, settings.seed, space, trigram)
