"""The command that opens the workbench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.app import app


@app.command()
def web(
    run: Annotated[Path, typer.Argument(help="Run folder, or a folder that holds runs.", metavar="RUN")] = Path("."),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 8050,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; any but this machine's own needs a token.")] = "127.0.0.1",
    token: Annotated[str | None, typer.Option("--token", help="What readers must bring; auto makes one.")] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
) -> None:
    """Open the workbench on a run: trace, plant, loop, goodput, live, compare, export.

    Example: headway web runs/demo
    """
    from headway.web.server import serve

    serve(run, host=host, port=port, token=token, browser=not no_browser, say=typer.echo)
