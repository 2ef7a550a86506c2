"""A stored generator, what it uses (the training sentences, a joint space, a trigram), and what it writes."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.config.registry.generators import GeneratorSpec, generator_spec
from pipeline.run.layout import Artefact, Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pipeline.config import Config
    from pipeline.generate.corpus import Corpus, Trigram
    from pipeline.generate.describing import Generator, ImageBatch, Sources
    from pipeline.generate.material import HeldOut, Tagger
    from pipeline.models.neural.task import TrainingPairs
    from pipeline.run import Run
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.commit import Provenance
    from pipeline.storage.parameters import Origin, Parameters


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
        """The fingerprint of the joint space that it uses; None where it uses none."""
        return self.parameters.details["space"]


def read_generator(run: "Run", name: str) -> StoredGenerator:
    """The generator that `train-generator` has stored under `name`."""
    from pipeline.precision import choose_precision

    folder, parameters = run.layout.generator(name).path, run.generator(name)
    spec = generator_spec(parameters.details["generator"])
    generator: Any = spec.load().from_parts(parameters.settings, parameters.tensors)
    generator.to(run.device)
    known = name in run.config.generator_variants  # it may have been trained by another configuration
    precision = getattr(run.config.generator(name if known else spec.name).settings, "precision", None)
    if precision:  # `nearest` has none
        generator.network.precision = choose_precision(precision, run.device)
        precision = str(generator.network.precision)
    return StoredGenerator(folder, name, spec, generator, parameters, precision)


def space_of(settings: "Config", layout: Layout, generator: str) -> Artefact | None:
    """The index whose joint space a generator uses; None where it uses none."""
    if not settings.generator(generator).settings.in_space:
        return None
    return layout.index(settings.bundle_names(settings.describe.space)[0])  # each has the model


def read_bundled_encoders(stored: StoredGenerator, bundle: "Bundle") -> "dict[str, Parameters]":
    """The encoders of a bundle that make what the generator takes. UsageError where it lacks one, IntegrityError where
    one is not what made the features that the generator learned from."""
    from pipeline.errors import UsageError
    from pipeline.storage.json_files import require_same

    found = {}
    for name in stored.generator.encoders:
        if name not in bundle.card["encoders"]:
            raise UsageError(
                f"{bundle.folder} has no encoder {name}, which the generator needs (it has"
                f" {', '.join(bundle.card['encoders'])}); name the index of a model on all of its encoders"
            )
        found[name] = bundle.encoder(name)
        learned = stored.encoders[name].get("encoder", "")
        require_same(f"the encoder {name}", {str(stored.folder): learned, str(bundle.folder): found[name].fingerprint})
    return found


@dataclass(frozen=True)
class TrainingText:
    """The training sentences of a manifest, the fingerprint of the `vocabulary` of their words, and what reads the
    sentences without images (Kiros et al. 2014: "a large corpus")."""

    corpus: "Corpus"
    vocabulary: str
    read_extra: "Callable[[], list[str]]"

    @cached_property
    def trigram(self) -> "Trigram":
        from pipeline.generate.corpus import Trigram
        from pipeline.text.sequences import Tokens, encode_tokens

        extra = encode_tokens(self.read_extra(), self.corpus.vocabulary)
        return Trigram(Tokens.concatenate([self.corpus.tokens, extra]), len(self.corpus.vocabulary.terms) + 1)


def read_training_text(run: "Run") -> TrainingText:
    """The sentences of the train split with their words."""
    import numpy as np

    from pipeline.generate.corpus import Corpus
    from pipeline.storage.rows import TokenRows
    from pipeline.text.sequences import Tokens
    from stages.inputs import read_token_vocabulary

    manifest, folder = run.manifest, run.layout.sentences("tokens").folder
    (vocabulary, digest), stored = read_token_vocabulary(run), TokenRows(manifest, folder)
    rows = np.flatnonzero((manifest.splits == "train")[manifest.sentence_images])
    tokens = Tokens(stored.ids, stored.offsets).take(rows)
    corpus = Corpus(list(manifest.training_texts()), tokens, vocabulary)
    return TrainingText(corpus, digest, lambda: read_extra_text(run.config))


def gather_sources(run: "Run", stored: StoredGenerator, text: TrainingText, bundle: "Bundle | None") -> "Sources":
    """What the generator uses. IntegrityError where it was trained on other words or in another joint space than
    that of `bundle`, UsageError where it needs one and there is none."""
    from pipeline.errors import UsageError
    from pipeline.generate.beam import BeamSearch
    from pipeline.generate.describing import Candidates, Sources
    from pipeline.generate.material import JointSpace
    from pipeline.storage.json_files import require_same

    require_same("vocabulary", {str(stored.folder): stored.vocabulary, "the training sentences": text.vocabulary})
    space = trigram = None
    if stored.space is not None:
        if bundle is None:
            raise UsageError(
                f"{stored.folder} needs a joint space, and the configuration names none for it; train it again"
            )
        space, trigram = JointSpace(bundle, run.gpu), text.trigram
        require_same("joint space", {str(stored.folder): stored.space, str(bundle.folder): space.fingerprint})
    chosen = run.config.describe
    search = BeamSearch(chosen.beam, chosen.length_power, LONGEST)
    return Sources(
        text.corpus, search, chosen.temperature, Candidates(chosen.candidates), run.config.seed, space, trigram
    )


def write_descriptions(
    run: "Run",
    stored: StoredGenerator,
    batches: "Iterable[ImageBatch]",
    folder: Path,
    about: dict[str, Any],
    provenance: "Provenance | None" = None,
) -> None:
    """Describe `batches` and write that into `folder`: `about` says what they are; without `provenance` it is not a
    part of the run."""
    from tqdm import tqdm

    from pipeline.generate.describing import describe_images
    from pipeline.report.page import descriptions_as_text, render_descriptions
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.commit import publish_record

    settings, described = run.config, []
    space = space_of(settings, run.layout, stored.name)
    sources = gather_sources(run, stored, read_training_text(run), Bundle(space.path) if space else None)
    for batch in tqdm(batches, f"describe with {stored.name}", unit="batch", disable=None):
        found = describe_images(stored.generator, batch.features, sources, settings.describe.top)
        for shown, sentences in zip(batch.images, found, strict=True):
            described.append({**shown, "sentences": sentences})
    about = {**about, "settings": settings.describe.model_dump(), "precision": stored.precision}
    value = {**about, "images": described}
    page = render_descriptions(value, _thumbnails(run, described[:SHOWN]))
    beside = {"index.html": page.encode(), "descriptions.txt": descriptions_as_text(value).encode()}
    publish_record(folder / "descriptions.json", value, beside, provenance)


def _thumbnails(run: "Run", described: list[dict]) -> list[str | None]:
    """A `data:` address of a thumbnail of each described image or box; None where it cannot be read."""
    from pipeline.errors import InputError
    from pipeline.images.decode import ImageLimits
    from pipeline.report.photographs import thumbnail

    limits, source, rows, addresses = ImageLimits.from_settings(run.config.collection), run.photographs, {}, []
    if any(one["image_id"] is not None for one in described):
        rows = {row["image_id"]: row for row in run.manifest.images.to_pylist()}
    for one in described:
        try:
            row = rows.get(one["image_id"])
            data = source.read(row["path"], row["offset"], row["size"]) if row else Path(one["image"]).read_bytes()
            addresses.append(thumbnail(data, limits, one["box"]))
        except (InputError, OSError):
            addresses.append(None)
    return addresses


def train_tagger(settings: "Config", spec: GeneratorSpec, seed: int) -> "Tagger | None":
    """A tagger trained on `language_text.treebank`; None for a generator that needs none. Raises InputError for a file
    that cannot be read, and naming a line."""
    from pipeline.generate.material import Tagger, read_tagged

    name = settings.language_text.treebank
    return Tagger(list(read_tagged(_read_lines(name), name)), seed) if spec.treebank else None


def hold_out(run: "Run", generator: str, pairs: "TrainingPairs", texts: list[str], vocabulary: Any) -> "HeldOut":
    """The sentences `pairs` with their `texts`, and what the generator needs to say how probable they are."""
    from pipeline.generate.material import HeldOut, JointSpace
    from pipeline.storage.bundle import Bundle

    index = space_of(run.config, run.layout, generator)
    space = JointSpace(Bundle(index.path), run.gpu) if index else None
    tagger = train_tagger(run.config, run.config.generator(generator).spec, run.config.seed)
    return HeldOut(pairs, texts, vocabulary, space, tagger)


def read_extra_text(settings: "Config") -> list[str]:
    """The sentences of `language_text.file`. Raises InputError for a file that cannot be read, and naming a line."""
    from pipeline.errors import InputError

    chosen = settings.language_text
    extra: list[str] = []
    for number, line in enumerate(_read_lines(chosen.file) if chosen.file else [], 1):
        columns = line.rstrip("\r\n").split("\t")
        if len(columns) <= chosen.column:
            raise InputError(
                f"{chosen.file}, line {number} has no column {chosen.column}; correct language_text.column"
            )
        extra.append(columns[chosen.column])
    return extra


def _read_lines(name: str) -> list[str]:
    """The lines of a text, plain or .gz."""
    import gzip

    from pipeline.errors import InputError

    opened = gzip.open if name.endswith(".gz") else open
    try:
        with opened(name, "rt", encoding="utf-8", newline="\n") as file:
            return list(file)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {name} ({error}); correct language_text") from error
