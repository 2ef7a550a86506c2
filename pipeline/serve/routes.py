"""Which address asks what, and what a request hands over, checked. /openapi.json describes it."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Form, Path, Query, Request, UploadFile
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from pipeline.errors import InputError
from pipeline.index.conditions import MAX_CHARACTERS
from pipeline.index.search import Answer
from pipeline.serve import answers
from pipeline.serve.gallery import Describer, OfGallery, R, ServedGallery, Service

WHERE = "only images of whose columns this is true, or their sentences: price < 20 and taken >= '2024-01-01'"
LARGEST_ID = 2**63 - 1
KEPT_SECONDS = 60
"""For which a browser may show a photograph without asking again, whether it is still there."""
SHOWN = (
    (0, b"\xff\xd8\xff", "image/jpeg"), (0, b"\x89PNG\r\n", "image/png"), (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"), (0, b"BM", "image/bmp"),
)  # fmt: skip
"""Where which bytes stand in the formats that every browser shows; others are saved."""
router = APIRouter(responses={status: {"model": answers.ErrorAnswer} for status in (404, 408, 413, 422, 503)})


async def _service(request: Request) -> Service:
    return request.app.state.service


Shared = Annotated[Service, Depends(_service)]


async def _gallery(service: Shared, model: Annotated[str, Path()]) -> ServedGallery:
    if model not in service.indexes:
        raise HTTPException(404, f"there is no model {model[:80]!r}; there are {', '.join(service.indexes)}")
    return await service.indexes[model].renewed()


async def _describer(service: Shared, generator: Annotated[str, Path()]) -> Describer:
    if generator not in service.describers:
        names = ", ".join(service.describers) or "none"
        raise HTTPException(404, f"there is no generator {generator[:80]!r}; there are {names}")
    return service.describers[generator]


async def _given_top(service: Shared, top: Annotated[int | None, Query()] = None) -> int | None:
    if top is not None and not 1 <= top <= service.limits.max_top:
        raise InputError(f"top is {top}; give a number from 1 to {service.limits.max_top}")
    return top


GivenTop = Annotated[int | None, Depends(_given_top)]


async def _photograph(
    service: Shared,
    photograph: Annotated[UploadFile | None, File(description="the file")] = None,
    image_id: Annotated[int | None, Form(ge=0, le=LARGEST_ID, description="an image of `of`, in place of it")] = None,
    of: Annotated[str | None, Form(description="the model whose index has the image")] = None,
) -> bytes | OfGallery:
    """An uploaded photograph, or one that an index has."""
    if (photograph is None) == (image_id is None) or (image_id is None) != (of is None):
        raise InputError("give a photo as `photograph`, or the image_id of one and the model that has it as `of`")
    if photograph is None:
        assert of is not None and image_id is not None  # as checked above
        return OfGallery(await _gallery(service, of), image_id)
    data = await photograph.read()
    if len(data) > service.limits.max_upload_bytes:
        raise HTTPException(413, f"the photo has more than {service.limits.max_upload_bytes} bytes")
    await service.run(service.checking, service.check, data)
    return data


Asked = Annotated[ServedGallery, Depends(_gallery)]
Where = Annotated[str | None, Query(description=WHERE, max_length=MAX_CHARACTERS)]
Uploaded = Annotated[bytes | OfGallery, Depends(_photograph)]


class Question:
    """The common part of all searches: the model, its gallery, the number of results, and the condition on them."""

    def __init__(self, service: Shared, model: str, gallery: Asked, top: GivenTop, where: Where = None) -> None:
        self.service = service
        self.model = model
        self.gallery = gallery
        self.top = top or service.limits.top
        self.where = where

    def require_short(self, *texts: str) -> None:
        """Raise InputError if the texts of a request are too long together, since each of them is encoded."""
        most = self.service.limits.max_sentence_chars
        characters = sum(map(len, texts)) + len(texts[1:])
        if characters > most:
            raise InputError(f"the text of this query has {characters} characters. Write at most {most}.")

    async def find_images(
        self, pool: Executor, words: Sequence[str], search: Callable[[int, str | None], Answer]
    ) -> answers.ImagesAnswer:
        """Answer with the hits of `search(top, where)`, called in a thread of `pool`, and the ignored words among
        `words`."""

        def find() -> tuple[Answer, Mapping[str, str | None], list[str | None]]:
            hits = search(self.top, self.where)
            _ = hits.judgement  # worked out here, in a thread
            captions = self.gallery.captions([hit.row["image_id"] for hit in hits])
            return hits, self.gallery.searcher.ignored(*words), captions

        (hits, ignored, captions), seconds = await self.service.run(pool, find)
        return answers.list_images(self.model, hits, ignored, captions, seconds)


Asking = Annotated[Question, Depends()]


@router.get("/api/health")
async def health(service: Shared) -> dict[str, Any]:
    """Whether the server answers, and for which models."""
    return {"status": "ok", "models": list(service.indexes)}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Shared) -> Response:
    """Requests, errors and latencies, in Prometheus's text format."""
    return Response(service.metrics.to_text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/api/models")
async def list_models(service: Shared) -> answers.ModelsAnswer:
    """The models and generators that can be asked, and the limits of a request."""
    galleries = {name: await index.renewed() for name, index in service.indexes.items()}
    models = [
        answers.ModelAnswer(
            model=name,
            registered=gallery.card.registered,
            metric=gallery.card.metric,
            images=gallery.count("images"),
            sentences=gallery.count("sentences"),
            encoders=list(gallery.card.encoders),
            collection=gallery.collection,
            collection_id=gallery.collection_id,
            regions=gallery.searcher.multi_vector,
            columns=gallery.columns,
            examples=gallery.examples,
        )
        for name, gallery in galleries.items()
    ]
    generators = [
        answers.GeneratorAnswer(
            generator=name,
            registered=describer.registered,
            encoders=list(describer.generator.encoders),
            top=describer.top,
        )
        for name, describer in service.describers.items()
    ]
    keys = ("top", "max_top", "among", "max_sentence_chars", "max_upload_bytes")
    return answers.ModelsAnswer(
        models=models, generators=generators, **{key: getattr(service.limits, key) for key in keys}
    )


@router.get("/api/models/{model}/images")
async def find_images(question: Asking, sentence: Annotated[str, Query()]) -> answers.ImagesAnswer:
    """The photographs nearest to a sentence."""
    question.require_short(sentence)
    search = partial(question.gallery.images, sentence)
    return await question.find_images(question.service.searching, [sentence], search)


@router.get("/api/models/{model}/regions")
async def find_regions(question: Asking, snippet: Annotated[str, Query()]) -> answers.ImagesAnswer:
    """The regions nearest to some words, at most one a photograph, of a model that compares regions with words."""
    question.require_short(snippet)
    search = partial(question.gallery.searcher.regions, snippet)
    return await question.find_images(question.service.searching, [snippet], search)


@router.post("/api/models/{model}/sentences")
async def find_sentences(question: Asking, photograph: Uploaded) -> answers.SentencesAnswer:
    """The sentences nearest to a photograph: the file `photograph` of a form, or `image_id` and `of`."""
    gallery = question.gallery
    asked = gallery.see(photograph), question.top, question.where
    hits, seconds = await question.service.run(question.service.encoding, gallery.searcher.sentences, *asked)
    keys = ("sentence_id", "image_id", "text")
    results = [
        answers.SentenceAnswer(rank=hit.rank, score=hit.score, **{key: hit.row[key] for key in keys}) for hit in hits
    ]
    return answers.SentencesAnswer(model=question.model, seconds=seconds, results=results)


@router.post("/api/models/{model}/similar")
async def find_similar(
    question: Asking,
    photograph: Uploaded,
    sentence: Annotated[str | None, Form()] = None,
    weight: Annotated[float, Form(ge=0, le=1)] = 0.5,
) -> answers.ImagesAnswer:
    """The photographs nearest to a photograph, or to it and a sentence, which counts for `weight`."""
    words = [] if sentence is None else [sentence]
    question.require_short(*words)
    image = question.gallery.see(photograph)

    def search(top: int, where: str | None) -> Answer:
        return question.gallery.searcher.similar(image, top, sentence, weight, where)

    return await question.find_images(question.service.encoding, words, search)


@router.post("/api/models/{model}/arithmetic")
async def find_by_arithmetic(
    question: Asking,
    photograph: Uploaded,
    minus: Annotated[Sequence[str], Form()] = (),
    plus: Annotated[Sequence[str], Form()] = (),
) -> answers.ImagesAnswer:
    """The photographs nearest to a photograph less the words `minus` plus the words `plus`.

    The best of them are in the order of their distance to their mean, so that scores need not fall with rank.
    """
    words = [*minus, *plus]
    question.require_short(*words)
    image = question.gallery.see(photograph)
    among = question.service.limits.among

    def search(top: int, where: str | None) -> Answer:
        return question.gallery.searcher.analogy(image, minus, plus, top, among, where)

    return await question.find_images(question.service.encoding, words, search)


@router.post("/api/generators/{generator}/descriptions")
async def describe_photograph(
    service: Shared,
    generator: str,
    describer: Annotated[Describer, Depends(_describer)],
    top: GivenTop,
    photograph: Uploaded,
) -> answers.DescriptionsAnswer:
    """Sentences that a generator makes for a photograph."""
    if isinstance(photograph, OfGallery):
        photograph, _ = await service.run(service.showing, photograph.read)
    if service.turns.locked():
        raise HTTPException(503, "too many photos at once; try again in a second", {"Retry-After": "1"})
    async with service.turns:
        features, encoding = await service.run(service.encoding, describer.features, photograph)
        count = top or describer.top
        sentences, describing = await service.run(service.describing, describer.describe, features, count)
    results = [answers.DescriptionAnswer(rank=rank, **sentence) for rank, sentence in enumerate(sentences, 1)]
    return answers.DescriptionsAnswer(generator=generator, seconds=encoding + describing, results=results)


@router.get("/api/models/{model}/photographs")
async def list_photographs(question: Asking) -> answers.BrowseAnswer:
    """Some of the photographs, spread over all, to begin with; a greater `top` lists the same ones first."""
    service, model = question.service, question.model
    (count, rows), _ = await service.run(service.searching, question.gallery.browse, question.top, question.where)
    results = [answers.PhotographAnswer(**answers.describe_image(model, row, caption)) for row, caption in rows]
    return answers.BrowseAnswer(model=model, count=count, results=results)


@router.get("/api/models/{model}/columns")
async def list_columns(service: Shared, model: str, gallery: Asked) -> answers.ColumnsAnswer:
    """The columns that a condition can be about, and what they hold."""
    columns, _ = await service.run(service.searching, lambda: gallery.facets)
    offers = {name: answers.FacetAnswer(**offer) for name, offer in columns.items()}
    return answers.ColumnsAnswer(model=model, columns=offers)


class Pictured:
    """The image of an address, and the gallery that has it."""

    def __init__(
        self, service: Shared, model: str, gallery: Asked, image_id: Annotated[int, Path(ge=0, le=LARGEST_ID)]
    ) -> None:
        self.service = service
        self.model = model
        self.gallery = gallery
        self.image_id = image_id

    async def ask(self, method: Callable[[int], R]) -> R:
        """Return what a method of the gallery gives for the image. Answers 404 if there is no image to show."""
        try:
            return (await self.service.run(self.service.showing, method, self.image_id))[0]
        except InputError as error:
            raise HTTPException(404, str(error)) from error


OfImage = Annotated[Pictured, Depends()]


@router.get("/api/models/{model}/photographs/{image_id}", response_class=Response)
async def show_photograph(image: OfImage) -> Response:
    """A small JPEG of a photograph of the index, by its image_id."""
    return _jpeg(await image.ask(image.gallery.thumbnail))


@router.get("/api/models/{model}/photographs/{image_id}/large", response_class=Response)
async def show_large_photograph(image: OfImage) -> Response:
    """A large JPEG of it, of its pixels alone."""
    return _jpeg(await image.ask(image.gallery.large))


@router.get("/api/models/{model}/photographs/{image_id}/original", response_class=Response)
async def give_original(image: OfImage) -> Response:
    """Its file, with what a camera wrote into it, where `serve.originals` allows that."""
    if not image.service.originals:
        raise HTTPException(404, "this server shows no files as they are; ask for the large photo")
    data = await image.ask(image.gallery.original)
    kind = next((kind for start, mark, kind in SHOWN if data[start : start + len(mark)] == mark), None)
    headers = {"Cache-Control": "no-store"} | ({} if kind else {"Content-Disposition": "attachment"})
    return Response(data, media_type=kind or "application/octet-stream", headers=headers)


@router.get("/api/models/{model}/photographs/{image_id}/about")
async def describe_image(image: OfImage) -> answers.AboutAnswer:
    """What is known of it: its name, its own sentences and columns, and where it can be seen."""
    row = await image.ask(image.gallery.row)
    sentences = await image.ask(image.gallery.sentences_of)
    shown = answers.describe_image(image.model, row, next(iter(sentences), None))
    return answers.AboutAnswer(
        **shown,
        split=row["split"],
        sentences=sentences,
        large=f"{shown['photograph']}/large",
        original=f"{shown['photograph']}/original" if image.service.originals else None,
    )


def _jpeg(data: bytes) -> Response:
    return Response(data, media_type="image/jpeg", headers={"Cache-Control": f"private, max-age={KEPT_SECONDS}"})
