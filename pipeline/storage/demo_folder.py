"""Writing and checking the folder of a generated demo collection, whose commit record is `demo.json`.

`make-demo` replaces the demo in a folder only if the folder has the file `.jointspace-demo`, and refuses other folders
that contain files.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.batch import cannot_write, open_no_link, publish_text, sweep
from pipeline.storage.commit import describe_file, file_faults, publish_record, read_commit
from pipeline.storage.files import is_regular
from pipeline.storage.json_files import Json

MARK = ".jointspace-demo"
"""Name of the empty file that marks a folder whose demo may be replaced."""
IMAGE = re.compile(r"(scene|weak)-\d{5,}\.jpg")
"""Pattern of the names of the image files of a demo."""


class DemoFolder:
    """Writer of the folder of a demo collection. Call `claim`, then `add` for each image, and then `commit`.

    `version` is the version of the code that generates the demo from `settings`. A stored demo of another version, or
    with other settings, is not complete.
    """

    def __init__(self, folder: Path, version: int, settings: Mapping[str, Json]) -> None:
        self.folder = Path(folder)
        self.made_from = {"version": version, "settings": dict(settings)}
        self._images: set[str] = set()

    def is_complete(self) -> bool:
        """Return whether the folder has a commit record with the same version and settings, and its files have not
        changed since."""
        try:
            commit = read_commit(self.folder / "demo.json")
        except IntegrityError:
            return False
        same = all(commit.value.get(name) == value for name, value in self.made_from.items())
        return same and not any(file_faults(commit, hashed=True))

    def claim(self) -> None:
        """Create the folder if it does not exist, mark it as a demo collection, and remove its commit record.

        Raises UsageError if the folder contains files and does not have the mark, or if its subfolder `images` is a
        link, and JointspaceError if the folder cannot be written.
        """
        remedy = "Set data_root to another folder for the demo, or set demo.generate to false to read this folder."
        if (self.folder / "images").is_symlink():
            raise UsageError(f"{self.folder / 'images'} is a link, so the demo is not written there. {remedy}")
        if self.folder.is_dir() and any(self.folder.iterdir()) and not (self.folder / MARK).exists():
            raise UsageError(f"{self.folder} contains other files, so the demo is not written there. {remedy}")
        try:
            (self.folder / "images").mkdir(parents=True, exist_ok=True)
            (self.folder / MARK).touch()
        except OSError as error:
            raise cannot_write(self.folder / MARK, 0, error, "data_root") from error
        (self.folder / "demo.json").unlink(missing_ok=True)
        sweep(self.folder)

    def add(self, name: str, jpeg: bytes) -> None:
        """Write the image file `name` into the folder `images`. Raises JointspaceError if it cannot be written."""
        path = self.folder / "images" / name
        try:
            with open(path, "wb", opener=open_no_link) as file:
                file.write(jpeg)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise cannot_write(path, len(jpeg), error, "data_root") from error
        self._images.add(name)

    def commit(self, texts: Mapping[str, str]) -> None:
        """Write the text files, given as name -> content, and the commit record of all text files and images.

        Images of an earlier demo that were not added again are removed.
        """
        for path in (self.folder / "images").iterdir():
            if IMAGE.fullmatch(path.name) and is_regular(path) and path.name not in self._images:
                path.unlink()  # An earlier, larger demo wrote this file, and `ingest` would read it.
        # The disk is synced once, because syncing thousands of files one by one takes minutes. If this process is
        # killed before the commit record is written, the demo is written from the start again.
        os.sync()
        for name, text in texts.items():
            publish_text(self.folder / name, text)
        names = [*texts, *(f"images/{name}" for name in sorted(self._images))]
        files = {name: describe_file(self.folder / name) for name in names}
        lines = {name: text.count("\n") for name, text in texts.items()}
        value = {**self.made_from, "images": len(self._images), "lines": lines}
        publish_record(self.folder / "demo.json", value, files=files)
