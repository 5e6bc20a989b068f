"""The workbench in a real browser: a server of its own, Debian's Chromium, pages opened, photographed, and sliders dragged."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = {"desktop": 1440, "phone": 390}
PATIENCE_MS = 120_000
"""For a page: the first simulation may have to compile the engine."""

AS_UNWATCHED = "--js-flags=--no-enable-lazy-source-positions"
"""Playwright's inspector asks for line numbers while a script is run, and V8 reads the whole script anew for them: of plotly.js 4.8 MB,
which then takes twice as long as in a browser that nobody watches. With line numbers taken at the first reading it takes as long as there."""

DRAWN = """() => {
  window.drawn = {};
  document.querySelectorAll('.js-plotly-plot').forEach(plot => {
    const name = JSON.parse(plot.closest('[id^="{"]').id).name;
    plot.on('plotly_afterplot', () => { window.drawn[name] = performance.now(); });
  });
}"""
"""Notes when each figure was last drawn."""


SETTLED = """() => [...document.querySelectorAll('.dash-graph, main > section .plot')].every(plot => plot.querySelector('.main-svg'))"""
"""Whether every figure of a page has been drawn."""


def chromium() -> str | None:
    """The browser of this machine.

    Returns:
        Path; None where there is none.
    """
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def served(run: Path) -> Iterator[str]:
    """`headway web` on a run, in a process of its own.

    Args:
        run: run folder, or a folder of runs.

    Yields:
        Its address.

    Raises:
        RuntimeError: it did not start; with what it said.
    """
    command = [sys.executable, "-m", "headway", "web", str(run), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = process.stdout.readline() if process.stdout else ""
        found = re.search(r"http://\S+", said)
        if not found:
            raise RuntimeError(f"the workbench did not start: {said.strip()}")
        yield found[0].rstrip("/")
    finally:
        process.terminate()
        process.wait(timeout=20)
        if process.stdout:
            process.stdout.close()


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright.

    Yields:
        The browser.

    Raises:
        RuntimeError: there is no Chromium here.
    """
    from playwright.sync_api import sync_playwright

    path = chromium()
    if path is None:
        raise RuntimeError(f"no browser: none of {', '.join(NAMES)} is on the path; Debian: apt-get install chromium")
    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=path, args=["--no-sandbox", AS_UNWATCHED])
        try:
            yield made
        finally:
            made.close()


def tab(made: Any, width: int, *, dark: bool = False) -> tuple[Any, list[str]]:
    """A new tab that keeps what its console complains of.

    Args:
        made: the browser.
        width: of the window, in pixels.
        dark: whether the reader prefers a dark page.

    Returns:
        (the page, complaints so far; grows).
    """
    context = made.new_context(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    page, complaints = context.new_page(), []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    return page, complaints


def opened(page: Any, address: str, name: str) -> float:
    """Open one page and wait until it is filled.

    Args:
        page: the tab.
        address: of the workbench.
        name: of the page, perhaps with a query.

    Returns:
        Seconds it took [s].
    """
    began = time.perf_counter()
    page.goto(f"{address}/{name}")
    page.wait_for_selector(f"#page-{name.partition('?')[0]}", timeout=PATIENCE_MS)
    if page.locator(".dash-graph").count():
        page.wait_for_selector(".js-plotly-plot .main-svg", timeout=PATIENCE_MS)
    return time.perf_counter() - began


def photographed(page: Any, path: Path) -> None:
    """Photograph a whole page, not before each of its figures is drawn.

    Args:
        page: the tab, with a page of the workbench or a report open.
        path: of the picture; its folder is made.
    """
    page.wait_for_function(SETTLED, timeout=PATIENCE_MS)
    page.wait_for_timeout(400)  # what a figure still lays out after its first stroke: legends, margins, the strip below
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(path), full_page=True)


def drags(page: Any, knob: str, many: int) -> list[float]:
    """Move a slider by its keys and wait each time until the closed loop is drawn anew.

    Args:
        page: a tab with the loop page open.
        knob: name of the slider.
        many: moves.

    Returns:
        Seconds from each input to the last of the new figures, shape (many,) [s].
    """
    page.wait_for_function(SETTLED, timeout=PATIENCE_MS)
    page.evaluate(DRAWN)
    handle = page.locator(f'[id*=\'"{knob}"\'] [role="slider"]').first
    handle.focus()
    took = []
    for k in range(many):
        page.wait_for_timeout(150)
        began = page.evaluate("() => performance.now()")
        page.keyboard.press("ArrowRight" if k % 2 == 0 else "ArrowLeft")
        page.wait_for_function("t => window.drawn.loop > t", arg=began, timeout=PATIENCE_MS)
        page.wait_for_timeout(60)  # the other figures of the same answer
        took.append((page.evaluate("() => Math.max(...Object.values(window.drawn))") - began) / 1e3)
    return took
