"""What a printed table is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Column = tuple[str, str]
"""Direction and measure, as an evaluation names them; of descriptions, what is described and a metric."""
RANKING: tuple[Column, ...] = tuple(
    (direction, measure)
    for direction in ("image_to_sentence", "sentence_to_image")
    for measure in ("recall@1", "recall@5", "recall@10", "median_rank")
)
"""Columns of an image-sentence ranking table: annotation, then search."""
R_CNN = {"encoders": "R-CNN (finetuned for detection), fc7", "regions": "19 detections and the whole image"}
RANKED = {"loss": "ranking", "negatives": "all"}
ALIGNED = {**RANKED, "margin": 1.0, "sum": "words", **R_CNN}
"""Settings of Karpathy and Fei-Fei's model, which Niu et al. print too."""
NIC = (
    "a generator that ranks by the likelihood of a sentence, trained with its own network, of which there is none here"
)
M_RNN = (
    "Mao et al.'s generator, which sees the image at every word; `mrnn` is Karpathy and Fei-Fei's, no stand-in for it"
)
MEAN_OF_WORDS = {"loss": "ranking"}
"""DeViSE, whose sentences are mean word vectors, has the objective of Kiros et al. 2014; a `bow` of another has not."""
BLEU = tuple(f"bleu_{n}" for n in range(1, 5))


@dataclass(frozen=True)
class PrintedRow:
    """A row: its printed name, and its numbers in the order of the table's columns, None where the paper has none.

    `model` is the registered model, or generator, that it is here, or None, with the `reason` why it has none. `kind`
    are settings without which a model of that name is another system, and `settings` those that decide whether a number
    of ours is of the same system (None: the row is of a system that the paper only cites). Both are in the words of the
    configuration (`loss`, `margin`, ...; `encoders`, `regions` and `learns from` as the stage `reproduce` says them).
    A row of `chance` is of random rankings, whose expected values every evaluation has.
    """

    name: str
    numbers: Sequence[float | None]
    model: str | None = None
    kind: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] | None = None
    reason: str | None = None
    chance: bool = False


@dataclass(frozen=True)
class PrintedTable:
    """A table of the paper `seed`: `collection` is what it was measured on, with a gallery of `images` where several
    sizes are in use. `orders` are pairs of rows of which the paper says that the first is above the second. Where `top`
    is set, a number is the mean over that many models, the best on dev."""

    seed: str
    title: str
    collection: str
    columns: Sequence[Column]
    rows: Sequence[PrintedRow]
    images: int | None = None
    orders: Sequence[tuple[str, str]] = ()
    top: int | None = None

    @property
    def judged(self) -> tuple[tuple[Column, ...], ...]:
        """What an order is judged by: by the sum of the recalls where there are any; of descriptions by BLEU-4 and by
        CIDEr; else by the sum of the mean ranks."""
        recalls = tuple(column for column in self.columns if column[1].startswith("recall"))
        described = tuple((column,) for column in self.columns if column[1] in ("bleu_4", "cider"))
        return (recalls,) if recalls else described or (tuple(self.columns),)
