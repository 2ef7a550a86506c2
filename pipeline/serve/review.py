"""The page on which a person decides about the suspicious captions of an audit. It is the only page that writes.

A request that writes is refused unless the page of this server sent it: the request must have the origin of the server,
and the token that the page contains. The server draws a new token whenever it starts, so a page that was opened before
must be reloaded.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from pipeline.errors import InputError
from pipeline.serve.gallery import ServedGallery, Service
from pipeline.storage.decisions import Decision, Pair, latest, read_decisions, write_decisions
from pipeline.storage.locks import hold

TOKEN = "X-Review-Token"
"""Name of the request header in which the page sends the token."""
TOKEN_PLACE = "{token}"
"""Text in the HTML of the page that is replaced by the token."""


class Step(BaseModel):
    """A request of the review page: a decision about the pair with the number `pair`, counted from 0, or `undo`.

    `undo` removes the last decision in the file of decisions, and ignores `pair`.
    """

    step: Literal["wrong", "right", "unsure", "undo"]
    pair: int = -1


@dataclass(frozen=True)
class ReviewedPair:
    """A photo with its suspicious `captions`, which are either a single caption or all captions of the photo.

    `image_id` is the id of the photo in the gallery, and `others` are the captions of the photo that are not
    suspicious. `pair` is the name of the photo and the suspicious caption, by which the file of decisions identifies
    the pair. This caption is empty if all captions are suspicious.
    """

    pair: Pair
    image_id: int
    captions: Sequence[str]
    others: Sequence[str]


@dataclass(frozen=True)
class Review:
    """The pairs of an audit, whose photos are in `gallery`, and the file of decisions at `path`.

    The captions of the first `probable` pairs are probably wrong. The remaining pairs are the pairs whose caption and
    photo fit each other worst among all other pairs of the collection. `command` is the command that leaves out the
    captions with the decision `wrong`. The page shows this command.
    """

    gallery: ServedGallery
    pairs: Sequence[ReviewedPair]
    probable: int
    path: Path
    command: str

    def decisions(self) -> list[str | None]:
        """Read the file of decisions, and return the last decision about each pair (`wrong`, `right` or `unsure`), or
        None for an undecided pair."""
        decided = latest(read_decisions(self.path))
        return [decided.get(each.pair) for each in self.pairs]

    def apply_step(self, step: Step) -> dict[str, Any]:
        """Add a decision to the file, or remove the last decision from it. The file is replaced atomically.

        Returns a mapping with two keys. `pair` is the number of the pair whose decision was added or removed, or None
        if the audit no longer lists this pair. `decisions` has the decisions about all pairs after the step. Raises
        InputError if there is no pair with this number, or no decision that can be undone.
        """
        with hold(self.path, wait=True):
            rows = read_decisions(self.path)
            if step.step == "undo" and not rows:
                raise InputError(f"There is no decision that can be undone, because {self.path} has no decisions.")
            row = rows.pop() if step.step == "undo" else Decision.now(self.pair(step.pair).pair, step.step)
            write_decisions(self.path, rows if step.step == "undo" else [*rows, row])
        numbers = {each.pair: number for number, each in enumerate(self.pairs)}
        return {"pair": numbers.get((row.image, row.caption)), "decisions": self.decisions()}

    def pair(self, number: int) -> ReviewedPair:
        """Return the pair with the number `number`, counted from 0. Raises InputError if there is no such pair."""
        if not 0 <= number < len(self.pairs):
            raise InputError(
                f"There is no pair {number}. The audit has {len(self.pairs)} pairs, which are numbered from 0. Open the"
                " page /review again."
            )
        return self.pairs[number]


def build_router(review: Review, page: str) -> APIRouter:
    """Build the routes of the review page and of its API. `page` is the HTML of the page, in which the new token
    replaces TOKEN_PLACE."""
    router = APIRouter(include_in_schema=False)
    token = secrets.token_urlsafe(32)

    @router.get("/review", response_class=HTMLResponse)
    async def show_page() -> str:
        return page.replace(TOKEN_PLACE, token)

    @router.get("/api/review")
    async def list_pairs() -> dict[str, Any]:
        pairs = [
            {"image": each.pair[0], "whole": not each.pair[1], "captions": each.captions, "others": each.others}
            for each in review.pairs
        ]
        decisions = await run_in_threadpool(review.decisions)
        settings = {"probable": review.probable, "file": str(review.path), "command": review.command}
        return {"pairs": pairs, "decisions": decisions, **settings}

    @router.get("/api/review/photographs/{number}", response_class=Response)
    async def show_photograph(request: Request, number: int) -> Response:
        service: Service = request.app.state.service
        try:
            data, _ = await service.run(service.showing, review.gallery.large, review.pair(number).image_id)
        except InputError as error:
            raise HTTPException(404, str(error)) from error
        return Response(data, media_type="image/jpeg")

    @router.post("/api/review/decisions")
    async def decide(request: Request, step: Step) -> dict[str, Any]:
        given = request.headers.get(TOKEN, "")
        if "Origin" not in request.headers or not secrets.compare_digest(given.encode(), token.encode()):
            raise HTTPException(
                403,
                "The decision was not saved, because the running server did not send this page. Open the page /review"
                " again, and repeat the decision.",
            )
        return await run_in_threadpool(review.apply_step, step)

    return router
