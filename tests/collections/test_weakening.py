"""Tests that simulated weak text has the configured shares of true, wrong and missing fields."""

import numpy as np
import pytest

from pipeline.collections.weakening import simulate
from pipeline.config.collection import SimulationSettings

THINGS = [f"thing{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(200)]


def make_sentences() -> tuple[np.ndarray, list[str]]:
    """Return the image ids (400,) and the texts of two equal sentences for each of 200 images. Each word except stop
    words is in the sentences of one image only."""
    image_id = np.repeat(np.arange(200) * 3, 2)
    return image_id, [f"the {thing} is over the {thing} and under it" for thing in THINGS for _ in range(2)]


def test_true_wrong_and_missing_fields_have_the_configured_shares() -> None:
    noise = SimulationSettings(tag_words=5, true_words=1, wrong=0.4, missing=0.25)
    rows = simulate(*make_sentences(), noise, seed=0).to_pylist()
    missing = np.mean([not row[name] for row in rows for name in ("title", "tags", "description")])
    assert missing == pytest.approx(0.25, abs=0.05)
    for name in ("title", "description"):
        told = [(THINGS[row["image_id"] // 3], row[name]) for row in rows if "thing" in row[name]]
        assert np.mean([thing in text for thing, text in told]) == pytest.approx(0.6, abs=0.1)


def test_tags_have_the_configured_number_of_true_words() -> None:
    noise = SimulationSettings(tag_words=5, true_words=1, wrong=0, missing=0)
    for row in simulate(*make_sentences(), noise, seed=0).to_pylist():
        tags = row["tags"].split()
        assert len(tags) == 5 and tags.count(THINGS[row["image_id"] // 3]) == 1
