"""What a training begins with: word vectors, another model, or what another model has chosen."""

from pathlib import Path
from typing import Any


def read_words(settings: Any, vocabulary_path: Path | None, words_path: Path | None, expected: str) -> Any:
    """The first word vectors, (V + 1, d): from the configured file, learned on the corpus, or drawn."""
    from pipeline.errors import InputError, UsageError
    from pipeline.models.neural.sentences import INITIAL
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.records import read_vocabulary
    from pipeline.text.wordvectors import random_vectors, read_binary_vectors, read_text_vectors

    if vocabulary_path is None:
        raise UsageError("this model takes sentences word by word; give text/tokens.json as --vocabulary")
    value, chosen = read_vocabulary(vocabulary_path), settings.word_vectors
    require_same("vocabulary", {str(vocabulary_path): value["fingerprint"], "the token shards": expected})
    if chosen.source == "random":
        return random_vectors(len(value["terms"]), chosen.dim, INITIAL, settings.seed)
    if chosen.source == "corpus":
        return _read_learned_words(words_path, value["fingerprint"])
    path = Path(settings.weights_root) / chosen.file
    read = read_text_vectors if chosen.format == "text" else read_binary_vectors
    try:
        with open(path, "rb") as stream:
            return read(stream, str(path), value["terms"]).table(value["terms"], settings.seed)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); correct word_vectors.file or weights_root") from error


def _read_learned_words(path: Path | None, vocabulary: str) -> Any:
    """The word vectors that `train-word-vectors` wrote for this vocabulary."""
    from pipeline.errors import UsageError
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.parameters import WORDS, read_parameters

    if path is None:
        raise UsageError("word_vectors.source is corpus: give what train-word-vectors wrote as --words")
    parameters = read_parameters(path, WORDS)
    require_same("vocabulary", {str(path): parameters.details["inputs"]["vocabulary"], "the token shards": vocabulary})
    return parameters.tensors["words"]


def read_word_start(
    folder: Path | None, registered: str, terms_path: Path | None, vocabulary_path: Path | None, learned: dict[str, Any]
) -> tuple[Any, dict[str, str]]:
    """The `registered` model in `folder` with the terms of every word, and its fingerprint; `learned` as for
    `read_start`, of which the vocabulary is that of the words."""
    from dataclasses import replace

    from pipeline.errors import UsageError
    from pipeline.models.neural.word_towers import WordStart
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.records import read_vocabulary
    from pipeline.text.tfidf import encode
    from pipeline.text.vocabulary import Vocabulary

    if folder is None or terms_path is None or vocabulary_path is None:
        raise UsageError(
            f"this model starts from an {registered}; give its folder as --start, text/vocabulary.json as --terms, and"
            " text/tokens.json as --vocabulary"
        )
    value, words = read_vocabulary(terms_path), read_vocabulary(vocabulary_path)
    require_same("vocabulary", {str(vocabulary_path): words["fingerprint"], "the token shards": learned["vocabulary"]})
    start, inputs = read_start(folder, registered, {**learned, "vocabulary": value["fingerprint"]})
    vocabulary = replace(Vocabulary.from_dict(value), normalise=False)
    return WordStart(start, encode([*words["terms"], ""], vocabulary)), inputs


def read_start(folder: Path | None, registered: str, learned: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """The `registered` model in `folder`, and its fingerprint; nothing where there is no folder.

    IntegrityError where it learned from features of other encoders, or another vocabulary, than `learned` has, the
    details of the model that starts from it.
    """
    from pipeline.errors import UsageError
    from pipeline.specs.stored import restore
    from pipeline.storage.parameters import MODEL, read_parameters
    from pipeline.storage.provenance import require_same_origins

    if folder is None:
        return None, {}
    parameters = read_parameters(folder / "model.safetensors", MODEL)
    if parameters.details["registered"] != registered:
        raise UsageError(f"{folder} holds {parameters.details['registered']}; give a folder of {registered} as --start")
    require_same_origins({str(folder): parameters.details, "what is given": learned})
    start = restore(registered, parameters.settings, parameters.tensors, folder)
    return start, {"start": parameters.fingerprint}


def read_chosen(settings: Any, name: str, folder: Path | None) -> Any:
    """The model in `folder`, which has chosen on dev what `name` is refitted by; None where `name` is no refit."""
    from pipeline.errors import UsageError
    from pipeline.storage.parameters import MODEL, read_parameters

    base = settings.refitted(name)
    if base is None:
        if folder is not None:
            raise UsageError(f"{name} is no refit and chooses for itself; leave --chosen out")
        return None
    if folder is None:
        raise UsageError(f"{name} is fitted by what {base} chose on dev; give the folder of that model as --chosen")
    parameters = read_parameters(folder / "model.safetensors", MODEL)
    if (held := parameters.details["model"]) != base:
        raise UsageError(f"{folder} holds {held}; give the folder of {base} as --chosen")
    return parameters
