"""The literal lists of encoders, generators, models and trainings: the only places that name them. What else must know
of one asks its spec, which costs no import of the class, nor of pydantic.

A model, an encoder or a reader of a collection that is none of these has its import path, `module:Class`, as its name.
Code is imported only if the user has named its path (`allow`): in a configuration, or for a bundle from elsewhere.
"""

import importlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar

from pipeline.errors import UsageError, meant


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Something registered: its class is at `place`, that of its own settings, if it has any, at `section`; `extra` is
    the extra of the distribution that it needs, or None. One with an import path has the settings of the registered
    one `like` it, of which its class is a subclass."""

    name: str
    place: str
    like: str | None = None
    section: str | None = None
    extra: str | None = None

    @property
    def key(self) -> str:
        """Of its own settings in a configuration, or in its entry there."""
        return (self.like or self.name).replace("-", "_")

    @property
    def stored_kind(self) -> dict[str, str]:
        """What the stored settings of an encoder at an import path say in place of a registered kind."""
        return {"kind": self.name} if ":" in self.name else {}

    def load(self) -> Any:
        """Its class. UsageError names the extra that is not installed."""
        try:
            return import_place(self.place)
        except ModuleNotFoundError as error:
            if self.extra is None:
                raise
            remedy = f"pip install 'jointspace[{self.extra}]'"
            raise UsageError(f"{self.name} needs {error.name}; {remedy}") from error


log = logging.getLogger(__name__)
AnySpec = TypeVar("AnySpec", bound=Spec)


def find(what: str, name: str, specs: Iterable[AnySpec]) -> AnySpec:
    """The one of `specs` whose `name` this is. UsageError lists the known ones, calling them `what`."""
    known = {spec.name: spec for spec in specs}
    if name not in known:
        raise UsageError(f"unknown {what} {name}; {meant(name, known)}there are {', '.join(known)}")
    return known[name]


def import_place(place: str) -> Any:
    """What stands at `module:name`."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


MAX_SIDE = 4096
"""Maximum number of pixels of a side of an encoder's input."""
IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
ALLOWED = "JOINTSPACE_ALLOW"
"""The variable of the environment, which other processes inherit, with the import paths that the user has named."""


def allow(places: Iterable[str]) -> None:
    """Let these import paths be imported from now on; only the user may name them."""
    os.environ[ALLOWED] = ",".join(sorted({*os.environ.get(ALLOWED, "").split(","), *places} - {""}))


def named_places(values: Any) -> set[str]:
    """The import paths that a configuration names as a model, an encoder or a reader."""
    if not isinstance(values, Mapping):
        return set().union(*map(named_places, values)) if isinstance(values, list | tuple) else set()
    named = {str(values.get(key)) for key in ("model", "kind", "format")}
    return {name for name in named if re.match(IMPORT_PATH, name)}.union(*map(named_places, values.values()))


def import_allowed(what: str, place: str) -> Any:
    """What stands at the import path `place`, which the user has named. UsageError where that is not so, and where it
    cannot be imported."""
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


def find_spec(what: str, name: str, specs: Sequence[AnySpec], **more: Any) -> AnySpec:
    """The one of `specs` of this name, or that of a class at an import path: the spec of the registered class that is
    its base, if any, changed by `more` and by the class's own SPEC."""
    return _outside(what, import_allowed(what, name), name, specs, **more) if ":" in name else find(what, name, specs)


@cache
def _outside(what: str, outside: type, place: str, specs: Sequence[AnySpec], **more: Any) -> AnySpec:
    if not isinstance(outside, type):
        raise UsageError(f"the {what} {place} is a {type(outside).__name__}; name a class")
    bases = [f"{base.__module__}:{base.__qualname__}" for base in outside.__mro__]
    base = next((spec for above in bases for spec in specs if spec.place == above), None)
    own = {"name": place, "place": place, **getattr(outside, "SPEC", {})}
    try:
        return replace(base, like=base.key, **own) if base else type(specs[0])(**{**more, **own})
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

OWN_ENCODERS: dict[Modality, dict[str, Any]] = {
    "image": {"modality": "image", "reads": "pixels", "section": "pipeline.config.encoders:OwnImageEntry"},
    "text": {"modality": "text", "reads": "texts", "section": "pipeline.config.encoders:TextEntry"},
}
"""The spec of a class at an import path that has no registered base."""


@cache
def encoder_specs(modality: Modality) -> tuple[EncoderSpec, ...]:
    """Return the kinds of encoders of images, or of texts."""
    return tuple(spec for spec in ENCODERS if spec.modality == modality)


def encoder_spec(kind: str, modality: Modality) -> EncoderSpec:
    """Return the spec of a kind, or of a class at an import path. Raises UsageError that lists the known kinds."""
    what = "kind of encoder" if modality == "image" else "kind of text encoder"
    return find_spec(what, kind, encoder_specs(modality), **OWN_ENCODERS[modality])


@dataclass(frozen=True, kw_only=True)
class GeneratorSpec(Spec):
    """A generator: its class at `place` (see pipeline.generate.describing.Generator), the class of its settings,
    `section`, with `defaults` below them; whether it learns from `regions` with the snippets that were aligned with
    them and `ranks` these by the model that did, from `text` without images, and needs a `treebank` of parts of speech;
    whether it says how probable a sentence of an image is (`log_probabilities`, `likelihood`), so that it can rank
    them."""

    defaults: str | None = "language_defaults"
    regions: bool = False
    ranks: bool = False
    text: bool = False
    treebank: bool = False
    likelihood: bool = True


def _generator(name: str, place: str, section: str, **more: Any) -> GeneratorSpec:
    place, section = f"pipeline.generate.{place}", f"pipeline.config.generators:{section}Settings"
    return GeneratorSpec(name=name, place=place, section=section, **more)


GENERATORS: tuple[GeneratorSpec, ...] = (
    _generator("nearest", "nearest:Nearest", "Nearest", defaults=None, likelihood=False),
    _generator("mrnn", "mrnn:MultimodalRNN", "Recurrent"),
    _generator("mrnn-regions", "mrnn:MultimodalRNN", "RegionRecurrent", regions=True, likelihood=False),
    _generator("ranked-snippets", "snippets:RankedSnippets", "RankedSnippets", defaults=None, regions=True, ranks=True,
          likelihood=False),
    _generator("lbl", "lm:LogBilinearModel", "LogBilinear", text=True),
    _generator("mlbl", "lm:AdditiveModel", "LogBilinear", text=True),
    _generator("mnlm", "lm:MultiplicativeModel", "LogBilinear", text=True),
    _generator("sc-nlm", "lm:StructureContentModel", "LogBilinear", text=True, treebank=True),
)  # fmt: skip


def generator_spec(name: str) -> GeneratorSpec:
    """The generator `name`; UsageError lists the known ones."""
    return find("generator", name, GENERATORS)


def ranker(name: str) -> str:
    """The name of a generator among evaluated models, where it ranks by perplexity."""
    return f"{name}-perplexity"


STACKED = ("auxiliary_dimensions", "auxiliary_power", "auxiliary_eigenvalues")
"""The keys of `transfer` that make the projection of the auxiliary pairs, a normalized CCA."""
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
GRID = ("dimensions", "image_ridge", "text_ridge", "eigenvalue_power", "eigenvalues")
"""The keys of `fit` whose values are tried on dev."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    """A registered model: its class is at `place`, made by the stage `made_by`, which takes `section`, the class of its
    own settings (None: it has none), with `defaults`, a key of the configuration, below them.

    The class has `settings()` and `tensors()`, which `from_parts(settings, tensors)` turns back into the model; `to`,
    by which it computes on a torch.device; and, as stated here, `sentence_view`, `metric` and `multi_vector`.
    `embed_images(features)` maps encoder -> (n, dim) float32 to (n, c) float32, `embed_sentences(sentences)` n
    sentences in their form to (n, c) float32. A `multi_vector` model has a vector for every region and word instead:
    `embed_images(features, regions)` and `embed_sentences` make MultiVectors, and `rule` says how these score. One with
    `phrases` has `embed_phrases(trees)` and `embed_regions(block)` too, and one that is trained on words
    `embed_phrases(tokens)`, each phrase on its own. What is fitted has `fit(task)` of a
    pipeline.models.linear.training.FitTask, what is trained `trainer(task)` of a
    pipeline.models.neural.task.TrainingTask, which returns its Training.
    """

    made_by: Literal["fit", "train", "adopt", "combine"]
    defaults: str | None = None
    sentences: Literal["vectors", "tokens", "dependency-trees", "phrase-trees", "each"] = "vectors"
    """The form that it takes: `vectors`, text encoder -> (n, its dim); `each`: those of its members."""
    metric: Literal["inner_product", "euclidean"] = "inner_product"
    """What compares images with sentences: the product of unit vectors, or the distance."""
    grid: tuple[str, ...] = ()
    """Those of GRID that matter to it."""
    trainings: tuple[str, ...] = ("target",)
    starts_from: str | None = None
    """The registered model that training starts from, on the same encoders."""
    regions: Literal["none", "any", "its-encoders", "all-encoders"] = "none"
    """Whose regions it learns from: of any encoder, of some of its own, or of all of its own."""
    multi_vector: bool = False
    phrases: bool = False
    relations: bool = False
    """Whether it has a matrix for each relation of dependency trees."""

    @property
    def form(self) -> str:
        """The folder of the sentences that it reads, unless these are vectors."""
        return "trees" if self.trees else self.sentences

    @property
    def trees(self) -> bool:
        return self.sentences.endswith("-trees")

    @property
    def words(self) -> bool:
        """Whether it reads sentences word by word, over the token vocabulary."""
        return self.trees or self.sentences == "tokens"

    @property
    def starts_from_terms(self) -> bool:
        """Whether it reads words and starts from a model of terms."""
        return self.starts_from is not None and self.words and not model_spec(self.starts_from).words

    @property
    def aligned(self) -> bool:
        """Whether each word of a sentence has a vector, which alignments show beside the words."""
        return self.multi_vector and self.sentences == "tokens"

    @property
    def fit_keys(self) -> set[str]:
        """The keys of `fit` that matter to it."""
        if self.made_by != "fit":
            return set()
        return {"dev_images", "text_weights", *self.grid, *(["search"] if self.grid else [])}

    @property
    def own_score(self) -> bool:
        """Whether training asks nothing but its class how images and sentences are compared."""
        return self.made_by == "train" and bool(self.multi_vector or self.phrases or self.starts_from)

    @property
    def joint_space(self) -> bool:
        """Whether any image and any words have a cosine by it."""
        return self.metric == "inner_product" and not (self.multi_vector or self.trees or self.made_by == "combine")


def _fitted(name: str, place: str, **more: Any) -> ModelSpec:
    return ModelSpec(name=name, place=f"pipeline.models.linear.{place}", made_by="fit", **more)


def _trained(name: str, place: str, section: str = "Train", sentences: Any = "tokens", **more: Any) -> ModelSpec:
    section = section if ":" in section else f"pipeline.config.models:{section}Settings"
    more = {"section": section, "defaults": "train_defaults", "sentences": sentences, **more}
    return ModelSpec(name=name, place=f"pipeline.models.neural.{place}", made_by="train", **more)


WSABIE = "pipeline.config.models:WsabieSettings"
ADAGRAD = "pipeline.config.models:WsabieAdaGradSettings"
KERNELS = "pipeline.config.models:KernelsSettings"
REGIONS: dict[str, Any] = {"regions": "any", "multi_vector": True}
MODELS: tuple[ModelSpec, ...] = (
    _fitted("ridge", "ridge:RidgeRegression", metric="euclidean", grid=GRID[:2], trainings=UNSTACKED),
    _fitted("cca", "cca:CCA", metric="euclidean", grid=GRID[:3], trainings=UNSTACKED),
    _fitted("ncca", "cca:NormalizedCCA", grid=GRID, trainings=tuple(TRAININGS)),
    _fitted("kcca", "kernels:KernelCCA", section=KERNELS, grid=GRID),
    _fitted("wsabie-sgd", "wsabie:WsabieSGD", section=WSABIE),
    _fitted("wsabie-adagrad", "wsabie:WsabieAdaGrad", section=ADAGRAD),
    _trained("bow", "word_models:BagOfWords"),
    _trained("rnn", "word_models:RNN", "PlainTrain"),
    _trained("gru", "word_models:GRU"),
    _trained("lstm", "word_models:LSTM", "LongShortTermTrain"),
    _trained("ctrnn", "tree_rnn:CTRNN", "TreeTrain", "phrase-trees"),
    _trained("dtrnn", "tree_rnn:DTRNN", "TreeTrain", "dependency-trees"),
    _trained("sdtrnn", "tree_rnn:SDTRNN", "RelationTrain", "dependency-trees", relations=True),
    _trained("hmlstm", "hmlstm:HMLSTM", "DenseTrain", "phrase-trees", regions="all-encoders", phrases=True),
    _trained("dvsa", "fragment_models:DVSA", "WordFragmentTrain", **REGIONS),
    _trained("deptree", "fragment_models:DepTree", "RelationFragmentTrain", "dependency-trees", **REGIONS),
    _trained("defrag", "fragment_models:Defrag", "InstanceTrain", "dependency-trees", **REGIONS),
    _trained("fragments", "fragment_models:GroundedFragments", "GroundedTrain", starts_from="ncca-recurrent",
             **REGIONS | {"regions": "its-encoders"}),
    _trained("ncca-refined", "refinement:RefinedCCA", "RefinedTrain", sentences="vectors", starts_from="ncca"),
    _trained("ncca-recurrent", "word_towers:RecurrentCCA", "RecurrentTrain", starts_from="ncca"),
    ModelSpec(name="zero-shot", place="pipeline.models.linear.ensemble:ZeroShot", made_by="adopt"),
    ModelSpec(name="ensemble", place="pipeline.models.linear.ensemble:Ensemble", made_by="combine", sentences="each"),
    ModelSpec(name="fragment-ensemble", place="pipeline.models.linear.ensemble:Ensemble", made_by="combine",
              sentences="each", multi_vector=True),
)  # fmt: skip


def model_spec(name: str) -> ModelSpec:
    """The registered model `name`, or one at an import path; UsageError lists the known ones."""
    return find_spec("model", name, MODELS, made_by="fit", grid=GRID)


def made_by(stage: str) -> tuple[ModelSpec, ...]:
    """The models that a stage makes."""
    return tuple(spec for spec in MODELS if spec.made_by == stage)


def combining(multi_vector: bool) -> ModelSpec:
    """The model that `combine` makes of members, where one of these is multi-vector or none is."""
    return next(spec for spec in made_by("combine") if spec.multi_vector == multi_vector)
