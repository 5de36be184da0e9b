"""The HTTP interface of the review page: small JSON messages, and images by number.

GET reads; everything that changes something, leases included, is a POST. Messages of errors are shown as they are.
"""

from __future__ import annotations

import asyncio
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from tagspread.errors import TagspreadError
from tagspread.review.answers import StoreError, YesNo
from tagspread.review.images import DECODERS, Size, Unavailable, preview
from tagspread.review.session import LEASE_SECONDS, Given, Review, Side, Status

ASSETS = {
    "style.css": "text/css", "page.js": "text/javascript", "outbox.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}  # fmt: skip
NO_STORE = {"cache-control": "no-store"}
IMAGE_HEADERS = {"cache-control": "private, max-age=3600"}

Name = Annotated[str, Field(min_length=1, max_length=100)]
Identifier = Annotated[str, Field(pattern=r"^[0-9a-zA-Z-]{8,64}$")]


class FromPage(BaseModel):
    """Every message: which page sent it, and who works with it."""

    page: Identifier
    who: Name


class Next(FromPage):
    """Ask for the next images."""

    count: int = 1
    status: Status = "open"
    tag: str | None = None
    folder: str | None = None
    keep: list[int] = []


class Grid(FromPage):
    """Ask for images of a tag."""

    count: int
    tag: str
    side: Side
    folder: str | None = None


class OneAnswer(BaseModel):
    """One answer."""

    image: int
    tag: str
    answer: YesNo


class Answers(FromPage):
    """The answers of a step."""

    batch: Identifier
    answers: Annotated[list[OneAnswer], Field(max_length=10_000)] = []
    visited: Annotated[list[int], Field(max_length=1000)] = []
    seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    grid: bool = False


class Undo(FromPage):
    """Undo the last step, or a certain one."""

    batch: Identifier | None = None


class NewTag(FromPage):
    """Add a tag."""

    name: str


class Holding(FromPage):
    """Keep the leases of some images."""

    images: list[int] = []


def make_app(review: Review, user: str) -> FastAPI:
    """Return the application.

    Args:
        review: the state of the review.
        user: name of the person, unless the page gives another.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    page = resources.files("tagspread.review") / "page"

    @app.exception_handler(TagspreadError)
    def refuse(_: Request, error: TagspreadError) -> JSONResponse:
        # 507: the disk is full or the file cannot be written; the page keeps the answers and sends them again
        status = 507 if isinstance(error, StoreError) else 404 if isinstance(error, Unavailable) else 400
        return JSONResponse({"message": str(error)}, status, NO_STORE)

    @app.exception_handler(RequestValidationError)
    def not_valid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return JSONResponse({"message": f"The request is not valid: {where}: {first['msg']}."}, 422, NO_STORE)

    def asset(name: str, kind: str) -> Response:
        return Response((page / name).read_bytes(), media_type=kind, headers=NO_STORE)

    def reply(values: Any) -> JSONResponse:
        return JSONResponse(values, headers=NO_STORE)

    @app.get("/")
    def index() -> Response:
        return asset("index.html", "text/html")

    @app.get("/assets/{name}")
    def assets(name: str) -> Response:
        return asset(name, ASSETS[name]) if name in ASSETS else Response(status_code=404)

    @app.get("/image/{number}/{size}")
    async def image(number: int, size: Size) -> Response:
        path, digest = review.file(number)
        content = await asyncio.get_running_loop().run_in_executor(DECODERS, preview, path, digest, size)
        return Response(content, media_type="image/jpeg", headers=IMAGE_HEADERS)

    @app.get("/api/overview")
    def overview() -> Response:
        return reply(review.overview() | {"user": user, "lease_seconds": LEASE_SECONDS})

    @app.get("/api/progress")
    def progress() -> Response:
        return reply(review.progress())

    @app.get("/api/item/{number}")
    def item(number: int) -> Response:
        return reply(review.item(number))

    @app.get("/api/examples")
    def examples(tag: str) -> Response:
        return reply({"images": review.examples(tag)})

    @app.post("/api/next")
    def next_images(given: Next) -> Response:
        filters: dict[str, Any] = {"status": given.status, "tag": given.tag, "folder": given.folder}
        found = review.next(given.page, given.count, keep=given.keep, **filters)
        return reply({"items": found, "progress": review.progress()})

    @app.post("/api/grid")
    def grid(given: Grid) -> Response:
        return reply({"items": review.grid(given.page, given.count, given.tag, given.side, folder=given.folder)})

    @app.post("/api/answers")
    def answers(given: Answers) -> Response:
        new = review.record(
            given.who,
            given.batch,
            [Given(one.image, one.tag, one.answer) for one in given.answers],
            given.visited,
            seconds=given.seconds,
            grid=given.grid,
        )
        conflicts = [review.item(k) for k in {one.image for one in given.answers}] if not given.grid else []
        return reply({"new": new, "items": conflicts, "progress": review.progress()})

    @app.post("/api/undo")
    def undo(given: Undo) -> Response:
        undone = review.undo(given.who, given.batch)
        items = [review.item(k) for k in undone["images"]]
        return reply({**undone, "items": items, "progress": review.progress()})

    @app.post("/api/tags")
    def add_tag(given: NewTag) -> Response:
        return reply({"tags": review.add_tag(given.name, given.who)})

    @app.post("/api/hold")
    def hold(given: Holding) -> Response:
        review.renew(given.page, given.images)
        return reply({})

    @app.post("/api/release")
    def release(given: Holding) -> Response:
        review.release(given.page)
        return reply({})

    return app
