"""What the routes share: what can be asked, the threads that work, and what a request hands over, checked."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import Depends, File, Form, Path, Query, Request, UploadFile
from starlette.exceptions import HTTPException

from pipeline.errors import InputError
from pipeline.index.conditions import LONGEST
from pipeline.serve.border import Limits
from pipeline.serve.gallery import ServedGallery
from pipeline.serve.metrics import Metrics
from pipeline.serve.shelf import Shelf

if TYPE_CHECKING:
    from pipeline.generate.describing import Generator, Sources

WHERE = "only images of whose columns this is true, or their sentences: price < 20 and taken >= '2024-01-01'"
LARGEST_ID = 2**63 - 1


@dataclass(frozen=True)
class Describer:
    """The `generator` of the name `registered` and its `sources`; `top` sentences where a request names no number.

    `features(data)` encodes a photograph's bytes, by at least the generator's encoders; have it called by the thread
    that encodes, and `describe` by one thread at a time.
    """

    registered: str
    generator: "Generator"
    sources: "Sources"
    features: Callable[[bytes], Mapping[str, np.ndarray]]
    top: int

    def describe(self, features: Mapping[str, np.ndarray], top: int) -> list[Mapping[str, Any]]:
        """At most `top` sentences, best first, for the photograph that these features, encoder -> (1, dim), are of."""
        from pipeline.generate.describing import describe_images  # and torch, which searches do without

        return describe_images(self.generator, features, self.sources, top)[0]


@dataclass(frozen=True)
class Service:
    """The galleries and generators, and the threads that work for them, each kind with a queue of its own: searches;
    one thread that looks at `uploads`, one that encodes photographs, one that describes them, and one that shows those
    of the index, so that nobody's upload holds up the thumbnails."""

    shelf: Shelf
    describers: Mapping[str, Describer]
    limits: Limits
    metrics: Metrics
    check: Callable[[bytes], None]
    """Raises InputError for an upload that is no photograph, or too large a one."""
    originals: bool
    """Whether photographs are given as their files are, with what cameras wrote into them."""
    searching: ThreadPoolExecutor
    checking: ThreadPoolExecutor
    encoding: ThreadPoolExecutor
    describing: ThreadPoolExecutor
    showing: ThreadPoolExecutor
    turns: asyncio.Semaphore
    """Of photographs that are described or wait for it."""

    async def run(self, pool: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
        """What `function` returns in a thread of `pool`, and the seconds that it took there."""
        return await asyncio.get_running_loop().run_in_executor(pool, _timed, function, *arguments)


def require_sentence(sentence: str, limits: Limits) -> str:
    """`sentence`, if there is something in it, and not too much. Raises InputError."""
    if not sentence.strip():
        raise InputError("the sentence is empty; write some words")
    if len(sentence) > limits.max_sentence_chars:
        raise InputError(f"the sentence has {len(sentence)} characters; write at most {limits.max_sentence_chars}")
    return sentence


def _timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    return function(*arguments), time.perf_counter() - start


async def _service(request: Request) -> Service:
    return request.app.state.service


async def _gallery(service: Annotated[Service, Depends(_service)], model: Annotated[str, Path()]) -> ServedGallery:
    if model not in service.shelf.names:
        raise HTTPException(404, f"there is no model {model[:80]!r}; there are {', '.join(service.shelf.names)}")
    return await service.shelf.gallery(model)


async def _describer(service: Annotated[Service, Depends(_service)], generator: Annotated[str, Path()]) -> Describer:
    if generator not in service.describers:
        known = ", ".join(service.describers) or "none"
        raise HTTPException(404, f"there is no generator {generator[:80]!r}; there are {known}")
    return service.describers[generator]


async def _given_top(
    service: Annotated[Service, Depends(_service)], top: Annotated[int | None, Query()] = None
) -> int | None:
    if top is not None and not 1 <= top <= service.limits.max_top:
        raise InputError(f"top is {top}; give a number from 1 to {service.limits.max_top}")
    return top


async def _top(
    service: Annotated[Service, Depends(_service)], given: Annotated[int | None, Depends(_given_top)]
) -> int:
    return given or service.limits.top


async def _where(where: Annotated[str | None, Query(description=WHERE, max_length=LONGEST)] = None) -> str | None:
    return where


async def _photograph(
    service: Annotated[Service, Depends(_service)],
    photograph: Annotated[UploadFile | None, File(description="the file")] = None,
    image_id: Annotated[int | None, Form(ge=0, le=LARGEST_ID, description="an image of `of`, in place of it")] = None,
    of: Annotated[str | None, Form(description="the model whose index has the image")] = None,
) -> bytes:
    """An uploaded photograph, or one that an index has."""
    if (photograph is None) == (image_id is None) or (image_id is None) != (of is None):
        raise InputError("give a photograph, or the image_id of one and the model that has it as `of`")
    if photograph is None:
        return (await service.run(service.showing, (await _gallery(service, of)).original, image_id))[0]
    data = await photograph.read()
    if len(data) > service.limits.max_upload_bytes:
        raise HTTPException(413, f"the photograph has more than {service.limits.max_upload_bytes} bytes")
    await service.run(service.checking, service.check, data)
    return data


Shared = Annotated[Service, Depends(_service)]
Asked = Annotated[ServedGallery, Depends(_gallery)]
AskedDescriber = Annotated[Describer, Depends(_describer)]
GivenTop = Annotated[int | None, Depends(_given_top)]
Top = Annotated[int, Depends(_top)]
Where = Annotated[str | None, Depends(_where)]
Uploaded = Annotated[bytes, Depends(_photograph)]
