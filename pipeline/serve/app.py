"""The HTTP application: the search page, the routes of the API, and the middleware around both."""

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources

import faiss
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.middleware.trustedhost import TrustedHostMiddleware

from pipeline.errors import InputError, UsageError
from pipeline.serve.border import Border, Limits, Metrics
from pipeline.serve.gallery import Describer, ServedIndex, Service
from pipeline.serve.review import Review, build_router
from pipeline.serve.routes import router

SCRIPTS = ("state", "uploads", "results", "ask", "detail", "filters", "page")
"""Names, without `.js`, of the JavaScript files of the search page, in the order in which they are joined into one
script."""
REVIEW_SCRIPTS = ("state", "review")
"""Names, without `.js`, of the JavaScript files of the review page, in the order in which they are joined."""


def build_app(
    indexes: Mapping[str, ServedIndex],
    limits: Limits,
    threads: int,
    hosts: Sequence[str],
    check: Callable[[bytes], None],
    describers: Mapping[str, Describer] | None = None,
    warm: bool = False,
    originals: bool = False,
    review: Review | None = None,
) -> FastAPI:
    """Build the application that searches `indexes` and generates captions with `describers`, both mappings by name.

    `limits` are the limits of requests. `threads` is the maximum number of text queries that are searched at the same
    time. `warm` loads the encoders when the server starts, instead of at the first uploaded photo. `check` and
    `originals` are described in Service. With `review`, the application has the page /review, on which a person can
    decide about the captions that an audit has found. A request whose `Host` header is not one of `hosts` is refused
    with status 400 (see Starlette's TrustedHostMiddleware), unless `hosts` contains ANY_HOST.
    """
    # Starlette writes uploads of more than 1 MB to a temporary file, unless this limit is 0. The photos of visitors
    # must stay in memory. The class Border limits their size and number.
    MultiPartParser.spool_max_size = 0
    single = {"initializer": faiss.omp_set_num_threads, "initargs": (1,)}
    pools = {
        "searching": ThreadPoolExecutor(threads, "search", **single),
        "checking": ThreadPoolExecutor(1, "check"),
        "encoding": ThreadPoolExecutor(1, "encode", **single),
        "describing": ThreadPoolExecutor(1, "describe"),
        "showing": ThreadPoolExecutor(1, "show"),
    }
    turns = asyncio.Semaphore(limits.max_descriptions)
    service = Service(indexes, describers or {}, limits, Metrics(), check, originals, turns=turns, **pools)

    @asynccontextmanager
    async def lifespan(_: FastAPI):
        for index in indexes.values() if warm else ():
            service.encoding.submit(index.gallery.warm)
        yield
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)

    # FastAPI's documentation pages are turned off, because they load scripts from other servers.
    app = FastAPI(title="jointspace", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    app.include_router(router)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show_page() -> str:
        return read_page()

    pages = read_page()
    if review:
        review_page = read_page("review", REVIEW_SCRIPTS)
        app.include_router(build_router(review, review_page))
        pages += review_page
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    policy = {"Content-Security-Policy": content_policy(pages)}
    # The middleware that is added last is the outermost.
    app.add_middleware(Border, limits=limits, metrics=service.metrics, headers=policy)
    for kind in (InputError, UsageError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer_error)
    return app


async def _answer_error(_: Request, error: Exception) -> JSONResponse:
    """Turn an error into a JSON answer `{"error": message}`. The status is 422, except for an HTTPException, which has
    its own status."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return JSONResponse({"error": f"{first['loc'][-1]}: {first['msg']}"}, 422)
    return JSONResponse({"error": str(error)}, 422)


@cache
def read_page(name: str = "page", scripts: Sequence[str] = SCRIPTS) -> str:
    """Return the HTML of the template `name`, with the style of all pages (page.css) and the JavaScript of `scripts`.

    `name` and `scripts` are names of files in the folder `templates`, without the endings .html and .js.
    """
    folder = resources.files("pipeline.serve").joinpath("templates")

    def read(file: str) -> str:
        return folder.joinpath(file).read_text(encoding="utf-8")

    script = "".join(read(f"{script}.js") for script in scripts)
    page = read(f"{name}.html").replace("<style></style>", f"<style>\n{read('page.css')}</style>")
    return page.replace("<script></script>", f"<script>\n{script}</script>")


def content_policy(pages: str) -> str:
    """Return the Content-Security-Policy for `pages`, which is the HTML of one page or of several joined pages.

    The policy allows the scripts and styles that are in the pages, and identifies each of them by its hash. It also
    allows requests to this server, and images from this server, from `data:` addresses, and from files that the visitor
    chose. Everything else is forbidden.
    """

    def hashes(tag: str) -> str:
        texts = re.findall(f"<{tag}>(.*?)</{tag}>", pages, re.S)
        digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self';"
        " img-src 'self' data: blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
