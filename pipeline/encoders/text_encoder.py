"""The contract of text encoders."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from pipeline.encoders.material import EncoderMaterial, Settings, StoredEncoder

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from pipeline.config.encoders import EncoderEntry

    Rows = np.ndarray | csr_array


class TextEncoder:
    """Maps texts to vectors of `dim` values. This base knows every word.

    A kind has `dim` and `encode`. A kind that has to be made also has `prepare`, which makes it from its entry in the
    configuration, and `settings` and `tensors`, which `from_parts` turns back into the encoder. The settings of a
    registered kind have its name under `kind`. A kind that does not know every word has `knows`, `searches`, `unknown`,
    `count_words` and `suggest`, as `pipeline.text.vocabulary.KnownTerms` does, and zeros for a text of unknown words. A
    model of another library writes its files by `save`, and `restore` reads them.
    """

    modality: ClassVar[Literal["text"]] = "text"
    kind: ClassVar[str] = ""
    """The name of a registered kind. A class with an import path has none."""
    dim: int
    terms: Sequence[str] = ()
    """The words, and pairs of words, of which it knows the meaning, if these can be listed."""

    def encode(self, texts: Sequence[str]) -> "Rows":
        """(n, dim) float32, a csr_array if its spec says `sparse`."""
        raise NotImplementedError

    @classmethod
    def prepare(cls, entry: "EncoderEntry", material: EncoderMaterial) -> "TextEncoder":
        """Make the encoder of an entry of the configuration."""
        return cls()

    def settings(self) -> dict[str, Any]:
        """Return JSON values for `from_parts`, with the name of the kind under `kind`."""
        return {"kind": self.kind}

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "TextEncoder":
        """Make the encoder that `settings` and `tensors` came from. Raises ValueError if they do not fit together."""
        return cls()

    @classmethod
    def restore(cls, stored: StoredEncoder) -> "TextEncoder":
        """Make the encoder whose parts these are."""
        return cls.from_parts(stored.settings, stored.tensors)

    def save(self, folder: Path) -> None:
        """Write the files of the library of the encoder into an empty folder."""

    def on_device(self, device: str, precision: str, batch_size: int) -> "Callable[[Sequence[str]], Rows]":
        """Return `encode` for many texts on a device (auto, cpu, cuda, cuda:N), `batch_size` at once.

        This base computes on the CPU, in float32.
        """
        return self.encode

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
