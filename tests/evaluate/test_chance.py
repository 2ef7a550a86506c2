"""Expected measures of a random ranking are compared with random rankings and with Socher et al. 2014."""

from itertools import permutations

import numpy as np
import pytest

from pipeline.metrics.retrieval import chance, random_measures


def test_a_single_right_item_is_in_the_middle_on_average() -> None:
    found = random_measures(np.ones(7, np.int64), 100)
    assert found["mean_rank"] == 50.5 and found["median_rank"] == 50
    assert [found[f"recall@{k}"] for k in (1, 5, 10)] == pytest.approx([1, 5, 10])


def test_the_papers_gallery_of_100_images_with_five_sentences() -> None:
    """The expected mean ranks of a random ranking are 100 for sentence similarity, 50.5 for the search for images, and
    83.5 for the search for sentences. The row "Random" in Table 1 of Socher et al. 2014 has the mean ranks 101.1, 52.1
    and 92.1 of one random draw. The paper says: "a random assignment would give an average ranking of 100"."""
    found = chance(np.repeat(np.arange(100), 5))
    assert found["sentence_similarity"]["mean_rank"] == 500 / 5
    assert found["sentence_to_image"]["mean_rank"] == 101 / 2
    assert found["image_to_sentence"]["mean_rank"] == 501 / 6


def test_expected_measures_agree_with_random_rankings() -> None:
    rng = np.random.default_rng(0)
    right = np.array([1, 3, 3, 8])
    total = 20
    places = np.array([1 + np.argmax(rng.permutation(np.arange(total) < k)) for k in np.tile(right, 5000)])
    found = random_measures(right, total)
    assert found["mean_rank"] == pytest.approx(places.mean(), abs=0.1)
    assert found["median_rank"] == np.median(places)
    for k in (1, 5, 10):
        assert found[f"recall@{k}"] == pytest.approx(100 * (places <= k).mean(), abs=1.5)


@pytest.mark.parametrize(("right", "total", "median"), [([1], 2, 1), ([1], 4, 2), ([2, 2], 4, 1), ([1, 2], 3, 1)])
def test_the_median_is_the_first_rank_at_which_half_of_the_queries_have_a_right_item(
    right, total: int, median: int
) -> None:
    """The mean probability that the rank of a query is above 1 was computed by hand. It is 1/2, 3/4, 1/2 and (2/3 +
    1/3) / 2 = 1/2 in the four cases. The median rank is therefore 1, except in the second case."""
    assert random_measures(np.array(right), total)["median_rank"] == median


@pytest.mark.parametrize("total", [2, 3, 7])
def test_expected_measures_equal_the_means_over_all_permutations(total: int) -> None:
    for right in range(1, total + 1):
        places = [1 + min(order.index(one) for one in range(right)) for order in permutations(range(total))]
        found = random_measures(np.array([right]), total)
        assert found["mean_rank"] == pytest.approx(np.mean(places))
        for k in (1, 5, 10):
            assert found[f"recall@{k}"] == pytest.approx(100 * np.mean(np.array(places) <= k))
