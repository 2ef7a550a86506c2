"""Texts of a run: their words and trees, the vocabulary, weak texts, text encoders, and sentences for models."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import compress
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from pipeline.compute.mapreduce import map_reduce
from pipeline.encoders.restore import restore_encoder
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.errors import InputError
from pipeline.foreign.files import read_lines
from pipeline.models.joint_model import JointModel
from pipeline.run import Run
from pipeline.storage.batch import cannot_write
from pipeline.storage.commit import read_record
from pipeline.storage.parameters import WORDS, origin_of, read_parameters
from pipeline.storage.tables import read_table
from pipeline.storage.texts import ParseShard, VectorShard, read_packed_trees, read_tokens, stack_rows, text_lines
from pipeline.text import vocabulary
from pipeline.text.counting import TermCounts, count_terms
from pipeline.text.dependencies import read_conllu
from pipeline.text.phrase_trees import read_brackets
from pipeline.text.tokens import TermSettings, make_analyzer
from pipeline.text.trees import SentenceTrees, Trees, fit_trees
from pipeline.text.vocabulary import CountsWords, Coverage, Tokens, Vocabulary, VocabularySizes
from pipeline.text.wordvectors import WordVectors, read_binary_vectors, read_text_vectors

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.compute.multivectors import Items
    from pipeline.config.names import Config
    from pipeline.encoders.text_encoder import Rows
    from pipeline.storage.manifest import ShardRows

log = logging.getLogger(__name__)


def read_token_vocabulary(run: Run) -> tuple[Vocabulary, str]:
    """Read the vocabulary `tokens` of the run, with which models read the words of sentences. Also return its
    fingerprint."""
    value = read_record(run.layout.token_vocabulary.path)
    return Vocabulary.from_dict(value), value["fingerprint"]


def read_analyzer(run: Run) -> Callable[[str], list[str]]:
    """Return the function that splits a sentence into words as the vocabulary `tokens` of the run does."""
    return make_analyzer(read_token_vocabulary(run)[0].settings)


def read_words(run: Run, sentence_id: np.ndarray, analyze: Callable[[str], list[str]]) -> list[list[str]]:
    """Return the words that `analyze` finds in each of the sentences `sentence_id` (m,).

    A sentence without words gets one empty word, because a model with one vector per word has one vector for such a
    sentence.
    """
    return [analyze(text) or [""] for text in run.manifest.sentences["text"].take(sentence_id).to_pylist()]


def read_trees(
    run: Run, number: int, analyze: Callable[[str], list[str]], chosen: np.ndarray | None = None
) -> Iterator[SentenceTrees]:
    """Yield the trees of the m sentences of the shard `number`, over the words that `analyze` finds in a sentence.

    `chosen` (m,) bool says which sentences are read. If `chosen` is None, all sentences are read.
    """
    shard = ParseShard(run.layout.parses.folder, number)
    parses = (entry.parse for entry in read_conllu(shard.conllu, str(shard.path)))
    trees = (tree for _, tree in read_brackets(shard.brackets, str(shard.brackets_path)))
    texts = run.manifest.texts(number)
    is_chosen = np.full(len(texts), True) if chosen is None else chosen
    return fit_trees(compress(parses, is_chosen), compress(trees, is_chosen), compress(texts, is_chosen), analyze)


def read_sentence_trees(run: Run, analyze: Callable[[str], list[str]], sentence_id: np.ndarray) -> list[SentenceTrees]:
    """Read the trees of the sentences `sentence_id` (m,), which must ascend. The trees are over the words that
    `analyze` finds in a sentence.

    Shards without any of these sentences are not opened.
    """
    trees = []
    for number in range(run.manifest.n_shards):
        rows = run.manifest.shard(number)
        chosen = np.isin(np.arange(rows.first_sentence, rows.last_sentence), sentence_id)
        trees += read_trees(run, number, analyze, chosen) if chosen.any() else []
    return trees


def learn_vocabulary(run: Run, name: str, settings: TermSettings, **sizes: Unpack[VocabularySizes]) -> Vocabulary:
    """Learn the vocabulary of the training sentences for the text encoder `name`, or for `tokens`.

    Terms are counted chunk by chunk, on the machines on which the run computes sums. `sizes` has the
    maximum `size` of the vocabulary, the `min_count` of sentences with a term, and the flags `idf` and `normalise`.
    Raises JointspaceError if the counts cannot be written to disk.
    """
    chunks = run.manifest.chunks or [range(0)]
    # Workers on other machines share only the folder of the run.
    parent, key = (Path(gettempdir()), "TMPDIR") if run.sums == "local" else (run.root.absolute(), "results_root")
    try:
        with TemporaryDirectory(prefix=f"jointspace-counts-{name}-", dir=parent) as folder:

            def count(settings: TermSettings) -> TermCounts:
                shared = run.root.absolute(), settings, Path(folder)
                return map_reduce(count_chunk, chunks, add, run.sums, shared)

            return vocabulary.learn_vocabulary(count, settings, **sizes)
    except OSError as error:
        raise cannot_write(parent / f"jointspace-counts-{name}", 0, error, key) from error


def count_chunk(chunk: range, root: Path, settings: TermSettings, folder: Path) -> TermCounts:
    """Count the terms of the training sentences in a chunk, which is a range of shards. `root` is the folder of the
    run, and the counts are stored as files in `folder`."""
    return count_terms(Run(root).manifest.texts_of("train", chunk), settings, folder)


def measure_coverage(run: Run, name: str, encoder: CountsWords, remedy: str) -> dict[str, int]:
    """Measure which share of the words in the dev sentences a text encoder or a vocabulary knows, and log the share.

    `name` is the name of the text encoder or vocabulary in messages. If the share is small, the log has a warning that
    ends with `remedy`. Returns the counts of pipeline.text.vocabulary.Coverage by name, which are all 0 if dev has no
    sentences.
    """
    coverage = Coverage.measure(encoder, run.manifest.texts_of("dev"))
    if coverage.is_poor:
        log.warning("%s does not know many of the words in the collection: %s. %s.", name, coverage, remedy)
    elif coverage.sentences:
        log.info("%s knows most of the words in the collection: %s.", name, coverage)
    return asdict(coverage)


def read_documents(run: Run, documents: str) -> "pa.Table":
    """Return the table of weak texts for the entry `documents` of the section `documents` of the configuration.

    These are the collection's own weak texts, or the simulated weak texts if the entry has the key `simulate`.
    """
    if run.config.documents[documents].simulate is None:
        return run.manifest.documents
    return read_table(run.layout.simulated(documents).path, "simulated-documents")[0]


def open_documents(run: Run, documents: str) -> "Callable[[ShardRows], tuple[pa.Table, int]]":
    """Return a function that reads the weak texts of a shard, for the entry `documents` of the section `documents`.

    The function takes the rows of a shard. It returns the table of the shard's weak texts, and the number of weak texts
    in all earlier shards.
    """
    if run.config.documents[documents].simulate is None:
        return lambda rows: (run.manifest.table("documents", rows.number), rows.first_document)
    table = read_documents(run, documents)
    image_id = table["image_id"].to_numpy()

    def of_shard(rows: "ShardRows") -> "tuple[pa.Table, int]":
        first, last = image_id.searchsorted([rows.first_image, rows.last_image]).tolist()
        return table.slice(first, last - first), first

    return of_shard


def read_extra_text(config: "Config") -> list[str]:
    """Read the sentences in `language_text.file`. Return an empty list if no file is configured.

    Raises InputError if the file cannot be read or has a line with too few columns. The message has the number of the
    line.
    """
    file = config.language_text.file
    column = config.language_text.column
    sentences = []
    for number, line in enumerate(text_lines(Path(file)) if file else [], 1):
        columns = line.split("\t")
        if len(columns) <= column:
            raise InputError(
                f"{file}, line {number} has {len(columns)} columns between tabs, so it has no column {column}, counted"
                " from 0. Correct language_text.column."
            )
        sentences.append(columns[column])
    return sentences


def read_queries(file: Path) -> list[str]:
    """Read the queries in `file`, which the key `hubness.queries` names, one per line. Empty lines are left out. Raises
    InputError if the file cannot be read or has no query."""
    if not (queries := [line.strip() for line in read_lines(file) if line.strip()]):
        raise InputError(f"{file} has no query. Write one query per line, or remove hubness.queries.")
    return queries


def read_word_file(path: Path, form: str, wanted: Collection[str], first: int = 0) -> WordVectors:
    """Read the vectors of the `wanted` words, and of the first `first` words, from a file that the user supplied.

    `form` is `text` or `binary` (word2vec's formats). Raises InputError if the file cannot be read.
    """
    read = read_text_vectors if form == "text" else read_binary_vectors
    try:
        with open(path, "rb") as stream:
            return read(stream, str(path), wanted, first)
    except OSError as error:
        raise InputError(
            f"jointspace cannot read {path} ({error.strerror}). Correct the name of the file in the configuration."
        ) from error


def open_text_encoder(run: Run, name: str) -> TextEncoder:
    """Restore a text encoder of the run, on the CPU."""
    return restore_encoder(TextEncoder, run.text_encoder(name), run.layout.text_encoder(name).path)


class RunTextEmbedder:
    """Embedder of texts with a model and its text encoders.

    The run must have these text encoders. They are opened when they are first needed.
    """

    def __init__(self, run: Run, model: JointModel) -> None:
        self.run = run
        self.model = model

    @cached_property
    def _encoders(self) -> dict[str, TextEncoder]:
        return {name: open_text_encoder(self.run, name) for name in self.model.text_encoders}

    def knows(self, text: str) -> bool:
        """Return whether at least one of the text encoders knows a word of `text` that is not a stop word."""
        return any(encoder.searches(text) for encoder in self._encoders.values())

    def embed_sentences(self, sentences: Sequence[str]) -> "Items":
        """Embed n texts on the device of the run. Returns (n, c) float32, or MultiVectors for a multi-vector model."""
        config = self.run.config
        batch = self.run.batch_size
        encode = {
            name: encoder.on_device(config.device, config.extract.precision, batch)
            for name, encoder in self._encoders.items()
        }
        return self.model.embed_sentences({name: encode_texts(sentences) for name, encode_texts in encode.items()})


def encode_on_device(run: Run, name: str) -> "Callable[[Sequence[str]], Rows]":
    """Return the function that encodes texts with the text encoder `name` of the run, on the device of the run."""
    encoder = open_text_encoder(run, name)
    return encoder.on_device(run.config.device, run.config.extract.precision, run.batch_size)


def read_corpus_vectors(run: Run) -> np.ndarray:
    """Read the word vectors (V + 1, d) that `train-word-vectors` has learned for the V words of the vocabulary.

    The last row is for all unknown words.
    """
    return read_parameters(run.layout.word_vectors.path, WORDS).tensors["words"]


@dataclass(frozen=True)
class Sentences:
    """All sentences of a run in the form that a model takes.

    `take(sentence_id)` returns the sentences with these ids. `learned` is stored in the details of the model: the
    fingerprint of the `vocabulary`, or the origins of the vectors of `text_encoders`. `labels` is the fingerprint of
    the table of tree labels, or None for a model without trees.
    """

    take: Callable[[Any], Any]
    learned: Mapping[str, Any]
    labels: str | None = None


def open_sentences(run: Run, model: str) -> Sentences:
    """Open the sentences of a run in the form that the model `model` takes."""
    configured = run.config.model(model)
    layout = run.layout
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
    """Read the sentences of all shards, or of the shards `numbers`, in the form that a model takes.

    `form` is `tokens`, `dependency-trees`, `phrase-trees` or `vectors`. The result is Tokens or Trees, or for vectors
    a mapping of each of the `text_encoders` to a dense or sparse array (m, d).
    """
    layout = run.layout
    numbers = range(run.manifest.n_shards) if numbers is None else numbers
    if form == "vectors":
        every = {name: [VectorShard(layout.sentences(name).shard(n)) for n in numbers] for name in text_encoders}
        return {name: stack_rows([shard.matrix for shard in shards]) for name, shards in every.items()}
    if form == "tokens":
        return Tokens(*read_tokens(layout.sentences("tokens").folder, numbers))
    return Trees(**read_packed_trees(layout.sentences("trees").folder, form.removesuffix("-trees"), numbers))
