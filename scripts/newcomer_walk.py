"""The path of somebody new, step by step: what each does, and what must be there afterwards. `scripts/newcomer` calls it.

Nothing here reaches into the library: there is the command line, a browser, and the files that they leave behind.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.browser import WIDTHS, browser, chromium, opened, served, tab
from headway.experiments.whole_files import read_json

ROOT = Path(__file__).resolve().parents[1]
WORKLOAD = "gamma:rate=30/s,cv=2,prompt=lognormal(median=160,sigma=0.9,min=16,max=1024),output=lognormal(median=60,sigma=0.6,min=4,max=200)"
TARGET = "ttft=400ms,itl=12ms"
"""Load and promise of the dropped trace, those of docs/quickstart.md with a quarter less to do."""

DEMO_S, RUN_S = 900, 900
"""Patience with the demo and with the run of the dropped trace, on a machine that has other work [s]."""
OUTCOMES = ("met", "not met")
"""Verdicts of a run that can say something."""
EXPORTED = ("headway_vllm.py", "controller.json", "README.md")
FLAG = "--scheduler-cls headway_vllm.make_scheduler"

FILE_OF = """([name, body]) => {
  const bytes = Uint8Array.from(atob(body), c => c.charCodeAt(0));
  const held = new DataTransfer();
  held.items.add(new File([bytes], name));
  return held;
}"""
"""What a browser hands over when a file is dropped."""


class Unmet(Exception):
    """What was found in place of what a step must leave behind."""


class Place(NamedTuple):
    """What the steps share.

    Args:
        folder: of everything that is made.
        page: of the browser, once it is open.
        address: of the workbench.
        complaints: of the browser's console.
    """

    folder: Path
    page: Any
    address: str
    complaints: list[str]

    @property
    def runs(self) -> Path:
        """The folder of the runs."""
        return self.folder / "runs"


def needed(holds: bool, found: str) -> None:
    """Go on only if something holds.

    Args:
        holds: whether it does.
        found: what there is instead.

    Raises:
        Unmet: it does not.
    """
    if not holds:
        raise Unmet(found)


def called(words: list[str], folder: Path, patience_s: float) -> str:
    """Run a command as a person would, with `headway` on the path.

    Args:
        words: of the command.
        folder: to run it in.
        patience_s: time that it may take [s].

    Returns:
        What it printed.

    Raises:
        Unmet: it failed.
    """
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=patience_s, env={**os.environ, "PATH": path}
    )
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
    needed(done.returncode == 0, f"{shlex.join(words)} ended with status {done.returncode}: {''.join(said)}")
    return done.stdout


def demo(place: Place) -> str:
    """Run `scripts/demo`."""
    said = called([str(ROOT / "scripts" / "demo"), "--out", str(place.runs / "demo")], ROOT, DEMO_S).splitlines()
    report = Path(said[-1].removeprefix("report").strip()) if said else Path()
    needed(report.is_file(), f"its last line is {said[-1] if said else 'missing'!r}")
    return next((line for line in said if line.startswith("gain")), said[-1])


def workbench(place: Place) -> str:
    """Look at the demo in the workbench."""
    took = opened(place.page, place.address, "trace")
    needed(place.page.locator(".js-plotly-plot").count() > 0, "a page without a figure")
    needed(not place.complaints, f"the browser complains: {'; '.join(place.complaints)}")
    return f"the trace page stands after {took:.1f} s"


def drop(place: Place) -> str:
    """Drop the trace that comes with Headway on the page, with a load and a promise, and wait until it is a run."""
    page = place.page
    page.locator("details.make > summary").click()
    page.locator("#new-workload").fill(WORKLOAD)
    page.locator("#new-target").fill(TARGET)
    trace = resources.files("headway") / "assets" / "demo_trace.parquet"
    file = page.evaluate_handle(FILE_OF, ["mine.parquet", base64.b64encode(trace.read_bytes()).decode()])
    page.dispatch_event("#upload input[type=file] >> xpath=..", "drop", {"dataTransfer": file})
    until = time.monotonic() + RUN_S
    while "run=mine" not in page.url:
        fault = page.locator("#upload-said .fault")
        needed(fault.count() == 0, f"the page says: {fault.first.inner_text() if fault.count() else ''}")
        needed(time.monotonic() < until, f"no run after {RUN_S} s; the page says: {page.locator('#upload-said').inner_text()!r}")
        page.wait_for_timeout(500)
    page.wait_for_selector(".js-plotly-plot .main-svg")
    needed((place.runs / "mine" / "report.html").is_file(), f"no report.html in {place.runs / 'mine'}")
    return page.locator("figcaption").first.inner_text().splitlines()[0]


def verdict(place: Place) -> str:
    """Read the verdict on the page that puts the run beside the demo."""
    opened(place.page, place.address, "compare?run=mine&other=demo")
    said = place.page.locator(".verdict").first.inner_text()
    pictured(place, "verdict")
    outcome = read_json(place.runs / "mine" / "validation.json")["outcome"]
    needed(outcome in OUTCOMES, f"validation.json says {outcome!r}")
    needed(said.lower().startswith(outcome), f"the page says {said!r}, validation.json {outcome!r}")
    return said


def export(place: Place) -> str:
    """Choose vLLM on the export page and run the command that it shows."""
    page = place.page
    opened(page, place.address, "export?run=mine")
    page.get_by_role("link", name="vllm", exact=True).click()
    page.wait_for_url("**engine=vllm")
    page.wait_for_function("document.querySelector('.command code').innerText.includes('--engine vllm ')")
    needed(page.locator(".fault").count() == 0, "the page refuses")
    pictured(place, "export")
    command = page.locator(".command code").first.inner_text()
    called(shlex.split(command), place.folder, 120)
    return f"headway export ... {command.partition('controller.json ')[2]}"


def written(place: Place) -> str:
    """Look at what was written."""
    folder = place.folder / "export-vllm"
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    needed(set(EXPORTED) <= set(there), f"{folder} holds {', '.join(there) or 'nothing'}")
    tree = ast.parse((folder / "headway_vllm.py").read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    needed("make_scheduler" in names, "headway_vllm.py has no make_scheduler")
    taken = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    taken |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    needed(not any(name.split(".")[0] == "headway" for name in taken), "headway_vllm.py imports headway, which a server does not have")
    needed(FLAG in (folder / "README.md").read_text(encoding="utf-8"), f"README.md does not say {FLAG}")
    return ", ".join(there)


def pictured(place: Place, name: str) -> None:
    """Keep a picture of the page, if HEADWAY_ARTEFACTS names a folder.

    Args:
        place: with the page.
        name: of the picture.
    """
    if kept := os.environ.get("HEADWAY_ARTEFACTS"):
        Path(kept).mkdir(parents=True, exist_ok=True)
        place.page.screenshot(path=f"{kept}/newcomer-{name}.png", full_page=True)


IN_BROWSER: tuple[tuple[str, str, Callable[[Place], str]], ...] = (
    ("workbench", "a page with figures and a quiet console", workbench),
    ("drop a trace", f"it becomes a run within {RUN_S} s, with a report", drop),
    ("verdict", f"one of {' or '.join(map(repr, OUTCOMES))} on the page, the same as in validation.json", verdict),
    ("export", "the page shows a command for vLLM, and it ends with status 0", export),
    ("written", f"{', '.join(EXPORTED)}, of which the first needs no headway, and the last says {FLAG}", written),
)
"""Steps with a browser: name, what is expected, what to do."""


def walked(name: str, expected: str, act: Callable[[], str]) -> bool:
    """Take a step and say what came of it, in one line.

    Args:
        name: of the step.
        expected: what must come of it.
        act: does it, and returns what it saw.

    Returns:
        Whether it held.
    """
    from playwright.sync_api import Error

    began = time.perf_counter()
    try:
        said, holds = act(), True
    except (Unmet, Error, OSError, RuntimeError, ValueError, SyntaxError, LookupError, subprocess.SubprocessError) as fault:
        said, holds = f"expected {expected}; found: {' '.join(str(fault).split())[:400]}", False
    sys.stdout.write(f"{'ok' if holds else 'FAILS':5} {time.perf_counter() - began:6.1f} s  {name}: {said}\n")
    sys.stdout.flush()
    return holds


@contextlib.contextmanager
def place_of(kept: Path | None) -> Iterator[Path]:
    """The folder of everything that is made.

    Args:
        kept: where it stays; None for one that is removed.

    Yields:
        Its path.
    """
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="headway-newcomer-") as folder:
            yield Path(folder)
    else:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()


def main(arguments: list[str]) -> int:
    """Walk the path.

    Args:
        arguments: of the command line.

    Returns:
        0 if every step held, 1 at the first that did not, 2 where there is no browser or no empty folder.
    """
    parser = argparse.ArgumentParser(prog="scripts/newcomer", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the runs and the export there")
    kept = parser.parse_args(arguments).keep
    if chromium() is None:
        sys.stderr.write("newcomer: no Chromium on the path, and the workbench is opened in one; Debian: apt-get install chromium\n")
        return 2
    if kept is not None and kept.exists() and not (kept.is_dir() and not any(kept.iterdir())):
        sys.stderr.write(f"newcomer: {kept} is there and is not an empty folder; give a new one with --keep\n")
        return 2
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(place_of(kept))
        if not walked("demo", "a run with a report, its path in the last line", lambda: demo(Place(folder, None, "", []))):
            return 1
        found: list[Place] = []

        def start() -> str:
            address = stack.enter_context(served(folder / "runs" / "demo"))
            page, complaints = tab(stack.enter_context(browser()), WIDTHS["desktop"])
            found.append(Place(folder, page, address, complaints))
            return f"headway web runs/demo at {address}"

        if not walked("open", "headway web prints its address, and Chromium starts", start):
            return 1
        return 0 if all(walked(name, expected, lambda act=act: act(found[0])) for name, expected, act in IN_BROWSER) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
