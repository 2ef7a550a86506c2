"""The bases of encoders that are models of other libraries: of images, and of texts.

`prepare-encoder` fetches a model and saves it in the library's own files; `restore` reads these files again, offline. A
subclass says how its library does both.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from pipeline.encoders.extraction import Extractor, choose_plan
from pipeline.encoders.image_encoder import ImageEncoder, ModuleEncoder
from pipeline.encoders.libraries.folder import check_folder, malformed, offline
from pipeline.encoders.material import EncoderMaterial, Settings, StoredEncoder, WeightsOrigin
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.errors import MALFORMED, InputError, JointspaceError, UsageError, brief
from pipeline.images.preprocess import Preprocessing
from pipeline.text.tokens import normalise_text

if TYPE_CHECKING:
    from pipeline.config.encoders import EncoderEntry, LibraryImagesEntry, LibraryTextsEntry

PREPROCESSING = ("resize", "crop", "mean", "std", "interpolation")
BATCH = 64
"""Texts in one forward pass of a query or of an encoder on the CPU."""
PROBE_TEXTS = (
    "a",
    "two dogs run on a beach",
    "A man in a red coat is climbing a steep wall of rock.",
    "snow, at night",
)
"""Texts by which precisions are compared."""


class FetchedImages(NamedTuple):
    """A library's network of images: its `body`, the preprocessing as far as the model states it, and its origin."""

    body: nn.Module
    preprocessing: Mapping[str, Any]
    weights: WeightsOrigin
    about: Settings = MappingProxyType({})
    """Whatever else `load` has to know."""


class LibraryImages(ModuleEncoder):
    """A network of images of another library. `about` has its architecture, layer, flip, and the origin of weights."""

    kind: ClassVar[str]

    def __init__(self, preprocessing: Preprocessing, body: nn.Module, about: Settings) -> None:
        super().__init__(preprocessing, body, about["flip"])
        self.about = about

    @staticmethod
    @abstractmethod
    def fetch(entry: "LibraryImagesEntry", material: EncoderMaterial) -> FetchedImages:
        """Get the network of an entry from the library's hub, or from a folder or file of the user."""

    @staticmethod
    @abstractmethod
    def load(folder: Path, about: Settings) -> nn.Module:
        """Read the `body` from a folder that `save` has written. The folder has been checked."""

    @classmethod
    def prepare(cls, entry: "EncoderEntry", material: EncoderMaterial) -> "LibraryImages":
        """Raises InputError if the network cannot be fetched, or does not map images to vectors."""
        from pipeline.config.encoders import LibraryImagesEntry

        assert isinstance(entry, LibraryImagesEntry)
        with fetching(entry.name, entry.architecture, cls.kind):
            fetched = cls.fetch(entry, material)
            body = fetched.body.float().eval()
        about = {"architecture": entry.architecture, "layer": "output", "weights": fetched.weights, "flip": entry.flip}
        about |= fetched.about
        encoder = cls(choose_preprocessing(entry, fetched.preprocessing), body, about)
        require_vectors(encoder, entry.name)
        return encoder

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.about, "preprocessing": asdict(self.preprocessing)}

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    @classmethod
    def restore(cls, stored: StoredEncoder) -> "LibraryImages":
        assert stored.library is not None
        settings = stored.settings
        about = {name: value for name, value in settings.items() if name not in ("kind", "preprocessing", "network")}
        with torch.random.fork_rng(devices=[]), offline(), malformed():
            body = cls.load(check_folder(stored.library), about).float().eval()
        return cls(Preprocessing.from_dict(settings["preprocessing"]), body, about)


class LibraryTexts(TextEncoder):
    """A network of texts of another library. `body` maps the tensors of `tokenise` to (n, dim) float32."""

    kind: ClassVar[str]

    def __init__(self, body: nn.Module, weights: WeightsOrigin) -> None:
        self.body = body.eval()
        self.weights = weights
        self.dim = self.encode(["a"]).shape[1]

    @classmethod
    @abstractmethod
    def fetch(cls, entry: "LibraryTextsEntry", weights: dict[str, str | int], place: str | Path) -> "LibraryTexts":
        """Get the model from a `place`, the user's folder or the name of the entry, and add to `weights`."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, weights: WeightsOrigin) -> "LibraryTexts":
        """Read the encoder from a folder that `save` has written. The folder has been checked."""

    @abstractmethod
    def tokenise(self, texts: Sequence[str]) -> tuple[torch.Tensor, ...]:
        """Turn n texts into tensors (n, ...) that the body takes."""

    @classmethod
    def prepare(cls, entry: "EncoderEntry", material: EncoderMaterial) -> "LibraryTexts":
        """Raises InputError if the network cannot be fetched, or makes vectors that are not finite."""
        from pipeline.config.encoders import LibraryTextsEntry

        assert isinstance(entry, LibraryTextsEntry)
        folder, weights = user_folder(entry, material)
        with fetching(entry.name, entry.architecture, cls.kind):
            encoder = cls.fetch(entry, weights, folder or entry.architecture)
            if not np.isfinite(encoder.encode(["a", "two words"])).all():
                raise InputError(f"text encoder {entry.name} makes vectors that are not finite; get its weights again")
        return encoder

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "weights": dict(self.weights)}

    @classmethod
    def restore(cls, stored: StoredEncoder) -> "LibraryTexts":
        assert stored.library is not None
        with torch.random.fork_rng(devices=[]), offline(), malformed():
            return cls.load(check_folder(stored.library), stored.settings["weights"])

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        with torch.inference_mode():
            rows = [self.body(*batch).numpy() for batch in self._batches(texts, BATCH)]
        return np.concatenate(rows) if rows else np.empty((0, self.dim), np.float32)

    def on_device(self, device: str, precision: str, batch_size: int) -> Callable[[Sequence[str]], np.ndarray]:
        """Encode in batches as images are: on a GPU that runs out of memory, the batches are halved."""
        extractor = Extractor(self, choose_plan(self, device, precision, batch_size))

        def encode(texts: Sequence[str]) -> np.ndarray:
            started = [extractor.start(*batch) for batch in self._batches(texts, extractor.plan.batch_size)]
            return np.concatenate([block.numpy() for block in started] or [np.empty((0, self.dim), np.float32)])

        return encode

    def _batches(self, texts: Sequence[str], size: int) -> Iterator[tuple[torch.Tensor, ...]]:
        for start in range(0, len(texts), size):
            yield self.tokenise(list(map(normalise_text, texts[start : start + size])))

    def optimised(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """Return a copy of the body on `device`, in `dtype`."""
        return Float32Output(copy.deepcopy(self.body).to(device, dtype))

    def probe(self) -> tuple[torch.Tensor, ...]:
        """Return the input of a few texts, by which precisions are compared."""
        return self.tokenise(PROBE_TEXTS)


class Float32Output(nn.Module):
    """A body whose output is float32, whatever it computes in."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.body(*tensors).float()


def user_folder(
    entry: "LibraryImagesEntry | LibraryTextsEntry", material: EncoderMaterial
) -> tuple[Path | None, dict[str, str | int]]:
    """Return the folder under weights_root that an entry names, or None, and the origin of its weights."""
    folder = entry.folder(str(material.weights_root))
    return folder, {"origin": entry.architecture if folder else f"{entry.architecture}, from its hub"}


@contextmanager
def fetching(encoder: str, architecture: str, library: str) -> Iterator[None]:
    """Raise InputError for whatever a library, or its hub, raises, and UsageError if a library is not installed."""
    try:
        yield
    except JointspaceError:
        raise
    except ModuleNotFoundError as error:
        remedy = f"pip install 'jointspace[{library.replace('_', '-')}]', or {error.name} by itself"
        raise UsageError(f"encoder {encoder}: {library} encoders need {error.name}; {remedy}") from error
    except Exception as error:
        raise InputError(
            f"encoder {encoder}: cannot get {architecture} from {library} ({brief(error)}); correct architecture and"
            " weights, go online, or put the model's folder under weights_root"
        ) from error


def choose_preprocessing(entry: "LibraryImagesEntry", stated: Settings) -> Preprocessing:
    """Return the preprocessing of an entry, with the values that the model has `stated` in place of null.

    The geometry (`resize` and `crop`) is the entry's or the model's as a whole. Raises InputError for a key that
    neither says.
    """
    said = {name: getattr(entry, name) for name in PREPROCESSING[2:] if getattr(entry, name) is not None}
    if entry.resize is not None:
        said |= {"resize": entry.resize, "crop": entry.crop}
    chosen = {**stated, **said}
    if missing := [name for name in PREPROCESSING if name not in chosen]:
        raise InputError(
            f"encoder {entry.name}: {entry.architecture} does not say its preprocessing; give {', '.join(missing)}"
        )
    return Preprocessing.from_dict({name: chosen[name] for name in PREPROCESSING})


def require_vectors(encoder: ImageEncoder, name: str, side: int | None = None) -> None:
    """Raise InputError unless an encoder makes one finite vector of an image, of its own or another `side`."""
    side = side or encoder.preprocessing.side
    try:
        with torch.inference_mode():
            vectors = encoder(torch.zeros(2, side, side, 3, dtype=torch.uint8))
        reason = "" if vectors.ndim == 2 and len(vectors) == 2 else f"it makes {tuple(vectors.shape)} of two images"
        reason = reason or ("" if torch.isfinite(vectors).all() else "its features are not finite")
    except MALFORMED as error:
        reason = brief(error)
    if reason:
        raise InputError(
            f"encoder {name}: the model does not map images of {side} x {side} pixels to vectors ({reason}); name one"
            " that describes images, or correct resize and crop, or regions.crop_side"
        )


def only_side(size: int | Sequence[int]) -> int:
    """Return the side of a square that is given as a number or as two. Raises ValueError for a rectangle."""
    sides = {size} if isinstance(size, int) else set(size)
    if len(sides) != 1:
        raise ValueError(f"its input {size} is not a square")
    return int(sides.pop())


def load_half(model: nn.Module, state: Mapping[str, torch.Tensor], dropped: Callable[[str], bool]) -> None:
    """Load a state that lacks the parameters that are `dropped`. Raises ValueError if it lacks or has any others."""
    missing, unexpected = model.load_state_dict(state, strict=False)
    if wrong := [*(name for name in missing if not dropped(name)), *unexpected]:
        raise ValueError(f"its weights lack, or should not have, {wrong[0]}")
