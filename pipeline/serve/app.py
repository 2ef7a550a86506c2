"""The HTTP application: which address asks what. /openapi.json describes it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any

import faiss
from fastapi import APIRouter, FastAPI, Form, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from pipeline.errors import InputError, UsageError
from pipeline.index.search import Hit
from pipeline.serve import answers, photographs
from pipeline.serve.border import Border, Limits
from pipeline.serve.gallery import ServedGallery
from pipeline.serve.metrics import Metrics
from pipeline.serve.page import content_policy, read_page
from pipeline.serve.service import (
    Asked,
    AskedDescriber,
    Describer,
    GivenTop,
    Service,
    Shared,
    Top,
    Uploaded,
    Where,
    require_sentence,
)
from pipeline.serve.shelf import Shelf, never

router = APIRouter(responses={status: {"model": answers.ErrorAnswer} for status in (404, 408, 413, 422, 503)})


@router.get("/api/health")
async def health(service: Shared) -> dict[str, Any]:
    """Whether the server answers, and for which models."""
    return {"status": "ok", "models": list(service.shelf.names)}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Shared) -> Response:
    """Requests, errors and latencies, in Prometheus's text format."""
    return Response(service.metrics.to_text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/api/models")
async def list_models(service: Shared) -> answers.ModelsAnswer:
    """The models and generators that can be asked, and the limits of a request."""
    galleries = {name: await service.shelf.gallery(name) for name in service.shelf.names}
    measuring = (service.run(service.searching, getattr, gallery, "scale") for gallery in galleries.values())
    scales = [scale for scale, _ in await asyncio.gather(*measuring)]
    models = [
        answers.ModelAnswer(
            model=name,
            registered=gallery.card["registered"],
            metric=gallery.card["metric"],
            images=gallery.count("images"),
            sentences=gallery.count("sentences"),
            encoders=list(gallery.card["encoders"]),
            collection=gallery.collection,
            collection_id=gallery.card["inputs"].get("manifest", str(gallery.bundle.folder)),
            regions=gallery.has_regions,
            scale=scale,
            columns=gallery.columns,
            examples=gallery.examples,
        )
        for (name, gallery), scale in zip(galleries.items(), scales, strict=True)
    ]
    generators = [
        answers.GeneratorAnswer(generator=name, registered=one.registered, encoders=one.generator.encoders, top=one.top)
        for name, one in service.describers.items()
    ]
    keys = ("top", "max_top", "among", "max_sentence_chars", "max_upload_bytes")
    return answers.ModelsAnswer(
        models=models, generators=generators, **{key: getattr(service.limits, key) for key in keys}
    )


@router.get("/api/models/{model}/images")
async def find_images(
    service: Shared, model: str, gallery: Asked, top: Top, where: Where, sentence: Annotated[str, Query()]
) -> answers.ImagesAnswer:
    """The photographs nearest to a sentence."""
    require_sentence(sentence, service.limits)
    return answers.list_images(
        model, *await service.run(service.searching, _find, gallery, gallery.images, sentence, top, where)
    )


@router.get("/api/models/{model}/regions")
async def find_regions(
    service: Shared, model: str, gallery: Asked, top: Top, where: Where, snippet: Annotated[str, Query()]
) -> answers.ImagesAnswer:
    """The regions nearest to some words, at most one a photograph, of a model that compares regions with words."""
    require_sentence(snippet, service.limits)
    return answers.list_images(
        model, *await service.run(service.searching, _find, gallery, gallery.regions, snippet, top, where)
    )


def _find(
    gallery: ServedGallery, search: Callable[[str, int, str | None], list[Hit]], words: str, top: int, where: str | None
) -> answers.Found:
    hits = search(words, top, where)
    return answers.Found(hits, gallery.ignored(words), gallery.captions(hits))


@router.post("/api/models/{model}/sentences")
async def find_sentences(
    service: Shared, model: str, gallery: Asked, top: Top, where: Where, photograph: Uploaded
) -> answers.SentencesAnswer:
    """The sentences nearest to a photograph: the file `photograph` of a form, or `image_id` and `of`."""
    return answers.list_sentences(
        model, *await service.run(service.encoding, gallery.sentences, photograph, top, where)
    )


@router.post("/api/models/{model}/similar")
async def find_similar(
    service: Shared,
    model: str,
    gallery: Asked,
    top: Top,
    where: Where,
    photograph: Uploaded,
    sentence: Annotated[str | None, Form()] = None,
    weight: Annotated[float, Form(ge=0, le=1)] = 0.5,
) -> answers.ImagesAnswer:
    """The photographs nearest to a photograph, or to it and a sentence, which counts for `weight`."""
    if sentence is not None:
        require_sentence(sentence, service.limits)

    def find() -> answers.Found:
        hits = gallery.similar(photograph, top, sentence, weight, where)
        return answers.Found(hits, {} if sentence is None else gallery.ignored(sentence), gallery.captions(hits))

    return answers.list_images(model, *await service.run(service.encoding, find))


@router.post("/api/models/{model}/arithmetic")
async def find_by_arithmetic(
    service: Shared,
    model: str,
    gallery: Asked,
    top: Top,
    where: Where,
    photograph: Uploaded,
    minus: Annotated[Sequence[str], Form()] = (),
    plus: Annotated[Sequence[str], Form()] = (),
) -> answers.ImagesAnswer:
    """The photographs nearest to a photograph less the words `minus` plus the words `plus`.

    The best of them are in the order of their distance to their mean, so that scores need not fall with rank.
    """
    words = [[require_sentence(word, service.limits) for word in given] for given in (minus, plus)]

    def find() -> answers.Found:
        hits = gallery.analogy(photograph, *words, top, service.limits.among, where)
        return answers.Found(hits, gallery.ignored(*minus, *plus), gallery.captions(hits))

    return answers.list_images(model, *await service.run(service.encoding, find))


@router.post("/api/generators/{generator}/descriptions")
async def describe_photograph(
    service: Shared, generator: str, describer: AskedDescriber, top: GivenTop, photograph: Uploaded
) -> answers.DescriptionsAnswer:
    """Sentences that a generator makes for a photograph."""
    if service.turns.locked():
        raise HTTPException(503, "too many photographs at once; try again in a second", {"Retry-After": "1"})
    async with service.turns:
        features, encoding = await service.run(service.encoding, describer.features, photograph)
        arguments = (features, top or describer.top)
        sentences, describing = await service.run(service.describing, describer.describe, *arguments)
    return answers.list_descriptions(generator, sentences, encoding + describing)


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
async def show_page() -> str:
    return read_page()


def build_app(
    galleries: Mapping[str, ServedGallery],
    limits: Limits,
    threads: int,
    hosts: Sequence[str],
    check: Callable[[bytes], None],
    describers: Mapping[str, Describer] | None = None,
    renew: Callable[[str], ServedGallery | None] = never,
    warm: bool = False,
    originals: bool = False,
) -> FastAPI:
    """The application over `galleries` and `describers`, by their names, with `threads` searches at a time; `renew` as
    in pipeline.serve.shelf. With `warm`, encoders are loaded at once; `check` and `originals` as in Service.

    It answers only where a browser believes to speak with one of `hosts`, as Starlette's TrustedHostMiddleware has it.
    """
    single = {"initializer": faiss.omp_set_num_threads, "initargs": (1,)}
    pools = {
        "searching": ThreadPoolExecutor(threads, "search", **single),
        "checking": ThreadPoolExecutor(1, "check"),
        "encoding": ThreadPoolExecutor(1, "encode", **single),
        "describing": ThreadPoolExecutor(1, "describe"),
        "showing": ThreadPoolExecutor(1, "show"),
    }
    service = Service(
        Shelf(galleries, renew),
        describers or {},
        limits,
        Metrics(),
        check,
        originals,
        turns=asyncio.Semaphore(limits.max_descriptions),
        **pools,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI):
        for gallery in galleries.values() if warm else ():
            service.encoding.submit(gallery.warm)
        yield
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)

    app = FastAPI(title="jointspace", docs_url=None, redoc_url=None, lifespan=lifespan)  # both load from elsewhere
    app.state.service = service
    app.include_router(router)
    app.include_router(photographs.router)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    policy = {"Content-Security-Policy": content_policy(read_page())}
    app.add_middleware(Border, limits=limits, metrics=service.metrics, headers=policy)  # the last is the outermost
    for kind, status in ((InputError, 422), (UsageError, 422), (RequestValidationError, 422), (HTTPException, None)):
        app.add_exception_handler(kind, _error_handler(status))
    return app


def _error_handler(status: int | None) -> Callable[[Request, Exception], Any]:
    """The handler that answers an error of `status`, or of its own, in one sentence."""

    async def handler(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError):
            first = error.errors()[0]
            message = f"{first['loc'][-1]}: {first['msg']}"
        else:
            message = error.detail if isinstance(error, HTTPException) else str(error)
        headers = getattr(error, "headers", None)
        return JSONResponse({"error": message}, status or error.status_code, headers)

    return handler
