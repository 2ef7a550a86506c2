"""Sections about text encoders."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.settings.section import Name, Positive, Section


class TextKindSettings(Section):
    """What a kind of text encoder is made from, beside its keys."""

    @property
    def learns(self) -> bool:
        """Whether from the training sentences."""
        return False

    @property
    def vectors(self) -> bool:
        """Whether from vectors of words."""
        return False

    @property
    def corpus(self) -> bool:
        """Whether these are the run's own."""
        return False

    def outside(self, weights_root: str) -> Path | None:
        """The file that a person brought for it."""
        return None

    def files(self, weights_root: str) -> dict[str, Path]:
        """All such files, by their names as inputs."""
        path = self.outside(weights_root)
        return {"file": path} if path else {}

    def folder(self, weights_root: str) -> Path | None:
        """The folder of a model that a person brought for it."""
        return None

    @property
    def maker(self) -> str | None:
        """The text encoder that made its vectors, where these were made elsewhere."""
        return None

    @property
    def lacks(self) -> str | None:
        """The key that an entry of the kind has to have and does not."""
        return None


class WordVectorSource(TextKindSettings):
    """Where the vectors of words come from, of which a text's vector is made."""

    source: Literal["corpus", "file"]
    file: str | None
    format: Literal["text", "binary"]
    words: Positive

    @property
    def learns(self) -> bool:
        return True

    @property
    def vectors(self) -> bool:
        return True

    @property
    def corpus(self) -> bool:
        return self.source == "corpus"

    def outside(self, weights_root: str) -> Path | None:
        return Path(weights_root) / self.file if self.file else None

    @model_validator(mode="after")
    def _file_goes_with_source(self) -> "WordVectorSource":
        if (self.source == "file") != (self.file is not None):
            raise ValueError("give `file` exactly when `source` is file")
        return self


class AveragedSettings(WordVectorSource):
    idf: bool


class FisherSettings(WordVectorSource):
    components: Annotated[Positive, Field(ge=2)]
    principal: Positive | None
    sample: Positive


class LibrarySettings(TextKindSettings):
    """A model of another library: its name on the hub, or a folder."""

    architecture: str | None

    def folder(self, weights_root: str) -> Path | None:
        place = Path(weights_root) / (self.architecture or "")
        return place if self.architecture and place.is_dir() else None

    @property
    def lacks(self) -> str | None:
        return None if self.architecture else "architecture"


class OpenClipTextSettings(LibrarySettings):
    weights: str | None


class OnnxTextSettings(TextKindSettings):
    """An ONNX file, and the JSON file of its tokenizer."""

    file: str | None
    tokenizer: str | None
    length: Positive | None
    output: str | None

    def outside(self, weights_root: str) -> Path | None:
        return Path(weights_root) / self.file if self.file else None

    def files(self, weights_root: str) -> dict[str, Path]:
        found = super().files(weights_root)
        beside = found["file"].with_name("tokenizer.json")
        return found | {"tokenizer": Path(weights_root) / self.tokenizer if self.tokenizer else beside}

    @property
    def lacks(self) -> str | None:
        return None if self.file else "file"


class ImportedSettings(TextKindSettings):
    """Vectors of the run's sentences that were made elsewhere."""

    path: str | None
    features: str | None
    names: str | None
    made_by: Name | None

    @property
    def maker(self) -> str | None:
        return self.made_by

    @property
    def lacks(self) -> str | None:
        return None if self.path else "path"
