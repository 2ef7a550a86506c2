"""The entries of `encoders` and `text_encoders`: one class for each kind of encoder, with the keys of this kind.

`EncoderEntry` is the base class. `ENCODERS` in pipeline.config.registry lists the kinds.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from pipeline.config.messages import suggest
from pipeline.config.registry import IMPORT_PATH, EncoderSpec, Modality, encoder_spec, encoder_specs
from pipeline.config.section import (
    AboveZero,
    Count,
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
from pipeline.errors import did_you_mean

VECTOR_FORMATS = ".npy, .npz, .pt, .safetensors, Parquet, HDF5, clip-retrieval's folder"


class EncoderEntry(Section):
    """Base class of all entries. A subclass has the keys of its kind, and the class attribute `modality`."""

    modality: ClassVar[Modality]
    remedy: ClassVar[str] = ""
    """Advice for the user if a text encoder does not know many words of the dev captions."""

    name: Name = key(..., "Name of the encoder, which you choose.")
    kind: str = key(..., "Kind of the encoder, see below.")

    @property
    def spec(self) -> EncoderSpec:
        return encoder_spec(self.kind, self.modality)

    @property
    def prepared(self) -> bool:
        """Whether new images or texts can be encoded. For precomputed vectors, this is true if `made_by` is set."""
        return self.spec.reads != "vectors" or self.base is not None

    @property
    def base(self) -> str | None:
        """The name of the other encoder that this encoder depends on, or None if there is none.

        The other encoder is the encoder whose regions are pooled, or the encoder that made the precomputed vectors (the
        key `made_by`).
        """
        return None

    @property
    def learns(self) -> bool:
        """Whether the encoder is learned from the train split."""
        return self.spec.learned

    @property
    def finetuned(self) -> bool:
        """Whether the stage `finetune` makes the encoder, in place of `prepare-encoder`."""
        return False

    @property
    def corpus(self) -> bool:
        """Whether the encoder uses the word vectors that `train-word-vectors` learns in the run."""
        return False

    def files(self, weights_root: str) -> dict[str, Path]:
        """Return the paths of the user's files from which the encoder is made, without a check that they exist.

        The keys are the names of the files in the commit record. `weights_root` is the folder of weight files. The
        result is empty for an encoder that is made without such files.
        """
        return {}

    def folder(self, weights_root: str) -> Path | None:
        """Return the folder under `weights_root` with the model that makes the encoder, or None without a model."""
        return None

    def without_weights(self) -> "EncoderEntry | None":
        """Return a copy of the entry with untrained weights, or None if the kind does not support untrained weights."""
        return None

    def max_dim(self, word_dim: int) -> int | None:
        """Return the largest possible number of dimensions of the vectors, or None if it is not known.

        `word_dim` is the number of dimensions of the word vectors that an encoder of texts uses.
        """
        return None

    def decisive(self) -> dict[str, Any]:
        """Return the keys, with their values, on which the vectors of the encoder depend.

        `kind: network` is omitted.
        """
        keys = self.model_dump(exclude={"weight"})
        return {name: value for name, value in keys.items() if (name, value) != ("kind", "network")}

    @property
    def label(self) -> str:
        """The name of the encoder in tables of papers."""
        return self.kind


# --- images

NETWORKS = re.compile(
    r"alexnet|convnext_(tiny|small|base|large)|densenet(121|161|169|201)|efficientnet_(b[0-7]|v2_[sml])|googlenet"
    r"|inception_v3|maxvit_t|mnasnet(0_5|0_75|1_0|1_3)|mobilenet_(v2|v3_(large|small))"
    r"|regnet_[xy]_(400mf|800mf|1_6gf|3_2gf|8gf|16gf|32gf)|regnet_y_128gf|resnet(18|34|50|101|152)"
    r"|resnext(50_32x4d|101_32x8d|101_64x4d)|shufflenet_v2_x(0_5|1_0|1_5|2_0)|squeezenet1_[01]|swin_(v2_)?[bst]"
    r"|vgg1[1369](_bn)?|vit_([bl]_(16|32)|h_14)|wide_resnet(50|101)_2"
)
"""Pattern of the names of torchvision's classification networks. The names are listed here because the import of
torchvision takes seconds."""

NETWORKS_WITH_HIDDEN_LAYERS = ("alexnet", "vgg")
"""Prefixes of the names of networks that have the layers fc6 and fc7."""

NETWORKS_WITHOUT_MAPS = ("vit_",)
"""Prefixes of the names of networks without an activation map."""

Deviation = Annotated[Number, Field(ge=0.001)]
"""Standard deviation of a channel with values in [0, 1]. Deviations near 0 are refused, because features could
overflow."""

OWN_PREPROCESSING = ("resize", "mean", "std", "interpolation")
"""Keys of the entry of an image encoder. These keys may be null only for models of other libraries, which have their
own preprocessing."""


def require_torchvision(name: str, kind: str) -> None:
    """Check that the installed torchvision has a network or detector. `kind` is `architecture` or `detector`.

    Raises ValueError, with a similar name or a list of names, if torchvision does not have it.
    """
    from torchvision import models

    module = models.detection if kind == "detector" else models
    beginning = "fasterrcnn" if kind == "detector" else ""
    installed = [model for model in models.list_models(module=module) if model.startswith(beginning)]
    if name not in installed:
        raise ValueError(f"unknown {kind} {name}. {suggest(name, installed, 'torchvision has')}")


class ImageVectorsEntry(EncoderEntry):
    """Base class of the entries of all image encoders."""

    modality = "image"

    weight: AboveZero = key(1, "Factor on the features, after their transforms by `image_view.normalise`.")

    @property
    def roots(self) -> bool:
        """Whether the default transforms of the features include signed square roots.

        The value is true for kinds of encoders whose features are rarely negative.
        """
        return self.spec.roots


class ImageEntry(ImageVectorsEntry):
    """Base class of the entries of image encoders that read pixels."""

    resize: Side | None = key(256, "Shorter side in pixels to which an image is resized, before the crop.")
    crop: Side | None = key(
        224, "Side in pixels of the central square. null squashes the whole image to resize x resize pixels."
    )
    mean: tuple[Number, Number, Number] | None = key((0.485, 0.456, 0.406), "Mean of each channel, in [0, 1].")
    std: tuple[Deviation, Deviation, Deviation] | None = key(
        (0.229, 0.224, 0.225), "Standard deviation of each channel, in [0, 1]."
    )
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] | None = key(
        "bilinear", "Interpolation: bilinear | bicubic | lanczos | nearest, with antialiasing."
    )
    flip: bool = key(False, "Whether to average the features of an image and of its mirror image.")

    @model_validator(mode="after")
    def _has_a_geometry(self) -> "ImageEntry":
        if self.crop is not None and self.crop > (self.resize or 0):
            raise ValueError(
                f"crop ({self.crop} pixels) exceeds resize ({self.resize} pixels). Raise resize or lower crop"
            )
        for name in () if self.spec.library else OWN_PREPROCESSING:
            if getattr(self, name) is None:
                raise ValueError(
                    f"encoders of the kind {self.kind} need `{name}`, which is null. Set this key, or remove the key to"
                    " use the default"
                )
        return self


class ImageWeights(Section):
    """The keys of an encoder that can take its weights from a file."""

    file: Place | None = key(
        None, "Weights file under weights_root, for weights: file. It is a safetensors file or a state dict."
    )
    sha256: str | None = key(None, "SHA-256 of the weights file. null accepts any file and records its SHA-256.")

    def files(self, weights_root: str) -> dict[str, Path]:
        return {"weights": Path(weights_root, self.file)} if self.file else {}


WIDTHS = {"squeezenet": 512, "resnet18": 512, "resnet34": 512, "mobilenet_v2": 1280, "vgg": 512, "alexnet": 256}
"""Number of channels of the last average pooling, by the prefix of the name of a network of torchvision."""
UNTRAINED = {"weights": "untrained", "file": None, "sha256": None}
"""The keys, with their values, that give an entry untrained weights."""


class NetworkEntry(ImageWeights, ImageEntry):
    """A classification network of torchvision."""

    kind: Literal["network"] | ImportPath = key(
        "network", "Kind of the encoder: network | standard | colours | pooled | ..., see below."
    )
    architecture: str = key(..., "Name of a classification network of torchvision.")
    weights: Literal["untrained", "torchvision", "file", "finetuned"] = key(
        "torchvision",
        "Weights: untrained (drawn from `seed`) | torchvision (downloaded) | file | finetuned (on labelled boxes).",
    )
    layer: Literal["average", "fc6", "fc7"] = key(
        "average", "Layer of the features: average (the last average pooling) | fc6 | fc7 (both for AlexNet and VGG)."
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
            raise ValueError(
                f"{name} does not have the layer {self.layer}, which only AlexNet and VGG have. Set layer to average"
            )
        if self.layer == "average" and name.startswith(NETWORKS_WITHOUT_MAPS):
            raise ValueError(f"{name} does not have an activation map to average. Choose a convolutional network")
        return self


class StandardDimensionsSettings(Section):
    gist: Positive = key(500, "Dimensions of GIST, of 960.")
    rgb: Positive = key(500, "Dimensions of the colour histogram, of 512.")
    csift: Positive = key(1000, "Dimensions of the VLAD of CSIFT, of descriptor_dim x codebook.")
    rgbsift: Positive = key(1000, "Dimensions of the VLAD of RGBSIFT, of descriptor_dim x codebook.")
    hog: Positive = key(1000, "Dimensions of the VLAD of HOG, of (descriptor_dim, at most 36) x codebook.")


class StandardEntry(ImageEntry):
    """GIST, a colour histogram, and VLAD vectors of CSIFT, RGBSIFT and HOG. It needs jointspace[standard]."""

    kind: Literal["standard"] | ImportPath = key(...)
    images: Annotated[Positive, Field(ge=2)] = key(
        4000, "Number of train images from which the projections are learned."
    )
    codebook_images: Positive = key(
        1000, "Number of these images from whose local descriptors the codebooks are learned."
    )
    descriptors: Positive = key(
        100, "Number of local descriptors of each kind that are sampled from each of the codebook images."
    )
    grid_step: Positive = key(8, "Distance of local descriptors in pixels.")
    patch: Annotated[Positive, Field(ge=4, multiple_of=2)] = key(
        16, "Side in pixels of the square that a local descriptor describes, an even number."
    )
    descriptor_dim: Positive = key(
        64, "Number of dimensions to which local descriptors are reduced before the codebook."
    )
    codebook: Positive = key(
        100, "Number of words in a codebook. A VLAD vector has descriptor_dim x codebook dimensions."
    )
    dimensions: StandardDimensionsSettings = key(
        StandardDimensionsSettings,
        "Number of dimensions to which each descriptor is reduced, less than the number of images.",
    )

    def max_dim(self, word_dim: int) -> int:
        return sum(self.dimensions.model_dump().values())

    @model_validator(mode="after")
    def _fits_its_patches(self) -> "StandardEntry":
        side = self.crop or self.resize or 0
        if self.patch > side:
            raise ValueError(f"patch ({self.patch} pixels) exceeds the side of the image ({side} pixels). Lower patch")
        return self


class ColoursEntry(ImageEntry, resize=64, crop=None):
    """Histograms of the colours of an image and of its horizontal bands."""

    kind: Literal["colours"] | ImportPath = key(...)
    levels: Annotated[Positive, Field(le=16)] = key(
        8, "Number of levels per channel in the histogram of the whole image."
    )
    bands: Annotated[Positive, Field(le=16)] = key(
        3, "Number of horizontal bands of equal height, each with its own histogram."
    )
    band_levels: Annotated[Positive, Field(le=16)] = key(4, "Number of levels per channel in the histogram of a band.")

    def max_dim(self, word_dim: int) -> int:
        return self.levels**3 + self.bands * self.band_levels**3


class PooledEntry(ImageVectorsEntry):
    """Features that are pooled over the regions of an image."""

    kind: Literal["pooled"] | ImportPath = key(...)
    of: Name = key(..., "Encoder among regions.encoders whose regions are pooled.")
    pooling: Literal["mean", "max"] = key("mean", "Pooling over the regions of an image: mean | max.")

    @property
    def base(self) -> str:
        return self.of


class PrecomputedKeys(Section):
    """The keys of an encoder whose vectors are precomputed."""

    path: Place = key(..., f"File or folder with the precomputed vectors, under data_root: {VECTOR_FORMATS}.")
    features: str | None = key(None, "Name of the column, array or dataset with the vectors. null uses the only one.")
    names: str | None = key(
        None,
        "Column or text file with the names of the rows. A row of a caption is named IMAGE#k, or by "
        "the words of the caption. null: the text file FILE.txt, the only column of texts, or, for "
        "captions, the order of the manifest.",
    )
    made_by: Name | None = key(
        None,
        "Encoder that made the vectors, which then encodes queries. With null, queries with a photo (or with a text, "
        "for a text encoder) are not possible.",
    )

    @property
    def base(self) -> str | None:
        return self.made_by


class ImportedImagesEntry(PrecomputedKeys, ImageVectorsEntry):
    """Precomputed features of the run's images."""

    kind: Literal["imported"] | ImportPath = key(...)


class LibraryEntry(Section):
    """The keys of an encoder that is a model of another library."""

    architecture: str = key(..., "Name of a model of the library, hf-hub:NAME, or a folder under weights_root.")

    def folder(self, weights_root: str) -> Path | None:
        path = Path(weights_root, self.architecture)
        return path if self.architecture and path.is_dir() else None

    @property
    def label(self) -> str:
        return self.architecture


class LibraryImagesEntry(LibraryEntry, ImageEntry):
    """Base class of the entries of image models of other libraries. A key that is null takes the value of the model."""

    resize: Side | None = key(
        None,
        "Shorter side in pixels to which an image is resized, before the crop. null uses the values of the model for "
        "resize and crop.",
    )
    crop: Side | None = key(
        None, "Side in pixels of the central square. null, with a resize, squashes the image to resize x resize pixels."
    )
    mean: tuple[Number, Number, Number] | None = key(
        None, "Mean of each channel, in [0, 1]. null uses the value of the model."
    )
    std: tuple[Deviation, Deviation, Deviation] | None = key(
        None, "Standard deviation of each channel, in [0, 1]. null uses the value of the model."
    )
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] | None = key(
        None,
        "Interpolation: bilinear | bicubic | lanczos | nearest, with antialiasing. null uses the value of the model.",
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_weights(cls, values: object) -> object:
        """Add the key `weights` to an entry in which this key is missing or null.

        The value is `file` if the entry names a file, and otherwise `hub`. Returns a copy of the mapping `values`. A
        mapping with `weights`, and a value that is not a mapping, are returned unchanged.
        """
        if isinstance(values, Mapping) and values.get("weights") is None:
            return {**values, "weights": "file" if values.get("file") else "hub"}
        return values


class OpenClipImagesEntry(ImageWeights, LibraryImagesEntry):
    """The image side of an OpenCLIP model. It needs jointspace[open-clip]."""

    kind: Literal["open_clip"] | ImportPath = key(...)
    weights: str = key("hub", "Weights: OpenCLIP's name for its pretrained weights | hub | file.")

    _file = file_goes_with("weights")


class TimmEntry(ImageWeights, LibraryImagesEntry):
    """A network of timm. It needs jointspace[timm]."""

    kind: Literal["timm"] | ImportPath = key(...)
    weights: Literal["hub", "file", "untrained"] = key("hub", "Weights: hub | file | untrained.")
    layer: str | None = key(
        None, "Inner layer whose mean over the image is the feature, such as blocks.5. null is the classifier's input."
    )

    _file = file_goes_with("weights")

    @property
    def roots(self) -> bool:
        """Whether the default transforms of the features include signed square roots.

        The value is false for an inner layer, because about half of the features of many inner layers are negative.
        """
        return self.spec.roots and self.layer is None

    def without_weights(self) -> "TimmEntry":
        return self.model_copy(update=UNTRAINED)


class TransformersImagesEntry(LibraryImagesEntry):
    """An image model of the library transformers, or the image side of one of its dual encoders. It needs
    jointspace[transformers]."""

    kind: Literal["transformers"] | ImportPath = key(...)
    weights: Literal["hub"] = key("hub", "Weights: hub.")


class OwnImageEntry(ImageWeights, ImageEntry):
    """A class of your own, `module:Class`, that is not a subclass of one of jointspace's encoders."""

    kind: ImportPath = key(...)
    architecture: str = key("", "Value that your class can read.")
    weights: str | None = key("torchvision", "Value that your class can read.")
    layer: str = key("average", "Value that your class can read.")


# --- texts


def _listed(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


Weights = Annotated[tuple[NonNegative, ...], Field(min_length=1), BeforeValidator(_listed)]


class TextEntry(EncoderEntry):
    """A class of your own, `module:Class`. This is also the base class of the other text encoders."""

    modality = "text"

    kind: str = key(..., "Kind of the encoder: tf-idf | averaged | fisher | ..., see below.")
    normalise: tuple[Literal["sqrt", "l2"], ...] = key(
        ("l2",), "Transforms of the vectors, in order: sqrt (signed square root) | l2 (unit length)."
    )
    centre: Literal["none", "mean", "whiten"] = key(
        "none",
        "Centring of dense vectors: none | mean (the mean of the training captions is subtracted) | "
        "whiten (they are also decorrelated).",
    )
    weight: Weights = key((1,), "Factor on the vectors. If a list has several factors, dev chooses one of them.")
    storage: Literal["float16", "float32"] = key("float16", "Number type of stored dense vectors: float16 | float32.")

    @property
    def own(self) -> "TextEntry":
        """This entry itself.

        In earlier versions, an entry had a section with the settings of its kind. Classes of users read this section by
        this property, and can still use the property.
        """
        return self

    @property
    def learns(self) -> bool:
        """Whether the encoder is learned from the training captions. It is always true for a class of the user."""
        return self.spec.learned or self.centre != "none" or ":" in self.kind

    def decisive(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name", "normalise", "weight", "storage"})


class TermKeys(Section):
    """The keys of a vocabulary of terms."""

    lemmatise: bool = key(
        True,
        "Whether to replace words by their lemmas (simplemma), if most words of the training captions are English.",
    )
    stop_words: bool = key(False, "Whether to remove scikit-learn's English stop words ('under' is one of them).")
    max_ngram: Annotated[Positive, Field(le=3)] = key(
        2,
        "Largest number of words in a term: 1, 2 (pairs of neighbouring words) or 3. "
        "docs/encoders.md describes scripts without spaces.",
    )
    pieces: bool = key(
        True,
        "Whether pieces of words (2 to 4 letters) are terms as well, in scripts with spaces and if most words of the "
        "training captions are not English. They take at most half of the vocabulary.",
    )
    size: Positive = key(3000, "Number of terms in the vocabulary: the most common terms of the training captions.")
    min_count: Positive = key(2, "Smallest number of training captions that have a term of the vocabulary.")
    idf: bool = key(True, "Whether to weight terms by their inverse document frequency.")
    unit_length: bool = key(True, "Whether to scale the vector of every caption to unit length.")
    vocabulary: Place | None = key(
        None,
        "Path of the model.json of a tf-idf encoder whose vocabulary is used, so that the vocabulary stays the same as "
        "a collection grows.",
    )


class TfidfEntry(TermKeys, TextEntry):
    """Counts of terms, weighted by idf. A key that is missing in the entry is taken from the section `text`."""

    remedy: ClassVar[str] = "Raise text.size, lower text.min_count, or add a text encoder that knows the language"

    kind: Literal["tf-idf"] | ImportPath = key(...)

    @property
    def learns(self) -> bool:
        return self.vocabulary is None or ":" in self.kind

    def max_dim(self, word_dim: int) -> int:
        return self.size

    def files(self, weights_root: str) -> dict[str, Path]:
        return {"file": Path(self.vocabulary)} if self.vocabulary else {}


class WordVectorsEntry(TextEntry):
    """Base class of the entries of text encoders that use word vectors."""

    remedy: ClassVar[str] = "Use word vectors in the language of the captions, or source: corpus"

    source: Literal["corpus", "file"] = key(
        "corpus", "Origin of the word vectors: corpus (the vectors that `train-word-vectors` learned) | file."
    )
    file: Place | None = key(None, "File of GloVe or word2vec vectors under weights_root, for source: file.")
    format: Literal["text", "binary"] = key("text", "Format of the file: text | binary (word2vec).")
    words: Positive = key(
        50_000, "Number of words that are kept from the file, besides the words of the training captions."
    )

    @property
    def corpus(self) -> bool:
        return self.source == "corpus"

    def files(self, weights_root: str) -> dict[str, Path]:
        return {"file": Path(weights_root, self.file)} if self.file else {}

    _file = file_goes_with("source")


class AveragedEntry(WordVectorsEntry):
    """The mean of the word vectors of a text."""

    kind: Literal["averaged"] | ImportPath = key(...)
    idf: bool = key(True, "Whether to weight words by their inverse document frequency.")

    def max_dim(self, word_dim: int) -> int:
        return word_dim


class FisherEntry(WordVectorsEntry):
    """The Fisher vector of the word vectors of a text. It needs jointspace[fisher]."""

    kind: Literal["fisher"] | ImportPath = key(...)
    components: Annotated[Positive, Field(ge=2)] = key(
        16,
        "Number of components of the Gaussian mixture. A vector has components x (2 x word dimensions + 1) dimensions.",
    )
    principal: Positive | None = key(
        50, "Number of principal components to which word vectors are reduced. null uses the unchanged word vectors."
    )
    sample: Positive = key(200_000, "Number of words of the training captions to which the mixture is fitted.")

    def max_dim(self, word_dim: int) -> int:
        return self.components * (2 * (self.principal or word_dim) + 1)


class LibraryTextsEntry(LibraryEntry, TextEntry):
    """Base class of the entries of text encoders that are models of other libraries."""


class TransformersTextsEntry(LibraryTextsEntry):
    """A text model of the library transformers, or the text side of one of its dual encoders. It needs
    jointspace[transformers]."""

    kind: Literal["transformers"] | ImportPath = key(...)


class SentenceTransformersEntry(LibraryTextsEntry):
    """A model of sentence-transformers. It needs jointspace[sentence-transformers]."""

    kind: Literal["sentence-transformers"] | ImportPath = key(...)
    layer: Count | None = key(
        None, "Number of the transformer's layers that are kept, from the first. null keeps all layers."
    )


class OpenClipTextsEntry(LibraryTextsEntry):
    """The text side of an OpenCLIP model. It needs jointspace[open-clip]."""

    kind: Literal["open_clip"] | ImportPath = key(...)
    weights: str | None = key(
        None, "OpenCLIP's name for its pretrained weights. null only for hf-hub:NAME or a folder."
    )


class ImportedTextsEntry(PrecomputedKeys, TextEntry):
    """Precomputed vectors of the run's captions."""

    kind: Literal["imported"] | ImportPath = key(...)


# --- the types of entries, among which pydantic chooses by the kind of an entry

AnyEntry = TypeVar("AnyEntry", bound=EncoderEntry)


def _kind_of(value: object) -> object:
    """Return the value of `kind` in an entry of an encoder, or in the mapping of values from which an entry is made.
    Return None if there is no kind."""
    return value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)


def _tag_of(modality: Modality) -> Discriminator:
    """Return pydantic's discriminator for the entries of a modality, which chooses the class of an entry by its kind.

    An entry of an image encoder that has no kind counts as a network.
    """

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
    """Return a validator that refuses an unknown kind of encoder, with a message that names the most similar kind."""
    known = [spec.name for spec in encoder_specs(modality)]

    def require(value: object) -> object:
        kind = _kind_of(value)
        if isinstance(kind, str) and kind not in known and not re.match(IMPORT_PATH, kind):
            raise ValueError(
                f"unknown kind {kind}. {did_you_mean(kind, known)}The kinds are {', '.join(known)}, and module:Class of"
                " your own"
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
"""An entry of `encoders`. The tags have brackets, because messages omit parts with brackets from the path of a key."""

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
