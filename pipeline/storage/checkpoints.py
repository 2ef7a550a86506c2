"""Training checkpoints `<folder>/step-00000001.safetensors`: the newest intact one counts, older ones are removed."""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.storage.batch import remove_own, sweep
from pipeline.storage.commit import Commits, Provenance, commit_path
from pipeline.storage.parameters import Parameters, read_parameters, write_parameters

CHECKPOINT = "checkpoint"
FILES = re.compile(r"step-\d{8}\.(safetensors|json)")


class Checkpoints:
    """The checkpoints of the training run with this fingerprint; others are ignored.

    A new file is published before older ones are removed, so a kill at any time leaves an intact one.
    """

    def __init__(self, folder: Path, fingerprint: str, seconds: float) -> None:
        self.folder, self.seconds = Path(folder), seconds
        self._provenance = Provenance(self.folder, CHECKPOINT, 1, {"of": fingerprint})
        self._last = time.monotonic()

    def latest(self) -> Parameters | None:
        """The newest intact checkpoint of this training run; None if there is none."""
        sweep(self.folder)
        for path in sorted(self._paths(), reverse=True):
            try:
                if Commits(self.folder).is_done(commit_path(path), self._provenance):
                    return read_parameters(path, CHECKPOINT)
            except IntegrityError:
                continue
        return None

    def offer(self, make: Callable[[], tuple[Mapping[str, np.ndarray], Mapping[str, Any]]]) -> None:
        """Publish the tensors and settings that `make` returns if the last checkpoint is `seconds` old."""
        if time.monotonic() - self._last < self.seconds:
            return
        older = self._paths()
        number = max((int(path.stem.partition("-")[2]) for path in older), default=0) + 1
        tensors, settings = make()
        path = self.folder / f"step-{number:08d}.safetensors"
        write_parameters(path, CHECKPOINT, tensors, settings=settings, provenance=self._provenance)
        for old in older:
            commit_path(old).unlink(missing_ok=True)
            old.unlink()
        self._last = time.monotonic()

    def clear(self) -> None:
        remove_own(self.folder, FILES)

    def _paths(self) -> list[Path]:
        return [path for path in self.folder.glob("step-*.safetensors") if FILES.fullmatch(path.name)]
