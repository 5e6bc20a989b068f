"""The command that asks a running engine whether it runs as exported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.app import NOT_MET, app
from headway.cli.options import Json
from headway.cli.terminal import show, warning_lines


@app.command()
def verify(
    exported: Annotated[
        Path, typer.Argument(help="Folder of `headway export`, or the controller.json or flags.json in it.", metavar="EXPORTED")
    ],
    url: Annotated[str | None, typer.Option("--url", help="Address of the running server, such as http://127.0.0.1:8000.")] = None,
    log: Annotated[Path | None, typer.Option("--log", help="What the server printed at its start.", metavar="FILE")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 if something is not in force.")] = False,
    json: Json = False,
) -> None:
    """Read back from a running vLLM whether limits, flags and gains are those that were exported.

    Example: headway verify adapter --url http://127.0.0.1:8000 --log server.log
    """
    from headway.engines.vllm.readback import verify_exported

    found = verify_exported(exported, url=url, log=log)
    words = {"in force": "yes", "not in force": "NO ", "not said": "?  "}
    lines = [
        f"  {words[row['verdict']]}  {row['what']}: exported {_text(row['exported'])}, found {_text(row['found'])}" for row in found["rows"]
    ]
    wrong = [row["what"] for row in found["rows"] if row["verdict"] == "not in force"]
    unsaid = sum(row["verdict"] == "not said" for row in found["rows"])
    head = f"NOT in force: {', '.join(wrong)}" if wrong else "everything that is said is in force"
    lines = [
        f"verdict    {head}" + (f"; {unsaid} of {len(found['rows'])} not said" if unsaid else ""),
        *lines,
        *warning_lines(found["notes"]),
    ]
    show(found, lines, as_json=json)
    if check and wrong:
        raise typer.Exit(NOT_MET)


def _text(value: Any) -> str:
    return "nothing" if value is None else str(value)
