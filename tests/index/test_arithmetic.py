"""Images less words plus words: against sums done by hand, and on a made-up bundle."""

from pathlib import Path

import numpy as np
import pytest
from made_up import build_bundle, features_of, make_run

from pipeline.errors import InputError
from pipeline.index.arithmetic import compose
from pipeline.index.search import Searcher
from pipeline.storage.bundle import Bundle


def test_a_query_is_the_unit_vector_of_the_sum() -> None:
    image, minus, plus = np.eye(4, dtype=np.float32)[[0]], np.eye(4)[[1]], np.eye(4)[[2, 3]]
    np.testing.assert_allclose(compose(image, minus, plus), [[0.5, -0.5, 0.5, 0.5]])
    np.testing.assert_allclose(compose(image, minus[:0], plus[:0]), image)
    with pytest.raises(InputError, match="cancel each other out"):
        compose(image, image, plus[:0])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bundle(make_run(tmp_path_factory.mktemp("run")))


def test_a_dog_less_dog_plus_cat_is_a_cat(bundle: Path) -> None:
    searcher = Searcher(Bundle(bundle))
    hits = searcher.analogy(features_of("dog"), ["dog"], ["cat"], 3, 0)
    assert [hit.row["path"] for hit in hits] == ["cat-1.png", "cat-9.png", "cat-17.png"]
    assert hits[0].score == pytest.approx(1, abs=1e-3)
    both = searcher.analogy(features_of("dog"), [], ["cat"], 6, 0)
    assert {hit.row["path"].partition("-")[0] for hit in both} == {"dog", "cat"}
    middle = searcher.analogy(features_of("dog"), ["dog"], ["cat"], 1, 3)
    assert middle[0].row["path"] == "cat-9.png"  # the one between the other two


def test_unknown_words_are_named_one_by_one(bundle: Path) -> None:
    with pytest.raises(InputError, match=r"no word of 'unicorn' is in the vocabulary"):
        Searcher(Bundle(bundle)).analogy(features_of("dog"), ["dog"], ["unicorn"], 3, 0)
