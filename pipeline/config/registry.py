"""The lists of all models, trainings, encoders and generators.

No other place names them. Other code asks the spec of a model or encoder for its properties, which imports neither its
class nor pydantic. A model, encoder or collection reader that is not listed has its import path, `module:Class`, as its
name. Such code is imported only if the user has named its path (`allow`): in a configuration, or for an index.
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

from pipeline.errors import UsageError, meant


@dataclass(frozen=True)
class Spec:
    """Something that is registered under a name.

    Code at an import path has the settings of the registered spec `like`, of whose class its class is a subclass.
    """

    name: str
    place: str
    """Import path of its class."""
    _: KW_ONLY
    like: str | None = None
    section: str | None = None
    """Import path of the class of its own settings, or None if it has none."""
    extra: str | None = None
    """The extra of the distribution that it needs."""

    @property
    def key(self) -> str:
        """The key that holds its own settings, in a configuration or in an entry of a list there."""
        return (self.like or self.name).replace("-", "_")

    @property
    def stored_kind(self) -> dict[str, str]:
        """The `kind` in the stored settings of an encoder at an import path; empty for a registered kind."""
        return {"kind": self.name} if ":" in self.name else {}

    def load(self) -> Any:
        """Import its class. Raises UsageError with the extra that is not installed."""
        try:
            return import_place(self.place)
        except ModuleNotFoundError as error:
            if self.extra is None:
                raise
            remedy = f"pip install 'jointspace[{self.extra}]'"
            raise UsageError(f"{self.name} needs {error.name}; {remedy}") from error


log = logging.getLogger(__name__)
AnySpec = TypeVar("AnySpec", bound=Spec)


class Named(Protocol):
    """A spec, or an entry of a list in the configuration."""

    @property
    def name(self) -> str: ...


AnyNamed = TypeVar("AnyNamed", bound=Named)


def find(what: str, name: str, entries: Iterable[AnyNamed]) -> AnyNamed:
    """Return the entry of this `name`. Raises UsageError that lists the known entries and calls them `what`."""
    known = {entry.name: entry for entry in entries}
    if name not in known:
        raise UsageError(f"unknown {what} {name}; {meant(name, known)}there are {', '.join(known)}")
    return known[name]


def import_place(place: str) -> Any:
    """Import the object at the import path `module:name`."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


MAX_SIDE = 4096
"""Maximum number of pixels of a side of an encoder's input."""
IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""Pattern of an import path, `module:Class`."""
ALLOWED = "JOINTSPACE_ALLOW"
"""Environment variable with the import paths that the user has named. Other processes inherit it."""


def allow(places: Iterable[str]) -> None:
    """Permit these import paths from now on. Only the user may name them."""
    os.environ[ALLOWED] = ",".join(sorted({*os.environ.get(ALLOWED, "").split(","), *places} - {""}))


def named_places(values: object) -> set[str]:
    """Return the import paths that a configuration, as YAML has it, names as a model, an encoder or a reader."""
    if isinstance(values, Mapping):
        named = {str(values.get(key)) for key in ("model", "kind", "format")}
        return {name for name in named if re.match(IMPORT_PATH, name)}.union(*map(named_places, values.values()))
    return set().union(*map(named_places, values)) if isinstance(values, list | tuple) else set()


def import_allowed(what: str, place: str) -> Any:
    """Import the object at the import path `place`.

    Raises UsageError if the user has not named the path, or if it cannot be imported.
    """
    if place not in os.environ.get(ALLOWED, "").split(","):
        raise UsageError(
            f"the {what} {place} is code that you have not named; if you trust it: `jointspace --allow {place} ...`, or"
            f' jointspace.load(..., allow=["{place}"])'
        )
    try:
        return _import_with_former_names(place)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"the {what} {place}: {error}; install it, or name its folder in PYTHONPATH") from error


FORMER_MODULES = {
    "pipeline.images.image_encoder": "pipeline.encoders.image_encoder",
    "pipeline.text.text_encoder": "pipeline.encoders.text_encoder",
}
"""Former name of a module that users' own encoders import -> its name. Former names work for one release."""


def _import_with_former_names(place: str) -> Any:
    """Import `module:name` of a user, whose module may still import ours by their former names."""
    try:
        return import_place(place)
    except ModuleNotFoundError as error:
        if error.name not in FORMER_MODULES:
            raise
        log.warning("%s imports %s, which is now %s", place, error.name, FORMER_MODULES[error.name])
        sys.modules[error.name] = importlib.import_module(FORMER_MODULES[error.name])
    return _import_with_former_names(place)


def find_spec(what: str, name: str, specs: Sequence[AnySpec], other: AnySpec | None = None) -> AnySpec:
    """Return the spec of this name, or make the spec of a class at an import path.

    Such a class changes a spec by its own SPEC: the spec of the registered class that is its base, or else `other`.
    """
    return _outside(what, import_allowed(what, name), name, specs, other) if ":" in name else find(what, name, specs)


@cache
def _outside(what: str, outside: type, place: str, specs: Sequence[AnySpec], other: AnySpec | None) -> AnySpec:
    if not isinstance(outside, type):
        raise UsageError(f"the {what} {place} is a {type(outside).__name__}; name a class")
    bases = [f"{base.__module__}:{base.__qualname__}" for base in outside.__mro__]
    base = next((spec for above in bases for spec in specs if spec.place == above), None)
    start = replace(base, like=base.key) if base else other or type(specs[0])(name=place, place=place)
    try:
        return replace(start, **{"name": place, "place": place, **getattr(outside, "SPEC", {})})
    except TypeError as error:
        raise UsageError(f"the {what} {place}: its SPEC is wrong ({error})") from error


Modality = Literal["image", "text"]


@dataclass(frozen=True, kw_only=True)
class EncoderSpec(Spec):
    """A kind of encoder, of images or of texts, whose class is at `place`.

    The class is an ImageEncoder or a TextEncoder, which state its methods (pipeline/encoders/image_encoder.py and
    pipeline/encoders/text_encoder.py). The keys of its entry in a configuration are the class at `section`, an
    EncoderEntry of pipeline/config/encoders.py. A class at an import path that has no registered base has the keys of
    OwnImageEntry or TextEntry there.
    """

    modality: Modality
    reads: Literal["pixels", "regions", "texts", "vectors"]
    """What the encoder takes. `regions` are features of regions by the encoder that its entry names in `of`; `vectors`
    are precomputed."""
    library: bool = False
    """Whether the encoder is a model of another library, in the library's own files."""
    learned: bool = False
    """Whether the encoder is learned from the train split."""
    regions: bool = False
    """Whether the encoder describes regions of images, too."""
    roots: bool = False
    """Whether the features have hardly any negative values, so that their signed roots are worth taking."""
    sparse: bool = False
    """Whether the vectors are a csr_array."""
    adds_words: bool = False
    """Whether the vector of a text is the sum of the vectors of its words (see `encode_words`), but for a factor."""


def _image(name: str, place: str, entry: str, **more: Any) -> EncoderSpec:
    more = {"reads": "pixels", "section": f"pipeline.config.encoders:{entry}", **more}
    return EncoderSpec(name=name, place=f"pipeline.encoders.{place}", modality="image", **more)


def _text(name: str, place: str, entry: str, **more: Any) -> EncoderSpec:
    more = {"reads": "texts", "section": f"pipeline.config.encoders:{entry}", **more}
    return EncoderSpec(name=name, place=f"pipeline.encoders.{place}", modality="text", **more)


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
"""The spec of a class at an import path that has no registered base."""


@cache
def encoder_specs(modality: Modality) -> tuple[EncoderSpec, ...]:
    """Return the kinds of encoders of images, or of texts."""
    return tuple(spec for spec in ENCODERS if spec.modality == modality)


def encoder_spec(kind: str, modality: Modality) -> EncoderSpec:
    """Return the spec of a kind, or of a class at an import path. Raises UsageError that lists the known kinds."""
    what = "kind of encoder" if modality == "image" else "kind of text encoder"
    return find_spec(what, kind, encoder_specs(modality), OWN_ENCODERS[modality])


@dataclass(frozen=True, kw_only=True)
class GeneratorSpec(Spec):
    """A generator of captions. Its class is a pipeline.generate.generator.Generator."""

    defaults: str | None = "language_defaults"
    """The key of the configuration whose values are the defaults of its settings."""
    regions: bool = False
    """Whether it learns from regions and the snippets of captions that were aligned with them."""
    ranks: bool = False
    """Whether it ranks those snippets by the model that aligned them."""
    text: bool = False
    """Whether it learns from text without images too."""
    treebank: bool = False
    """Whether it needs a treebank of parts of speech."""
    likelihood: bool = True
    """Whether it can rank captions by the probability that it gives them for an image (`log_probabilities`)."""


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
    """Return the generator `name`. Raises UsageError that lists the known generators."""
    return find("generator", name, GENERATORS)


def ranker(name: str) -> str:
    """Return the name under which a generator is evaluated among the models. It ranks captions by perplexity."""
    return f"{name}-perplexity"


STACKED = ("auxiliary_dimensions", "auxiliary_power", "auxiliary_eigenvalues")
"""The keys of `transfer` that decide the projection of the auxiliary pairs, a normalized CCA."""
TRAININGS: dict[str, tuple[str, ...]] = {
    "target": (),
    "auxiliary": (),
    "joint": ("beta",),
    "text-feature": ("neighbours", "neighbour_share"),
    "stacked": STACKED,
    "sae-linear": (*STACKED, "weight", "second_beta"),
    "sae": (*STACKED, "weight", "second_beta", "rule", "bandwidth", "scale", "features"),
}
"""Training -> the keys of `transfer` that matter to it."""
STACKING = tuple(name for name, keys in TRAININGS.items() if keys[: len(STACKED)] == STACKED)
"""The trainings that stack a normalized CCA of the auxiliary pairs."""
UNSTACKED = tuple(name for name in TRAININGS if name not in STACKING)
"""The other trainings."""
GRID = ("dimensions", "image_ridge", "text_ridge", "eigenvalue_power", "eigenvalues")
"""The keys of `fit` whose values are tried on dev."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    """A registered model.

    The class fulfils the contract of pipeline.models.joint_model: ModelClass and JointModel, and with `phrases` also
    PhraseModel. A model that is trained on words embeds each phrase on its own. A model that is fitted has `fit(task)`
    of a pipeline.models.linear.training.FitTask. A model that is trained has `trainer(task)` of a
    pipeline.models.neural.task.TrainingTask, which returns its Training.
    """

    made_by: Literal["fit", "train", "adopt", "combine"]
    """The stage that makes the model."""
    defaults: str | None = None
    """The key of the configuration whose values are the defaults of its own settings."""
    sentences: Literal["vectors", "tokens", "dependency-trees", "phrase-trees", "each"] = "vectors"
    """The form of its captions. `vectors`: text encoder -> (n, its dim); `each`: the forms of its members."""
    metric: Literal["inner_product", "euclidean"] = "inner_product"
    """How images and captions are compared: by the product of unit vectors, or by their distance."""
    grid: tuple[str, ...] = ()
    """The keys of GRID that matter to it."""
    trainings: tuple[str, ...] = ("target",)
    starts_from: str | None = None
    """The registered model, on the same encoders, that training starts from."""
    regions: Literal["none", "any", "its-encoders", "all-encoders"] = "none"
    """The regions that it learns from: regions of any encoder, of some of its own encoders, or of all of them."""
    multi_vector: bool = False
    phrases: bool = False
    relations: bool = False
    """Whether it has a matrix for each relation of dependency trees."""

    @property
    def form(self) -> str:
        """The folder of the captions that it reads, unless these are vectors."""
        return "trees" if self.trees else self.sentences

    @property
    def trees(self) -> bool:
        return self.sentences.endswith("-trees")

    @property
    def words(self) -> bool:
        """Whether it reads captions word by word, over the token vocabulary."""
        return self.trees or self.sentences == "tokens"

    @property
    def starts_from_terms(self) -> bool:
        """Whether it reads words and starts from a model of terms."""
        return self.starts_from is not None and self.words and not model_spec(self.starts_from).words

    @property
    def aligned(self) -> bool:
        """Whether each word of a caption has a vector, which an alignment can show beside the word."""
        return self.multi_vector and self.sentences == "tokens"

    @property
    def fit_keys(self) -> set[str]:
        """The keys of `fit` that matter to it."""
        if self.made_by != "fit":
            return set()
        return {"dev_images", "text_weights", *self.grid, *(["search"] if self.grid else [])}

    @property
    def own_score(self) -> bool:
        """Whether its class alone decides in training how images and captions are compared."""
        return self.made_by == "train" and bool(self.multi_vector or self.phrases or self.starts_from)

    @property
    def joint_space(self) -> bool:
        """Whether it gives a cosine for any image and any words."""
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
    ModelSpec("zero-shot", f"{LINEAR}.ensemble:ZeroShot", made_by="adopt"),
    _ensemble("ensemble", f"{LINEAR}.ensemble:Ensemble"),
    _ensemble("fragment-ensemble", f"{LINEAR}.ensemble:Ensemble", multi_vector=True),
)  # fmt: skip
"""All models, with the models on which others build first."""


def model_spec(name: str) -> ModelSpec:
    """Return the spec of a registered model or of a model at an import path.

    Raises UsageError that lists the known models.
    """
    return find_spec("model", name, MODELS, _fitted(name, name, grid=GRID))


def made_by(stage: str) -> tuple[ModelSpec, ...]:
    """Return the registered models that a stage makes."""
    return tuple(spec for spec in MODELS if spec.made_by == stage)


def combining(multi_vector: bool) -> ModelSpec:
    """Return the model that `combine` makes. `multi_vector`: whether a member of it is a multi-vector model."""
    return next(spec for spec in made_by("combine") if spec.multi_vector == multi_vector)
