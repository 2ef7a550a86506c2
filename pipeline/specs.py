"""The literal table of registered models: name -> where its class stands, imported when asked for.

A model's class offers:

* `sentence_view`: which form of the sentences it takes, `tfidf`, `tokens`, `dependency-trees` or `phrase-trees`, or
  `each` for a mapping of such names;
* `multi_vector`: whether an image or a sentence has several vectors, one a region or a word;
* `embed_images(features)`: mapping of encoder name -> (n, dim) float32 to (n, c) float32; of a multi-vector model
  `embed_images(features, regions)` to MultiVectors, whose `rule` says how these score;
* `embed_sentences(sentences)`: (n, d) sparse tf-idf, or n pipeline.text.sequences.Tokens, to the same;
* `to(device)`: itself, computing on that torch.device from now on;
* `metric`: `inner_product` (both are unit vectors and their product is the score) or `euclidean`;
* `settings()` and `tensors()`, which `from_parts(settings, tensors)` turns back into the model.
"""

import importlib
import textwrap
from collections.abc import Mapping
from typing import Any

from pipeline.errors import IntegrityError, JointspaceError, UsageError

LONGEST_REASON = 200
"""Characters of another library's error that an error of ours repeats."""

REGISTRY: dict[str, str] = {
    "ridge": "pipeline.models.linear.ridge:RidgeRegression",
    "cca": "pipeline.models.linear.cca:CCA",
    "ncca": "pipeline.models.linear.cca:NormalizedCCA",
    "kcca": "pipeline.models.linear.kernels:KernelCCA",
    "wsabie-sgd": "pipeline.models.linear.wsabie_models:WsabieSGD",
    "wsabie-adagrad": "pipeline.models.linear.wsabie_models:WsabieAdaGrad",
    "bow": "pipeline.models.neural.word_models:BagOfWords",
    "devise": "pipeline.models.neural.word_models:DeViSE",
    "rnn": "pipeline.models.neural.word_models:RNN",
    "gru": "pipeline.models.neural.word_models:GRU",
    "lstm": "pipeline.models.neural.word_models:LSTM",
    "ctrnn": "pipeline.models.neural.tree_models:CTRNN",
    "dtrnn": "pipeline.models.neural.tree_models:DTRNN",
    "sdtrnn": "pipeline.models.neural.tree_models:SDTRNN",
    "hmlstm": "pipeline.models.neural.hmlstm:HMLSTM",
    "defrag": "pipeline.models.neural.fragment_models:Defrag",
    "dvsa": "pipeline.models.neural.fragment_models:DVSA",
    "fragments": "pipeline.models.neural.grounded_model:GroundedFragments",
    "ncca-refined": "pipeline.models.neural.refinement:RefinedCCA",
    "ncca-recurrent": "pipeline.models.neural.recurrent_refinement:RecurrentCCA",
    "ensemble": "pipeline.models.linear.ensemble:Ensemble",
    "fragment-ensemble": "pipeline.models.linear.ensemble:Ensemble",
}

TRAINED: tuple[str, ...] = (
    "bow", "devise", "rnn", "gru", "lstm", "ctrnn", "dtrnn", "sdtrnn", "hmlstm", "defrag", "dvsa", "fragments",
    "ncca-refined", "ncca-recurrent",
)  # fmt: skip
"""The models that `train` makes; `combine` makes the next ones, `fit` all others."""

STARTED: dict[str, str] = {"ncca-refined": "ncca", "ncca-recurrent": "ncca", "fragments": "ncca-recurrent"}
"""The trained models that start from another model, and the registered one that this is."""

BY_DISTANCE: tuple[str, ...] = ("ridge", "cca")
"""The models that compare by Euclidean distance; all others by the inner products of unit vectors."""

TREES: tuple[str, ...] = ("ctrnn", "dtrnn", "sdtrnn", "hmlstm")
"""The trained models that take sentences as trees."""

SETS: tuple[str, ...] = ("defrag", "dvsa", "fragments")
"""The trained models that are multi-vector; see pipeline.models.neural.fragment_models."""

REGIONAL: tuple[str, ...] = ("hmlstm", *SETS)
"""The trained models that learn from regions."""

PHRASAL: tuple[str, ...] = ("hmlstm",)
"""The trained models that embed noun phrases and regions beside sentences and images: their classes have
`embed_phrases(trees)` and `embed_regions(block)`."""

GENERATORS: dict[str, str] = {
    "nearest": "pipeline.generate.nearest:Nearest",
    "mrnn": "pipeline.generate.mrnn:MultimodalRNN",
    "mrnn-regions": "pipeline.generate.mrnn:MultimodalRNN",
    "lbl": "pipeline.generate.lm:LogBilinearModel",
    "mnlm": "pipeline.generate.lm:MultiplicativeModel",
    "sc-nlm": "pipeline.generate.lm:StructureContentModel",
}
"""Generators of descriptions; see pipeline.generate.describing.Generator for what their classes offer."""

REGION_GENERATORS: tuple[str, ...] = ("mrnn-regions",)
"""The generators that learn from regions and the snippets that `align` found for them."""

SPACE_GENERATORS: tuple[str, ...] = ("lbl", "mnlm", "sc-nlm")
"""The generators that stand on the joint space of a row; `nearest` does by its own choice."""

COMBINED: tuple[str, ...] = ("ensemble", "fragment-ensemble")
"""The models that `combine` makes of others; the latter where some of these are multi-vector."""


TRAININGS: dict[str, tuple[str, ...]] = {
    "target": (),
    "auxiliary": (),
    "joint": ("beta",),
    "text-feature": ("neighbours", "neighbour_share"),
    "stacked": ("auxiliary_dimensions", "auxiliary_power"),
    "sae-linear": ("auxiliary_dimensions", "auxiliary_power", "weight", "second_beta"),
    "sae": (
        "auxiliary_dimensions",
        "auxiliary_power",
        "weight",
        "second_beta",
        "rule",
        "bandwidth",
        "features",
        "sample",
    ),
}
"""What a linear model may learn from (see models.linear.training) -> the keys of `transfer` that matter to it."""


TRANSFERRING: tuple[str, ...] = ("ridge", "cca", "ncca")
"""The models that learn by any of these; all others from target pairs alone."""

STACKING: tuple[str, ...] = ("stacked", "sae-linear", "sae")
"""The trainings that stack a normalized CCA of the auxiliary pairs."""


def model_class(name: str) -> Any:
    """The class registered as `name`; UsageError lists the known names."""
    if name not in REGISTRY:
        raise UsageError(f"unknown model {name}; there are {', '.join(REGISTRY)}")
    return _import(REGISTRY[name])


MALFORMED = (
    LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError, RuntimeError, MemoryError,
)  # fmt: skip
"""What computation raises where stored settings and arrays are not of the form that their class wrote."""


def restore(name: str, settings: Mapping[str, Any], tensors: Mapping[str, Any], where: object = "") -> Any:
    """The registered model `name` from the `settings` and `tensors` that were stored (`where`, for errors), its scores
    scaled where these say so (models.linear.csls). IntegrityError where their form is not that of its class."""
    registered = model_class(name)
    try:
        if "csls" in settings:
            return _import("pipeline.models.linear.csls:Scaled").from_parts(registered, settings, tensors)
        return registered.from_parts(settings, tensors)
    except MALFORMED as error:
        place = f" in {where}" if where else ""
        raise IntegrityError(
            f"the stored {name}{place} has another form than this version reads ({brief(error)}); run"
            f" {_maker(name)} again"
        ) from error


def brief(error: BaseException) -> str:
    """An error in one line; other people's with its type, which may be all that it says."""
    said = str(error) if isinstance(error, JointspaceError) else f"{type(error).__name__}: {error}"
    return textwrap.shorten(said, LONGEST_REASON, placeholder=" ...")


def _import(place: str) -> Any:
    """The class that stands at `module:name`."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def trained_class(name: str) -> Any:
    """The class registered as `name` if `train` makes it; UsageError otherwise."""
    found = model_class(name)
    if name not in TRAINED:
        raise UsageError(f"{name} is made by {_maker(name)}; train makes {', '.join(TRAINED)}")
    return found


def _maker(name: str) -> str:
    """The command that makes the registered model `name`."""
    if name in TRAINED:
        return "train"
    return "combine" if name in COMBINED else "fit"


def generator_class(name: str) -> Any:
    """The class of the generator `name`; UsageError lists the known names."""
    if name not in GENERATORS:
        raise UsageError(f"unknown generator {name}; there are {', '.join(GENERATORS)}")
    return _import(GENERATORS[name])
