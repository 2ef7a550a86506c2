"""A stored generator, what it learns from and uses (sentences, a joint space, a trigram), and what it writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from pipeline.config.registry import GeneratorSpec, generator_spec
from pipeline.errors import InputError, UsageError
from pipeline.generate.beam import BeamSearch
from pipeline.generate.corpus import Corpus, Trigram
from pipeline.generate.describing import Generator, Sources, describe_images
from pipeline.generate.material import HeldOut, JointSpace, Tagger, read_tagged
from pipeline.images.opening import ImageLimits
from pipeline.models.neural.task import TrainingPairs
from pipeline.precision import choose_precision
from pipeline.report.page import descriptions_as_text, render_descriptions
from pipeline.report.photographs import thumbnail
from pipeline.run import Run
from pipeline.storage.bundle import Bundle
from pipeline.storage.commit import Provenance, publish_record
from pipeline.storage.features import FeatureRows
from pipeline.storage.json_files import require_same
from pipeline.storage.parameters import Origin, Parameters
from pipeline.storage.texts import read_tokens, text_lines
from pipeline.text.sequences import Tokens, encode_tokens
from pipeline.text.vocabulary import Vocabulary
from stages.inputs import joint_space
from stages.texts import read_extra_text, read_token_vocabulary

if TYPE_CHECKING:
    from pipeline.config.names import Config


BATCH = 256
"""Images that are described at once."""
LONGEST = 20
"""Words of a sentence at most."""
SHOWN = 200
"""The first so many images are on the page; the lists have all."""


class StoredGenerator(NamedTuple):
    """The `generator` that the run calls `name`, in `folder`, what was registered, what was stored of it, and the
    precision that it computes in, None where it has none."""

    folder: Path
    name: str
    spec: GeneratorSpec
    generator: Generator
    parameters: Parameters
    precision: str | None

    @property
    def encoders(self) -> Mapping[str, Origin]:
        """The origins of the features that it learned from."""
        return self.parameters.details["encoders"]

    @property
    def space(self) -> str | None:
        """The fingerprint of the joint space that it uses; None where it uses none."""
        return self.parameters.details["space"]


def read_generator(run: Run, name: str) -> StoredGenerator:
    """The generator that `train-generator` has stored under `name`."""
    folder, parameters = run.layout.generator(name).path, run.generator(name)
    spec = generator_spec(parameters.details["generator"])
    generator: Any = spec.load().from_parts(parameters.settings, parameters.tensors)
    generator.to(run.device)
    is_configured = name in run.config.generator_variants  # it may have been trained by another configuration
    settings = run.config.generator(name if is_configured else spec.name).settings
    precision = getattr(settings, "precision", None)
    if precision:  # `nearest` has none
        generator.network.precision = choose_precision(precision, run.device)
        precision = str(generator.network.precision)
    return StoredGenerator(folder, name, spec, generator, parameters, precision)


def open_space(run: Run, generator: str) -> JointSpace | None:
    """The joint space that a generator of the configuration uses; None where it uses none."""
    index = joint_space(run.config, run.layout, generator)
    return JointSpace(Bundle(index.path), run.gpu) if index else None


def train_tagger(config: "Config", spec: GeneratorSpec, seed: int) -> Tagger | None:
    """A tagger trained on `language_text.treebank`; None for a generator that needs none. Raises InputError for a file
    that cannot be read, and naming a line."""
    if not spec.treebank:
        return None
    name = config.language_text.treebank
    return Tagger(list(read_tagged(text_lines(Path(name)), name)), seed)


class DescribedImages(NamedTuple):
    """Images with their sentences, by split (`pairs`), the `texts` of these, the `vocabulary` of their words, and the
    origins of the features of the `encoders`."""

    pairs: dict[str, TrainingPairs]
    texts: dict[str, list[str]]
    vocabulary: Vocabulary
    vocabulary_fingerprint: str
    encoders: dict[str, Origin]


def read_described(run: Run, encoders: Sequence[str], splits: Sequence[str]) -> DescribedImages:
    """The images of `splits` that have sentences, with these: what generators learn from and are judged by."""
    manifest = run.manifest
    vocabulary, fingerprint = read_token_vocabulary(run)
    tokens = Tokens(*read_tokens(manifest, run.layout.sentences("tokens").folder))
    pairs, texts, origins = {}, {}, {}
    for split in splits:
        rows = run.pairs(split)
        features = {name: FeatureRows(run.features, name, rows.image_id) for name in encoders}
        pairs[split] = TrainingPairs(features, tokens.take(rows.sentence_id), rows.owners, rows.sentence_id)
        texts[split] = manifest.sentences["text"].take(np.asarray(rows.sentence_id)).to_pylist()
        origins |= {name: block.origin for name, block in features.items()}
    return DescribedImages(pairs, texts, vocabulary, fingerprint, origins)


def hold_out(run: Run, generator: str, pairs: TrainingPairs, texts: Sequence[str], vocabulary: Vocabulary) -> HeldOut:
    """The sentences `pairs` with their `texts`, and what the generator needs to say how probable they are."""
    tagger = train_tagger(run.config, run.config.generator(generator).spec, run.config.seed)
    return HeldOut(pairs, texts, vocabulary, open_space(run, generator), tagger)


def read_corpus(run: Run) -> Corpus:
    """The sentences of the train split with their words."""
    manifest = run.manifest
    vocabulary, _ = read_token_vocabulary(run)
    tokens = Tokens(*read_tokens(manifest, run.layout.sentences("tokens").folder))
    tokens = tokens.take(np.flatnonzero((manifest.splits == "train")[manifest.sentence_images]))
    return Corpus(list(manifest.texts_of("train")), tokens, vocabulary)


def count_trigrams(config: "Config", corpus: Corpus) -> Trigram:
    """Of the training sentences, and of those without images that `language_text` may name (Kiros et al. 2014: "a large
    corpus")."""
    further = encode_tokens(read_extra_text(config), corpus.vocabulary)
    return Trigram(Tokens.concatenate([corpus.tokens, further]), len(corpus.vocabulary.terms) + 1)


def gather_sources(run: Run, stored: StoredGenerator, corpus: Corpus, bundle: Bundle | None) -> Sources:
    """What the generator uses. IntegrityError where it was trained in another joint space than that of `bundle`,
    UsageError where it needs one and there is none."""
    space = trigram = None
    if stored.space is not None:
        if bundle is None:
            raise UsageError(f"{stored.folder} needs a joint space, but the configuration names none; train it again")
        space, trigram = JointSpace(bundle, run.gpu), count_trigrams(run.config, corpus)
        require_same("joint space", {str(stored.folder): stored.space, str(bundle.folder): space.fingerprint})
    settings = run.config.describe
    search = BeamSearch(settings.beam, settings.length_power, LONGEST)
    return Sources(corpus, search, settings.temperature, settings.candidates, run.config.seed, space, trigram)


def write_descriptions(
    run: Run,
    stored: StoredGenerator,
    features: Mapping[str, Any],
    images: Sequence[dict[str, Any]],
    folder: Path,
    about: dict[str, Any],
    provenance: Provenance,
) -> None:
    """Describe n `images`, of which this is what answers show, by their `features`, encoder -> (n, its dim), and write
    that into `folder`: `about` says what they are."""
    settings = run.config.describe
    space = joint_space(run.config, run.layout, stored.name)
    sources = gather_sources(run, stored, read_corpus(run), Bundle(space.path) if space else None)
    described = []
    for start in tqdm(range(0, len(images), BATCH), f"describe with {stored.name}", unit="batch", disable=None):
        part = np.arange(start, min(start + BATCH, len(images)))
        block = {name: rows[part] for name, rows in features.items()}
        sentences = describe_images(stored.generator, block, sources, settings.top)
        described += [{**images[place], "sentences": own} for place, own in zip(part, sentences, strict=True)]
    value = {**about, "settings": settings.model_dump(), "precision": stored.precision, "images": described}
    page = render_descriptions(value, _thumbnails(run, described[:SHOWN]))
    beside = {"index.html": page.encode(), "descriptions.txt": descriptions_as_text(value).encode()}
    publish_record(folder / "descriptions.json", value, beside, provenance)


def _thumbnails(run: Run, described: list[dict]) -> list[str | None]:
    """A `data:` address of a thumbnail of each described image or box; None where it cannot be read."""
    limits, source = ImageLimits.from_settings(run.config.collection), run.photographs
    rows = {row["image_id"]: row for row in run.manifest.images.to_pylist()}
    addresses: list[str | None] = []
    for image in described:
        try:
            row = rows[image["image_id"]]
            data = source.read(row["path"], row["offset"], row["size"])
            addresses.append(thumbnail(data, limits, image["box"]))
        except (InputError, OSError):
            addresses.append(None)
    return addresses
