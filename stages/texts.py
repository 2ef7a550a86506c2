"""Sentences for models, and the text encoders that make vectors of them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from pipeline.config.schema.text_encoders import TextEncoderEntry
    from pipeline.config.schema.variants import Model
    from pipeline.run import Run
    from pipeline.run.layout import Layout, Shards
    from pipeline.storage.manifest import ShardRows
    from pipeline.text.counting import TermCounts
    from pipeline.text.text_encoder import TextMaterial
    from pipeline.text.tokens import TermSettings
    from pipeline.text.vocabulary import Vocabulary

COMPARED = 16
"""Sentences whose vectors made elsewhere are compared with those of the encoder that they are said to be of."""


def read_text_material(run: "Run", encoder: str) -> "TextMaterial":
    """What a text encoder of the configuration is made from."""
    from pipeline.storage.json_files import read_json, require_form
    from pipeline.storage.records import VocabularyForm
    from pipeline.text.text_encoder import GivenVectors, TextMaterial
    from pipeline.text.tokens import TermSettings
    from pipeline.text.vocabulary import Vocabulary
    from pipeline.text.wordvectors import WordVectors, read_binary_vectors, read_text_vectors
    from stages.given import match_given_sentences
    from stages.inputs import read_token_vocabulary

    config = run.config
    own = config.text_encoder(encoder).own
    path = own.outside(config.weights_root)

    def vocabulary() -> Vocabulary | None:
        if path is None:
            return None
        value = read_json(path)
        if isinstance(value, dict) and isinstance(value.get("details"), dict):
            value = value["details"].get("settings")  # of a text encoder's model.json
        given = require_form(value, VocabularyForm, path, "correct text.vocabulary")
        return Vocabulary.from_dict(given)

    def corpus() -> WordVectors:
        known, _ = read_token_vocabulary(run)
        return WordVectors(known.terms, read_corpus_vectors(run)[: len(known.terms)])

    def file(wanted: Collection[str]) -> WordVectors:
        read = read_text_vectors if own.format == "text" else read_binary_vectors
        with opened(path) as stream:
            return read(stream, str(path), wanted, own.words)

    def folder(name: str) -> Path | None:
        return own.folder(config.weights_root)

    def given(entry: "TextEncoderEntry") -> GivenVectors:
        matched = match_given_sentences(run, entry)
        rows = range(min(COMPARED, len(matched.labels)))
        return GivenVectors(run.manifest.rows("sentences", rows)["text"].to_pylist(), matched.features(rows))

    def files() -> list[bytes]:
        found = []
        for place in own.files(config.weights_root).values():
            with opened(place) as stream:
                found.append(stream.read())
        return found

    tokens = config.tokens
    words = TermSettings(tokens.lowercase, tokens.tokenizer, lemmatise=False, stop_words=(), max_ngram=1)
    return TextMaterial(
        config.seed,
        words,
        lambda: run.manifest.training_texts(),  # `plan` may have no manifest, and asks for none
        vocabulary,
        corpus,
        file,
        folder,
        lambda name: open_text_encoder(run, name),
        given,
        files,
        partial(learn_vocabulary, run, encoder),
    )


def learn_vocabulary(run: "Run", name: str, settings: "TermSettings", **chosen: Any) -> "Vocabulary":
    """The vocabulary of the training sentences for the text encoder `name`, or for `tokens`: their terms are counted by
    part, where the run sums. `chosen` is what `learn_vocabulary` of pipeline.text.vocabulary takes. Raises
    JointspaceError where there is no room."""
    from tempfile import TemporaryDirectory, gettempdir

    from pipeline.mapreduce import map_reduce
    from pipeline.run.parts import chunks
    from pipeline.storage.batch import cannot_write
    from pipeline.text import vocabulary
    from pipeline.text.counting import merge_counts

    manifest = run.manifest
    parts = chunks(manifest.n_shards, manifest.shard_size) or [range(0)]
    # Other machines that count see the run's folder alone.
    parent, key = (Path(gettempdir()), "TMPDIR") if run.sums == "local" else (run.root.absolute(), "results_root")
    try:
        with TemporaryDirectory(prefix=f"jointspace-counts-{name}-", dir=parent) as folder:

            def count(settings: "TermSettings") -> "TermCounts":
                shared = run.root.absolute(), settings, Path(folder)
                return map_reduce(count_part, parts, merge_counts, run.sums, shared)

            return vocabulary.learn_vocabulary(count, settings, **chosen)
    except OSError as error:
        raise cannot_write(parent / f"jointspace-counts-{name}", 0, error, key) from error


def count_part(part: range, root: Path, settings: "TermSettings", folder: Path) -> "TermCounts":
    """The terms of the training sentences in the shards of a part, in files of the `folder`."""
    from pipeline.run import Run
    from pipeline.text.counting import count_terms

    return count_terms(Run(root).manifest.training_texts(part), settings, folder)


def read_documents(run: "Run", documents: str) -> "pa.Table":
    """The weak texts that a section of `documents` has: the collection's own, or simulated ones."""
    from pipeline.storage.tables import read_table

    if run.config.documents[documents].simulate is None:
        return run.manifest.documents
    path = run.layout.simulated(documents).path
    return read_table(path, "simulated-documents")[0]


def open_documents(run: "Run", documents: str) -> "Callable[[ShardRows], tuple[pa.Table, int]]":
    """What reads those of one shard, and the row of its first one among all."""
    if run.config.documents[documents].simulate is None:
        return lambda rows: (run.manifest.table("documents", rows.number), rows.first_document)
    table = read_documents(run, documents)
    image_id = table["image_id"].to_numpy()

    def of_shard(rows: "ShardRows") -> "tuple[pa.Table, int]":
        first, last = image_id.searchsorted([rows.first_image, rows.last_image]).tolist()
        return table.slice(first, last - first), first

    return of_shard


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file that a person brought. Raises InputError where it cannot be read."""
    from pipeline.errors import InputError

    try:
        stream = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); correct its name in the configuration") from error
    with stream:
        yield stream


def open_text_encoder(run: "Run", name: str) -> Any:
    """A text encoder of the run."""
    from pipeline.config.registry.stored import restore_text_encoder

    stored = run.text_encoder(name)
    return restore_text_encoder(stored.settings, stored.tensors, run.layout.text_encoder(name).path)


def sentence_shards(model: "Model", layout: "Layout") -> "dict[str, Shards]":
    """The sentences that a model reads: the vectors of its text encoders, or tokens or trees."""
    spec = model.spec
    if spec.sentences == "vectors":
        return {f"text/{name}": layout.sentences(name) for name in model.text_encoders}
    return {spec.form: layout.sentences(spec.form)}


def read_corpus_vectors(run: "Run") -> "np.ndarray":
    """(V + 1, d) the vectors that train-word-vectors learned for the words of the vocabulary, and one more for all
    others."""
    from pipeline.storage.parameters import WORDS, read_parameters

    return read_parameters(run.layout.word_vectors.path, WORDS).tensors["words"]


@dataclass(frozen=True)
class Sentences:
    """All sentences of a run in the form that a model takes: `take(sentence_id)` gives some of them. `learned` is what
    the model's details say of them: their `vocabulary`, or the origins of `text_encoders`, which the view `text` has.
    `labels` is the fingerprint of the label table of trees."""

    take: Callable[[Any], Any]
    learned: Mapping[str, Any]
    text: Any = None
    labels: str | None = None


def open_sentences(run: "Run", model: str) -> Sentences:
    """The sentences of a run for one of its trained models."""
    from pipeline.models.linear.views import TextView
    from pipeline.storage.records import read_labels
    from pipeline.storage.rows import VectorRows, open_rows
    from pipeline.text.sequences import Tokens
    from pipeline.text.trees import Trees
    from stages.inputs import read_token_vocabulary

    known, layout = run.config.model(model), run.layout
    spec = known.spec
    if spec.sentences != "vectors":
        rows = open_rows(spec.sentences, run.manifest, layout.sentences(spec.form).folder)
        forms = Trees(**rows.trees) if spec.trees else Tokens(rows.ids, rows.offsets)
        labels = read_labels(layout.labels.path)["fingerprint"] if spec.trees else None
        return Sentences(forms.take, {"vocabulary": read_token_vocabulary(run)[1]}, labels=labels)
    every = {name: VectorRows(run.manifest, layout.sentences(name).folder) for name in known.text_encoders}
    steps = {name: run.config.text_encoder(name).normalise for name in every}
    return Sentences(
        lambda sentence_id: {name: rows.matrix[sentence_id] for name, rows in every.items()},
        {"text_encoders": {name: rows.origin for name, rows in every.items()}},
        TextView.of({name: rows.matrix for name, rows in every.items()}, steps),
    )
