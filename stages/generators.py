"""A stored generator, what it draws on (the training sentences, a joint space, a trigram), and what it writes."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.run.layout import Artefact, Layout
from pipeline.specs.generators import generator_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pipeline.config import Config
    from pipeline.generate.batches import ImageBatch
    from pipeline.generate.corpus import Corpus
    from pipeline.generate.describing import Generator, Sources
    from pipeline.generate.trigram import Trigram
    from pipeline.run import Run
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


def space_of(settings: "Config", layout: Layout, generator: str) -> Artefact | None:
    """The index whose joint space a generator stands on, None where it stands on none."""
    in_space = settings.section(generator_spec(generator)).in_space
    return layout.index(settings.describe.space) if in_space else None


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


def read_training_text(run: "Run") -> TrainingText:
    """The sentences of the train split with their words."""
    import numpy as np

    from pipeline.generate.corpus import Corpus
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.rows import TokenRows
    from pipeline.text.sequences import Tokens
    from pipeline.text.vocabulary import Vocabulary

    manifest, words, folder = run.manifest, run.layout.token_vocabulary.path, run.layout.sentences("tokens").folder
    value, stored = read_vocabulary(words), TokenRows(manifest, folder)
    rows = np.flatnonzero((manifest.splits == "train")[manifest.sentence_images])
    tokens = Tokens(stored.ids, stored.offsets).take(rows)
    corpus = Corpus(manifest.training_texts, tokens, Vocabulary.from_dict(value))
    return TrainingText(corpus, {str(words): value["fingerprint"], str(folder): stored.vocabulary})


def gather_sources(
    stored: StoredGenerator, text: TrainingText, bundle: "Bundle | None", settings: "Config"
) -> "Sources":
    """What the generator draws on. IntegrityError where it was trained on other words or in another joint space than
    that of `bundle`, UsageError where it needs one and there is none."""
    from pipeline.device import find_gpu
    from pipeline.errors import UsageError
    from pipeline.generate.beam import BeamSearch
    from pipeline.generate.describing import Sources
    from pipeline.generate.space import JointSpace
    from pipeline.storage.fingerprint import require_same

    require_same("vocabulary", {str(stored.folder): stored.vocabulary, **text.vocabularies})
    space = trigram = None
    if stored.space is not None:
        if bundle is None:
            raise UsageError(
                f"{stored.folder} stands on a joint space, and the configuration names none for it; train it again"
            )
        space, trigram = JointSpace(bundle, find_gpu(settings.device)), text.trigram
        require_same("joint space", {str(stored.folder): stored.space, str(bundle.folder): space.fingerprint})
    chosen = settings.describe
    search = BeamSearch(chosen.beam, chosen.length_power, chosen.longest)
    return Sources(text.corpus, search, chosen.temperature, chosen.candidates, settings.seed, space, trigram)


def write_descriptions(
    run: "Run",
    stored: StoredGenerator,
    batches: "Iterable[ImageBatch]",
    folder: Path,
    about: dict[str, Any],
    inputs: dict[str, str],
    digest: str | None = None,
) -> None:
    """Describe `batches` and write that into `folder`: `about` says what they are, `inputs` what their features were
    made from. `digest` is the fingerprint; by default it is of these."""
    from tqdm import tqdm

    from pipeline.generate.describing import describe_images
    from pipeline.report.descriptions import as_text, render
    from pipeline.storage.atomic import publish_record
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.fingerprint import fingerprint

    settings, layout, manifest = run.config, run.layout, run.manifest
    text = read_training_text(run)
    space = space_of(settings, layout, stored.name)
    sources, described = gather_sources(stored, text, Bundle(space.path) if space else None, settings), []
    for batch in tqdm(batches, f"describe with {stored.name}", unit="batch", disable=None):
        found = describe_images(stored.generator, batch.features, sources, settings.describe.top)
        for shown, sentences in zip(batch.images, found, strict=True):
            described.append({**shown, "sentences": [one.to_dict() for one in sentences]})
    about = {**about, "settings": settings.describe.model_dump(), "precision": stored.precision}
    inputs = {**inputs, "manifest": manifest.fingerprint, "generator": stored.parameters.fingerprint}
    digest = digest or fingerprint("descriptions", 2, about, inputs)
    value = {**about, "inputs": inputs, "fingerprint": digest, "images": described}
    page = render(value, _thumbnails(settings, manifest, described[: settings.describe.shown]))
    beside = {"index.html": page.encode(), "descriptions.txt": as_text(value).encode()}
    publish_record(folder / "descriptions.json", value, beside)


def _thumbnails(settings: "Config", manifest: "Manifest", described: list[dict]) -> list[str | None]:
    """The address of a small picture of each described image or box; None where it cannot be read."""
    from pipeline.errors import InputError
    from pipeline.images.decode import ImageLimits
    from pipeline.report.thumbnails import thumbnail
    from pipeline.storage.sources import ImageSource, find_photographs

    limits = settings.collection
    bounds = ImageLimits.from_settings(limits)
    rows = {}
    if any(one["image_id"] is not None for one in described):
        rows = {row["image_id"]: row for row in manifest.images.to_pylist()}
    source, addresses = ImageSource(find_photographs(manifest.root, Path(settings.data_root)), limits.follow_links), []
    for one in described:
        try:
            row = rows.get(one["image_id"])
            data = source.read(row["path"], row["offset"], row["size"]) if row else Path(one["image"]).read_bytes()
            addresses.append(thumbnail(data, bounds, one["box"]))
        except (InputError, OSError):
            addresses.append(None)
    return addresses


def read_tagged_text(settings: "Config") -> list | None:
    """The sentences of `language_text.treebank`, None where it names none. Raises InputError for a file
    that cannot be read, and naming a line."""
    from pipeline.generate.tagging import read_treebank

    name = settings.language_text.treebank
    return list(read_treebank(_read_lines(name), name)) if name else None


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
