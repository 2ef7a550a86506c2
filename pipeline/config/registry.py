"""The registry of all models, trainings, encoders and generators.

No other module lists them. Each model, encoder and generator has a spec with its properties, which can be read without
importing its class or pydantic. A model, encoder or collection reader that is not registered is named by its import
path, `module:Class`. Such code is imported only if the user has named its import path (`allow`) in a configuration or
for an index.
"""

import importlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, partial
from typing import Any, Literal, Protocol, TypeVar

from pipeline.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Spec:
    """A registered model, encoder or generator, or a class of the user at an import path.

    `name` is the registered name or the import path. If a class of the user is a subclass of a registered class, it has
    the settings of the registered class, and `like` is the `key` of the registered spec. Otherwise `like` is None.
    """

    name: str
    import_path: str
    """The import path of the class."""
    _: KW_ONLY
    like: str | None = None
    section: str | None = None
    """The import path of the class of the settings, or None if the registered class has no settings of its own."""
    extra: str | None = None
    """The extra that the class needs, as in `pip install 'jointspace[EXTRA]'`, or None."""

    @property
    def key(self) -> str:
        """The key of the settings in a configuration: the name (or `like`), with underscores in place of hyphens."""
        return (self.like or self.name).replace("-", "_")

    @property
    def stored_kind(self) -> dict[str, str]:
        """The mapping `{"kind": import path}` that is stored with an encoder whose class is at an import path.

        The mapping is empty for a registered kind.
        """
        return {"kind": self.name} if ":" in self.name else {}

    def load(self) -> Any:
        """Import and return the class. Raises UsageError, with the extra to install, if a library is missing."""
        try:
            return import_object(self.import_path)
        except ModuleNotFoundError as error:
            if self.extra is None:
                raise
            raise UsageError(
                f"{self.name} needs {error.name}. Install it with `pip install 'jointspace[{self.extra}]'`."
            ) from error


log = logging.getLogger(__name__)
AnySpec = TypeVar("AnySpec", bound=Spec)


class Named(Protocol):
    """A spec, or an entry of a list in the configuration."""

    @property
    def name(self) -> str: ...


AnyNamed = TypeVar("AnyNamed", bound=Named)


def find(what: str, name: str, entries: Iterable[AnyNamed]) -> AnyNamed:
    """Return the entry that has the `name`. `what` is the noun for an entry in messages, such as `encoder`.

    Raises UsageError, with the known names, if there is no such entry.
    """
    known = {entry.name: entry for entry in entries}
    if name not in known:
        raise UsageError(f"Unknown {what} {name}. {did_you_mean(name, known)}The known names are {', '.join(known)}.")
    return known[name]


def import_object(import_path: str) -> Any:
    """Import the object at the import path `module:name`."""
    module, _, attribute = import_path.partition(":")
    return getattr(importlib.import_module(module), attribute)


MAX_SIDE = 4096
"""Largest side in pixels of the input of an image encoder. A larger side in a configuration or a file is an error."""
IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""The pattern of an import path, `module:Class`."""
ALLOWED = "JOINTSPACE_ALLOW"
"""Name of the environment variable that lists the import paths that `allow` permits, separated by commas. Child
processes inherit this variable."""


def allow(import_paths: Iterable[str]) -> None:
    """Permit the import of the code at these import paths, in this process and in processes that it starts later.

    The caller must make sure that the user has named these paths. Paths that only a file names, such as a stored model,
    must not be permitted.
    """
    os.environ[ALLOWED] = ",".join(sorted({*os.environ.get(ALLOWED, "").split(","), *import_paths} - {""}))


def named_import_paths(values: object) -> set[str]:
    """Return the import paths in a configuration, before validation: models, encoders and collection readers."""
    if isinstance(values, Mapping):
        named = {str(values.get(key)) for key in ("model", "kind", "format")}
        return {name for name in named if re.match(IMPORT_PATH, name)}.union(*map(named_import_paths, values.values()))
    return set().union(*map(named_import_paths, values)) if isinstance(values, list | tuple) else set()


def import_allowed(what: str, import_path: str) -> Any:
    """Import the object at the import path `import_path`.

    `what` is the noun for messages. Raises UsageError if the user has not named the path, or if it cannot be imported.
    """
    if import_path not in os.environ.get(ALLOWED, "").split(","):
        raise UsageError(
            f"the {what} {import_path} is code that you have not allowed. If you trust it, run"
            f' `jointspace --allow {import_path} ...`, or call jointspace.load(..., allow=["{import_path}"]).'
        )
    try:
        return _import_with_former_names(import_path)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the {what} {import_path} cannot be imported ({error}). Install the module, or add the folder of the"
            " module to PYTHONPATH."
        ) from error


FORMER_MODULES = {
    "pipeline.images.image_encoder": "pipeline.encoders.image_encoder",
    "pipeline.text.text_encoder": "pipeline.encoders.text_encoder",
}
"""Former name of a module -> its new name. Encoder classes of users may still import these modules by their former
names, for one release."""


def _import_with_former_names(import_path: str) -> Any:
    """Import the object at an import path, whose module may import modules of jointspace by their former names."""
    try:
        return import_object(import_path)
    except ModuleNotFoundError as error:
        if error.name not in FORMER_MODULES:
            raise
        log.warning(
            "%s imports %s, which is now called %s. Import the module by the new name.",
            import_path,
            error.name,
            FORMER_MODULES[error.name],
        )
        sys.modules[error.name] = importlib.import_module(FORMER_MODULES[error.name])
    return _import_with_former_names(import_path)


def find_spec(what: str, name: str, specs: Sequence[AnySpec], other: AnySpec | None = None) -> AnySpec:
    """Return the registered spec with this name. If `name` is the import path of a class, make a spec for the class.

    The new spec is a copy of the spec of the registered class from which the class inherits. If there is no such
    registered class, the new spec is a copy of `other`, or has default values if `other` is None. The class can have a
    mapping SPEC of names of fields to values, which replace the values of the copy. `what` is the noun for such a class
    in messages. Raises UsageError for an unknown name or a wrong class, and if the user has not allowed the import
    path.
    """
    return _outside(what, import_allowed(what, name), name, specs, other) if ":" in name else find(what, name, specs)


@cache
def _outside(what: str, outside: type, import_path: str, specs: Sequence[AnySpec], other: AnySpec | None) -> AnySpec:
    if not isinstance(outside, type):
        raise UsageError(f"the {what} {import_path} is a {type(outside).__name__}, but must be a class. Name a class.")
    bases = [f"{base.__module__}:{base.__qualname__}" for base in outside.__mro__]
    base = next((spec for above in bases for spec in specs if spec.import_path == above), None)
    start = replace(base, like=base.key) if base else other or type(specs[0])(name=import_path, import_path=import_path)
    try:
        return replace(start, **{"name": import_path, "import_path": import_path, **getattr(outside, "SPEC", {})})
    except TypeError as error:
        raise UsageError(
            f"the SPEC of the {what} {import_path} is wrong ({error}). Correct SPEC in the class."
        ) from error


Modality = Literal["image", "text"]


@dataclass(frozen=True, kw_only=True)
class EncoderSpec(Spec):
    """A kind of image encoder or text encoder.

    The class at `import_path` is a subclass of ImageEncoder (pipeline/encoders/image_encoder.py) or of TextEncoder
    (pipeline/encoders/text_encoder.py), whose docstrings describe the methods. The class at `section` is a subclass of
    EncoderEntry (pipeline/config/encoders.py) with the keys of an encoder of this kind in a configuration. A class at
    an import path without a registered base class has the keys of OwnImageEntry or TextEntry.
    """

    modality: Modality
    reads: Literal["pixels", "regions", "texts", "vectors"]
    """The input of the encoder. `regions` are features of regions. The key `of` of the entry names the encoder that has
    computed these features. `vectors` are precomputed vectors."""
    library: bool = False
    """Whether the encoder is a model of another library, which is stored in the format of this library."""
    learned: bool = False
    """Whether the encoder is learned from the train split."""
    regions: bool = False
    """Whether the encoder can also encode regions of images."""
    roots: bool = False
    """Whether the features have few negative values, so that signed square roots improve the models."""
    sparse: bool = False
    """Whether the encoder returns a csr_array."""
    adds_words: bool = False
    """Whether the vector of a text is the sum of contributions of its words (`encode_words`), up to a factor."""


def _image(name: str, import_path: str, entry: str, **more: Any) -> EncoderSpec:
    more = {"reads": "pixels", "section": f"pipeline.config.encoders:{entry}", **more}
    return EncoderSpec(name=name, import_path=f"pipeline.encoders.{import_path}", modality="image", **more)


def _text(name: str, import_path: str, entry: str, **more: Any) -> EncoderSpec:
    more = {"reads": "texts", "section": f"pipeline.config.encoders:{entry}", **more}
    return EncoderSpec(name=name, import_path=f"pipeline.encoders.{import_path}", modality="text", **more)


LIBRARY: dict[str, Any] = {"library": True}
NETWORK: dict[str, Any] = {"library": True, "regions": True}
ENCODERS: tuple[EncoderSpec, ...] = (
    _image("network", "networks:NetworkEncoder", "NetworkEntry", regions=True, roots=True),
    _image("standard", "standard:StandardEncoder", "StandardEntry", learned=True, roots=True, extra="standard"),
    _image("colours", "colours:ColourHistograms", "ColoursEntry", roots=True),
    _image("pooled", "regions:PooledEncoder", "PooledEntry", reads="regions", roots=True),
    _image("imported", "precomputed:ImportedEncoder", "ImportedImagesEntry", reads="vectors"),
    _image("open_clip", "libraries.open_clip_encoders:OpenClipImages", "OpenClipImagesEntry", extra="open-clip",
           **NETWORK),
    _image("timm", "libraries.timm_encoders:TimmImages", "TimmEntry", extra="timm", roots=True, **NETWORK),
    _image("transformers", "libraries.transformers_encoders:TransformersImages", "TransformersImagesEntry",
           extra="transformers", **NETWORK),
    _text("tf-idf", "tfidf:TfidfEncoder", "TfidfEntry", sparse=True, adds_words=True, learned=True),
    _text("averaged", "averaged:AveragedEncoder", "AveragedEntry", adds_words=True, learned=True),
    _text("fisher", "fisher:FisherEncoder", "FisherEntry", extra="fisher", learned=True),
    _text("transformers", "libraries.transformers_encoders:TransformersTexts", "TransformersTextsEntry",
          extra="transformers", **LIBRARY),
    _text("sentence-transformers", "libraries.sentence_transformers_encoders:SentenceTransformersTexts",
          "SentenceTransformersEntry", extra="sentence-transformers", **LIBRARY),
    _text("open_clip", "libraries.open_clip_encoders:OpenClipTexts", "OpenClipTextsEntry", extra="open-clip",
          **LIBRARY),
    _text("imported", "precomputed:ImportedEncoder", "ImportedTextsEntry", reads="vectors"),
)  # fmt: skip

OWN_ENCODERS: dict[Modality, EncoderSpec] = {
    "image": _image("", "", "OwnImageEntry"),
    "text": _text("", "", "TextEntry"),
}
"""The specs of classes at import paths without a registered base class."""


@cache
def encoder_specs(modality: Modality) -> tuple[EncoderSpec, ...]:
    """Return the registered kinds of image encoders, or of text encoders."""
    return tuple(spec for spec in ENCODERS if spec.modality == modality)


def encoder_spec(kind: str, modality: Modality) -> EncoderSpec:
    """Return the spec of a registered kind or of a class at an import path.

    Raises UsageError, with the known kinds, if there is no such kind.
    """
    what = "kind of encoder" if modality == "image" else "kind of text encoder"
    return find_spec(what, kind, encoder_specs(modality), OWN_ENCODERS[modality])


@dataclass(frozen=True, kw_only=True)
class GeneratorSpec(Spec):
    """A registered caption generator. Its class is a subclass of pipeline.generate.generator.Generator."""

    defaults: str | None = "language_defaults"
    """The key of the configuration with the defaults of the generator's settings, or None."""
    regions: bool = False
    """Whether the generator learns from regions and from the snippets of captions that are aligned with them."""
    ranks: bool = False
    """Whether the generator ranks snippets of captions with the model that aligned them with regions."""
    text: bool = False
    """Whether the generator also learns from text without images."""
    treebank: bool = False
    """Whether the generator needs a treebank of parts of speech."""
    likelihood: bool = True
    """Whether the generator can compute the probability of a caption for an image (`log_probabilities`)."""


RESULTS = "pipeline.config.results"
GENERATE = "pipeline.generate"
_language_model = partial(GeneratorSpec, section=f"{RESULTS}:LogBilinearSettings", text=True)
GENERATORS: tuple[GeneratorSpec, ...] = (
    GeneratorSpec("nearest", f"{GENERATE}.nearest:Nearest", section=f"{RESULTS}:NearestSettings", defaults=None,
                  likelihood=False),
    GeneratorSpec("mrnn", f"{GENERATE}.mrnn:MultimodalRNN", section=f"{RESULTS}:RecurrentSettings"),
    GeneratorSpec("mrnn-regions", f"{GENERATE}.mrnn:MultimodalRNN", section=f"{RESULTS}:RegionRecurrentSettings",
                  regions=True, likelihood=False),
    GeneratorSpec("ranked-snippets", f"{GENERATE}.snippets:RankedSnippets", section=f"{RESULTS}:RankedSnippetsSettings",
                  defaults=None, regions=True, ranks=True, likelihood=False),
    _language_model("lbl", f"{GENERATE}.lm:LogBilinearModel"),
    _language_model("mlbl", f"{GENERATE}.lm:AdditiveModel"),
    _language_model("mnlm", f"{GENERATE}.lm:MultiplicativeModel"),
    _language_model("sc-nlm", f"{GENERATE}.lm:StructureContentModel", treebank=True),
)  # fmt: skip
"""All generators."""


def generator_spec(name: str) -> GeneratorSpec:
    """Return the spec of a registered generator. Raises UsageError, with the known names, if there is none."""
    return find("generator", name, GENERATORS)


def ranker(name: str) -> str:
    """Return the name under which the generator `name` is evaluated like a model, by the perplexity of captions."""
    return f"{name}-perplexity"


STACKED = ("auxiliary_dimensions", "auxiliary_power", "auxiliary_eigenvalues")
"""The keys of `transfer` on which the auxiliary projection depends, a normalized CCA of the auxiliary pairs."""
TRAININGS: dict[str, tuple[str, ...]] = {
    "target": (),
    "auxiliary": (),
    "joint": ("beta",),
    "text-feature": ("neighbours", "neighbour_share"),
    "stacked": STACKED,
    "sae-linear": (*STACKED, "weight", "second_beta"),
    "sae": (*STACKED, "weight", "second_beta", "rule", "bandwidth", "scale", "features"),
}
"""Name of a training -> the keys of `transfer` that it uses."""
STACKING = tuple(name for name, keys in TRAININGS.items() if keys[: len(STACKED)] == STACKED)
"""The trainings that use the auxiliary projection."""
UNSTACKED = tuple(name for name in TRAININGS if name not in STACKING)
"""The trainings that do not use the auxiliary projection."""
GRID = ("dimensions", "image_ridge", "text_ridge", "eigenvalue_power", "eigenvalues")
"""The keys of `fit` whose values are tried on dev, besides `text_weights`."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    """A registered model.

    The class implements ModelClass and JointModel of pipeline.models.joint_model, and, if `phrases` is true,
    PhraseModel. The class of a fitted model has a method `fit(task)`, which takes a
    pipeline.models.linear.training.FitTask. The class of a trained model has a method `trainer(task)`, which takes a
    pipeline.models.neural.task.TrainingTask and returns a Training.
    """

    made_by: Literal["fit", "train", "adopt", "combine"]
    """The stage that makes the model."""
    defaults: str | None = None
    """The section of the configuration, such as `train_defaults`, whose keys the model inherits if its own section does
    not set them. With None, the model inherits nothing."""
    sentences: Literal["vectors", "tokens", "dependency-trees", "phrase-trees", "each"] = "vectors"
    """The form in which the model reads captions. `vectors` are the vectors (n, dim) of the model's text encoders. An
    ensemble has `each`, because each member has its own form."""
    metric: Literal["inner_product", "euclidean"] = "inner_product"
    """The comparison of images and captions: the product of vectors, or their Euclidean distance."""
    grid: tuple[str, ...] = ()
    """The keys of GRID that the model uses."""
    trainings: tuple[str, ...] = ("target",)
    """The trainings that the model supports."""
    starts_from: str | None = None
    """The registered model, with the same encoders, from which the training starts, or None."""
    regions: Literal["none", "any", "its-encoders", "all-encoders"] = "none"
    """The regions that the model needs: none, regions of any encoder, regions of some of its own encoders, or regions
    of all of its encoders."""
    multi_vector: bool = False
    """Whether an image has several vectors, one per region, and a caption has one vector per word or relation."""
    phrases: bool = False
    """Whether the model learns from phrases and regions."""
    relations: bool = False
    """Whether the model has a matrix for each relation of dependency trees."""

    @property
    def form(self) -> str:
        """The form of the captions that the model reads: `trees` for both kinds of parse trees, and otherwise the value
        of `sentences`. A run stores tokens and trees in folders with these names."""
        return "trees" if self.trees else self.sentences

    @property
    def trees(self) -> bool:
        return self.sentences.endswith("-trees")

    @property
    def words(self) -> bool:
        """Whether the model reads captions as sequences or trees of words of the token vocabulary."""
        return self.trees or self.sentences == "tokens"

    @property
    def starts_from_terms(self) -> bool:
        """Whether the model reads words, but starts from a model that reads the vectors of text encoders."""
        return self.starts_from is not None and self.words and not model_spec(self.starts_from).words

    @property
    def aligned(self) -> bool:
        """Whether each word of a caption has a vector, so that words can be aligned with regions."""
        return self.multi_vector and self.sentences == "tokens"

    @property
    def fit_keys(self) -> set[str]:
        """The keys of `fit` that the model uses."""
        if self.made_by != "fit":
            return set()
        return {"dev_images", "text_weights", *self.grid, *(["search"] if self.grid else [])}

    @property
    def own_score(self) -> bool:
        """Whether the class of the model determines the score in training, so that the key `score` has no effect."""
        return self.made_by == "train" and bool(self.multi_vector or self.phrases or self.starts_from)

    @property
    def joint_space(self) -> bool:
        """Whether the model embeds any image as one vector and any text as one vector, without a parse tree, and
        compares the two by inner product. The vectors need not have length 1. It is false for ensembles."""
        return self.metric == "inner_product" and not (self.multi_vector or self.trees or self.made_by == "combine")


SETTINGS = "pipeline.config.models"
LINEAR = "pipeline.models.linear"
NEURAL = "pipeline.models.neural"
_fitted = partial(ModelSpec, made_by="fit")
_trained = partial(ModelSpec, made_by="train", section=f"{SETTINGS}:TrainSettings", defaults="train_defaults")
_words = partial(_trained, sentences="tokens")
_phrase_trees = partial(_trained, sentences="phrase-trees")
_dependency_trees = partial(_trained, sentences="dependency-trees")
_ensemble = partial(ModelSpec, made_by="combine", sentences="each")
MODELS: tuple[ModelSpec, ...] = (
    _fitted("ridge", f"{LINEAR}.ridge:RidgeRegression", metric="euclidean", grid=GRID[:2], trainings=UNSTACKED),
    _fitted("cca", f"{LINEAR}.cca:CCA", metric="euclidean", grid=GRID[:3], trainings=UNSTACKED),
    _fitted("ncca", f"{LINEAR}.cca:NormalizedCCA", grid=GRID, trainings=tuple(TRAININGS)),
    _fitted("kcca", f"{LINEAR}.kernels:KernelCCA", section=f"{SETTINGS}:KernelsSettings", grid=GRID),
    _fitted("ridge-cosine", f"{LINEAR}.ridge:CosineRidge", grid=GRID[:2]),
    _fitted("procrustes", f"{LINEAR}.ridge:Procrustes", grid=GRID[:1]),
    _fitted("csa", f"{LINEAR}.cca:CSA", grid=GRID[:3]),
    _fitted("asif", f"{LINEAR}.asif:ASIF", section=f"{SETTINGS}:AnchorSettings"),
    _fitted("wsabie-sgd", f"{LINEAR}.wsabie:WsabieSGD", section=f"{SETTINGS}:WsabieSettings"),
    _fitted("wsabie-adagrad", f"{LINEAR}.wsabie:WsabieAdaGrad", section=f"{SETTINGS}:WsabieAdaGradSettings"),
    _words("bow", f"{NEURAL}.word_models:BagOfWords"),
    _words("rnn", f"{NEURAL}.word_models:RNN", section=f"{SETTINGS}:PlainTrainSettings"),
    _words("gru", f"{NEURAL}.word_models:GRU"),
    _words("lstm", f"{NEURAL}.word_models:LSTM", section=f"{SETTINGS}:LongShortTermTrainSettings"),
    _phrase_trees("ctrnn", f"{NEURAL}.tree_rnn:CTRNN", section=f"{SETTINGS}:TreeTrainSettings"),
    _dependency_trees("dtrnn", f"{NEURAL}.tree_rnn:DTRNN", section=f"{SETTINGS}:TreeTrainSettings"),
    _dependency_trees("sdtrnn", f"{NEURAL}.tree_rnn:SDTRNN", section=f"{SETTINGS}:RelationTrainSettings",
                      relations=True),
    _phrase_trees("hmlstm", f"{NEURAL}.hmlstm:HMLSTM", section=f"{SETTINGS}:DenseTrainSettings",
                  regions="all-encoders", phrases=True),
    _words("dvsa", f"{NEURAL}.fragment_models:DVSA", section=f"{SETTINGS}:WordFragmentTrainSettings", regions="any",
           multi_vector=True),
    _dependency_trees("deptree", f"{NEURAL}.fragment_models:DepTree",
                      section=f"{SETTINGS}:RelationFragmentTrainSettings", regions="any", multi_vector=True),
    _dependency_trees("defrag", f"{NEURAL}.fragment_models:Defrag", section=f"{SETTINGS}:InstanceTrainSettings",
                      regions="any", multi_vector=True),
    _words("fragments", f"{NEURAL}.fragment_models:GroundedFragments", section=f"{SETTINGS}:GroundedTrainSettings",
           starts_from="ncca-recurrent", regions="its-encoders", multi_vector=True),
    _trained("ncca-refined", f"{NEURAL}.refinement:RefinedCCA", section=f"{SETTINGS}:RefinedTrainSettings",
             starts_from="ncca"),
    _words("ncca-recurrent", f"{NEURAL}.word_towers:RecurrentCCA", section=f"{SETTINGS}:RecurrentTrainSettings",
           starts_from="ncca"),
    _trained("projector", f"{NEURAL}.refinement:Projector", section=f"{SETTINGS}:ProjectorTrainSettings"),
    ModelSpec("zero-shot", f"{LINEAR}.ensemble:ZeroShot", made_by="adopt"),
    _ensemble("ensemble", f"{LINEAR}.ensemble:Ensemble"),
    _ensemble("fragment-ensemble", f"{LINEAR}.ensemble:Ensemble", multi_vector=True),
)  # fmt: skip
"""All registered models."""


def model_spec(name: str) -> ModelSpec:
    """Return the spec of a registered model or of a model at an import path.

    Raises UsageError, with the known models, if there is no such model.
    """
    return find_spec("model", name, MODELS, _fitted(name, name, grid=GRID))


def made_by(stage: str) -> tuple[ModelSpec, ...]:
    """Return the registered models that `stage` makes: `fit`, `train`, `adopt` or `combine`."""
    return tuple(spec for spec in MODELS if spec.made_by == stage)


def combining(multi_vector: bool) -> ModelSpec:
    """Return the spec of an ensemble. `multi_vector` says whether one of its members is a multi-vector model."""
    return next(spec for spec in made_by("combine") if spec.multi_vector == multi_vector)
