"""The literal table of registered models: name -> where its class stands, imported when asked for.

A model's class offers:

* `sentence_view`: which form of the sentences it takes (`tfidf`);
* `embed_images(features)`: mapping of encoder name -> (n, dim) float32 to (n, c) float32;
* `embed_sentences(sentences)`: (n, d) sparse tf-idf to (n, c) float32;
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
}


def model_class(name: str) -> Any:
    """The class registered as `name`; UsageError lists the known names."""
    try:
        module, _, attribute = REGISTRY[name].partition(":")
    except KeyError:
        raise UsageError(f"unknown model {name}; there are {', '.join(REGISTRY)}") from None
    return getattr(importlib.import_module(module), attribute)
