"""The entries of `encoders` and `text_encoders`: one class for each kind of encoder, with the keys of that kind.

`EncoderEntry` is the base of all of them. The kinds themselves are listed in `ENCODERS` of pipeline.config.registry.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from pipeline.config.messages import suggest
from pipeline.config.registry import IMPORT_PATH, EncoderSpec, Modality, encoder_spec, encoder_specs
from pipeline.config.section import (
    ImportPath,
    Name,
    NonNegative,
    Number,
    Place,
    Positive,
    Section,
    Side,
    file_goes_with,
    key,
)
from pipeline.errors import meant

VECTOR_FORMATS = ".npy, .npz, .pt, .safetensors, Parquet, HDF5, clip-retrieval's folder"


class EncoderEntry(Section):
    """The base of all entries. A subclass has the keys of its kind, and the class attribute `modality`."""

    modality: ClassVar[Modality]
    remedy: ClassVar[str] = ""
    """Advice for a text encoder that does not know many words of dev."""

    name: Name = key(..., "a name of your choice")
    kind: str = key(..., "see below")

    @property
    def spec(self) -> EncoderSpec:
        return encoder_spec(self.kind, self.modality)

    @property
    def prepared(self) -> bool:
        """Whether the encoder can encode new images or texts. Precomputed vectors need the encoder that made them."""
        return self.spec.reads != "vectors" or self.base is not None

    @property
    def base(self) -> str | None:
        """The name of the encoder that this encoder is made from, or None."""
        return None

    @property
    def learns(self) -> bool:
        """Whether the encoder is made from the train split."""
        return self.spec.learned

    @property
    def finetuned(self) -> bool:
        """Whether the stage `finetune` makes the encoder, and not `prepare-encoder`."""
        return False

    @property
    def corpus(self) -> bool:
        """Whether the encoder is made from the run's own word vectors."""
        return False

    def files(self, weights_root: str) -> dict[str, Path]:
        """Return the files of the user that the encoder is made from, by their names in the commit record."""
        return {}

    def folder(self, weights_root: str) -> Path | None:
        """Return the folder of a model that the encoder is made from, if it lies under `weights_root`."""
        return None

    def without_weights(self) -> "EncoderEntry | None":
        """Return the entry of the same network with untrained weights, or None if the kind has none."""
        return None

    def max_dim(self, word_dim: int) -> int | None:
        """Return the most dimensions that vectors can have, with word vectors of `word_dim`, or None."""
        return None

    def decisive(self) -> dict[str, Any]:
        """Return the keys that decide what the encoder computes."""
        keys = self.model_dump()
        return {name: value for name, value in keys.items() if (name, value) != ("kind", "network")}

    @property
    def label(self) -> str:
        """The encoder in the words of the papers' tables."""
        return self.kind


# --- images

NETWORKS = re.compile(
    r"alexnet|convnext_(tiny|small|base|large)|densenet(121|161|169|201)|efficientnet_(b[0-7]|v2_[sml])|googlenet"
    r"|inception_v3|maxvit_t|mnasnet(0_5|0_75|1_0|1_3)|mobilenet_(v2|v3_(large|small))"
    r"|regnet_[xy]_(400mf|800mf|1_6gf|3_2gf|8gf|16gf|32gf)|regnet_y_128gf|resnet(18|34|50|101|152)"
    r"|resnext(50_32x4d|101_32x8d|101_64x4d)|shufflenet_v2_x(0_5|1_0|1_5|2_0)|squeezenet1_[01]|swin_(v2_)?[bst]"
    r"|vgg1[1369](_bn)?|vit_([bl]_(16|32)|h_14)|wide_resnet(50|101)_2"
)
"""Classification networks of torchvision. Importing torchvision to ask for the names takes seconds."""

NETWORKS_WITH_HIDDEN_LAYERS = ("alexnet", "vgg")
"""Beginnings of the names of networks that have the layers fc6 and fc7."""

NETWORKS_WITHOUT_MAPS = ("vit_",)
"""Beginnings of the names of networks that have no map of activations."""

Deviation = Annotated[Number, Field(ge=0.001)]
"""Standard deviation of a channel with values in [0, 1]. With a smaller deviation, features would not be finite."""

OWN_PREPROCESSING = ("resize", "mean", "std", "interpolation")
"""Keys that only the models of libraries may leave out."""


def require_torchvision(name: str, kind: str) -> None:
    """Raise ValueError, with the nearest name, unless the installed torchvision has the network or detector."""
    from torchvision import models

    module = models.detection if kind == "detector" else models
    beginning = "fasterrcnn" if kind == "detector" else ""
    installed = [model for model in models.list_models(module=module) if model.startswith(beginning)]
    if name not in installed:
        raise ValueError(f"unknown {kind} {name}; {suggest(name, installed, 'torchvision has')}")


class ImageEntry(EncoderEntry):
    """An encoder of images that reads pixels."""

    modality = "image"

    resize: Side | None = key(256, "shorter side in pixels, before the crop")
    crop: Side | None = key(224, "side of the central square; null squashes the whole image to resize x resize")
    mean: tuple[Number, Number, Number] | None = key((0.485, 0.456, 0.406), "mean of each channel, in [0, 1]")
    std: tuple[Deviation, Deviation, Deviation] | None = key(
        (0.229, 0.224, 0.225), "standard deviation of each channel"
    )
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] | None = key(
        "bilinear", "bilinear | bicubic | lanczos | nearest, with antialiasing"
    )
    flip: bool = key(False, "average the features of the image and its mirror image")

    @model_validator(mode="after")
    def _has_a_geometry(self) -> "ImageEntry":
        if self.crop is not None and self.crop > (self.resize or 0):
            raise ValueError(f"crop {self.crop} is larger than the shorter side, {self.resize}; give a larger `resize`")
        for name in () if self.spec.library else OWN_PREPROCESSING:
            if getattr(self, name) is None:
                raise ValueError(f"kind {self.kind} needs `{name}`; do not set it to null")
        return self


class ImageWeights(Section):
    """The keys of a file of weights."""

    file: Place | None = key(None, "weights: file; safetensors or a state dict, under weights_root")
    sha256: str | None = key(None, "of that file; null accepts any and records it")

    def files(self, weights_root: str) -> dict[str, Path]:
        return {"weights": Path(weights_root, self.file)} if self.file else {}


WIDTHS = {"squeezenet": 512, "resnet18": 512, "resnet34": 512, "mobilenet_v2": 1280, "vgg": 512, "alexnet": 256}
"""Beginning of the name of a network of torchvision -> channels of its average pooling."""
UNTRAINED = {"weights": "untrained", "file": None, "sha256": None}


class NetworkEntry(ImageWeights, ImageEntry):
    """A classification network of torchvision."""

    kind: Literal["network"] | ImportPath = key("network", "network | standard | colours | pooled | ..., see below")
    architecture: str = key(..., "a classification network of torchvision")
    weights: Literal["untrained", "torchvision", "file", "finetuned"] = key(
        "torchvision", "untrained (drawn from `seed`) | torchvision (downloaded) | file | finetuned (on boxes)"
    )
    layer: Literal["average", "fc6", "fc7"] = key(
        "average", "average (the last average pooling) | fc6 | fc7 (AlexNet and VGG)"
    )

    _file = file_goes_with("weights")

    @property
    def finetuned(self) -> bool:
        return self.weights == "finetuned"

    def max_dim(self, word_dim: int) -> int | None:
        if self.layer != "average":
            return 4096
        return next((width for name, width in WIDTHS.items() if self.architecture.startswith(name)), None)

    def without_weights(self) -> "NetworkEntry":
        return self.model_copy(update=UNTRAINED)

    @property
    def label(self) -> str:
        return f"{self.architecture} {self.layer}"

    @model_validator(mode="after")
    def _has_its_layer(self) -> "NetworkEntry":
        name = self.architecture
        if not NETWORKS.fullmatch(name):
            require_torchvision(name, "architecture")
        if self.layer != "average" and not name.startswith(NETWORKS_WITH_HIDDEN_LAYERS):
            raise ValueError(f"{name} has no layer {self.layer}, only AlexNet and VGG do; set layer to average")
        if self.layer == "average" and name.startswith(NETWORKS_WITHOUT_MAPS):
            raise ValueError(f"{name} has no map of activations to average; choose a convolutional network")
        return self


class StandardDimensionsSettings(Section):
    gist: Positive = key(500, "of 960")
    rgb: Positive = key(500, "of 512")
    csift: Positive = key(1000, "of descriptor_dim x codebook")
    rgbsift: Positive = key(1000, "likewise")
    hog: Positive = key(1000, "of (descriptor_dim, at most 36) x codebook")


class StandardEntry(ImageEntry):
    """Descriptors: GIST, colours, VLAD of CSIFT, RGBSIFT and HOG. It needs jointspace[standard]."""

    kind: Literal["standard"] | ImportPath = key(...)
    images: Annotated[Positive, Field(ge=2)] = key(4000, "train images that the reductions are learned from")
    codebook_images: Positive = key(1000, "those of them whose local descriptors the codebooks are learned from")
    descriptors: Positive = key(100, "of each kind from each of these")
    grid_step: Positive = key(8, "pixels between local descriptors")
    patch: Annotated[Positive, Field(ge=4, multiple_of=2)] = key(16, "side of the square that one describes; even")
    descriptor_dim: Positive = key(64, "dimensions that local descriptors are reduced to before the codebook")
    codebook: Positive = key(100, "words; a VLAD has descriptor_dim x codebook dimensions")
    dimensions: StandardDimensionsSettings = key(
        StandardDimensionsSettings, "that each part is reduced to; at most one fewer than images"
    )

    def max_dim(self, word_dim: int) -> int:
        return sum(self.dimensions.model_dump().values())

    @model_validator(mode="after")
    def _fits_its_patches(self) -> "StandardEntry":
        side = self.crop or self.resize or 0
        if self.patch > side:
            raise ValueError(f"patch {self.patch} exceeds the side {side}")
        return self


class ColoursEntry(ImageEntry, resize=64, crop=None):
    """Histograms of the colours of an image and of its horizontal bands."""

    kind: Literal["colours"] | ImportPath = key(...)
    levels: Annotated[Positive, Field(le=16)] = key(8, "levels per channel of the histogram of the whole image")
    bands: Annotated[Positive, Field(le=16)] = key(3, "horizontal bands of equal height, each with its own histogram")
    band_levels: Annotated[Positive, Field(le=16)] = key(4, "levels per channel of the histogram of a band")

    def max_dim(self, word_dim: int) -> int:
        return self.levels**3 + self.bands * self.band_levels**3


class PooledEntry(EncoderEntry):
    """Features pooled over the regions of an image."""

    modality = "image"

    kind: Literal["pooled"] | ImportPath = key(...)
    of: Name = key(..., "the encoder of regions.encoders whose regions are pooled")
    pooling: Literal["mean", "max"] = key("mean", "mean | max over the regions of an image")

    @property
    def base(self) -> str:
        return self.of


class PrecomputedKeys(Section):
    """The keys of precomputed vectors."""

    path: Place = key(..., f"precomputed vectors, under data_root: {VECTOR_FORMATS}")
    features: str | None = key(None, "the column, array or dataset of the vectors; null: the only one")
    names: str | None = key(
        None,
        "the column of the names, or a text file; of captions IMAGE#k or the words; null: FILE.txt, the only column, or"
        " for captions the order of the manifest",
    )
    made_by: Name | None = key(None, "the encoder that made them, for queries; null: no such queries")

    @property
    def base(self) -> str | None:
        return self.made_by


class ImportedImagesEntry(PrecomputedKeys, EncoderEntry):
    """Precomputed features of the run's images."""

    modality = "image"

    kind: Literal["imported"] | ImportPath = key(...)


class LibraryEntry(Section):
    """The keys of a model of another library."""

    architecture: str = key(..., "a name of the library, hf-hub:NAME, or a folder under weights_root")

    def folder(self, weights_root: str) -> Path | None:
        path = Path(weights_root, self.architecture)
        return path if self.architecture and path.is_dir() else None

    @property
    def label(self) -> str:
        return self.architecture


class LibraryImagesEntry(LibraryEntry, ImageEntry, resize=None, crop=None, mean=None, std=None, interpolation=None):
    """The base of image models of other libraries. A key that is null takes the value that the model states."""

    @model_validator(mode="before")
    @classmethod
    def _choose_weights(cls, values: object) -> object:
        """Take the weights from the file that the entry names. Without a file, take them from the hub."""
        if isinstance(values, Mapping) and values.get("weights") is None:
            return {**values, "weights": "file" if values.get("file") else "hub"}
        return values


class OpenClipImagesEntry(ImageWeights, LibraryImagesEntry):
    """The image side of an OpenCLIP model. It needs jointspace[open-clip]."""

    kind: Literal["open_clip"] | ImportPath = key(...)
    weights: str = key("hub", "OpenCLIP's name for its pretrained weights | hub | file")

    _file = file_goes_with("weights")


class TimmEntry(ImageWeights, LibraryImagesEntry):
    """A network of timm. It needs jointspace[timm]."""

    kind: Literal["timm"] | ImportPath = key(...)
    weights: Literal["hub", "file", "untrained"] = key("hub", "hub | file | untrained")

    _file = file_goes_with("weights")

    def without_weights(self) -> "TimmEntry":
        return self.model_copy(update=UNTRAINED)


class TransformersImagesEntry(LibraryImagesEntry):
    """An image model, or the image side of a dual encoder, of transformers. It needs jointspace[transformers]."""

    kind: Literal["transformers"] | ImportPath = key(...)
    weights: Literal["hub"] = key("hub", "hub")


class OwnImageEntry(ImageWeights, ImageEntry):
    """A class of your own, `module:Class`, that is not a subclass of a class above."""

    kind: ImportPath = key(...)
    architecture: str = key("", "for your class")
    weights: str | None = key("torchvision", "for your class")
    layer: str = key("average", "for your class")


# --- texts


def _listed(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


Weights = Annotated[tuple[NonNegative, ...], Field(min_length=1), BeforeValidator(_listed)]


class TextEntry(EncoderEntry):
    """The base of the encoders of texts, and a class of your own, `module:Class`."""

    modality = "text"

    kind: str = key(..., "tf-idf | averaged | fisher | ..., see below")
    normalise: tuple[Literal["sqrt", "l2"], ...] = key(("l2",), "steps on each vector, in order: sqrt (signed) | l2")
    centre: Literal["none", "mean", "whiten"] = key(
        "none", "dense vectors: none | mean (subtract the training captions' mean) | whiten (and decorrelate)"
    )
    weight: Weights = key((1,), "factor on its vectors; of several, dev chooses")
    storage: Literal["float16", "float32"] = key("float16", "dense vectors: float16 | float32")

    @property
    def own(self) -> "TextEntry":
        """This entry. Classes of users may ask for it, since the settings of a kind used to be a section."""
        return self

    @property
    def learns(self) -> bool:
        """Whether the encoder is made from the training captions, or may be because its class is the user's own."""
        return self.spec.learned or self.centre != "none" or ":" in self.kind

    def decisive(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name", "normalise", "weight", "storage"})


class TermKeys(Section):
    """Terms, and how often they occur."""

    lemmatise: bool = key(True, "use lemmas (simplemma) if most words of the training captions are English")
    stop_words: bool = key(False, "leave out scikit-learn's English stop words ('under' is one of them)")
    max_ngram: Annotated[Positive, Field(le=3)] = key(
        2, "1 words only; 2 also pairs of neighbouring words; 3 also triples (of characters, see docs/encoders.md)"
    )
    size: Positive = key(3000, "number of terms: the most common of the training captions")
    min_count: Positive = key(2, "training captions that a term must occur in")
    idf: bool = key(True, "weight terms by inverse document frequency")
    unit_length: bool = key(True, "scale every caption to unit length")
    vocabulary: Place | None = key(None, "model.json of a tf-idf encoder to keep as a collection grows")


class TfidfEntry(TermKeys, TextEntry):
    """Terms and how often they occur. A key that an entry leaves out is taken from the section `text`."""

    remedy: ClassVar[str] = "raise text.size, lower text.min_count, or add a text encoder that knows the language"

    kind: Literal["tf-idf"] | ImportPath = key(...)

    @property
    def learns(self) -> bool:
        return self.vocabulary is None or ":" in self.kind

    def max_dim(self, word_dim: int) -> int:
        return self.size

    def files(self, weights_root: str) -> dict[str, Path]:
        return {"file": Path(self.vocabulary)} if self.vocabulary else {}


class WordVectorsEntry(TextEntry):
    """The base of encoders that are made from vectors of words."""

    remedy: ClassVar[str] = "use vectors of words in the language of the sentences, or source: corpus"

    source: Literal["corpus", "file"] = key("corpus", "corpus (what train-word-vectors learned) | file")
    file: Place | None = key(None, "source file: GloVe or word2vec, under weights_root")
    format: Literal["text", "binary"] = key("text", "of that file: text | binary (word2vec)")
    words: Positive = key(50_000, "source file: words to keep, besides those of the training captions")

    @property
    def corpus(self) -> bool:
        return self.source == "corpus"

    def files(self, weights_root: str) -> dict[str, Path]:
        return {"file": Path(weights_root, self.file)} if self.file else {}

    _file = file_goes_with("source")


class AveragedEntry(WordVectorsEntry):
    """The mean vector of a text's words."""

    kind: Literal["averaged"] | ImportPath = key(...)
    idf: bool = key(True, "weight words by inverse document frequency")

    def max_dim(self, word_dim: int) -> int:
        return word_dim


class FisherEntry(WordVectorsEntry):
    """The Fisher vector of a text's words. It needs jointspace[fisher]."""

    kind: Literal["fisher"] | ImportPath = key(...)
    components: Annotated[Positive, Field(ge=2)] = key(
        16, "components of the Gaussian mixture; a vector has this times (2 x word dimensions + 1)"
    )
    principal: Positive | None = key(50, "principal components of word vectors; null: the vectors themselves")
    sample: Positive = key(200_000, "words of the training captions to fit the mixture to")

    def max_dim(self, word_dim: int) -> int:
        return self.components * (2 * (self.principal or word_dim) + 1)


class LibraryTextsEntry(LibraryEntry, TextEntry):
    """The base of encoders that are models of other libraries."""


class TransformersTextsEntry(LibraryTextsEntry):
    """A text model, or the text side of a dual encoder, of transformers. It needs jointspace[transformers]."""

    kind: Literal["transformers"] | ImportPath = key(...)


class SentenceTransformersEntry(LibraryTextsEntry):
    """A model of sentence-transformers. It needs jointspace[sentence-transformers]."""

    kind: Literal["sentence-transformers"] | ImportPath = key(...)


class OpenClipTextsEntry(LibraryTextsEntry):
    """The text side of an OpenCLIP model. It needs jointspace[open-clip]."""

    kind: Literal["open_clip"] | ImportPath = key(...)
    weights: str | None = key(None, "OpenCLIP's name for its pretrained weights")


class ImportedTextsEntry(PrecomputedKeys, TextEntry):
    """Precomputed vectors of the run's captions."""

    kind: Literal["imported"] | ImportPath = key(...)


# --- the unions

AnyEntry = TypeVar("AnyEntry", bound=EncoderEntry)


def _kind_of(value: object) -> object:
    """Return the kind that an entry, or its mapping, names."""
    return value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)


def _tag_of(modality: Modality) -> Discriminator:
    """Choose the class of an entry by its kind. An entry of an image encoder without a kind is a network."""

    def tag(value: object) -> str | None:
        kind = _kind_of(value) or ("network" if modality == "image" else None)
        if not isinstance(kind, str) or not isinstance(value, Mapping | EncoderEntry):
            return None
        section = encoder_spec(kind, modality).section or ""
        return f"[{section.partition(':')[2]}]"

    kinds = ", ".join(spec.name for spec in encoder_specs(modality))
    return Discriminator(
        tag,
        custom_error_type="encoder",
        custom_error_message=f"a mapping with a name, and a kind of {kinds} or module:Class",
    )


def _require_kind(modality: Modality) -> BeforeValidator:
    """Refuse a kind that does not exist, with the nearest name."""
    known = [spec.name for spec in encoder_specs(modality)]

    def require(value: object) -> object:
        kind = _kind_of(value)
        if isinstance(kind, str) and kind not in known and not re.match(IMPORT_PATH, kind):
            raise ValueError(
                f"unknown kind {kind}; {meant(kind, known)}there are {', '.join(known)}, and module:Class of your own"
            )
        return value

    return BeforeValidator(require)


ImageEncoderEntry = Annotated[
    Annotated[NetworkEntry, Tag("[NetworkEntry]")]
    | Annotated[StandardEntry, Tag("[StandardEntry]")]
    | Annotated[ColoursEntry, Tag("[ColoursEntry]")]
    | Annotated[PooledEntry, Tag("[PooledEntry]")]
    | Annotated[ImportedImagesEntry, Tag("[ImportedImagesEntry]")]
    | Annotated[OpenClipImagesEntry, Tag("[OpenClipImagesEntry]")]
    | Annotated[TimmEntry, Tag("[TimmEntry]")]
    | Annotated[TransformersImagesEntry, Tag("[TransformersImagesEntry]")]
    | Annotated[OwnImageEntry, Tag("[OwnImageEntry]")],
    _tag_of("image"),
    _require_kind("image"),
]
"""An entry of `encoders`. The tags have brackets, so that messages leave them out of the path of a key."""

TextEncoderEntry = Annotated[
    Annotated[TfidfEntry, Tag("[TfidfEntry]")]
    | Annotated[AveragedEntry, Tag("[AveragedEntry]")]
    | Annotated[FisherEntry, Tag("[FisherEntry]")]
    | Annotated[TransformersTextsEntry, Tag("[TransformersTextsEntry]")]
    | Annotated[SentenceTransformersEntry, Tag("[SentenceTransformersEntry]")]
    | Annotated[OpenClipTextsEntry, Tag("[OpenClipTextsEntry]")]
    | Annotated[ImportedTextsEntry, Tag("[ImportedTextsEntry]")]
    | Annotated[TextEntry, Tag("[TextEntry]")],
    _tag_of("text"),
    _require_kind("text"),
]
"""An entry of `text_encoders`."""
