"""The literal table of registered models: name -> where its class stands, imported when asked for.

A model's class offers:

* `sentence_view`: which form of the sentences it takes, `tfidf` or `tokens`;
* `embed_images(features)`: mapping of encoder name -> (n, dim) float32 to (n, c) float32;
* `embed_sentences(sentences)`: (n, d) sparse tf-idf, or n pipeline.text.sequences.Tokens, to (n, c) float32;
* `metric`: `inner_product` (both are unit vectors and their product is the score) or `euclidean`;
* `settings()` and `tensors()`, which `from_parts(settings, tensors)` turns back into the model.
"""

import importlib
from typing import Any

from pipeline.errors import UsageError

REGISTRY: dict[str, str] = {
    "ridge": "pipeline.linear.ridge:RidgeRegression",
    "cca": "pipeline.linear.cca:CCA",
    "ncca": "pipeline.linear.cca:NormalizedCCA",
    "kcca": "pipeline.linear.kernels:KernelCCA",
    "wsabie-sgd": "pipeline.linear.wsabie_rows:WsabieSGD",
    "wsabie-adagrad": "pipeline.linear.wsabie_rows:WsabieAdaGrad",
    "bow": "pipeline.neural.models:BagOfWords",
    "devise": "pipeline.neural.models:DeViSE",
    "rnn": "pipeline.neural.models:RNN",
    "gru": "pipeline.neural.models:GRU",
    "lstm": "pipeline.neural.models:LSTM",
    "ncca-refined": "pipeline.neural.refinement:RefinedCCA",
}

TRAINED: tuple[str, ...] = ("bow", "devise", "rnn", "gru", "lstm", "ncca-refined")
"""The models that `train` makes; `fit` makes all others."""


TRAININGS: dict[str, tuple[str, ...]] = {
    "target": (),
    "auxiliary": (),
    "joint": ("beta",),
    "text-feature": ("neighbours",),
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
    ),  # fmt: skip
}
"""What a linear model may learn from (see pipeline.linear.training) -> the keys of `transfer` that matter to it."""


def model_class(name: str) -> Any:
    """The class registered as `name`; UsageError lists the known names."""
    try:
        module, _, attribute = REGISTRY[name].partition(":")
    except KeyError:
        raise UsageError(f"unknown model {name}; there are {', '.join(REGISTRY)}") from None
    return getattr(importlib.import_module(module), attribute)


def trained_class(name: str) -> Any:
    """The class registered as `name` if `train` makes it; UsageError otherwise."""
    found = model_class(name)
    if name not in TRAINED:
        raise UsageError(f"{name} is made by fit; train makes {', '.join(TRAINED)}")
    return found
