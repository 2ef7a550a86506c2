"""What the API answers, as its documentation at /openapi.json describes it."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, Field

from pipeline.index.conditions import OURS
from pipeline.index.search import Answer
from pipeline.storage.tables import Row


class ModelAnswer(BaseModel):
    """An index that can be asked."""

    model: str
    registered: str = Field(description="the kind of model")
    metric: str = Field(description="inner_product: a score is a cosine; euclidean: it is minus a squared distance")
    images: int
    sentences: int
    encoders: list[str]
    collection: str = Field(description="the run that its photos are of, or its folder's name")
    collection_id: str = Field(description="the same for all indexes of one collection")
    regions: bool = Field(description="whether it can be asked for regions")
    columns: dict[str, str] = Field(description="what a condition can be about: own columns, split, width and height")
    examples: list[str] = Field(description="sentences of its own, to begin with")


class GeneratorAnswer(BaseModel):
    """A generator that describes photographs."""

    generator: str
    registered: str = Field(description="the kind of generator")
    encoders: list[str]
    top: int = Field(description="descriptions where a request names no number")


class ModelsAnswer(BaseModel):
    models: list[ModelAnswer]
    generators: list[GeneratorAnswer]
    top: int = Field(description="results where a request names no number")
    max_top: int
    among: int = Field(description="of arithmetic, the first that are re-sorted by their distance to their mean")
    max_sentence_chars: int
    max_upload_bytes: int


class PhotographAnswer(BaseModel):
    image_id: int
    name: str = Field(description="its path in the collection")
    caption: str | None = Field(description="the first of its own sentences")
    photograph: str = Field(description="address of a small JPEG of it on this server")
    width: int | None = Field(description="in pixels")
    height: int | None
    columns: dict[str, Any] = Field(description="the collection's own columns of it, without those that are missing")


class ImageAnswer(PhotographAnswer):
    rank: int
    score: float = Field(description="the greater the better")
    box: tuple[float, float, float, float] | None = Field(
        description="of a multi-vector model, the region that fits the words best: left, top, right, bottom in pixels;"
        " of a region, its own"
    )


class AboutAnswer(PhotographAnswer):
    """All that is known of one photo."""

    split: str
    sentences: list[str] = Field(description="its own")
    large: str = Field(description="address of a large JPEG of it on this server")
    original: str | None = Field(description="address of its file, where the server shows files as they are")


class BrowseAnswer(BaseModel):
    model: str
    count: int = Field(description="photos of which the condition is true")
    results: list[PhotographAnswer]


class FacetAnswer(BaseModel):
    """The choices of a filter for a column: its `values` if they are few, or else `least` and `most`."""

    kind: str
    values: list[str | bool] | None = None
    least: float | str | None = None
    most: float | str | None = None


class ColumnsAnswer(BaseModel):
    model: str
    columns: dict[str, FacetAnswer]


class SentenceAnswer(BaseModel):
    rank: int
    score: float = Field(description="the greater the better")
    sentence_id: int
    image_id: int
    text: str


class ImagesAnswer(BaseModel):
    model: str
    seconds: float = Field(description="that the search took, without waiting")
    unknown: list[str] = Field(description="words that are not in the vocabulary, and so were ignored")
    near: dict[str, str] = Field(description="of some of these, the known word that is spelt like it")
    likely: int | None = Field(
        description="how many of these, from the first on, may be the photo that is meant; null: it is not known"
    )
    remark: str | None = Field(description="where the likely ones end, in words")
    warning: str | None = Field(description="that the sentence seems to be off the collection, and why")
    results: list[ImageAnswer]


class SentencesAnswer(BaseModel):
    model: str
    seconds: float = Field(description="that encoding and search took, without waiting")
    results: list[SentenceAnswer]


class NearestAnswer(BaseModel):
    text: str
    cosine: float = Field(description="of bags of words, weighted by inverse document frequency")


class DescriptionAnswer(BaseModel):
    rank: int
    score: float = Field(description="the greater the better among one generator's")
    text: str
    verbatim: bool = Field(description="whether it is a training sentence, word by word")
    nearest: NearestAnswer = Field(description="the training sentence that is nearest to it")


class DescriptionsAnswer(BaseModel):
    generator: str
    seconds: float = Field(description="that encoding and describing took, without waiting")
    results: list[DescriptionAnswer]


class ErrorAnswer(BaseModel):
    error: str = Field(description="what is wrong, in one sentence")


def list_images(
    model: str, hits: Answer, ignored: Mapping[str, str | None], captions: Sequence[str | None], seconds: float
) -> ImagesAnswer:
    """The answer of some hits, each with its caption; `ignored` words have the known one nearest to each."""
    results = [
        ImageAnswer(rank=hit.rank, score=hit.score, box=hit.row.get("box"), **describe_image(model, hit.row, caption))
        for hit, caption in zip(hits, captions, strict=True)
    ]
    near = {word: known for word, known in ignored.items() if known}
    told = {name: getattr(hits.judgement, name, None) for name in ("likely", "remark", "warning")}
    return ImagesAnswer(model=model, seconds=seconds, unknown=list(ignored), near=near, **told, results=results)


def describe_image(model: str, row: Row, caption: str | None) -> dict[str, Any]:
    """Return the values of a PhotographAnswer for a row of the table of images."""
    return {
        "image_id": row["image_id"],
        "name": "::".join(filter(None, (row["path"], row.get("member")))),
        "caption": caption,
        "photograph": f"/api/models/{quote(model, safe='')}/photographs/{row['image_id']}",
        "width": row.get("width"),
        "height": row.get("height"),
        "columns": {name: row[name] for name in row if name not in OURS and row[name] is not None},
    }
