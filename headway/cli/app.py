"""The command line: one command per stage, one line per error."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
import typer.core

from headway import __version__
from headway.cli.entry import INTERRUPTED

COMMANDS = (
    "headway.cli.record",
    "headway.cli.model",
    "headway.cli.identify",
    "headway.cli.decide",
    "headway.cli.pools",
    "headway.cli.runs",
    "headway.cli.run_index",
    "headway.cli.web",
    "headway.cli.scale",
    "headway.cli.sweep",
    "headway.cli.transport",
    "headway.cli.verify",
)
"""Modules that hold the commands."""

ORDER = (
    "run",
    "make-model",
    "record",
    "fit",
    "scale",
    "score",
    "transport",
    "simulate",
    "pools",
    "tune",
    "sweep",
    "analyse",
    "validate",
    "export",
    "verify",
    "report",
    "web",
    "runs",
    "demo",
)
"""Commands as `headway --help` lists them: the whole way first, then its stages in turn."""


class InOrder(typer.core.TyperGroup):
    """Lists the commands in the order of the work, not of the alphabet."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands.

        Args:
            ctx: of click.

        Returns:
            Those of ORDER, then any others.
        """
        names = super().list_commands(ctx)
        return sorted(names, key=lambda n: ORDER.index(n) if n in ORDER else len(ORDER))


app = typer.Typer(
    name="headway",
    cls=InOrder,
    help="A control-theory tuning workbench for LLM inference engines.",
    no_args_is_help=False,
    invoke_without_command=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

FOLDERS = {"run": None, "demo": os.path.join("runs", "demo")}
"""Commands that make a run, with their folder where none is given."""

BAD_INPUT, NOT_MET = 2, 1
"""Exit statuses."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headway {__version__}")
        raise typer.Exit


@app.callback()
def every_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,  # noqa: ARG001
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """A control-theory tuning workbench for LLM inference engines."""
    if debug:
        os.environ["HEADWAY_DEBUG"] = "1"
    if context.invoked_subcommand is None:
        from pathlib import Path

        from headway.next_step import next_step

        typer.echo("\n".join([*next_step(Path()), "all commands: headway --help"]))


def fail(message: str) -> None:
    """Say what is wrong, on one line.

    Args:
        message: the sentence.
    """
    sys.stderr.write(f"headway: {' '.join(str(message).split())}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: of the command line; None for the process's own.

    Returns:
        Exit status: 0, 1 for "not met", 2 for bad input, 130 for an interrupt.
    """
    for name in COMMANDS:  # each module puts its commands into `app`; loaded here so that importing `main` stays quick
        importlib.import_module(name)
    given = sys.argv[1:] if arguments is None else arguments
    _writable_streams()
    # typer's own errors carry their sentence in `format_message`, whichever click it was built with
    try:
        result: Any = typer.main.get_command(app).main(given, prog_name="headway", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except Exception as error:
        if os.environ.get("HEADWAY_DEBUG"):
            raise
        return _reported(error)
    if result == INTERRUPTED:  # typer answers an interrupt with this status and no word
        folder = _begun(given)
        stays = f"; finished stages stay in {folder}, `headway run --resume {folder}` goes on from there" if folder else ""
        fail(f"interrupted{stays}")
    return result if isinstance(result, int) else 0


def _writable_streams() -> None:
    """A closed stream takes everything and keeps nothing; one that cannot write a sign writes a question mark."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the process ends
        elif (stream.encoding or "").lower().replace("-", "") != "utf8" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _begun(given: list[str]) -> str | None:
    """The run folder that an interrupted command has begun, where it is one that makes a run and got so far."""
    command = next((word for word in given if not word.startswith("-")), None)
    if command not in FOLDERS:
        return None
    from headway.experiments.run import MANIFEST

    folder = FOLDERS[command]
    for option, value in zip(given, [*given[1:], ""], strict=True):
        name, equals, joined = option.partition("=")
        if name in ("--out", "--resume"):
            folder = joined if equals else value
    return folder if folder and os.path.isfile(os.path.join(folder, MANIFEST)) else None


def _reported(error: Exception) -> int:
    """One line for what went wrong; what is no fault of the user's keeps its kind, so that it can be reported."""
    if hasattr(error, "format_message"):
        message = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]  # a usage error of typer's
        if message:
            fail(message)
        return BAD_INPUT
    if isinstance(error, ModuleNotFoundError):
        fail(f"{error}; install what is missing, for example: pip install 'headway[{_extra(error.name or '')}]'")
    elif isinstance(error, ValueError):
        fail(str(error))
    elif isinstance(error, OSError):
        fail(f"{error.filename or 'file'}: {error.strerror or error}")
    else:
        fail(f"{type(error).__name__}: {error} (this is a fault of Headway's; --debug shows where)")
    return BAD_INPUT


def _extra(module: str) -> str:
    known = {
        "aiohttp": "live",
        "dash": "web",
        "ray": "scale",
        "optuna": "bench",
        "cma": "bench",
        "osqp": "mpc",
        "sklearn": "bench",
        "statsmodels": "bench",
    }
    return known.get(module.partition(".")[0], "dev")
