"""Checks the folder in which a library has saved an encoder before the library reads it. The folder is not trusted.

A folder may contain only safetensors, JSON and text files, so that nothing in it can be code. The configurations in a
folder must not name another network, another folder or a hub.
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
"""Suffixes of the files that a folder may contain."""

MAX_JSON_BYTES = 1 << 28
"""Largest size in bytes of a tokenizer, a vocabulary or another text file that is not a configuration. A folder with a
larger file is refused."""

MAX_CONFIG_BYTES = 1 << 22
"""Largest size of a configuration in bytes. A folder with a larger configuration is refused."""

TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json")
"""Names of the files that have tokenizers and vocabularies. All other JSON files are configurations."""

ELSEWHERE = re.compile(r"(local-dir|hf-hub|hf_hub|file|https?):|timm_", re.IGNORECASE)
"""Pattern that matches at the beginning of a text in a configuration if the text names a network in a folder, on a hub,
or of another library."""
IGNORED = re.compile(r"[\0- ]")
"""Pattern of control characters and the space. They are removed from a text before the text is compared with ELSEWHERE,
because parsers of URLs, such as the parser in older versions of timm, ignore these characters in a name."""

REFUSED_KEYS = frozenset((
    "auto_map", "backbone", "backbone_config", "hf_model_name", "quantization_config", "timm_model_pretrained",
    "use_timm_backbone", "bpe_path", "base_model_name_or_path", "peft_type",
))  # fmt: skip
"""Keys that name code or another network, which the library would load. A configuration with a value for such a key is
refused, unless the value is empty, zero or false."""

LOADER_KEYS = frozenset((
    "transformers_weights", "tokenizer_file", "fast_tokenizer_files", "tokenizer_name_or_path", "tokenizer_args",
    "processor_kwargs", "config_args", "config_kwargs", "model_kwargs",
))  # fmt: skip
"""Keys by which the loader of a library reads files of other folders, or runs other code. A configuration with a value
for such a key is refused, unless the value is empty, zero or false."""

ATTENTION = re.compile(r"_?attn_implementation(_internal)?")
"""Keys that name an implementation of attention."""
KNOWN_ATTENTION = (None, "eager", "sdpa")
"""Implementations of attention that need no kernels from a hub."""

LAYERS = re.compile("layers|depth|blocks|heads|experts|stages")
"""Pattern of the words in keys whose value is a number of layers, or of components of a layer, such as heads."""
MAX_LAYERS = 1 << 10
"""Largest value of a key that LAYERS matches. A configuration with a larger value is refused."""
MAX_WIDTH = 1 << 24
"""Largest whole number under a key that LAYERS does not match. A configuration with a larger number is refused."""

MAX_QUOTED_CHARACTERS = 80
"""Largest number of characters of a name in a message."""


def check_folder(files: LibraryFiles) -> Path:
    """Check the folder of a stored encoder, and return it. Raises ValueError for the first fault.

    The folder must have exactly the files that the commit record lists. Each must be a regular file of a known kind,
    and not a link. The size of text files is limited. `require_plain_config` checks the configurations.
    """
    if files.folder.is_symlink():
        raise ValueError("the folder of the encoder is a link, which is not followed")
    found = set()
    for parent, folders, names in os.walk(files.folder):
        for name in (*folders, *names):
            if not S_ISREG(mode := Path(parent, name).lstat().st_mode) and not S_ISDIR(mode):
                raise ValueError(
                    f"the file {name} of the encoder is {'a link' if S_ISLNK(mode) else 'not a regular file'}"
                )
        found |= {Path(parent, name).relative_to(files.folder).as_posix() for name in names}
    if unlisted := sorted(found - files.names):
        raise ValueError(f"the folder of the encoder contains {unlisted[0]}, which its commit record does not list")
    if missing := sorted(files.names - found):
        raise ValueError(f"the file {missing[0]} of the encoder is missing")
    for name in sorted(found):
        if not name.endswith(ALLOWED_SUFFIXES):
            raise ValueError(
                f"the folder of the encoder contains {name}, but only files of the types {', '.join(ALLOWED_SUFFIXES)}"
                " are read"
            )
        if not name.endswith(".safetensors"):
            check_text_file(files.folder, name)
    return files.folder


def check_text_file(folder: Path, name: str) -> None:
    """Check the size of a text file in a folder, and the content if the file is a configuration. Raises ValueError if
    the file is too large, or is refused by `require_plain_config`."""
    path = folder / name
    is_config = name.endswith(".json") and path.name not in TOKENIZER_FILES
    limit = MAX_CONFIG_BYTES if is_config else MAX_JSON_BYTES
    if path.stat().st_size > limit:
        raise ValueError(f"the file {name} of the encoder is larger than {limit} bytes")
    if is_config:
        try:
            require_plain_config(read_config(folder, name))
        except ValueError as error:
            raise ValueError(f"in {name}: {error}") from error


def read_config(folder: Path, name: str) -> "JsonValue":
    """Return the value in a JSON file of a folder. Raises ValueError if the file is not JSON."""
    return json.loads((folder / name).read_text(encoding="utf-8"))


def is_file_name(name: "JsonValue") -> bool:
    """Return whether a value is the name of a file or folder, and not a path to another folder."""
    return isinstance(name, str) and Path(name).name == name != ".."


def require_plain_config(config: "JsonValue") -> None:
    """Check a configuration with all values that are nested in it.

    Raises ValueError for a value by which the library would load another folder, a hub or another network, and for a
    number that is larger than in any network.
    """
    if isinstance(config, str) and ELSEWHERE.match(IGNORED.sub("", config)):
        raise ValueError(
            f"the configuration names {config[:MAX_QUOTED_CHARACTERS]!r}, and a network inside another network is not"
            " restored"
        )
    pairs: Iterator[tuple[str | int, JsonValue]] = iter(())
    if isinstance(config, Mapping):
        pairs = iter(config.items())
    elif isinstance(config, list):
        pairs = iter(enumerate(config))
    for key, value in pairs:
        if value and (str(key) in REFUSED_KEYS or str(key).startswith("use_pretrained")):
            raise ValueError(f"the key {key} names code or another network, which is not restored")
        if value and key in LOADER_KEYS:
            raise ValueError(f"the key {key} is an instruction to the loader, which is not followed")
        if key == "weight_map" and not (isinstance(value, Mapping) and all(map(is_file_name, value.values()))):
            raise ValueError("the key weight_map does not map to names of files in the folder of the encoder")
        if ATTENTION.fullmatch(str(key)) and value not in KNOWN_ATTENTION:
            raise ValueError(f"the key {key} names code from elsewhere, which is not restored")
        if isinstance(value, int) and value > (MAX_LAYERS if LAYERS.search(str(key)) else MAX_WIDTH):
            raise ValueError(f"the key {key} is {value}, which is more than any network has")
        require_plain_config(value)


@contextmanager
def malformed() -> Iterator[None]:
    """Convert the exceptions that a library raises for malformed files in the `with` block to ValueError.

    JointspaceError and ModuleNotFoundError are not converted.
    """
    try:
        yield
    except (JointspaceError, ModuleNotFoundError, ValueError):
        raise
    except Exception as error:
        raise ValueError(brief(error)) from error


@contextmanager
def offline() -> Iterator[None]:
    """Prevent requests to the Hugging Face hub while the `with` block runs, whatever a stored configuration names."""
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
