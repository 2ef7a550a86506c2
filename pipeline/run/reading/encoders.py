"""Encoders of a run: the material from which an encoder is prepared, and the storage of a prepared encoder."""

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Unpack

import numpy as np

from pipeline.config.encoders import EncoderEntry, NetworkEntry, WordVectorsEntry
from pipeline.encoders.material import EncoderMaterial, GivenVectors
from pipeline.errors import InputError
from pipeline.images.preprocess import TrainImages
from pipeline.run import Job, Run
from pipeline.run.reading.photos import open_photographs, photograph_reader
from pipeline.run.reading.precomputed import match_precomputed
from pipeline.run.reading.texts import learn_vocabulary, read_corpus_vectors, read_token_vocabulary, read_word_file
from pipeline.storage.json_files import Json, check_form, read_json
from pipeline.storage.parameters import ENCODER, TEXT_ENCODER, LibraryFiles, write_parameters
from pipeline.storage.records import VocabularyForm
from pipeline.text.tokens import TermSettings
from pipeline.text.vocabulary import Vocabulary, VocabularySizes
from pipeline.text.wordvectors import WordVectors

if TYPE_CHECKING:
    from pipeline.config.images import FinetuneSettings
    from pipeline.encoders.image_encoder import ImageEncoder
    from pipeline.encoders.networks import NetworkEncoder
    from pipeline.encoders.text_encoder import TextEncoder

N_COMPARED = {"image": 4, "text": 16}
"""Modality -> number of images or captions on which precomputed vectors are checked. The encoder that the key `made_by`
names encodes these images or captions anew, and the two sets of vectors are compared."""


@dataclass(frozen=True)
class RunTexts:
    """The training captions and word vectors of a run, from which the text encoder of `entry` is prepared. The class
    implements pipeline.encoders.material.TrainTexts."""

    run: Run
    entry: EncoderEntry

    def texts(self) -> Iterable[str]:
        return self.run.manifest.texts_of("train")

    def learn_vocabulary(self, settings: TermSettings, **sizes: Unpack[VocabularySizes]) -> Vocabulary:
        return learn_vocabulary(self.run, self.entry.name, settings, **sizes)

    def vocabulary(self) -> Vocabulary | None:
        path = self._files().get("file")
        if path is None:
            return None
        value = read_json(path)
        if isinstance(value, dict) and isinstance(value.get("details"), dict):
            value = value["details"].get("settings")  # The file is the model.json of a text encoder.
        check_form(value, VocabularyForm, path, "Correct text.vocabulary.")
        return Vocabulary.from_dict(value)

    def corpus(self) -> WordVectors:
        terms = read_token_vocabulary(self.run)[0].terms
        return WordVectors(tuple(terms), read_corpus_vectors(self.run)[: len(terms)])

    def file(self, wanted: Collection[str]) -> WordVectors:
        assert isinstance(self.entry, WordVectorsEntry)
        return read_word_file(self._files()["file"], self.entry.format, wanted, self.entry.words)

    def _files(self) -> dict[str, Path]:
        return self.entry.files(self.run.config.weights_root)


def encoder_material(run: Run, entry: EncoderEntry) -> EncoderMaterial:
    """Collect what is needed to prepare the encoder of an entry.

    The material always has the seed, the folder of the weights and the settings of regions. It has the training images
    for an image encoder that learns, and the training texts for a text encoder. If the entry names another encoder, the
    material has the parameters of that encoder. If the entry also names precomputed vectors, the material has some of
    these vectors too.
    """
    config = run.config
    is_image = entry.modality == "image"
    base = None
    images = None
    if entry.base is not None:
        base = run.encoder(entry.base) if is_image else run.text_encoder(entry.base)
    if is_image and entry.learns:
        manifest = run.manifest
        rows = np.flatnonzero(manifest.splits == "train")
        images = TrainImages(manifest.images, rows, manifest.fingerprint, photograph_reader(run))
    given = read_given(run, entry) if entry.base is not None and entry.spec.reads == "vectors" else None
    texts = None if is_image else RunTexts(run, entry)
    return EncoderMaterial(
        config.seed, Path(config.weights_root), config.regions.decisive(), base, given, images, texts
    )


def read_given(run: Run, entry: EncoderEntry) -> GivenVectors:
    """Read the first images or captions of a run, and the precomputed vectors that an entry names for them.

    N_COMPARED has the number of images or captions. Raises InputError if one of these images cannot be read, and if any
    image or caption of the run has no vector.
    """
    matched = match_precomputed(run, entry)
    rows = range(min(N_COMPARED[entry.modality], len(matched.labels)))
    if entry.modality == "text":
        texts = run.manifest.rows("sentences", rows)["text"].to_pylist()
        return GivenVectors([], texts, texts, matched.features(rows))
    opened = list(open_photographs(run, list(rows)))
    if reasons := [reason for _, reason in opened if reason]:
        raise InputError(
            f"{max(reasons)}. `ingest` could read this photo, but now it cannot be read. Restore the photo, or run"
            f" `jointspace stage ingest --run {shlex.quote(str(run.root))}` again."
        )
    images = [image for image, _ in opened if image is not None]
    return GivenVectors(images, [], matched.names(rows), matched.features(rows))


def prepare_start(run: Run, encoder: EncoderEntry, training: "FinetuneSettings") -> "NetworkEncoder":
    """Make the network from which the finetuning of an encoder starts. `training` says which weights the network has
    at the start."""
    from pipeline.encoders.networks import NetworkEncoder

    assert isinstance(encoder, NetworkEntry)
    start = {"weights": training.start, "file": training.file, "sha256": training.sha256}
    entry = encoder.model_copy(update=start)
    network = entry.spec.load().prepare(entry, encoder_material(run, entry))
    assert isinstance(network, NetworkEncoder)
    return network


def write_encoder(
    job: Job, entry: EncoderEntry, encoder: "ImageEncoder | TextEncoder", details: Mapping[str, Json]
) -> None:
    """Store an encoder in the folder of its job. A model of another library is stored with its files.

    `details` are noted in the commit record. Raises InputError if the files of the model have a form that would be
    refused when the encoder is read.
    """
    kind = ENCODER if entry.modality == "image" else TEXT_ENCODER
    about = {"settings": encoder.settings() | entry.spec.stored_kind, "provenance": job.provenance}
    path = job.path / "model.safetensors"
    job.path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{entry.name}-", dir=job.path.parent) as saved:
        folder = Path(saved)
        encoder.save(folder)
        library = None
        if names := frozenset(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()):
            from pipeline.encoders.libraries.folder import check_folder

            library = LibraryFiles(folder, names)
            try:
                check_folder(library)
            except ValueError as error:
                raise InputError(
                    f"The model of the encoder {entry.name} cannot be stored ({error}). Choose another model."
                ) from error
        write_parameters(path, kind, encoder.tensors(), **about, details=details, library=library)
