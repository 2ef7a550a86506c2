"""The folder of a generated collection, which we may replace, and which `demo.json` commits."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError, JointspaceError, UsageError
from pipeline.storage.batch import cannot_write, open_no_link, publish_text, sweep
from pipeline.storage.files import file_sha256, is_regular
from pipeline.storage.json_files import fingerprint, publish_json, read_json

MARK = ".jointspace-demo"  # a folder with this file may be replaced
IMAGE = re.compile(r"(scene|weak)-\d{5,}\.jpg")  # names of the images


class DemoFolder:
    """Write it in this order: `claim`, `add` for every image, `commit`."""

    def __init__(self, folder: Path, version: int, settings: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.made_from = {"version": version, "settings": dict(settings)}
        self._hashes: dict[str, str] = {}

    def is_complete(self) -> bool:
        """Whether the folder is as it was committed, and made from the same settings."""
        try:
            value = read_json(self.folder / "demo.json")
            same = {name: value[name] for name in self.made_from} == self.made_from
            return same and value["sha256"] == self._digests(value["lines"])
        except (IntegrityError, OSError, TypeError, KeyError):
            return False

    def claim(self) -> None:
        """Mark the folder as ours and remove its commit. Raises UsageError if it holds somebody else's files."""
        if (self.folder / "images").is_symlink():
            raise UsageError(f"{self.folder / 'images'} is a link; name another folder, or set demo.generate to false")
        if self.folder.is_dir() and any(self.folder.iterdir()) and not (self.folder / MARK).exists():
            raise UsageError(f"{self.folder} holds files that are no demo; name another, or set demo.generate to false")
        try:
            (self.folder / "images").mkdir(parents=True, exist_ok=True)
            (self.folder / MARK).touch()
        except OSError as error:
            raise cannot_write(self.folder / MARK, 0, error, "data_root") from error
        (self.folder / "demo.json").unlink(missing_ok=True)
        sweep(self.folder)

    def add(self, name: str, jpeg: bytes) -> None:
        path = self.folder / "images" / name
        try:
            with open(path, "wb", opener=open_no_link) as file:
                file.write(jpeg)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise cannot_write(path, len(jpeg), error, "data_root") from error
        self._hashes[name] = hashlib.sha256(jpeg).hexdigest()

    def commit(self, texts: Mapping[str, str]) -> None:
        """Write the text files (name -> content), check all files, and commit them as `demo.json`."""
        for path in self._images():
            if path.name not in self._hashes:
                path.unlink()  # from an earlier, larger demo; ingest would read it
        # One sync for all files: syncing thousands one by one takes minutes, and a killed run starts over anyway.
        os.sync()
        if {path.name: file_sha256(path) for path in self._images()} != self._hashes:
            raise JointspaceError(f"images in {self.folder} differ from what was written; check its disk and try again")
        for name, text in texts.items():
            publish_text(self.folder / name, text)
        lines = {name: text.count("\n") for name, text in texts.items()}
        value = {**self.made_from, "images": len(self._hashes), "lines": lines, "sha256": self._digests(lines)}
        publish_json(self.folder / "demo.json", value)

    def _digests(self, texts: Iterable[str]) -> dict[str, str]:
        """The sha256 of each text file, and one of all images."""
        images = {path.name: file_sha256(path) for path in self._images()}
        digests = {name: file_sha256(self.folder / name) for name in texts}
        return {**digests, "images": fingerprint("demo-images", 1, images)}

    def _images(self) -> list[Path]:
        return [path for path in (self.folder / "images").iterdir() if IMAGE.fullmatch(path.name) and is_regular(path)]
