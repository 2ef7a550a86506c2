"""Models of other libraries: where they come from, and that nothing is fetched but by the stages that prepare them."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.config.registry import extra_of
from pipeline.errors import InputError, JointspaceError, UsageError, brief

OPEN_CLIP_HUB = "hf-hub:"
"""How OpenCLIP's names of models on the hub begin."""
ELSEWHERE = re.compile(r"(local-dir|hf-hub|hf_hub|file|https?):|timm_", re.IGNORECASE)
"""Beginnings of the names of networks that lie in a folder or on a hub, or that another library builds."""
NETWORKS_INSIDE = frozenset(("auto_map", "backbone", "hf_model_name", "timm_model_pretrained", "use_timm_backbone"))
"""Keys that name code or another network, which the library would load."""
LAYERS = re.compile("layers|depth|blocks|heads|experts|stages")
MAX_LAYERS, MAX_WIDTH = 1 << 10, 1 << 24
LONGEST_NAME = 80
"""Characters of a name that an error quotes."""


def own_folder(architecture: str, folder: Callable[[str], Path | None]) -> tuple[Path | None, dict[str, str]]:
    """The folder under weights_root that `architecture` names, if there is one, and what that makes the origin of its
    weights."""
    found = folder(architecture)
    return found, {"origin": architecture if found else f"{architecture}, from its hub"}


def open_clip_config(folder: Path | None, architecture: str) -> dict[str, Any]:
    """OpenCLIP's description of the networks of a model: in a `folder`, on the hub, or by its name."""
    import open_clip

    if folder:
        return json.loads((folder / "open_clip_config.json").read_text(encoding="utf-8"))["model_cfg"]
    if architecture.startswith(OPEN_CLIP_HUB):
        return open_clip.factory._get_hf_config(architecture.removeprefix(OPEN_CLIP_HUB))["model_cfg"]
    return open_clip.get_model_config(architecture)


def require_plain_config(config: Any) -> None:
    """Raise ValueError for a configuration of a network that names, however deep, a folder, a hub or another network
    that its library would load, or has more layers than any network."""
    if isinstance(config, str) and ELSEWHERE.match(config):
        raise ValueError(f"it names {config[:LONGEST_NAME]!r}, and a network inside another is not restored")
    parts = config.items() if isinstance(config, Mapping) else enumerate(config if isinstance(config, list) else ())
    for key, value in parts:
        if value and (str(key) in NETWORKS_INSIDE or str(key).startswith("use_pretrained")):
            raise ValueError(f"its {key} names code or another network, which is not restored")
        if isinstance(value, int) and value > (MAX_LAYERS if LAYERS.search(str(key)) else MAX_WIDTH):
            raise ValueError(f"its {key} is {value}, more than any network has")
        require_plain_config(value)


@contextmanager
def fetching(encoder: str, architecture: str, library: str) -> Iterator[None]:
    """InputError in place of what a library, its hub, or those that carry their requests raise; UsageError where a
    library is missing."""
    try:
        yield
    except JointspaceError:
        raise
    except ModuleNotFoundError as error:
        remedy = f"pip install 'jointspace[{extra_of(library)}]', or {error.name} by itself"
        raise UsageError(f"encoder {encoder}: {library} encoders need {error.name}; {remedy}") from error
    except Exception as error:
        raise InputError(
            f"encoder {encoder}: cannot get {architecture} from {library} ({brief(error)}); correct architecture and"
            " weights, go online, or put the model's folder under weights_root"
        ) from error


@contextmanager
def offline() -> Iterator[None]:
    """Nothing is asked of Hugging Face's hub meanwhile, whatever a stored configuration names."""
    try:
        from huggingface_hub import constants
    except ModuleNotFoundError:
        yield
        return
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
