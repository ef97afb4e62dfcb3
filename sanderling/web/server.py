"""The server of `sanderling serve`: addresses, answers, and its life."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from ..errors import InputError, MissingExtraError, SanderlingError
from ..progress import progress
from . import job_screens, model_screens, screens
from .guard import App, Guard
from .jobs import Jobs
from .layout import Page, whole_page
from .markup import paragraph
from .pictures import allowed_folders
from .record_index import RecordIndex
from .screens import Site

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

HOST = "127.0.0.1"
STATIC = Path(__file__).parent / "static"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
TICK = 0.25  # seconds between looks at a job
FORM = "application/x-www-form-urlencoded"


def new_token() -> str:
    return secrets.token_urlsafe(18)


def make_site(
    folder: str | os.PathLike[str],
    token: str,
    run: bool = False,
    pictures: Sequence[str | os.PathLike[str]] = (),
    is_kept: bool = True,
) -> Site:
    """The folder's records, indexed. is_kept: the index is kept in the cache."""
    place = _folder(folder)
    more = [_folder(p) for p in pictures]
    index = RecordIndex(place, is_kept)
    with progress() as show:
        index.refresh(show)
    jobs = Jobs(place) if run else None
    return Site(place, index, f"/{token}", jobs, allowed_folders(place, more))


def _folder(given: str | os.PathLike[str]) -> Path:
    path = Path(given)
    if not path.is_dir():
        what = "it is not a folder" if path.exists() else "there is no such folder"
        raise InputError(what, where=str(path), fix="give a folder that holds records")
    return path.resolve()


# -- the application ------------------------------------------------------------------------------


def make_app(site: Site, token: str) -> App:
    """The application, with its guard before it."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Mount, Route
    except ImportError as error:
        raise MissingExtraError("starlette", "serve", "sanderling serve") from error

    pages: dict[str, Callable[[Request], Page]] = {
        "/": lambda r: screens.records(site, r.query_params),
        "/record/{number:int}": lambda r: screens.record(site, r.path_params["number"]),
        "/models": lambda r: model_screens.models(site),
        "/model": lambda r: model_screens.model(site, r.query_params),
        "/history": lambda r: model_screens.history(site, r.query_params),
        "/traces": lambda r: screens.traces(site),
        "/jobs": lambda r: job_screens.jobs(site),
        "/jobs/{number:int}": lambda r: job_screens.job(site, r.path_params["number"]),
    }
    routes = [Route(path, partial(_page, site, make)) for path, make in pages.items()]
    routes += [
        Route("/static/{name}", _static),
        Route("/file", partial(_file, site)),
        Route("/picture/{number:int}/{place:int}", partial(_picture, site)),
        Route("/jobs/{number:int}/events", partial(_events, site)),
        Route("/jobs/start/{verb}", partial(_start, site), methods=["POST"]),
        Route("/jobs/{number:int}/cancel", partial(_cancel, site), methods=["POST"]),
        Route("/{rest:path}", partial(_page, site, _lost)),
    ]
    return Guard(Starlette(routes=[Mount(f"/{token}", routes=routes)]), token)


def _lost(request: Request) -> Page:
    raise InputError("there is no such page", fix="take one of the links above")


def _page(site: Site, make: Callable[[Request], Page], request: Request) -> Response:
    """A page; whatever goes wrong on the way is a page too."""
    site.index.refresh()
    try:
        page = make(request)
    except SanderlingError as error:
        page = _problem(error)
    return _html(site, page)


def _problem(error: SanderlingError) -> Page:
    said = [paragraph(line.strip(), class_="problem") for line in str(error).splitlines()]
    return Page("This cannot be shown", "none", said, 404)


def _html(site: Site, page: Page) -> Response:
    from starlette.responses import Response

    body = whole_page(page, site.base, str(site.folder))
    return Response(body, page.status, media_type="text/html")


def _static(request: Request) -> Response:
    from starlette.responses import PlainTextResponse, Response

    name = request.path_params["name"]
    known = {p.name: p for p in STATIC.iterdir() if p.suffix in KINDS}
    if name not in known:
        return PlainTextResponse("there is no such file", 404)
    return Response(known[name].read_bytes(), media_type=KINDS[known[name].suffix])


def _file(site: Site, request: Request) -> Response:
    from starlette.responses import FileResponse

    try:
        path = screens.file(site, request.query_params)
    except SanderlingError as error:
        return _html(site, _problem(error))
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)


def _picture(site: Site, request: Request) -> Response:
    """What cannot be shown is a small drawing that says so: an error would be one of the page."""
    from starlette.responses import Response

    places = request.path_params
    try:
        found = screens.picture(site, places["number"], places["place"])
    except (SanderlingError, OSError, ValueError, LookupError, TypeError):
        return Response((STATIC / "no_picture.svg").read_bytes(), media_type="image/svg+xml")
    return Response(found.content, media_type=found.kind)


# -- jobs -----------------------------------------------------------------------------------------


async def _start(site: Site, request: Request) -> Response:
    from starlette.responses import RedirectResponse

    if site.jobs is None:
        return _html(site, job_screens.jobs(site))
    try:
        values = await _form(request)
        job = site.jobs.start(request.path_params["verb"], values)
    except SanderlingError as error:
        return _html(site, job_screens.jobs(site, str(error)))
    return RedirectResponse(site.at(f"jobs/{job.id}"), 303)


async def _form(request: Request) -> dict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0] != FORM:
        raise InputError("this is not a form", where="Content-Type", fix=f"send {FORM}")
    try:
        pairs = parse_qsl((await request.body()).decode(), max_num_fields=50)
    except ValueError as error:
        raise InputError(f"the form cannot be read: {error}", fix="send it again") from error
    return dict(pairs)


async def _cancel(site: Site, request: Request) -> Response:
    from starlette.responses import RedirectResponse

    number = request.path_params["number"]
    if site.jobs is not None:
        site.jobs.cancel(number)
    return RedirectResponse(site.at(f"jobs/{number}"), 303)


async def _events(site: Site, request: Request) -> Response:
    """What a job says, as it says it (server-sent events)."""
    from starlette.responses import PlainTextResponse, StreamingResponse

    job = site.jobs.all.get(request.path_params["number"]) if site.jobs is not None else None
    if job is None or site.jobs is None:
        return PlainTextResponse("there is no such job", 404)
    seen = request.headers.get("last-event-id") or request.query_params.get("seen") or "0"
    start = int(seen) if seen.isdecimal() and len(seen) < 9 else 0
    return StreamingResponse(_told(site.jobs, job, start), media_type="text/event-stream")


async def _told(jobs: Jobs, job: Any, seen: int) -> AsyncIterator[str]:
    last = None
    while not jobs.is_stopping:
        told = job.told(seen)
        state = (told["state"], told["seen"], int(told["seconds"]))
        if state != last:
            last, seen = state, told["seen"]
            yield f"id: {seen}\ndata: {json.dumps(told)}\n\n"
        if told["state"] in ("done", "failed", "cancelled"):
            return
        await asyncio.sleep(TICK)


# -- its life -------------------------------------------------------------------------------------


def serve(
    folder: str | os.PathLike[str] = ".",
    *,
    port: int = 0,
    run: bool = False,
    pictures: Sequence[str | os.PathLike[str]] = (),
    open_browser: bool = False,
    on_ready: Callable[[str], None] = print,
) -> None:
    """Show the records of a folder as a page in the browser, on this machine alone, until Ctrl-C.

    port:         0 takes one that is free
    run:          the page may start bench, diff, quantize and eval on models of the folder
    pictures:     further folders whose pictures may be shown, where evaluations name them
    open_browser: open the page when it is there
    on_ready:     called with the address, which has a random token in it
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("uvicorn", "serve", "sanderling serve") from error

    token = new_token()
    with _listening(port) as listener:
        site = make_site(folder, token, run, pictures)
        app = make_app(site, token)
        address = f"http://{HOST}:{listener.getsockname()[1]}/{token}/"
        config = uvicorn.Config(
            app, log_level="error", lifespan="off", timeout_graceful_shutdown=2, server_header=False
        )
        server = _stoppable(uvicorn.Server(config), site)
        on_ready(address)
        if open_browser:
            webbrowser.open(address)
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises the signal again when all is closed
            pass
        finally:
            if site.jobs is not None:
                site.jobs.stop()
            site.index.close()


def _stoppable(server: Any, site: Site) -> Any:
    """Pages that wait for events of a job end at once when the server is to end."""
    ending = server.handle_exit

    def handle_exit(number: int, frame: Any) -> None:
        if site.jobs is not None:
            site.jobs.is_stopping = True
        ending(number, frame)

    server.handle_exit = handle_exit
    return server


def _listening(port: int) -> socket.socket:
    """The port, taken before anything else is done: one that is in use is said at once."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        raise _no_port(port, error) from error
    return listener


def _no_port(port: int, error: Exception) -> InputError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        what = f"port {port} is in use by another program"
    elif isinstance(error, OSError) and error.errno == errno.EACCES:
        what = f"port {port} may not be used"
    else:
        what = f"{port} is not a port"
    return InputError(
        what, where="--port", fix="give another number, or leave --port out to take a free one"
    )
