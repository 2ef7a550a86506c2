"""Tests of `fit_encoder_map`: maps between the features of two encoders are compared with scikit-learn and with
computations in double precision. The estimated loss of a map is compared with its loss on other photos."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from pipeline.errors import InputError
from pipeline.models.linear.ridge import fit_encoder_map


def features(count: int, seed: int, rectified: bool) -> tuple[np.ndarray, np.ndarray]:
    """Draw synthetic features (count, 30) and (count, 20) of the same photos by two encoders.

    The second features are a linear function of the first features plus noise. The function is the same for all seeds.
    If `rectified` is true, all values are then squared. They are not negative, and their square roots have this linear
    relation.
    """
    rng = np.random.default_rng(seed)
    matrix = np.random.default_rng(0).normal(size=(30, 20)) / 6
    x = rng.normal(size=(count, 30)) + 3
    y = x @ matrix + 0.3 * rng.normal(size=(count, 20))
    x, y = (np.abs(side) ** 2 if rectified else side for side in (x, y))
    return x.astype(np.float32), y.astype(np.float32)


def test_the_map_equals_ridge_regression_in_scikit_learn() -> None:
    x, y = features(400, 1, rectified=False)
    fitted = fit_encoder_map(x, y)
    alpha = fitted.ridge * len(x) * x.var(axis=0).mean()
    expected = Ridge(alpha=alpha).fit(x, y)
    np.testing.assert_allclose(fitted(x), expected.predict(x), rtol=0, atol=1e-4)


def test_maps_of_wide_features_equal_those_in_double_precision() -> None:
    """A map of features with 600 and 500 columns equals ridge regression in double precision up to rounding, although
    the moments of more than 1,024 columns are summed in single precision."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((200, 600)).astype(np.float32)
    y = (x @ rng.standard_normal((600, 500)) / 25 + rng.standard_normal((200, 500))).astype(np.float32)
    fitted = fit_encoder_map(x, y)
    a = x - x.mean(axis=0, dtype=float)
    b = y - y.mean(axis=0, dtype=float)
    ridge = fitted.ridge * np.square(a).sum() / a.shape[1]
    expected = np.linalg.solve(a.T @ a + ridge * np.eye(600), a.T @ b)
    np.testing.assert_allclose(fitted.weight, expected, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("rectified", [False, True])
def test_the_estimated_loss_is_the_loss_on_other_photos(rectified: bool) -> None:
    fitted = fit_encoder_map(*features(400, 1, rectified))
    x, y = features(4000, 2, rectified)
    assert fitted.roots == (rectified, rectified)
    mapped = fitted(x)
    assert (mapped.min() >= 0) == rectified
    expected, mapped = (np.sqrt(side) if rectified else side for side in (y, mapped))
    assert fitted.loss == pytest.approx(np.square(expected - mapped).mean() / expected.var(axis=0).mean(), abs=0.04)


def test_square_roots_can_be_turned_off() -> None:
    x, y = features(400, 1, rectified=True)
    fitted = fit_encoder_map(x, y, use_roots=False, ridges=[0.1])
    expected = Ridge(alpha=0.1 * len(x) * x.var(axis=0).mean()).fit(x, y)
    np.testing.assert_allclose(fitted(x), expected.predict(x), rtol=0, atol=1e-2)
    assert fitted.ridge == 0.1


def test_too_few_photos_are_refused() -> None:
    with pytest.raises(InputError, match="50 photos"):
        fit_encoder_map(*features(49, 0, rectified=False))
