"""Serve the workbench until it is interrupted."""

from __future__ import annotations

import logging
import webbrowser
from collections.abc import Callable
from pathlib import Path

from werkzeug.serving import make_server

from headway.web import upload
from headway.web.app import application, warm
from headway.web.guard import QUERY, is_loopback, new_token
from headway.web.root import Root

PORT = 8050


def serve(
    given: Path,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Open the workbench on a run, or on a folder of runs.

    Args:
        given: the folder.
        host: address to listen on.
        port: 0 takes a free one.
        token: that readers must bring; "auto" makes one; None on loopback.
        browser: open it.
        say: told where it is.

    Raises:
        ValueError: no run there, an address without a token, or a port that is taken.
    """
    root = Root.of(given)
    token = new_token() if token == "auto" else token
    app = application(root, host=host, token=token)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    try:
        server = make_server(host, port, app.server, threaded=True)
    except (OSError, SystemExit) as error:  # werkzeug leaves with SystemExit where the port is taken
        raise ValueError(f"cannot listen on {host}:{port}, something else may: choose another with --port, 0 for any free one") from error
    shown = "localhost" if is_loopback(host) else host
    address = f"http://{shown}:{server.server_port}/" + (f"?{QUERY}={token}" if token else "")
    say(f"workbench  {address} shows {root.path / root.first}; Ctrl-C ends it")
    warm(root, app.server)
    if browser:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("workbench  ended")
    finally:
        upload.stop_all()
        server.server_close()
