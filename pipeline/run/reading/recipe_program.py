"""Embedding and scoring queries as an index of jointspace does, with NumPy alone. README.md has an example."""

import json
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Settings = dict[str, Any]
"""A JSON object in recipe.json."""


class Recipe:
    """The model of an index, read from `folder`: the `settings` in recipe.json, and the `arrays` in recipe.npz."""

    def __init__(self, folder: str | Path) -> None:
        self.settings = json.loads(Path(folder, "recipe.json").read_text(encoding="utf-8"))
        with np.load(Path(folder, "recipe.npz"), allow_pickle=False) as arrays:
            self.arrays = dict(arrays)

    def embed(self, side: str, features: Arrays) -> np.ndarray:
        """Embed n items of a side, `images` or `texts`, in the joint space. Return (n, c).

        `features` maps each encoder to its vectors (n, dim), as the encoder returns them. Raises ValueError if the
        vectors of an encoder are missing or not finite.
        """
        settings = self.settings[side]
        for name in (one["name"] for one in settings["encoders"]):
            if not np.isfinite(features.get(name, np.nan)).all():
                raise ValueError(f"Pass finite vectors of the encoder {name!r} for {side}. You passed {[*features]}.")
        arrays = {name.removeprefix(f"{side} "): array for name, array in self.arrays.items() if name.startswith(side)}
        rows = np.hstack([normalise(features[one["name"]], one, arrays) for one in settings["encoders"]])
        rows = add_map(rows, settings["map"], arrays)
        if "matrix" in arrays:
            rows = (rows - arrays["mean"]) @ arrays["matrix"]
        if self.settings["unit"]:
            rows = unit(rows)
        if "scales" in arrays:
            rows = fill(rows * arrays["scales"], side)
        return add_bias(rows, side, settings["hubness"], arrays)

    def score(self, queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Score n queries (n, c) with m vectors (m, c) of the joint space. Return (n, m). A higher score is better."""
        products = queries @ vectors.T
        if self.settings["metric"] == "inner_product":
            return products
        return 2 * products - (queries**2).sum(axis=1, keepdims=True) - (vectors**2).sum(axis=1)

    def threshold(self, queries: np.ndarray) -> np.ndarray:
        """Return the smallest score of a likely match for each of n text queries (n, c), as (n,).

        The smallest score is infinity if the index was not calibrated, so that no photo is a likely match.
        """
        calibration = self.settings["calibration"]
        if calibration is None:
            return np.full(len(queries), np.inf)
        scores = self.score(queries, self.arrays["background"])
        return scores.mean(axis=1) + calibration["score"] * scores.std(axis=1)


def unit(rows: np.ndarray) -> np.ndarray:
    """Scale rows (n, d) to unit length. Rows of zeros stay zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def fill(rows: np.ndarray, side: str) -> np.ndarray:
    """Append two columns to rows (n, c) of a length of at most 1. With these columns, each row has the length 1, and
    the products of images and texts stay the same."""
    missing = np.sqrt(np.maximum(1 - (rows**2).sum(axis=1), 0))
    zeros = np.zeros(len(rows))
    return np.column_stack([rows, missing, zeros] if side == "images" else [rows, zeros, missing])


def normalise(rows: np.ndarray, encoder: Settings, arrays: Arrays) -> np.ndarray:
    """Centre, normalise and weight the vectors (n, dim) of an encoder."""
    rows = np.asarray(rows, np.float32)  # jointspace also uses float32, so this program rounds in the same way.
    for name in encoder["centring"]:  # First the mean is subtracted. Then the rows may be multiplied by a matrix.
        rows = rows @ arrays[name] if arrays[name].ndim == 2 else rows - arrays[name]
    for step in encoder["steps"]:
        if step.startswith("times "):
            rows = rows * np.float32(step.removeprefix("times "))
        else:
            rows = unit(rows) if step == "l2" else np.copysign(np.sqrt(np.abs(rows)), rows)
    return encoder["weight"] * rows


def add_map(rows: np.ndarray, settings: Settings | None, arrays: Arrays) -> np.ndarray:
    """Append the nonlinear columns of a model to rows (n, d). The columns of a kernel replace the rows. If `settings`
    is None, the model has no nonlinear columns, and the rows are returned unchanged."""
    if settings is None:
        return rows
    if settings["kind"] == "kernel":
        similarities = kernel(rows.astype(np.float64), arrays["map landmarks"], settings)
        return (similarities @ arrays["map normalization"]).astype(np.float32)
    if settings["kind"] == "neighbours":  # The new columns are the mean text vector of the nearest images.
        gallery = arrays["map gallery"].astype(np.float64)
        nearest = np.argsort((gallery**2).sum(axis=1) - 2 * rows @ gallery.T, axis=1)[:, : settings["neighbours"]]
        columns = arrays["map texts"][nearest].mean(axis=1)
    else:
        columns = rows @ arrays["map matrix"] - arrays["map offset"]
        if settings["kind"] == "tanh":
            columns = np.tanh(columns)
        else:  # The new columns are random Fourier features.
            angles = columns @ arrays["map frequencies"]
            phases = arrays.get("map phases")
            angles = np.hstack([angles, angles - np.pi / 2]) if phases is None else angles + phases
            columns = 2**0.5 * np.cos(angles)
    return np.hstack([rows, settings["weight"] * columns])


def kernel(rows: np.ndarray, landmarks: np.ndarray, settings: Settings) -> np.ndarray:
    """Compute a kernel of scikit-learn between rows (n, d) and landmarks (m, d). Return (n, m).

    `settings` has the name of the `kernel`, and its parameter `gamma`, which only some kernels use.
    """
    name = settings["kernel"]
    gamma = settings["gamma"]
    if name == "laplacian":
        return np.array([np.exp(-gamma * np.abs(landmarks - row).sum(axis=1)) for row in rows])
    products = unit(rows) @ unit(landmarks).T if name == "cosine" else rows @ landmarks.T
    if name == "rbf":
        squares = (rows**2).sum(axis=1)[:, None] + (landmarks**2).sum(axis=1)
        return np.exp(gamma * (2 * products - squares))
    return (products / rows.shape[1] + 1) ** 3 if name == "polynomial" else products


def add_bias(rows: np.ndarray, side: str, settings: Settings | None, arrays: Arrays) -> np.ndarray:
    """Append four columns to rows (n, c), and scale the rows to unit length. With these columns, the bias of hubs is
    subtracted from the product of an image and a text.

    `side` is `images` or `texts`. If `settings` is None, the model has no hubness correction, and the rows are returned
    unchanged.
    """
    if settings is None:
        return rows
    bias = np.zeros(len(rows))
    for weight, statistic, parameter in settings["terms"]:
        scores = rows @ arrays["bank"].T
        if statistic == "nearest":
            bias += weight * np.sort(scores, axis=1)[:, -int(parameter) :].mean(axis=1)
        elif statistic != "balanced":
            raise ValueError(f"The statistic {statistic} is unknown. Export the recipe again.")
        else:  # This bias is the logarithm of a mean of exponentials.
            powers = parameter * (scores - arrays["balance"])
            greatest = powers.max(axis=1)
            bias += weight * (greatest + np.log(np.exp(powers - greatest[:, None]).mean(axis=1))) / parameter
    rest = np.sqrt(np.maximum(settings["greatest"] ** 2 - bias**2, 0))
    ones = np.ones(len(rows))
    zeros = np.zeros(len(rows))
    columns = [-bias, ones, rest, zeros] if side == "images" else [ones, -bias, zeros, rest]
    return unit(np.hstack([rows, np.stack(columns, axis=1)]))
