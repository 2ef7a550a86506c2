"""Tests that texts are encoded in batches, on a device, and in a precision that changes the vectors little."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.encoders.centred import Centred
from pipeline.encoders.extraction import choose_plan
from pipeline.encoders.libraries.library_encoders import LibraryTexts

TEXTS = ["a dog", "two dogs run", "", "the quick brown fox jumps over the lazy dog", "snow", "a", "dogs"]


class Letters(nn.Module):
    """A network that returns the mean of the vectors of a text's letters, and records the sizes of its batches in
    `seen`."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(128, 6)
        self.seen: list[int] = []

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(ids))
        weights = mask[:, :, None].to(self.table.weight.dtype)
        return (self.table(ids) * weights).sum(1) / weights.sum(1).clamp(min=1)


class LetterEncoder(LibraryTexts):
    kind = "letters"

    @classmethod
    def fetch(cls, entry: object, weights: dict, place: str | Path) -> "LetterEncoder":
        return cls(Letters(), weights)

    @classmethod
    def load(cls, folder: Path, weights: dict) -> "LetterEncoder":
        return cls(Letters(), weights)

    def tokenise(self, texts: Sequence[str]) -> tuple[torch.Tensor, ...]:
        longest = max(map(len, texts)) or 1
        ids = torch.tensor([[min(ord(c), 127) for c in text.ljust(longest)] for text in texts])
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
        return ids, mask


@pytest.fixture
def encoder() -> LetterEncoder:
    torch.manual_seed(0)
    return LetterEncoder(Letters(), {"origin": "drawn"})


def test_batches_on_a_device_equal_single_texts(encoder: LetterEncoder) -> None:
    expected = np.concatenate([encoder.encode([text]) for text in TEXTS])
    for size in (1, 3, 100):
        found = encoder.on_device("cpu", "float32", size)(TEXTS)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert found.dtype == np.float32
    assert encoder.on_device("cpu", "float32", 3)([]).shape == (0, 6)


def test_vectors_in_bfloat16_are_close_and_returned_as_float32(encoder: LetterEncoder) -> None:
    found = encoder.on_device("cpu", "bfloat16", 4)(TEXTS)
    assert found.dtype == np.float32
    exact = encoder.encode(TEXTS)
    assert 0 < np.abs(found - exact).max() < 0.02
    assert choose_plan(encoder, "cpu", "bfloat16", 4).dtype == torch.bfloat16
    assert encoder.body.table.weight.dtype == torch.float32  # The encoder itself is not converted.


def test_vectors_of_a_device_and_of_a_query_are_centred_alike(encoder: LetterEncoder) -> None:
    centred = Centred.fit(encoder, TEXTS, whiten=True)
    found = centred.on_device("cpu", "float32", 2)(TEXTS)
    np.testing.assert_allclose(found, centred.encode(TEXTS), atol=1e-5)
    assert not found[2].any()
