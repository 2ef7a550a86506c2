"""The plane of words and images: against scikit-learn's PCA, and as a picture of a made-up bundle."""

from pathlib import Path

import numpy as np
import pytest
from made_up import make_run, make_stage
from PIL import Image
from sklearn.decomposition import PCA

from pipeline.errors import InputError
from pipeline.report.plane import draw_plane, project_to_plane


def test_places_are_the_first_two_principal_components() -> None:
    vectors = np.random.default_rng(0).standard_normal((30, 8)) * np.arange(1, 9)
    places, oracle = project_to_plane(vectors), PCA(2).fit_transform(vectors)
    np.testing.assert_allclose(np.abs(places), np.abs(oracle), atol=1e-9)
    assert (places[np.abs(places).argmax(axis=0), [0, 1]] > 0).all()


def test_few_or_equal_vectors_have_places_too() -> None:
    assert project_to_plane(np.ones((1, 4))).tolist() == [[0, 0]]
    assert project_to_plane(np.ones((3, 4))).tolist() == [[0, 0]] * 3


def test_words_and_photographs_are_in_the_picture(tmp_path: Path) -> None:
    blue = Image.new("RGB", (40, 30), (0, 0, 255))
    (tmp_path / "plane.png").write_bytes(
        draw_plane(["dog", "$5 <b>"], np.array([[0.0, 0], [1, 1]]), [blue], np.array([[0.5, 0.2]]))
    )
    with Image.open(tmp_path / "plane.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    assert pixels.shape == (825, 1100, 3)
    assert ((pixels == [0, 0, 255]).all(axis=2)).sum() > 800
    reds = (pixels[:, :, 0] > 150) & (pixels[:, :, 1] < 90)
    assert reds.sum() > 100


def test_the_command_draws_the_nearest_images_of_a_split(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    make_stage("build_index", run, "ncca")
    make_stage("show_words", run, "ncca", "dog", "cat", "--images", 1, "--output", tmp_path / "plane.png")
    with Image.open(tmp_path / "plane.png") as picture:
        assert picture.size == (1100, 825)
    with pytest.raises(InputError, match="no word of 'unicorn'"):
        make_stage("show_words", run, "ncca", "unicorn", "--output", tmp_path / "other.png")
