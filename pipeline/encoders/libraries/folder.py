"""The folder in which a library has saved an encoder, checked before the library reads it. It may be a stranger's.

A folder holds safetensors, JSON and text, so that nothing in it can be code. Its configurations name no other network,
no other folder and no hub.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import TYPE_CHECKING

from pipeline.encoders.material import LibraryFiles
from pipeline.errors import JointspaceError, brief

if TYPE_CHECKING:
    from pydantic import JsonValue

ALLOWED_SUFFIXES = (".safetensors", ".json", ".txt", ".jinja", ".md")
"""Endings of the files that a folder may hold."""

MAX_JSON_BYTES = 1 << 28
"""Size of a tokenizer or vocabulary at most."""

MAX_CONFIG_BYTES = 1 << 22
"""Size of a configuration at most."""

TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json")
"""Files of words. All other JSON files are configurations."""

ELSEWHERE = re.compile(r"(local-dir|hf-hub|hf_hub|file|https?):|timm_", re.IGNORECASE)
"""Beginnings of the names of networks that lie in a folder or on a hub, and of networks of another library."""

REFUSED_KEYS = frozenset((
    "auto_map", "backbone", "backbone_config", "hf_model_name", "quantization_config", "timm_model_pretrained",
    "use_timm_backbone", "bpe_path", "base_model_name_or_path", "peft_type",
))  # fmt: skip
"""Keys that name code or another network, which the library would load."""

LOADER_KEYS = frozenset((
    "transformers_weights", "tokenizer_file", "fast_tokenizer_files", "tokenizer_name_or_path", "tokenizer_args",
    "processor_kwargs", "config_args", "config_kwargs", "model_kwargs",
))  # fmt: skip
"""Keys by which the loader of a library reads files of other folders, or runs other code."""

ATTENTION = re.compile(r"_?attn_implementation(_internal)?")
KNOWN_ATTENTION = (None, "eager", "sdpa")
"""Attention without kernels from elsewhere."""

LAYERS = re.compile("layers|depth|blocks|heads|experts|stages")
MAX_LAYERS = 1 << 10
MAX_WIDTH = 1 << 24

SHOWN = 80
"""Characters of a name that an error quotes."""


def check_folder(files: LibraryFiles) -> Path:
    """Check the folder of a stored encoder, and return it. Raises ValueError for the first thing that is wrong.

    The folder has exactly the files of the commit record, which are regular files of known kinds and of modest size.
    There is no link. The configurations are plain, as `require_plain_config` says.
    """
    if files.folder.is_symlink():
        raise ValueError("its folder is a link")
    found = set()
    for parent, folders, names in os.walk(files.folder):
        for name in (*folders, *names):
            if not S_ISREG(mode := Path(parent, name).lstat().st_mode) and not S_ISDIR(mode):
                raise ValueError(f"its file {name} is {'a link' if S_ISLNK(mode) else 'not a regular file'}")
        found |= {Path(parent, name).relative_to(files.folder).as_posix() for name in names}
    if unlisted := sorted(found - files.names):
        raise ValueError(f"it holds {unlisted[0]}, which its commit record does not list")
    if missing := sorted(files.names - found):
        raise ValueError(f"its file {missing[0]} is missing")
    for name in sorted(found):
        if not name.endswith(ALLOWED_SUFFIXES):
            raise ValueError(f"it holds {name}, and only {', '.join(ALLOWED_SUFFIXES)} are read")
        if not name.endswith(".safetensors"):
            check_text_file(files.folder, name)
    return files.folder


def check_text_file(folder: Path, name: str) -> None:
    """Check a file of words by its size, and a configuration by its content. Raises ValueError."""
    path = folder / name
    is_config = name.endswith(".json") and path.name not in TOKENIZER_FILES
    limit = MAX_CONFIG_BYTES if is_config else MAX_JSON_BYTES
    if path.stat().st_size > limit:
        raise ValueError(f"its file {name} is larger than {limit} bytes")
    if is_config:
        try:
            require_plain_config(read_config(folder, name))
        except ValueError as error:
            raise ValueError(f"in {name}: {error}") from error


def read_config(folder: Path, name: str) -> "JsonValue":
    """Read a JSON file of a folder."""
    return json.loads((folder / name).read_text(encoding="utf-8"))


def is_file_name(name: "JsonValue") -> bool:
    """Return whether a value is the name of a file or folder, and not a path to another folder."""
    return isinstance(name, str) and Path(name).name == name != ".."


def require_plain_config(config: "JsonValue") -> None:
    """Check a configuration, however deep. Raises ValueError for a value that names a folder, a hub or another network
    that its library would load, and for more layers than any network has."""
    if isinstance(config, str) and ELSEWHERE.match(config):
        raise ValueError(f"it names {config[:SHOWN]!r}, and a network inside another is not restored")
    pairs: Iterator[tuple[str | int, JsonValue]] = iter(())
    if isinstance(config, Mapping):
        pairs = iter(config.items())
    elif isinstance(config, list):
        pairs = iter(enumerate(config))
    for key, value in pairs:
        if value and (str(key) in REFUSED_KEYS or str(key).startswith("use_pretrained")):
            raise ValueError(f"its {key} names code or another network, which is not restored")
        if value and key in LOADER_KEYS:
            raise ValueError(f"its {key} is an instruction to the loader, which is not followed")
        if key == "weight_map" and not (isinstance(value, Mapping) and all(map(is_file_name, value.values()))):
            raise ValueError("its weight_map names a file of another folder")
        if ATTENTION.fullmatch(str(key)) and value not in KNOWN_ATTENTION:
            raise ValueError(f"its {key} names code from elsewhere, which is not restored")
        if isinstance(value, int) and value > (MAX_LAYERS if LAYERS.search(str(key)) else MAX_WIDTH):
            raise ValueError(f"its {key} is {value}, more than any network has")
        require_plain_config(value)


@contextmanager
def malformed() -> Iterator[None]:
    """Raise ValueError for whatever a library raises about files that it cannot read."""
    try:
        yield
    except (JointspaceError, ModuleNotFoundError, ValueError):
        raise
    except Exception as error:
        raise ValueError(brief(error)) from error


@contextmanager
def offline() -> Iterator[None]:
    """Ask nothing of Hugging Face's hub meanwhile, whatever a stored configuration names."""
    try:
        from huggingface_hub import constants
    except ModuleNotFoundError:
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
