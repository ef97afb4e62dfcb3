"""`sanderling serve`: the records of a folder as a page in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import say


def serve(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Records (--json FILE of any verb) and models."),
    ] = Path(),
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Default: one that is free.")
    ] = 0,
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="Let the page start bench, diff, quantize and eval in this folder."
        ),
    ] = False,
    pictures: Annotated[
        list[Path],
        typer.Option(
            metavar="FOLDER",
            help="Show pictures of evaluations from here too; may be repeated.",
        ),
    ] = [],  # noqa: B006
    open: Annotated[
        bool, typer.Option("--open/--no-browser", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Show the records of a folder as a page: graphs, histories, comparisons, reports, traces.

    The page is on this machine alone (127.0.0.1), under an address with a random token, and asks
    nothing of any other. It only looks, unless --run is given. Ctrl-C ends it.
    """
    from ..web.server import serve as work

    def ready(address: str) -> None:
        typer.echo(address)
        say(f"{'looks at and may write to' if run else 'looks at'} {folder}; Ctrl-C ends it")

    work(folder, port=port, run=run, pictures=pictures, open_browser=open, on_ready=ready)
    say("ended")
