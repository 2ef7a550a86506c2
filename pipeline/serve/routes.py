"""Routes of the API: they check the parameters of a request, run the search, and build the answer."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Form, Path, Query, Request, UploadFile
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from pipeline.errors import InputError
from pipeline.index.calibration import explain_missing_line
from pipeline.index.conditions import MAX_CHARACTERS
from pipeline.index.search import Answer
from pipeline.serve import answers
from pipeline.serve.gallery import Describer, OfGallery, R, ServedGallery, Service

WHERE = (
    "condition on the columns of the photos, such as: price < 20 and taken >= '2024-01-01'."
    " Only photos that satisfy the condition, or their captions, are found."
)
LARGEST_ID = 2**63 - 1
CACHE_SECONDS = 60
"""Number of seconds for which a browser may show a thumbnail or large JPEG without requesting it again."""
DISPLAYED_FORMATS = (
    (0, b"\xff\xd8\xff", "image/jpeg"), (0, b"\x89PNG\r\n", "image/png"), (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"), (0, b"BM", "image/bmp"),
)  # fmt: skip
"""Image formats that every browser displays, as (offset in the file, bytes at this offset, media type). The server
marks original files of other formats for download."""
router = APIRouter(responses={status: {"model": answers.ErrorAnswer} for status in (404, 408, 413, 422, 503)})


async def _service(request: Request) -> Service:
    return request.app.state.service


Shared = Annotated[Service, Depends(_service)]


async def _gallery(service: Shared, model: Annotated[str, Path()]) -> ServedGallery:
    if model not in service.indexes:
        raise HTTPException(
            404,
            f"There is no model {model[:80]!r}. The models are: {', '.join(service.indexes)}. Use one of these names.",
        )
    return await service.indexes[model].renewed()


async def _describer(service: Shared, generator: Annotated[str, Path()]) -> Describer:
    if generator not in service.describers:
        names = ", ".join(service.describers) or "none"
        raise HTTPException(
            404, f"There is no generator {generator[:80]!r}. Use one of the generators of this server: {names}."
        )
    return service.describers[generator]


async def _given_top(service: Shared, top: Annotated[int | None, Query()] = None) -> int | None:
    if top is not None and not 1 <= top <= service.limits.max_top:
        raise InputError(
            f"The number of results, top, is {top}, but must be from 1 to {service.limits.max_top}. Change top."
        )
    return top


GivenTop = Annotated[int | None, Depends(_given_top)]


async def _photograph(
    service: Shared,
    photograph: Annotated[UploadFile | None, File(description="file of the photo")] = None,
    image_id: Annotated[
        int | None, Form(ge=0, le=LARGEST_ID, description="image_id of a photo of the index, instead of a file")
    ] = None,
    of: Annotated[str | None, Form(description="model whose index contains the photo `image_id`")] = None,
) -> bytes | OfGallery:
    """Return the bytes of an uploaded photo, or a reference to a photo of an index.

    Raises InputError unless the request has either a file, or an `image_id` together with `of`. Raises InputError also
    if the upload is not an image of an allowed size. Raises HTTPException with status 413 if the file of the upload is
    too large, and with status 404 if there is no model `of`.
    """
    if (photograph is None) == (image_id is None) or (image_id is None) != (of is None):
        raise InputError(
            "The request has no photo, or names a photo in two ways. Send a photo as `photograph`, or the `image_id`"
            " of a photo of an index together with its model as `of`."
        )
    if photograph is None:
        assert of is not None and image_id is not None  # The condition above checks both.
        return OfGallery(await _gallery(service, of), image_id)
    data = await photograph.read()
    if len(data) > service.limits.max_upload_bytes:
        raise HTTPException(
            413, f"The photo is larger than {service.limits.max_upload_bytes} bytes. Send a smaller photo."
        )
    await service.run(service.checking, service.check, data)
    return data


Asked = Annotated[ServedGallery, Depends(_gallery)]
Where = Annotated[str | None, Query(description=WHERE, max_length=MAX_CHARACTERS)]
Uploaded = Annotated[bytes | OfGallery, Depends(_photograph)]


class Question:
    """The common part of the requests for searches: the name of the `model` in the path, its `gallery`, the number of
    results `top`, and the condition `where` on the photos. FastAPI makes one object for each request.

    If the request has no `top`, the number of results is the default of the server. A request for an unknown model is
    refused with status 404.
    """

    def __init__(self, service: Shared, model: str, gallery: Asked, top: GivenTop, where: Where = None) -> None:
        self.service = service
        self.model = model
        self.gallery = gallery
        self.top = top or service.limits.top
        self.where = where

    def require_short(self, *texts: str) -> None:
        """Raise InputError if all texts of a request together have more characters than `Limits.max_sentence_chars`. A
        space is counted between two texts."""
        most = self.service.limits.max_sentence_chars
        characters = sum(map(len, texts)) + len(texts[1:])
        if characters > most:
            raise InputError(f"The text of this query has {characters} characters. Write at most {most}.")

    async def find_images(
        self, pool: Executor, words: Sequence[str], search: Callable[[int, str | None], Answer]
    ) -> answers.ImagesAnswer:
        """Call `search(top, where)` in a thread of `pool`, and return its hits as an answer of the API.

        `words` are the texts of the request. If the text search has found none of the hits, the answer also names the
        unknown words of these texts, which the search has ignored.
        """

        def find() -> tuple[Answer, Mapping[str, str | None], list[str | None]]:
            hits = search(self.top, self.where)
            _ = hits.judgement  # The judgement is computed in this thread, so that the event loop does not wait.
            captions = self.gallery.captions([hit.row["image_id"] for hit in hits])
            return hits, {} if hits.matched else self.gallery.searcher.ignored(*words), captions

        (hits, ignored, captions), seconds = await self.service.run(pool, find)
        return answers.list_images(self.model, hits, ignored, captions, seconds)


Asking = Annotated[Question, Depends()]


@router.get("/api/health")
async def health(service: Shared) -> dict[str, Any]:
    """Return the status `ok` and the names of the models, also while the server refuses other requests because it has
    too many."""
    return {"status": "ok", "models": list(service.indexes)}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Shared) -> Response:
    """Return the numbers of requests and errors, and the latencies in seconds, in the text format of Prometheus."""
    return Response(service.metrics.to_text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/api/models")
async def list_models(service: Shared) -> answers.ModelsAnswer:
    """List the models and generators of this server, and the limits of requests."""
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
async def find_images(
    question: Asking,
    sentence: Annotated[str, Query()],
    match_text: Annotated[bool, Query(description="also find the words in captions, file names and columns")] = True,
    minus: Annotated[Sequence[str], Query(description="words whose vectors are subtracted from the query")] = (),
    sort: Annotated[str | None, Query(description="column that sorts the likely matches; a minus reverses")] = None,
) -> answers.ImagesAnswer:
    """Find the photos that match the text `sentence` best.

    Without `sort`, the best match comes first. With `sort`, the likely matches are sorted by the values of a column:
    dates with the newest first, and other values in ascending order. A minus before the name of the column reverses the
    order. If the index has no line between likely matches and others, `remark` says why, and `sort` sorts the `top`
    best matches, or all matches if each of them has all words of the text.
    """
    question.require_short(sentence, *minus)
    search = partial(question.gallery.images, sentence, match_text=match_text, minus=minus, sort=sort)
    answer = await question.find_images(question.service.searching, [sentence, *minus], search)
    return answer.model_copy(update={"remark": answer.remark or explain_missing_line(question.gallery.searcher.index)})


@router.get("/api/models/{model}/regions")
async def find_regions(question: Asking, snippet: Annotated[str, Query()]) -> answers.ImagesAnswer:
    """Find the regions of photos that match the text `snippet` best, at most one region per photo.

    The request is refused with status 422 unless the model compares regions with words (`regions` in /api/models).
    """
    question.require_short(snippet)
    search = partial(question.gallery.searcher.regions, snippet)
    return await question.find_images(question.service.searching, [snippet], search)


@router.post("/api/models/{model}/sentences")
async def find_sentences(question: Asking, photograph: Uploaded) -> answers.SentencesAnswer:
    """Find the captions that match a photo best. The request is refused if the index of the model has no captions.

    The photo is an uploaded file (form field `photograph`) or a photo of an index (`image_id` and `of`).
    """
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
    """Find the photos that are most similar to a photo, or to the weighted sum of a photo and the text `sentence`.

    The photo is an uploaded file (form field `photograph`) or a photo of an index (`image_id` and `of`). `weight` is
    the weight of the text, from 0 to 1. The weight of the photo is 1 - `weight`. A text is refused if the model has
    several vectors per photo or compares by the Euclidean distance.
    """
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
    """Find the photos nearest to the vector of a photo, minus the vectors of the texts in `minus`, plus the vectors of
    the texts in `plus`.

    The first `among` results (see /api/models) are sorted again: the mean of their vectors is computed, and the results
    whose vectors are nearest to the mean come first. The scores of these results may therefore increase with the rank.
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
    """Generate captions for a photo, which is an uploaded file (`photograph`) or a photo of an index (`image_id` and
    `of`).

    The request is refused with status 503 if too many photos are being captioned or wait to be captioned.
    """
    if isinstance(photograph, OfGallery):
        photograph, _ = await service.run(service.showing, photograph.read)
    if service.turns.locked():
        raise HTTPException(
            503, "The server is captioning too many photos already. Try again in a second.", {"Retry-After": "1"}
        )
    async with service.turns:
        features, encoding = await service.run(service.encoding, describer.features, photograph)
        count = top or describer.top
        sentences, describing = await service.run(service.describing, describer.generate_captions, features, count)
    results = [answers.DescriptionAnswer(rank=rank, **sentence) for rank, sentence in enumerate(sentences, 1)]
    return answers.DescriptionsAnswer(generator=generator, seconds=encoding + describing, results=results)


@router.get("/api/models/{model}/photographs")
async def list_photographs(question: Asking) -> answers.BrowseAnswer:
    """List a sample of `top` photos, spread over the photos that satisfy the condition `where`, and count these photos.

    The sample for a larger `top` begins with the same photos.
    """
    service = question.service
    model = question.model
    (count, rows), _ = await service.run(service.searching, question.gallery.browse, question.top, question.where)
    results = [answers.PhotographAnswer(**answers.describe_image(model, row, caption)) for row, caption in rows]
    return answers.BrowseAnswer(model=model, count=count, results=results)


@router.get("/api/models/{model}/columns")
async def list_columns(service: Shared, model: str, gallery: Asked) -> answers.ColumnsAnswer:
    """List the columns that a condition can use, with the values of texts and truth values, or the smallest and largest
    value of numbers and dates. Columns without values, columns whose values have no order, and columns whose smallest
    or largest number is infinite or NaN are left out."""
    columns, _ = await service.run(service.searching, lambda: gallery.facets)
    offers = {name: answers.FacetAnswer(**offer) for name, offer in columns.items()}
    return answers.ColumnsAnswer(model=model, columns=offers)


class Pictured:
    """The image whose `image_id` is in the path of a request, and the gallery of the model in the path."""

    def __init__(
        self, service: Shared, model: str, gallery: Asked, image_id: Annotated[int, Path(ge=0, le=LARGEST_ID)]
    ) -> None:
        self.service = service
        self.model = model
        self.gallery = gallery
        self.image_id = image_id

    async def ask(self, method: Callable[[int], R]) -> R:
        """Call a method of the gallery with the image_id in the thread that reads photos, and return its result.

        Raises HTTPException with status 404 if the method raises InputError, because the image is missing or cannot be
        read.
        """
        try:
            return (await self.service.run(self.service.showing, method, self.image_id))[0]
        except InputError as error:
            raise HTTPException(404, str(error)) from error


OfImage = Annotated[Pictured, Depends()]


@router.get("/api/models/{model}/photographs/{image_id}", response_class=Response)
async def show_photograph(image: OfImage) -> Response:
    """Return a thumbnail (JPEG) of a photo, without the metadata of its file. The answer has status 404 if the photo is
    not in the index, if its file cannot be read or decoded, or if the file has changed since the photo was indexed."""
    return _jpeg(await image.ask(image.gallery.thumbnail))


@router.get("/api/models/{model}/photographs/{image_id}/large", response_class=Response)
async def show_large_photograph(image: OfImage) -> Response:
    """Return a large JPEG of a photo, without the metadata of its file. The answer has status 404 if the photo is not
    in the index, if its file cannot be read or decoded, or if the file has changed since the photo was indexed."""
    return _jpeg(await image.ask(image.gallery.large))


@router.get("/api/models/{model}/photographs/{image_id}/original", response_class=Response)
async def give_original(image: OfImage) -> Response:
    """Return the original file of a photo, with its metadata. The answer has status 404 if the setting
    `serve.originals` does not allow original files, if the photo is not in the index, or if its file cannot be read or
    has changed."""
    if not image.service.originals:
        raise HTTPException(
            404, "This server does not serve original files. Request the large JPEG of the photo instead."
        )
    data = await image.ask(image.gallery.original)
    kind = next((kind for start, mark, kind in DISPLAYED_FORMATS if data[start : start + len(mark)] == mark), None)
    headers = {"Cache-Control": "no-store"} | ({} if kind else {"Content-Disposition": "attachment"})
    return Response(data, media_type=kind or "application/octet-stream", headers=headers)


@router.get("/api/models/{model}/photographs/{image_id}/about")
async def describe_image(image: OfImage) -> answers.AboutAnswer:
    """Return the name, the split, the captions and the columns of a photo, and the addresses of its images on this
    server. The answer has status 404 if the photo is not in the index or was removed from it."""
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
    return Response(data, media_type="image/jpeg", headers={"Cache-Control": f"private, max-age={CACHE_SECONDS}"})
