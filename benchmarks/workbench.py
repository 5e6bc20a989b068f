"""The bars of the workbench: a drag moves its figures at once, a long trace opens at once, every page is photographed.

python -m benchmarks.workbench [--only drags] with the pictures in runs/workbench
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.browser import WIDTHS, browser, drags, opened, photographed, served, tab
from benchmarks.table import Row, at_most, informs, run
from headway.demo import run_demo
from headway.web.pages import PAGES

PICTURES = Path("runs/workbench")
PLACE = Path("runs/demo")
DRAGS, MILLION = 20, 1_000_000


def finished() -> Path:
    """The demo's run, made where there is none.

    Returns:
        Its folder.
    """
    if not (PLACE / "report.html").exists():
        run_demo(PLACE, "sim")
    return PLACE


def moves() -> Iterator[Row]:
    """From input to new figures on the loop page."""
    with served(finished()) as address, browser() as made:
        page, _ = tab(made, WIDTHS["desktop"])
        opened(page, address, "loop")
        drags(page, "margin", 3)
        for knob in ("margin", "response"):
            took = drags(page, knob, DRAGS)
            value = float(np.median(took)) * 1e3
            if knob == "margin":
                yield at_most(f"drag of {knob}: input to the last new figure, median of {DRAGS}", value, 300.0, "ms")
            yield informs(f"drag of {knob}: p90, slowest", f"{1e3 * np.quantile(took, 0.9):.0f} ms, {1e3 * max(took):.0f} ms")


def long_trace() -> Iterator[Row]:
    """The first page of a run with a million steps."""
    with tempfile.TemporaryDirectory() as place:
        long = Path(place) / "long"
        shutil.copytree(finished(), long)
        frame = pl.read_parquet(long / "trace.parquet")
        many = (
            pl.concat([frame] * (MILLION // frame.height + 1))
            .head(MILLION)
            .with_columns(step=pl.int_range(MILLION).cast(frame["step"].dtype))
        )
        many.write_parquet(long / "trace.parquet")
        with served(long) as address, browser() as made:
            page, _ = tab(made, WIDTHS["desktop"])
            took = opened(page, address, "trace")
            yield at_most(f"first page of a run with {MILLION:,} steps, from the address to its figures", took, 2.0, "s")


def photographs() -> Iterator[Row]:
    """Every page at both widths, without a complaint of the browser's console."""
    with served(finished()) as address, browser() as made:
        for kind, width in WIDTHS.items():
            page, complaints = tab(made, width)
            for name in PAGES:
                opened(page, address, name)
                photographed(page, PICTURES / f"{name}-{width}.png")
            wide = page.evaluate("document.documentElement.scrollWidth")
            yield at_most(f"{kind}: complaints of the console over {len(PAGES)} pages", float(len(complaints)), 0.0)
            yield at_most(f"{kind}: width of the page beyond the window", float(wide - width), 0.0, "px")
    yield informs("pictures", f"{len(list(PICTURES.glob('*.png')))} in {PICTURES}")


if __name__ == "__main__":
    sys.exit(run("workbench", {"drags": moves, "million": long_trace, "pictures": photographs}))
