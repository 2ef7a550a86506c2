"""The registered models."""

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.registry.spec import Spec, find

STACKED = ("auxiliary_dimensions", "auxiliary_power", "auxiliary_eigenvalues")
"""The keys of `transfer` that make the projection of the auxiliary pairs, a normalized CCA."""
TRAININGS: dict[str, tuple[str, ...]] = {
    "target": (),
    "auxiliary": (),
    "joint": ("beta",),
    "text-feature": ("neighbours", "neighbour_share"),
    "stacked": STACKED,
    "sae-linear": (*STACKED, "weight", "second_beta"),
    "sae": (*STACKED, "weight", "second_beta", "rule", "bandwidth", "features"),
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
    `embed_phrases(tokens)`, each phrase on its own; both have `embed_snippets(sentences)` for words that regions are
    searched for. What is fitted has `fit(task)` of a pipeline.models.linear.training.FitTask, what is trained
    `trainer(task)` of a pipeline.models.neural.task.TrainingTask, which returns a Trainer.
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
    section = section if ":" in section else f"pipeline.config.schema.models:{section}Settings"
    more = {"section": section, "defaults": "train_defaults", "sentences": sentences, **more}
    return ModelSpec(name=name, place=f"pipeline.models.neural.{place}", made_by="train", **more)


WSABIE = "pipeline.config.schema.models:WsabieSettings"
ADAGRAD = "pipeline.config.schema.models:WsabieAdaGradSettings"
KERNELS = "pipeline.config.schema.models:KernelsSettings"
REGIONS: dict[str, Any] = {"regions": "any", "multi_vector": True}
MODELS: tuple[ModelSpec, ...] = (
    _fitted("ridge", "ridge:RidgeRegression", metric="euclidean", grid=GRID[:2], trainings=UNSTACKED),
    _fitted("cca", "cca:CCA", metric="euclidean", grid=GRID[:3], trainings=UNSTACKED),
    _fitted("ncca", "cca:NormalizedCCA", grid=GRID, trainings=tuple(TRAININGS)),
    _fitted("kcca", "kernels:KernelCCA", section=KERNELS, grid=GRID),
    _fitted("wsabie-sgd", "wsabie:WsabieSGD", section=WSABIE),
    _fitted("wsabie-adagrad", "wsabie:WsabieAdaGrad", section=ADAGRAD),
    _trained("bow", "word_models:BagOfWords"),
    _trained("devise", "word_models:DeViSE"),
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
    """The registered model `name`; UsageError lists the known ones."""
    return find("model", name, MODELS)


def made_by(stage: str) -> tuple[ModelSpec, ...]:
    """The models that a stage makes."""
    return tuple(spec for spec in MODELS if spec.made_by == stage)


def combining(multi_vector: bool) -> ModelSpec:
    """The model that `combine` makes of members, where one of these is multi-vector or none is."""
    return next(spec for spec in made_by("combine") if spec.multi_vector == multi_vector)
