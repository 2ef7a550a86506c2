"""Writing the recipe of an index: everything that a service needs to embed and score queries with NumPy alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from pipeline.compute.multivectors import one_vector_each
from pipeline.encoders.centred import CENTRED
from pipeline.errors import UsageError
from pipeline.index.calibration import Calibration
from pipeline.index.queries import QueryEncoder
from pipeline.models.joint_model import JointModel
from pipeline.models.linear.cca import CSA
from pipeline.models.linear.corrected import HubCorrected, HubnessCorrection
from pipeline.models.linear.ensemble import ZeroShot
from pipeline.models.linear.feature_maps import FeatureMap
from pipeline.models.linear.projection import LinearModel
from pipeline.run.reading import recipe_program
from pipeline.storage.batch import new_folder
from pipeline.storage.parameters import Parameters
from pipeline.storage.stored_index import StoredIndex, open_index

CORRECTED_SIDES = {"images": "images", "texts": "sentences"}
"""Name of a side in a recipe -> name of the same side in a hubness correction."""
SPARSE_PARTS = ("data", "indices", "indptr")
"""Names of the arrays of a stored sparse matrix, which is dense in a recipe."""
CHECKED_ROWS = 8
"""Number of random vectors of images, and of texts, that a new recipe embeds in the comparison with its model."""
TOLERANCE = 1e-3
"""Largest allowed difference between a number in a vector of a recipe and the same number in the vector of its model,
as a share of the greatest absolute number in all compared vectors of the model. Rounding causes smaller differences. If
a difference is larger, the recipe is refused."""
README = """# A recipe for queries

These files embed queries for an index of jointspace, and score them, with NumPy alone. recipe.json has the settings of
the model and the names of its encoders, and recipe.npz has its arrays. The vectors of the photos come from
`jointspace export INDEX --to npy --output vectors`.

    import numpy as np
    from recipe import Recipe

    recipe = Recipe(".")
    images = np.load("vectors/images.npy", allow_pickle=False)
    queries = recipe.embed("texts", {"ENCODER": VECTORS})        # (n, dim), as the encoder returns them
    scores = recipe.score(queries, images)                       # (n, photos), and higher is better
    likely = scores >= recipe.threshold(queries)[:, None]        # which photos are likely matches
"""


def export_recipe(index: Path, output: Path) -> None:
    """Write the recipe of an index to the new folder `output`.

    Raises UsageError if `output` exists, if the model is not a linear model that comes with jointspace, or if the
    recipe does not compute the vectors of the model.
    """
    stored = open_index(index)
    model = QueryEncoder(stored).model
    settings, arrays = describe_model(stored, model)
    calibration = Calibration.of_index(stored)
    if calibration:
        arrays["background"] = calibration.background
    settings |= {"version": 1, "model": stored.card.model, "metric": stored.card.metric}
    settings["calibration"] = calibration and calibration.card()
    with new_folder(output) as folder:
        with open(folder / "recipe.npz", "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        (folder / "recipe.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        (folder / "recipe.py").write_bytes(Path(recipe_program.__file__).read_bytes())
        vectors = ", ".join(f"{json.dumps(one['name'])}: VECTORS" for one in settings["texts"]["encoders"])
        (folder / "README.md").write_text(README.replace('"ENCODER": VECTORS', vectors), encoding="utf-8")
        require_same_vectors(stored.card.model, model, folder)


def describe_model(stored: StoredIndex, model: JointModel) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the settings for recipe.json and the arrays for recipe.npz that describe the model of an index.

    Raises UsageError if the model is not a linear model that comes with jointspace.
    """
    correction = model.correction if isinstance(model, HubCorrected) else None
    model = model.model if isinstance(model, HubCorrected) else model
    if isinstance(model, ZeroShot):
        settings: dict[str, Any] = {"unit": True}
        sides = {"images": RecipeSide(model.encoders), "texts": RecipeSide(model.text_encoders)}
    elif isinstance(model, LinearModel) and ":" not in stored.card.registered:
        values = model.directions.values.astype(np.float64)
        ones = np.ones((1, len(values)))
        factors = model.finish(ones, values, model.eigenvalue_power)
        settings = {"unit": np.allclose(model.finish(2 * ones, values, model.eigenvalue_power), factors)}
        scales: dict[str, np.ndarray] = {}
        if isinstance(model, CSA):  # The columns are scaled after the rows have unit length.
            factors = ones
            scales = {"scales": np.sqrt(model.directions.values)}
        images = {"mean": model.mean_x, "matrix": (model.directions.w * factors).astype(np.float32), **scales}
        texts = {"mean": model.mean_y, "matrix": (model.directions.u * factors).astype(np.float32), **scales}
        sides = {
            "images": RecipeSide(model.encoders, model.view.steps_of_each, None, images, model.maps.image),
            "texts": RecipeSide(model.text_encoders, model.text.steps, model.text.weights, texts, model.maps.text),
        }
    else:
        raise UsageError(
            f"The model {stored.card.model} ({stored.card.registered}) is not a linear model of jointspace, so NumPy"
            " alone cannot embed its queries. Export the recipe of another index, such as an index of ncca."
        )
    arrays: dict[str, np.ndarray] = {}
    for side, own in sides.items():
        if side == "texts":
            own.add_centring({name: stored.first.text_encoder(name) for name in stored.card.text_encoders})
        if correction:
            own.add_correction(correction, CORRECTED_SIDES[side])
        settings[side] = own.settings
        arrays |= {f"{side} {name}": array for name, array in own.arrays.items()}
    return settings, arrays


def require_same_vectors(name: str, model: JointModel, folder: Path) -> None:
    """Raise UsageError if the recipe in `folder` embeds random vectors differently than the model `name`.

    Only linear models are checked.
    """
    linear = model.model if isinstance(model, HubCorrected) else model
    if not isinstance(linear, LinearModel):
        return
    recipe = recipe_program.Recipe(folder)
    rng = np.random.default_rng(0)
    sides = (("images", linear.view, model.embed_images), ("texts", linear.text, model.embed_sentences))
    for side, view, embed in sides:
        for encoder in recipe.settings[side]["encoders"]:
            encoder["centring"] = []  # The model reads vectors that are centred already.
        dims = zip(view.encoders, view.dims, strict=True)
        vectors = {encoder: rng.standard_normal((CHECKED_ROWS, dim)).astype(np.float32) for encoder, dim in dims}
        expected = one_vector_each(embed(vectors))
        try:
            is_same = np.allclose(recipe.embed(side, vectors), expected, 0, TOLERANCE * np.abs(expected).max())
        except ValueError:  # The vectors have another number of columns.
            is_same = False
        if not is_same:
            raise UsageError(
                f"A recipe cannot compute the vectors of the model {name}, because this model does more than project"
                " vectors and scale them. Export the recipe of another index, such as an index of ncca."
            )


class RecipeSide:
    """The settings and the arrays of the images or the texts in a recipe.

    For each of the `encoders`, `steps` has the names of the transforms that normalise its vectors, and `weights` has
    the factor by which its vectors are multiplied. If `steps` is None, vectors are not normalised. If `weights` is
    None, all factors are 1. `arrays` has the mean and the matrix of the projection, if the model projects vectors, and
    the scales of the columns, if the model scales them after the projection. `feature_map` computes nonlinear columns
    before the projection, unless it is None.
    """

    def __init__(
        self,
        encoders: Sequence[str],
        steps: Sequence[Sequence[str]] | None = None,
        weights: Sequence[float] | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
        feature_map: FeatureMap | None = None,
    ) -> None:
        steps = steps or [()] * len(encoders)
        weights = weights or [1.0] * len(encoders)
        each = zip(encoders, steps, weights, strict=True)
        described = [{"name": name, "steps": list(own), "weight": weight, "centring": []} for name, own, weight in each]
        self.settings: dict[str, Any] = {"encoders": described, "map": None, "hubness": None}
        self.arrays = dict(arrays or {})
        if feature_map is not None:
            self.settings["map"] = {"kind": feature_map.kind, **feature_map.settings()}
            dense = {name: array for name, array in feature_map.tensors().items() if name not in SPARSE_PARTS}
            dense |= {name: value.toarray() for name, value in vars(feature_map).items() if sparse.issparse(value)}
            self.arrays |= {f"map {name}": array for name, array in dense.items()}

    def add_centring(self, text_encoders: Mapping[str, Parameters]) -> None:
        """Add the mean that each text encoder subtracts from its vectors, and the matrix with which it then whitens the
        vectors.

        `text_encoders` has the stored parameters by name. An encoder may have a mean and a matrix, only a mean, or
        neither.
        """
        for encoder in self.settings["encoders"]:
            stored = text_encoders.get(encoder["name"])
            for part in ("mean", "matrix"):
                if stored and f"{CENTRED}/{part}" in stored.tensors:
                    encoder["centring"].append(f"{encoder['name']} {part}")
                    self.arrays[encoder["centring"][-1]] = stored.tensors[f"{CENTRED}/{part}"]

    def add_correction(self, correction: HubnessCorrection, side: str) -> None:
        """Add a hubness correction, which compares the items of this side with a bank of items of the other side.

        `side` is the name of this side in the correction, `images` or `sentences`.
        """
        tensors = correction.tensors()
        self.arrays["bank"] = tensors["images"] if side == "sentences" else tensors.get("queries", tensors["sentences"])
        if f"balance/{side}" in tensors:
            self.arrays["balance"] = tensors[f"balance/{side}"]
        terms = [list(term) for term in correction.terms[side]]
        self.settings["hubness"] = {"terms": terms, "greatest": correction.greatest_bias(side)}
