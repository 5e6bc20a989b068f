"""Commands over the runs of a folder: runs, runs rename, runs remove."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.app import app
from headway.cli.options import Json
from headway.cli.terminal import percent, show, table
from headway.experiments.run import STAGES

runs = typer.Typer(invoke_without_command=True, no_args_is_help=False, add_completion=False)
app.add_typer(runs, name="runs")

Root = Annotated[Path, typer.Option("--in", help="Folder that holds the runs.")]
Name = Annotated[str, typer.Argument(help="Run folder, or its name in the folder that holds the runs.", metavar="RUN")]


@runs.callback()
def listed(context: typer.Context, root: Root = Path("."), json: Json = False) -> None:
    """List the runs of a folder: how far each got, what it was asked for and what came of it.

    Example: headway runs --in runs
    """
    if context.invoked_subcommand is not None:
        context.obj = root
        return
    from headway.run_index import runs_in

    found = runs_in(root)
    show({"runs": [row.to_json() for row in found]}, run_lines(found, root), as_json=json)


@runs.command()
def rename(context: typer.Context, run: Name, name: Annotated[str, typer.Argument(help="New name.", metavar="NAME")]) -> None:
    """Give a run another name.

    Example: headway runs rename runs/demo friday
    """
    from headway.run_index import rename_run

    before = _place(run, context.obj)
    typer.echo(f"renamed    {before} to {rename_run(before, name)}")


@runs.command()
def remove(context: typer.Context, run: Name, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Delete a run and all its files.

    Example: headway runs remove runs/demo --yes
    """
    from headway.run_index import remove_run, row_of

    place = _place(run, context.obj)
    if not yes and not typer.confirm(f"remove {place} ({len(row_of(place).done)} of {len(STAGES)} stages done) and all its files?"):
        typer.echo("kept       nothing was removed")
        return
    remove_run(place)
    typer.echo(f"removed    {place}")


def _place(run: str, root: Path) -> Path:
    """A run by its folder, or by its name in the folder that was listed."""
    from headway.experiments.run import MANIFEST

    for place in (Path(run), root / run, root / "runs" / run):
        if (place / MANIFEST).is_file():
            return place
    raise ValueError(f"{run}: no run of that name in {root}; `headway runs` lists those that are there")


def run_lines(found: list[Any], root: Path) -> list[str]:
    """The runs as a table.

    Args:
        found: rows of `headway.run_index.runs_in`.
        root: where they were looked for.

    Returns:
        Lines.
    """
    if not found:
        return [f"no run in {root}; `headway demo` makes one, `headway run --help` shows how to make your own"]
    rows = [("run", "ended", "stages", "outcome", "on time", "asked")]
    for row in found:
        stages = "all" if row.next_stage is None else f"{len(row.done)} of {len(STAGES)}, next {row.next_stage}"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.changed_s))
        refused = ", not certified" if row.outcome == "met" and (row.path / "export" / "refused.txt").is_file() else ""
        rows.append((str(row.path), when, stages, (row.outcome or "-") + refused, percent(row.attainment), row.asked))
    widest = len(rows[0]) - 1  # the last column is words: to the left, and unpadded
    lines = [f"{line}  {cells[widest]}" for line, cells in zip(table([r[:widest] for r in rows], indent=""), rows, strict=True)]
    return [*lines, *(f"note: {row.fault}" for row in found if row.fault)]
