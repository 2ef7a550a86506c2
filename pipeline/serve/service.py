"""What the routes share: what can be asked, the threads that work, and what a request hands over, checked."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, File, Path, Query, Request, UploadFile
from starlette.exceptions import HTTPException

from pipeline.errors import InputError
from pipeline.serve.describer import Describer
from pipeline.serve.gallery import ServedGallery
from pipeline.serve.limits import Limits
from pipeline.serve.metrics import Metrics
from pipeline.serve.shelf import Shelf
from pipeline.serve.turns import Turns


@dataclass(frozen=True)
class Service:
    """Each search has one thread; photographs are decoded by one, and described by another, one after the other."""

    shelf: Shelf
    describers: Mapping[str, Describer]
    limits: Limits
    metrics: Metrics
    searching: ThreadPoolExecutor
    decoding: ThreadPoolExecutor
    describing: ThreadPoolExecutor
    turns: Turns

    async def run(self, pool: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
        """What `function` returns in a thread of `pool`, and the seconds that it took there."""
        return await asyncio.get_running_loop().run_in_executor(pool, _timed, function, *arguments)


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


async def _photograph(
    service: Annotated[Service, Depends(_service)], photograph: Annotated[UploadFile, File()]
) -> bytes:
    data = await photograph.read()
    if len(data) > service.limits.max_upload_bytes:
        raise HTTPException(413, f"the photograph has more than {service.limits.max_upload_bytes} bytes")
    return data


Shared = Annotated[Service, Depends(_service)]
Asked = Annotated[ServedGallery, Depends(_gallery)]
AskedDescriber = Annotated[Describer, Depends(_describer)]
GivenTop = Annotated[int | None, Depends(_given_top)]
Top = Annotated[int, Depends(_top)]
Uploaded = Annotated[bytes, Depends(_photograph)]
