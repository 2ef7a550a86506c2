"""Caption generators of a run: the stored generators, their training data, and the data that they use to generate."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.compute.precision import choose_precision
from pipeline.config.registry import GeneratorSpec, generator_spec
from pipeline.errors import UsageError
from pipeline.generate.beam import BeamSearch
from pipeline.generate.corpus import Corpus, Trigram
from pipeline.generate.generator import Generator, HeldOut, JointSpace, Sources, Tagger, read_tagged
from pipeline.models.neural.task import TrainingPairs
from pipeline.run import Run
from pipeline.run.layout import Artefact
from pipeline.run.reading.inputs import generator_inputs
from pipeline.run.reading.texts import read_extra_text, read_sentences, read_token_vocabulary
from pipeline.storage.features import FeatureRows
from pipeline.storage.json_files import require_same
from pipeline.storage.parameters import Origin, Parameters
from pipeline.storage.stored_index import StoredIndex, open_index
from pipeline.storage.texts import text_lines
from pipeline.text.vocabulary import Tokens, Vocabulary, encode_tokens

if TYPE_CHECKING:
    from pipeline.config.names import Config


MAX_CAPTION_WORDS = 20
"""Largest number of words of a generated caption."""


class StoredGenerator(NamedTuple):
    """A trained generator of a run, ready to generate captions.

    `name` is its name in the run, `folder` its folder, `spec` its entry in the registry, `generator` the restored
    generator, and `parameters` the stored settings and tensors. `precision` is the name of the dtype of its matrix
    products, or None if the generator has no such setting.
    """

    folder: Path
    name: str
    spec: GeneratorSpec
    generator: Generator
    parameters: Parameters
    precision: str | None

    @property
    def encoders(self) -> Mapping[str, Origin]:
        """Name of an encoder -> the origin of its features on which the generator was trained."""
        return self.parameters.details["encoders"]

    @property
    def space(self) -> str | None:
        """The fingerprint of the joint space that the generator uses, or None if it uses none."""
        return self.parameters.details["space"]


def read_generator(run: Run, name: str) -> StoredGenerator:
    """Read the generator that `train-generator` has stored under `name`, and restore it on the device of the run.

    Raises IntegrityError if the generator is missing or damaged.
    """
    folder = run.layout.generator(name).path
    parameters = run.generator(name)
    spec = generator_spec(parameters.details["generator"])
    generator = spec.load().from_parts(parameters.settings, parameters.tensors)
    generator.to(run.device)
    # If the generator is from an earlier configuration, the settings of the type of the generator are used.
    is_configured = name in run.config.generator_variants
    settings = run.config.generator(name if is_configured else spec.name).settings
    precision = getattr(settings, "precision", None)
    if precision:  # The generator `nearest` has no such setting.
        generator.network.precision = choose_precision(precision, run.device)
        precision = str(generator.network.precision)
    return StoredGenerator(folder, name, spec, generator, parameters, precision)


def open_space(run: Run, generator: str) -> JointSpace | None:
    """Open the joint space that a generator of the configuration uses. Return None for a generator that uses none."""
    index = open_space_index(run, generator)
    return JointSpace(index, run.gpu) if index else None


def open_space_index(run: Run, generator: str) -> StoredIndex | None:
    """Open the index whose joint space a generator uses. Return None for a generator that uses none."""
    index = generator_inputs(run.config, run.layout, generator)["space"]
    return open_index(index.path, added=False) if isinstance(index, Artefact) else None


def train_tagger(config: "Config", spec: GeneratorSpec, seed: int) -> Tagger | None:
    """Train a part-of-speech tagger on the file `language_text.treebank`, with random numbers from `seed`.

    Return None if the generator of the registry's entry `spec` needs no tagger, or if no file is configured. Raises
    InputError if the file cannot be read or has a faulty line. The message has the number of the line.
    """
    name = config.language_text.treebank
    if not spec.treebank or name is None:
        return None
    return Tagger(list(read_tagged(text_lines(Path(name)), name)), seed)


class DescribedImages(NamedTuple):
    """Images and their sentences for training and evaluating generators.

    For each split, `pairs` has the features of the images and the tokens of their sentences, and `texts` has the same
    sentences as text. `vocabulary` is the vocabulary of the tokens, and `encoders` has the origin of the features of
    each encoder.
    """

    pairs: dict[str, TrainingPairs]
    texts: dict[str, list[str]]
    vocabulary: Vocabulary
    vocabulary_fingerprint: str
    encoders: dict[str, Origin]


def read_described(run: Run, encoders: Sequence[str], splits: Sequence[str]) -> DescribedImages:
    """Read the images with sentences of some splits: the features of the images by `encoders`, and the sentences.

    Raises InputError if a split has no image with a sentence.
    """
    manifest = run.manifest
    vocabulary, fingerprint = read_token_vocabulary(run)
    tokens = read_sentences(run, "tokens")
    pairs = {}
    texts = {}
    origins = {}
    for split in splits:
        rows = run.pairs(split)
        features = {name: FeatureRows(run.features, name, rows.image_id) for name in encoders}
        pairs[split] = TrainingPairs(features, tokens.take(rows.sentence_id), rows.owners, rows.sentence_id)
        texts[split] = manifest.sentences["text"].take(np.asarray(rows.sentence_id)).to_pylist()
        origins |= {name: block.origin for name, block in features.items()}
    return DescribedImages(pairs, texts, vocabulary, fingerprint, origins)


def hold_out(run: Run, generator: str, pairs: TrainingPairs, texts: Sequence[str], vocabulary: Vocabulary) -> HeldOut:
    """Return the sentences of held-out images with the data that a generator needs to compute their probability.

    `generator` is the name of the generator in the configuration. `pairs` has the images and the tokens of the
    sentences, `texts` has the same sentences as text, and `vocabulary` is the vocabulary of the tokens.
    """
    tagger = train_tagger(run.config, run.config.generator(generator).spec, run.config.seed)
    return HeldOut(pairs, texts, vocabulary, open_space(run, generator), tagger)


def read_corpus(run: Run) -> Corpus:
    """Read the sentences of the train split, as text and as tokens."""
    manifest = run.manifest
    vocabulary, _ = read_token_vocabulary(run)
    of_train = np.flatnonzero((manifest.splits == "train")[manifest.sentence_images])
    tokens = read_sentences(run, "tokens").take(of_train)
    return Corpus(list(manifest.texts_of("train")), tokens, vocabulary)


def count_trigrams(config: "Config", corpus: Corpus) -> Trigram:
    """Count the trigrams of the training sentences and of the additional sentences in `language_text.file`.

    Kiros et al. (2014) count the trigrams of "a large corpus".
    """
    further = encode_tokens(read_extra_text(config), corpus.vocabulary)
    return Trigram(Tokens.concatenate([corpus.tokens, further]), len(corpus.vocabulary.terms) + 1)


def gather_sources(run: Run, stored: StoredGenerator, corpus: Corpus, index: StoredIndex | None) -> Sources:
    """Collect the data that a stored generator needs to generate captions.

    `index` is the index with the joint space that the generator uses, and is not needed if it uses no joint space.

    Raises IntegrityError if the generator was trained with another joint space than the joint space of `index`, and
    UsageError if the generator needs a joint space and `index` is None.
    """
    space = trigram = None
    if stored.space is not None:
        if index is None:
            raise UsageError(
                f"The generator in {stored.folder} was trained with a joint space, but gets none now. Set the joint"
                f" space in describe.space, or train the generator again with `jointspace stage train-generator"
                f" {stored.name} --run {shlex.quote(str(run.root))}`."
            )
        space = JointSpace(index, run.gpu)
        trigram = count_trigrams(run.config, corpus)
        require_same("joint space", {str(stored.folder): stored.space, str(index.folder): space.fingerprint})
    settings = run.config.describe
    search = BeamSearch(settings.beam, settings.length_power, MAX_CAPTION_WORDS)
    return Sources(corpus, search, settings.temperature, settings.candidates, run.config.seed, space, trigram)
