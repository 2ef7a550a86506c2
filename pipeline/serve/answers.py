"""Pydantic models of the JSON answers of the API. They define the schemas of the answers in /openapi.json."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, Field

from pipeline.index.conditions import BUILT_IN_COLUMNS
from pipeline.index.search import Answer
from pipeline.storage.tables import Row


class ModelAnswer(BaseModel):
    """An index that can be searched, with its model."""

    model: str
    registered: str = Field(description="registered name of the model class, such as ncca")
    metric: str = Field(
        description="inner_product: scores are inner products of the stored vectors, which are cosines for most models."
        " euclidean: scores are negative squared distances."
    )
    images: int
    sentences: int
    encoders: list[str]
    collection: str = Field(
        description="name of the run that built the index, or of the index folder if the index is outside a run"
    )
    collection_id: str = Field(description="identifier of the collection, equal for all indexes of one collection")
    regions: bool = Field(description="whether the index can be searched for regions of photos")
    columns: dict[str, str] = Field(
        description="columns that a condition can use, as name -> kind: the collection's own columns,"
        " split, width and height"
    )
    examples: list[str] = Field(description="captions of the index, as example queries")


class GeneratorAnswer(BaseModel):
    """A generator that writes captions for photos."""

    generator: str
    registered: str = Field(description="registered name of the generator class")
    encoders: list[str]
    top: int = Field(description="number of generated captions if a request has no `top`")


class ModelsAnswer(BaseModel):
    models: list[ModelAnswer]
    generators: list[GeneratorAnswer]
    top: int = Field(description="number of results if a request has no `top`")
    max_top: int = Field(description="largest `top` that a request may have")
    among: int = Field(
        description="number of nearest results of /arithmetic that are re-ranked by their distance to their mean"
    )
    max_sentence_chars: int = Field(description="maximum number of characters of the text of a request")
    max_upload_bytes: int = Field(description="maximum size of an uploaded photo, in bytes")


class PhotographAnswer(BaseModel):
    image_id: int
    name: str = Field(description="path of the photo in the collection. The member of a tar shard follows after `::`.")
    caption: str | None = Field(description="first caption of the photo, or null if the photo has no caption")
    photograph: str = Field(description="address of a thumbnail (JPEG) of the photo on this server")
    width: int | None = Field(description="width of the photo in pixels, or null if it is not known")
    height: int | None = Field(description="height of the photo in pixels, or null if it is not known")
    columns: dict[str, Any] = Field(
        description="values of the collection's own columns for this photo, without missing values"
    )


class ImageAnswer(PhotographAnswer):
    rank: int
    score: float = Field(description="similarity to the query. A higher score is a better match.")
    matches: list[str] = Field(
        description="names of the texts with the words of the query: caption, file name or a column. Empty if the text"
        " search has not found the photo."
    )
    box: tuple[float, float, float, float] | None = Field(
        description="region of the photo that matches the text best, as left, top, right, bottom in pixels. null if the"
        " model compares whole photos, or if it knows no word of the text."
    )


class AboutAnswer(PhotographAnswer):
    """One photo with its split, all of its captions, and the addresses of its images."""

    split: str = Field(description="split of the collection that the photo belongs to")
    sentences: list[str] = Field(description="captions of the photo")
    large: str = Field(description="address of a large JPEG of the photo on this server")
    original: str | None = Field(
        description="address of the original file, or null if the server does not serve original files"
    )


class BrowseAnswer(BaseModel):
    model: str
    count: int = Field(description="number of photos that satisfy the condition, or of all photos without a condition")
    results: list[PhotographAnswer]


class FacetAnswer(BaseModel):
    """Choices of a filter for one column: its values if it has texts or truth values, and else its smallest and largest
    value."""

    kind: str = Field(description="kind of the column: text, truth (true or false), numbers or dates")
    values: list[str | bool] | None = Field(
        None, description="different values of a text or truth column. Empty if there are too many to list."
    )
    least: float | str | None = Field(None, description="smallest value of a column of numbers or dates")
    most: float | str | None = Field(None, description="largest value of a column of numbers or dates")


class ColumnsAnswer(BaseModel):
    model: str
    columns: dict[str, FacetAnswer]


class SentenceAnswer(BaseModel):
    rank: int
    score: float = Field(description="similarity to the photo. A higher score is a better match.")
    sentence_id: int
    image_id: int
    text: str


class ImagesAnswer(BaseModel):
    model: str
    seconds: float = Field(
        description="duration of the search and the encoding of the query in seconds, without the time in the queue"
    )
    unknown: list[str] = Field(
        description="words of the query that are not in the vocabulary of the model and were ignored. Empty if the text"
        " search has found some of the results."
    )
    near: dict[str, str] = Field(
        description="unknown word -> the known word with the most similar spelling. Words without a similar known word"
        " are missing."
    )
    likely: int | None = Field(
        description="number of likely matches. They are the first results. null if the index cannot tell."
    )
    remark: str | None = Field(
        description="sentence that says where the likely matches end, or why the index cannot tell"
    )
    warning: str | None = Field(description="sentence that says that the query is out of domain, and why")
    results: list[ImageAnswer]


class SentencesAnswer(BaseModel):
    model: str
    seconds: float = Field(description="duration of encoding and search in seconds, without the time in the queue")
    results: list[SentenceAnswer]


class NearestAnswer(BaseModel):
    text: str = Field(description="training caption")
    cosine: float = Field(
        description="cosine of the bags of words of both captions, weighted by inverse document frequency"
    )


class DescriptionAnswer(BaseModel):
    rank: int
    score: float = Field(
        description="score of the generated caption. A higher score is better. Scores of different generators cannot be"
        " compared."
    )
    text: str
    verbatim: bool = Field(description="whether the generated caption is equal to a training caption, word by word")
    nearest: NearestAnswer = Field(description="training caption that is most similar to the generated caption")


class DescriptionsAnswer(BaseModel):
    generator: str
    seconds: float = Field(description="duration of encoding and generation in seconds, without the time in the queue")
    results: list[DescriptionAnswer]


class ErrorAnswer(BaseModel):
    error: str = Field(description="error message: what is wrong and what to do")


def list_images(
    model: str, hits: Answer, ignored: Mapping[str, str | None], captions: Sequence[str | None], seconds: float
) -> ImagesAnswer:
    """Build the answer of the API to a search for images from its `hits`.

    `model` is the name under which the server has the index. `captions` has the first caption of each hit, or None.
    `ignored` maps each ignored word of the query to the known word with the most similar spelling, or to None.
    `seconds` is the duration of the search.
    """
    results = [
        ImageAnswer(
            rank=hit.rank,
            score=hit.score,
            matches=list(hit.matches),
            box=hit.row.get("box"),
            **describe_image(model, hit.row, caption),
        )
        for hit, caption in zip(hits, captions, strict=True)
    ]
    near = {word: known for word, known in ignored.items() if known}
    told = {name: getattr(hits.judgement, name, None) for name in ("likely", "remark", "warning")}
    return ImagesAnswer(model=model, seconds=seconds, unknown=list(ignored), near=near, **told, results=results)


def describe_image(model: str, row: Row, caption: str | None) -> dict[str, Any]:
    """Return the values of a PhotographAnswer, as field -> value.

    `model` is the name under which the server has the index, `row` is the image's row in the table of images, and
    `caption` is the first caption of the image, or None if it has none.
    """
    return {
        "image_id": row["image_id"],
        "name": "::".join(filter(None, (row["path"], row.get("member")))),
        "caption": caption,
        "photograph": f"/api/models/{quote(model, safe='')}/photographs/{row['image_id']}",
        "width": row.get("width"),
        "height": row.get("height"),
        "columns": {name: row[name] for name in row if name not in BUILT_IN_COLUMNS and row[name] is not None},
    }
