"""The routes about the photographs of an index: what they are, what is known of them, and their pixels."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from pipeline.errors import InputError
from pipeline.serve import answers
from pipeline.serve.service import LARGEST_ID, Asked, Shared, Top, Where

KEPT_SECONDS = 60
"""For which a browser may show a photograph without asking again, whether it is still there."""
SHOWN = (
    (0, b"\xff\xd8\xff", "image/jpeg"), (0, b"\x89PNG\r\n", "image/png"), (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"), (0, b"BM", "image/bmp"),
)  # fmt: skip
"""Where which bytes stand in the formats that every browser shows; others are saved."""
router = APIRouter(responses={status: {"model": answers.ErrorAnswer} for status in (404, 408, 413, 422, 503)})


class Pictured:
    """The image of an address, and the gallery that has it."""

    def __init__(
        self, service: Shared, model: str, gallery: Asked, image_id: Annotated[int, Path(ge=0, le=LARGEST_ID)]
    ) -> None:
        self.service, self.model, self.gallery, self.image_id = service, model, gallery, image_id

    async def ask(self, name: str) -> Any:
        """What the gallery's method `name` gives for the image; 404 where there is none to be shown."""
        try:
            return (await self.service.run(self.service.showing, getattr(self.gallery, name), self.image_id))[0]
        except InputError as error:
            raise HTTPException(404, str(error)) from error


OfImage = Annotated[Pictured, Depends()]


@router.get("/api/models/{model}/photographs")
async def list_photographs(service: Shared, model: str, gallery: Asked, top: Top, where: Where) -> answers.BrowseAnswer:
    """Some of the photographs, spread over all, to begin with; a greater `top` lists the same ones first."""
    (count, found), _ = await service.run(service.searching, gallery.browse, top, where)
    results = [answers.PhotographAnswer(**answers.describe_image(model, row, caption)) for row, caption in found]
    return answers.BrowseAnswer(model=model, count=count, results=results)


@router.get("/api/models/{model}/columns")
async def list_columns(service: Shared, model: str, gallery: Asked) -> answers.ColumnsAnswer:
    """The columns that a condition can be about, and what they hold."""
    columns, _ = await service.run(service.searching, gallery.facets)
    return answers.ColumnsAnswer(model=model, columns=columns)


@router.get("/api/models/{model}/photographs/{image_id}", response_class=Response)
async def show_photograph(asked: OfImage) -> Response:
    """A small JPEG of a photograph of the bundle, by its image_id."""
    return _jpeg(await asked.ask("thumbnail"))


@router.get("/api/models/{model}/photographs/{image_id}/large", response_class=Response)
async def show_large_photograph(asked: OfImage) -> Response:
    """A large JPEG of it, of its pixels alone."""
    return _jpeg(await asked.ask("large"))


@router.get("/api/models/{model}/photographs/{image_id}/original", response_class=Response)
async def give_original(asked: OfImage) -> Response:
    """Its file, with what a camera wrote into it, where `serve.originals` allows that."""
    if not asked.service.originals:
        raise HTTPException(404, "this server shows no files as they are; ask for the large photograph")
    data = await asked.ask("original")
    kind = next((kind for start, mark, kind in SHOWN if data[start : start + len(mark)] == mark), None)
    headers = {"Cache-Control": "no-store"} | ({} if kind else {"Content-Disposition": "attachment"})
    return Response(data, media_type=kind or "application/octet-stream", headers=headers)


@router.get("/api/models/{model}/photographs/{image_id}/about")
async def describe_image(asked: OfImage) -> answers.AboutAnswer:
    """What is known of it: its name, its own sentences and columns, and where it can be seen."""
    row, sentences = await asked.ask("row"), await asked.ask("sentences_of")
    known = answers.describe_image(asked.model, row, next(iter(sentences), None))
    return answers.AboutAnswer(
        **known,
        split=row["split"],
        sentences=sentences,
        large=f"{known['photograph']}/large",
        original=f"{known['photograph']}/original" if asked.service.originals else None,
    )


def _jpeg(data: bytes) -> Response:
    return Response(data, media_type="image/jpeg", headers={"Cache-Control": f"private, max-age={KEPT_SECONDS}"})
