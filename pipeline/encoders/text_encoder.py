"""The base class of text encoders."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from pipeline.encoders.material import EncoderMaterial, Settings, StoredEncoder

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Rows = np.ndarray | csr_array


class TextEncoder:
    """Base class of text encoders, which map n texts to vectors (n, dim) float32.

    A subclass must define `dim` and `encode`. A subclass whose constructor takes arguments defines `prepare`, which
    makes an encoder from an entry of the configuration, and `settings`, `tensors` and `from_parts`, which makes an
    encoder from the results of `settings` and `tensors`. The settings of a registered kind have the name of the kind
    under the key `kind`. This base class knows every word. An encoder with unknown words defines `knows`, `searches`,
    `unknown`, `count_words` and `suggest`, for example by inheriting from `pipeline.text.vocabulary.KnownTerms`, and
    returns zeros for a text of unknown words. An encoder of another library writes files in `save` and reads these
    files in `restore`.
    """

    modality: ClassVar[Literal["text"]] = "text"
    kind: ClassVar[str] = ""
    """The name of a registered kind. It is empty for a class that the configuration names by an import path."""
    dim: int
    terms: Sequence[str] = ()
    """The known words and n-grams, if they can be listed."""

    def encode(self, texts: Sequence[str]) -> "Rows":
        """Return the vectors (n, dim) float32 of n texts, as a csr_array if the spec of the kind is `sparse`."""
        raise NotImplementedError

    @classmethod
    def prepare(cls, entry: Any, material: EncoderMaterial) -> "TextEncoder":  # Any: each kind has its own class
        """Make the encoder of `entry`, its entry in the configuration. Each kind has its own class of entries."""
        return cls()

    def settings(self) -> dict[str, Any]:
        """Return JSON values for `from_parts`, with the name of the kind under `kind`."""
        return {"kind": self.kind}

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "TextEncoder":
        """Make an encoder from the results of the methods `settings` and `tensors` of a stored encoder.

        A subclass raises ValueError if the settings do not match the tensors.
        """
        return cls()

    @classmethod
    def restore(cls, stored: StoredEncoder) -> "TextEncoder":
        """Make an encoder from its stored settings and tensors, or from the files that `save` has written."""
        return cls.from_parts(stored.settings, stored.tensors)

    def save(self, folder: Path) -> None:
        """Write the files of a model of another library into the empty `folder`. This base class writes nothing."""

    def on_device(self, device: str, precision: str, batch_size: int) -> "Callable[[Sequence[str]], Rows]":
        """Return a function that encodes many texts on a `device` (auto, cpu, cuda, cuda:N), in batches of
        `batch_size`.

        The function of this base class is `encode`, which computes on the CPU in float32.
        """
        return self.encode

    def encode_query(self, texts: Sequence[str]) -> "Rows":
        """Return the vectors (n, dim) float32 of a few texts, dense or sparse, whichever is faster to compute."""
        return self.encode(texts)

    def encode_words(self, words: Sequence[str]) -> "Rows":
        """Return the contribution (n, dim) of each of n words to the vector of a sentence that contains the word.

        The vector of a sentence is the sum of these contributions, times a factor that depends on the sentence. The
        contribution of an unknown word is zero. Only a kind whose spec has `adds_words` needs this method.
        """
        return self.encode(words) * self.word_factors(words)[:, None]

    def word_factors(self, words: Sequence[str]) -> np.ndarray:
        """Return the weight (n,) of each of n words in the vector of a sentence.

        The vector of a sentence is the weighted mean of the vectors of its words. Only a kind with word vectors defines
        this method. This base class raises NotImplementedError.
        """
        raise NotImplementedError

    def knows(self, text: str) -> bool:
        """Return whether `text` has at least one known word. The vector of a text without known words is meaningless.

        To this base class, every text with a character other than blanks is known.
        """
        return bool(text.strip())

    def searches(self, text: str) -> bool:
        """Return whether `text` has known words other than stop words, so that a search for this text makes sense.

        This base class has no stop words, and returns the result of `knows`.
        """
        return self.knows(text)

    def unknown(self, text: str) -> list[str]:
        """Return the unknown words of `text`, each once. This base class returns none."""
        return []

    def count_words(self, text: str) -> tuple[int, int]:
        """Return the number of words in `text`, and the number of unknown words among them, which is 0 here."""
        return len(text.split()), 0

    def suggest(self, word: str) -> str | None:
        """Return the known word whose spelling is most similar to `word`, or None if no known word is similar.

        This base class returns None.
        """
        return None
