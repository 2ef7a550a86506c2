"""The start of models that read words: a fitted ncca, and what each word adds to the vector of a sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.encoders.text_encoder import TextEncoder
from pipeline.models.linear.projection import LinearModel
from pipeline.models.linear.views import Rows, one_matrix, shape_of, side_by_side


@dataclass(frozen=True)
class WordStart:
    """A fitted ncca, and every word in its text view.

    `terms` (V + 1, d) has the addition of each word of the token vocabulary to the vector of a sentence, before any
    normalisation. The last row, zeros, is the unknown word.
    """

    model: LinearModel
    terms: Rows

    @classmethod
    def of(
        cls, model: LinearModel, encoders: Mapping[str, TextEncoder], words: Sequence[str], texts: Sequence[str]
    ) -> "WordStart":
        """Encode the `words` by the text `encoders` of `model`.

        A sentence has its own factor in every block of the view, and the sum of its words has none. So each block is
        scaled as a whole, such that the ratio between the root mean square lengths of sums of words and of sentences,
        measured on `texts`, is the same as in the first block.
        """
        blocks = []
        factors = []
        for name in model.text.encoders:
            view = model.text.select([name])
            encoder = encoders[name]
            length = _length(view.stack({name: encoder.encode(texts)}))
            length_of_sums = _length(view.unnormalised.stack({name: encoder.encode_words(texts)}))
            factors.append(length / max(length_of_sums, float(np.finfo(np.float32).tiny)))
            blocks.append(one_matrix(view.unnormalised.stack({name: encoder.encode_words(words)})))
        scales = np.array(factors, np.float32) / np.float32(factors[0] or 1)
        return cls(model, side_by_side([block * scale for block, scale in zip(blocks, scales, strict=True)]))


def _length(rows: Rows) -> float:
    """Compute the root mean square length of the rows, dense or sparse."""
    matrix = one_matrix(rows)
    return float(np.sqrt((matrix * matrix).sum() / max(1, shape_of(matrix)[0])))
