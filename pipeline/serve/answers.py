"""What the API answers, as its documentation at /openapi.json describes it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from pydantic import BaseModel, Field

from pipeline.index.columns import OURS
from pipeline.index.search import Hit

if TYPE_CHECKING:
    from pipeline.generate.describing import Told


class ModelAnswer(BaseModel):
    """A bundle that can be asked."""

    model: str
    registered: str = Field(description="the kind of model")
    metric: str = Field(description="inner_product: a score is a cosine; euclidean: it is minus a squared distance")
    images: int
    sentences: int
    encoders: list[str]
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
    max_sentence_chars: int
    max_upload_bytes: int


class ImageAnswer(BaseModel):
    rank: int
    score: float = Field(description="the greater the better")
    image_id: int
    name: str = Field(description="its path in the collection")
    photograph: str = Field(description="address of a small JPEG of it on this server")
    columns: dict[str, Any] = Field(description="the collection's own columns of it, without those that are missing")


class RegionAnswer(ImageAnswer):
    width: int = Field(description="of the photograph, in pixels")
    height: int
    box: tuple[float, float, float, float] = Field(description="left, top, right and bottom, in these pixels")


class SentenceAnswer(BaseModel):
    rank: int
    score: float = Field(description="the greater the better")
    sentence_id: int
    image_id: int
    text: str


class WordsAnswer(BaseModel):
    model: str
    seconds: float = Field(description="that the search took, without waiting")
    unknown: list[str] = Field(description="words that are not in the vocabulary, and so were ignored")
    near: dict[str, str] = Field(description="of some of these, the known word that is spelt like it")


class ImagesAnswer(WordsAnswer):
    results: list[ImageAnswer]


class RegionsAnswer(WordsAnswer):
    results: list[RegionAnswer]


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


BOX = ("width", "height", "box")


class Found(NamedTuple):
    """The hits for some words, and those of the words that were `ignored`, each with the known one nearest to it."""

    hits: list[Hit]
    ignored: Mapping[str, str | None]

    def answer(self, model: str, seconds: float) -> dict[str, Any]:
        """What a WordsAnswer says of them."""
        near = {word: known for word, known in self.ignored.items() if known}
        return {"model": model, "seconds": seconds, "unknown": list(self.ignored), "near": near}


def list_images(model: str, found: Found, seconds: float) -> ImagesAnswer:
    results = [ImageAnswer(rank=hit.rank, score=hit.score, **_describe_image(model, hit.row)) for hit in found.hits]
    return ImagesAnswer(**found.answer(model, seconds), results=results)


def list_regions(model: str, found: Found, seconds: float) -> RegionsAnswer:
    results = [
        RegionAnswer(
            rank=hit.rank, score=hit.score, **_describe_image(model, hit.row), **{key: hit.row[key] for key in BOX}
        )
        for hit in found.hits
    ]
    return RegionsAnswer(**found.answer(model, seconds), results=results)


def _describe_image(model: str, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "image_id": row["image_id"],
        "name": "::".join(filter(None, (row["path"], row.get("member")))),
        "columns": {name: row[name] for name in row if name not in OURS and row[name] is not None},
        "photograph": f"/api/models/{quote(model, safe='')}/photographs/{row['image_id']}",
    }


def list_sentences(model: str, hits: Sequence[Hit], seconds: float) -> SentencesAnswer:
    keys = ("sentence_id", "image_id", "text")
    results = [SentenceAnswer(rank=hit.rank, score=hit.score, **{key: hit.row[key] for key in keys}) for hit in hits]
    return SentencesAnswer(model=model, seconds=seconds, results=results)


def list_descriptions(generator: str, sentences: Sequence["Told"], seconds: float) -> DescriptionsAnswer:
    results = [DescriptionAnswer(rank=rank, **one.to_dict()) for rank, one in enumerate(sentences, 1)]
    return DescriptionsAnswer(generator=generator, seconds=seconds, results=results)
