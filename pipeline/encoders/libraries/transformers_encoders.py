"""Image encoders and text encoders that are models of the library transformers, such as CLIP, SigLIP, DINOv2 and BERT.

The method `save_pretrained` of the library writes the files of a model. A dual encoder, such as CLIP, has an image side
and a text side, of which only the side that the encoder uses is saved.
"""

import inspect
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import nn

from pipeline.encoders.libraries.library_encoders import (
    PREPROCESSING,
    FetchedImages,
    LibraryImages,
    LibraryTexts,
    only_side,
    user_folder,
)
from pipeline.encoders.material import EncoderMaterial, Settings, WeightsOrigin
from pipeline.errors import InputError, brief
from pipeline.images.preprocess import Preprocessing, prepare

if TYPE_CHECKING:
    from pipeline.config.encoders import LibraryImagesEntry, LibraryTextsEntry

TEXT_PARTS = ("text_",)
"""Prefixes of the names of the parts of a dual encoder that only its text side uses."""
IMAGE_PARTS = ("vision_", "visual_", "image_")
"""Prefixes of the names of the parts of a dual encoder that only its image side uses."""

MIN_SIZE_WITHOUT_CROP = 384
"""Side in pixels from which ConvNeXt's preprocessing resizes the whole image. With a smaller side, the preprocessing
crops the centre."""

PROBE_WIDTH = 400
PROBE_HEIGHT = 300
"""PROBE_WIDTH and PROBE_HEIGHT are the width and height in pixels of the gradient image on which our preprocessing is
compared with the preprocessing of the library."""

PIXEL_TOLERANCE = 2 / 255
"""Largest difference of pixels that rounding can cause, as a share of their range. A wrong crop, scale or channel order
causes a difference of at least 0.06."""

MAX_TOKENS = 512
"""Largest number of tokens of a text, for any model. Longer texts are truncated."""

SIGLIP = ("siglip", "siglip2")
"""Types of models that were trained on texts in lower case without punctuation. The texts were padded to the full
length, without an attention mask."""

WITHOUT_PUNCTUATION = str.maketrans("_", " ", string.punctuation.replace("_", ""))
"""Translation table that removes ASCII punctuation and replaces underscores by spaces."""


class ImageFeatures(nn.Module):
    """Image side of a model of transformers, which maps normalised images (n, 3, side, side) to features (n, dim).

    The features are the projected image embedding of a dual encoder (CLIP, SigLIP). For an image-only model, the
    features are the pooled output or, if the model has no pooling layer (`pooled` is false), the hidden state of the
    first token.
    """

    model: transformers.PreTrainedModel

    def __init__(self, model: transformers.PreTrainedModel, pooled: bool) -> None:
        super().__init__()
        self.model = drop_parts(model, TEXT_PARTS)
        self.pooled = pooled

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if hasattr(self.model, "get_image_features"):
            output = self.model.get_image_features(pixel_values=images)
            return output if isinstance(output, torch.Tensor) else output.pooler_output
        output = self.model(pixel_values=images)
        pooled = output.pooler_output if self.pooled else output.last_hidden_state[:, 0]
        return pooled.flatten(1)


class TransformersImages(LibraryImages):
    """Image encoder that is an image model, or the image side of a dual encoder."""

    kind = "transformers"

    @staticmethod
    def fetch(entry: "LibraryImagesEntry", material: EncoderMaterial) -> FetchedImages:
        folder, weights = user_folder(entry, material)
        repository = folder or entry.architecture
        model, missing = load_model(repository)
        require_weights(missing, ("pooler.",))
        # In a vision transformer without a pooling layer, the attribute `pooler` is None.
        pooled = not missing and getattr(model, "pooler", True) is not None
        stated = {name: getattr(entry, name) for name in PREPROCESSING}
        if None in [value for name, value in stated.items() if name != "crop"]:
            stated = load_preprocessing(repository, entry.name)
        if commit := getattr(model.config, "_commit_hash", None):
            weights["commit"] = commit
        return FetchedImages(ImageFeatures(model, pooled), stated, weights, {"pooled": pooled})

    def save(self, folder: Path) -> None:
        assert isinstance(self.body, ImageFeatures)
        with quiet():
            self.body.model.save_pretrained(folder)

    @staticmethod
    def load(folder: Path, about: Settings) -> nn.Module:
        pooled = about["pooled"]
        model, missing = load_model(folder, local_files_only=True)
        require_weights(missing, TEXT_PARTS if pooled else (*TEXT_PARTS, "pooler."))
        return ImageFeatures(model, pooled)


class TextFeatures(nn.Module):
    """Text side of a model of transformers, which maps token ids (n, t) and a mask (n, t) to vectors (n, dim).

    A vector is the projected text embedding of a dual encoder. For a text-only model, a vector is the mean of the last
    hidden states of all tokens of a text, without padding. `masked` says whether the model takes the mask as an
    argument.
    """

    model: transformers.PreTrainedModel

    def __init__(self, model: transformers.PreTrainedModel, masked: bool) -> None:
        super().__init__()
        self.model = drop_parts(model, IMAGE_PARTS)
        self.masked = masked

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        arguments = {"input_ids": ids} | ({"attention_mask": mask} if self.masked else {})
        if hasattr(self.model, "get_text_features"):
            output = self.model.get_text_features(**arguments)
            return output if isinstance(output, torch.Tensor) else output.pooler_output
        states = self.model(**arguments).last_hidden_state
        weights = mask[:, :, None].to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


class TransformersTexts(LibraryTexts):
    """Text encoder that is a text model, or the text side of a dual encoder, with its tokenizer."""

    kind = "transformers"

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        tokenizer: transformers.PreTrainedTokenizerFast,
        weights: WeightsOrigin,
    ) -> None:
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise ValueError("the model has no tokenizer.json, which is needed")
        self.model = model
        self.tokenizer = tokenizer
        self.dual = hasattr(model, "get_text_features")
        self.siglip = model.config.model_type in SIGLIP
        self.length = max_length(model, tokenizer)
        if not self.dual:
            tokenizer.padding_side = "right"
        masked = "attention_mask" in tokenizer.model_input_names
        masked = masked and "attention_mask" in inspect.signature(model.forward).parameters
        super().__init__(TextFeatures(model, masked and not self.siglip), weights)

    @classmethod
    def fetch(
        cls, entry: "LibraryTextsEntry", weights: dict[str, str | int], repository: str | Path
    ) -> "TransformersTexts":
        model, missing = load_model(repository)
        require_weights(missing, ("pooler.",))
        tokenizer = transformers.AutoTokenizer.from_pretrained(repository, trust_remote_code=False)
        if model.config.model_type in SIGLIP and not hasattr(tokenizer, "backend_tokenizer"):
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(repository)
        if commit := getattr(model.config, "_commit_hash", None):
            weights["commit"] = commit
        return cls(model, tokenizer, weights)

    def save(self, folder: Path) -> None:
        with quiet():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    @classmethod
    def load(cls, folder: Path, weights: WeightsOrigin) -> "TransformersTexts":
        model, missing = load_model(folder, local_files_only=True)
        require_weights(missing, (*IMAGE_PARTS, "pooler."))
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        return cls(model, tokenizer, weights)

    def tokenise(self, texts: Sequence[str]) -> tuple[torch.Tensor, ...]:
        cleaned = [canonical(text) if self.siglip else text for text in texts]
        padding = "max_length" if self.dual else True
        options = {"padding": padding, "truncation": True, "max_length": self.length, "return_attention_mask": True}
        encoded = self.tokenizer(cleaned, return_tensors="pt", **options)
        return encoded["input_ids"], encoded["attention_mask"]


def max_length(model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerFast) -> int:
    """Return the largest number of tokens of a text for a model. Longer texts are truncated.

    Raises ValueError if the number is less than 1.
    """
    config = getattr(model.config, "text_config", model.config)
    limits = (tokenizer.model_max_length, getattr(config, "max_position_embeddings", MAX_TOKENS), MAX_TOKENS)
    if (length := int(min(limits))) < 1:
        raise ValueError(f"the model allows texts of at most {length} tokens, but must allow at least 1 token")
    return length


def canonical(text: str) -> str:
    """Clean a text as it was cleaned for training SigLIP: lower case, no ASCII punctuation, one space between words."""
    return " ".join(text.translate(WITHOUT_PUNCTUATION).lower().split())


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the library's log messages and progress bars while the `with` block runs.

    The library would warn about the weights of the side that is not stored.
    """
    logs = transformers.utils.logging
    before = logs.get_verbosity()
    bars = logs.is_progress_bar_enabled()
    logs.set_verbosity(logs.CRITICAL)
    logs.disable_progress_bar()
    try:
        yield
    finally:
        logs.set_verbosity(before)
        if bars:
            logs.enable_progress_bar()


def load_model(
    repository: str | Path, local_files_only: bool = False
) -> tuple[transformers.PreTrainedModel, list[str]]:
    """Load the model in a folder or on the hub, in float32.

    Return the model, and the names of its parameters that the weights lack. Only safetensors are read, and no code of
    the hub is run. With `local_files_only`, nothing is downloaded. Raises ValueError if the weights do not fit the
    configuration of the model.
    """
    options = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": local_files_only}
    with quiet():
        model, loading = transformers.AutoModel.from_pretrained(repository, **options, output_loading_info=True)
    if wrong := sorted(map(str, [*loading["mismatched_keys"], *loading["error_msgs"]])):
        raise ValueError(f"the weights of the model have other shapes than the configuration says ({wrong[0]})")
    return model.float().eval(), sorted(loading["missing_keys"])


def require_weights(missing: Sequence[str], but: tuple[str, ...]) -> None:
    """Raise ValueError if the weights of a model lack a parameter that is needed.

    `missing` has the names of all parameters that the weights lack. A parameter whose name begins with one of the
    prefixes in `but` is not needed.
    """
    if lost := [name for name in missing if not name.startswith(but)]:
        raise ValueError(f"the weights of the model lack {lost[0]}")


def drop_parts(model: transformers.PreTrainedModel, beginnings: tuple[str, ...]) -> transformers.PreTrainedModel:
    """Remove the parts of a dual encoder whose names begin with one of the prefixes in `beginnings`.

    The model is changed in place, and returned. Each removed part becomes an Identity. An image-only or text-only model
    is not changed.
    """
    if hasattr(model, "get_image_features") and hasattr(model, "get_text_features"):
        for name in [name for name, _ in model.named_children() if name.startswith(beginnings)]:
            setattr(model, name, nn.Identity())
    return model


def load_preprocessing(repository: str | Path, encoder_name: str) -> dict[str, Any]:
    """Load a model's image processor and convert it to the settings of `Preprocessing`.

    `encoder_name` is the name of the encoder for messages. Raises InputError if the processor does something that
    `Preprocessing` cannot express.
    """
    processor = transformers.AutoImageProcessor.from_pretrained(repository, trust_remote_code=False)
    try:
        preprocessing = convert_processor(processor.to_dict())
        check_same_pixels(processor, preprocessing)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Encoder {encoder_name}: this model's image preprocessing is not supported ({brief(error)}). Choose"
            " another model, or set resize, crop, mean, std and interpolation for this encoder in the configuration."
        ) from error
    return preprocessing


def check_same_pixels(processor: transformers.BaseImageProcessor, preprocessing: Settings) -> None:
    """Check that our preprocessing produces the same pixels as the library's processor on a gradient image.

    Raises ValueError if the shapes differ, or if a pixel differs by PIXEL_TOLERANCE + 1 / resize of its range or more.
    """
    across, down = np.meshgrid(np.linspace(0, 255, PROBE_WIDTH), np.linspace(0, 255, PROBE_HEIGHT))
    gradient = Image.fromarray(np.stack([across, down, 255 - (across + down) / 2], axis=2).round().astype(np.uint8))
    mean = np.array(preprocessing["mean"])
    std = np.array(preprocessing["std"])
    ours = (prepare(gradient, Preprocessing.from_dict(preprocessing)) / 255 - mean) / std
    theirs = np.asarray(processor(images=gradient, return_tensors="pt")["pixel_values"])
    name = type(processor).__name__
    if theirs.shape != (1, 3, *ours.shape[:2]):
        raise ValueError(
            f"{name} makes an array of the shape {theirs.shape}, but {(1, 3, *ours.shape[:2])} is expected"
        )
    difference = (np.abs(theirs[0].transpose(1, 2, 0) - ours) * std).max()
    if not difference < PIXEL_TOLERANCE + 1 / preprocessing["resize"]:
        raise ValueError(f"the pixels of {name} differ from the expected pixels by {difference:.2f} of their range")


def convert_processor(settings: Settings) -> dict[str, Any]:
    """Convert the settings of a transformers image processor (`to_dict()`) to the keys resize, crop, mean, std and
    interpolation of `Preprocessing`.

    Sides are in pixels, and `crop` is None if images are squashed to a square. Raises KeyError, TypeError or ValueError
    for settings of another form, or if the input is not a square.
    """
    size = settings["size"]
    crop_size = settings.get("crop_size") if settings.get("do_center_crop") else None
    crop = only_side([crop_size["height"], crop_size["width"]]) if crop_size else None
    crop_fraction = settings.get("crop_pct")
    if "shortest_edge" in size:
        resize = int(size["shortest_edge"])
        if crop is None and not crop_fraction:
            raise ValueError("the image processor keeps the aspect ratio, but jointspace needs square images")
        if crop is not None or resize < MIN_SIZE_WITHOUT_CROP:
            crop = crop or resize
            resize = int(resize / (crop_fraction or 1))
    else:
        resize = only_side([size["height"], size["width"]])
        crop = None if crop == resize else crop
    normalised = settings.get("do_normalize", True)
    return {
        "resize": resize,
        "crop": crop,
        "mean": tuple(settings["image_mean"]) if normalised else (0, 0, 0),
        "std": tuple(settings["image_std"]) if normalised else (1, 1, 1),
        "interpolation": Image.Resampling(settings["resample"]).name.lower(),
    }
