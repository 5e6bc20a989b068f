"""The frame of every benchmark: parts that measure, rows that are kept, a table, a verdict in the last line.

A benchmark module says what it measures and hands its parts over:

    def fit() -> Iterable[Row]:
        yield at_most("TP4, all steps, MAPE", measured, 2.0, "%")

    if __name__ == "__main__":
        sys.exit(run("spine", {"fit": fit, "simulator": simulator}))

The rows of a finished part are kept in `benchmarks/.results/NAME.json` under a hash of all sources, so that a run that was
killed goes on where it stood, and a changed source is measured anew. Exit 0: every bar holds. Exit 1: one falls short.
Exit 2: none falls short, but something that a part needs is missing. Exit 130: interrupted, what is finished is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / ".results"
SOURCES = ("headway", "models", "controllers", "identification", "experiments", "benchmarks")


class Row(NamedTuple):
    """One line of the table.

    Args:
        what: what was measured, with its conditions.
        bar: what it should be, as text; "" for a figure that only informs.
        measured: what it is, as text.
        holds: whether it meets the bar; None where there is no bar.
    """

    what: str
    bar: str
    measured: str
    holds: bool | None


class Missing(Exception):
    """Something that a part needs is not here; the message says what, and how to get it."""


def at_most(what: str, measured: float, bar: float, unit: str = "") -> Row:
    """A row whose figure must not exceed its bar. A figure that is not a number never holds.

    Args:
        what: what was measured.
        measured: the figure, in `unit`.
        bar: the most it may be, in `unit`.
        unit: as shown, such as "%" or "steps/s".

    Returns:
        The row.
    """
    return Row(what, f"<= {_figure(bar)} {unit}".rstrip(), f"{_figure(measured)} {unit}".rstrip(), bool(measured <= bar))


def at_least(what: str, measured: float, bar: float, unit: str = "") -> Row:
    """A row whose figure must reach its bar. A figure that is not a number never holds.

    Args:
        what: what was measured.
        measured: the figure, in `unit`.
        bar: the least it may be, in `unit`.
        unit: as shown, such as "%" or "steps/s".

    Returns:
        The row.
    """
    return Row(what, f">= {_figure(bar)} {unit}".rstrip(), f"{_figure(measured)} {unit}".rstrip(), bool(measured >= bar))


def informs(what: str, measured: object) -> Row:
    """A row without a bar.

    Args:
        what: what was measured.
        measured: the figure, shown as it is.

    Returns:
        The row.
    """
    return Row(what, "", str(measured), None)


def shared_data(*names: str) -> Path:
    """A file or folder of the measured data that is not ours to ship.

    Args:
        *names: path below data/ of the shared folder, which is `../shared` or where HEADWAY_SHARED says.

    Returns:
        Its path.

    Raises:
        Missing: it is not there.
    """
    path = Path(os.environ.get("HEADWAY_SHARED") or ROOT.parent / "shared").joinpath("data", *names)
    if not path.exists():
        raise Missing(f"{path} is not there; HEADWAY_SHARED names the folder that holds data/")
    return path


def environment_python(script: str, *arguments: str) -> Path:
    """The Python of an environment apart from ours, which is made if it is not there.

    Args:
        script: that makes it and prints its place, in scripts/.
        *arguments: of the script.

    Returns:
        Path of its interpreter.

    Raises:
        Missing: the script cannot make it here; the message is what it said last.
    """
    done = subprocess.run([ROOT / "scripts" / script, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"scripts/{script} ended with {done.returncode}"]
        raise Missing(said[-1])
    return Path(done.stdout.strip().splitlines()[-1]) / "bin" / "python"


def run(name: str, parts: Mapping[str, Callable[[], Iterable[Row]]], arguments: list[str] | None = None) -> int:
    """Measure what is not kept yet, print the table and the verdict.

    Args:
        name: of the benchmark, and of the file that keeps its rows.
        parts: by name, functions that measure and return or yield rows; a part is kept once it is finished.
        arguments: of the command line; `sys.argv` if None.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=f"parts: {', '.join(parts)}")
    parser.add_argument("--fresh", action="store_true", help="measure everything anew, rows that were kept included")
    parser.add_argument("--only", choices=sorted(parts), action="append", help="measure these parts alone; may be given several times")
    options = parser.parse_args(arguments)
    chosen = [part for part in parts if not options.only or part in options.only]

    store, key = RESULTS / f"{name}.json", _key()
    kept = {} if options.fresh and not options.only else _load(store, key)
    if options.fresh:
        kept = {part: rows for part, rows in kept.items() if part not in chosen}
    resumed = sum(part in kept for part in chosen)
    missing: dict[str, str] = {}
    incomplete: dict[str, list[Row]] = {}
    try:
        for count, part in enumerate(chosen, 1):
            if part in kept:
                continue
            print(f"[{count}/{len(chosen)}] {part} ...", file=sys.stderr, flush=True)
            started = time.perf_counter()
            rows: list[Row] = []
            try:
                for row in parts[part]():
                    rows.append(Row(*row))  # noqa: PERF401  # what a part measured before a gap is shown
            except Missing as gap:
                missing[part], incomplete[part] = str(gap), rows
                continue
            kept[part] = {"took_s": round(time.perf_counter() - started, 2), "rows": [list(row) for row in rows]}
            _save(store, key, kept)
    except KeyboardInterrupt:
        print(f"{name}: interrupted; finished parts are kept, the same command goes on from here")
        return 130
    rows = [Row(*row) for part in chosen if part in kept for row in kept[part]["rows"]]
    for part, gap in missing.items():
        rows += [*incomplete[part], Row(part, "", f"missing: {gap}", None)]
    took_s = sum(kept[part]["took_s"] for part in chosen if part in kept)
    return _print(name, rows, missing, f"measuring took {took_s:.0f} s" + (f", {resumed} of {len(chosen)} parts kept" if resumed else ""))


def _print(name: str, rows: list[Row], missing: dict[str, str], about: str) -> int:
    """The table, then the verdict in one line."""
    cells = [("what", "bar", "measured", "holds")]
    cells += [(r.what, r.bar or "-", r.measured, {True: "yes", False: "NO", None: "-"}[r.holds]) for r in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    for place, row in enumerate(cells):
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        if place == 0:
            print("  ".join("-" * width for width in widths))
    short = [r.what for r in rows if r.holds is False]
    bars = sum(r.holds is not None for r in rows)
    verdict = f"{name}: {bars - len(short)} of {bars} bars hold"
    if short:
        verdict += f"; short: {'; '.join(short)}"
    if missing:
        verdict += f"; not measured, something is missing: {', '.join(missing)}"
    print(f"{verdict} ({about})")
    return 1 if short else 2 if missing or not bars else 0


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _key() -> str:
    """Hash of everything a row depends on that is ours to see: sources, data in the package, versions, Python."""
    digest = hashlib.sha256(sys.version.encode())
    for distribution in ("numpy", "scipy", "jax", "numba", "control", "polars", "optax"):
        digest.update(f"{distribution} {importlib.metadata.version(distribution)}\n".encode())
    for folder in SOURCES:
        for path, below, names in os.walk(ROOT / folder):  # links are not followed: each file once
            below[:] = sorted(n for n in below if not n.startswith((".", "__")))
            for file in (Path(path) / n for n in sorted(names)):
                digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _load(store: Path, key: str) -> dict[str, Any]:
    try:
        kept = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept["parts"] if isinstance(kept, dict) and kept.get("sources") == key else {}


def _save(store: Path, key: str, parts: dict[str, Any]) -> None:
    store.parent.mkdir(exist_ok=True)
    draft = store.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps({"sources": key, "parts": parts}, indent=1), encoding="utf-8")
    draft.replace(store)
