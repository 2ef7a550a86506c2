"""What a text encoder is, and what it is made from."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from pipeline.encoders.given_vectors import require_made_by
from pipeline.text.tokens import TermSettings
from pipeline.text.vocabulary import Vocabulary
from pipeline.text.wordvectors import WordVectors

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Rows = np.ndarray | csr_array


class TextEncoder:
    """Texts to vectors of `dim` values; this base knows every word.

    A kind has `dim` and `encode`. One that has to be made also has `prepare`, which makes it from its entry in the
    configuration, and `settings` and `tensors`, which `from_parts` turns back into it; a registered one has its name,
    `kind`, in its settings. One that does not know every word has `knows`, `searches`, `unknown`, `count_words` and
    `suggest`, as `pipeline.text.vocabulary.KnownTerms` does, and zeros for a text of unknown words.
    """

    kind: ClassVar[str]
    dim: int
    terms: Sequence[str] = ()
    """The words, and pairs of words, of which it knows the meaning, if these can be listed."""

    def encode(self, texts: Sequence[str]) -> "Rows":
        """(n, dim) float32, a csr_array if its spec says `sparse`."""
        raise NotImplementedError

    @classmethod
    def prepare(cls, entry: Any, material: "TextMaterial") -> "TextEncoder":
        """The encoder of an `entry` of the configuration, whose own settings are `entry.own`."""
        return cls()

    def settings(self) -> dict[str, Any]:
        """JSON values for `from_parts`."""
        return {}

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "TextEncoder":
        """The encoder that `settings` and `tensors` came from. ValueError where they do not fit together."""
        return cls()

    def encode_query(self, texts: Sequence[str]) -> "Rows":
        """As `encode`, of a few texts, in whatever form is made sooner."""
        return self.encode(texts)

    def encode_words(self, words: Sequence[str]) -> "Rows":
        """(n, dim): what each word alone adds to the vector of a sentence, up to the sentence's own factor; zeros for
        an unknown word. Only of a kind whose spec says that it `adds_words`."""
        return self.encode(words) * self.word_factors(words)[:, None]

    def word_factors(self, words: Sequence[str]) -> np.ndarray:
        """(n,): how much each word counts in the vector of a sentence, which is the weighted mean of those of its
        words."""
        raise NotImplementedError

    def knows(self, text: str) -> bool:
        """Whether the vector of `text` means anything."""
        return bool(text.strip())

    def searches(self, text: str) -> bool:
        """Whether it makes sense to search for `text`: it has known words that are not stop words alone."""
        return self.knows(text)

    def unknown(self, text: str) -> list[str]:
        """The words of `text` that it does not know, each once."""
        return []

    def count_words(self, text: str) -> tuple[int, int]:
        """How many words `text` has, and how many of them it does not know."""
        return len(text.split()), 0

    def suggest(self, word: str) -> str | None:
        """The known word that is nearest to `word` by its spelling; None where none is near."""
        return None


class GivenVectors(NamedTuple):
    """Some texts, and their `vectors` (n, dim) float32 that were made elsewhere."""

    texts: Sequence[str]
    vectors: np.ndarray


class TextMaterial(Protocol):
    """What `prepare` may make a text encoder from, beside its entry: the `seed`, and how a text becomes its `words`."""

    seed: int
    words: TermSettings

    def texts(self) -> Iterable[str]:
        """The training sentences."""

    def learn_vocabulary(self, settings: TermSettings, **chosen: Any) -> Vocabulary:
        """The vocabulary of the training sentences; see pipeline.text.vocabulary.learn_vocabulary."""

    def vocabulary(self) -> Vocabulary | None:
        """A vocabulary that a person brought; None where there is none."""

    def corpus(self) -> WordVectors:
        """The run's own word vectors."""

    def file(self, wanted: Collection[str]) -> WordVectors:
        """The vectors in the entry's file, of its first words and of those that are `wanted`."""

    def folder(self, name: str) -> Path | None:
        """A folder that lies with the weights; None where there is none."""

    def encoder(self, name: str) -> TextEncoder:
        """Another text encoder of the run."""

    def given(self, entry: Any) -> GivenVectors:
        """Some sentences with the vectors that an entry names."""


class ImportedTextEncoder:
    """The kind of vectors made elsewhere. What is stored of one is the encoder that its entry says has made them."""

    @classmethod
    def prepare(cls, entry: Any, material: TextMaterial) -> TextEncoder:
        """The text encoder `made_by`. Raises InputError where it encodes some sentences otherwise than was given."""
        own = entry.own
        encoder, given = material.encoder(own.made_by), material.given(entry)
        ours = encoder.encode(given.texts)
        require_made_by(given.vectors, ours, given.texts, own.path, entry.name, own.made_by)
        return encoder
