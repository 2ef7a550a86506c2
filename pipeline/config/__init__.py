"""The configuration: its keys with their defaults, the registry of models and encoders, checks, loading.

Importing a module of the registry costs no import of pydantic.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config.loading import default_path as default_path
    from pipeline.config.loading import load as load
    from pipeline.config.loading import read_mapping as read_mapping
    from pipeline.config.loading import validate as validate
    from pipeline.config.names import Config as Config
    from pipeline.config.section import merge as merge

HOMES = {
    "Config": "names",
    "default_path": "loading",
    "load": "loading",
    "merge": "section",
    "read_mapping": "loading",
    "validate": "loading",
}
"""Name -> the module that has it."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in HOMES:
        raise AttributeError(f"{__name__} has no {name}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
