"""The code that bundles carry, and which of it is one's own.

A spaCy pipeline calls the functions that its configuration names while it is loaded, and an ONNX graph may take any
memory and time. So they are run only if they were put into a bundle here, by this user, or if a command was told to
trust them (`--trust-code`). What is remembered is the SHA-256 of such a part, as an empty file in the user's own folder
of state: nothing that lies in a bundle, or beside it, can vouch for it. Copies of a bundle, and those that `apply`,
`index-add` and `index-remove` make, carry the same parts, and so are as much, or as little, one's own.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
PARSER, ONNX = "parser/", "onnx"
"""The folder of a spaCy pipeline in a bundle; and the kind of an encoder that is an ONNX graph, also the name of its
bytes among its tensors."""
_here: set[str] = set()
"""What this process has remembered, should the folder not be writable."""


def code_of(card: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a bundle that are code, with the SHA-256 of each, by its card."""
    files = card["files"]
    parts = {}
    if parser := sorted((name, about["sha256"]) for name, about in files.items() if name.startswith(PARSER)):
        parts[PARSER] = hashlib.sha256(json.dumps(parser).encode()).hexdigest()
    for folder, kind in (("encoders", "architecture"), ("text_encoders", "kind")):
        for name, about in card.get(folder, {}).items():
            file = f"{folder}/{name}/model.safetensors"
            if about[kind] == ONNX and file in files:
                parts[file] = files[file]["sha256"]
    return parts


def remember(digests: Iterable[str]) -> None:
    """Have these parts be one's own, for good where the user's folder can be written, else in this process."""
    new = [digest for digest in digests if not is_own(digest)]
    _here.update(new)
    if not new:
        return
    try:
        folder = state_folder()
        for digest in new:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / digest).touch()
    except (OSError, RuntimeError) as error:
        log.warning("cannot remember that a bundle's code is yours (%s); later commands need --trust-code", error)


def is_own(digest: str) -> bool:
    if digest in _here:
        return True
    try:
        return (state_folder() / digest).is_file()
    except (OSError, RuntimeError):
        return False


def state_folder() -> Path:
    """Where parts are remembered. Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "jointspace" / "own-code"
