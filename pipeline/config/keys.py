"""All keys of a configuration, in the order in which config/default.yaml and its page show them."""

from typing import Annotated, Any

from pydantic import Field

from pipeline.config.collection import AuxiliarySettings, CollectionSettings, DemoSettings, DocumentsSettings
from pipeline.config.generators import (
    DescribeSettings,
    ExtraTextSettings,
    GeneratorVariant,
    OptimisationSettings,
)
from pipeline.config.images import Encoder, ExtractSettings, FinetuneSettings, ImageViewSettings, RegionsSettings
from pipeline.config.models import (
    EnsembleSettings,
    FitSettings,
    HubnessSettings,
    TrainSettings,
    TransferSettings,
    Variant,
)
from pipeline.config.registry import GENERATORS, MODELS
from pipeline.config.results import (
    AlignSettings,
    EvaluateSettings,
    IndexSettings,
    PhrasesSettings,
    ReproduceSettings,
    ServeSettings,
    StudySettings,
)
from pipeline.config.section import Device, Name, Names, Place, Positive, Section, Seed, key, with_kinds
from pipeline.config.text import (
    ParseSettings,
    TextEncoderEntry,
    TextSettings,
    TokenVocabularySettings,
    WordVectorsSettings,
)

SCHEDULER = r"^(local|slurm|kubernetes|\w+://.+)$"
DEMO_ENCODER = {
    "name": "squeezenet-boxes",
    "architecture": "squeezenet1_1",
    "weights": "finetuned",
    "resize": 224,
    "crop": None,
}
"""It is trained on the collection's own boxes."""
OWN = {spec.key: spec for spec in (*MODELS, *GENERATORS) if spec.section}
"""Key of the configuration -> the model or generator whose settings it holds."""


class ClusterSettings(Section):
    workers: Positive = key(2, "of the cluster")
    options: dict[str, Any] = key(
        {}, "of dask's LocalCluster, dask_jobqueue's SLURMCluster, dask_kubernetes' KubeCluster"
    )


class Keys(Section):
    name: Name = key("demo", "results lie under results_root/name", title="the run")
    data_root: Place = key("results/demo-collection", "folder of the photographs and their texts")
    weights_root: Place = key(".", "weight files below are relative to this folder")
    results_root: Place = key("results", "where runs are kept")
    models: Names = key(
        ("cca", "ncca", "sae"), "registered models, variants and ensembles; or {name: ..., and the keys of a variant}"
    )
    seed: Seed = key(0, "of every random choice; at most 4294967294")
    shard_size: Positive = key(4096, "images a shard")
    parts: Annotated[Positive, Field(le=99_999)] = key(
        1, "jobs that share the shards of a stage: 1 on one machine, as many as its nodes on a cluster"
    )
    device: Device = key("auto", "where tensors are computed: auto (a GPU where there is one) | cpu | cuda | cuda:N")
    workers: Positive = key(1, "processes that share the shards of a job; each GPU has one anyway")
    scheduler: Annotated[str, Field(pattern=SCHEDULER)] | None = key(
        None, "null: shards are made here | local, slurm, kubernetes: on a Dask cluster | tcp://HOST:PORT"
    )
    cluster: ClusterSettings = key(ClusterSettings, "the Dask cluster that is started for each job")
    demo: DemoSettings = key(DemoSettings, "the made-up collection", title="make-demo")
    collection: CollectionSettings = key(CollectionSettings, "what lies in data_root", title="ingest")
    encoders: Annotated[tuple[Encoder, ...], Field(min_length=1)] = key(
        (DEMO_ENCODER,),
        "image encoders; their features stand side by side in the image view",
        title="prepare-encoder, extract",
    )  # fmt: skip
    query_encoders: tuple[Encoder, ...] = key((), "encoders of queries alone, for made_by")
    extract: ExtractSettings = key(ExtractSettings, "how photographs go through the encoders")
    regions: RegionsSettings = key(RegionsSettings, "parts of photographs", title="extract-regions")
    finetune: FinetuneSettings = key(
        FinetuneSettings,
        "how encoders learn from boxes",
        title="finetune: makes the encoders whose `weights` are finetuned",
    )
    text: TextSettings = key(
        TextSettings,
        "kind tf-idf; an entry of text_encoders may have any of these keys as tf_idf",
        title="prepare-text-encoder, encode-sentences",
    )
    text_encoders: Annotated[tuple[TextEncoderEntry, ...], Field(min_length=1)] = key(
        ({"name": "tfidf", "kind": "tf-idf", "normalise": []},),
        "sentences as vectors: all blocks side by side are the text view",
    )
    query_text_encoders: tuple[TextEncoderEntry, ...] = key((), "text encoders of queries alone, for made_by")
    image_view: ImageViewSettings = key(ImageViewSettings, "what models of whole images see", title="accumulate, fit")
    fit: FitSettings = key(FitSettings, "values that are tried on dev")
    parse: ParseSettings = key(ParseSettings, "sentences as trees", title="train-parser, parse")
    tokens: TokenVocabularySettings = key(
        TokenVocabularySettings,
        "words as the neural models see them, one by one",
        title="build-token-vocabulary, encode-tokens, train",
    )
    word_vectors: WordVectorsSettings = key(WordVectorsSettings, "first vectors of words")
    train_defaults: TrainSettings = key(TrainSettings, "keys that a model below does not name")
    auxiliary: AuxiliarySettings = key(
        AuxiliarySettings, "images with weak texts", title="encode-documents, accumulate: the auxiliary set"
    )
    documents: dict[Name, DocumentsSettings] = key(
        {
            "all": {"fields": ["title", "tags", "description"]},
            "title": {"fields": ["title"]},
            "tags": {"fields": ["tags"]},
            "description": {"fields": ["description"]},
        },
        "weak texts by name: the fields that are joined, and where they come from; three are for Table 3 of the study",
    )
    transfer: TransferSettings = key(TransferSettings, "trainings with auxiliary pairs; lists are tried on dev")
    study: StudySettings = key(
        StudySettings, "Gong et al. 2014, and more", title="study, sweep: sets of several sizes and draws"
    )
    variants: dict[Name, Variant] = key(
        {"sae": {"model": "ncca", "training": "sae"}},
        "NAME: {model: a registered model, any of its own settings, any of the keys below}; sae is the Stacked"
        " Auxiliary"
        " Embedding, which learns from the weak texts too",
        title="models",
    )
    ensembles: dict[Name, EnsembleSettings] = key(
        {}, "NAME: {members: [models], weights: ...}, scores added up; best: {members: [ncca-refined, lstm]}"
    )
    hubness: HubnessSettings = key(
        HubnessSettings, "hubness correction: what is tried on dev, beside none", title="fit-hubness"
    )
    align: AlignSettings = key(AlignSettings, "words and regions", title="align: multi-vector models")
    phrases: PhrasesSettings = key(
        PhrasesSettings,
        "noun phrases and boxes",
        title="embed-phrases, rank-phrases: models that embed phrases",
    )
    index: IndexSettings = key(IndexSettings, "what is searched", title="build-index")
    evaluate: EvaluateSettings = key(EvaluateSettings, "recall and ranks", title="evaluate")
    generators: tuple[Name, ...] = key(
        (),
        "nearest | mrnn | mrnn-regions | ranked-snippets | lbl | mlbl | mnlm | sc-nlm: each learns, describes, is"
        " judged",
        title="train-generator, describe, evaluate-descriptions",
    )
    generator_variants: dict[Name, GeneratorVariant] = key(
        {}, "NAME: {generator: one of these, any of its own settings, any of the keys below}"
    )
    language_defaults: OptimisationSettings = key(OptimisationSettings, "keys that a generator below does not name")
    language_text: ExtraTextSettings = key(ExtraTextSettings, "further text for lbl, mlbl, mnlm and sc-nlm")
    describe: DescribeSettings = key(DescribeSettings, "what is described, and how")
    serve: ServeSettings = key(ServeSettings, "the server's limits", title="serve")
    reproduce: ReproduceSettings = key(ReproduceSettings, "the papers' tables", title="reproduce")


OwnKeys = with_kinds(Keys, OWN.values())
"""With the section of every registered model and generator that has settings of its own."""
