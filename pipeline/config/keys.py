"""All keys of a configuration, in the order in which config/default.yaml and its page show them."""

from typing import Annotated, Any

from pydantic import Field

from pipeline.config.collection import AuxiliarySettings, CollectionSettings, DemoSettings, DocumentsSettings
from pipeline.config.encoders import ImageEncoderEntry, TermKeys, TextEncoderEntry
from pipeline.config.generators import (
    DescribeSettings,
    ExtraTextSettings,
    GeneratorVariant,
    OptimisationSettings,
)
from pipeline.config.images import ExtractSettings, FinetuneSettings, ImageViewSettings, RegionsSettings
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
    workers: Positive = key(2, "number of workers")
    options: dict[str, Any] = key(
        {}, "options of dask's LocalCluster, dask_jobqueue's SLURMCluster, dask_kubernetes' KubeCluster"
    )


class Keys(Section):
    name: Name = key("demo", "results are in results_root/name", title="The run")
    data_root: Place = key("results/demo-collection", "folder of the photos and their texts")
    weights_root: Place = key(".", "folder of weight files")
    results_root: Place = key("results", "folder of all runs")
    models: Names = key(
        ("cca", "ncca", "sae"), "models, variants and ensembles; or {name: ..., and the keys of a variant}"
    )
    seed: Seed = key(0, "for all random choices; at most 4294967294")
    shard_size: Positive = key(4096, "images per shard")
    parts: Annotated[Positive, Field(le=99_999)] = key(
        1, "jobs that share the shards of a stage: 1 on one machine, one per node on a cluster"
    )
    device: Device = key("auto", "where tensors are computed: auto (a GPU if there is one) | cpu | cuda | cuda:N")
    workers: Positive = key(1, "processes that share the shards of a job; at least one per GPU")
    scheduler: Annotated[str, Field(pattern=SCHEDULER)] | None = key(
        None, "null: this machine | local, slurm, kubernetes: a Dask cluster | tcp://HOST:PORT"
    )
    cluster: ClusterSettings = key(ClusterSettings, "the Dask cluster that is started for each job")
    demo: DemoSettings = key(DemoSettings, title="Collection: make-demo, ingest")
    collection: CollectionSettings = key(CollectionSettings)
    encoders: Annotated[tuple[ImageEncoderEntry, ...], Field(min_length=1)] = key(
        (DEMO_ENCODER,),
        "image encoders, whose features are concatenated",
        title="Images: prepare-encoder, extract, extract-regions, finetune",
    )  # fmt: skip
    query_encoders: tuple[ImageEncoderEntry, ...] = key((), "encoders for queries only, see made_by")
    extract: ExtractSettings = key(ExtractSettings)
    regions: RegionsSettings = key(RegionsSettings)
    finetune: FinetuneSettings = key(FinetuneSettings, "makes the encoders whose `weights` are finetuned")
    text: TermKeys = key(
        TermKeys,
        "tf-idf; an entry of text_encoders may override these keys",
        title="Text: prepare-encoder, encode-sentences",
    )
    text_encoders: Annotated[tuple[TextEncoderEntry, ...], Field(min_length=1)] = key(
        ({"name": "tfidf", "kind": "tf-idf", "normalise": []},),
        "text encoders, whose vectors are concatenated",
    )
    query_text_encoders: tuple[TextEncoderEntry, ...] = key((), "text encoders for queries only, see made_by")
    image_view: ImageViewSettings = key(ImageViewSettings, title="Linear models: accumulate, fit")
    fit: FitSettings = key(FitSettings, "values to try on dev")
    parse: ParseSettings = key(ParseSettings, title="Neural models: parse, encode-tokens, train")
    tokens: TokenVocabularySettings = key(TokenVocabularySettings, "")
    word_vectors: WordVectorsSettings = key(WordVectorsSettings)
    train_defaults: TrainSettings = key(TrainSettings, "defaults of the models below; bow and gru have no other keys")
    auxiliary: AuxiliarySettings = key(
        AuxiliarySettings, title="Titles, tags and descriptions: encode-documents, accumulate, study, sweep"
    )
    documents: dict[Name, DocumentsSettings] = key(
        {
            "all": {"fields": ["title", "tags", "description"]},
            "title": {"fields": ["title"]},
            "tags": {"fields": ["tags"]},
            "description": {"fields": ["description"]},
        },
        "weak texts by name: the fields to join, and where they come from; the last three are for Table 3",
    )
    transfer: TransferSettings = key(TransferSettings, "training with auxiliary pairs; lists are tried on dev")
    study: StudySettings = key(StudySettings)
    variants: dict[Name, Variant] = key(
        {"sae": {"model": "ncca", "training": "sae"}},
        "NAME: {model: a registered model, any of its own settings, any of the keys below}; sae is the Stacked"
        " Auxiliary"
        " Embedding, which learns from the weak texts too",
        title="Variants and ensembles: fit-hubness, align, embed-phrases, rank-phrases",
    )
    ensembles: dict[Name, EnsembleSettings] = key({}, "NAME: {members: [models], weights: ...}")
    hubness: HubnessSettings = key(HubnessSettings, "hubness correction: values to try on dev")
    align: AlignSettings = key(AlignSettings)
    phrases: PhrasesSettings = key(PhrasesSettings)
    index: IndexSettings = key(IndexSettings, title="Results: build-index, evaluate")
    evaluate: EvaluateSettings = key(EvaluateSettings)
    generators: tuple[Name, ...] = key(
        (),
        "nearest | mrnn | mrnn-regions | ranked-snippets | lbl | mlbl | mnlm | sc-nlm: each learns, describes, is"
        " judged",
        title="Generated captions: train-generator, describe, evaluate-descriptions",
    )
    generator_variants: dict[Name, GeneratorVariant] = key(
        {}, "NAME: {generator: one of these, any of its own settings, any of the keys below}"
    )
    language_defaults: OptimisationSettings = key(OptimisationSettings, "defaults of the generators below")
    language_text: ExtraTextSettings = key(ExtraTextSettings, "more text for lbl, mlbl, mnlm and sc-nlm")
    describe: DescribeSettings = key(DescribeSettings)
    serve: ServeSettings = key(ServeSettings, title="Page and papers: serve, reproduce")
    reproduce: ReproduceSettings = key(ReproduceSettings)


OwnKeys = with_kinds(Keys, OWN.values())
"""With the section of every registered model and generator that has settings of its own."""
