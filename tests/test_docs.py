"""The documentation against the program: its commands run and print what stands under them, and every option is known.

Where the figures of today are to stand in the pages, and it was understood why they moved: `python -m tests.test_docs`.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from headway.cli.app import COMMANDS, app
from tests.documents import Ran, Said, alike, blocks, difference, refreshed, run

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
if not (ROOT / "mkdocs.yml").is_file():
    pytest.skip("the documentation lies in the checkout; these tests run from a copy", allow_module_level=True)

RUN = ("quickstart.md", "cookbook.md")
"""Pages whose commands are run, in this order and in one folder: the second goes on where the first ends."""
PAGES = (*sorted(path.name for path in DOCS.glob("*.md")), "../README.md", "../CONTRIBUTING.md")
FEWEST = {"../README.md": 15, "commands.md": 30, "quickstart.md": 10, "cookbook.md": 20, "engines.md": 5}
"""Calls that a page holds at least: fewer, and they are not found any more."""
PLACEHOLDERS = {"COMMAND"}
"""Words that stand for a command's name in a sentence."""


def ran_pages(folder: Path) -> list[tuple[str, Said, Ran]]:
    """Every block of the pages with what became of it."""
    said = [(page, block) for page in RUN for block in blocks((DOCS / page).read_text())]
    return [(page, block, ran) for (page, block), ran in zip(said, run([block for _, block in said], folder), strict=True)]


@pytest.mark.slow
def test_the_commands_print_what_stands_under_them(tmp_path: Path) -> None:
    faults = []
    for page, block, ran in ran_pages(tmp_path):
        wanted = re.search(r"exit (\d+)", block.mark)
        if ran.status != (int(wanted[1]) if wanted else 0):
            faults.append(f"{page}:{block.line}: exit {ran.status}: {ran.errors.strip()[-300:]}")
        elif block.output is not None and "not compared" not in block.mark and (fault := difference(block.output, ran.output)):
            faults.append(f"{page}:{block.line}: {fault}")
    assert not faults, "\n" + "\n".join(faults)


def test_the_pages_hold_commands_to_run() -> None:
    shown = {page: blocks((DOCS / page).read_text()) for page in RUN}
    assert all(sum(block.output is not None for block in found) >= 8 for found in shown.values())


@pytest.fixture(scope="module")
def command() -> Any:
    for name in COMMANDS:
        importlib.import_module(name)
    return typer.main.get_command(app)


def commands_in(text: str) -> Iterator[tuple[int, str]]:
    """Every `headway ...` of a page, in blocks and in sentences, with its line."""
    text = re.sub(r"\\\n\s*", " ", text)
    for number, line in enumerate(text.splitlines(), start=1):
        spans = re.findall(r"`(headway [^`]+)`", line)
        bare = re.match(r"^\s*(?:[A-Z_]+=\S+ )?(headway .*)$", line)
        later = re.findall(r"(?:^|; |do |&& )(headway -?\w[^|;&]*)", line) if not spans else []
        for words in [*spans, *([bare[1]] if bare and not later else []), *later]:
            yield number, words.replace("\\|", "|")


def unknown(command: Any, words: str) -> str | None:
    """What the command line does not know of a call; None where it knows all of it."""
    parts = shlex.split(words.replace("...", " ").partition(" | ")[0], comments=True)[1:]
    node = command
    while parts and hasattr(node, "commands") and not parts[0].startswith("-"):
        if parts[0] in PLACEHOLDERS:
            return None
        if parts[0] not in node.commands:
            return f"no command {parts[0]!r}"
        node = node.commands[parts.pop(0)]
    known = {option for param in node.params for option in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
    asked = [part.partition("=")[0] for part in parts if part.startswith("--")]
    return next((f"no option {option} of {node.name}" for option in asked if option not in known), None)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_is_known(command: Any, page: str) -> None:
    found = list(commands_in((DOCS / page).read_text()))
    assert len(found) >= FEWEST.get(page, 0)
    faults = [f"{page}:{line}: {fault}: {words}" for line, words in found if (fault := unknown(command, words))]
    assert not faults, "\n" + "\n".join(faults)


def test_an_unknown_option_is_seen(command: Any) -> None:
    assert unknown(command, "headway fit steps.csv --kv-token 200k") == "no option --kv-token of fit"
    assert unknown(command, "headway fitt steps.csv") == "no command 'fitt'"
    assert unknown(command, "headway runs rename a b --in x") == "no option --in of rename"
    assert unknown(command, "headway validate c.json --runs=4 | head") is None
    assert [words for _, words in commands_in("a `headway x` b\n  headway y --z\nfor P in a; do headway w $P; done")] == [
        "headway x",
        "headway y --z",
        "headway w $P",
    ]


def test_words_must_be_equal_and_numbers_close() -> None:
    assert alike("gain  +10.4 % [+7.2, +18.7] over it", "gain +10.9 % [+7.3, +18.5] over it")
    assert not alike("gain  +10.4 % over it", "gain  +12.4 % over it")
    assert not alike("gain  +10.4 % over it", "gain  +10.4 % over them")
    assert alike("setting (512 tokens, 32 requests)", "setting (512 tokens, 32 requests)")
    assert not alike("setting (512 tokens, 32 requests)", "setting (256 tokens, 32 requests)")
    assert not alike("load 0.81 of it", "load 0.95 of it")
    assert difference("a\n...\nc 100\n", "a\nb\nc 101\n") is None
    assert difference("a\nc\n", "a\nb\nc\n") == "told 'c', printed 'b'"
    assert difference("a\n", "a\nb\n") == "more is printed: 'b'"
    assert difference("...\nx 1\n...\nx 9\n", "x 1\ny\nx 9\n") is None
    assert difference("a\n...\nx 9\n", "a\nx 1\n") == "told 'x 9', printed 'x 1'"
    assert refreshed("a 1\n...\nc 2 %\n", "a 5\nb\nc 7 %\n") == "a 5\n...\nc 7 %\n"


def test_every_command_is_on_the_page_of_commands(command: Any) -> None:
    named = {words.split()[1] for _, words in commands_in((DOCS / "commands.md").read_text()) if len(words.split()) > 1}
    assert set(command.commands) <= named


def anchor(heading: str) -> str:
    """What a heading is linked by: its words in small letters, joined by dashes."""
    return re.sub(r"[\s_-]+", "-", re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower())


def broken_links(page: Path) -> list[str]:
    """Links of a page that lead to no file, or to no heading of it."""
    found = []
    for link, _, place in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())):
        if ":" in link:
            continue
        target = page.parent / link if link else page
        if not target.exists():
            found.append(link)
        elif place and place not in {anchor(heading) for heading in re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)}:
            found.append(f"{link}#{place}")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert broken_links(DOCS / page) == []


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("## Is it `in` force?\n")
    (tmp_path / "a.md").write_text("[1](b.md#is-it-in-force) [2](b.md#other) [3](c.md) [4](https://x.y/z#w)\n")
    assert broken_links(tmp_path / "a.md") == ["b.md#other", "c.md"]


SCRIPT = re.compile(r"(?<![\w./])((?:scripts|benchmarks|\.ci)/[\w.-]*\w)")


@pytest.mark.parametrize("page", PAGES)
def test_scripts_that_are_named_are_there(page: str) -> None:
    assert not [name for name in SCRIPT.findall((DOCS / page).read_text()) if not (ROOT / name).exists()]


PYTHON = [page for page in PAGES if "```python" in (DOCS / page).read_text()]


def called_in(code: str) -> Iterator[tuple[str, str, set[str]]]:
    """Calls on `headway` and on what came of such a call: (what it is called on, name, keywords)."""
    made = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            made[node.targets[0].id] = ast.unparse(node.value.func)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            on = node.func.value.id
            yield made.get(on, on), node.func.attr, {word.arg for word in node.keywords if word.arg}


@pytest.mark.parametrize("page", PYTHON)
def test_python_on_a_page_calls_what_is_there(page: str) -> None:
    import headway
    from headway.notebook_options import EngineLimits
    from headway.notebook_results import FittedPlant, TunedController

    kinds = {"headway.fit": FittedPlant, "headway.tune": TunedController, "headway": headway}
    calls = [
        call
        for code in re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
        for call in called_in(code)
    ]
    assert len(calls) >= 3
    for on, name, words in calls:
        known = set(inspect.signature(getattr(kinds[on], name)).parameters) | set(EngineLimits.__annotations__)
        assert words <= known, f"{on}.{name} takes no {words - known}"


def test_every_benchmark_that_can_be_run_is_in_their_readme() -> None:
    folder = ROOT / "benchmarks"
    told = set(re.findall(r"^\| `(\w+)` \|", (folder / "README.md").read_text(), re.MULTILINE))
    calls = {path.stem: path.read_text() for path in folder.glob("*.py") if path.stem != "table"}
    framed = {name for name, text in calls.items() if re.search(rf'\brun\(\s*"{name}"', text)}
    assert len(framed) >= 12
    assert framed | {"cells"} == told  # cells has a table of its own


def test_the_readme_fits_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert named == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_the_site_is_built_without_a_warning_and_asks_the_network_for_nothing(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed; scripts/docs installs it and builds the site")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for path in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=[\"']?(https?:[^\"' >]+)", path.read_text())
        assert not fetched, f"{path.name} fetches {fetched}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = ran_pages(Path(place))
    for name in RUN:
        text = (DOCS / name).read_text()
        for _, block, ran in reversed([one for one in found if one[0] == name]):
            if block.output is not None and block.place is not None and difference(block.output, ran.output):
                text = text[: block.place[0]] + refreshed(block.output, ran.output) + text[block.place[1] :]
        (DOCS / name).write_text(text)
