"""The forms of JSON files that are their own commits, as pydantic models; unknown keys are ignored."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0)]
Bounds = Annotated[list[Count], Field(min_length=2, max_length=2)]
Digits = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Inputs = dict[str, str]


class Form(BaseModel):
    """Strict types; unknown keys are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), defer_build=True)


class ManifestFile(Form):
    """`manifest.json`."""

    fingerprint: str
    root: str
    shard_size: Annotated[int, Field(gt=0)]
    shards: Count
    contents: list[str]
    counts: dict[str, dict[str, int]]
    splits: dict[str, Count]

    @model_validator(mode="after")
    def _as_many_shards_as_images(self) -> Self:
        images = sum(self.splits.values())
        if -(-images // self.shard_size) != self.shards:
            raise ValueError(f"its {images} images make no {self.shards} shards of {self.shard_size}")
        if len(self.contents) != self.shards:
            raise ValueError(f"its contents are of {len(self.contents)} shards, not of {self.shards}")
        return self


class ShardTables(Form):
    """The first and last rows of a shard in each table of its manifest."""

    images: Bounds
    sentences: Bounds
    documents: Bounds
    boxes: Bounds


class ManifestShard(Form):
    """A manifest's `shards/<number>.json`."""

    shard: Count
    rows: ShardTables
    content: str
    images: str
    splits: str
    sentences: str
    documents: str
    boxes: str


class Terms(Form):
    """pipeline.text.tokens.TermSettings."""

    lowercase: bool
    tokenizer: str
    lemmatise: bool
    stop_words: list[str]
    max_ngram: Annotated[int, Field(ge=1, le=3)]
    lemmas: dict[str, str] = {}
    english: bool = True


class VocabularyForm(Form):
    """pipeline.text.vocabulary.Vocabulary."""

    settings: Terms
    normalise: bool
    terms: Annotated[list[str], Field(min_length=1)]
    idf: list[Finite]
    n_sentences: Count

    @model_validator(mode="after")
    def _one_weight_a_term(self) -> Self:
        if len(self.idf) != len(self.terms) or len(set(self.terms)) != len(self.terms):
            raise ValueError("its terms are not each once, with one idf each")
        return self


class VocabularyFile(VocabularyForm):
    fingerprint: str


class JointVocabulary(Form):
    """The vocabularies of an ensemble, by form of sentences."""

    fingerprint: str
    views: dict[str, VocabularyForm]


class LabelsFile(Form):
    """pipeline.text.trees.LabelTable."""

    fingerprint: str
    relations: list[str]
    relation_counts: list[int]
    phrases: list[str]
    phrase_counts: list[int]


class Direction(Form):
    recall_1: Finite = Field(alias="recall@1")
    recall_5: Finite = Field(alias="recall@5")
    recall_10: Finite = Field(alias="recall@10")
    median_rank: Finite
    mean_rank: Finite


class Evaluation(Form):
    """What `evaluate` writes."""

    model: str
    split: str
    protocol: str
    n_images: Annotated[int, Field(gt=0)]
    n_sentences: Annotated[int, Field(gt=0)]
    image_to_sentence: Direction
    sentence_to_image: Direction


class Summary(Form):
    evaluations: list[Evaluation]


class SentenceForm(Form):
    text: str
    verbatim: bool


class DescribedForm(Form):
    image_id: int | None
    box: list[Finite] | None
    sentences: list[SentenceForm]


class Descriptions(Form):
    """What `describe` writes."""

    generator: str
    of: str
    split: str | None
    images: list[DescribedForm]


class JudgementForm(Form):
    """What `evaluate-descriptions` writes and `report` reads."""

    generator: str
    of: str
    split: str
    n_images: int
    n_boxes: int | None
    bleu_1: Finite | None
    bleu_2: Finite | None
    bleu_3: Finite | None
    bleu_4: Finite | None
    rouge_l: Finite | None
    cider: Finite | None
    meteor: Finite | None = None
    not_measured: dict[str, str] = {}
    copied: Finite
    length: Finite


class TransferAnswer(Form):
    text: str
    right: bool


class TransferImage(Form):
    image_id: Count
    text: str


class TransferCase(Form):
    """A test image, the sentences that each model finds for it, best first, and the nearest images of each training set
    with their texts."""

    image_id: Count
    answers: dict[str, list[TransferAnswer]]
    nearest: dict[str, list[TransferImage]]


class StudyFile(Form):
    """What `study` writes: files of `cells` in `cells/`, one for each draw of a number."""

    cells: dict[str, list[Annotated[str, Field(pattern=r"^[\w-]+\.json$")]]]
    transfer: list[TransferCase]
    setting: dict[str, Any]


class StudyCellForm(Form):
    """One number of a study in one draw."""

    key: str
    chosen: dict[str, Any]
    image_to_sentence: dict[str, Finite]
    sentence_to_image: dict[str, Finite]
    trials: list[dict[str, Any]]
    ranks: list[int]
    answers: dict[str, list[int]]
