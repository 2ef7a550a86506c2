"""The folder of a generated collection, which we may replace, and which `demo.json` commits."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.batch import cannot_write, open_no_link, publish_text, sweep
from pipeline.storage.commit import describe_file, file_faults, publish_record, read_commit
from pipeline.storage.files import is_regular
from pipeline.storage.json_files import Json

MARK = ".jointspace-demo"  # a folder with this file may be replaced
IMAGE = re.compile(r"(scene|weak)-\d{5,}\.jpg")  # names of the images


class DemoFolder:
    """Write it in this order: `claim`, `add` for every image, `commit`."""

    def __init__(self, folder: Path, version: int, settings: Mapping[str, Json]) -> None:
        self.folder = Path(folder)
        self.made_from = {"version": version, "settings": dict(settings)}
        self._images: set[str] = set()

    def is_complete(self) -> bool:
        """Whether the folder is as it was committed, and made from the same settings."""
        try:
            commit = read_commit(self.folder / "demo.json")
        except IntegrityError:
            return False
        same = all(commit.value.get(name) == value for name, value in self.made_from.items())
        return same and not any(file_faults(commit, hashed=True))

    def claim(self) -> None:
        """Mark the folder as ours and remove its commit. Raises UsageError if it holds somebody else's files."""
        if (self.folder / "images").is_symlink():
            raise UsageError(f"{self.folder / 'images'} is a link; name another folder, or set demo.generate to false")
        if self.folder.is_dir() and any(self.folder.iterdir()) and not (self.folder / MARK).exists():
            raise UsageError(f"{self.folder} holds other files; name another folder, or set demo.generate to false")
        try:
            (self.folder / "images").mkdir(parents=True, exist_ok=True)
            (self.folder / MARK).touch()
        except OSError as error:
            raise cannot_write(self.folder / MARK, 0, error, "data_root") from error
        (self.folder / "demo.json").unlink(missing_ok=True)
        sweep(self.folder)

    def add(self, name: str, jpeg: bytes) -> None:
        """Write an image. Raises JointspaceError where the disk is full."""
        path = self.folder / "images" / name
        try:
            with open(path, "wb", opener=open_no_link) as file:
                file.write(jpeg)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise cannot_write(path, len(jpeg), error, "data_root") from error
        self._images.add(name)

    def commit(self, texts: Mapping[str, str]) -> None:
        """Write the text files (name -> content), and commit them and the images as `demo.json`."""
        for path in (self.folder / "images").iterdir():
            if IMAGE.fullmatch(path.name) and is_regular(path) and path.name not in self._images:
                path.unlink()  # from an earlier, larger demo; ingest would read it
        # One sync for all files: syncing thousands one by one takes minutes, and a killed run starts over anyway.
        os.sync()
        for name, text in texts.items():
            publish_text(self.folder / name, text)
        names = [*texts, *(f"images/{name}" for name in sorted(self._images))]
        files = {name: describe_file(self.folder / name) for name in names}
        lines = {name: text.count("\n") for name, text in texts.items()}
        value = {**self.made_from, "images": len(self._images), "lines": lines}
        publish_record(self.folder / "demo.json", value, files=files)
