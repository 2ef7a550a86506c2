"""Search the index of a run, index other photos with its model, or fit a joint space to vectors.

    import jointspace

    index = jointspace.load("results/demo/index/sae")
    index.search("a red bus in the desert", k=3)[0].row["path"]

The import is quick. torch, FAISS and other libraries are imported by the first function that needs them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jointspace.index import Index as Index
    from jointspace.index import load as load
    from jointspace.selection import suggest as suggest
    from jointspace.space import FittedSpace as FittedSpace
    from jointspace.space import fit as fit

HOMES = {"load": "index", "Index": "index", "fit": "space", "FittedSpace": "space", "suggest": "selection"}
"""Public name -> the module of jointspace that defines it."""
__all__ = ["FittedSpace", "Index", "fit", "load", "suggest"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in HOMES:
        raise AttributeError(f"jointspace has no {name}. It provides {', '.join(__all__)}.")
    return getattr(import_module(f"jointspace.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
