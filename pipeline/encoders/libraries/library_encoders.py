"""Base classes of image encoders and text encoders that are models of other libraries.

`prepare-encoder` fetches a model and saves it in the format of its library. `restore` reads these files without network
access. A subclass defines for its library how models are fetched, saved and read.
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
    from pipeline.config.encoders import LibraryImagesEntry, LibraryTextsEntry

PREPROCESSING = ("resize", "crop", "mean", "std", "interpolation")
BATCH_TEXTS = 64
"""Number of texts in one forward pass of `encode`, which computes on the CPU."""
PROBE_TEXTS = (
    "a",
    "two dogs run on a beach",
    "A man in a red coat is climbing a steep wall of rock.",
    "snow, at night",
)
"""Texts on which two precisions are compared."""


class FetchedImages(NamedTuple):
    """A network for images that was fetched from a library.

    `body` is the network, and `weights` is the origin of its weights. `preprocessing` has the fields of `Preprocessing`
    that the model states, by name. Fields that the model does not state must be set in the entry.
    """

    body: nn.Module
    preprocessing: Mapping[str, Any]
    weights: WeightsOrigin
    about: Settings = MappingProxyType({})
    """Further settings that `load` needs."""


class LibraryImages(ModuleEncoder):
    """Base class of image encoders of other libraries.

    `about` has the architecture, the layer, whether mirror images are averaged (`flip`), and the origin of the weights.
    """

    kind: ClassVar[str]

    def __init__(self, preprocessing: Preprocessing, body: nn.Module, about: Settings) -> None:
        super().__init__(preprocessing, body, about["flip"])
        self.about = about

    @staticmethod
    @abstractmethod
    def fetch(entry: Any, material: EncoderMaterial) -> FetchedImages:  # Any: each kind has its own class
        """Get the network of an entry from the hub of the library, or from a folder or file of the user.

        `entry` is the LibraryImagesEntry of the kind.
        """

    @staticmethod
    @abstractmethod
    def load(folder: Path, about: Settings) -> nn.Module:
        """Read the network `body` from a folder that `save` has written and that `check_folder` has accepted.

        `about` has the stored settings of the encoder, which the docstring of the class lists.
        """

    @classmethod
    def prepare(cls, entry: "LibraryImagesEntry", material: EncoderMaterial) -> "LibraryImages":
        """Make the encoder of an entry.

        Raises InputError if the network cannot be fetched, if its preprocessing is not known, or if the network does
        not return finite vectors. Raises UsageError if a library is not installed.
        """
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
    """Base class of text encoders of other libraries.

    `body` maps the tensors that `tokenise` returns to vectors (n, dim) float32.
    """

    kind: ClassVar[str]

    def __init__(self, body: nn.Module, weights: WeightsOrigin) -> None:
        self.body = body.eval()
        self.weights = weights
        self.dim = self.encode(["a"]).shape[1]

    @classmethod
    @abstractmethod
    def fetch(
        cls,
        entry: Any,  # each kind has its own class
        weights: dict[str, str | int],
        repository: str | Path,
    ) -> "LibraryTexts":
        """Get the model that `entry` names, and return an encoder with this model.

        `entry` is the LibraryTextsEntry of the kind. `repository` is a folder of the user, or the name of a model on
        the hub. `weights` is the origin of the weights. The method adds further details to this mapping, such as a
        commit.
        """

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, weights: WeightsOrigin) -> "LibraryTexts":
        """Read the encoder from a folder that `save` has written and that `check_folder` has accepted.

        `weights` is the stored origin of the weights, and becomes an attribute of the encoder.
        """

    @abstractmethod
    def tokenise(self, texts: Sequence[str]) -> tuple[torch.Tensor, ...]:
        """Convert n texts to the tensors (n, ...) that `body` takes."""

    @classmethod
    def prepare(cls, entry: "LibraryTextsEntry", material: EncoderMaterial) -> "LibraryTexts":
        """Make the encoder of an entry.

        Raises InputError if the network cannot be fetched, or if the network returns vectors that are not finite.
        Raises UsageError if a library is not installed.
        """
        folder, weights = user_folder(entry, material)
        with fetching(entry.name, entry.architecture, cls.kind):
            encoder = cls.fetch(entry, weights, folder or entry.architecture)
            if not np.isfinite(encoder.encode(["a", "two words"])).all():
                raise InputError(
                    f"text encoder {entry.name} returns vectors that are not finite. Download its weights again."
                )
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
            rows = [self.body(*batch).numpy() for batch in self._batches(texts, BATCH_TEXTS)]
        return np.concatenate(rows) if rows else np.empty((0, self.dim), np.float32)

    def on_device(self, device: str, precision: str, batch_size: int) -> Callable[[Sequence[str]], np.ndarray]:
        """Return a function that maps many texts to vectors (n, dim) float32 on a device, in batches of `batch_size`.

        `choose_plan` explains `device` and `precision`. If a GPU runs out of memory, the batch size is halved.
        """
        extractor = Extractor(self, choose_plan(self, device, precision, batch_size))

        def encode(texts: Sequence[str]) -> np.ndarray:
            started = [extractor.start(*batch) for batch in self._batches(texts, extractor.plan.batch_size)]
            return np.concatenate([block.numpy() for block in started] or [np.empty((0, self.dim), np.float32)])

        return encode

    def _batches(self, texts: Sequence[str], size: int) -> Iterator[tuple[torch.Tensor, ...]]:
        for start in range(0, len(texts), size):
            yield self.tokenise(list(map(normalise_text, texts[start : start + size])))

    def optimised(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """Return a copy of the body on `device`, in `dtype`, whose output is converted to float32."""
        return Float32Output(copy.deepcopy(self.body).eval().to(device, dtype))

    def probe(self) -> tuple[torch.Tensor, ...]:
        """Return the input tensors of a few texts, for comparing precisions."""
        return self.tokenise(PROBE_TEXTS)


class Float32Output(nn.Module):
    """A network that converts the output of the network `body` to float32."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.body(*tensors).float()


def user_folder(
    entry: "LibraryImagesEntry | LibraryTextsEntry", material: EncoderMaterial
) -> tuple[Path | None, dict[str, str | int]]:
    """Return the folder under weights_root that an entry names, and the origin of the weights.

    If the entry does not name a folder, the folder is None, and the origin is a model on the hub of the library.
    """
    folder = entry.folder(str(material.weights_root))
    return folder, {"origin": entry.architecture if folder else f"{entry.architecture}, from its hub"}


@contextmanager
def fetching(encoder: str, architecture: str, library: str) -> Iterator[None]:
    """Convert any exception of a library or its hub to an InputError, and a missing library to a UsageError.

    The arguments are for messages: `encoder` is the name of an encoder, `architecture` is the name of its model, and
    `library` is the name of its kind. A JointspaceError is not converted.
    """
    try:
        yield
    except JointspaceError:
        raise
    except ModuleNotFoundError as error:
        extra = library.replace("_", "-")
        raise UsageError(
            f"encoder {encoder}: encoders of the kind {library} need {error.name}. Install it with"
            f" `pip install 'jointspace[{extra}]'`, or install {error.name} alone."
        ) from error
    except Exception as error:
        raise InputError(
            f"encoder {encoder}: cannot get {architecture} from {library} ({brief(error)}). Correct architecture and"
            " weights, connect to the internet, or put the folder of the model under weights_root."
        ) from error


def choose_preprocessing(entry: "LibraryImagesEntry", stated: Settings) -> Preprocessing:
    """Return the preprocessing of an encoder: the keys of its entry, and the model's values for keys that are null.

    `stated` has the model's values, as far as they are known. If the entry has `resize`, both `resize` and `crop` are
    from the entry, and otherwise both are from the model. Raises InputError for a key that neither the entry nor the
    model has.
    """
    configured = {name: getattr(entry, name) for name in PREPROCESSING[2:] if getattr(entry, name) is not None}
    if entry.resize is not None:
        configured |= {"resize": entry.resize, "crop": entry.crop}
    chosen = {**stated, **configured}
    if missing := [name for name in PREPROCESSING if name not in chosen]:
        raise InputError(
            f"encoder {entry.name}: the preprocessing of {entry.architecture} is not known. Set"
            f" {', '.join(missing)} for this encoder in the configuration."
        )
    return Preprocessing.from_dict({name: chosen[name] for name in PREPROCESSING})


def require_vectors(encoder: ImageEncoder, name: str, side: int | None = None) -> None:
    """Check that an encoder maps each image to one finite vector, and raise InputError if it does not.

    `side` is the side of the images in pixels, by default the side in the encoder's preprocessing.
    """
    side = side or encoder.preprocessing.side
    try:
        with torch.inference_mode():
            vectors = encoder(torch.zeros(2, side, side, 3, dtype=torch.uint8))
        reason = "" if vectors.ndim == 2 and len(vectors) == 2 else f"two images give the shape {tuple(vectors.shape)}"
        reason = reason or ("" if torch.isfinite(vectors).all() else "the features are not finite")
    except MALFORMED as error:
        reason = brief(error)
    if reason:
        raise InputError(
            f"encoder {name}: the model does not map images of {side} x {side} pixels to vectors ({reason}). If the"
            " model is not for images of this size, correct resize and crop, or regions.crop_side. Otherwise choose"
            " another architecture."
        )


def only_side(size: int | Sequence[int]) -> int:
    """Return the side of a square that is given by one number or by two equal numbers.

    Raises ValueError if the numbers differ.
    """
    sides = {size} if isinstance(size, int) else set(size)
    if len(sides) != 1:
        raise ValueError(f"the images of the model have {size} pixels, but must be square")
    return int(sides.pop())


def load_half(model: nn.Module, state: Mapping[str, torch.Tensor], dropped: Callable[[str], bool]) -> None:
    """Load the weights of one side of a model, which are in `state`, into `model`.

    `dropped(name)` says whether a parameter belongs to the other side. Raises ValueError if another parameter is
    missing, or if there is an unknown parameter.
    """
    missing, unexpected = model.load_state_dict(state, strict=False)
    if wrong := [*(name for name in missing if not dropped(name)), *unexpected]:
        fault = "lack" if wrong[0] in missing else "have the unknown tensor"
        raise ValueError(f"its weights {fault} {wrong[0]}")
