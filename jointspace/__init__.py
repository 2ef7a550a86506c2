"""Search the index of a run, index photos, find wrong captions, fit a joint space to vectors, or replace an encoder.

    import jointspace

    index = jointspace.load("results/demo/index/sae")
    index.search("a red bus in the desert", k=3)[0].row["path"]

The import is quick. torch, FAISS and other libraries are imported by the first function that needs them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jointspace.auditing import Findings as Findings
    from jointspace.auditing import audit as audit
    from jointspace.auditing import suggest as suggest
    from jointspace.index import Index as Index
    from jointspace.index import load as load
    from jointspace.space import FittedSpace as FittedSpace
    from jointspace.space import fit as fit
    from pipeline.run.reading.migration import Migration as Migration
    from pipeline.run.reading.migration import migrate as migrate

HOMES = {
    **dict.fromkeys(("audit", "Findings", "suggest"), "jointspace.auditing"),
    **dict.fromkeys(("load", "Index"), "jointspace.index"),
    **dict.fromkeys(("fit", "FittedSpace"), "jointspace.space"),
    **dict.fromkeys(("migrate", "Migration"), "pipeline.run.reading.migration"),
}
"""Public name -> the module that defines it."""
__all__ = ["Findings", "FittedSpace", "Index", "Migration", "audit", "fit", "load", "migrate", "suggest"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in HOMES:
        raise AttributeError(f"jointspace has no {name}. It provides {', '.join(__all__)}.")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
