"""Texts of a run: their words and trees, the vocabulary, weak texts, text encoders, and sentences for models."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.compute.mapreduce import map_reduce
from pipeline.config.stored import restore_text_encoder
from pipeline.config.text import WordVectorSource
from pipeline.encoders.text_encoder import GivenVectors, TextEncoder
from pipeline.errors import InputError
from pipeline.run import Run
from pipeline.run.reading.precomputed import match_given_sentences
from pipeline.run.run import chunks
from pipeline.storage.batch import cannot_write
from pipeline.storage.commit import read_record
from pipeline.storage.json_files import read_json, require_form
from pipeline.storage.parameters import WORDS, origin_of, read_parameters
from pipeline.storage.records import VocabularyForm
from pipeline.storage.tables import read_table
from pipeline.storage.texts import (
    ParseShard,
    VectorShard,
    read_packed_trees,
    read_tokens,
    stack_rows,
    text_lines,
)
from pipeline.text import vocabulary
from pipeline.text.counting import TermCounts, count_terms
from pipeline.text.dependencies import read_conllu
from pipeline.text.phrase_trees import read_brackets
from pipeline.text.sequences import Tokens
from pipeline.text.tokens import LONGEST_NGRAM, TermSettings, make_analyzer
from pipeline.text.trees import SentenceTrees, Trees, fit_trees
from pipeline.text.vocabulary import Coverage, Vocabulary
from pipeline.text.wordvectors import WordVectors, read_binary_vectors, read_text_vectors

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.config.names import Config
    from pipeline.config.text import TextEncoderEntry
    from pipeline.storage.manifest import ShardRows

log = logging.getLogger(__name__)

COMPARED = 16
"""Sentences whose vectors made elsewhere are compared with those of the encoder that they are said to be of."""


def read_token_vocabulary(run: Run) -> tuple[Vocabulary, str]:
    """The vocabulary of words, and its fingerprint."""
    value = read_record(run.layout.token_vocabulary.path)
    return Vocabulary.from_dict(value), value["fingerprint"]


def read_analyzer(run: Run) -> Callable[[str], list[str]]:
    """What finds the words of a sentence."""
    return make_analyzer(read_token_vocabulary(run)[0].settings)


def read_words(run: Run, sentence_id: np.ndarray, analyze: Callable[[str], list[str]]) -> list[list[str]]:
    """The words of some sentences that have a vector for each word; one without words has that of an unknown word."""
    return [analyze(text) or [""] for text in run.manifest.sentences["text"].take(sentence_id).to_pylist()]


def read_trees(
    run: Run, number: int, analyze: Callable[[str], list[str]], chosen: np.ndarray | None = None
) -> Iterator[SentenceTrees]:
    """Read the trees of one shard's sentences, over the words that `analyze` finds in them.

    With `chosen` (m,), only the sentences for which it is true are read.
    """
    shard = ParseShard(run.layout.parses.folder, number)
    parses = (entry.parse for entry in read_conllu(shard.conllu, str(shard.path)))
    trees = (tree for _, tree in read_brackets(shard.brackets, str(shard.brackets_path)))
    texts = run.manifest.texts(number)
    is_chosen = np.full(len(texts), True) if chosen is None else chosen
    return fit_trees(compress(parses, is_chosen), compress(trees, is_chosen), compress(texts, is_chosen), analyze)


def read_sentence_trees(run: Run, analyze: Callable[[str], list[str]], sentence_id: np.ndarray) -> list[SentenceTrees]:
    """Read the trees of the sentences `sentence_id` (m,), ascending, over the words of `analyze`. Shards without such a
    sentence are not opened."""
    trees = []
    for number in range(run.manifest.n_shards):
        rows = run.manifest.shard(number)
        chosen = np.isin(np.arange(rows.first_sentence, rows.last_sentence), sentence_id)
        trees += read_trees(run, number, analyze, chosen) if chosen.any() else []
    return trees


def learn_vocabulary(
    run: Run, name: str, settings: TermSettings, *, size: int, min_count: int, idf: bool, normalise: bool
) -> Vocabulary:
    """Learn the vocabulary of the training sentences for the text encoder `name`, or for `tokens`.

    Terms are counted chunk by chunk, where the run computes sums. The other parameters are those of `learn_vocabulary`
    in pipeline.text.vocabulary. Raises JointspaceError if there is no room on the disk.
    """
    parts = chunks(run.manifest.n_shards, run.manifest.shard_size) or [range(0)]
    # Other machines that count see the run's folder alone.
    parent, key = (Path(gettempdir()), "TMPDIR") if run.sums == "local" else (run.root.absolute(), "results_root")
    try:
        with TemporaryDirectory(prefix=f"jointspace-counts-{name}-", dir=parent) as folder:

            def count(settings: TermSettings) -> TermCounts:
                shared = run.root.absolute(), settings, Path(folder)
                return map_reduce(count_part, parts, add, run.sums, shared)

            return vocabulary.learn_vocabulary(
                count, settings, size=size, min_count=min_count, idf=idf, normalise=normalise
            )
    except OSError as error:
        raise cannot_write(parent / f"jointspace-counts-{name}", 0, error, key) from error


def count_part(part: range, root: Path, settings: TermSettings, folder: Path) -> TermCounts:
    """The terms of the training sentences in the shards of a part, in files of the `folder`."""
    return count_terms(Run(root).manifest.texts_of("train", part), settings, folder)


def measure_coverage(run: Run, name: str, encoder: TextEncoder | Vocabulary, remedy: str) -> dict[str, int]:
    """How much of dev's sentences a text encoder knows; says so, with a remedy where that is little."""
    coverage = Coverage.measure(encoder, run.manifest.texts_of("dev"))
    if coverage.is_poor:
        log.warning("%s: %s; %s", name, coverage, remedy)
    elif coverage.sentences:
        log.info("%s: %s", name, coverage)
    return asdict(coverage)


def read_documents(run: Run, documents: str) -> "pa.Table":
    """The weak texts that a section of `documents` has: the collection's own, or simulated ones."""
    if run.config.documents[documents].simulate is None:
        return run.manifest.documents
    return read_table(run.layout.simulated(documents).path, "simulated-documents")[0]


def open_documents(run: Run, documents: str) -> "Callable[[ShardRows], tuple[pa.Table, int]]":
    """What reads those of one shard, and the row of its first one among all."""
    if run.config.documents[documents].simulate is None:
        return lambda rows: (run.manifest.table("documents", rows.number), rows.first_document)
    table = read_documents(run, documents)
    image_id = table["image_id"].to_numpy()

    def of_shard(rows: "ShardRows") -> "tuple[pa.Table, int]":
        first, last = image_id.searchsorted([rows.first_image, rows.last_image]).tolist()
        return table.slice(first, last - first), first

    return of_shard


def read_extra_text(config: "Config") -> list[str]:
    """The sentences of `language_text.file`. Raises InputError for a file that cannot be read, and naming a line."""
    file, column = config.language_text.file, config.language_text.column
    sentences = []
    for number, line in enumerate(text_lines(Path(file)) if file else [], 1):
        columns = line.split("\t")
        if len(columns) <= column:
            raise InputError(f"{file}, line {number} has no column {column}; correct language_text.column")
        sentences.append(columns[column])
    return sentences


class RunTextMaterial:
    """What the text encoder `name` of a run is made from; see pipeline.encoders.text_encoder.TextMaterial."""

    def __init__(self, run: Run, name: str) -> None:
        self.run = run
        self.name = name
        self.own = run.config.text_encoder(name).own
        self.seed = run.config.seed
        self.words = TermSettings(lemmatise=False, stop_words=(), max_ngram=1, max_characters=LONGEST_NGRAM)

    def texts(self) -> Iterable[str]:
        return self.run.manifest.texts_of("train")

    def vocabulary(self) -> Vocabulary | None:
        path = self._files().get("file")
        if path is None:
            return None
        value = read_json(path)
        if isinstance(value, dict) and isinstance(value.get("details"), dict):
            value = value["details"].get("settings")  # of a text encoder's model.json
        return Vocabulary.from_dict(require_form(value, VocabularyForm, path, "correct text.vocabulary"))

    def learn_vocabulary(self, settings: TermSettings, **chosen: Any) -> Vocabulary:
        return learn_vocabulary(self.run, self.name, settings, **chosen)

    def corpus(self) -> WordVectors:
        terms = read_token_vocabulary(self.run)[0].terms
        return WordVectors(terms, read_corpus_vectors(self.run)[: len(terms)])

    def file(self, wanted: Collection[str]) -> WordVectors:
        own = self.own
        assert isinstance(own, WordVectorSource)
        return read_word_file(self._files()["file"], own.format, wanted, own.words)

    def _files(self) -> dict[str, Path]:
        return self.own.files(self.run.config.weights_root)

    def folder(self, name: str) -> Path | None:
        return self.own.folder(self.run.config.weights_root)

    def encoder(self, name: str) -> Any:
        return open_text_encoder(self.run, name)

    def given(self, entry: "TextEncoderEntry") -> GivenVectors:
        matched = match_given_sentences(self.run, entry)
        rows = range(min(COMPARED, len(matched.labels)))
        texts = self.run.manifest.rows("sentences", rows)["text"].to_pylist()
        return GivenVectors(texts, matched.features(rows))


def read_word_file(path: Path, form: str, wanted: Collection[str], first: int = 0) -> WordVectors:
    """The vectors of the `wanted` words, and of the `first` so many, in a file that a person brought, whose form is
    `text` or `binary`. Raises InputError where it cannot be read."""
    read = read_text_vectors if form == "text" else read_binary_vectors
    try:
        with open(path, "rb") as stream:
            return read(stream, str(path), wanted, first)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); correct its name in the configuration") from error


def open_text_encoder(run: Run, name: str) -> Any:
    """A text encoder of the run."""
    stored = run.text_encoder(name)
    return restore_text_encoder(stored.settings, stored.tensors, run.layout.text_encoder(name).path)


def read_corpus_vectors(run: Run) -> np.ndarray:
    """(V + 1, d) the vectors that train-word-vectors learned for the words of the vocabulary, and one more for all
    others."""
    return read_parameters(run.layout.word_vectors.path, WORDS).tensors["words"]


@dataclass(frozen=True)
class Sentences:
    """All sentences of a run in the form that a model takes: `take(sentence_id)` gives some of them. `learned` is what
    the model's details say of them: their `vocabulary`, or the origins of `text_encoders`. `labels` is the fingerprint
    of the label table of trees."""

    take: Callable[[Any], Any]
    learned: Mapping[str, Any]
    labels: str | None = None


def open_sentences(run: Run, model: str) -> Sentences:
    """The sentences of a run for one of its trained models."""
    configured, layout = run.config.model(model), run.layout
    spec = configured.spec
    forms = read_sentences(run, spec.sentences, configured.text_encoders)
    if spec.sentences == "vectors":
        shards = {name: VectorShard(layout.sentences(name).shard(0)) for name in forms}
        return Sentences(
            lambda sentence_id: {name: matrix[sentence_id] for name, matrix in forms.items()},
            {"text_encoders": {name: origin_of(shard.commit) for name, shard in shards.items()}},
        )
    labels = read_record(layout.labels.path)["fingerprint"] if spec.trees else None
    return Sentences(forms.take, {"vocabulary": read_token_vocabulary(run)[1]}, labels=labels)


def read_sentences(run: Run, form: str, text_encoders: Iterable[str] = (), numbers: Sequence[int] | None = None) -> Any:
    """The sentences of all shards, or of those with the `numbers`, in the form that a model takes: tokens, trees of a
    kind, or text encoder -> vectors (m, d)."""
    layout, numbers = run.layout, range(run.manifest.n_shards) if numbers is None else numbers
    if form == "vectors":
        every = {name: [VectorShard(layout.sentences(name).shard(n)) for n in numbers] for name in text_encoders}
        return {name: stack_rows([shard.matrix for shard in shards]) for name, shards in every.items()}
    if form == "tokens":
        return Tokens(*read_tokens(layout.sentences("tokens").folder, numbers))
    return Trees(**read_packed_trees(layout.sentences("trees").folder, form.removesuffix("-trees"), numbers))
